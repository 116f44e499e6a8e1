"""Stores characters with their versions, gives cards back, and finds the bot that a conversation begins with.

A character belongs to the account that pushed it. It is private, or public: then every account may read it and talk to it,
and its owner alone changes it. An admin may do everything. A version never changes, so a conversation that keeps its
number knows for good what it began with.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.accounts import Role
from guanaco.characters import (
    CardFormat,
    Character,
    CharacterAsset,
    CharacterChanges,
    CharacterPage,
    CharacterQuery,
    CharactersErased,
    CharacterSummary,
)
from guanaco.chat import Bot
from guanaco.errors import (
    CharacterNotFound,
    Forbidden,
    NewerVersionNeeded,
    NotFound,
    QuotaExceeded,
)
from guanaco.lore import Lorebook
from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.service import Account, AccountService
from guanaco_server.characters import pictures, queries
from guanaco_server.characters.cards import read_card, stored_card, with_book
from guanaco_server.characters.casting import cast, macros_of, require_castable
from guanaco_server.characters.containers import (
    CardFile,
    UploadedCard,
    read_upload,
    write_charx,
    write_png,
)
from guanaco_server.characters.tables import CharacterFileRow, CharacterRow, CharacterVersionRow
from guanaco_server.database.commit_order import in_commit_order
from guanaco_server.database.database import Database
from guanaco_server.database.paging import TimeCursor
from guanaco_server.idempotency.keeping import keep_answer
from guanaco_server.lore.activation import has_patterns
from guanaco_server.runtime import threads
from guanaco_server.runtime.clock import Clock
from guanaco_server.settings.chat import CharacterSettings

AT_ONCE = 2  # uploads that are taken apart, or put together, at the same time
MACROS_AT_ONCE = 300  # are expanded within a millisecond; more of them in a thread
MAX_VERSIONS = 1_000
CURSORS = TimeCursor("chr")
REFERENCE = re.compile(r"(chr_[0-9a-f]{32})(?:@([1-9][0-9]{0,8}))?")
ERASE, CHANGE_OTHERS = "erase characters", "change another's character"
MEDIA_TYPES: dict[CardFormat, str] = {
    "json": "application/json",
    "png": "image/png",
    "charx": "application/zip",
}

T = TypeVar("T")
Eraser = Callable[[AsyncSession, Sequence[str]], Awaitable[None]]


@dataclass(frozen=True)
class File:
    """A file that is sent as an answer."""

    content: bytes
    media_type: str
    name: str


@dataclass(frozen=True)
class CastCharacter:
    """The bot that a conversation begins with, and the version that it is made of, as ``ID@3``."""

    bot: Bot
    version: str


class CharacterService:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        accounts: AccountService,
        audit: AuditLog,
        settings: CharacterSettings,
        on_erasing: Eraser,
    ) -> None:
        """``on_erasing`` is called within each transaction that erases characters, with their ids."""
        self._database = database
        self._clock = clock
        self._accounts = accounts
        self._audit = audit
        self._settings = settings
        self._threads = asyncio.Semaphore(AT_ONCE)
        self._on_erasing = on_erasing

    async def create(self, account: Account, upload: bytes, *, is_public: bool) -> Character:
        """Store a new character. InvalidCard, or QuotaExceeded where the account has as much as it may have."""
        read = await self._in_thread(lambda: self._read(upload))
        now = self._clock.now()

        async def create(session: AsyncSession) -> Character:
            await in_commit_order(session, CharacterRow.__tablename__)
            await self._require_room(session, account.id, len(upload), is_new=True)
            row = CharacterRow(
                id=f"chr_{uuid.uuid4().hex}",
                account_id=account.id,
                owner=account.name,
                newest=0,
                is_public=is_public,
                size_bytes=0,
                created_at=now,
            )
            session.add(row)
            return await self._add_version(session, row, read, len(upload), now)

        return await self._database.write_unit(create)

    async def add_version(self, account: Account, character_id: str, upload: bytes) -> Character:
        """Store a new version of an own character. Conversations that have begun keep theirs."""
        read = await self._in_thread(lambda: self._read(upload))

        async def add(session: AsyncSession) -> Character:
            await in_commit_order(session, CharacterRow.__tablename__)
            row = await self._require_own(session, account, character_id)
            if row.newest >= MAX_VERSIONS:
                raise QuotaExceeded(
                    f"The character has {MAX_VERSIONS:,} versions, which is the most.",
                    hint="Push it as a new character.",
                )
            await self._require_room(session, row.account_id, len(upload), is_new=False)
            return await self._add_version(session, row, read, len(upload), self._clock.now())

        return await self._database.write_unit(add)

    async def change_book(
        self, account: Account, character_id: str, number: int | None, book: Lorebook | None
    ) -> Character:
        """Store a new version that is the named one with another lorebook, or none."""
        async with self._database.read() as session:
            row, version = await self._visible(session, account, character_id, number)
            text = await queries.card(session, row.id, version.number)
            contents = await self._contents(session, version)
        if version.spec.is_unknown:
            raise NewerVersionNeeded(f"the card of {row.id}@{version.number}")

        def write() -> bytes:
            card = with_book(version.spec, text, book)
            if not contents:
                return card
            files = tuple(CardFile(one["path"], contents[one["sha256"]]) for one in version.files)
            upload = UploadedCard(read_card(card), files, contents.get(version.picture or ""))
            return write_charx(upload) if version.files else write_png(upload)

        return await self.add_version(account, row.id, await self._in_thread(write))

    async def page(self, account: Account, query: CharacterQuery) -> CharacterPage:
        """List characters, newest first."""
        whose = account.id if query.whose == "own" else None
        async with self._database.read() as session:
            rows = await queries.page(session, whose, CURSORS.decode(query.cursor), query.limit)
        is_full = len(rows) == query.limit
        return CharacterPage(
            items=[_summary(row) for row in rows],
            next_cursor=CURSORS.encode(rows[-1].created_at, rows[-1].id) if is_full else None,
        )

    async def get(self, account: Account, character_id: str, number: int | None) -> Character:
        """Read a version; the newest where none is named."""
        async with self._database.read() as session:
            return _read(*await self._visible(session, account, character_id, number))

    async def change(
        self, account: Account, character_id: str, changes: CharacterChanges
    ) -> Character:
        async def change(session: AsyncSession) -> Character:
            row = await self._require_own(session, account, character_id)
            row.is_public = changes.is_public
            row.updated_at = self._clock.now()
            version = await queries.version(session, row.id, row.newest)
            assert version is not None
            return _read(row, version)

        return await self._database.write_unit(change)

    async def export(
        self, account: Account, character_id: str, number: int | None, form: CardFormat
    ) -> File:
        """Give the card back, as JSON exactly as it came."""
        async with self._database.read() as session:
            row, version = await self._visible(session, account, character_id, number)
            text = await queries.card(session, row.id, version.number)
            contents = {} if form == "json" else await self._contents(session, version)
        name = f"{row.id}_v{version.number}.{form}"
        if form == "json":
            return File(text.encode(), MEDIA_TYPES[form], name)

        if version.spec.is_unknown:
            raise NewerVersionNeeded(f"the card of {row.id}@{version.number}")

        def write() -> bytes:
            upload = UploadedCard(
                stored_card(version.spec, text, version.texts),
                tuple(CardFile(one["path"], contents[one["sha256"]]) for one in version.files),
                contents.get(version.picture or ""),
            )
            return write_png(upload) if form == "png" else write_charx(upload)

        return File(await self._in_thread(write), MEDIA_TYPES[form], name)

    async def picture(self, account: Account, character_id: str, number: int | None) -> File:
        """Return the character's picture; NotFound where it has none."""
        async with self._database.read() as session:
            row, version = await self._visible(session, account, character_id, number)
            wanted = [] if version.picture is None else [version.picture]
            found = await queries.files(session, row.id, wanted)
        content = found.get(version.picture or "", b"")
        if (kind := pictures.media_type(content)) is None:
            raise NotFound(f"The character {character_id} has no picture.")
        return File(content, kind, f"{row.id}_v{version.number}.{kind.partition('/')[2]}")

    async def has_picture(self, account: Account, character_id: str, number: int | None) -> bool:
        """Tell whether a character that the account may see has a picture, without reading it."""
        async with self._database.read() as session:
            _, version = await self._visible(session, account, character_id, number)
        return version.picture is not None

    async def bot(
        self,
        account: Account,
        reference: str,
        *,
        user_name: str,
        seed: str,
        greeting: int = 0,
    ) -> CastCharacter:
        """Return the bot that a conversation with a user of this name begins with. The same seed gives the same bot."""
        found = REFERENCE.fullmatch(reference)
        if found is None:
            raise CharacterNotFound(repr(reference))
        number = int(found[2]) if found[2] else None
        async with self._database.read() as session:
            row, version = await self._visible(session, account, found[1], number)
        texts = version.texts

        def work() -> Bot:
            return cast(texts, user_name=user_name, seed=seed, greeting=greeting)

        has_much = macros_of(texts) > MACROS_AT_ONCE or (
            texts.lorebook is not None and has_patterns(texts.lorebook)
        )
        bot = await threads.BOOKS.run_in_turn(account.id, work) if has_much else work()
        return CastCharacter(bot, f"{row.id}@{version.number}")

    async def delete(self, account: Account, character_id: str) -> None:
        """Delete an own character with all versions. Conversations with it go on as they began."""

        async def delete(session: AsyncSession) -> None:
            row = await self._require_own(session, account, character_id)
            await self._erase(session, [row.id])

        await self._database.write_unit(delete)
        await self._database.empty_log()

    async def erase_all(self, account: Account, owner: str | None) -> CharactersErased:
        """Erase every character of an account. Only an admin names another account than its own."""
        if owner not in (None, account.name) and account.role is not Role.ADMIN:
            raise Forbidden("A key erases its own account's characters only.")

        async def erase(session: AsyncSession) -> CharactersErased:
            named = await self._accounts.require_named(session, owner)
            ids = await queries.ids_of(session, named or account.id)
            versions = await self._erase(session, ids)
            await self._audit.note(session, account, ERASE, f"of {owner or account.name}")
            return CharactersErased(characters=len(ids), versions=versions)

        erased = await self._database.write_unit(erase)
        await self._database.empty_log()
        return erased

    async def _erase(self, session: AsyncSession, character_ids: Sequence[str]) -> int:
        await self._on_erasing(session, character_ids)
        return await queries.erase(session, character_ids)

    def _read(self, upload: bytes) -> UploadedCard:
        read = read_upload(upload, self._settings.character_max_bytes)
        require_castable(read.card.texts)
        return read

    async def _in_thread(self, work: Callable[[], T]) -> T:
        async with self._threads:
            return await threads.PAGES.run(work)

    async def _add_version(
        self, session: AsyncSession, row: CharacterRow, read: UploadedCard, size: int, now: datetime
    ) -> Character:
        """Add a version to a character that is locked, or new, and have the answer kept."""
        texts = read.card.texts
        row.newest, row.size_bytes, row.updated_at = row.newest + 1, row.size_bytes + size, now
        row.name, row.tags = texts.name, list(texts.tags)
        row.greetings, row.has_picture = len(texts.greetings), read.picture is not None
        await session.flush()
        hashes = {hashlib.sha256(one).hexdigest(): one for one in _contents_of(read)}
        known = await queries.known_files(session, row.id, hashes)
        session.add_all(
            CharacterFileRow(character_id=row.id, sha256=sha256, content=content)
            for sha256, content in hashes.items()
            if sha256 not in known
        )
        version = CharacterVersionRow(
            character_id=row.id,
            number=row.newest,
            spec=read.card.spec,
            card=read.card.json,
            texts=texts,
            files=[_listed(one) for one in read.files],
            picture=None if read.picture is None else hashlib.sha256(read.picture).hexdigest(),
            size_bytes=size,
            created_at=now,
        )
        session.add(version)
        character = _read(row, version)
        await keep_answer(session, character)
        return character

    async def _require_room(
        self, session: AsyncSession, account_id: str, size: int, *, is_new: bool
    ) -> None:
        count, used = await queries.totals(session, account_id)
        most, most_bytes = (
            self._settings.characters_per_account,
            self._settings.character_bytes_per_account,
        )
        if is_new and count >= most:
            raise QuotaExceeded(
                f"The account has {count:,} characters, which is the most that it may have.",
                hint="Delete one with `guanaco characters delete`.",
            )
        if used + size > most_bytes:
            raise QuotaExceeded(
                f"The account's characters take {used:,} bytes of the {most_bytes:,} that they may take, and this one has {size:,}.",
                hint="Delete one with `guanaco characters delete`.",
            )

    async def _visible(
        self, session: AsyncSession, account: Account, character_id: str, number: int | None
    ) -> tuple[CharacterRow, CharacterVersionRow]:
        row = await queries.by_id(session, character_id)
        if row is None or not (row.is_public or _is_own(account, row)):
            raise CharacterNotFound(character_id)
        version = await queries.version(session, row.id, number or row.newest)
        if version is None:
            raise CharacterNotFound(f"{character_id}@{number}")
        return row, version

    async def _require_own(
        self, session: AsyncSession, account: Account, character_id: str
    ) -> CharacterRow:
        """Return the character, locked; an admin's change of another's is noted in the audit log."""
        row = await queries.locked(session, character_id)
        if row is None or not (row.is_public or _is_own(account, row)):
            raise CharacterNotFound(character_id)
        if not _is_own(account, row):
            raise Forbidden("Only its owner changes a character.", hint="Push one of your own.")
        if row.account_id != account.id:
            await self._audit.note(session, account, CHANGE_OTHERS, row.id)
        return row

    async def _contents(
        self, session: AsyncSession, version: CharacterVersionRow
    ) -> dict[str, bytes]:
        wanted = {one["sha256"] for one in version.files}
        if version.picture is not None:
            wanted.add(version.picture)
        return await queries.files(session, version.character_id, wanted)


def _is_own(account: Account, row: CharacterRow) -> bool:
    return account.role is Role.ADMIN or row.account_id == account.id


def _contents_of(read: UploadedCard) -> list[bytes]:
    return [*([read.picture] if read.picture else []), *(one.content for one in read.files)]


def _listed(one: CardFile) -> dict[str, object]:
    sha256 = hashlib.sha256(one.content).hexdigest()
    return {"path": one.path, "sha256": sha256, "size_bytes": len(one.content)}


def _read(row: CharacterRow, version: CharacterVersionRow) -> Character:
    return Character(
        id=row.id,
        version=version.number,
        newest=row.newest,
        owner=row.owner,
        is_public=row.is_public,
        spec=version.spec,
        has_picture=version.picture is not None,
        assets=tuple(
            CharacterAsset(path=one["path"], size_bytes=one["size_bytes"]) for one in version.files
        ),
        size_bytes=version.size_bytes,
        created_at=version.created_at,
        **{name: getattr(version.texts, name) for name in type(version.texts).model_fields},
    )


def _summary(row: CharacterRow) -> CharacterSummary:
    return CharacterSummary(
        id=row.id,
        version=row.newest,
        name=row.name,
        owner=row.owner,
        is_public=row.is_public,
        tags=tuple(row.tags),
        greetings=row.greetings,
        has_picture=row.has_picture,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
