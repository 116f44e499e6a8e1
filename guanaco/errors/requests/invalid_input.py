"""The errors of requests that cannot be understood, or whose values are not allowed."""

from __future__ import annotations

from guanaco.errors.tree import GuanacoError


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
