from __future__ import annotations

import errno

import httpx
import pytest

from guanaco_server.serializer.reporting import JobFailed, diagnose


def caused(outer: Exception, cause: Exception) -> Exception:
    outer.__cause__ = cause
    return outer


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "disk_full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "disk_full"),
        (RuntimeError("data processing error: No space left on device (os error 28)"), "disk_full"),
        (caused(RuntimeError("write failed"), OSError(errno.ENOSPC, "full")), "disk_full"),
        (MemoryError(), "out_of_memory"),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to"), "out_of_memory"),
        (RuntimeError("can't start new thread"), "out_of_memory"),
        (httpx.ConnectError("Connection refused"), "hub_unreachable"),
        (OSError("Consistency check failed: file should be of size 9"), "hub_unreachable"),
        (
            caused(ValueError("while writing"), JobFailed("corrupt_weights", "cut")),
            "corrupt_weights",
        ),
        (KeyError("oops"), "serializer_died"),
    ],
)
def test_every_error_has_a_verdict(error: Exception, code: str) -> None:
    assert diagnose(error).code == code


def test_the_verdict_tells_the_innermost_reason_of_the_hub() -> None:
    error = caused(httpx.HTTPError("look at your cache"), httpx.ConnectError("Connection refused"))
    assert diagnose(error).message == "The Hub did not deliver the files: Connection refused"


def test_an_unforeseen_error_is_told_in_one_line() -> None:
    error = RuntimeError("first line\nsecond line")
    assert diagnose(error).message == "The serializer failed: RuntimeError: first line"
