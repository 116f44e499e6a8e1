"""From httpx' and pydantic's errors, and a server's error bodies, to ours. Nothing else translates."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import httpx

from guanaco.errors import GuanacoError, InvalidInput, ServerUnreachable

S = TypeVar("S")
T = TypeVar("T")

GATEWAY_FAULTS = frozenset({502, 503, 504})  # a proxy in front of a platform that restarts
OTHER_HINT = "Is that the URL of a Guanaco server? `guanaco login --url` names another."


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Within, whatever keeps a request from being answered is ServerUnreachable."""
    try:
        yield
    except (httpx.InvalidURL, httpx.UnsupportedProtocol):
        raise InvalidInput(
            f"{url} is not a URL.", hint="It begins with http:// or https://."
        ) from None
    except (httpx.RequestError, httpx.StreamError) as error:
        raise ServerUnreachable(url) from error


def error_of(response: httpx.Response, url: str) -> GuanacoError:
    """The error that an answer other than 2xx stands for. Its body has been read."""
    body = _json_object(response.content)
    if isinstance(body.get("error"), str) and isinstance(body.get("detail"), str):
        return GuanacoError.from_wire(body)
    if response.status_code in GATEWAY_FAULTS:
        return ServerUnreachable(url)
    return GuanacoError(
        f"{url} answered {response.status_code} {response.reason_phrase}, but not as Guanaco does.",
        hint=OTHER_HINT,
    )


def parsed(parse: Callable[[S], T], answer: S, url: str) -> T:
    """What ``parse`` makes of the answer; a GuanacoError when it is none that this version knows."""
    try:
        return parse(answer)
    except ValueError as error:  # pydantic's ValidationError is one
        raise GuanacoError(
            f"{url} answered something that this version of guanaco does not understand.",
            hint=f"{OTHER_HINT} Or upgrade: pip install --upgrade guanaco.",
        ) from error


def _json_object(content: bytes) -> dict[str, object]:
    try:
        body = json.loads(content)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
