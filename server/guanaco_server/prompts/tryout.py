"""A prompt made of a sample conversation, without a platform: the entrance of `guanaco prompts render`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from guanaco.chat import Bot
from guanaco.errors import BadPrompt, MissingFile, PromptFailed
from guanaco.prompts import Prompt
from guanaco.trials import sample_turns
from guanaco_server.prompts.history.lore import require_usable_book, with_lore
from guanaco_server.prompts.room import build_prompts
from guanaco_server.prompts.sample import SAMPLE
from guanaco_server.prompts.service import CORRECT_IT, is_by_chat_template

OWN = ""  # account: the command's user has the process alone


def try_out(
    prompt: Prompt, bot: Bot, turn_count: int, max_input_tokens: int, folder: Path | None
) -> str:
    """Render with the tokenizer and chat template of a model's folder; without one, a word is a token."""
    if folder is None and is_by_chat_template(prompt):
        raise MissingFile(
            "This prompt goes through the model's chat template.",
            hint="Name the folder of a model with --tokenizer.",
        )
    return asyncio.run(_render(prompt, bot, turn_count, max_input_tokens, _Folder(folder)))


class _Folder:
    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @property
    def is_none(self) -> bool:
        return self._folder is None

    async def read(self, key: str, path: str) -> bytes:
        if self._folder is not None:
            return (self._folder / path).read_bytes()
        raise FileNotFoundError(path)

    async def pieces(self, key: str, path: str) -> AsyncIterator[bytes]:
        yield await self.read(key, path)


async def _render(
    prompt: Prompt, bot: Bot, turn_count: int, max_input_tokens: int, folder: _Folder
) -> str:
    await require_usable_book(bot, OWN)
    service = build_prompts(folder).service
    try:
        return await service.render(
            formatter=prompt,
            artifact_key=SAMPLE if folder.is_none else "folder",
            max_input_tokens=max_input_tokens,
            bot=bot,
            user_name="You",
            turns=await with_lore(bot, sample_turns(turn_count), OWN),
        )
    except PromptFailed as error:
        raise BadPrompt(error.detail, hint=CORRECT_IT) from None
    except FileNotFoundError as error:
        raise MissingFile(f"The folder has no {Path(str(error.filename)).name}.") from None
    finally:
        await service.close()
