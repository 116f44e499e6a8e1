"""A model server that fails is one line, then a count, then one line more."""

from __future__ import annotations

import logging

import pytest

from guanaco_server.chat.gateway.failure_log import FailureLog

ONE, OTHER = "http://127.0.0.1:9001", "http://127.0.0.1:9002"
NEVER_S = 10_000  # the tests look themselves


async def test_a_thousand_failures_are_one_line_and_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = FailureLog(NEVER_S)
    for number in range(1_000):
        log.note("acme-tiny_v1", ONE, f"refused {number}")
    assert caplog.messages == [f"the model server of acme-tiny_v1 at {ONE} failed: refused 0"]
    log.look(ONE)
    assert caplog.messages[1:] == [
        f"the model server of acme-tiny_v1 at {ONE} failed 999 times more in 10000 s: refused 999"
    ]


async def test_each_server_is_told_of_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    log = FailureLog(NEVER_S)
    for endpoint in (ONE, OTHER, ONE):
        log.note("acme-tiny_v1", endpoint, "refused")
    assert [ONE in message for message in caplog.messages] == [True, False]


async def test_recovered_server_is_reported_and_starts_fresh(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    log = FailureLog(NEVER_S)
    log.note("acme-tiny_v1", ONE, "refused")
    log.look(ONE)
    log.note("acme-tiny_v1", ONE, "refused")
    assert [message.removeprefix(f"the model server of acme-tiny_v1 at {ONE} ") for message in caplog.messages] == [
        "failed: refused",
        "has not failed for 10000 s; 1 reply failed before",
        "failed: refused",
    ]  # fmt: skip
