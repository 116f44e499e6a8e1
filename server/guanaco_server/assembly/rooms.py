"""Builds every room of the platform, each by its own constructor, in the order in which they need each other."""

from __future__ import annotations

import sys
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from guanaco_server.accounts.room import AccountsRoom, build_accounts
from guanaco_server.alerts.room import AlertsRoom, build_alerts
from guanaco_server.artifacts.checking.room import build_checking
from guanaco_server.artifacts.room import ArtifactsRoom, build_artifacts
from guanaco_server.assembly.adapters import Adapters
from guanaco_server.characters.room import CharactersRoom, build_characters
from guanaco_server.chat.conversations import records as chat_records
from guanaco_server.chat.conversations.activity import ConversationActivity
from guanaco_server.chat.gateway.places.places import has_older_gateway
from guanaco_server.chat.gateway.places.room import PlacesRoom, build_places
from guanaco_server.chat.personas.service import erase_of_characters
from guanaco_server.chat.room import ChatRoom, build_chat
from guanaco_server.compat.room import CompatRoom, build_compat
from guanaco_server.competitions.room import CompetitionsRoom, build_competitions
from guanaco_server.costs.room import CostsRoom, build_costs
from guanaco_server.database.database import Database
from guanaco_server.deployments.reconciling.reconciler import Reconciler
from guanaco_server.deployments.room import DeploymentsRoom, build_deployments, build_reconciler
from guanaco_server.deployments.versions import ConversationStart
from guanaco_server.duels import records as duel_records
from guanaco_server.duels.counting import DuelCounts
from guanaco_server.duels.room import DuelsRoom, build_duels
from guanaco_server.experiments.room import ExperimentsRoom, build_experiments
from guanaco_server.experiments.service import Outcomes
from guanaco_server.feedback import records as feedback_records
from guanaco_server.feedback.room import FeedbackRoom, build_feedback
from guanaco_server.idempotency.room import IdempotencyRoom, build_idempotency
from guanaco_server.leaderboard.counting.readers import votes_by_variant
from guanaco_server.leaderboard.room import LeaderboardRoom, build_leaderboard
from guanaco_server.notifications.room import NotificationsRoom, build_notifications
from guanaco_server.observability.metrics import Metrics
from guanaco_server.observability.redaction import Redaction
from guanaco_server.openai.room import OpenAiRoom, build_openai
from guanaco_server.partitions.room import build_partitions
from guanaco_server.prompts.room import PromptsRoom, build_prompts
from guanaco_server.retention.room import RetentionRoom, build_retention
from guanaco_server.routing.room import RoutingRoom, build_routing
from guanaco_server.scaling.room import ScalingRoom, build_scaling
from guanaco_server.settings import Settings
from guanaco_server.stress.room import build_stress
from guanaco_server.submissions.pipeline.room import PipelineRoom, build_pipeline
from guanaco_server.submissions.rollouts.loop import CanaryVote
from guanaco_server.submissions.rollouts.room import RolloutsRoom, build_rollouts
from guanaco_server.submissions.room import SubmissionsRoom, build_submissions
from guanaco_server.web.room import WebOptions, WebRoom, build_web
from guanaco_server.workers.room import WorkersRoom, build_workers


@dataclass(frozen=True)
class Rooms:
    accounts: AccountsRoom
    idempotency: IdempotencyRoom
    workers: WorkersRoom
    deployments: DeploymentsRoom
    submissions: SubmissionsRoom
    costs: CostsRoom
    characters: CharactersRoom
    competitions: CompetitionsRoom
    leaderboard: LeaderboardRoom
    retention: RetentionRoom
    scaling: ScalingRoom
    prompts: PromptsRoom
    routing: RoutingRoom
    experiments: ExperimentsRoom
    activity: ConversationActivity
    gateway: PlacesRoom
    chat: ChatRoom
    duels: DuelsRoom
    feedback: FeedbackRoom
    notifications: NotificationsRoom
    alerts: AlertsRoom
    openai: OpenAiRoom
    compat: CompatRoom
    web: WebRoom
    artifacts: ArtifactsRoom
    pipeline: PipelineRoom
    reconciler: Reconciler
    rollouts: RolloutsRoom


def build_rooms(
    database: Database,
    adapters: Adapters,
    *,
    metrics: Metrics,
    pseudonym_key: bytes,
    web_options: WebOptions,
    settings: Settings,
) -> Rooms:
    clock, compute = (
        adapters.clock,
        adapters.compute.redacted(Redaction(settings.secrets, _folders(settings))),
    )
    model_server, store = adapters.model_server, adapters.store

    accounts = build_accounts(database, clock)
    idempotency = build_idempotency(
        database, clock, secret=pseudonym_key, account_bytes=settings.kept_answers_bytes
    )
    characters = build_characters(
        database,
        clock,
        accounts=accounts.accounts,
        audit=accounts.audit,
        on_erasing=erase_of_characters,
        settings=settings,
    )
    workers = build_workers(database, clock, settings=settings)
    configs = build_checking(store, adapters.start_child).configs
    deployments = build_deployments(
        database,
        clock,
        compute,
        model_server,
        store,
        configs=configs,
        has_older_gateway=has_older_gateway,
        settings=settings,
    )
    prompts = build_prompts(store, adapters.start_child)
    submissions = build_submissions(
        database,
        clock,
        deployments=deployments.service,
        versions=deployments.versions,
        accounts=accounts.accounts,
        audit=accounts.audit,
        prompts=prompts.service,
        absences=workers.absences,
        secret=pseudonym_key,
        settings=settings,
    )
    costs = build_costs(database, clock, settings=settings)
    competitions = build_competitions(
        database, clock, audit=accounts.audit, submissions=submissions.service
    )
    leaderboard = build_leaderboard(
        database,
        clock,
        submissions=submissions.service,
        competitions=competitions.service,
        audit=accounts.audit,
    )
    activity = ConversationActivity(database, clock)
    scaling = build_scaling(
        clock,
        compute,
        model_server,
        deployments=deployments.service,
        overview=deployments.overview,
        idle=deployments.idle,
        read_owners=submissions.service.catalog.owners,
        count_feedback=leaderboard.counts.kept,
        count_streams=activity.open_streams,
        read_races=leaderboard.races.read,
        commits=database.watch_commits(),
        settings=settings,
    )
    gateway = build_places(
        database,
        clock,
        engine_of=deployments.service.engine_of,
        capacity=scaling.capacities.known,
        read_capacities=scaling.capacities.read,
        replicas=deployments.service.replicas,
        record_use=deployments.service.record_use,
        metrics=metrics,
        settings=settings,
    )
    routing = build_routing(
        clock,
        submissions=submissions.service,
        changes=submissions.changes,
        deployments=deployments.service,
        versions=deployments.versions,
        competitions=competitions.service,
        count_votes=leaderboard.leaderboard.votes_by_competition,
        count_duels=DuelCounts(database).by_pair,
        count_turns=activity.open_streams,
        read_capacities=scaling.capacities.read,
        crowded=gateway.places.crowded,
        traffic=scaling.traffic,
        sleep_service=scaling.sleep_service,
        canaries=submissions.canaries,
        commits=database.watch_commits(),
    )
    experiments = build_experiments(
        database,
        clock,
        submissions=submissions.service,
        competitions=competitions.service,
        routing=routing.service,
        prompts=prompts.service,
        sleep_service=scaling.sleep_service,
        outcomes=Outcomes(
            votes=votes_by_variant,
            lengths=chat_records.mean_lengths,
            reply_ms=chat_records.mean_reply_ms,
        ),
    )
    partitions = build_partitions(database, clock)
    chat = build_chat(
        database,
        clock,
        model_server,
        submissions=submissions.service,
        deployments=deployments.service,
        characters=characters.service,
        competitions=competitions.service,
        periods=partitions.periods,
        places=gateway.places,
        routing=routing.service,
        traffic=scaling.traffic,
        experiments=experiments.running,
        prompts=prompts.service,
        audit=accounts.audit,
        on_erasing=idempotency.service.forget,
        on_changed=feedback_records.copy_again,
        on_deleted=duel_records.forget_messages,
        metrics=metrics,
        settings=settings,
    )
    feedback = build_feedback(
        database,
        clock,
        accounts=accounts.accounts,
        submissions=submissions.service,
        conversations=chat.conversations,
        variants=experiments.running.variants_of,
        audit=accounts.audit,
        metrics=metrics,
        ledger=adapters.ledger,
        pseudonym_key=pseudonym_key,
        on_changed=leaderboard.counter.correct,
        forget_user=leaderboard.forget,
        on_deleted=leaderboard.counter.forget_conversation,
        settings=settings,
    )
    duels = build_duels(
        database,
        clock,
        submissions=submissions.service,
        competitions=competitions.service,
        routing=routing.service,
        chat=chat,
        settings=settings,
    )
    retention = build_retention(
        database,
        clock,
        periods=partitions.periods,
        competitions=competitions.service,
        conversations=chat.conversations,
        feedback=feedback.service,
        counter=leaderboard.counter,
    )
    notifications = build_notifications(
        database,
        clock,
        events=submissions.events,
        counts=leaderboard.counts,
        changes=submissions.changes,
        settings=settings,
    )
    alerts = build_alerts(
        database,
        clock,
        read_cost=costs.service.spent,
        absences=workers.absences,
        metrics=metrics,
        settings=settings,
    )
    openai = build_openai(
        routing=routing.service,
        conversations=chat.conversations,
        replies=chat.replies,
        generator=chat.generator,
        tokenizers=prompts.tokenizers,
        aliases=submissions.service.aliases,
    )
    compat = build_compat(
        submissions=submissions.service,
        events=submissions.events,
        previews=chat.previews,
        feedback=feedback.service,
        leaderboard=leaderboard.leaderboard,
        competitions=competitions.service,
    )
    web = build_web(
        database,
        clock,
        accounts=accounts.accounts,
        audit=accounts.audit,
        submissions=submissions.service,
        quotas=submissions.quotas,
        events=submissions.events,
        deployments=deployments.service,
        competitions=competitions.service,
        leaderboard=leaderboard.leaderboard,
        history=leaderboard.history,
        stability=leaderboard.stability,
        verdicts=leaderboard.verdicts,
        seasons=leaderboard.seasons,
        flags=leaderboard.flags,
        experiments=experiments.service,
        costs=costs.service,
        alerts=alerts.service,
        conversations=chat.conversations,
        editor=chat.editor,
        replies=chat.replies,
        feedback=feedback.service,
        erasures=feedback.erasures,
        duels=duels,
        characters=characters.service,
        options=web_options,
    )
    exclusive = workers.workers.holding if settings.role == "worker" else _alone
    artifacts = build_artifacts(
        database,
        clock,
        store,
        compute,
        configs=configs,
        needed_keys=submissions.service.catalog.needed_artifacts,
        exclusive=exclusive,
        metrics=metrics,
        settings=settings,
    )
    stress = build_stress(clock, model_server, settings=settings)
    pipeline = build_pipeline(
        database,
        clock,
        adapters.hub,
        store,
        model_server,
        changes=submissions.changes,
        quotas=submissions.quotas,
        hub_tokens=submissions.hub_tokens,
        rollouts=submissions.rollouts,
        configs=configs,
        artifacts=artifacts.service,
        prompts=prompts.service,
        tokenizers=prompts.tokenizers,
        deployments=deployments.service,
        takeover=deployments.takeover,
        costs=costs.service,
        submissions=submissions.service,
        audit=accounts.audit,
        stress=stress.service,
        take_place=gateway.checks.take,
        queue_for=competitions.service.queue_for,
        list_workers=workers.workers.list_known if settings.role == "worker" else _nobody,
        exclusive=exclusive,
        metrics=metrics,
        settings=settings,
    )
    reconciler = build_reconciler(
        database,
        clock,
        compute,
        deployments=deployments.service,
        sleeping=deployments.sleeping,
        admit=scaling.admission.step,
        start_ahead=scaling.ahead.step,
        give_up=pipeline.give_up,
        settings=settings,
    )
    rollouts = build_rollouts(
        database,
        clock,
        compute,
        changes=submissions.changes,
        records=submissions.rollouts,
        service=submissions.service.rollouts,
        hub=adapters.hub,
        accounts=accounts.accounts,
        deployments=deployments.service,
        versions=deployments.versions,
        list_votes=partial(_votes, database),
        list_all_votes=leaderboard.leaderboard.votes_by_competition,
        settings=settings,
    )
    return Rooms(
        accounts=accounts,
        idempotency=idempotency,
        workers=workers,
        deployments=deployments,
        submissions=submissions,
        costs=costs,
        characters=characters,
        competitions=competitions,
        leaderboard=leaderboard,
        retention=retention,
        scaling=scaling,
        prompts=prompts,
        routing=routing,
        experiments=experiments,
        activity=activity,
        gateway=gateway,
        chat=chat,
        duels=duels,
        feedback=feedback,
        notifications=notifications,
        alerts=alerts,
        openai=openai,
        compat=compat,
        web=web,
        artifacts=artifacts,
        pipeline=pipeline,
        reconciler=reconciler,
        rollouts=rollouts,
    )


async def _votes(database: Database, submission_id: str, since: datetime) -> list[CanaryVote]:
    """List the ratings that a canary compares: of each user the first one of a conversation that began since, withdrawn or not."""
    async with database.read() as session:
        ratings = await feedback_records.given_since(session, submission_id, since)
        ratings += await feedback_records.withdrawn_of_submission(session, submission_id, since)
        begun = await chat_records.begun(session, {one.conversation_id for one in ratings})
    firsts: dict[str, CanaryVote] = {}
    for one in sorted(ratings, key=lambda one: (one.at, one.id)):
        began_at = begun.get(one.conversation_id)
        if began_at is not None and began_at >= since:
            talk = ConversationStart(one.conversation_id, began_at.timestamp())
            firsts.setdefault(one.user_key, CanaryVote(talk, one.first_up))
    return list(firsts.values())


def _folders(settings: Settings) -> tuple[Path, ...]:
    """Return the folders of this machine that no developer needs to read of."""
    return (settings.data_dir, settings.artifacts_path, settings.engine_python, Path(sys.prefix))


def _alone(_name: str) -> AbstractAsyncContextManager[None]:
    """Exclude nobody: no other process works on this database's submissions."""
    return nullcontext()


async def _nobody() -> tuple[str, ...]:
    """Outside the role of a worker, a process works alone."""
    return ()
