"""The tokenizers of artifacts, each in a process of its own: started when it is needed, replaced when it dies.

    counted         by the process, which has limits on memory and CPU time
    died            what it was counting fails; the next text starts it again
    died too often  MAX_DEATHS within DEATHS_S: nothing is counted with it until DEATHS_S have passed
    evicted         when all processes together hold more than their share of memory, the one that was used last

Nothing of a stranger's tokenizer is read or run in the platform's own process.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from guanaco.errors import ArtifactLost, CorruptConfig, PromptFailed, UnsupportedTokenizer
from guanaco_server.confinement import confined
from guanaco_server.confinement.confined import StartChild
from guanaco_server.tokenization.facts import TokenizerFacts
from guanaco_server.tokenization.process import (
    TextFailed,
    TokenizerDied,
    TokenizerProcess,
    TokenizerRefused,
    UnreadableText,
)

KEPT_BYTES = 600_000_000  # of all processes together
KEPT = 64  # artifacts whose facts are kept
KEPT_VERDICTS = 256
MAX_DEATHS = 3
DEATHS_S = 60.0
MAX_TRIES = 4  # of a text that shares its requests, or waits, with others that end the process
WHAT = "The prompt"

T = TypeVar("T")


class SmallFiles(Protocol):
    """The part of an artifact store that reads small files."""

    async def read(self, key: str, path: str) -> bytes: ...

    def pieces(self, key: str, path: str) -> AsyncIterator[bytes]: ...


class _Digest(Protocol):
    """A hash that hashlib makes; it names no public type."""

    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


class _Known(Exception):  # within this module
    """The verdict on a file is known."""

    def __init__(self, facts: TokenizerFacts) -> None:
        super().__init__()
        self.facts = facts


@dataclass(eq=False)
class _Artifact:
    """``facts`` once they are known; ``opening`` while the process starts."""

    facts: TokenizerFacts | None = None
    process: TokenizerProcess | None = None
    opening: asyncio.Task[TokenizerProcess] | None = None
    deaths: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_DEATHS))


class Tokenizers:
    """Belongs to one event loop. ``close`` ends the processes."""

    def __init__(self, store: SmallFiles, start_child: StartChild = confined.start) -> None:
        self._store = store
        self._start_child = start_child
        self._artifacts: OrderedDict[str, _Artifact] = OrderedDict()
        self._verdicts: OrderedDict[bytes, TokenizerFacts] = OrderedDict()
        self._loads = asyncio.Semaphore(1)  # reading a file takes twice what is kept
        self._trials = asyncio.Semaphore(
            1
        )  # others: who chats does not wait for a trial, which gives way

    async def examine(self, pieces: AsyncIterator[bytes]) -> TokenizerFacts:
        """Check a new tokenizer.json in a process of its own. CorruptConfig or UnsupportedTokenizer say what is wrong.

        One file at a time, and no more of it than a piece, is in the platform's own process.
        """
        digest = hashlib.sha256()
        async with self._trials:
            try:
                facts = await self._attempt(self._hashed(pieces, digest))
            except _Known as known:
                return known.facts
        self._verdicts[digest.digest()] = facts
        if len(self._verdicts) > KEPT_VERDICTS:
            self._verdicts.popitem(last=False)
        return facts

    async def _hashed(self, pieces: AsyncIterator[bytes], digest: _Digest) -> AsyncIterator[bytes]:
        """Yield the pieces. Raise _Known after the last one where the verdict is known."""
        async for piece in pieces:
            digest.update(piece)
            yield piece
        if (known := self._verdicts.get(digest.digest())) is not None:
            raise _Known(known)

    async def _attempt(self, pieces: AsyncIterator[bytes]) -> TokenizerFacts:
        begin = await _first_two(
            pieces
        )  # so that no process is started for a small file that is known
        process = await TokenizerProcess.start(self._start_child, is_trial=True)
        try:
            facts = await process.load(_chained(begin, pieces))
            await process.attempt()
        except TokenizerRefused as refused:
            raise CorruptConfig(str(refused)) from None
        except TextFailed as failed:
            raise UnsupportedTokenizer(
                f"The tokenizer cannot be served: {failed}.",
                hint="Push the tokenizer that the model was trained with, as its class saves it.",
            ) from None
        finally:
            process.close()
        return facts

    async def facts(self, artifact_key: str) -> TokenizerFacts:
        """PromptFailed where there are none, as for whatever is asked below."""
        artifact = self._artifact(artifact_key)
        if artifact.facts is None:
            await self._process(artifact_key, artifact)
        assert artifact.facts is not None, "the process has told them"
        return artifact.facts

    async def counts(self, artifact_key: str, texts: Sequence[str]) -> list[int]:
        """Count texts without special tokens."""

        async def count(process: TokenizerProcess) -> list[int]:
            return await process.counts(texts)

        async def count_alone(process: TokenizerProcess) -> list[int]:
            return await process.counts(texts, is_alone=True)

        return await self._ask(artifact_key, count, count_alone)

    async def whole(self, artifact_key: str, text: str) -> int:
        """Count a text as the model server does, with the special tokens around it."""
        return await self._ask(artifact_key, lambda process: process.whole(text))

    async def respelled(self, artifact_key: str, words: Sequence[str]) -> list[str | None]:
        """Return, for each word, None if a sequence of tokens spells it, else what becomes of it."""
        return await self._ask(artifact_key, lambda process: process.respelled(words))

    async def characters_of(self, artifact_key: str, text: str, tokens: int) -> int:
        """Return how many characters of the text its first ``tokens`` tokens cover."""
        return await self._ask(artifact_key, lambda process: process.characters_of(text, tokens))

    def close(self) -> None:
        """End the tokenizers' processes; counts in progress fail."""
        for artifact in self._artifacts.values():
            if artifact.opening is not None:
                artifact.opening.cancel()
            if artifact.process is not None:
                artifact.process.close()
        self._artifacts.clear()

    async def _ask(
        self,
        artifact_key: str,
        ask: Callable[[TokenizerProcess], Awaitable[T]],
        ask_alone: Callable[[TokenizerProcess], Awaitable[T]] | None = None,
    ) -> T:
        """The text is sent once more, alone, if the failure may be another text's."""
        artifact = self._artifact(artifact_key)
        for _ in range(MAX_TRIES):
            process = await self._process(artifact_key, artifact)
            held_bytes = process.resident_bytes
            try:
                answer = await ask(process)
            except TextFailed as failed:
                self._note_failure(artifact, process, failed)
                if not failed.was_shared:
                    raise PromptFailed(WHAT, _why(failed)) from None
                ask = ask_alone or ask
            else:
                if process.resident_bytes > held_bytes:
                    self._trim(keep=artifact)
                return answer
        raise PromptFailed(WHAT, "the submission's tokenizer keeps dying")

    def _artifact(self, artifact_key: str) -> _Artifact:
        artifact = self._artifacts.setdefault(artifact_key, _Artifact())
        self._artifacts.move_to_end(artifact_key)
        if len(self._artifacts) > KEPT:
            self._forget_one()
        return artifact

    def _forget_one(self) -> None:
        """The least recently used that is not being started."""
        for key, artifact in self._artifacts.items():
            if artifact.opening is None and not _is_busy(artifact):
                del self._artifacts[key]
                if artifact.process is not None:
                    artifact.process.close()
                return

    async def _process(self, artifact_key: str, artifact: _Artifact) -> TokenizerProcess:
        process = artifact.process
        if process is not None and not process.is_closed:
            return process
        deaths = artifact.deaths
        if len(deaths) == MAX_DEATHS and time.monotonic() - deaths[0] < DEATHS_S:
            raise PromptFailed(
                WHAT, f"the submission's tokenizer died {MAX_DEATHS} times within a minute"
            )
        if artifact.opening is None:
            opening = asyncio.create_task(self._open(artifact_key, artifact))
            artifact.opening = opening
            opening.add_done_callback(_note_end)
        try:
            return await asyncio.shield(artifact.opening)
        except TokenizerRefused as refused:
            raise PromptFailed(WHAT, str(refused).rstrip(".")) from None
        except TextFailed as failed:
            raise PromptFailed(WHAT, _why(failed)) from None
        except FileNotFoundError:
            raise ArtifactLost from None

    async def _open(self, artifact_key: str, artifact: _Artifact) -> TokenizerProcess:
        try:
            async with self._loads:
                process = await self._loaded(
                    artifact, self._store.pieces(artifact_key, "tokenizer.json")
                )
        finally:
            artifact.opening = None
        artifact.process = process
        self._trim(keep=artifact)
        return process

    async def _loaded(self, artifact: _Artifact, pieces: AsyncIterator[bytes]) -> TokenizerProcess:
        process = await TokenizerProcess.start(self._start_child)
        try:
            artifact.facts = await process.load(pieces)
        except BaseException as error:
            process.close()
            if isinstance(error, TokenizerDied):
                artifact.deaths.append(time.monotonic())
            raise
        return process

    def _note_failure(
        self, artifact: _Artifact, process: TokenizerProcess, failed: TextFailed
    ) -> None:
        """One process dies once, whatever it was counting."""
        if isinstance(failed, TokenizerDied) and artifact.process is process:
            artifact.process = None
            artifact.deaths.append(time.monotonic())

    def _trim(self, keep: _Artifact) -> None:
        held = [each for each in self._artifacts.values() if each.process is not None]
        total = sum(each.process.resident_bytes for each in held if each.process)
        for artifact in held:
            if total <= KEPT_BYTES:
                return
            if artifact is not keep and artifact.process and not _is_busy(artifact):
                total -= artifact.process.resident_bytes
                artifact.process.close()
                artifact.process = None


async def _first_two(pieces: AsyncIterator[bytes]) -> list[bytes]:
    """Return the first piece and, if there is one, the second."""
    found: list[bytes] = []
    async for piece in pieces:
        found.append(piece)
        if len(found) == 2:
            break
    return found


async def _chained(begin: Sequence[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    for piece in begin:
        yield piece
    async for piece in rest:
        yield piece


def _is_busy(artifact: _Artifact) -> bool:
    return artifact.process is not None and artifact.process.is_busy


def _note_end(opening: asyncio.Task[TokenizerProcess]) -> None:
    """Log a failure that nobody reads, because whoever waited may have left."""
    if not opening.cancelled():
        opening.exception()


def _why(failed: TextFailed) -> str:
    if isinstance(failed, UnreadableText):
        return f"the submission's tokenizer cannot read a text ({failed})"
    return f"the submission's tokenizer was ended: {failed}"
