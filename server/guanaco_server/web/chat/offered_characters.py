"""The characters that the chat page offers: those of the settings, and stored ones that are public."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from guanaco.chat import Bot
from guanaco.errors import NewerVersionNeeded, NotFound
from guanaco_server.accounts.service import Account
from guanaco_server.characters.service import CastCharacter, CharacterService, File
from guanaco_server.web.chat.bots import StoredBot, WebBot


@dataclass(frozen=True)
class OfferedCharacter:
    """A character as the chat page offers it."""

    key: str
    name: str
    intro: str
    has_picture: bool = False


class OfferedCharacters:
    """The offered characters, by the keys of the settings. ``account`` finds the account of the chat page."""

    def __init__(
        self,
        account: Callable[[], Awaitable[Account]],
        bots: Mapping[str, WebBot],
        characters: CharacterService,
    ) -> None:
        self._account = account
        self._bots = bots
        self._characters = characters

    def bot(self, key: str) -> WebBot:
        """Return the bot with this key, which must be there."""
        return self._bots[key]

    async def list_all(self) -> list[OfferedCharacter]:
        """List the characters, without stored ones that are no longer public."""
        found = [await self.find(key) for key in self._bots]
        return [character for character in found if character is not None]

    async def find(self, key: str) -> OfferedCharacter | None:
        """Return the character with this key; None if there is none, or if it is no longer public."""
        bot = self._bots.get(key)
        if bot is None:
            return None
        if isinstance(bot, Bot):
            return OfferedCharacter(key, bot.name, bot.first_message or bot.memory)
        cast = await self._cast(bot)
        if cast is None:
            return None
        has_picture = await self.has_picture(cast.version)
        return OfferedCharacter(
            key, cast.bot.name, cast.bot.first_message or cast.bot.memory, has_picture
        )

    async def _cast(self, stored: StoredBot) -> CastCharacter | None:
        account = await self._account()
        try:
            return await self._characters.bot(account, stored.character, user_name="You", seed="")
        except (NotFound, NewerVersionNeeded):
            return None

    async def has_picture(self, version: str) -> bool:
        """Return whether a character's version, written ``ID@3``, has a picture."""
        character_id, _, number = version.partition("@")
        try:
            return await self._characters.has_picture(
                await self._account(), character_id, int(number) if number else None
            )
        except NotFound:
            return False

    async def picture(self, version: str) -> File | None:
        """Find the picture of a character's version, written ``ID@3``; None once it is private or deleted."""
        character_id, _, number = version.partition("@")
        try:
            return await self._characters.picture(
                await self._account(), character_id, int(number) if number else None
            )
        except NotFound:
            return None

    async def picture_of(self, key: str) -> File:
        """Return the picture of an offered character. NotFound if it has none."""
        bot = self._bots.get(key)
        picture = await self.picture(bot.character) if isinstance(bot, StoredBot) else None
        return require_picture(picture)


def require_picture(picture: File | None) -> File:
    """Return the picture; NotFound if there is none."""
    if picture is None:
        raise NotFound("There is no such picture.")
    return picture
