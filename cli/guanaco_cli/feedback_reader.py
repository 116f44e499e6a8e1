"""Read feedback in full screen: what the screen shows, how keys change it, and the terminal under it.

list          ↑ ↓ choose, space and b a page, enter opens, q ends
conversation  n p the next and the previous, ↑ ↓ space b scroll, q goes back to the list

FeedbackScreen knows no terminal. read() puts the terminal back as it was, whatever happens.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from guanaco_cli import words
from guanaco_cli.console import console
from guanaco_cli.untrusted import clean, clean_line

if TYPE_CHECKING:
    from rich.text import Text

    from guanaco.chat import Message
    from guanaco.feedback import Feedback
    from guanaco.submissions import GenerationParams

HELP_LIST = "↑↓ choose  enter read  space/b page  q quit"
HELP_TALK = "n/p next/previous  ↑↓ space/b scroll  q back"
FRAME_LINES = 2  # the title and the help


class FeedbackScreen:
    """The list of ratings, or one open conversation. Ratings are fetched as they come into view."""

    def __init__(self, title: str, source: Iterator[Feedback]) -> None:
        self._title = clean_line(title)
        self._source = source
        self._items: list[Feedback] = []
        self._chosen = 0
        self._top = 0
        self._is_open = False
        self._body_height = 1
        self._last_top = 0

    def press(self, key: str) -> bool:
        """Handle a key; return False to end."""
        if key == "q" and not self._is_open:
            return False
        keys = self._talk_keys() if self._is_open else self._list_keys()
        if action := keys.get(key):
            action()
        return True

    def lines(self, width: int, height: int) -> list[Text]:
        """Draw the whole screen."""
        from rich.text import Text

        self._body_height = max(1, height - FRAME_LINES)
        self._fetch(self._chosen + self._body_height + 1)
        body = self._talk(width) if self._is_open else self._list(width)
        help_line = HELP_TALK if self._is_open else HELP_LIST
        shown = body[: self._body_height]
        shown += [Text("")] * (self._body_height - len(shown))
        lines = [Text(self._head(), style="bold"), *shown, Text(help_line, style="dim")]
        for line in lines:
            line.truncate(max(1, width - 1), overflow="ellipsis")
        return lines

    def _list_keys(self) -> dict[str, Callable[[], None]]:
        page = self._body_height
        return {
            "up": lambda: self._choose(self._chosen - 1),
            "down": lambda: self._choose(self._chosen + 1),
            "p": lambda: self._choose(self._chosen - 1),
            "n": lambda: self._choose(self._chosen + 1),
            "space": lambda: self._choose(self._chosen + page),
            "b": lambda: self._choose(self._chosen - page),
            "enter": self._open,
        }

    def _talk_keys(self) -> dict[str, Callable[[], None]]:
        page = self._body_height
        return {
            "up": lambda: self._scroll(-1),
            "down": lambda: self._scroll(1),
            "space": lambda: self._scroll(page),
            "b": lambda: self._scroll(-page),
            "n": lambda: self._choose(self._chosen + 1),
            "p": lambda: self._choose(self._chosen - 1),
            "q": self._close,
        }

    def _choose(self, place: int) -> None:
        self._fetch(place + 1)
        self._chosen = min(max(0, place), max(0, len(self._items) - 1))
        self._top = 0

    def _scroll(self, lines: int) -> None:
        self._top = min(max(0, self._top + lines), self._last_top)

    def _open(self) -> None:
        self._is_open, self._top = bool(self._items), 0

    def _close(self) -> None:
        self._is_open = False

    def _fetch(self, count: int) -> None:
        self._items += islice(self._source, max(0, count - len(self._items)))

    def _head(self) -> str:
        if not self._is_open:
            return self._title
        one = self._items[self._chosen]
        thumb = "up" if one.thumbs_up else "down"
        place = f"{self._chosen + 1}: {words.moment(one.at)}  thumbs {thumb}"
        return clean_line(f"{place}  {one.bot_name}  {one.user}  {self._title}")

    def _list(self, width: int) -> list[Text]:
        from rich.text import Text

        if not self._items:
            return [Text("None yet.")]
        first = max(0, self._chosen - self._body_height + 1)
        return [
            Text(_summary(one), style="reverse" if first + place == self._chosen else "")
            for place, one in enumerate(self._items[first : first + self._body_height])
        ]

    def _talk(self, width: int) -> list[Text]:
        lines = _conversation(self._items[self._chosen], width)
        self._last_top = max(0, len(lines) - self._body_height)
        return lines[min(self._top, self._last_top) :]


def _summary(one: Feedback) -> str:
    mark = "+" if one.thumbs_up else "-"
    return clean_line(f"{mark} {words.moment(one.at)} {one.bot_name} ({one.length}): {one.text}")


def _conversation(one: Feedback, width: int) -> list[Text]:
    from rich.console import Console
    from rich.text import Text

    console = Console(width=max(20, width - 1), markup=False, highlight=False, emoji=False)
    parts = [Text(f"“{clean(one.text)}”", style="italic")] if one.text else []
    if one.params is not None:
        parts.append(Text(_parameters(one.params), style="dim"))
    if one.first_message:
        parts.append(Text(f"\n{clean_line(one.bot_name)} (first message)", style="bold"))
        parts.append(Text(clean(one.first_message)))
    for message in one.messages:
        speakers = {"bot": one.bot_name, "user": one.user}
        speaker = speakers.get(message.sender, message.sender)
        parts.append(Text(f"\n{clean_line(speaker)}{_marks(message)}", style="bold"))
        parts.append(Text(clean(message.content), style="dim strike" if message.is_deleted else ""))
    return [line for part in parts for line in part.wrap(console, console.width)]


def _parameters(params: GenerationParams) -> str:
    return clean_line(", ".join(f"{name} {value}" for name, value in params.model_dump().items()))


def _marks(message: Message) -> str:
    mark = " (deleted)" if message.is_deleted else " (again)" if message.is_regenerated else ""
    took = message.timings
    return f"{mark} {took.ttft_ms:.0f} ms, all {took.total_ms:.0f} ms" if took else mark


ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # the other screen, without a cursor
HOME, REST = "\x1b[H", "\x1b[K"
KEYS = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down",
    b"\x1b[C": "n", b"\x1bOC": "n", b"\x1b[D": "p", b"\x1bOD": "p",
    b"\x1b[5~": "b", b"\x1b[6~": "space", b" ": "space", b"\r": "enter", b"\n": "enter",
    b"\x1b": "q", b"k": "up", b"j": "down", b"": "q",
}  # fmt: skip


def is_possible() -> bool:
    """Return whether input and output are a terminal that can show screens."""
    return sys.stdin.isatty() and sys.stdout.isatty() and sys.platform != "win32"


def read(title: str, source: Iterator[Feedback]) -> None:
    """Show the screen until q is pressed."""
    reader = FeedbackScreen(title, source)
    reader.lines(
        *shutil.get_terminal_size()
    )  # what the server refuses is said on the ordinary screen
    with _raw_terminal(), _redrawn_at_resize(reader):
        _draw(reader)
        while all(reader.press(key) for key in _keys(os.read(sys.stdin.fileno(), 64))):
            _draw(reader)


def _keys(data: bytes) -> Iterator[str]:
    """Name the keys in a chunk of input; unknown sequences are dropped byte by byte."""
    if not data:
        yield KEYS[data]
    while data:
        size = next((n for n in (4, 3, 1) if data[:n] in KEYS), 1)
        yield KEYS.get(data[:size]) or data[:size].decode("ascii", "replace")
        data = data[size:]


def _draw(reader: FeedbackScreen) -> None:
    width, height = shutil.get_terminal_size()
    lines = reader.lines(width, height)
    rich = console.rich(is_talk=False)
    with rich.capture() as capture:
        for line in lines:
            rich.print(line, end="\n", soft_wrap=True)
    drawn = capture.get().rstrip("\n").replace("\n", f"{REST}\r\n")
    sys.stdout.write(f"{HOME}{drawn}{REST}")
    sys.stdout.flush()


@contextmanager
def _raw_terminal() -> Iterator[None]:
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    sys.stdout.write(ENTER)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        sys.stdout.write(LEAVE)
        sys.stdout.flush()


@contextmanager
def _redrawn_at_resize(reader: FeedbackScreen) -> Iterator[None]:
    before = signal.signal(signal.SIGWINCH, lambda *_: _draw(reader))
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
