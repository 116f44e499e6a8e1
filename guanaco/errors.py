"""Every way Guanaco says no.

GuanacoError
├── InvalidInput                 a value is out of range, a field is missing or unknown
│   ├── InvalidFormatter         a prompt template that may not be filled
│   ├── ConsentRequired          the user has not agreed to talk to an experimental model
│   ├── MessageTooLong           does not fit beside the persona into max_input_tokens
│   ├── NoSuchGpu                the platform, or its table, has no GPU of that type
│   ├── RewardUnusable           the submission named as reward model cannot be one for this developer
│   └── PayloadTooLarge          the request's body is over the limit
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
│   ├── Overloaded               every model server of the submission has as much to do as it can hold
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


class NotFound(GuanacoError):
    code = "not_found"


class CompetitionNotFound(NotFound):
    code = "competition_not_found"

    def __init__(self, competition_id: str) -> None:
        super().__init__(
            f"No competition {competition_id}.", hint="GET /api/v1/competitions lists them."
        )


class ExperimentNotFound(NotFound):
    code = "experiment_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"No experiment {name}.", hint="`guanaco experiments list` shows them.")


class SeasonNotFound(NotFound):
    code = "season_not_found"

    def __init__(self, competition_id: str) -> None:
        super().__init__(
            f"The competition {competition_id} has no final ranking yet.",
            hint=f"`guanaco competitions freeze {competition_id}` makes it.",
        )


class FlagNotFound(NotFound):
    code = "flag_not_found"

    def __init__(self, feedback_id: str) -> None:
        super().__init__(
            f"No rule has left out the rating {feedback_id}.",
            hint="GET /api/v1/votes/flags lists what was.",
        )


class SubmissionNotFound(NotFound):
    code = "submission_not_found"

    def __init__(self, submission_id: str) -> None:
        super().__init__(
            f"No submission {submission_id}.", hint="`guanaco submissions` lists yours."
        )


class ConversationNotFound(NotFound):
    code = "conversation_not_found"

    def __init__(self, conversation_id: str) -> None:
        super().__init__(f"No conversation {conversation_id}.")


class FeedbackNotFound(NotFound):
    code = "feedback_not_found"

    def __init__(self, feedback_id: str) -> None:
        super().__init__(f"No rating {feedback_id} that you may read.")


class AccountNotFound(NotFound):
    code = "account_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"No account {name}.", hint="`guanaco keys list` shows them.")


class KeyNotFound(NotFound):
    code = "key_not_found"

    def __init__(self, key_id: str) -> None:
        super().__init__(f"No API key {key_id}.", hint="`guanaco keys list` shows them.")


class ReportNotFound(NotFound):
    code = "report_not_found"

    def __init__(self, submission_id: str) -> None:
        super().__init__(
            f"{submission_id} has no stress report yet.",
            hint=f"`guanaco status {submission_id}` shows its stage.",
        )


class ArtifactNotFound(NotFound):
    code = "artifact_not_found"

    def __init__(self, key: str) -> None:
        super().__init__(
            f"There is no artifact {key}.", hint="`guanaco-artifacts list` shows what there is."
        )
        self.key = key


class WebhookNotFound(NotFound):
    code = "webhook_not_found"

    def __init__(self) -> None:
        super().__init__("You have set no webhook.", hint="`guanaco webhook set URL` sets one.")


class Conflict(GuanacoError):
    code = "conflict"


class IllegalTransition(Conflict):
    code = "illegal_transition"

    def __init__(self, submission_id: str, status: str, wanted: str) -> None:
        super().__init__(
            f"{submission_id} is {status}, so it cannot become {wanted}.",
            hint=f"`guanaco status {submission_id}` shows where it stands.",
        )


class IdempotencyConflict(Conflict):
    code = "idempotency_conflict"

    def __init__(self) -> None:
        super().__init__(
            "This Idempotency-Key was used before with another request.",
            hint="Use a new key for a new request.",
        )


class RewardInUse(Conflict):
    code = "reward_in_use"

    def __init__(self, reward: str, users: int) -> None:
        super().__init__(
            f"{reward} picks the replies of {users} live submission{'s' if users > 1 else ''}, so it cannot be torn down.",
            hint="Tear those down first.",
        )


class ConversationBusy(Conflict):
    code = "conversation_busy"

    def __init__(self) -> None:
        super().__init__(
            "A reply is still being written in this conversation.",
            hint="Send the next message when it has ended.",
        )


class CompetitionClosed(Conflict):
    code = "competition_closed"

    def __init__(self, competition_id: str) -> None:
        super().__init__(
            f"The competition {competition_id} does not run now.",
            hint="GET /api/v1/competitions shows their windows.",
        )


class ExperimentConflict(Conflict):
    code = "experiment_conflict"


class AlreadyRated(Conflict):
    code = "already_rated"

    def __init__(self) -> None:
        super().__init__("This conversation is already rated.")


class NothingToRegenerate(Conflict):
    code = "nothing_to_regenerate"

    def __init__(self) -> None:
        super().__init__("There is no user message to answer yet.", hint="Send a message first.")


class AmbiguousUser(Conflict):
    code = "ambiguous_user"

    def __init__(self) -> None:
        super().__init__(
            "Users of several backends have that id.", hint="Name the backend's account."
        )


class AccountRoleConflict(Conflict):
    code = "account_role_conflict"

    def __init__(self, name: str, role: str) -> None:
        super().__init__(
            f"The account {name} exists already, as {role}.", hint="Choose another --name."
        )


class TooManyRatings(GuanacoError):
    code = "too_many_ratings"
    retry_after_s: float | None = None

    def __init__(self, limit: int, retry_after_s: float) -> None:
        super().__init__(
            f"This user has given {limit} ratings within a minute, which is the limit.",
            hint="Send it again in a minute.",
        )
        self.retry_after_s = retry_after_s


class Unavailable(GuanacoError):
    """``retry_after_s`` is where the error knows how long it may last."""

    code = "unavailable"
    retry_after_s: float | None = None


class NoModelAvailable(Unavailable):
    code = "no_model_available"

    def __init__(self, are_full: bool = False) -> None:
        """``are_full``: some could, and have as many as their stress check showed them to hold."""
        if are_full:
            super().__init__(
                "Every submission has as many conversations as it can hold.",
                hint="Try again in a few seconds.",
            )
            return
        super().__init__(
            "No submission can take a conversation now.", hint="Try again when one is deployed."
        )


class ModelUnavailable(Unavailable):
    code = "model_unavailable"

    def __init__(self, submission_id: str) -> None:
        super().__init__(
            f"The model server of {submission_id} does not answer now.",
            hint="It is restarted by itself: try again in a minute.",
        )


class ModelWaking(Unavailable):
    code = "model_waking"

    def __init__(self, submission_id: str, waits_for: str | None, start_s: float | None) -> None:
        """``waits_for`` says why it does not start at once; ``start_s`` is how long its last start took."""
        why = f": {waits_for}" if waits_for else "."
        super().__init__(
            f"The model server of {submission_id} sleeps and is being started{why}",
            hint="Send the message again in a minute.",
        )
        self.retry_after_s = start_s


class Overloaded(Unavailable):
    code = "overloaded"
    retry_after_s = 2.0

    def __init__(self) -> None:
        super().__init__(
            "There are as many replies on their way as the model servers can hold.",
            hint="Try again in a few seconds.",
        )


class DatabaseUnavailable(Unavailable):
    code = "database_unavailable"
    retry_after_s = 2.0

    def __init__(self) -> None:
        super().__init__(
            "The platform's database does not answer.", hint="Try again in a few seconds."
        )


class PromptFailed(Unavailable):
    """``why`` is the end of a sentence."""

    code = "prompt_failed"

    def __init__(self, what: str, why: str) -> None:
        super().__init__(
            f"{what} cannot be rendered: {why}.",
            hint="The submission's developer can submit it with another prompt.",
        )
        self.what = what
        self.why = why


class ModelTimedOut(Unavailable):
    code = "model_timed_out"

    def __init__(self, submission_id: str, after_s: float) -> None:
        super().__init__(
            f"{submission_id} did not answer within {after_s:g} s.",
            hint="Try again, or regenerate the reply.",
        )


class ServerUnreachable(Unavailable):
    code = "server_unreachable"

    def __init__(self, url: str) -> None:
        super().__init__(
            f"No Guanaco server answers at {url}.",
            hint="`guanaco up` starts one; `guanaco login --url` names another.",
        )


class DataDirInUse(Unavailable):
    code = "data_dir_in_use"

    def __init__(self, data_dir: str) -> None:
        super().__init__(
            f"Another Guanaco runs on {data_dir}.",
            hint="Stop it first, or choose another --data-dir.",
        )


class SchemaNotReady(Unavailable):
    code = "schema_not_ready"

    def __init__(self, state: str, wanted: str) -> None:
        super().__init__(
            f"The database {state}, and this Guanaco needs revision {wanted}.",
            hint="`guanaco migrate` brings it there.",
        )


class WorkerGivenUp(Unavailable):
    code = "worker_given_up"

    def __init__(self, executor_id: str) -> None:
        super().__init__(
            f"Worker {executor_id} was silent for too long, and others have taken over its work.",
            hint="It may start again.",
        )


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
