"""The errors of requests that the present state does not allow."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Self

from guanaco.errors.tree import GuanacoError
from guanaco.open_enum import spoken

WHAT_WAS_TRIED = {
    "deployed": "reactivated",
    "inactive": "deactivated",
    "queued": "redeployed",
    "torn_down": "torn down",
    "cancelled": "cancelled",
}


class Conflict(GuanacoError):
    code = "conflict"


class IllegalTransition(Conflict):
    code = "illegal_transition"

    def __init__(self, submission_id: str, status: str, wanted: str) -> None:
        hint = f"`guanaco status {submission_id}` shows where it stands."
        if wanted == "deployed" and status in ("torn_down", "failed", "cancelled"):
            hint = f"`guanaco redeploy {submission_id}` serves it again."
        super().__init__(
            f"{submission_id} is {spoken(status)} already."
            if status == wanted
            else f"{submission_id} is {spoken(status)}, so it cannot be {WHAT_WAS_TRIED.get(wanted, spoken(wanted))}.",
            hint=hint,
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
    retry_after_s = 2.0

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
    """Another turn is under way; after a process died in one it may take 20 s until the next can begin."""

    code = "conversation_busy"
    retry_after_s = 2.0

    def __init__(self) -> None:
        super().__init__(
            "A reply is still being written in this conversation.",
            hint="Send the next message when it has ended.",
        )


class BattlesOff(Conflict):
    """``why`` completes the sentence, where it is not the competition's rule."""

    code = "battles_off"

    def __init__(self, competition_id: str, why: str | None = None) -> None:
        more = (
            "; an admin allows battles with the competition's `duels.battles`."
            if why is None
            else "."
        )
        super().__init__(
            f"This conversation has no battles: {why or 'its competition does not allow them'}.",
            hint=f"Send the message with `guanaco conversations say`{more}",
        )
        self.competition_id = competition_id


class CompetitionClosed(Conflict):
    """``why`` is the sentence that says it; in general the competition just does not run."""

    code = "competition_closed"

    def __init__(
        self, competition_id: str, why: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(
            why or f"The competition {competition_id} does not run now.",
            hint=hint or "`guanaco competitions list` shows their windows.",
        )

    @classmethod
    def frozen(cls, competition_id: str) -> Self:
        """Return the error of a change of its rules once it is frozen."""
        return cls(
            competition_id,
            f"The competition {competition_id} is frozen, so its rules can no longer change.",
            "Make another competition with the rules that you want.",
        )

    @classmethod
    def not_begun(cls, competition_id: str, starts_at: datetime) -> Self:
        """Return the error of freezing it before its beginning."""
        return cls(
            competition_id,
            f"The competition {competition_id} begins on {_moment(starts_at)}, so there is nothing to rank yet.",
            f"Freeze it after its beginning; to call it off or move it, change its window with `guanaco competitions put {competition_id} FILE`.",
        )

    @classmethod
    def outside(
        cls, competition_id: str, starts_at: datetime, ends_at: datetime | None, now: datetime
    ) -> Self:
        """Return the error of a conversation before its beginning, after its end, or once it is frozen."""
        if now < starts_at:
            return cls(
                competition_id, f"The competition {competition_id} begins on {_moment(starts_at)}."
            )
        if ends_at is not None and now >= ends_at:
            return cls(
                competition_id, f"The competition {competition_id} ended on {_moment(ends_at)}."
            )
        return cls(competition_id, f"The competition {competition_id} is frozen, so it is over.")


def _moment(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d at %H:%M} UTC"


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
