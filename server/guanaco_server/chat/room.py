"""Builds the chat room: conversations, and the gateway that streams their replies."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.accounts.audit import AuditLog
from guanaco_server.characters.service import CharacterService
from guanaco_server.chat.conversations.editing import ConversationEditor, OnChanged
from guanaco_server.chat.conversations.history import HistoryCache, history_reader
from guanaco_server.chat.conversations.service import ConversationService, Eraser
from guanaco_server.chat.gateway.asking import AskService
from guanaco_server.chat.gateway.background import BackgroundModel
from guanaco_server.chat.gateway.best_of import BestOf, RewardModels
from guanaco_server.chat.gateway.generation import Deadlines, ReplyGenerator
from guanaco_server.chat.gateway.places.places import TurnPlaces
from guanaco_server.chat.gateway.replies import PreviewService, ReplyService
from guanaco_server.chat.gateway.turns.postgresql_turns import PostgresqlTurns
from guanaco_server.chat.gateway.turns.sqlite_turns import SqliteTurns
from guanaco_server.chat.gateway.turns.turn_log import TurnLog, TurnStatements
from guanaco_server.chat.memory.service import MemoryService
from guanaco_server.chat.memory.writer import SummaryWriter
from guanaco_server.chat.personas.reading import PersonaReader
from guanaco_server.chat.personas.service import PersonaShortener
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.model_server import ModelServer
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.experiments.running import RunningExperiments
from guanaco_server.observability.metrics import Metrics
from guanaco_server.partitions.service import Periods
from guanaco_server.prompts.service import PromptService
from guanaco_server.routing.replicas import ReplicaChooser
from guanaco_server.routing.service import RoutingService
from guanaco_server.runtime.clock import Clock
from guanaco_server.scaling.usage import TrafficRecorder
from guanaco_server.settings import Settings
from guanaco_server.submissions.service import SubmissionService

# How long a finished turn waits for a database that does not answer, before the client is told.
RECORD_PATIENCE_S = 60.0


@dataclass(frozen=True)
class ChatRoom:
    """``turns`` are the database's statements for whole turns, ``histories`` what is kept in memory."""

    conversations: ConversationService
    editor: ConversationEditor
    memory: MemoryService
    replies: ReplyService
    previews: PreviewService
    generator: ReplyGenerator
    best_of: BestOf
    replicas: ReplicaChooser
    histories: HistoryCache
    summaries: SummaryWriter
    personas: PersonaShortener
    persona_reader: PersonaReader
    turns: TurnStatements


def build_chat(
    database: Database,
    clock: Clock,
    model_server: ModelServer,
    *,
    submissions: SubmissionService,
    deployments: DeploymentService,
    characters: CharacterService,
    competitions: CompetitionService,
    periods: Periods,
    places: TurnPlaces,
    routing: RoutingService,
    traffic: TrafficRecorder,
    experiments: RunningExperiments,
    prompts: PromptService,
    audit: AuditLog,
    on_erasing: Eraser,
    on_changed: OnChanged,
    on_deleted: OnChanged,
    metrics: Metrics,
    settings: Settings,
) -> ChatRoom:
    """``on_erasing`` and ``on_changed`` get the ids of conversations, ``on_deleted`` those of messages, within the transaction."""
    best_of = BestOf(
        model_server,
        prompts,
        RewardModels(submissions.rewards, deployments, traffic),
        deployments.report_fault,
        metrics,
        settings.reward_timeout_s,
    )
    replicas = ReplicaChooser(
        settings.replica_max_streams, longest_queue_s=settings.first_token_timeout_s / 2
    )
    generator = ReplyGenerator(
        model_server,
        prompts,
        places,
        replicas,
        Deadlines(settings.first_token_timeout_s, settings.reply_timeout_s, settings.failover_s),
        deployments.replicas,
        deployments.model_name,
        routing.find_again,
        deployments.report_fault,
        metrics,
        best_of,
    )
    background = BackgroundModel(
        model_server,
        prompts,
        places,
        replicas,
        routing,
        deployments.model_name,
        by=settings.background_writer,
        longest_s=settings.reply_timeout_s,
    )
    personas = PersonaShortener(database, clock, prompts, background)
    conversations = ConversationService(
        database,
        clock,
        routing,
        competitions,
        periods,
        audit,
        experiments,
        prompts,
        submissions,
        characters,
        personas,
        on_erasing,
    )
    turns = _turn_statements(database)
    longest_s = (
        settings.wake_wait_s + settings.turn_wait_s + settings.reply_timeout_s + RECORD_PATIENCE_S
    )
    histories = HistoryCache()
    summaries = SummaryWriter(database, background, metrics)
    replies = ReplyService(
        history_reader(database),
        clock,
        routing,
        experiments,
        generator,
        TurnLog(turns, clock, RECORD_PATIENCE_S, longest_s),
        histories,
        summaries,
        AskService(database, clock),
    )
    conversations.on_opened(replies.remember)
    conversations.on_erased(replies.forget)
    return ChatRoom(
        conversations=conversations,
        editor=ConversationEditor(database, clock, on_changed=on_changed, on_deleted=on_deleted),
        memory=MemoryService(database, clock, audit, routing),
        replies=replies,
        previews=PreviewService(submissions, routing, generator),
        generator=generator,
        best_of=best_of,
        replicas=replicas,
        histories=histories,
        summaries=summaries,
        personas=personas,
        persona_reader=PersonaReader(database, audit),
        turns=turns,
    )


def _turn_statements(database: Database) -> TurnStatements:
    if database.engine.dialect.name == "postgresql":
        return PostgresqlTurns(database)
    return SqliteTurns(database)
