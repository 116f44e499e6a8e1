"""Every way Guanaco says no.

GuanacoError
├── InvalidInput                 a value is out of range, a field is missing or unknown
│   ├── InvalidFormatter         a prompt template that may not be filled
│   ├── ConsentRequired          the user has not agreed to talk to an experimental model
│   ├── MessageTooLong           does not fit beside the persona into max_input_tokens
│   ├── ModelRefused             the model server is well, and will not have the request
│   ├── NoSuchGpu                the platform, or its table, has no GPU of that type
│   ├── RewardUnusable           the submission named as reward model cannot be one for this developer
│   ├── PayloadTooLarge          the request's body is over the limit
│   └── MethodNotAllowed         another HTTP method is meant for that path
├── Unauthenticated              no key, or one that is wrong or revoked
├── Forbidden                    a valid key whose role does not allow this
├── TooManyAttempts              the same was tried too often in a short time
├── NotFound                     SubmissionNotFound, ConversationNotFound, KeyNotFound,
│                                ReportNotFound (no stress report yet),
│                                ArtifactNotFound, CompetitionNotFound, WebhookNotFound,
│                                FeedbackNotFound, AccountNotFound, ExperimentNotFound,
│                                SeasonNotFound (not frozen), FlagNotFound
├── Conflict
│   ├── IllegalTransition        the submission's status does not allow this
│   ├── IdempotencyConflict      the same Idempotency-Key with another body
│   ├── ConversationBusy         a reply is still being written
│   ├── AlreadyRated, NothingToRegenerate
│   ├── RewardInUse              live submissions are served with this reward model
│   ├── ExperimentConflict       its name is taken, it has run, or another has its users
│   ├── CompetitionClosed        its window has not begun, or is over, or it is frozen
│   ├── AmbiguousUser            users of several backends have that id
│   └── AccountRoleConflict      the account exists with another role
├── Unavailable                  trying again later can help
│   ├── NoModelAvailable         no submission can take a conversation now
│   ├── ModelUnavailable         this submission's model server does not answer
│   ├── ModelWaking              it was scaled to zero and is starting again
│   ├── ModelTimedOut            it answered too late
│   ├── Overloaded               every model server of the submission, or its template, has as much to do as it can hold
│   ├── DatabaseUnavailable      the database does not answer; nothing was changed
│   ├── PromptFailed             the submission's own template makes no prompt of this conversation
│   ├── ServerUnreachable        (client) no Guanaco at that URL
│   ├── SchemaNotReady           nobody has migrated the database
│   ├── WorkerGivenUp            this worker was silent for too long: another has its work
│   └── DataDirInUse             another platform runs on the same data folder
├── TooManyRatings               a user rates faster than a person does
├── SubmissionFailure            a pipeline stage ended badly; says whom to blame
│   ├── HubUnreachable           (chance) the Hugging Face Hub did not answer
│   ├── StoreUnreachable         (chance) the artifact store did not answer
│   ├── ClusterUnreachable       (chance) the Kubernetes API did not answer
│   ├── ClusterRefused           (platform) it has no room, no such image, or does not allow it
│   ├── RepoNotFound, RepoGated, RevisionNotFound, PickleWeights, MissingFile, CorruptWeights,
│   │   CorruptConfig, RemoteCode, UnsupportedArchitecture, UnsupportedAdapter, UnsupportedTokenizer,
│   │   BadChatTemplate, BadPrompt, ModelTooLarge, ContextTooLong          (developer)
│   ├── DiskFull, SerializerDied, EngineMissing                            (platform)
│   ├── NoRecipe                 (platform) no GPUs of the platform can serve the model as it is wanted
│   ├── BudgetExceeded           (developer) the developer's GPUs have cost the month's budget
│   ├── ModelServerDied          (developer) it could not start or kept dying
│   ├── ModelServerTooSlow       (developer) not ready within the time allowed
│   ├── ContentCheckFailed       (developer) it serves, but what it says cannot be used
│   ├── QuantizationUnsupported  (developer) the model cannot be quantized so when it is served
│   ├── QuantizationTooLossy     (developer) quantized, it predicts text worse; both figures are in it
│   ├── StressCheckFailed        (developer) too slow or too many errors; the figures are in it
│   └── StageFault               (platform) an unforeseen error; the log has its id
├── InvalidSettings              the platform cannot start as configured
├── ExportUnsupported            this server cannot write that format
├── LibraryMissing               (client) an optional package is not installed
└── InternalFault                an unforeseen error, logged under an id

The JSON form is ``{"error": code, "detail": sentence, "hint": next step or null}``.
"""

from __future__ import annotations

import math

from guanaco.conflicts import AccountRoleConflict as AccountRoleConflict
from guanaco.conflicts import AlreadyRated as AlreadyRated
from guanaco.conflicts import AmbiguousUser as AmbiguousUser
from guanaco.conflicts import CompetitionClosed as CompetitionClosed
from guanaco.conflicts import Conflict as Conflict
from guanaco.conflicts import ConversationBusy as ConversationBusy
from guanaco.conflicts import ExperimentConflict as ExperimentConflict
from guanaco.conflicts import IdempotencyConflict as IdempotencyConflict
from guanaco.conflicts import IllegalTransition as IllegalTransition
from guanaco.conflicts import NothingToRegenerate as NothingToRegenerate
from guanaco.conflicts import RewardInUse as RewardInUse
from guanaco.error_base import Blame as Blame
from guanaco.error_base import GuanacoError as GuanacoError
from guanaco.error_base import error_classes as error_classes
from guanaco.failures import BadChatTemplate as BadChatTemplate
from guanaco.failures import BadPrompt as BadPrompt
from guanaco.failures import BudgetExceeded as BudgetExceeded
from guanaco.failures import ClusterRefused as ClusterRefused
from guanaco.failures import ClusterUnreachable as ClusterUnreachable
from guanaco.failures import ContentCheckFailed as ContentCheckFailed
from guanaco.failures import ContextTooLong as ContextTooLong
from guanaco.failures import CorruptConfig as CorruptConfig
from guanaco.failures import CorruptWeights as CorruptWeights
from guanaco.failures import DiskFull as DiskFull
from guanaco.failures import EngineMissing as EngineMissing
from guanaco.failures import HubUnreachable as HubUnreachable
from guanaco.failures import MissingFile as MissingFile
from guanaco.failures import ModelServerDied as ModelServerDied
from guanaco.failures import ModelServerTooSlow as ModelServerTooSlow
from guanaco.failures import ModelTooLarge as ModelTooLarge
from guanaco.failures import NoRecipe as NoRecipe
from guanaco.failures import PickleWeights as PickleWeights
from guanaco.failures import QuantizationTooLossy as QuantizationTooLossy
from guanaco.failures import QuantizationUnsupported as QuantizationUnsupported
from guanaco.failures import RemoteCode as RemoteCode
from guanaco.failures import RepoGated as RepoGated
from guanaco.failures import RepoNotFound as RepoNotFound
from guanaco.failures import RevisionNotFound as RevisionNotFound
from guanaco.failures import SerializerDied as SerializerDied
from guanaco.failures import StageFault as StageFault
from guanaco.failures import StoreUnreachable as StoreUnreachable
from guanaco.failures import StressCheckFailed as StressCheckFailed
from guanaco.failures import SubmissionFailure as SubmissionFailure
from guanaco.failures import UnsupportedAdapter as UnsupportedAdapter
from guanaco.failures import UnsupportedArchitecture as UnsupportedArchitecture
from guanaco.failures import UnsupportedTokenizer as UnsupportedTokenizer
from guanaco.not_found import AccountNotFound as AccountNotFound
from guanaco.not_found import ArtifactNotFound as ArtifactNotFound
from guanaco.not_found import CompetitionNotFound as CompetitionNotFound
from guanaco.not_found import ConversationNotFound as ConversationNotFound
from guanaco.not_found import ExperimentNotFound as ExperimentNotFound
from guanaco.not_found import FeedbackNotFound as FeedbackNotFound
from guanaco.not_found import FlagNotFound as FlagNotFound
from guanaco.not_found import KeyNotFound as KeyNotFound
from guanaco.not_found import NotFound as NotFound
from guanaco.not_found import ReportNotFound as ReportNotFound
from guanaco.not_found import SeasonNotFound as SeasonNotFound
from guanaco.not_found import SubmissionNotFound as SubmissionNotFound
from guanaco.not_found import WebhookNotFound as WebhookNotFound
from guanaco.unavailable import DatabaseUnavailable as DatabaseUnavailable
from guanaco.unavailable import DataDirInUse as DataDirInUse
from guanaco.unavailable import ModelTimedOut as ModelTimedOut
from guanaco.unavailable import ModelUnavailable as ModelUnavailable
from guanaco.unavailable import ModelWaking as ModelWaking
from guanaco.unavailable import NoModelAvailable as NoModelAvailable
from guanaco.unavailable import Overloaded as Overloaded
from guanaco.unavailable import PromptFailed as PromptFailed
from guanaco.unavailable import SchemaNotReady as SchemaNotReady
from guanaco.unavailable import ServerUnreachable as ServerUnreachable
from guanaco.unavailable import Unavailable as Unavailable
from guanaco.unavailable import WorkerGivenUp as WorkerGivenUp


class InvalidInput(GuanacoError):
    code = "invalid_input"


class InvalidFormatter(InvalidInput):
    code = "invalid_formatter"


class ConsentRequired(InvalidInput):
    code = "consent_required"

    def __init__(self) -> None:
        super().__init__(
            "The user has not consented to talk to an experimental model.",
            hint="Ask the user first, then send consent: true.",
        )


class MessageTooLong(InvalidInput):
    code = "message_too_long"


class ModelRefused(InvalidInput):
    code = "model_refused"

    def __init__(self, submission_id: str) -> None:
        super().__init__(
            f"The model server of {submission_id} refuses this request: it will not fit, or asks for what it does not do.",
            hint="A shorter message or other parameters may be accepted.",
        )


class NoSuchGpu(InvalidInput):
    code = "no_such_gpu"

    def __init__(self, name: str, known: list[str]) -> None:
        there = f"there are {', '.join(known)}" if known else "the platform has none configured"
        super().__init__(f"There is no GPU of the type {name[:40]!r} here: {there}.")


class RewardUnusable(InvalidInput):
    code = "reward_unusable"

    def __init__(self, reward: str, why: str) -> None:
        super().__init__(
            f"{reward} cannot be the reward model: {why}.",
            hint="Name a deployed reward model of your own, or leave it out for the platform's.",
        )


class PayloadTooLarge(InvalidInput):
    code = "payload_too_large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            f"The request's body is over {limit_bytes:,} bytes.", hint="Send a shorter message."
        )


class MethodNotAllowed(InvalidInput):
    code = "method_not_allowed"
    allowed: str = ""

    def __init__(self, method: str, path: str, allowed: str) -> None:
        """``allowed`` are the methods that may be used, with commas between."""
        super().__init__(
            f"{method} is not for {path}.", hint=f"Use {allowed}." if allowed else None
        )
        self.allowed = allowed


class Unauthenticated(GuanacoError):
    code = "unauthenticated"

    def __init__(self, detail: str = "The API key is missing, wrong or revoked.") -> None:
        super().__init__(
            detail,
            hint="`guanaco login` stores a key; an operator makes one with `guanaco keys create`.",
        )


class Forbidden(GuanacoError):
    code = "forbidden"


class TooManyAttempts(GuanacoError):
    code = "too_many_attempts"
    retry_after_s: float | None = None

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(
            "That was tried too often in a short time.",
            hint=f"Try again in {math.ceil(retry_after_s)} s.",
        )
        self.retry_after_s = retry_after_s


class TooManyRatings(GuanacoError):
    code = "too_many_ratings"
    retry_after_s: float | None = None

    def __init__(self, limit: int, retry_after_s: float) -> None:
        super().__init__(
            f"This user has given {limit} ratings within a minute, which is the limit.",
            hint="Send it again in a minute.",
        )
        self.retry_after_s = retry_after_s


class InvalidSettings(GuanacoError):
    code = "invalid_settings"


class ExportUnsupported(GuanacoError):
    code = "export_unsupported"

    def __init__(self, form: str, remedy: str) -> None:
        super().__init__(
            f"This server cannot write {form} files.",
            hint=f"Take jsonl or csv; an operator adds it with `{remedy}`.",
        )


class LibraryMissing(GuanacoError):
    code = "library_missing"

    def __init__(self, what: str, packages: str) -> None:
        super().__init__(f"{what} needs {packages}.", hint=f"`pip install {packages.split()[0]}`")


class InternalFault(GuanacoError):
    code = "internal_fault"

    def __init__(self, incident: str) -> None:
        super().__init__(
            f"Something went wrong on the platform (incident {incident}).",
            hint="Tell the operator the incident number.",
        )
