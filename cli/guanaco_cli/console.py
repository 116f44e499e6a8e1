"""Print everything: data on stdout, messages for people on stderr, colours only on a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

from guanaco_cli.untrusted import clean, clean_line, csv_cell, escape_json

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console as RichConsole
    from rich.table import Table

    from guanaco.errors import GuanacoError

PIPE_WIDTH = 1_000  # columns of a table that no terminal limits
IDS = frozenset(("id", "submission", "conversation", "battle", "message", "alias", "backup", "key"))
GAP = 3  # between two columns
EDGES = 2
LEAST = 8  # what a column that is no id may be narrowed to

BOLD, DIM, RED, GREEN, YELLOW = "1", "2", "31", "32", "33"


class Console:
    """Prints texts cleaned of characters that could drive the terminal; rich markup is never read."""

    def prepare(self) -> bool:
        """Make the streams ready; False, after a sentence, where standard output is closed.

        Characters that the terminal's encoding lacks are replaced, instead of failing. A closed stdin is an empty one, and what
        is said on a closed stderr is lost.
        """
        if sys.stdin is None:
            sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123 - as long as the process lives
        if sys.stderr is None:
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123
        if sys.stdout is None:
            self.error(
                "Standard output is closed, so nothing can be printed, and nothing was done.",
                "Send it to a file, or to /dev/null.",
            )
            return False
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
        return True

    @property
    def is_interactive(self) -> bool:
        return sys.stdin.isatty() and sys.stderr.isatty()

    def line(self, text: str = "", *, style: str | None = None) -> None:
        """Print a line of data."""
        print(_styled(clean(text), style, sys.stdout), file=sys.stdout, flush=True)

    def piece(self, text: str, *, is_talk: bool = False) -> None:
        """Print a piece of a line, without waiting for its end."""
        print(clean(text), end="", file=sys.stderr if is_talk else sys.stdout, flush=True)

    def json(self, value: BaseModel | Sequence[BaseModel] | dict[str, Any]) -> None:
        """Print one JSON document as data."""
        text = json.dumps(_plain(value), indent=2, ensure_ascii=False)
        print(escape_json(text), file=sys.stdout, flush=True)

    def json_line(self, value: BaseModel) -> None:
        """Print one JSON document on a line of its own, for long streams."""
        text = json.dumps(_plain(value), ensure_ascii=False)
        print(escape_json(text), file=sys.stdout, flush=True)

    def csv(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        import csv
        from itertools import chain, islice

        writer = csv.writer(sys.stdout, lineterminator="\n")
        waiting = iter(rows)
        first = list(islice(waiting, 1))  # what cannot be read fails before the header is out
        writer.writerow(columns)
        for row in chain(first, waiting):
            writer.writerow([csv_cell(cell) if isinstance(cell, str) else cell for cell in row])

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        *,
        title: str | None = None,
        is_talk: bool = False,
        keep: Collection[str] = (),
    ) -> None:
        """Print a table of data. A column whose name ends with ``>`` is aligned to the right.

        Ids are never cut or folded: on a narrow terminal the last columns are left out, but those that are to be kept
        (``keep``). Where the ids alone are too wide, each row is a block of lines.
        """
        output = self.rich(is_talk=is_talk)
        cells = _cleaned(rows)
        shown = _fitting(columns, cells, output.width, keep)
        if _is_too_wide(columns, cells, shown, output.width):
            _print_blocks(output, columns, cells, title)
        else:
            output.print(self.make_table(columns, cells, title=title, keep=keep))

    def make_table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        *,
        title: str | None = None,
        caption: str | None = None,
        keep: Collection[str] = (),
    ) -> Table:
        """Make the table that ``table`` prints, for a live display, which folds ids that are too wide."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        cells = _cleaned(rows)
        width = self.rich(is_talk=False).width
        shown = _fitting(columns, cells, width, keep)
        is_folded = _is_too_wide(columns, cells, shown, width)
        left_out = [name.rstrip(">") for n, name in enumerate(columns) if n not in shown]
        notes = [caption, f"Not shown at this width: {', '.join(left_out)}." if left_out else None]
        table = Table(
            title=title,
            title_justify="left",
            caption=" ".join(filter(None, notes)) or None,
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
        )
        for number in shown:
            name = columns[number].rstrip(">")
            table.add_column(
                name,
                justify="right" if columns[number].endswith(">") else "left",
                overflow="fold",
                no_wrap=name in IDS and not is_folded,
            )
        for row in cells:
            table.add_row(*(Text(row[number]) for number in shown))
        return table

    def say(self, text: str = "", *, style: str | None = None) -> None:
        """Print a line for people, on stderr; a terminal gets it wrapped between words."""
        shown = _wrapped(clean(text), sys.stderr)
        print(_styled(shown, style, sys.stderr), file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}", style=YELLOW)

    def error(self, detail: str, hint: str | None = None) -> None:
        """Say what happened, and what to do next."""
        self.say(f"error: {clean_line(detail)}", style=RED)
        if hint:
            self.say(f"hint: {clean_line(hint)}", style=DIM)

    def failure(self, error: GuanacoError) -> None:
        self.error(error.detail, error.hint)

    def ask(self, prompt: str) -> str:
        """Read a line from the person at the terminal, with editing; EOFError at the end."""
        import readline  # noqa: F401  # gives input() line editing and history

        return input(_styled(prompt, BOLD, sys.stdout))

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before what cannot be undone. Without a terminal, only ``--yes`` goes on."""
        if yes:
            return
        if not self.is_interactive:
            from guanaco.errors import InvalidInput

            raise InvalidInput(
                f"{question} There is no terminal to ask at, so nothing was done.",
                hint="Add --yes to do it without being asked.",
            )
        import typer

        typer.confirm(question, abort=True, err=True)

    def rich(self, *, is_talk: bool) -> RichConsole:
        """Return the rich console of a stream, for tables and live displays."""
        from rich.console import Console as RichConsole

        file = sys.stderr if is_talk else sys.stdout
        is_wide = not file.isatty()
        return RichConsole(
            file=file,
            width=PIPE_WIDTH if is_wide else None,
            markup=False,
            highlight=False,
            emoji=False,
        )


def _cleaned(rows: Iterable[Sequence[object]]) -> list[list[str]]:
    return [["" if cell is None else clean_line(str(cell)) for cell in row] for row in rows]


def _fitting(
    columns: Sequence[str], cells: Sequence[Sequence[str]], width: int, keep: Collection[str]
) -> list[int]:
    """Return the places of the columns that have room beside the whole ids, and beside those that are kept."""
    from rich.cells import cell_len

    def least(place: int) -> int:
        name = columns[place].rstrip(">")
        longest = max([cell_len(name), *(cell_len(row[place]) for row in cells)])
        return longest if name in IDS else min(longest, max(LEAST, cell_len(name)))

    shown = list(range(len(columns)))
    droppable = [
        place
        for place in shown[1:]
        if columns[place].rstrip(">") not in IDS and columns[place] not in keep
    ]
    while droppable and EDGES + sum(map(least, shown)) + GAP * (len(shown) - 1) > width:
        shown.remove(droppable.pop())
    return shown


def _is_too_wide(
    columns: Sequence[str], cells: Sequence[Sequence[str]], shown: Sequence[int], width: int
) -> bool:
    """Return whether the ids in the columns that are shown are wider than the terminal."""
    from rich.cells import cell_len

    ids = [place for place in shown if columns[place] in IDS]
    widths = [max([cell_len(row[place]) for row in cells], default=0) for place in ids]
    others = len(shown) - len(ids)
    return EDGES + sum(widths) + GAP * (len(shown) - 1) + LEAST * others > width


def _print_blocks(
    output: RichConsole, columns: Sequence[str], cells: Sequence[Sequence[str]], title: str | None
) -> None:
    """Print each row as lines of a name and a value. A value without blanks that is wider than the terminal is left to it to wrap, so that it can be copied."""
    from rich.text import Text

    if title:
        output.print(Text(title))
    names = [name.rstrip(">") for name in columns]
    for number, row in enumerate(cells):
        if number:
            output.print()
        for name, cell in zip(names, row, strict=True):
            line = Text(f"{name}: {cell}" if name else cell)
            is_whole = " " not in cell
            output.print(
                line, no_wrap=is_whole, overflow="ignore" if is_whole else "fold", crop=False
            )


def _plain(value: object) -> object:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _wrapped(text: str, stream: IO[str]) -> str:
    """Break long lines between words; an id or an address that is longer than a line stays whole, so that it can be copied."""
    if not stream.isatty():
        return text
    import shutil
    import textwrap

    width = shutil.get_terminal_size().columns
    return "\n".join(
        line
        if len(line) <= width
        else textwrap.fill(
            line, width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
        )
        for line in text.split("\n")
    )


def _styled(text: str, style: str | None, stream: IO[str]) -> str:
    is_plain = style is None or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return text if is_plain or not stream.isatty() else f"\x1b[{style}m{text}\x1b[0m"


console = Console()
