"""Rewords errors so that they name no model: a visitor of the chat page must not learn which one speaks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import TypeVar

from guanaco.errors import (
    AlreadyRated,
    BattlesOff,
    Conflict,
    ConversationBusy,
    GuanacoError,
    InvalidInput,
    MessageTooLong,
    NotFound,
    NothingToRegenerate,
    RatingSettled,
    TooManyAttempts,
    Unavailable,
)

T = TypeVar("T")


@contextmanager
def blind() -> Iterator[None]:
    """Raise the errors of the block in words that name no model."""
    try:
        yield
    except GuanacoError as error:
        raise _nameless(error) from None


async def blinded(events: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Yield the events; raise their errors in words that name no model."""
    with blind():
        async with aclosing(events):
            async for event in events:
                yield event


def _nameless(error: GuanacoError) -> GuanacoError:
    """Return the same kind of error, in words that name no model."""
    match error:
        case MessageTooLong():
            return InvalidInput("That message is too long.", hint="Say it in fewer words.")
        case ConversationBusy() | NothingToRegenerate() | TooManyAttempts():
            return error
        case AlreadyRated() | RatingSettled():
            return Conflict(
                "Your rating can no longer be changed.", hint="Start a new conversation."
            )
        case BattlesOff():
            return Conflict("Two answers at once are not on here.", hint="Send your message.")
        case NotFound():
            return NotFound("There is no such conversation.", hint="Start a new one.")
        case Unavailable():
            return Unavailable("Nobody can answer right now.", hint="Try again in a minute.")
        case _:
            return GuanacoError("That did not work.", hint="Try again in a minute.")
