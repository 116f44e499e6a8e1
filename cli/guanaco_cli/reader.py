"""The terminal under the full-screen reader: raw keys in, whole screens out; put back as it was, whatever happens."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from guanaco_cli.console import console
from guanaco_cli.reading import Reader

if TYPE_CHECKING:
    from guanaco.feedback import Feedback

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # the other screen, without a cursor
HOME, REST = "\x1b[H", "\x1b[K"
KEYS = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down",
    b"\x1b[C": "n", b"\x1bOC": "n", b"\x1b[D": "p", b"\x1bOD": "p",
    b"\x1b[5~": "b", b"\x1b[6~": "space", b" ": "space", b"\r": "enter", b"\n": "enter",
    b"\x1b": "q", b"k": "up", b"j": "down", b"": "q",
}  # fmt: skip


def is_possible() -> bool:
    """Whether keys and screens go to a person."""
    return sys.stdin.isatty() and sys.stdout.isatty() and sys.platform != "win32"


def read(title: str, source: Iterator[Feedback]) -> None:
    """Until q is pressed."""
    reader = Reader(title, source)
    reader.lines(
        *shutil.get_terminal_size()
    )  # what the server refuses is said on the ordinary screen
    with _raw_terminal(), _redrawn_at_resize(reader):
        _draw(reader)
        while all(reader.press(key) for key in _keys(os.read(sys.stdin.fileno(), 64))):
            _draw(reader)


def _keys(data: bytes) -> Iterator[str]:
    """Several may come at once; one that nobody knows is left out."""
    if not data:
        yield KEYS[data]
    while data:
        size = next((n for n in (4, 3, 1) if data[:n] in KEYS), 1)
        yield KEYS.get(data[:size]) or data[:size].decode("ascii", "replace")
        data = data[size:]


def _draw(reader: Reader) -> None:
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
def _redrawn_at_resize(reader: Reader) -> Iterator[None]:
    before = signal.signal(signal.SIGWINCH, lambda *_: _draw(reader))
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
