"""What stands around the turns of a prompt, and what of it goes when the prompt is too long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from guanaco.prompts import PromptRole
from guanaco_server.prompts.counting import Piece, TokenCounter
from guanaco_server.prompts.truncation import Frame
from guanaco_server.prompts.utterances import Spoken


@dataclass(frozen=True, slots=True)
class Part:
    """A text whose ``priority`` says how early it goes; 0 is never. Its ``role`` matters to chat templates alone."""

    text: str
    priority: int = 0
    role: PromptRole = "system"


@dataclass(frozen=True, eq=False)  # one for each bot and user: counts are kept by its identity
class Layout:
    """What stands before and after the turns; a turn's text is made from it alone. ``made_of`` tells equal ones."""

    before: tuple[Part, ...]
    after: tuple[Part, ...]
    turn_priority: int
    turn_text: Callable[[Spoken], str]
    made_of: tuple[object, ...] = ()

    @cached_property
    def droppable(self) -> tuple[Part, ...]:
        """In the order in which they go."""
        parts = [part for part in (*self.before, *self.after) if part.priority > 0 and part.text]
        return tuple(sorted(parts, key=lambda part: -part.priority))

    @cached_property
    def eager(self) -> int:
        """How many of them go before any turn."""
        return sum(part.priority > self.turn_priority for part in self.droppable)

    def kept(self, dropped: int) -> tuple[list[Part], list[Part]]:
        """What is before and after the turns with the first of the droppable parts gone."""
        gone = self.droppable[:dropped]

        def without(parts: Sequence[Part]) -> list[Part]:
            return [part for part in parts if not any(part is other for other in gone)]

        return without(self.before), without(self.after)


@dataclass(frozen=True, eq=False, slots=True)
class Surroundings:
    """A layout, counted: with the first n of its droppable parts gone, ``sides[n]`` stand before and after the turns."""

    sides: tuple[tuple[Piece, Piece], ...]
    frame: Frame


def surroundings(layout: Layout, counter: TokenCounter) -> Surroundings:
    """The very same object while layout and counter are."""
    return counter.kept_for(layout, lambda: _count(layout, counter))


def _count(layout: Layout, counter: TokenCounter) -> Surroundings:
    kept = [layout.kept(dropped) for dropped in range(len(layout.droppable) + 1)]
    sides = tuple((_joined(counter, before), _joined(counter, after)) for before, after in kept)
    sizes = [counter.sequence(pair).tokens for pair in sides]
    frame = Frame(sizes, layout.eager, are_turns_kept=layout.turn_priority == 0)
    return Surroundings(sides, frame)


def _joined(counter: TokenCounter, parts: Sequence[Part]) -> Piece:
    """Parts that always stand together are counted together, so that no junction between them is in doubt."""
    return counter.piece("".join([part.text for part in parts]))
