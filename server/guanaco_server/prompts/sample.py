"""The sample tokenizer, with which prompts are tried that belong to no model yet: a word is a token."""

from __future__ import annotations

from collections.abc import AsyncIterator

from guanaco_server.tokenization.service import SmallFiles

SAMPLE = "sample"  # in the place of an artifact's key, which has 64 digits
WORDS = b"""{"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
"model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}}"""


class WithSample:
    """The store's small files, and the sample's."""

    def __init__(self, files: SmallFiles) -> None:
        self._files = files

    async def read(self, key: str, path: str) -> bytes:
        if key != SAMPLE:
            return await self._files.read(key, path)
        if path == "tokenizer.json":
            return WORDS
        raise FileNotFoundError(path)

    async def pieces(self, key: str, path: str) -> AsyncIterator[bytes]:
        if key == SAMPLE:
            yield await self.read(key, path)
            return
        async for piece in self._files.pieces(key, path):
            yield piece
