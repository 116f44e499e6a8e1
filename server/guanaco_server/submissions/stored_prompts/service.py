"""Stores prompts in versions that never change, and finds the one that a reference names.

A prompt is checked as the check of a submission does it before it is stored, except for what needs a model.

A prompt belongs to the account that pushed it; an admin may act on another developer's by naming the developer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.accounts import Role
from guanaco.bots import BOTS
from guanaco.errors import (
    BadPrompt,
    Conflict,
    Forbidden,
    PromptFailed,
    PromptNotFound,
    QuotaExceeded,
)
from guanaco.prompts import Prompt
from guanaco.stored_prompts import (
    PromptLabel,
    PromptPush,
    PromptReference,
    PromptVersion,
    PromptVersionSummary,
    StoredPrompt,
    read_reference,
)
from guanaco.submissions import SubmissionRequest
from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.service import Account, AccountService
from guanaco_server.database.database import Database
from guanaco_server.idempotency.keeping import keep_answer
from guanaco_server.prompts.service import PromptService
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.stored_prompts import queries
from guanaco_server.submissions.tables import (
    StoredPromptLabelRow,
    StoredPromptRow,
    StoredPromptVersionRow,
    SubmissionRow,
)

MAX_PROMPTS, MAX_VERSIONS = 500, 10_000  # of an account, of a prompt
SAMPLE_BOT = next(iter(BOTS.values()))
PUSH, DELETE, UNLABEL = "push prompt", "delete prompt", "remove prompt label"


class PromptStore:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        accounts: AccountService,
        audit: AuditLog,
        prompts: PromptService,
        most_bytes: int,
    ) -> None:
        self._database = database
        self._clock = clock
        self._accounts = accounts
        self._audit = audit
        self._prompts = prompts
        self._most_bytes = most_bytes

    async def push(self, account: Account, push: PromptPush) -> PromptVersion:
        """Store a version; the newest one again if it is the same.

        Raises:
            BadPrompt: It can make no prompt, with any model.
            QuotaExceeded: There are as many as there may be.
        """
        await self.require_renderable(account, push.prompt)

        async def store(session: AsyncSession) -> PromptVersion:
            return await self._push(session, account, push)

        try:
            return await self._database.write_unit(store)
        except IntegrityError:  # the other of two first versions was first: the prompt is there now
            return await self._database.write_unit(store)

    async def require_renderable(self, account: Account, prompt: Prompt) -> None:
        """BadPrompt with the sentence of a submission's check. An account's prompts are rendered one after another."""
        try:
            await self._prompts.check_own_jinja(prompt, SAMPLE_BOT, ("stored", account.id))
        except PromptFailed as error:
            raise BadPrompt(
                error.detail,
                hint="Nothing was changed. `guanaco prompts render` tries a prompt without storing it.",
            ) from None

    async def _push(
        self, session: AsyncSession, account: Account, push: PromptPush
    ) -> PromptVersion:
        now = self._clock.now()
        row = await queries.prompt(session, account.id, push.name, is_locked=True)
        if row is None:
            if await queries.count(session, account.id) >= MAX_PROMPTS:
                raise QuotaExceeded(
                    f"You have {MAX_PROMPTS} stored prompts, which is the most.",
                    hint="Delete one first: `guanaco prompts delete NAME`.",
                )
            row = StoredPromptRow(
                account_id=account.id, name=push.name, newest=0, created_at=now, updated_at=now
            )
            session.add(row)
            await session.flush()
        newest = await queries.version(session, account.id, row.name, row.newest)
        if newest is None or newest.prompt != push.prompt:
            newest = await self._add(session, account, row, push)
        labels = await queries.labels(session, account.id, row.name)
        found = _version(newest, account.name, labels)
        await keep_answer(session, found)
        return found

    async def _add(
        self, session: AsyncSession, account: Account, row: StoredPromptRow, push: PromptPush
    ) -> StoredPromptVersionRow:
        if row.newest >= MAX_VERSIONS:
            raise QuotaExceeded(
                f"The prompt {row.name} has {MAX_VERSIONS:,} versions, which is the most.",
                hint="Push it by another name.",
            )
        used, size = await queries.size(session, account.id), len(push.prompt.model_dump_json())
        if used + size > self._most_bytes:
            raise QuotaExceeded(
                f"Your stored prompts take {used:,} bytes of the {self._most_bytes:,} that they may take, and this version has {size:,}.",
                hint="Delete one first: `guanaco prompts delete NAME`.",
            )
        now = self._clock.now()
        row.newest, row.updated_at = row.newest + 1, now
        added = StoredPromptVersionRow(
            account_id=account.id,
            name=row.name,
            number=row.newest,
            prompt=push.prompt,
            note=push.note,
            created_by=account.name,
            created_at=now,
        )
        session.add(added)
        await self._audit.note(session, account, PUSH, f"{row.name}@{row.newest}")
        return added

    async def list_all(self, account: Account, developer: str | None = None) -> list[StoredPrompt]:
        """List the prompts by name, without their versions."""
        owner = await self.owner(account, developer)
        async with self._database.read() as session:
            rows = await queries.prompts(session, owner.id)
            labels = await queries.labels(session, owner.id)
            followers = await queries.followers_by_label(session, owner.id)
        return [
            _stored(row, owner.name, [one for one in labels if one.name == row.name], followers, ())
            for row in rows
        ]

    async def get(self, account: Account, name: str, developer: str | None = None) -> StoredPrompt:
        """Read a prompt with its labels and newest versions. PromptNotFound."""
        owner = await self.owner(account, developer)
        async with self._database.read() as session:
            row = await require(session, owner.id, name)
            labels = await queries.labels(session, owner.id, name)
            versions = await queries.versions(session, owner.id, name)
            followers = await queries.followers_by_label(session, owner.id)
        return _stored(row, owner.name, labels, followers, versions)

    async def version(
        self, account: Account, name: str, which: str, developer: str | None = None
    ) -> PromptVersion:
        """Read a version by its number, or by a label. PromptNotFound."""
        owner = await self.owner(account, developer)
        async with self._database.read() as session:
            reference = read_reference(f"{name}@{which}")
            if reference is None:
                raise PromptNotFound(f"{name}@{which}")
            found = await find(session, owner.id, reference)
            labels = await queries.labels(session, owner.id, name)
        return _version(found, owner.name, labels)

    async def resolved(
        self, session: AsyncSession, account: Account, request: SubmissionRequest
    ) -> tuple[Prompt, int | None]:
        """Return the prompt that a request means, and its version if it names a stored one. PromptNotFound."""
        if request.prompt is None:
            return request.formatter, None
        found = await self.referred(session, account, request.prompt)
        return found.prompt, found.number

    async def referred(
        self, session: AsyncSession, account: Account, text: str
    ) -> StoredPromptVersionRow:
        """Read the version of an account's own that a reference names. PromptNotFound."""
        reference = read_reference(text)
        if reference is None:
            raise PromptNotFound(text)
        return await find(session, account.id, reference)

    async def pinned(self, account: Account, text: str) -> tuple[str, Prompt]:
        """Return the reference with its number, and the prompt. PromptNotFound."""
        async with self._database.read() as session:
            found = await self.referred(session, account, text)
        return f"{found.name}@{found.number}", found.prompt

    async def with_formatter(
        self, account: Account, request: SubmissionRequest
    ) -> SubmissionRequest:
        """Return the request with the prompt that it names in the place of the reference. PromptNotFound."""
        if request.prompt is None:
            return request
        async with self._database.read() as session:
            formatter, _ = await self.resolved(session, account, request)
        return request.model_copy(update={"formatter": formatter, "prompt": None})

    async def remove_label(
        self, account: Account, name: str, label: str, developer: str | None = None
    ) -> None:
        """Remove a label. Conflict while submissions follow it."""
        owner = await self.owner(account, developer)

        async def remove(session: AsyncSession) -> None:
            await require(session, owner.id, name, is_locked=True)
            if await queries.label(session, owner.id, name, label) is None:
                raise PromptNotFound(f"{name}@{label}")
            _require_free(f"{name}@{label}", await queries.followers(session, owner.id, f"{name}@{label}"))  # fmt: skip
            await queries.drop_label(session, owner.id, name, label)
            await self._audit.note(session, account, UNLABEL, f"{name}@{label} of {owner.name}")

        await self._database.write_unit(remove)

    async def delete(self, account: Account, name: str, developer: str | None = None) -> None:
        """Delete a prompt with all versions. Conflict while submissions follow one of its labels."""
        owner = await self.owner(account, developer)

        async def delete(session: AsyncSession) -> None:
            await require(session, owner.id, name, is_locked=True)
            for one in await queries.labels(session, owner.id, name):
                reference = f"{name}@{one.label}"
                _require_free(reference, await queries.followers(session, owner.id, reference))
            await queries.drop_prompt(session, owner.id, name)
            await self._audit.note(session, account, DELETE, f"{name} of {owner.name}")

        await self._database.write_unit(delete)

    async def owner(self, account: Account, developer: str | None) -> Account:
        """Return whose prompts are meant. Forbidden if another's are, by anybody but an admin; AccountNotFound."""
        if developer is None or developer == account.name:
            return account
        if account.role is not Role.ADMIN:
            raise Forbidden("A key reads and changes its own account's prompts only.")
        return await self._accounts.named(developer)


async def require(
    session: AsyncSession, account_id: str, name: str, *, is_locked: bool = False
) -> StoredPromptRow:
    """Read a prompt; PromptNotFound."""
    row = await queries.prompt(session, account_id, name, is_locked=is_locked)
    if row is None:
        raise PromptNotFound(name)
    return row


async def find(
    session: AsyncSession, account_id: str, reference: PromptReference
) -> StoredPromptVersionRow:
    """Read the version that a reference names; PromptNotFound."""
    number = reference.version
    if reference.label is not None:
        label = await queries.label(session, account_id, reference.name, reference.label)
        number = label.number if label is not None else None
    row = (
        await queries.version(session, account_id, reference.name, number)
        if number is not None
        else None
    )
    if row is None:
        raise PromptNotFound(str(reference))
    return row


def read_label(row: StoredPromptLabelRow, followers: Sequence[str]) -> PromptLabel:
    return PromptLabel(
        label=row.label,
        version=row.number,
        previous=row.previous,
        moved_at=row.moved_at,
        moved_by=row.moved_by,
        submissions=list(followers),
    )


def _require_free(reference: str, followers: Sequence[SubmissionRow]) -> None:
    if followers:
        raise Conflict(
            f"{len(followers)} submission{'s follow' if len(followers) > 1 else ' follows'} {reference}, for example {followers[0].id}.",
            hint="Move the label instead, or delete these submissions.",
        )


def _stored(
    row: StoredPromptRow,
    developer: str,
    labels: Sequence[StoredPromptLabelRow],
    followers: Mapping[str, Sequence[str]],
    versions: Sequence[StoredPromptVersionRow],
) -> StoredPrompt:
    return StoredPrompt(
        name=row.name,
        developer=developer,
        newest=row.newest,
        created_at=row.created_at,
        updated_at=row.updated_at,
        labels=[read_label(one, followers.get(f"{row.name}@{one.label}", ())) for one in labels],
        versions=[
            PromptVersionSummary(
                version=one.number,
                note=one.note,
                created_at=one.created_at,
                created_by=one.created_by,
            )
            for one in versions
        ],
    )


def _version(
    row: StoredPromptVersionRow, developer: str, labels: Sequence[StoredPromptLabelRow]
) -> PromptVersion:
    return PromptVersion(
        name=row.name,
        developer=developer,
        version=row.number,
        note=row.note,
        created_at=row.created_at,
        created_by=row.created_by,
        labels=[one.label for one in labels if one.number == row.number],
        prompt=row.prompt,
    )
