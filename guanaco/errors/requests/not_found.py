"""The errors of requests for what does not exist, or what the caller may not see."""

from __future__ import annotations

from guanaco.errors.tree import GuanacoError


class NotFound(GuanacoError):
    code = "not_found"


class CompetitionNotFound(NotFound):
    code = "competition_not_found"

    def __init__(self, competition_id: str) -> None:
        super().__init__(
            f"No competition {competition_id}.", hint="`guanaco competitions list` lists them."
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
            f"No rule has left out a rating or duel {feedback_id}.",
            hint="`guanaco votes flags` lists what was.",
        )


class SubmissionNotFound(NotFound):
    code = "submission_not_found"

    def __init__(self, submission_id: str) -> None:
        super().__init__(
            f"No submission {submission_id}.", hint="`guanaco submissions` lists yours."
        )


class SweepNotFound(NotFound):
    code = "sweep_not_found"

    def __init__(self, sweep_id: str) -> None:
        super().__init__(f"No sweep {sweep_id}.", hint="`guanaco sweep list` lists yours.")


class CharacterNotFound(NotFound):
    code = "character_not_found"

    def __init__(self, character: str) -> None:
        super().__init__(
            f"No character {character}.",
            hint="`guanaco characters list` shows those that you may use.",
        )


class PromptNotFound(NotFound):
    code = "prompt_not_found"

    def __init__(self, prompt: str) -> None:
        super().__init__(
            f"No stored prompt {prompt}.",
            hint="`guanaco prompts list` lists yours; `guanaco prompts show NAME` their versions and labels.",
        )


class CardNotFound(NotFound):
    code = "card_not_found"

    def __init__(self, submission_id: str) -> None:
        super().__init__(
            f"{submission_id} has no model card.",
            hint="Its repo has no README.md, or was not checked yet.",
        )


class ConversationNotFound(NotFound):
    code = "conversation_not_found"

    def __init__(self, conversation_id: str) -> None:
        super().__init__(f"No conversation {conversation_id}.")


class MessageNotFound(NotFound):
    code = "message_not_found"

    def __init__(self, message_id: str) -> None:
        super().__init__(
            f"This conversation has no message {message_id}, or it was deleted or replaced."
        )


class BattleNotFound(NotFound):
    code = "battle_not_found"

    def __init__(self, battle_id: str) -> None:
        super().__init__(
            f"The conversation has no battle {battle_id}.",
            hint="`guanaco duels list` lists them.",
        )


class FeedbackNotFound(NotFound):
    code = "feedback_not_found"

    def __init__(self, feedback_id: str) -> None:
        super().__init__(f"No rating {feedback_id} that you may read.")


class NotRated(NotFound):
    code = "not_rated"

    def __init__(self) -> None:
        super().__init__(
            "This conversation has no rating.", hint="`guanaco conversations rate` gives it one."
        )


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
