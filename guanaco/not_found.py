"""What is not there, or another's. A part of errors.py, which draws the whole tree."""

from __future__ import annotations

from guanaco.error_base import GuanacoError


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
