"""Loads tokenizers and counts tokens. Counts are kept by message: a turn costs only its new text.

A text is cut into chunks at its lines' ends (breaks.py says where, and why the sum over neighbours is exact), and
what is kept is, for two neighbours, how many tokens the second adds to the first. Where the tokenizer leaves
a doubt, ``is_exact`` says so, and whoever needs the figure counts the whole text.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

from tokenizers import Tokenizer

from guanaco.errors import CorruptConfig
from guanaco_server.artifacts.checking.tokenizer_json import check_tokenizer
from guanaco_server.prompts.breaks import Breaks, find_breaks

T = TypeVar("T")

KEPT_CHARS = 4_000_000  # of one tokenizer: 40,000 messages of 100 characters
ENTRY_CHARS = 100  # what an entry costs beside its text
UNSURE = 12  # 8 %: by so much sums may be wrong where nothing is claimed of a tokenizer
PROBES = ("a", "a b\na: b\n")


class CountedText(NamedTuple):
    """A text that may stand anywhere in a prompt: its outer chunks, and what those after the first one add."""

    text: str
    first: str
    last: str
    inner: int
    is_exact: bool


EMPTY = CountedText("", "", "", 0, True)


class AddedTokens(NamedTuple):
    """What a piece adds to a prompt that ends with another, or what several are together."""

    tokens: int
    is_exact: bool


class TokenCounter:
    """Of one tokenizer. Threads may share it: at worst, one counts again what another has counted."""

    def __init__(self, tokenizer: Tokenizer, content: dict[str, Any]) -> None:
        self._tokenizer = tokenizer
        self.special_tokens = tokenizer.num_special_tokens_to_add(False)
        ends = tokenizer.encode("").tokens
        self.begin = ends[0] if ends else ""  # the text of the token that every prompt begins with
        self._breaks = find_breaks(content) if self._adds_the_same_to_all() else Breaks()
        self._kept: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._alone: Generations[str, int] = Generations(KEPT_CHARS)
        self._pieces: Generations[str, CountedText] = Generations(KEPT_CHARS)
        self._steps: Generations[tuple[str, str], AddedTokens] = Generations(KEPT_CHARS)

    def whole(self, text: str) -> int:
        """Count a text as the model server does, special tokens included. Reads the whole text."""
        return len(self._tokenizer.encode(text))

    def count(self, text: str) -> int:
        """The same count as ``whole``, from the cached counts of its lines where that is exact."""
        if not text:
            return self.special_tokens
        tokens, is_exact = self.sequence([self.piece(text)])
        return tokens if is_exact else self.whole(text)

    def sure(self, budget: int) -> int:
        """What sums may come to so that the whole keeps to the budget, as good as always."""
        return budget if self._breaks.is_sure else budget - budget // UNSURE

    def is_far_from(self, budget: int, tokens: int) -> bool:
        """Whether so many, by a sum that is unsure at a junction or two, are within the budget for certain."""
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
        inner, is_exact = 0, True
        for left, right in pairwise(chunks):
            tokens, is_break = self._chunk_step(left, right)
            inner += tokens
            is_exact = is_exact and is_break
        piece = CountedText(text, chunks[0], chunks[-1], inner, is_exact)
        self._pieces.keep(text, piece, len(text) + ENTRY_CHARS)
        return piece

    def step(self, left: CountedText, right: CountedText) -> AddedTokens:
        """What ``right`` adds to a prompt that ends with ``left``."""
        if not right.text:
            return AddedTokens(0, True)
        if not left.text:
            return AddedTokens(self.alone(right.first) + right.inner, False)
        tokens, is_break = self._chunk_step(left.last, right.first)
        return AddedTokens(tokens + right.inner, is_break and right.is_exact)

    def follow(
        self, left: CountedText, texts: Iterable[str]
    ) -> tuple[list[CountedText], list[AddedTokens]]:
        """The pieces of texts that follow each other, and what each adds to the one before.

        Every turn of every prompt comes by here, so what is known costs two look-ups and no call.
        """
        pieces, steps = [], []
        known_piece, known_step = self._pieces.get, self._steps.get
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
        """What ``make`` counted once, for as long as the key lives."""
        known: T | None = self._kept.get(key)
        if known is None:
            known = self._kept[key] = make()
        return known

    def alone(self, chunk: str) -> int:
        """Without the special tokens that are put around a whole text."""
        count = self._alone.find(chunk)
        if count is None:
            count = len(self._tokenizer.encode(chunk, add_special_tokens=False))
            self._alone.keep(chunk, count, len(chunk) + ENTRY_CHARS)
        return count

    def _chunk_step(self, left: str, right: str) -> AddedTokens:
        key = (left, right)
        step = self._steps.find(key)
        if step is None:
            both = len(self._tokenizer.encode(left + right, add_special_tokens=False))
            tokens = both - self.alone(left)  # negative where a token swallows whitespace before it
            step = AddedTokens(max(0, tokens), tokens >= 0 and self._breaks.is_break(left, right))
            self._steps.keep(key, step, len(right) + ENTRY_CHARS)
        return step

    def _adds_the_same_to_all(self) -> bool:
        """Whether the special tokens around a text are as many for each; a post-processor might repeat the text."""
        return all(
            self.whole(text)
            == self.special_tokens + len(self._tokenizer.encode(text, add_special_tokens=False))
            for text in PROBES
        )


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


KEPT = 32  # a tokenizer of 128,000 words takes some 60 MB


class SmallFiles(Protocol):
    """What is needed of an artifact store."""

    async def read(self, key: str, path: str) -> bytes: ...


@dataclass(frozen=True)
class LoadedTokenizer:
    tokenizer: Tokenizer
    counter: TokenCounter


class TokenizerCache:
    """The most recently used tokenizers; submissions of one commit share one."""

    def __init__(self, store: SmallFiles) -> None:
        self._store = store
        self._loaded: OrderedDict[str, LoadedTokenizer] = OrderedDict()

    async def tokenizer(self, artifact_key: str) -> Tokenizer:
        """CorruptConfig when the file is no tokenizer."""
        return (await self._load(artifact_key)).tokenizer

    async def counter(self, artifact_key: str) -> TokenCounter:
        """Counts the tokens of a prompt as the model server does."""
        return (await self._load(artifact_key)).counter

    def loaded_counter(self, artifact_key: str) -> TokenCounter | None:
        """Without waiting: None for a tokenizer that is not in memory."""
        loaded = self._loaded.get(artifact_key)
        if loaded is None:
            return None
        self._loaded.move_to_end(artifact_key)
        return loaded.counter

    async def _load(self, artifact_key: str) -> LoadedTokenizer:
        if artifact_key not in self._loaded:
            content = await self._store.read(artifact_key, "tokenizer.json")
            loaded = await asyncio.to_thread(_load, content)
            self._loaded.setdefault(artifact_key, loaded)
            if len(self._loaded) > KEPT:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(artifact_key)
        return self._loaded[artifact_key]


def _load(content: bytes) -> LoadedTokenizer:
    tokenizer = load_tokenizer(content)
    return LoadedTokenizer(tokenizer, TokenCounter(tokenizer, json.loads(content)))


def load_tokenizer(content: bytes) -> Tokenizer:
    """A stranger's tokenizer.json, for whole texts; CorruptConfig if it cannot be one."""
    check_tokenizer(content)
    try:
        tokenizer = Tokenizer.from_str(content.decode())
    except BaseException as error:  # a panic of the library is no Exception
        if type(error).__name__ not in (
            "Exception",
            "PanicException",
        ):  # it has no class of its own
            raise
        raise CorruptConfig(f"tokenizer.json cannot be read: {str(error)[:200]}.") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
