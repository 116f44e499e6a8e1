"""Reads the persona that a conversation has, beside the original. An admin's reading of another's is in the audit log."""

from __future__ import annotations

from guanaco.personas import ConversationPersona, PersonaMethod, PersonaVersion
from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.service import Account
from guanaco_server.chat.conversations.service import require_own
from guanaco_server.chat.personas.service import best_first, versions_of
from guanaco_server.chat.tables import PersonaVersionRow
from guanaco_server.database.database import Database

READ = "read persona"


class PersonaReader:
    def __init__(self, database: Database, audit: AuditLog) -> None:
        self._database = database
        self._audit = audit

    async def read(self, account: Account, conversation_id: str) -> ConversationPersona:
        """Return the persona; the whole one where it was not shortened, or its versions were erased."""
        used = None
        versions: list[PersonaVersionRow] = []
        async with self._database.read() as session:
            row = await require_own(session, account, conversation_id)
            if row.persona_key is not None:
                versions = best_first(await versions_of(session, row.persona_key))
                used = next((one for one in versions if one.text == row.bot.memory), None)
        if row.account_id != account.id:
            await self._database.write_unit(
                lambda session: self._audit.note(session, account, READ, conversation_id)
            )
        if used is None:
            text = row.bot.memory
            return ConversationPersona(
                original=text, text=text, method=PersonaMethod.WHOLE, kept=1.0
            )
        return ConversationPersona(
            original=used.original,
            text=used.text,
            method=used.method,
            kept=used.kept,
            budget_tokens=used.budget_tokens,
            method_version=used.method_version,
            versions=tuple(map(_version, versions)),
        )


def _version(row: PersonaVersionRow) -> PersonaVersion:
    return PersonaVersion(method=row.method, text=row.text, tokens=row.tokens, kept=row.kept)
