"""What the state of things does not allow. A part of errors.py, which draws the whole tree."""

from __future__ import annotations

from guanaco.error_base import GuanacoError


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
