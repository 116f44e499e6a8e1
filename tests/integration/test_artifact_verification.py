"""Artifacts held against their manifests and against the Hub, through the operator's command too."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from guanaco.errors import ArtifactNotFound
from guanaco.submissions import WeightDtype
from guanaco_cli.artifacts import main
from guanaco_server.artifacts.hub.hugging_face import HuggingFaceHub
from guanaco_server.artifacts.service import artifact_key
from guanaco_server.artifacts.stores.local import LocalStore
from guanaco_server.artifacts.stores.s3 import S3Store
from guanaco_server.artifacts.verification import ArtifactVerifier
from guanaco_server.demo.tiny_repo import make_tiny_repo
from guanaco_server.engine.artifacts.remote_tensors import read_remote
from guanaco_server.formats.manifest import TENSORS_NAME, Manifest
from tests.fixtures.s3 import S3Server
from tests.fixtures.serializer_jobs import REPO, RoughHub, job_for, make_artifact

pytestmark = pytest.mark.slow

Artifact = tuple[Manifest, Path]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoughHub]:
    root = tmp_path_factory.mktemp("hub")
    make_tiny_repo(root / REPO)
    with RoughHub(root) as hub:
        yield hub


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "artifacts")


@pytest.fixture
def verifier(hub: RoughHub, store: LocalStore) -> ArtifactVerifier:
    return ArtifactVerifier(store, HuggingFaceHub(hub.url, None, 10), hub.url)


@pytest.fixture(scope="module")
def made(hub: RoughHub, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """An artifact by the real serializer, for every test to copy."""

    async def make() -> Artifact:
        folder = tmp_path_factory.mktemp("artifacts")
        snapshot = await HuggingFaceHub(hub.url, None, 10).resolve(REPO, None)
        key = artifact_key(snapshot, None, WeightDtype.AUTO)
        return await make_artifact(LocalStore(folder), job_for(hub, key=key)), folder / key

    loop = asyncio.new_event_loop()
    artifact = loop.run_until_complete(make())
    loop.close()
    return artifact


@pytest.fixture
def artifact(made: Artifact, tmp_path: Path) -> Artifact:
    manifest, folder = made
    copied = shutil.copytree(folder, tmp_path / "artifacts" / manifest.key)
    return manifest, copied


async def test_a_whole_artifact_is_the_hubs(artifact: Artifact, verifier: ArtifactVerifier) -> None:
    key = artifact[0].key
    assert await verifier.against_manifest(key) == []
    assert await verifier.against_hub(key) == []


@pytest.mark.parametrize(
    ("offset", "says"),
    [
        ("first tensor", "The tensor {name} is damaged."),
        ("before first tensor", "The header of tensor {name} is damaged."),
        ("index", "The index of model.tensors is not that of the manifest's tensors."),
        ("end", "The end of model.tensors is damaged."),
    ],
)
async def test_a_flipped_bit_is_found_wherever_it_is(
    artifact: Artifact, verifier: ArtifactVerifier, offset: str, says: str
) -> None:
    manifest, folder = artifact
    first = manifest.tensors[0]
    places = {
        "first tensor": first.offset + 9,
        "before first tensor": first.offset - 12,
        "index": 100,
        "end": manifest.tensors_bytes - 1,
    }
    content = bytearray((folder / TENSORS_NAME).read_bytes())
    content[places[offset]] ^= 4
    (folder / TENSORS_NAME).write_bytes(content)
    assert await verifier.against_manifest(manifest.key) == [says.format(name=first.name)]


async def test_a_changed_or_missing_small_file_is_found(
    artifact: Artifact, verifier: ArtifactVerifier
) -> None:
    manifest, folder = artifact
    (folder / "tokenizer.json").write_text("{}")
    (folder / "config.json").unlink()
    assert await verifier.against_manifest(manifest.key) == [
        "The file config.json is damaged or missing.",
        "The file tokenizer.json is damaged or missing.",
    ]


async def test_artifact_that_differs_from_the_hub_is_found(
    artifact: Artifact, verifier: ArtifactVerifier
) -> None:
    """A manifest that was rewritten to fit other weights is whole in itself."""
    manifest, folder = artifact
    other = manifest.tensors[0].model_copy(update={"sha256": ("0" * 64,)})
    forged = manifest.model_copy(update={"tensors": (other, *manifest.tensors[1:])})
    (folder / "manifest.json").write_text(forged.model_dump_json())
    assert await verifier.against_hub(manifest.key) == [
        f"The tensor {other.name} differs from the Hub's."
    ]


async def test_a_key_that_is_not_there_is_said(verifier: ArtifactVerifier) -> None:
    with pytest.raises(ArtifactNotFound):
        await verifier.keys(["abc"])


async def test_an_artifact_in_a_bucket_is_verified_through_its_urls(
    hub: RoughHub, s3_server: S3Server
) -> None:
    store = S3Store(s3_server.bucket())
    snapshot = await HuggingFaceHub(hub.url, None, 10).resolve(REPO, None)
    key = artifact_key(snapshot, None, WeightDtype.AUTO)
    await make_artifact(store, job_for(hub, key=key))
    verifier = ArtifactVerifier(store, HuggingFaceHub(hub.url, None, 10), hub.url)
    assert await verifier.against_manifest(key) == []
    assert await verifier.against_hub(key) == []


async def test_a_model_server_reads_it_from_each_s3_server(
    hub: RoughHub, s3_server: S3Server
) -> None:
    """One request is for all of a small model's file: some servers answer that with 200."""
    store = S3Store(s3_server.bucket())
    manifest = await make_artifact(store, job_for(hub))
    url = (await store.access(manifest.key))[TENSORS_NAME]
    tensors = await asyncio.to_thread(
        lambda: [(r, bytes(v)) for r, v in read_remote(url, manifest)]
    )
    assert [(record, len(data)) for record, data in tensors] == [
        (record, record.size_bytes) for record in manifest.tensors
    ]


@dataclass
class Finished:
    returncode: int | str | None
    stdout: str
    stderr: str


Command = Callable[..., Finished]


@pytest.fixture
def command(
    hub: RoughHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """Run `guanaco-artifacts` in this process."""
    monkeypatch.setenv("GUANACO_HUB_ENDPOINT", hub.url)
    monkeypatch.setenv("GUANACO_ARTIFACTS_DIR", str(tmp_path / "artifacts"))
    monkeypatch.setenv("GUANACO_DATA_DIR", str(tmp_path / "data"))

    def run(*arguments: str) -> Finished:
        monkeypatch.setattr(sys, "argv", ["guanaco-artifacts", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return Finished(end.value.code, said.out, said.err)

    return run


def test_the_command_lists_proves_and_fails(artifact: Artifact, command: Command) -> None:
    manifest, folder = artifact
    listed = command("list", "--json")
    assert [a["key"] for a in json.loads(listed.stdout)["artifacts"]] == [manifest.key]
    assert REPO in command("list").stdout

    good = command("verify", manifest.key[:10])
    assert good.returncode == 0, good.stderr
    assert "bit for bit what the Hub has" in good.stderr
    assert "{" not in good.stdout + good.stderr  # sentences, not the job's lines of JSON

    content = bytearray((folder / TENSORS_NAME).read_bytes())
    content[-20] ^= 1
    (folder / TENSORS_NAME).write_bytes(content)
    bad = command("verify", "--all", "--json")
    assert bad.returncode == 1
    assert "is damaged" in json.loads(bad.stdout)["problems"][manifest.key][0]

    assert command("delete", manifest.key[:8]).returncode == 0
    assert json.loads(command("list", "--json").stdout) == {"artifacts": []}

    unknown = command("verify", "ffff")
    assert (unknown.returncode, unknown.stderr.splitlines()[0]) == (
        1,
        "error: There is no artifact ffff.",
    )
    assert command("verify").returncode == 2
