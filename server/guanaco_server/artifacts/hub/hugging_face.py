"""The Hugging Face Hub, through huggingface_hub. Its errors become ours here and nowhere else."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import httpx2  # huggingface_hub's HTTP client: its transport errors come through
from huggingface_hub import HfApi, ModelInfo, get_session, hf_hub_url, hf_raise_for_status
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers

from guanaco.errors import (
    CorruptConfig,
    HubTokenRefused,
    HubUnreachable,
    RepoGated,
    RepoNotFound,
    RevisionNotFound,
)
from guanaco_server.artifacts.hub.hub import RepoFile, RepoSnapshot
from guanaco_server.runtime import threads

T = TypeVar("T")

ANSWER_TIMEOUT_S = 20.0
LEAST_BYTES_A_SECOND = 65_536  # after that time; a tokenizer of 30 MB may take eight minutes
LONGEST = 30  # times that, for one question
# Bytes said about a repo, of 12,000 files or so. What is read of it is decoded in one go, in which everything else waits: of 16 MiB
# for over 100 ms, and then objects by the hundred thousand were searched for garbage.
MAX_LISTING = 4 * 2**20
UNCOMPRESSED = {"Accept-Encoding": "identity"}  # so that what arrives is what is kept


class HuggingFaceHub:
    """``token`` is the platform's, for its own rate limit. With ``opens_private``, the token belongs to the developer of the repos."""

    def __init__(
        self,
        endpoint: str,
        token: str | None,
        timeout_s: float = ANSWER_TIMEOUT_S,
        *,
        opens_private: bool = False,
    ) -> None:
        self._opens_private = opens_private
        self._endpoint = endpoint.rstrip("/")
        self._token = token or False  # False: never a token that happens to lie on this machine
        self._timeout_s = timeout_s
        self._api = HfApi(endpoint=self._endpoint, token=self._token, headers=UNCOMPRESSED)

    def with_token(self, token: str | None) -> HuggingFaceHub:
        if token is None:
            return self
        return HuggingFaceHub(self._endpoint, token, self._timeout_s, opens_private=True)

    async def resolve(self, repo: str, revision: str | None) -> RepoSnapshot:
        return await self._ask(repo, revision, lambda: self._resolve(repo, revision), MAX_LISTING)

    async def read(self, snapshot: RepoSnapshot, path: str, start: int, length: int) -> bytes:
        return await self._ask(
            snapshot.repo, snapshot.commit, lambda: self._read(snapshot, path, start, length)
        )

    async def _ask(
        self,
        repo: str,
        revision: str | None,
        question: Callable[[], T],
        limit_bytes: float = math.inf,
    ) -> T:
        def ask() -> T:
            with _translated(self._endpoint, repo, revision, self._opens_private):
                _asking.patience_s, _asking.limit_bytes = self._timeout_s, limit_bytes
                _watch_bodies()
                return question()

        try:  # a thread cannot be ended: one that waits for a header that trickles is left behind
            async with asyncio.timeout(LONGEST * self._timeout_s):
                return await threads.HUB.run(ask)
        except TimeoutError:
            raise _unreachable(self._endpoint, "too slowly") from None

    def _resolve(self, repo: str, revision: str | None) -> RepoSnapshot:
        try:
            info = self._api.model_info(
                repo, revision=revision, files_metadata=True, timeout=self._timeout_s
            )
        except HFValidationError:  # a ValueError too
            raise
        except (ValueError, KeyError, TypeError):  # a proxy's page, say, instead of the Hub's JSON
            raise HubUnreachable(
                f"What the Hub at {self._endpoint} answered about {repo} is not its protocol.",
                hint="The operator has to look at GUANACO_HUB_ENDPOINT.",
            ) from None
        self._require_open(repo, info)
        files = tuple(
            RepoFile(sibling.rfilename, sibling.size or 0) for sibling in info.siblings or []
        )
        if not info.sha:
            raise HubUnreachable(f"The Hub named no commit for {repo}.")
        return RepoSnapshot(repo, info.sha, files)

    def _require_open(self, repo: str, info: ModelInfo) -> None:
        """Also where the platform's own token opens it: it is no developer's."""
        if self._opens_private:
            return
        if info.private:
            raise RepoNotFound(repo)
        if info.gated:
            raise RepoGated(repo)

    def _read(self, snapshot: RepoSnapshot, path: str, start: int, length: int) -> bytes:
        """Read at most ``length`` bytes, also from a server that ignores ranges."""
        if length <= 0:
            return b""
        url = hf_hub_url(snapshot.repo, path, revision=snapshot.commit, endpoint=self._endpoint)
        headers = build_hf_headers(token=self._token) | {
            "Range": f"bytes={start}-{start + length - 1}",
            **UNCOMPRESSED,
        }
        with get_session().stream(
            "GET", url, headers=headers, timeout=self._timeout_s, follow_redirects=True
        ) as response:
            if response.status_code == 416:  # the range begins behind the end of the file
                return b""
            hf_raise_for_status(response)
            if response.status_code not in (200, 206):
                raise HubUnreachable(
                    f"The Hub answered {response.status_code} when asked for {snapshot.repo}.",
                    hint="Try again later.",
                )
            skip = 0 if response.status_code == 206 else start
            return _take(response.iter_bytes(), skip, length)


def _take(pieces: Iterator[bytes], skip: int, length: int) -> bytes:
    taken = bytearray()
    for piece in pieces:
        taken += piece
        if len(taken) >= skip + length:
            break
    return bytes(taken[skip : skip + length])


class _AnswerTooLong(Exception):
    pass


class _WatchedStream(httpx2.SyncByteStream):
    """A body that must come faster than a trickle, which holds every other limit of time, and must end."""

    def __init__(
        self, stream: httpx2.SyncByteStream, patience_s: float, limit_bytes: float
    ) -> None:
        self._stream = stream
        self._patience_s = patience_s
        self._limit_bytes = limit_bytes

    def __iter__(self) -> Iterator[bytes]:
        began, count = time.monotonic(), 0
        for piece in self._stream:
            count += len(piece)
            if time.monotonic() - began > self._patience_s + count / LEAST_BYTES_A_SECOND:
                raise httpx2.ReadTimeout("the body trickles")
            if count > self._limit_bytes:
                raise _AnswerTooLong
            yield piece

    def close(self) -> None:
        self._stream.close()


_asking = threading.local()


def _watch_bodies() -> None:
    """Watch every body that huggingface_hub's client reads; it may make a new client at any time."""
    session = get_session()
    if _watched not in session.event_hooks["response"]:
        hooks = session.event_hooks
        session.event_hooks = {**hooks, "response": [*hooks["response"], _watched]}


def _watched(response: httpx2.Response) -> None:
    assert isinstance(response.stream, httpx2.SyncByteStream), "the client is not async"
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise httpx2.DecodingError("compressed, though it was asked not to be")
    patience_s = getattr(_asking, "patience_s", ANSWER_TIMEOUT_S)
    limit_bytes = getattr(_asking, "limit_bytes", MAX_LISTING)
    response.stream = _WatchedStream(response.stream, patience_s, limit_bytes)


def _unreachable(endpoint: str, how: str) -> HubUnreachable:
    return HubUnreachable(f"The Hub at {endpoint} answers {how}.", hint="Try again later.")


@contextmanager
def _translated(
    endpoint: str, repo: str, revision: str | None, has_developers_token: bool
) -> Iterator[None]:
    """GatedRepoError is a RepositoryNotFoundError, so it comes first."""
    try:
        yield
    except GatedRepoError:
        raise RepoGated(repo) from None
    except RevisionNotFoundError:
        raise RevisionNotFound(repo, revision or "main") from None
    except (RepositoryNotFoundError, HFValidationError):
        raise RepoNotFound(repo) from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no status"
        if has_developers_token and status in (401, 403):
            raise HubTokenRefused(repo) from None
        raise HubUnreachable(
            f"The Hub answered {status} when asked for {repo}.", hint="Try again later."
        ) from None
    except _AnswerTooLong:
        raise CorruptConfig(
            f"The Hub's answer about the files of {repo} is over {MAX_LISTING // 2**20} MiB: a model's repo has far fewer."
        ) from None
    except (httpx2.HTTPError, OSError) as error:
        raise HubUnreachable(
            f"The Hub at {endpoint} does not answer ({type(error).__name__}).",
            hint="Try again later.",
        ) from None
