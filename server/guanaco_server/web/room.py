"""Builds the web room: the pages, over the platform's services."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from jinja2 import BytecodeCache

from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.service import AccountService
from guanaco_server.alerts.service import AlertService
from guanaco_server.characters.service import CharacterService
from guanaco_server.chat.conversations.editing import ConversationEditor
from guanaco_server.chat.conversations.service import ConversationService
from guanaco_server.chat.gateway.replies import ReplyService
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.costs.service import CostService
from guanaco_server.database.database import Database
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.duels.room import DuelsRoom
from guanaco_server.experiments.service import ExperimentService
from guanaco_server.feedback.erasures.service import ErasureService
from guanaco_server.feedback.service import FeedbackService
from guanaco_server.leaderboard.flags.service import FlagService
from guanaco_server.leaderboard.ranking.history import ScoreHistoryReader
from guanaco_server.leaderboard.seasons.service import SeasonService
from guanaco_server.leaderboard.service import LeaderboardService
from guanaco_server.leaderboard.stability import StabilityService
from guanaco_server.leaderboard.verdict import VerdictService
from guanaco_server.runtime.clock import Clock
from guanaco_server.settings import Settings
from guanaco_server.submissions.quotas.service import QuotaService
from guanaco_server.submissions.runs.events import EventFeed
from guanaco_server.submissions.service import SubmissionService
from guanaco_server.web.access.guards import Guards
from guanaco_server.web.access.sessions import SessionService
from guanaco_server.web.assets import Assets
from guanaco_server.web.chat.beta_chat import BetaChat
from guanaco_server.web.chat.bots import WebBot, read_bots
from guanaco_server.web.chat.ongoing import OngoingReplies
from guanaco_server.web.rendering import Pages
from guanaco_server.web.views.boards import FRESH_S, Boards
from guanaco_server.web.views.ratings import RatingReader


@dataclass(frozen=True)
class WebOptions:
    """``compiled_pages`` keeps compiled templates between several rooms of one process."""

    bots: Mapping[str, WebBot]
    session_lifetime: timedelta
    is_https: bool
    may_choose_models: bool = False
    board_fresh_s: float = FRESH_S
    compiled_pages: BytecodeCache | None = None

    @staticmethod
    def of(settings: Settings) -> WebOptions:
        """InvalidSettings where the bots' file cannot be used."""
        return WebOptions(
            bots=read_bots(settings.web_bots),
            session_lifetime=timedelta(hours=settings.web_session_hours),
            is_https=settings.web_https,
            may_choose_models=settings.web_choose_models,
        )


@dataclass(frozen=True)
class WebRoom:
    clock: Clock
    accounts: AccountService
    audit: AuditLog
    submissions: SubmissionService
    quotas: QuotaService
    events: EventFeed
    deployments: DeploymentService
    competitions: CompetitionService
    seasons: SeasonService
    flags: FlagService
    experiments: ExperimentService
    costs: CostService
    alerts: AlertService
    history: ScoreHistoryReader
    stability: StabilityService
    verdicts: VerdictService
    erasures: ErasureService
    assets: Assets
    pages: Pages
    sessions: SessionService
    boards: Boards
    ratings: RatingReader
    chat: BetaChat
    ongoing: OngoingReplies
    guards: Guards
    has_replica: bool


def build_web(
    database: Database,
    clock: Clock,
    *,
    accounts: AccountService,
    audit: AuditLog,
    submissions: SubmissionService,
    quotas: QuotaService,
    events: EventFeed,
    deployments: DeploymentService,
    competitions: CompetitionService,
    leaderboard: LeaderboardService,
    history: ScoreHistoryReader,
    stability: StabilityService,
    verdicts: VerdictService,
    seasons: SeasonService,
    flags: FlagService,
    experiments: ExperimentService,
    costs: CostService,
    alerts: AlertService,
    conversations: ConversationService,
    editor: ConversationEditor,
    replies: ReplyService,
    feedback: FeedbackService,
    erasures: ErasureService,
    duels: DuelsRoom,
    characters: CharacterService,
    options: WebOptions,
) -> WebRoom:
    assets = Assets()
    sessions = SessionService(database, clock, accounts, options.session_lifetime)
    ongoing = OngoingReplies(database)
    chat = BetaChat(
        database,
        clock,
        accounts,
        conversations,
        editor,
        replies,
        feedback,
        options.bots,
        characters,
        erasures,
        ongoing,
        duels.battles,
        duels.service,
        submissions,
        may_choose_models=options.may_choose_models,
    )
    erasures.on_erase(chat.forget_user)
    return WebRoom(
        clock=clock,
        accounts=accounts,
        audit=audit,
        submissions=submissions,
        quotas=quotas,
        events=events,
        deployments=deployments,
        competitions=competitions,
        seasons=seasons,
        flags=flags,
        experiments=experiments,
        costs=costs,
        alerts=alerts,
        history=history,
        stability=stability,
        verdicts=verdicts,
        erasures=erasures,
        assets=assets,
        pages=Pages(assets, clock, options.compiled_pages),
        sessions=sessions,
        boards=Boards(leaderboard.leaderboard, options.board_fresh_s),
        ratings=RatingReader(feedback, flags),
        chat=chat,
        ongoing=ongoing,
        guards=Guards(sessions, chat, options.is_https),
        has_replica=database.has_replica,
    )
