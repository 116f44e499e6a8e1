"""A store whose certificate an authority of its own has signed: s3_ca_file reaches everything that speaks to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from guanaco.errors import InvalidSettings, StoreUnreachable
from guanaco_server.artifacts.stores.s3 import S3Store
from guanaco_server.demo.hub_server import LocalHub
from guanaco_server.demo.tiny_repo import make_tiny_repo
from guanaco_server.engine.artifacts.store_trust import (
    CHUNK_CHARS,
    MAX_CHARS,
    as_environment,
    trusted_by,
)
from guanaco_server.formats.manifest import MANIFEST_NAME
from tests.fixtures import s3
from tests.fixtures.fake_kubernetes.certificates import Certificate
from tests.fixtures.s3 import S3Server
from tests.fixtures.serializer_jobs import GIB, IMPORTS, KEY, REPO, job_for, run

pytestmark = pytest.mark.slow

READ = """
import sys
from guanaco_server.engine.artifacts.source import ArtifactSource
print(len(ArtifactSource(sys.argv[1], {"manifest.json": sys.argv[2]}).fetch("manifest.json", 10**6)))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    certificate = Certificate.make(tmp_path_factory.mktemp("authority"))
    with s3.rclone(certificate) as running:
        yield running


async def test_job_and_model_server_trust_the_stores_own_authority(
    server: S3Server, tmp_path: Path
) -> None:
    store = S3Store(server.bucket())
    await store.check()
    make_tiny_repo(tmp_path / REPO)
    with LocalHub(tmp_path) as hub:
        ticket_url = await store.begin(job_for(hub), GIB)
        status, lines, _ = run(ticket_url)
        assert (status, lines[-1]["error"]) == (1, "store_unreachable")
        assert "s3_ca_file" in lines[-1]["message"]
        status, _, errors = run(ticket_url, **store.environment())
        assert status == 0, errors
    manifest = await store.publish(KEY)
    url = (await store.access(KEY))[MANIFEST_NAME]
    trusting = fetch(store.uri(KEY), url, **store.environment())
    assert (trusting.returncode, trusting.stderr) == (0, "")
    assert int(trusting.stdout) == len(manifest.model_dump_json())
    other = fetch(store.uri(KEY), url)
    assert other.returncode == 1
    assert "s3_ca_file" in other.stderr


def fetch(uri: str, url: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Fetch a file as a model server does before it starts vLLM."""
    return subprocess.run(
        [sys.executable, "-c", READ, uri, url],
        env={**os.environ, **IMPORTS, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


async def test_untrusted_store_is_reported_in_one_sentence(server: S3Server) -> None:
    with pytest.raises(StoreUnreachable, match="certificate of the artifact store") as caught:
        await S3Store(server.config(ca_file=None)).check()
    assert "s3_ca_file" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("content", "match"),
    [("no certificate", "holds no certificate"), ("x" * (MAX_CHARS + 1), "more than")],
)
def test_a_ca_file_of_no_use_is_refused(tmp_path: Path, content: str, match: str) -> None:
    path = tmp_path / "ca.pem"
    path.write_text(content)
    config = replace(S3Server("none", "https://127.0.0.1:9", True).config(), ca_file=str(path))
    with pytest.raises(InvalidSettings, match=match):
        S3Store(config)


def test_bundle_longer_than_a_variable_arrives_whole(tmp_path: Path) -> None:
    bundle = Certificate.make(tmp_path).certificate.read_text() + "#" * 2 * CHUNK_CHARS
    environment = as_environment(bundle)
    assert len(environment) == 3
    trusted = trusted_by(environment)
    assert trusted is not None
    assert len(trusted.get_ca_certs()) == 1
    assert trusted_by({}) is None
