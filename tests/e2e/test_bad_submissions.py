"""Tests that what is wrong with a repo, a model or a machine reaches its developer as one sentence, and leaves nothing half-made."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from guanaco import Client
from guanaco.errors import Blame, ModelUnavailable
from guanaco.submissions import GenerationParams, Stage, Status, Submission
from tests.e2e.conftest import SharedPlatform, StartPlatform
from tests.fixtures.hub import ControlledHub
from tests.fixtures.up import eventually

pytestmark = pytest.mark.engine

Spoil = Callable[[Path], object]


def rewrite(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def truncate(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 100_000)


def corrupt(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.write(b"\xff" * 16)


BAD_REPOS: dict[str, tuple[Spoil, str, str]] = {
    "gated": (lambda folder: (folder / ".gated").touch(), "repo_gated", "acme/bad is gated"),
    "pickle": (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        "pickle_weights",
        "pytorch_model.bin",
    ),
    "auto_map": (
        lambda folder: rewrite(folder, auto_map={"AutoModel": "evil.Model"}),
        "remote_code",
        "auto_map",
    ),
    "truncated": (truncate, "corrupt_weights", "model.safetensors"),
    "corrupt": (corrupt, "corrupt_weights", "model.safetensors"),
    "architecture": (
        lambda folder: rewrite(folder, architectures=["BertModel"]),
        "unsupported_architecture",
        "BertModel",
    ),
}


def test_bad_repos_fail_with_a_sentence_naming_the_problem(
    platform: SharedPlatform,
) -> None:
    client = platform.client
    missing = client.submit("acme/nobody")
    spoiled: dict[str, Submission] = {}
    for name, (spoil, _, _) in BAD_REPOS.items():
        spoil(platform.repo(name))
        spoiled[name] = client.submit(f"acme/{name}")

    assert_failed(client, missing, "repo_not_found", "acme/nobody")
    for name, (_, code, part) in BAD_REPOS.items():
        assert_failed(client, spoiled[name], code, part.replace("acme/bad", f"acme/{name}"))


def test_model_over_the_limit_is_refused_before_weights_are_fetched(
    start_platform: StartPlatform, hub: ControlledHub
) -> None:
    client = start_platform(max_parameters=1_000).client()
    submission = client.submit("acme/tiny")
    assert_failed(client, submission, "model_too_large", "1,574,144 parameters; 1,000")
    assert sum("model.safetensors" in path for path in hub.asked) == 1, "the header, by range"


def test_more_tokens_than_the_model_has_positions_are_refused(platform: SharedPlatform) -> None:
    client = platform.client
    platform.repo("tokens")
    submission = client.submit("acme/tokens", params=GenerationParams(max_input_tokens=4_000))
    assert_failed(client, submission, "context_too_long", "2,048 positions")


def test_a_slow_model_fails_with_the_figures(start_platform: StartPlatform) -> None:
    up = start_platform(stress_max_e2e_p95_ms=0.01)
    client = up.client()
    submission = client.submit("acme/tiny")
    assert_failed(client, submission, "stress_check_failed", "allowed 0 ms")
    assert not client.stress(submission.id).is_passed
    eventually(lambda: not up.model_servers(), "end of the model server")


def test_a_model_server_that_dies_at_start_is_explained(platform: SharedPlatform) -> None:
    platform.repo("dead")
    submission = platform.client.submit("acme/dead")
    assert_failed(platform.client, submission, "model_server_died", "ended with exit status")
    assert platform.up.model_servers() == []


@pytest.mark.parametrize(
    ("say", "part"),
    [
        ("constant", "repeats the token 'Hello'"),
        ("empty", "Content check `not empty` failed"),
        ("nan", "computed NaN"),
    ],
)
def test_useless_model_is_told_what_it_said(platform: SharedPlatform, say: str, part: str) -> None:
    client, up = platform.client, platform.up
    platform.repo(say)
    failed = assert_failed(client, client.submit(f"acme/{say}"), "content_check_failed", part)
    assert failed.failure is not None
    assert (failed.failure.blame, failed.failure.stage) == (Blame.DEVELOPER, Stage.DEPLOY)
    eventually(lambda: not up.model_servers(), "end of the model server")


def test_too_lossy_quantization_is_refused_with_both_figures(
    platform: SharedPlatform,
) -> None:
    client = platform.client
    platform.repo("lossy")
    submission = client.submit("acme/lossy", quantization="fp8")
    figures = "perplexity 4.482 as fp8, 2.718 unquantized; 1.1 times is allowed"
    assert_failed(client, submission, "quantization_too_lossy", figures)
    unquantized = client.wait(client.submit("acme/lossy").id)
    assert unquantized.status is Status.DEPLOYED


def test_a_missing_engine_is_the_platforms_fault(start_platform: StartPlatform) -> None:
    client = start_platform(engine_python="nowhere/python").client()
    failed = assert_failed(client, client.submit("acme/tiny"), "engine_missing", "nowhere/python")
    assert failed.failure is not None
    assert failed.failure.blame is Blame.PLATFORM


def test_a_published_server_that_dies_is_started_again(platform: SharedPlatform) -> None:
    client, up = platform.client, platform.up
    platform.repo("killed")
    submission = client.wait(client.submit("acme/killed").id)
    opened = client.open_conversation("user", {"name": "Luna"}, consent=True)
    server = up.model_server()

    server.kill()
    reply = client.send(opened.conversation_id, "Are you there?")
    assert reply.content, "the message has waited for the server that was started again"
    messages = client.conversation(opened.conversation_id).messages
    assert [message.content for message in messages[:1]] == ["Are you there?"]
    assert len(messages) == 2
    assert client.submission(submission.id).status is Status.DEPLOYED


def test_a_server_that_keeps_dying_fails_its_submission(platform: SharedPlatform) -> None:
    client, up = platform.client, platform.up
    platform.repo("dying")
    submission = client.wait(client.submit("acme/dying").id)
    for _ in range(2):
        servers = eventually(up.model_servers, "model server")
        for server in servers:
            server.kill()
        eventually(lambda: not any(s.is_running() for s in servers), "death")  # noqa: B023
    eventually(lambda: client.submission(submission.id).status is Status.FAILED, "failure")
    failure = client.submission(submission.id).failure
    assert failure is not None
    assert failure.code == "model_server_died"
    assert up.model_servers() == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes; serializing takes three and a half."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_told_and_leaves_nothing_behind(
    start_platform: StartPlatform, small_disk: Path
) -> None:
    client = start_platform(artifacts_dir=str(small_disk)).client()
    failed = assert_failed(client, client.submit("acme/tiny"), "disk_full", "bytes of disk")
    assert failed.failure is not None
    assert (failed.failure.blame, failed.failure.stage) == (Blame.PLATFORM, Stage.SERIALIZE)
    assert [path for path in small_disk.rglob("*") if path.is_file()] == []


def assert_failed(client: Client, submission: Submission, code: str, part: str) -> Submission:
    failed = client.wait(submission.id)
    assert failed.status is Status.FAILED
    assert failed.failure is not None
    assert (failed.failure.code, part in failed.failure.detail) == (code, True), failed.failure
    return failed


def can_reply(client: Client, conversation_id: str) -> bool:
    try:
        return bool(client.send(conversation_id, "Are you there?").content)
    except ModelUnavailable:
        return False
