"""Builds the feedback room: ratings, their anonymized copies, and erasure."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.service import AccountService
from guanaco_server.anonymization.anonymizer import Anonymizer
from guanaco_server.chat.conversations.service import ConversationService
from guanaco_server.database.database import Database
from guanaco_server.feedback.changes import OnChanged
from guanaco_server.feedback.copies import CopyLoop, CopyService, Pseudonyms, Variants
from guanaco_server.feedback.erasures.ledger import ErasureLedger, UserHashes
from guanaco_server.feedback.erasures.service import Eraser, ErasureService, OnDeleted
from guanaco_server.feedback.service import FeedbackService
from guanaco_server.observability.metrics import Metrics
from guanaco_server.runtime.clock import Clock
from guanaco_server.settings import Settings
from guanaco_server.submissions.service import SubmissionService


@dataclass(frozen=True)
class FeedbackRoom:
    """One process at a time runs ``copy_loop``."""

    service: FeedbackService
    copies: CopyService
    copy_loop: CopyLoop
    erasures: ErasureService


def build_feedback(
    database: Database,
    clock: Clock,
    *,
    accounts: AccountService,
    submissions: SubmissionService,
    conversations: ConversationService,
    variants: Variants,
    audit: AuditLog,
    metrics: Metrics,
    ledger: ErasureLedger,
    pseudonym_key: bytes,
    on_changed: OnChanged,
    forget_user: Eraser,
    on_deleted: OnDeleted,
    settings: Settings,
) -> FeedbackRoom:
    """The three are called within the transaction that changes a rating, erases a user or deletes a conversation."""
    pseudonyms = Pseudonyms(pseudonym_key)
    copies = CopyService(
        database,
        submissions,
        conversations,
        pseudonyms,
        Anonymizer(settings.phone_regions),
        variants,
    )
    service = FeedbackService(
        database,
        clock,
        submissions,
        conversations,
        copies,
        audit,
        metrics,
        on_changed,
    )
    copy_loop = CopyLoop(copies, database.watch_commits(), clock, metrics)
    service.on_rated(copy_loop.wake)
    erasures = ErasureService(
        database,
        clock,
        accounts,
        submissions,
        conversations,
        service,
        pseudonyms,
        audit,
        ledger,
        UserHashes(pseudonym_key),
        forget_user,
        on_deleted,
    )
    return FeedbackRoom(service, copies, copy_loop, erasures)
