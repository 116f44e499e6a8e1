"""Makes, starts and stops experiments for admins, and computes their results.

draft → running ⇄ stopped      variants and users may change only before the first run
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median

from sqlalchemy import Subquery
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.bots import BOTS
from guanaco.contract import carry_unknown_fields, known_fields, unknown_members
from guanaco.errors import (
    BadChatTemplate,
    ExperimentConflict,
    ExperimentNotFound,
    InvalidInput,
    MissingFile,
    NewerVersionNeeded,
    PromptFailed,
)
from guanaco.estimates import Estimate
from guanaco.experiments import (
    Experiment,
    ExperimentRequest,
    ExperimentResults,
    ExperimentState,
    VariantResults,
)
from guanaco.prompts import Prompt
from guanaco.submissions import Submission
from guanaco_server.accounts.service import Account
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.experiments import queries
from guanaco_server.experiments.obstacles import ObstacleFinder
from guanaco_server.experiments.running import RunningExperiments
from guanaco_server.experiments.tables import ExperimentRow
from guanaco_server.prompts.service import PromptService, is_by_chat_template
from guanaco_server.runtime.clock import Clock
from guanaco_server.statistics.confidence_sequences import ALPHA, difference_sequence
from guanaco_server.statistics.intervals import (
    mean_interval,
    median_interval,
    newcombe_interval,
    wilson_interval,
)
from guanaco_server.statistics.votes import VoteCount
from guanaco_server.submissions.service import SubmissionService

ByVariant = Callable[[AsyncSession, Subquery], Awaitable[Mapping[str, Sequence[float]]]]


@dataclass(frozen=True)
class Outcomes:
    """Counts outcomes by variant. The subquery has ``conversation_id``, ``variant`` and ``unit``.

    ``votes`` counts one vote of each unit; the others return a mean of each unit.
    """

    votes: Callable[[AsyncSession, Subquery], Awaitable[Mapping[str, VoteCount]]]
    lengths: ByVariant
    reply_ms: ByVariant


class ExperimentService:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        submissions: SubmissionService,
        competitions: CompetitionService,
        running: RunningExperiments,
        prompts: PromptService,
        obstacles: ObstacleFinder,
        outcomes: Outcomes,
    ) -> None:
        self._database = database
        self._clock = clock
        self._submissions = submissions
        self._competitions = competitions
        self._running = running
        self._prompts = prompts
        self._obstacles = obstacles
        self._outcomes = outcomes

    async def list_all(self) -> list[Experiment]:
        """Return the experiments in the order in which they were made."""
        async with self._database.read() as session:
            found = [_read(row) for row in await queries.all_rows(session)]
        return await self._with_obstacles(found)

    async def find(self, name: str) -> Experiment:
        async with self._database.read() as session:
            found = _read(await _existing(session, name))
        return (await self._with_obstacles([found]))[0]

    async def _with_obstacles(self, experiments: Sequence[Experiment]) -> list[Experiment]:
        obstacles = await self._obstacles.find(experiments)
        return [
            one.model_copy(update={"obstacles": found})
            for one, found in zip(experiments, obstacles, strict=True)
        ]

    async def create(self, account: Account, request: ExperimentRequest) -> Experiment:
        """Make a draft; ExperimentConflict if the name is taken, also when two requests race for it."""
        request = await self._with_ids(account, request)
        await self._check(account, request)
        row = ExperimentRow(
            name=request.name,
            rules=request,
            state=ExperimentState.DRAFT,
            created_at=self._clock.now(),
        )

        async def insert(session: AsyncSession) -> None:
            session.add(row)

        try:
            await self._database.write_unit(insert)
        except IntegrityError:
            raise ExperimentConflict(
                f"There is an experiment {request.name} already.", hint="Choose another name."
            ) from None
        return _read(row)

    async def change(self, account: Account, name: str, request: ExperimentRequest) -> Experiment:
        """Change a draft; ExperimentConflict once it has run."""
        request = await self._with_ids(account, request)
        await self._check(account, request)

        async def change(session: AsyncSession) -> Experiment:
            row = (await queries.locked(session)).get(name)
            if row is None:
                raise ExperimentNotFound(name)
            _require_known_state(row)
            if row.state is not ExperimentState.DRAFT:
                raise ExperimentConflict(
                    f"{name} has run, so it stays as it is.",
                    hint="Make another experiment, with a name of its own.",
                )
            if request.name != name:
                raise ExperimentConflict(f"{name} cannot be renamed to {request.name}.")
            row.rules = carry_unknown_fields(row.rules, request)
            return _read(row)

        return await self._database.write_unit(change)

    async def start(self, name: str) -> Experiment:
        """Start an experiment; within a second every process takes part.

        Raises:
            ExperimentConflict: Another experiment has some of its users, or a model is not served.
        """
        await self._require_served(await self.find(name))

        async def start(session: AsyncSession) -> ExperimentRow:
            rows = await queries.locked(session)
            row = rows.get(name)
            if row is None:
                raise ExperimentNotFound(name)
            for other in rows.values():
                if other is not row and other.state is ExperimentState.RUNNING:
                    _require_apart(row.rules, other.rules)
            _require_known_state(row)
            if any(unknown_members(row.rules)):
                raise NewerVersionNeeded(f"the experiment {name}")
            row.state = ExperimentState.RUNNING
            row.started_at = row.started_at or self._clock.now()
            return row

        row = await self._database.write_unit(start)
        await self._running.refresh()
        return _read(row)

    async def stop(self, name: str) -> Experiment:
        """Stop taking conversations. Open ones keep their variant."""

        async def stop(session: AsyncSession) -> ExperimentRow:
            row = (await queries.locked(session)).get(name)
            if row is None:
                raise ExperimentNotFound(name)
            _require_known_state(row)
            if row.state is ExperimentState.DRAFT:
                raise ExperimentConflict(f"{name} does not run.")
            if row.state is ExperimentState.RUNNING:
                row.state, row.stopped_at = ExperimentState.STOPPED, self._clock.now()
            return row

        row = await self._database.write_unit(stop)
        await self._running.refresh()
        return _read(row)

    async def results(self, name: str) -> ExperimentResults:
        """Compute the results of all times that the experiment ran."""
        groups = queries.groups(name)
        async with self._database.read() as session:
            row = await _existing(session, name)
            found = _OutcomesByVariant(
                sizes=await queries.sizes(session, name),
                votes=await self._outcomes.votes(session, groups),
                lengths=await self._outcomes.lengths(session, groups),
                reply_ms=await self._outcomes.reply_ms(session, groups),
            )
        (obstacles,) = await self._obstacles.find([_read(row)])
        names = [variant.name for variant in row.rules.variants]
        return ExperimentResults(
            experiment=name,
            state=row.state,
            at=self._clock.now(),
            variants=[_results(each, names, found) for each in names],
            obstacles=obstacles,
        )

    async def _with_ids(self, account: Account, request: ExperimentRequest) -> ExperimentRequest:
        """Replace its models' aliases by the submissions, and its stored prompts by the versions, that they mean now."""
        variants = []
        for variant in request.variants:
            found: dict[str, object] = {}
            if variant.model is not None:
                found["model"] = await self._submissions.aliases.resolve(account, variant.model)
            if variant.prompt is not None:
                stored = self._submissions.stored_prompts
                reference, formatter = await stored.pinned(account, variant.prompt)
                if variant.formatter not in (None, formatter):
                    raise InvalidInput(
                        f"The variant {variant.name} has a formatter and a stored prompt.",
                        hint="Leave out one of them.",
                    )
                found["prompt"], found["formatter"] = reference, formatter
            variants.append(variant.model_copy(update=found))
        return request.model_copy(update={"variants": tuple(variants)})

    async def _check(self, account: Account, request: ExperimentRequest) -> None:
        """Check that everything that an experiment names exists."""
        if request.competition is not None:
            await self._competitions.find(request.competition)
        for variant in request.variants:
            model = None
            if variant.model is not None:
                model = await self._submissions.require_visible(account, variant.model)
            if variant.formatter is not None:
                await self._check_prompt(variant.name, variant.formatter, model)

    async def _check_prompt(self, variant: str, prompt: Prompt, model: Submission | None) -> None:
        """Check a prompt like a submission's own; InvalidInput if it can make no prompt."""
        bot = next(iter(BOTS.values()))
        artifact_key = model.artifact_key if model is not None else None
        try:
            if artifact_key is not None:
                await self._prompts.check_served(prompt, artifact_key, bot)
            elif not is_by_chat_template(prompt):
                await self._prompts.check(prompt, {}, bot)
            else:
                raise InvalidInput(
                    f"The variant {variant} uses a model's chat template: it needs a model of its own, with an artifact.",
                    hint="Name the submission as the variant's model.",
                )
        except (MissingFile, BadChatTemplate, PromptFailed) as error:
            raise InvalidInput(f"The variant {variant}: {error.detail}") from None

    async def _require_served(self, experiment: ExperimentRequest) -> None:
        if missing := await self._running.unserved(experiment):
            await self._running.wake(experiment)
            raise ExperimentConflict(
                f"{missing[0]} is not served now, and without it {experiment.name} would take nobody.",
                hint=f"If it slept, it is being woken: try again in a minute. `guanaco status {missing[0]}` says how it is.",
            )


@dataclass(frozen=True)
class _OutcomesByVariant:
    sizes: Mapping[str, tuple[int, int]]
    votes: Mapping[str, VoteCount]
    lengths: Mapping[str, Sequence[float]]
    reply_ms: Mapping[str, Sequence[float]]

    def votes_of(self, variant: str) -> tuple[int, int]:
        """Return thumbs up, and all votes."""
        votes = self.votes.get(variant)
        return (votes.up, votes.total) if votes else (0, 0)


def _results(variant: str, names: Sequence[str], found: _OutcomesByVariant) -> VariantResults:
    first, alpha = names[0], ALPHA / max(1, len(names) - 1)  # variants never change after the start
    users, conversations = found.sizes.get(variant, (0, 0))
    up, total = found.votes_of(variant)
    lengths, times = found.lengths.get(variant, ()), found.reply_ms.get(variant, ())
    return VariantResults(
        variant=variant,
        users=users,
        conversations=conversations,
        thumbs_up=up,
        thumbs_down=total - up,
        thumbs_up_ratio=_estimate(up / total, wilson_interval(up, total), total) if total else None,
        thumbs_up_difference=_difference(variant, first, found, newcombe_interval),
        thumbs_up_difference_always=_difference(
            variant, first, found, partial(difference_sequence, alpha=alpha)
        ),
        conversation_length=_estimate(fmean(lengths), mean_interval(lengths), len(lengths))
        if lengths
        else None,
        reply_ms=_estimate(median(times), median_interval(times), len(times)) if times else None,
    )


def _difference(
    variant: str,
    first: str,
    found: _OutcomesByVariant,
    interval: Callable[[tuple[int, int], tuple[int, int]], tuple[float, float]],
) -> Estimate | None:
    ours, theirs = found.votes_of(variant), found.votes_of(first)
    if variant == first or not ours[1] or not theirs[1]:
        return None
    difference = ours[0] / ours[1] - theirs[0] / theirs[1]
    return _estimate(difference, interval(ours, theirs), ours[1] + theirs[1])


def _estimate(value: float, interval: tuple[float, float] | None, n: int) -> Estimate:
    low, high = interval or (None, None)
    return Estimate(value=value, low=low, high=high, n=n)


def _require_known_state(row: ExperimentRow) -> None:
    if row.state.is_unknown:
        raise NewerVersionNeeded(f"the experiment {row.name}")


def _require_apart(wanted: ExperimentRequest, other: ExperimentRequest) -> None:
    if wanted.overlaps(other):
        where = other.competition or "every competition"
        raise ExperimentConflict(
            f"{other.name} runs with the users from {other.users_from:g} to {other.users_to:g} of {where},"
            f" and {wanted.name} wants some of them: two experiments at once would blur each other.",
            hint=f"Stop {other.name} first, or choose users_from and users_to beside its own.",
        )


async def _existing(session: AsyncSession, name: str) -> ExperimentRow:
    row = await queries.by_name(session, name)
    if row is None:
        raise ExperimentNotFound(name)
    return row


def _read(row: ExperimentRow) -> Experiment:
    return Experiment(
        state=row.state,
        created_at=row.created_at,
        started_at=row.started_at,
        stopped_at=row.stopped_at,
        **known_fields(row.rules),
    )
