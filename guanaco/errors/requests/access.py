"""The errors of requests that are not allowed to this caller: who they are, and how often they ask."""

from __future__ import annotations

import math

from guanaco.errors.tree import GuanacoError


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
