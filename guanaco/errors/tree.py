"""The root of the error tree, and the way to the wire and back."""

from __future__ import annotations

from typing import Any, ClassVar

from guanaco.open_enum import OpenEnum


class Blame(OpenEnum):
    """The party that can do something about a failed stage."""

    DEVELOPER = "developer"
    PLATFORM = "platform"
    CHANCE = "chance"


class GuanacoError(Exception):
    """One sentence for a person (``str(error)``), a stable ``code`` for a program, a ``hint`` for the next step."""

    code: ClassVar[str] = "guanaco_error"

    def __init__(self, detail: str, *, hint: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint

    def to_wire(self) -> dict[str, Any]:
        return {"error": self.code, "detail": self.detail, "hint": self.hint}

    @staticmethod
    def from_wire(body: dict[str, Any]) -> GuanacoError:
        """Build the error that a server's JSON body describes; an unknown code gives a plain GuanacoError."""
        kind = error_classes().get(str(body.get("error")), GuanacoError)
        error = kind.__new__(kind)
        GuanacoError.__init__(error, str(body.get("detail", "")), hint=body.get("hint"))
        return error


def error_classes() -> dict[str, type[GuanacoError]]:
    """Return every error class by its code."""
    found: dict[str, type[GuanacoError]] = {}
    waiting = [GuanacoError]
    while waiting:
        kind = waiting.pop()
        found.setdefault(kind.code, kind)  # a class that inherits its code is never meant by it
        waiting.extend(kind.__subclasses__())
    return found
