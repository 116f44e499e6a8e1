"""Moves the label of a stored prompt: every submission that follows it is given the new version at once, or none is.

    read version and followers ──▶ check the prompt, alone and with each one's artifact and budget ──▶ one transaction: label, submissions, audit log

A submission's `formatter` is what gateways serve by, so they take the new version with the next snapshot, those of the version before too. A submission
that has begun to follow the label while the others were checked is checked as well, before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.errors import (
    BadChatTemplate,
    InvalidInput,
    MessageTooLong,
    MissingFile,
    PromptFailed,
    PromptNotFound,
)
from guanaco.prompts import Prompt, UnknownPrompt
from guanaco.stored_prompts import LabelMove, PromptLabel, read_reference
from guanaco.submissions import EventKind
from guanaco.trials import sample_turns
from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.service import Account
from guanaco_server.database.database import Database
from guanaco_server.idempotency.keeping import keep_answer
from guanaco_server.prompts.service import PromptService
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions import lifecycle
from guanaco_server.submissions.stored_prompts import queries
from guanaco_server.submissions.stored_prompts.service import (
    SAMPLE_BOT,
    PromptStore,
    find,
    read_label,
    require,
)
from guanaco_server.submissions.tables import StoredPromptLabelRow, SubmissionRow

MOVE = "move prompt label"


class PromptLabels:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        store: PromptStore,
        prompts: PromptService,
        audit: AuditLog,
    ) -> None:
        self._database = database
        self._clock = clock
        self._store = store
        self._prompts = prompts
        self._audit = audit

    async def move(
        self,
        account: Account,
        name: str,
        label: str,
        move: LabelMove,
        developer: str | None = None,
    ) -> PromptLabel:
        """Have the label name a version from now on, or the one that it named before its last move.

        Raises:
            PromptNotFound: There is no such prompt or version.
            BadPrompt: The version can make no prompt; an earlier release of the platform has stored it.
            InvalidInput: The label is a number, it was never moved, or a submission that follows it could not be served so.
        """
        if label.isdigit():
            raise InvalidInput(
                f"{label} cannot be a label: {name}@{label} names a version.",
                hint="Give it a name, such as `production`.",
            )
        owner = await self._store.owner(account, developer)
        reference = f"{name}@{label}"
        checked: set[tuple[str, str | None, int]] = set()
        while True:
            async with self._database.read() as session:
                await require(session, owner.id, name)
                row = await queries.label(session, owner.id, name, label)
                number = move.version or (row.previous if row is not None else None)
                if number is None:
                    raise InvalidInput(
                        f"{reference} has not been moved, so there is nothing to go back to.",
                        hint="Name a version.",
                    )
                wanted = read_reference(f"{name}@{number}")
                if wanted is None:
                    raise PromptNotFound(f"{name}@{number}")
                prompt = (await find(session, owner.id, wanted)).prompt
                followers = await queries.followers(session, owner.id, reference)
            if not checked and not isinstance(prompt, UnknownPrompt):
                await self._store.require_renderable(owner, prompt)
            await self._check(prompt, [one for one in followers if _kind(one) not in checked])
            checked |= {_kind(one) for one in followers}
            moved = await self._write(account, owner, name, label, number, prompt, checked)
            if moved is not None:
                return moved

    async def _check(self, prompt: Prompt, followers: Sequence[SubmissionRow]) -> None:
        """Check the prompt as a submission's own is, once for each artifact and budget; InvalidInput names the submission."""
        one_of_each = {_kind(one): one for one in followers}
        for row in one_of_each.values():
            if row.artifact_key is None:  # its pipeline checks it
                continue
            try:
                await self._prompts.check_served(prompt, row.artifact_key, SAMPLE_BOT)
                await self._prompts.render(
                    formatter=prompt,
                    artifact_key=row.artifact_key,
                    max_input_tokens=row.params.max_input_tokens,
                    bot=SAMPLE_BOT,
                    user_name="You",
                    turns=sample_turns(3),
                )
            except (MissingFile, BadChatTemplate, PromptFailed, MessageTooLong) as error:
                raise InvalidInput(
                    f"{row.id} could not be served with it: {error.detail}",
                    hint="Nothing was changed. Push a version that suits every submission of the label.",
                ) from None

    async def _write(
        self,
        account: Account,
        owner: Account,
        name: str,
        label: str,
        number: int,
        prompt: Prompt,
        checked: set[tuple[str, str | None, int]],
    ) -> PromptLabel | None:
        """Move the label; None if a submission follows it that was not checked."""
        now = self._clock.now()
        reference = f"{name}@{label}"

        async def write(session: AsyncSession) -> PromptLabel | None:
            await require(session, owner.id, name, is_locked=True)
            followers = await queries.followers(session, owner.id, reference, is_locked=True)
            if any(_kind(one) not in checked for one in followers):
                return None
            row = await queries.label(session, owner.id, name, label)
            if row is None:
                row = StoredPromptLabelRow(
                    account_id=owner.id, name=name, label=label, previous=None, number=number
                )
                session.add(row)
            elif row.number != number:
                row.previous, row.number = row.number, number
            row.moved_by, row.moved_at = account.name, now
            for one in followers:
                before = one.prompt_version
                one.formatter, one.prompt_version, one.updated_at = prompt, number, now
                await lifecycle.append_event(
                    session,
                    one.id,
                    EventKind.LOG,
                    f"Its prompt {reference} is version {number} now; it was {before}.",
                    at=now,
                )
            await self._audit.note(session, account, MOVE, f"{reference} of {owner.name}: {number}")
            found = read_label(row, [one.id for one in followers])
            await keep_answer(session, found)
            return found

        return await self._database.write_unit(write)


def _kind(row: SubmissionRow) -> tuple[str, str | None, int]:
    """Return what a check depends on; each submission without an artifact is one of its own."""
    return (
        row.id if row.artifact_key is None else "",
        row.artifact_key,
        row.params.max_input_tokens,
    )
