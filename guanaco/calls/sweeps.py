"""Calls about sweeps: variants of one repo that are entered together."""

from __future__ import annotations

from dataclasses import replace

from guanaco.calls.wire import API, Call, get, hub_token_header, post, segment, to_json
from guanaco.contract import reader
from guanaco.sweeps import Sweep, SweepRequest


def submit_sweep(
    request: SweepRequest, *, idempotency_key: str | None = None, hub_token: str | None = None
) -> Call[Sweep]:
    """Enter all variants of a sweep, or none. ``guanaco.sweeps.load_sweep`` reads one from a file.

    Without an Idempotency-Key of yours the request is its own: entering the same sweep again returns the first one.

    Args:
        request: The variants.
        idempotency_key: With a key of your own the request is sent again when the connection breaks, and done once.
        hub_token: Your own Hub token, for a private or gated repo. It is deleted when the weights are fetched.

    Returns:
        The Sweep, as it is then.

    Raises:
        InvalidInput: A variant is wrong; nothing was entered.
    """
    return Call(
        method="POST",
        path=f"{API}/sweeps",
        json=to_json(request),
        headers={"Idempotency-Key": idempotency_key or f"sweep-{request.digest}"}
        | hub_token_header(hub_token),
        parse=reader(Sweep).from_json,
        is_repeatable=True,
    )


def sweeps() -> Call[list[Sweep]]:
    """List your sweeps, newest first; every developer's as an admin.

    Returns:
        A list of Sweep objects.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    return get("/sweeps", list[Sweep])


def sweep(sweep_id: str) -> Call[Sweep]:
    """Read a sweep with its submissions as they are now.

    Args:
        sweep_id: The sweep's id.

    Returns:
        The Sweep, as it is then.

    Raises:
        SweepNotFound: You have no such sweep.
    """
    return get(f"/sweeps/{segment(sweep_id)}", Sweep)


def cancel_sweep(sweep_id: str) -> Call[Sweep]:
    """Cancel those of its submissions that are in progress.

    Args:
        sweep_id: The sweep's id.

    Returns:
        The Sweep, as it is then.

    Raises:
        SweepNotFound: You have no such sweep.
    """
    return _changed(sweep_id, "cancel")


def deactivate_sweep(sweep_id: str) -> Call[Sweep]:
    """Take no new conversations for any of its submissions; the open ones go on.

    Args:
        sweep_id: The sweep's id.

    Returns:
        The Sweep, as it is then.

    Raises:
        SweepNotFound: You have no such sweep.
    """
    return _changed(sweep_id, "deactivate")


def reactivate_sweep(sweep_id: str) -> Call[Sweep]:
    """Open those of its submissions that were deactivated.

    Args:
        sweep_id: The sweep's id.

    Returns:
        The Sweep, as it is then.

    Raises:
        SweepNotFound: You have no such sweep.
    """
    return _changed(sweep_id, "reactivate")


def teardown_sweep(sweep_id: str) -> Call[Sweep]:
    """Tear down those of its submissions that are served.

    Args:
        sweep_id: The sweep's id.

    Returns:
        The Sweep, as it is then.

    Raises:
        SweepNotFound: You have no such sweep.
    """
    return _changed(sweep_id, "teardown")


def _changed(sweep_id: str, verb: str) -> Call[Sweep]:
    return replace(post(f"/sweeps/{segment(sweep_id)}/{verb}", Sweep), is_repeatable=True)
