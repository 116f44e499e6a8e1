"""Characters over HTTP: cards in, cards out, and pictures that are served as pictures only."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response

from guanaco.accounts import Role
from guanaco.characters import (
    CardFormat,
    Character,
    CharacterChanges,
    CharacterForm,
    CharacterPage,
    CharacterQuery,
    CharactersErased,
)
from guanaco.chat import MAX_GREETING, Bot
from guanaco.forms import AccountName, OneLine
from guanaco.lore import Lorebook
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.characters.casting import NO_GREETING
from guanaco_server.characters.service import MEDIA_TYPES, CharacterService, File
from guanaco_server.http.openapi import schema_of
from guanaco_server.http.routes import Routes

PATH = "/api/v1/characters"
BYTES = {"type": "string", "format": "binary"}
PICTURES = ("image/png", "image/jpeg", "image/webp", "image/gif", "image/avif")
CARD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "Our form, or a Character Card V1, V2 or V3: JSON, a PNG with a `ccv3` or `chara` text chunk, or a CHARX file. The first bytes say which.",
        "content": {
            "application/json": {
                "schema": {"anyOf": [schema_of(CharacterForm), {"type": "object"}]}
            },
            "image/png": {"schema": BYTES},
            "application/zip": {"schema": BYTES},
        },
    }
}
Number = Annotated[
    int | None,
    Query(ge=1, le=2**31 - 1, description="The version; the newest where none is named."),
]


def router(characters: CharacterService, auth: Auth) -> Routes:
    routes = Routes(prefix=PATH, tags=["characters"])
    owner = auth.require(Role.BACKEND, Role.DEVELOPER)

    @routes.post("", status_code=201, openapi_extra=CARD)
    async def create_character(
        request: Request, public: bool = False, account: Account = owner
    ) -> Character:
        """Store a character. It is private unless `?public=true`."""
        return await characters.create(account, await request.body(), is_public=public)

    @routes.get("")
    async def list_characters(
        query: Annotated[CharacterQuery, Query()], account: Account = owner
    ) -> CharacterPage:
        """Your own, or with `?whose=public` everybody's public ones; newest first."""
        return await characters.page(account, query)

    @routes.delete("")
    async def erase_characters(
        account_name: Annotated[
            AccountName | None,
            Query(alias="account", description="Another account's name; admins only."),
        ] = None,
        account: Account = owner,
    ) -> CharactersErased:
        """Erase every character of your account for good."""
        return await characters.erase_all(account, account_name)

    @routes.get("/{character_id}")
    async def read_character(
        character_id: str, version: Number = None, account: Account = owner
    ) -> Character:
        return await characters.get(account, character_id, version)

    @routes.patch("/{character_id}")
    async def change_character(
        character_id: str, changes: CharacterChanges, account: Account = owner
    ) -> Character:
        """Make it public or private. Conversations that have begun go on."""
        return await characters.change(account, character_id, changes)

    @routes.delete("/{character_id}", status_code=204)
    async def delete_character(character_id: str, account: Account = owner) -> None:
        """Delete it with all versions. Conversations that have begun go on."""
        await characters.delete(account, character_id)

    @routes.post("/{character_id}/versions", status_code=201, openapi_extra=CARD)
    async def create_version(
        character_id: str, request: Request, account: Account = owner
    ) -> Character:
        """Store a new version. New conversations begin with it; those that have begun keep theirs."""
        return await characters.add_version(account, character_id, await request.body())

    @routes.put("/{character_id}/lorebook", status_code=201)
    async def replace_lorebook(
        character_id: str, book: Lorebook, version: Number = None, account: Account = owner
    ) -> Character:
        """Store a new version with this lorebook in the place of the named version's."""
        return await characters.change_book(account, character_id, version, book)

    @routes.delete("/{character_id}/lorebook", status_code=201)
    async def remove_lorebook(
        character_id: str, version: Number = None, account: Account = owner
    ) -> Character:
        """Store a new version without a lorebook."""
        return await characters.change_book(account, character_id, version, None)

    @routes.get(
        "/{character_id}/card",
        response_class=Response,
        responses={200: {"content": {kind: {} for kind in MEDIA_TYPES.values()}}},
    )
    async def export_card(
        character_id: str,
        form: Annotated[CardFormat, Query(alias="format")] = "json",
        version: Number = None,
        account: Account = owner,
    ) -> Response:
        """Give the card back as JSON, exactly as it came, or in a PNG or a CHARX file."""
        found = await characters.export(account, character_id, version, form)
        return _sent(found, "attachment")

    @routes.get(
        "/{character_id}/picture",
        response_class=Response,
        responses={200: {"content": {kind: {} for kind in PICTURES}}},
    )
    async def read_picture(
        character_id: str, version: Number = None, account: Account = owner
    ) -> Response:
        return _sent(await characters.picture(account, character_id, version), "inline")

    @routes.get("/{character_id}/bot")
    async def read_bot(
        character_id: str,
        user_name: OneLine = "You",
        seed: Annotated[str, Query(max_length=128)] = "",
        greeting: Annotated[int, Query(ge=NO_GREETING, le=MAX_GREETING)] = 0,
        version: Number = None,
        account: Account = owner,
    ) -> Bot:
        """The bot that a conversation would begin with: macros expanded, a greeting chosen. The same seed gives the same bot."""
        named = character_id if version is None else f"{character_id}@{version}"
        cast = await characters.bot(
            account, named, user_name=user_name, seed=seed, greeting=greeting
        )
        return cast.bot

    return routes


def _sent(file: File, disposition: str) -> Response:
    """A file that no browser takes for a page, whatever is in it."""
    headers = {
        "Content-Disposition": f'{disposition}; filename="{file.name}"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, max-age=300",
    }
    return Response(file.content, media_type=file.media_type, headers=headers)
