"""What a model says, as a user may see it: without whitespace around the whole."""

from __future__ import annotations

from guanaco_server.deployments.model_server import Chunk

Pieces = tuple[str, ...]


class Sample:
    """Collects one sample's chunks. Whitespace at its end is held back until more text comes, so that what was sent, joined, is ``content``."""

    __slots__ = ("_held", "_texts", "completion_tokens", "finish_reason", "prompt_tokens", "reward_score")  # fmt: skip

    def __init__(self) -> None:
        self.finish_reason = "stop"
        self.prompt_tokens = self.completion_tokens = 0
        self.reward_score: float | None = None
        self._texts: list[str] = []
        self._held = ""

    @property
    def content(self) -> str:
        return "".join(self._texts)

    def take(self, chunk: Chunk) -> Pieces:
        """The texts that may be sent now."""
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
            self.reward_score = chunk.reward_score
            self.prompt_tokens = chunk.prompt_tokens
            self.completion_tokens = chunk.completion_tokens
        texts = self._sendable([*chunk.texts])
        self._texts += texts
        return tuple(texts)

    def _sendable(self, texts: list[str]) -> list[str]:
        if "\x00" in "".join(texts):  # which PostgreSQL does not store
            texts = [text.replace("\x00", "") for text in texts]
        if self._held and texts:
            texts[0], self._held = self._held + texts[0], ""
        begin, end = 0, len(texts)
        while not self._texts and begin < end:
            if text := texts[begin].lstrip():
                texts[begin] = text
                break
            begin += 1
        while begin < end:
            text = texts[end - 1]
            if kept := text.rstrip():
                self._held = text[len(kept) :] + self._held
                texts[end - 1] = kept
                break
            self._held = text + self._held
            end -= 1
        return [text for text in texts[begin:end] if text]
