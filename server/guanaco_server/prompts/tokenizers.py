"""A submission's own tokenizer, from its artifact's tokenizer.json."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from tokenizers import Tokenizer

from guanaco.errors import CorruptConfig
from guanaco_server.artifacts.checking.tokenizer_json import check_tokenizer
from guanaco_server.prompts.counting import TokenCounter

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
