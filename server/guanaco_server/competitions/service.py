"""Makes competitions for admins, and shows them to everybody. ``open`` always exists."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.competitions import OPEN, Competition, CompetitionRequest
from guanaco.contract import carry_unknown_fields, known_fields
from guanaco.errors import CompetitionClosed, CompetitionNotFound, InvalidInput, NewerVersionNeeded
from guanaco_server.accounts.audit import Actor, AuditLog
from guanaco_server.accounts.service import Account
from guanaco_server.competitions import queries
from guanaco_server.competitions.entry import Entrant, admitted
from guanaco_server.competitions.tables import CompetitionRow
from guanaco_server.database.database import Database
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.service import SubmissionService

OPEN_COMPETITION = Competition(
    id=OPEN, name="Open", starts_at=datetime(2000, 1, 1, tzinfo=UTC), ends_at=None
)

OPEN_ALWAYS_RUNS = (
    "The open competition always runs: it has no end, and its beginning is not in the future."
)
CREATE, CHANGE, FREEZE = "create competition", "change competition", "freeze competition"


class CompetitionService:
    def __init__(
        self, database: Database, clock: Clock, audit: AuditLog, submissions: SubmissionService
    ) -> None:
        self._submissions = submissions
        self._database = database
        self._clock = clock
        self._audit = audit

    async def list_all(self) -> list[Competition]:
        """Return ``open`` first, then the others in the order in which they were made."""
        async with self._database.read() as session:
            found = {row.id: _read(row) for row in await queries.all_rows(session)}
        return list(({OPEN: OPEN_COMPETITION} | found).values())

    async def list_running(self) -> list[Competition]:
        """Return the competitions that take conversations now."""
        return [one for one in await self.list_all() if self._is_running(one)]

    async def queue_for(self, entrant: Entrant) -> str | None:
        """Return the queue in which a submission's model server waits for its place: that of the newest running competition that names one and admits it."""
        for competition in reversed(await self.list_running()):
            if competition.queue and admitted(competition, [entrant]):
                return competition.queue
        return None

    async def find(self, competition_id: str) -> Competition:
        async with self._database.read() as session:
            row = await queries.by_id(session, competition_id)
        if row is not None:
            return _read(row)
        if competition_id == OPEN:
            return OPEN_COMPETITION
        raise CompetitionNotFound(competition_id)

    async def require_running(self, competition_id: str) -> Competition:
        """Return a competition; CompetitionClosed before its window, after it, and once it is frozen."""
        competition = await self.find(competition_id)
        if not self._is_running(competition):
            window = competition.starts_at, competition.ends_at
            raise CompetitionClosed.outside(competition_id, *window, self._clock.now())
        return competition

    async def hold_open(self, session: AsyncSession, competition_ids: Collection[str]) -> None:
        """Keep these competitions from being frozen before the caller's transaction ends. ``open`` never is."""
        await queries.hold(session, set(competition_ids) - {OPEN})

    async def is_frozen(self, session: AsyncSession, competition_id: str) -> bool:
        """Return whether the competition was frozen before the caller's transaction, which holds it open."""
        return bool(await queries.frozen(session, {competition_id}))

    async def freeze(self, competition_id: str, by: Actor) -> Competition:
        """End a competition for good; InvalidInput for ``open``, CompetitionClosed before its beginning. Freezing it again changes nothing."""
        if competition_id == OPEN:
            raise InvalidInput("The open competition has no end, so it cannot be frozen.")

        async def freeze(session: AsyncSession) -> Competition:
            row = await queries.locked(session, competition_id)
            if row is None:
                raise CompetitionNotFound(competition_id)
            if row.rules.ranking.is_unknown:
                raise NewerVersionNeeded(f"the rules of the competition {competition_id}")
            if row.frozen_at is None:
                require_begun(_read(row), self._clock.now())
                row.frozen_at = row.updated_at = self._clock.now()
                await self._audit.note(session, by, FREEZE, competition_id)
            return _read(row)

        return await self._database.write_unit(freeze)

    async def put(
        self, competition_id: str, request: CompetitionRequest, by: Actor | None = None
    ) -> Competition:
        """Make a competition or change its rules; CompetitionClosed once it is frozen. ``by`` is None for the platform.

        InvalidInput for weights of submissions that do not exist, and for a window of ``open`` that ends or is to come.
        """
        now = self._clock.now()
        if competition_id == OPEN and not always_runs(request, now):
            raise InvalidInput(OPEN_ALWAYS_RUNS)

        async def put(session: AsyncSession) -> Competition:
            row = await queries.by_id(session, competition_id)
            before = None if row is None else row.rules
            known = {} if before is None else before.assignment.weights
            await self._require_submissions(session, set(request.assignment.weights) - set(known))
            if row is None:
                row = CompetitionRow(id=competition_id, created_at=now)
                session.add(row)
            elif row.frozen_at is not None:
                raise CompetitionClosed.frozen(competition_id)
            row.rules = request if before is None else carry_unknown_fields(before, request)
            row.updated_at = now
            if by is not None and before != row.rules:
                action = CHANGE if before else CREATE
                await self._audit.note(session, by, action, _noted(competition_id, before, request))
            return _read(row)

        return await self._database.write_unit(put)

    async def with_ids(self, account: Account, request: CompetitionRequest) -> CompetitionRequest:
        """Replace the aliases in its weights by the submissions that they mean now. Raise InvalidInput where two names mean one."""
        if not any("@" in name for name in request.assignment.weights):
            return request
        weights: dict[str, float] = {}
        for name, weight in request.assignment.weights.items():
            submission_id = await self._submissions.aliases.resolve(account, name)
            if submission_id in weights:
                raise InvalidInput(f"assignment.weights names {submission_id} twice.")
            weights[submission_id] = weight
        assignment = request.assignment.model_copy(update={"weights": weights})
        return request.model_copy(update={"assignment": assignment})

    async def _require_submissions(self, session: AsyncSession, named: Collection[str]) -> None:
        unknown = sorted(set(named) - set(await self._submissions.catalog.params(session, named)))
        if unknown:
            raise InvalidInput(
                f"assignment.weights names no submission: {', '.join(unknown)}.",
                hint="`guanaco submissions` lists the ids.",
            )

    def _is_running(self, competition: Competition) -> bool:
        return competition.frozen_at is None and competition.is_running(self._clock.now())


def always_runs(request: CompetitionRequest, now: datetime) -> bool:
    """Return whether a competition of these rules runs from now on without end."""
    return request.ends_at is None and request.starts_at <= now


def require_begun(competition: Competition, now: datetime) -> None:
    """Raise CompetitionClosed for a competition that is still to come: its ranking would be empty for good."""
    if now < competition.starts_at:
        raise CompetitionClosed.not_begun(competition.id, competition.starts_at)


def _noted(
    competition_id: str, before: CompetitionRequest | None, after: CompetitionRequest
) -> str:
    """Describe a change for the audit log, with the names of the changed rules."""
    if before is None:
        return competition_id
    names = type(after).model_fields
    changed = [name for name in names if getattr(before, name) != getattr(after, name)]
    return f"{competition_id}: {', '.join(changed)}"


def _read(row: CompetitionRow) -> Competition:
    return Competition(id=row.id, frozen_at=row.frozen_at, **known_fields(row.rules))
