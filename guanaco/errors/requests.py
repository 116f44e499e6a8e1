"""The errors that reject a request: invalid input, no permission, not found, or a conflict."""

from __future__ import annotations

import math

from guanaco.errors.tree import GuanacoError
from guanaco.open_enum import spoken


class InvalidInput(GuanacoError):
    code = "invalid_input"


class InvalidCard(InvalidInput):
    code = "invalid_card"


class InvalidFormatter(InvalidInput):
    code = "invalid_formatter"


class ConsentRequired(InvalidInput):
    code = "consent_required"

    def __init__(self) -> None:
        super().__init__(
            "The user has not consented to talk to an experimental model.",
            hint='Ask the user first; then give --consent, or send `"consent": true`.',
        )


class MessageTooLong(InvalidInput):
    """``tokens`` are those of the prompt, where they are known."""

    code = "message_too_long"
    tokens: int = 0

    def __init__(self, detail: str, *, hint: str | None = None, tokens: int = 0) -> None:
        super().__init__(detail, hint=hint)
        self.tokens = tokens


class PersonaTooLong(InvalidInput):
    code = "persona_too_long"

    def __init__(self, tokens: int, room: int) -> None:
        super().__init__(
            f"The bot's persona takes {tokens:,} tokens with the prompt around it, and no model that takes conversations has room for more than {room:,}.",
            hint="Shorten the bot's memory.",
        )


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
            f"The request's body is over {limit_bytes:,} bytes.", hint="Send less in one request."
        )


class HeaderTooLarge(InvalidInput):
    code = "header_too_large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            f"The request's header is over {limit_bytes:,} bytes.",
            hint="Send fewer or shorter header lines; long texts belong in the body.",
        )


class MalformedRequest(InvalidInput):
    code = "malformed_request"


class RequestTimedOut(GuanacoError):
    code = "request_timed_out"

    def __init__(self, part: str) -> None:
        """``part`` is header or body."""
        super().__init__(
            f"The request's {part} did not come in time.", hint="Send the request again."
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


class TooManySubmissions(GuanacoError):
    code = "too_many_submissions"
    retry_after_s: float | None = None

    def __init__(self, limit: int, retry_after_s: float) -> None:
        super().__init__(
            f"You have submitted or redeployed {limit} times within an hour, which is your limit.",
            hint=f"Try again in {_minutes(retry_after_s)}; `guanaco quota` shows your limits.",
        )
        self.retry_after_s = retry_after_s


def _minutes(seconds: float) -> str:
    minutes = max(1, math.ceil(seconds / 60))
    return f"{minutes} minute{'s' if minutes > 1 else ''}"


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


class Conflict(GuanacoError):
    code = "conflict"


class IllegalTransition(Conflict):
    code = "illegal_transition"

    def __init__(self, submission_id: str, status: str, wanted: str) -> None:
        super().__init__(
            f"{submission_id} is {spoken(status)}, so it cannot become {spoken(wanted)}.",
            hint=f"`guanaco status {submission_id}` shows where it stands.",
        )


class RedeployInProgress(Conflict):
    code = "redeploy_in_progress"

    def __init__(self, submission_id: str) -> None:
        super().__init__(
            f"A redeploy of {submission_id} is under way.",
            hint=f"`guanaco logs {submission_id}` follows it; `guanaco cancel {submission_id}` ends it, and the version before serves on.",
        )


class NothingToRollBack(Conflict):
    code = "nothing_to_roll_back"

    def __init__(self, submission_id: str) -> None:
        super().__init__(
            f"{submission_id} has no version before that could serve again.",
            hint="There is one once a redeploy has replaced it; `guanaco redeploy` makes a new one.",
        )


class IdempotencyConflict(Conflict):
    code = "idempotency_conflict"

    def __init__(self) -> None:
        super().__init__(
            "This Idempotency-Key was used before with another request.",
            hint="Use a new key for a new request.",
        )


class RequestInProgress(Conflict):
    code = "request_in_progress"

    def __init__(self) -> None:
        super().__init__(
            "The first request with this Idempotency-Key is still being answered.",
            hint="Send it again in a few seconds: then you get its answer.",
        )


class QuotaExceeded(Conflict):
    """The detail says of what the developer has as much as they may have, the hint what to do."""

    code = "quota_exceeded"


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


class BattlesOff(Conflict):
    code = "battles_off"

    def __init__(self, competition_id: str) -> None:
        super().__init__(
            "This conversation has no battles: its competition does not allow them, or it takes part in an experiment.",
            hint="Send the message with `guanaco conversations say`; an admin allows battles with the competition's `duels.battles`.",
        )
        self.competition_id = competition_id


class CompetitionClosed(Conflict):
    code = "competition_closed"

    def __init__(self, competition_id: str) -> None:
        super().__init__(
            f"The competition {competition_id} does not run now.",
            hint="`guanaco competitions list` shows their windows.",
        )


class NewerVersionNeeded(Conflict):
    """``what`` was stored by a newer version during a roll-out, with a word that this version does not know."""

    code = "newer_version_needed"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"A newer version of Guanaco has stored {what}, and this server does not understand all of it.",
            hint="Try again when every server runs the newer version.",
        )
        self.what = what


class ExperimentConflict(Conflict):
    code = "experiment_conflict"


class AlreadyRated(Conflict):
    code = "already_rated"

    def __init__(self) -> None:
        super().__init__(
            "This conversation is already rated.",
            hint="Within a day, `guanaco conversations rate --change` changes its rating, and `guanaco conversations withdraw` withdraws it.",
        )


class NothingToRate(Conflict):
    code = "nothing_to_rate"

    def __init__(self) -> None:
        super().__init__(
            "The model has not replied in this conversation, so there is nothing to rate.",
            hint="Rate it after the first reply.",
        )


class RatingSettled(Conflict):
    """The detail says why the rating stays as it is."""

    code = "rating_settled"


class ExternalIdTaken(Conflict):
    code = "external_id_taken"

    def __init__(self, external_id: str) -> None:
        super().__init__(
            f"The conversation {external_id} belongs to another user.",
            hint="Choose an external_id that is unique in your app.",
        )


class NothingToRegenerate(Conflict):
    code = "nothing_to_regenerate"

    def __init__(self) -> None:
        super().__init__("There is no user message to answer yet.", hint="Send a message first.")


class NothingToContinue(Conflict):
    code = "nothing_to_continue"

    def __init__(self) -> None:
        super().__init__(
            "The conversation's last message is not a reply of its model, so there is nothing to continue.",
            hint="Send a message, or regenerate the reply where the last message has none.",
        )


class AmbiguousAlias(Conflict):
    code = "ambiguous_alias"

    def __init__(self, alias: str) -> None:
        super().__init__(
            f"Several developers have an alias {alias}.", hint="Name the submission by its id."
        )


class ModelNotLive(Conflict):
    code = "model_not_live"

    def __init__(self, submission_id: str, status: str) -> None:
        super().__init__(
            f"{submission_id} is {spoken(status)}, so it takes no new conversations.",
            hint="Choose one that is deployed, or leave `model` out.",
        )


class AmbiguousUser(Conflict):
    code = "ambiguous_user"

    def __init__(self) -> None:
        super().__init__(
            "Users of several backends have that id.", hint="Name the backend's account."
        )


class CannotDelete(Conflict):
    code = "cannot_delete"

    def __init__(self, submission_id: str, status: str, *, was_live: bool) -> None:
        why = (
            "was live, so it has conversations and ratings" if was_live else f"is {spoken(status)}"
        )
        super().__init__(
            f"{submission_id} {why}: only what failed or was cancelled before it was live can be deleted.",
            hint=f"`guanaco teardown {submission_id}` stops its model server."
            if was_live
            else f"`guanaco cancel {submission_id}` stops one that is on its way.",
        )


class LastAdminKey(Conflict):
    code = "last_admin_key"

    def __init__(self, key_id: str) -> None:
        super().__init__(
            f"The key {key_id} is the only admin key that works, so it cannot be revoked.",
            hint="Make another one first: `guanaco keys create --role admin --name NAME`.",
        )


class AccountRoleConflict(Conflict):
    code = "account_role_conflict"

    def __init__(self, name: str, role: str) -> None:
        super().__init__(
            f"The account {name} exists already, as {role}.", hint="Choose another --name."
        )
