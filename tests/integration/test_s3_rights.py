"""The rights that the store needs: the start tries each one, names what is denied, and the documented policy has just those."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from guanaco.errors import StoreUnreachable
from guanaco_cli.main import run
from guanaco_server.artifacts.stores.s3 import S3Store
from guanaco_server.artifacts.stores.s3_client import RIGHTS, refusal
from tests.fixtures.guarded_s3 import Door, guarded
from tests.fixtures.s3 import S3Server, left_in
from tests.fixtures.store_jobs import KEY, job, manifest, write

OPERATING = Path(__file__).parents[2] / "docs" / "operating.md"


@pytest.fixture
def door(moto: S3Server) -> Iterator[Door]:
    with guarded(moto) as opened:
        yield opened


def documented_actions() -> set[str]:
    found = re.search(r"```json\n(\{\s+\"Version\".+?\n\})\n```", OPERATING.read_text(), re.S)
    assert found is not None, "docs/operating.md has no bucket policy"
    return {action for part in json.loads(found[1])["Statement"] for action in part["Action"]}


@pytest.mark.parametrize("right", sorted(set(RIGHTS.values())))
async def test_the_start_names_the_operation_that_is_denied(door: Door, right: str) -> None:
    config = door.server.bucket(prefix="models")
    door.denied = {operation for operation, needed in RIGHTS.items() if needed == right}
    with pytest.raises(StoreUnreachable) as caught:
        await S3Store(config).check()
    named = [
        name
        for name in door.denied
        if f"denies the platform {name} on s3://" in caught.value.detail
    ]
    assert len(named) == 1, caught.value.detail
    assert f"s3://{config.bucket}/models/" in caught.value.detail
    assert right in str(caught.value.hint)


async def test_documented_policy_covers_what_start_and_store_do(door: Door) -> None:
    config = door.server.bucket()
    store = S3Store(config)
    await store.check()
    tried = {RIGHTS[operation] for operation in door.seen}
    assert left_in(config) == []
    door.seen.clear()
    await write(await store.begin(job(), 1_000), manifest())
    await store.begin(job(), 1_000)
    await store.publish(KEY)
    await store.begin(job("cd" * 32), 1_000)
    await store.discard_stale(0)
    await store.list_keys()
    await store.delete(KEY)
    assert {RIGHTS[operation] for operation in door.seen} == tried == documented_actions()


async def test_a_right_that_is_withdrawn_later_is_named_too(door: Door) -> None:
    store = S3Store(door.server.bucket())
    await store.begin(job(), 1_000)
    door.denied = {"AbortMultipartUpload"}
    with pytest.raises(StoreUnreachable, match="denies the platform AbortMultipartUpload on s3://"):
        await store.discard(KEY)


def test_the_doctor_looks_at_the_store(
    door: Door, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in door.server.settings().items():
        monkeypatch.setenv(f"GUANACO_{name.upper()}", str(value))
    said = {}
    for denied in (set[str](), {"ListParts"}):
        door.denied = denied
        run(["doctor", "--offline", "--port", "0", "--data-dir", "data", "--json"])
        findings = json.loads(capsys.readouterr().out)["findings"]
        said[len(denied)] = next(one for one in findings if one["what"] == "artifact store")
    assert said[0]["health"] == "ok"
    assert said[1]["health"] == "missing"
    assert "denies the platform ListParts" in said[1]["detail"]
    assert str(door.server.endpoint).removeprefix("http://") in said[1]["remedy"]


@pytest.mark.parametrize(
    ("status", "body", "hint"),
    [
        (
            400,
            "<Error><Code>AuthorizationQueryParametersError</Code><Region>eu-central-1</Region></Error>",
            "Set s3_region to eu-central-1.",
        ),
        (
            400,
            "<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region 'us-east-1' is wrong; expecting 'eu-west-3'</Message></Error>",
            "Set s3_region to eu-west-3.",
        ),
        (301, "", "Correct s3_region."),
    ],
)
def test_a_wrong_region_is_said_as_such(status: int, body: str, hint: str) -> None:
    failure = refusal(status, body, "PutObject", "models", "s3://models/x")
    assert failure.detail == "The bucket models is in another region than s3_region says."
    assert failure.hint == hint
