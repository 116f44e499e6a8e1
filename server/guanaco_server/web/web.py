"""The pages' parts, put together from the platform's services."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from jinja2 import BytecodeCache

from guanaco.bots import BOTS
from guanaco.chat import Bot
from guanaco_server.accounts.service import AccountService
from guanaco_server.chat.conversations.service import ConversationService
from guanaco_server.chat.gateway.replies import ReplyService
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.feedback.service import FeedbackService
from guanaco_server.leaderboard.history import HistoryReader
from guanaco_server.runtime.clock import Clock
from guanaco_server.settings import WebSettings
from guanaco_server.submissions.events import EventFeed
from guanaco_server.submissions.service import SubmissionService
from guanaco_server.web.assets import Assets
from guanaco_server.web.beta_chat import BetaChat
from guanaco_server.web.boards import FRESH_S, BoardReader, Boards
from guanaco_server.web.bots import read_bots
from guanaco_server.web.guards import Guards
from guanaco_server.web.hooks import WebHooks
from guanaco_server.web.ratings import RatingReader
from guanaco_server.web.rendering import Pages
from guanaco_server.web.sessions import SessionService


@dataclass(frozen=True)
class WebOptions:
    bots: Mapping[str, Bot] = field(default_factory=lambda: BOTS)
    session_lifetime: timedelta = timedelta(days=7)
    is_https: bool = False
    board_fresh_s: float = FRESH_S
    compiled_pages: BytecodeCache | None = None

    @staticmethod
    def of(settings: WebSettings) -> WebOptions:
        """InvalidSettings where the bots' file cannot be used."""
        return WebOptions(
            bots=read_bots(settings.web_bots),
            session_lifetime=timedelta(hours=settings.web_session_hours),
            is_https=settings.web_https,
        )


class Web:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        accounts: AccountService,
        submissions: SubmissionService,
        events: EventFeed,
        deployments: DeploymentService,
        competitions: CompetitionService,
        board: BoardReader,
        history: HistoryReader,
        conversations: ConversationService,
        replies: ReplyService,
        feedback: FeedbackService,
        options: WebOptions | None = None,
        hooks: WebHooks | None = None,
    ) -> None:
        options = options or WebOptions()
        self.hooks = hooks or WebHooks()
        self.clock = clock
        self.accounts = accounts
        self.submissions = submissions
        self.events = events
        self.deployments = deployments
        self.competitions = competitions
        self.assets = Assets()
        self.pages = Pages(self.assets, clock, options.compiled_pages)
        self.sessions = SessionService(database, clock, accounts, options.session_lifetime)
        self.boards = Boards(board, options.board_fresh_s)
        self.ratings = RatingReader(feedback)
        self.history = history
        self.chat = BetaChat(
            database,
            clock,
            accounts,
            conversations,
            replies,
            feedback,
            options.bots,
            self.hooks.erase,
        )
        if self.hooks.on_erase is not None:
            self.hooks.on_erase(self.chat.forget_user)
        self.guards = Guards(self.sessions, self.chat, options.is_https)
