"""A submission's own tokenizer, from its artifact's tokenizer.json."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from tokenizers import Tokenizer

from guanaco.errors import CorruptConfig
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.artifacts.tokenizer_json import check_tokenizer
from guanaco_server.prompts.rendering import CountTokens

KEPT = 32  # a tokenizer of 128,000 words takes some 60 MB


class TokenizerCache:
    """The most recently used tokenizers; submissions of one commit share one."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._tokenizers: OrderedDict[str, Tokenizer] = OrderedDict()

    async def count_with(self, artifact_key: str) -> CountTokens:
        """A function that counts the tokens of a prompt as the model server does, special tokens included."""
        tokenizer = await self.tokenizer(artifact_key)
        return lambda text: len(tokenizer.encode(text))

    async def tokenizer(self, artifact_key: str) -> Tokenizer:
        """CorruptConfig when the file is no tokenizer."""
        if artifact_key not in self._tokenizers:
            content = await self._store.read(artifact_key, "tokenizer.json")
            self._tokenizers[artifact_key] = await asyncio.to_thread(load_tokenizer, content)
            if len(self._tokenizers) > KEPT:
                self._tokenizers.popitem(last=False)
        self._tokenizers.move_to_end(artifact_key)
        return self._tokenizers[artifact_key]


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
