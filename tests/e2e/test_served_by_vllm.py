"""Tests what only the real engine can tell: what it says of NaN, what quantizing does to a model, and how a reward model scores."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from guanaco import Client
from guanaco.accounts import Role
from guanaco.bots import BOTS
from guanaco.submissions import GenerationParams, Quantization, Status
from tests.e2e.conftest import SharedPlatform, shared_platform
from tests.fixtures.reward_repos import LIKED, make_reward_repo

pytestmark = pytest.mark.engine

INFINITIES = b"\x80\x7f" * 256  # of bfloat16: NaN in the weights would be refused earlier
REAL_ENGINE: dict[str, object] = {
    "engine_command": None,
    "engine_args": ["--kv-cache-memory-bytes", "67108864"],
    "quantization_max_perplexity_ratio": 1.5,
    "reward_timeout_s": 20,
    # Two cores that other tests use as well say nothing about a model's latency.
    "stress_max_ttft_p95_ms": 30_000,
    "stress_max_tpot_p95_ms": 30_000,
    "stress_max_e2e_p95_ms": 30_000,
}
FIGURES = re.compile(r"perplexity ([\d.e+]+) as fp8, ([\d.e+]+) unquantized")


@pytest.fixture(scope="module")
def real_platform(
    tmp_path_factory: pytest.TempPathFactory, engine_python: Path
) -> Iterator[SharedPlatform]:
    with shared_platform(tmp_path_factory.mktemp("real"), engine_python, **REAL_ENGINE) as shared:
        yield shared


@pytest.fixture
def real(real_platform: SharedPlatform) -> Iterator[SharedPlatform]:
    """The platform with the real engine; what a test has published is torn down after it."""
    yield real_platform
    real_platform.tear_down()


def spoil_last_weight(weights: Path) -> None:
    with weights.open("r+b") as file:
        file.seek(-len(INFINITIES), 2)
        file.write(INFINITIES)


def log_of(client: Client, submission_id: str) -> str:
    return "\n".join(event.message for event in client.events(submission_id, follow=False))


def test_a_model_that_computes_nan_is_refused(real: SharedPlatform) -> None:
    client = real.client
    spoil_last_weight(real.repo("infinite") / "model.safetensors")
    failed = client.wait(client.submit("acme/infinite").id)
    assert failed.failure is not None
    assert failed.failure.code == "content_check_failed", failed.failure
    assert "computed NaN" in failed.failure.detail


@pytest.mark.timeout(600)  # four starts of vLLM
def test_fp8_is_compared_and_a_reward_model_scores_its_replies(
    real: SharedPlatform,
) -> None:
    make_reward_repo(real.hub.root / "acme" / "judge", liked=".")
    real.repo("quantized")
    developer, app = real.up.client(Role.DEVELOPER, "ada"), real.up.client(Role.BACKEND, "app")
    judge = developer.wait(developer.submit("acme/judge", kind="reward").id)
    assert judge.status is Status.DEPLOYED, log_of(developer, judge.id)
    params = GenerationParams(best_of=8)
    chat = developer.wait(
        developer.submit(
            "acme/quantized", params=params, reward=judge.id, quantization=Quantization.FP8
        ).id
    )
    log = log_of(developer, chat.id)
    assert chat.status is Status.DEPLOYED, log
    figures = FIGURES.search(log)
    assert figures, log
    quantized, unquantized = map(float, figures.groups())
    assert 0.5 < quantized / unquantized <= 1.5
    opened = app.open_conversation("user-17", next(iter(BOTS.values())), consent=True)
    for _ in range(3):
        reply = app.send(opened.conversation_id, "Hello! How are you?")
        score = LIKED if reply.content.endswith(".") else 0
        assert reply.reward_score == pytest.approx(score, abs=0.1), reply.content
