"""A prompt made of a sample conversation, without a platform: the entrance of `guanaco prompt render`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from guanaco.chat import Bot, Sender, Turn
from guanaco.errors import MissingFile
from guanaco.prompts import Prompt
from guanaco_server.prompts.room import build_prompts
from guanaco_server.prompts.service import is_by_chat_template

WORDS = b"""{"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
"model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}}"""
SAID = (
    "Hi! How was your day?",
    "Wonderful. I walked along the sea and thought of you.",
    "Tell me something that I do not know about you.",
    "I collect old maps, and I have been lost in every place on them.",
)


def try_out(
    prompt: Prompt, bot: Bot, turn_count: int, max_input_tokens: int, folder: Path | None
) -> str:
    """With the tokenizer and chat template of a model's folder; without one, a word is a token."""
    if folder is None and is_by_chat_template(prompt):
        raise MissingFile(
            "This prompt goes through the model's chat template.",
            hint="Name the folder of a model with --tokenizer.",
        )
    return asyncio.run(_render(prompt, bot, turn_count, max_input_tokens, _Folder(folder)))


class _Folder:
    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    async def read(self, key: str, path: str) -> bytes:
        if self._folder is not None:
            return (self._folder / path).read_bytes()
        if path == "tokenizer.json":
            return WORDS
        raise FileNotFoundError(path)

    async def pieces(self, key: str, path: str) -> AsyncIterator[bytes]:
        yield await self.read(key, path)


async def _render(
    prompt: Prompt, bot: Bot, turn_count: int, max_input_tokens: int, folder: _Folder
) -> str:
    service = build_prompts(folder).service
    try:
        return await service.render(
            formatter=prompt,
            artifact_key="sample",
            max_input_tokens=max_input_tokens,
            bot=bot,
            user_name="You",
            turns=_conversation(turn_count),
        )
    except FileNotFoundError as error:
        raise MissingFile(f"The folder has no {Path(str(error.filename)).name}.") from None
    finally:
        await service.close()


def _conversation(count: int) -> list[Turn]:
    senders = (Sender.USER, Sender.BOT)
    return [Turn(sender=senders[n % 2], content=SAID[n % len(SAID)]) for n in range(count)]
