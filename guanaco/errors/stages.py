"""The errors that end a pipeline stage. Each says who can do something about it, and whether a retry can help."""

from __future__ import annotations

from typing import ClassVar

from guanaco.errors.tree import Blame, GuanacoError


class SubmissionFailure(GuanacoError):
    """A stage ended badly. ``blame`` and ``is_retryable`` say what can be done about it."""

    code = "submission_failure"
    blame: ClassVar[Blame] = Blame.DEVELOPER
    is_retryable: ClassVar[bool] = False


class HubUnreachable(SubmissionFailure):
    code = "hub_unreachable"
    blame = Blame.CHANCE
    is_retryable = True


class RepoNotFound(SubmissionFailure):
    code = "repo_not_found"

    def __init__(self, repo: str) -> None:
        super().__init__(
            f"There is no model repo {repo} on the Hub, or it is private.",
            hint="Check the spelling. A private repo is opened by your own Hub token: `guanaco submit … --hub-token`.",
        )


class RepoGated(SubmissionFailure):
    code = "repo_gated"

    def __init__(self, repo: str) -> None:
        super().__init__(
            f"The repo {repo} is gated, and is opened only by a Hub token that was granted access.",
            hint="Ask for access on the Hub, then give your own token: `guanaco submit … --hub-token`.",
        )


class HubTokenGone(SubmissionFailure):
    code = "hub_token_gone"

    def __init__(self, repo: str) -> None:
        super().__init__(
            f"The repo {repo} opened for an earlier run and does not now: if it is private or gated, its Hub token must be given again, for a token is deleted when it has been used.",
            hint="`guanaco redeploy ID --hub-token`; if it was deleted or renamed on the Hub, submit the new one.",
        )


class HubTokenRefused(SubmissionFailure):
    code = "hub_token_refused"

    def __init__(self, repo: str) -> None:
        super().__init__(
            f"The Hub refuses the token that was given for {repo}.",
            hint="Give one that is valid and may read the repo: `guanaco redeploy … --hub-token`.",
        )


class StorageQuotaExceeded(SubmissionFailure):
    code = "storage_quota_exceeded"

    def __init__(self, used: int, wanted: int, limit: int) -> None:
        super().__init__(
            f"The model has {wanted:,} bytes of weights, your other submissions have {used:,}, and your limit is {limit:,}.",
            hint="`guanaco teardown ID` makes room; then `guanaco redeploy`.",
        )


class RevisionNotFound(SubmissionFailure):
    code = "revision_not_found"

    def __init__(self, repo: str, revision: str) -> None:
        super().__init__(
            f"The repo {repo} has no revision {revision}.", hint="Name a branch, a tag or a commit."
        )


class PickleWeights(SubmissionFailure):
    code = "pickle_weights"


class MissingFile(SubmissionFailure):
    code = "missing_file"


class CorruptWeights(SubmissionFailure):
    code = "corrupt_weights"


class CorruptConfig(SubmissionFailure):
    code = "corrupt_config"


class RemoteCode(SubmissionFailure):
    code = "remote_code"


class UnsupportedArchitecture(SubmissionFailure):
    code = "unsupported_architecture"


class UnsupportedAdapter(SubmissionFailure):
    code = "unsupported_adapter"


class UnsupportedTokenizer(SubmissionFailure):
    code = "unsupported_tokenizer"


class BadChatTemplate(SubmissionFailure):
    code = "bad_chat_template"


class BadPrompt(SubmissionFailure):
    code = "bad_prompt"


class ModelTooLarge(SubmissionFailure):
    code = "model_too_large"


class ContextTooLong(SubmissionFailure):
    code = "context_too_long"


class DiskFull(SubmissionFailure):
    code = "disk_full"
    blame = Blame.PLATFORM


class StoreUnreachable(SubmissionFailure):
    """``is_lasting`` where only a person can end it: wrong credentials, no such bucket, a missing right."""

    code = "store_unreachable"
    blame = Blame.CHANCE
    is_retryable = True
    is_lasting: bool = False

    def __init__(self, detail: str, *, hint: str | None = None, is_lasting: bool = False) -> None:
        super().__init__(detail, hint=hint)
        self.is_lasting = is_lasting


class ClusterUnreachable(SubmissionFailure):
    code = "cluster_unreachable"
    blame = Blame.CHANCE
    is_retryable = True


class ClusterRefused(SubmissionFailure):
    code = "cluster_refused"
    blame = Blame.PLATFORM


class SerializerDied(SubmissionFailure):
    code = "serializer_died"
    blame = Blame.PLATFORM
    is_retryable = True


class NoRecipe(SubmissionFailure):
    code = "no_recipe"
    blame = Blame.PLATFORM


class BudgetExceeded(SubmissionFailure):
    code = "budget_exceeded"

    def __init__(self, developer: str, spent: float, budget: float, currency: str) -> None:
        super().__init__(
            f"The GPUs of {developer} have cost {spent:,.2f} {currency} this month, and the budget is {budget:,.2f} {currency}.",
            hint="Tear submissions down and wait for the next month, or ask the operator for a larger budget.",
        )


class EngineMissing(SubmissionFailure):
    code = "engine_missing"
    blame = Blame.PLATFORM


class ModelServerDied(SubmissionFailure):
    code = "model_server_died"


class ModelServerTooSlow(SubmissionFailure):
    code = "model_server_too_slow"


class ContentCheckFailed(SubmissionFailure):
    code = "content_check_failed"


class QuantizationUnsupported(SubmissionFailure):
    code = "quantization_unsupported"


class QuantizationTooLossy(SubmissionFailure):
    code = "quantization_too_lossy"


class StressCheckFailed(SubmissionFailure):
    code = "stress_check_failed"


class ModelServerLost(SubmissionFailure):
    """The model server went away while it was checked, which says nothing of the model."""

    code = "model_server_lost"
    blame = Blame.PLATFORM
    is_retryable = True


class CanaryWorse(SubmissionFailure):
    code = "canary_worse"


class StageFault(SubmissionFailure):
    code = "stage_fault"
    blame = Blame.PLATFORM
    is_retryable = True
