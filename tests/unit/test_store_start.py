"""At a start a store that does not answer is asked again for a while; what only a person can mend ends the start at once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from guanaco.errors import StoreUnreachable
from guanaco_server.artifacts.stores import store as stores
from guanaco_server.artifacts.stores.local import LocalStore
from guanaco_server.artifacts.stores.memory import MemoryStore
from guanaco_server.artifacts.stores.s3_client import answered
from guanaco_server.artifacts.stores.store import wait_until_usable


class FailingStore(MemoryStore):
    """Fails its check with ``error`` the first ``times``."""

    def __init__(self, error: StoreUnreachable, times: int) -> None:
        super().__init__()
        self.error = error
        self.times = times
        self.checks = 0

    async def check(self) -> None:
        self.checks += 1
        if self.checks <= self.times:
            raise self.error


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "START_RETRY_S", 0.0)


async def test_a_start_outlasts_failures_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    store = FailingStore(StoreUnreachable("The artifact store does not answer."), times=3)
    with caplog.at_level(logging.WARNING):
        await wait_until_usable(store)
    assert store.checks == 4
    assert caplog.text.count("The artifact store does not answer. Trying again in") == 3


async def test_a_start_waits_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "START_PATIENCE_S", 0.05)
    store = FailingStore(StoreUnreachable("The artifact store does not answer."), times=10**9)
    with pytest.raises(StoreUnreachable, match="does not answer"):
        await wait_until_usable(store)
    assert store.checks > 1


@pytest.mark.parametrize("code", ["NoSuchBucket", "AccessDenied", "InvalidAccessKeyId"])
async def test_errors_that_need_a_person_end_a_start_at_once(code: str) -> None:
    store = FailingStore(answered(code, "PutObject", "models", "s3://models/x"), times=1)
    with pytest.raises(StoreUnreachable):
        await wait_until_usable(store)
    assert store.checks == 1


async def test_unusable_folder_ends_a_start_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnreachable) as caught:
        await wait_until_usable(LocalStore(tmp_path / "file"))
    assert caught.value.is_lasting


@pytest.mark.parametrize("code", ["503", "SlowDown", "InternalError"])
def test_an_answer_that_may_pass_is_not_lasting(code: str) -> None:
    assert not answered(code, "PutObject", "models", "s3://models/x").is_lasting
