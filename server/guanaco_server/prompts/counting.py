"""Counts tokens by message: a turn costs only its new text.

A text is cut into chunks at its lines' ends (tokenization/breaks.py says where, and why the sum over neighbours is exact),
and what is kept is, for two neighbours, how many tokens the second adds to the first. Where the tokenizer leaves
a doubt, ``is_exact`` says so, and whoever needs the figure counts the whole text.

The tokenizer itself is in a process of its own (tokenization/). A thread waits for what it counts. On the event loop, work
that needs a count which is not known ends with TextsNotCounted; ``TokenCounter.counted`` has it counted, and runs the work again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

from guanaco_server.runtime import threads
from guanaco_server.tokenization.facts import TokenizerFacts
from guanaco_server.tokenization.service import KEPT, Tokenizers

T = TypeVar("T")

KEPT_CHARS = 4_000_000  # of one tokenizer: 40,000 messages of 100 characters
ENTRY_CHARS = 100  # what an entry costs beside its text
UNSURE = 12  # 8 %: by so much sums may be wrong where nothing is claimed of a tokenizer
MAX_ROUNDS = 16  # a new prompt takes four


class CountedText(NamedTuple):
    """A text that may stand anywhere in a prompt: its outer chunks, and what those after the first one add."""

    text: str
    first: str
    last: str
    inner: int
    is_exact: bool


EMPTY = CountedText("", "", "", 0, True)


class AddedTokens(NamedTuple):
    """The tokens that a piece adds to a prompt that ends with another one, or the tokens of several together."""

    tokens: int
    is_exact: bool


class TextCounts(Protocol):
    """Counts texts, in a thread. On the event loop both raise TextsNotCounted, and ``count_later`` is for that."""

    def counts(self, texts: Sequence[str]) -> Sequence[int]:
        """Count the tokens of each text, without special tokens."""

    def whole(self, text: str) -> int:
        """Count the special tokens around it too."""

    async def count_later(self, uncounted: TextsNotCounted) -> Sequence[int]: ...


class TextsNotCounted(Exception):  # caught by ``TokenCounter.counted``
    """The counts of these texts are not known, and the event loop does not wait for them."""

    def __init__(self, texts: Sequence[str], *, is_whole: bool = False) -> None:
        super().__init__(f"{len(texts)} texts are not counted yet")
        self.texts = texts
        self.is_whole = is_whole


class TokenCounter:
    """Counts with one tokenizer. Threads may share it: at worst, one counts again what another has counted."""

    def __init__(self, facts: TokenizerFacts, source: TextCounts) -> None:
        self._source = source
        self.special_tokens = facts.special_tokens
        self.begin = facts.begin  # the text of the token that every prompt begins with
        self.bound = facts.bound
        self._breaks = facts.breaks
        self._kept: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._alone: Generations[str, int] = Generations(KEPT_CHARS)
        self._wholes: Generations[str, int] = Generations(KEPT_CHARS)
        self._pieces: Generations[str, CountedText] = Generations(KEPT_CHARS)
        self._steps: Generations[tuple[str, str], AddedTokens] = Generations(KEPT_CHARS)

    @property
    def kept_chars(self) -> int:
        kept = (self._alone, self._wholes, self._pieces, self._steps)
        return sum(each.size for each in kept)

    async def counted(self, work: Callable[[], T], missing: TextsNotCounted | None = None) -> T:
        """Run ``work`` on the event loop, and again once what it missed is counted. ``missing`` is what it has missed already."""
        for _ in range(MAX_ROUNDS):
            if missing is not None:
                await self._count(missing)
            try:
                return work()
            except TextsNotCounted as uncounted:
                missing = uncounted.with_traceback(None)  # whose frames hold it: a cycle
        return await threads.CHATS.run(work)  # it needs more than is kept

    async def _count(self, missing: TextsNotCounted) -> None:
        kept = self._wholes if missing.is_whole else self._alone
        counts = await self._source.count_later(missing)
        for text, count in zip(missing.texts, counts, strict=True):
            kept.keep(text, count, len(text) + ENTRY_CHARS)

    def whole(self, text: str) -> int:
        """Count a text as the model server does, special tokens included. Reads the whole text."""
        count = self._wholes.find(text)
        if count is None:
            count = self._source.whole(text)
            self._wholes.keep(text, count, len(text) + ENTRY_CHARS)
        return count

    def count(self, text: str) -> int:
        """Return the same count as ``whole``, from the cached counts of its lines where that is exact."""
        if not text:
            return self.special_tokens
        tokens, is_exact = self.sequence([self.piece(text)])
        return tokens if is_exact else self.whole(text)

    def safe_budget(self, budget: int) -> int:
        """Return the largest sum of counts with which the whole prompt almost always stays within the budget."""
        return budget if self._breaks.is_sure else budget - budget // UNSURE

    def is_safely_within(self, budget: int, tokens: int) -> bool:
        """Tell whether a sum of counts, which may be off at one or two junctions, is certainly within the budget."""
        return self._breaks.is_sure and tokens <= budget - budget // UNSURE

    def count_inside(self, text: str) -> int:
        """Estimate the token count of one text inside a prompt."""
        piece = self.piece(text)
        return self.alone(piece.first) + piece.inner if text else 0

    def sequence(self, pieces: Sequence[CountedText]) -> AddedTokens:
        """Count several texts in a row, special tokens included."""
        pieces = [piece for piece in pieces if piece.text]
        if not pieces:
            return AddedTokens(self.special_tokens, True)
        first = pieces[0]
        if len(pieces) > 2:
            joints = [(left.last, right.first) for left, right in pairwise(pieces)]
            self._count_ahead(joints, first.first)
        tokens = self.special_tokens + self.alone(first.first) + first.inner
        is_exact = first.is_exact
        for left, right in pairwise(pieces):
            step = self.step(left, right)
            tokens += step.tokens
            is_exact = is_exact and step.is_exact
        return AddedTokens(tokens, is_exact)

    def piece(self, text: str) -> CountedText:
        known = self._pieces.find(text)
        if known is not None:
            return known
        if not text:
            return EMPTY
        chunks = self._breaks.split(text)
        self._count_ahead(list(pairwise(chunks)))
        inner, is_exact = 0, True
        for left, right in pairwise(chunks):
            tokens, is_break = self._chunk_step(left, right)
            inner += tokens
            is_exact = is_exact and is_break
        piece = CountedText(text, chunks[0], chunks[-1], inner, is_exact)
        self._pieces.keep(text, piece, len(text) + ENTRY_CHARS)
        return piece

    def pieces(self, texts: Sequence[str]) -> list[CountedText]:
        """Several at once, which is cheaper where they are new."""
        new = (text for text in texts if text and self._pieces.find(text) is None)
        self._count_ahead([pair for text in new for pair in pairwise(self._breaks.split(text))])
        return [self.piece(text) for text in texts]

    def step(self, left: CountedText, right: CountedText) -> AddedTokens:
        """Return the tokens that ``right`` adds to a prompt that ends with ``left``."""
        if not right.text:
            return AddedTokens(0, True)
        if not left.text:
            return AddedTokens(self.alone(right.first) + right.inner, False)
        tokens, is_break = self._chunk_step(left.last, right.first)
        return AddedTokens(tokens + right.inner, is_break and right.is_exact)

    def follow(
        self, left: CountedText, texts: Iterable[str]
    ) -> tuple[list[CountedText], list[AddedTokens]]:
        """Return the pieces of texts that follow each other, and what each adds to the one before.

        Every turn of every prompt comes by here, so what is known costs two look-ups and no call.
        """
        pieces, steps = [], []
        known_piece, known_step = self._pieces.get, self._steps.get
        texts = list(texts)
        if not all(map(known_piece, texts)):
            self._count_row(left, texts)
        for text in texts:
            entry = known_piece(text)
            piece = entry[0] if entry else self.piece(text)
            pair = known_step((left.last, piece.first))
            is_simple = pair and not piece.inner and piece.is_exact
            steps.append(pair[0] if pair and is_simple else self.step(left, piece))
            pieces.append(piece)
            left = piece
        return pieces, steps

    def kept_for(self, key: object, make: Callable[[], T]) -> T:
        """Return what ``make`` counted, and keep it for as long as the key lives."""
        known: T | None = self._kept.get(key)
        if known is None:
            known = self._kept[key] = make()
        return known

    def alone(self, chunk: str) -> int:
        """Count a text without the special tokens that are put around a whole one."""
        count = self._alone.find(chunk)
        return self._counts([chunk])[0] if count is None else count

    def _chunk_step(self, left: str, right: str) -> AddedTokens:
        key = (left, right)
        step = self._steps.find(key)
        if step is None:
            both, alone = self._counts([left + right, left])
            tokens = both - alone  # negative where a token swallows whitespace before it
            step = AddedTokens(max(0, tokens), tokens >= 0 and self._breaks.is_break(left, right))
            self._steps.keep(key, step, len(right) + ENTRY_CHARS)
        return step

    def _count_row(self, left: CountedText, texts: Sequence[str]) -> None:
        """Count whatever ``follow`` will need, in one request."""
        chunks = [chunk for text in texts if text for chunk in self._breaks.split(text)]
        if left.text:
            self._count_ahead(list(pairwise([left.last, *chunks])))
        elif chunks:
            self._count_ahead(list(pairwise(chunks)), chunks[0])

    def _count_ahead(self, pairs: Sequence[tuple[str, str]], *alone: str) -> None:
        """Count what the steps between two chunks will need, in one request."""
        new = [pair for pair in pairs if self._steps.find(pair) is None]
        self._counts([*alone, *chain.from_iterable((a + b, a) for a, b in new)])

    def _counts(self, texts: Sequence[str]) -> list[int]:
        known = {text: self._alone.find(text) for text in texts}
        if missing := [text for text, count in known.items() if count is None]:
            for text, count in zip(missing, self._source.counts(missing), strict=True):
                known[text] = count
                self._alone.keep(text, count, len(text) + ENTRY_CHARS)
        return [known[text] or 0 for text in texts]


K = TypeVar("K")
V = TypeVar("V")


class Generations(dict[K, tuple[V, int]]):
    """The young generation is the dictionary itself, so that ``get`` is the dictionary's own; ``find`` looks into both.

    Keeps what was used since the last ``limit`` units of entries came, and at most twice as much.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._size = 0
        self._old: dict[K, tuple[V, int]] = {}

    @property
    def size(self) -> int:
        """Return the size in units, without the old generation's, which is at most ``limit``."""
        return self._size

    def find(self, key: K) -> V | None:
        entry = self.get(key)
        if entry is None:
            entry = self._old.get(key)
            if entry is None:
                return None
            self.keep(key, *entry)
        return entry[0]

    def keep(self, key: K, value: V, size: int) -> None:
        if self._size + size > self._limit:
            self._old, self._size = dict(self), 0
            self.clear()
        if size <= self._limit:
            self[key] = (value, size)
            self._size += size


MAX_COUNTERS_CHARS = 48_000_000  # of all counters


class Counters:
    """A counter for each artifact in use; submissions of one commit share one. The least recently used go first."""

    def __init__(self, tokenizers: Tokenizers) -> None:
        self._tokenizers = tokenizers
        self._counters: OrderedDict[str, TokenCounter] = OrderedDict()

    async def counter(self, artifact_key: str) -> TokenCounter:
        """Counts the tokens of a prompt as the model server does. PromptFailed where the tokenizer cannot be used."""
        if artifact_key not in self._counters:
            facts = await self._tokenizers.facts(artifact_key)
            made = TokenCounter(facts, _CountedByProcess(artifact_key, self._tokenizers))
            self._counters.setdefault(artifact_key, made)
        self._counters.move_to_end(artifact_key)
        self._forget_unused()
        return self._counters[artifact_key]

    def loaded_counter(self, artifact_key: str) -> TokenCounter | None:
        """Return the counter without waiting, or None for a tokenizer that is not in use."""
        counter = self._counters.get(artifact_key)
        if counter is not None:
            self._counters.move_to_end(artifact_key)
        return counter

    def _forget_unused(self) -> None:
        total = sum(counter.kept_chars for counter in self._counters.values())
        while len(self._counters) > 1 and (
            total > MAX_COUNTERS_CHARS or len(self._counters) > KEPT
        ):
            _, counter = self._counters.popitem(last=False)
            total -= counter.kept_chars


class _CountedByProcess:
    """Made on the event loop that the tokenizers belong to."""

    def __init__(self, artifact_key: str, tokenizers: Tokenizers) -> None:
        self._key = artifact_key
        self._tokenizers = tokenizers
        self._loop = asyncio.get_running_loop()

    def counts(self, texts: Sequence[str]) -> Sequence[int]:
        return self._wait(TextsNotCounted(texts))

    def whole(self, text: str) -> int:
        return self._wait(TextsNotCounted([text], is_whole=True))[0]

    async def count_later(self, uncounted: TextsNotCounted) -> Sequence[int]:
        if uncounted.is_whole:
            return [await self._tokenizers.whole(self._key, text) for text in uncounted.texts]
        return await self._tokenizers.counts(self._key, uncounted.texts)

    def _wait(self, uncounted: TextsNotCounted) -> Sequence[int]:
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # in a thread
            counting = asyncio.run_coroutine_threadsafe(self.count_later(uncounted), self._loop)
            return counting.result()
        raise uncounted
