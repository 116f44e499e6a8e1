"""`guanaco leaderboard`: as a table, and live with a mark on each rank that has moved since the first look."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from guanaco.errors import NotFound
from guanaco.verdicts import asked_words, chance_words, headline, pair_words, uncounted_words
from guanaco_cli import words
from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.options import AsJson

if TYPE_CHECKING:
    from rich.table import Table

    from guanaco.client import Client
    from guanaco.estimates import Estimate
    from guanaco.leaderboard import (
        AskedRatio,
        Leaderboard,
        LeaderboardRow,
        LeaderboardStability,
        LeaderboardVerdict,
        ScoreHistory,
        ScorePoint,
        StabilityPair,
    )

app = typer.Typer()

WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")
]
Every = Annotated[float, typer.Option(min=1, max=3_600, help="Seconds between looks.")]


Of = Annotated[str, typer.Option("--competition", metavar="ID", help="The competition.")]
Sort = Annotated[  # LeaderboardSort's values; a test holds these to them
    Literal[
        "rank",
        "thumbs_up",
        "conversation_length",
        "retention",
        "repetition",
        "regenerate_rate",
        "ttft",
        "reply_time",
        "feedback",
        "newest",
    ],
    typer.Option(
        metavar="BY",
        help="Best first: rank, thumbs_up, conversation_length, retention, repetition, regenerate_rate, ttft, reply_time, feedback; or newest.",
    ),
]


Stability = Annotated[
    bool,
    typer.Option("--stability", help="How few votes decide between neighbours on the board."),
]


Verdict = Annotated[
    bool,
    typer.Option("--verdict", help="Show what is settled between the leader and each other one."),
]


HistoryOf = Annotated[
    str | None,
    typer.Option(
        "--history",
        metavar="ID",
        help="Show how one submission's score and its interval have come about.",
    ),
]

OfSweep = Annotated[
    str | None,
    typer.Option("--sweep", metavar="ID", help="Show the variants of this sweep alone."),
]


EachVariant = Annotated[
    bool,
    typer.Option(
        "--each-variant",
        help="Give each variant of a sweep a row. [default: the best one stands for all]",
    ),
]

MOST_POINTS = 24  # lines of a history
PLOT_CHARS = 48


@app.command(epilog="Example: guanaco leaderboard --competition autumn --sort retention --watch")
def leaderboard(
    competition: Of = "open",
    sort: Sort = "rank",
    as_json: AsJson = False,
    watch: WatchOption = False,
    every: Every = 5.0,
    stability: Stability = False,
    verdict: Verdict = False,
    history: HistoryOf = None,
    sweep: OfSweep = None,
    each_variant: EachVariant = False,
) -> None:
    """Compare all submissions. Needs no key."""
    if as_json and watch:
        raise typer.BadParameter("choose --json or --watch, not both.")
    chosen = [
        name
        for name, is_on in (
            ("--stability", stability),
            ("--verdict", verdict),
            ("--watch", watch),
            ("--history", history is not None),
        )
        if is_on
    ]
    if len(chosen) > 1:
        raise typer.BadParameter(f"choose {' or '.join(chosen)}, not both.")
    with connect() as client:
        if verdict:
            show_verdict(client.verdict(competition=competition), as_json=as_json)
            return
        if history is not None:
            found_history = client.score_history(history, competition=competition)
            show_history(found_history, as_json=as_json)
            return
        if stability:
            show_stability(client.stability(competition=competition), as_json=as_json)
            return

        def fetch() -> Leaderboard:
            return _of_sweep(client.leaderboard(competition=competition, sort=sort), sweep)

        is_grouped = sweep is None and not each_variant
        if watch and sys.stdout.isatty():
            watch_leaderboard(fetch, every, sort, is_grouped=is_grouped)
            return
        board = fetch()
        if not board.rows and sweep is not None:
            raise NotFound(
                f"No variant of {sweep} is in the competition {board.competition}.",
                hint="`guanaco sweep list` lists your sweeps.",
            )
        is_ranked = sort == "rank" and bool(board.rows) and not as_json and sweep is None
        found = _verdict_on(client, competition) if is_ranked else None
    if as_json:
        console.json(board)
    else:
        print_leaderboard(board, sort=sort, is_grouped=is_grouped)
        if not board.rows:
            console.say(f"Nothing has entered the competition {board.competition} yet.")
        elif found is not None:
            console.say(headline(found))
            if uncounted := uncounted_words(board.rows):
                console.say(uncounted)


def _of_sweep(board: Leaderboard, sweep: str | None) -> Leaderboard:
    """Return the board with the rows of one sweep; all of them without one."""
    if sweep is None:
        return board
    rows = [row for row in board.rows if row.sweep == sweep]
    return board.model_copy(update={"rows": rows})


def _verdict_on(client: Client, competition: str) -> LeaderboardVerdict | None:
    """Read the verdict; None from a platform of an older version, or by a rule that it does not know."""
    from guanaco.errors import NewerVersionNeeded

    try:
        return client.verdict(competition=competition)
    except (NotFound, NewerVersionNeeded):
        return None


def show_verdict(found: LeaderboardVerdict, *, as_json: bool) -> None:
    if as_json:
        console.json(found)
        return
    if found.pairs:
        console.table(
            ("other", "the leader beside it"),
            [(pair.submission_id, pair_words(pair, found)) for pair in found.pairs],
        )
    console.say(headline(found))
    if (chance := chance_words(found)) is not None:
        console.say(chance)
    if (sentence := asked_words(found)) is not None and found.asked is not None:
        if found.asked.rows:
            console.table(
                (
                    "of all who could be asked",
                    "thumbs up",
                    "from the answers alone",
                    "could>",
                    "asked>",
                    "answered>",
                ),
                [_asked_row(row) for row in found.asked.rows],
            )
        console.say(sentence)


def _asked_row(row: AskedRatio) -> tuple[object, ...]:
    return (
        row.submission_id,
        _between(row.ratio, row.low, row.high),
        _between(row.plain_ratio, row.plain_low, row.plain_high),
        f"{row.eligible:,}",
        f"{row.asked:,}",
        f"{row.answered:,}",
    )


def _between(ratio: float | None, low: float, high: float) -> str:
    return "-" if ratio is None else f"{ratio:.1%} ({low:.1%} to {high:.1%})"


def show_history(found: ScoreHistory, *, as_json: bool) -> None:
    if as_json:
        console.json(found)
        return
    if not found.points:
        console.say(
            f"{found.submission_id} has no score in the competition {found.competition} yet."
        )
        return
    points = thinned(found.points)
    least, most = min(one.low for one in points), max(one.high for one in points)
    console.table(
        (
            "until",
            "rank>",
            "score>",
            "interval",
            f"from {_score(least, most)} to {_score(most, most)}",
        ),
        [
            (
                one.at.strftime("%Y-%m-%d %H:%M"),
                one.rank,
                _score(one.score, most),
                f"{_score(one.low, most)} to {_score(one.high, most)}",
                interval_plot(one, least, most),
            )
            for one in points
        ],
    )
    console.say(
        "Times are UTC. Each interval holds at every look, and for all submissions together."
    )


def thinned(points: Sequence[ScorePoint]) -> list[ScorePoint]:
    """Return some points, evenly spaced, the first and the last among them."""
    if len(points) <= MOST_POINTS:
        return list(points)
    step = (len(points) - 1) / (MOST_POINTS - 1)
    return [points[round(place * step)] for place in range(MOST_POINTS)]


def interval_plot(point: ScorePoint, least: float, most: float) -> str:
    """Draw an interval between the least and the greatest end of all."""

    def place(value: float) -> int:
        return round((value - least) / ((most - least) or 1.0) * (PLOT_CHARS - 1))

    low, high = place(point.low), place(point.high)
    line = " " * low + "|" + "-" * max(0, high - low - 1) + ("|" if high > low else "")
    at = min(max(place(point.score), low), high)
    return line[:at] + "o" + line[at + 1 :]


def _score(value: float, most: float) -> str:
    """Write a ratio as a percentage, and a strength as a whole number."""
    return f"{value:.1%}" if most <= 1 else f"{value:,.0f}"


def show_stability(found: LeaderboardStability, *, as_json: bool) -> None:
    if as_json:
        console.json(found)
        return
    console.table(
        ("above", "below", "now", "turns without>"),
        [
            (pair.above, pair.below, "apart" if pair.are_apart else "share", _votes(pair))
            for pair in found.pairs
        ],
    )
    if (settled := found.duels) is not None:
        unit = "duel" if settled.duels == 1 else "duels"
        console.say(
            f"By duels: if {settled.duels:,} {unit} of {settled.leader} and {settled.submission_id} had not been held, the verdict on the two would be open."
        )
    if not found.pairs:
        console.say(f"No two submissions are ranked in the competition {found.competition} yet.")


def _votes(pair: StabilityPair) -> str:
    """Say how few votes turn a pair, as far as it is known."""
    if pair.votes is None:
        return "not found"
    unit = "vote" if pair.votes == 1 else "votes"
    if pair.is_fewest:
        return f"{pair.votes:,} {unit}"
    if not pair.duels:
        return f"about {pair.votes:,} {unit}"
    return f"about {pair.votes:,} {unit}, {pair.duels:,} in duels"


def print_leaderboard(
    board: Leaderboard,
    *,
    sort: str = "rank",
    title: str | None = None,
    is_talk: bool = False,
    is_grouped: bool = False,
) -> None:
    """Print the board as a table. ``is_grouped``: the first variant of each sweep stands for all of them, as on the page."""
    rows = rows_of(board, sort, _shown(board, is_grouped=is_grouped))
    console.table(
        columns_of(board, sort), rows, title=title, is_talk=is_talk, keep=_sorted_by(sort)
    )


@dataclass(frozen=True)
class ShownRows:
    """The rows of a board that are shown. ``behind`` counts by submission the variants of its sweep that are not."""

    rows: Sequence[LeaderboardRow]
    behind: Mapping[str, int]


def _shown(board: Leaderboard, *, is_grouped: bool) -> ShownRows:
    if not is_grouped:
        return ShownRows(board.rows, {})
    from guanaco.leaderboard import group_by_sweep

    return ShownRows(*group_by_sweep(board.rows))


Column = tuple[str, Callable[["LeaderboardRow"], object]]


def _sorted_by(sort: str) -> list[str]:
    """Return the names of the columns that a narrow terminal keeps: the score, and what the board is sorted by."""
    return ["score>", "thumbs up>", *([SORTED_BY[sort][0]] if sort in SORTED_BY else [])]


def columns_of(board: Leaderboard, sort: str = "rank") -> list[str]:
    return ["rank>", *(name for name, _ in _columns(board, sort, {}))]


def rows_of(
    board: Leaderboard, sort: str = "rank", shown: ShownRows | None = None
) -> list[list[object]]:
    """Return the cells for ``columns_of``; ``=2`` is a rank that several share."""
    shown = shown or ShownRows(board.rows, {})
    columns = _columns(board, sort, shown.behind)
    sharing = Counter(row.rank for row in board.rows)
    return [[_rank(row, sharing), *(cell(row) for _, cell in columns)] for row in shown.rows]


def _named(row: LeaderboardRow, behind: Mapping[str, int]) -> str:
    """Write ``org-model_v3 and 7 more``."""
    count = behind.get(row.submission_id)
    return f"{row.submission_id} and {count} more" if count else row.submission_id


def _ratio(row: LeaderboardRow) -> str:
    return words.percent(row.thumbs_up_ratio)


def _ratio_beside_first(row: LeaderboardRow) -> str:
    """Write ``25% (50% at first)`` where users changed their minds: the interval and the rank are of first votes."""
    ratio, first = words.percent(row.thumbs_up_ratio), words.percent(row.score)
    return ratio if row.score is None or ratio == first else f"{ratio} ({first} at first)"


def _columns(board: Leaderboard, sort: str, behind: Mapping[str, int]) -> list[Column]:
    """Choose the columns: ranked by thumbs up, score and ratio are one figure; the column that the table is sorted by is always shown."""
    is_by_ratio = board.ranking == "thumbs_up"
    shown = _strength if board.ranking == "bradley_terry" else _share
    columns: list[Column] = [
        ("submission", lambda row: _named(row, behind)),
        ("developer", lambda row: row.developer),
        ("status", lambda row: row.status),
    ]
    if not is_by_ratio:
        columns += [
            ("score>", lambda row: shown(row.score)),
            ("95 % interval>", lambda row: _interval(row.score_low, row.score_high, shown)),
        ]
    ratio = _ratio_beside_first if is_by_ratio else _ratio
    columns.append(("thumbs up>", ratio))
    if is_by_ratio:
        columns.append(
            ("95 % interval>", lambda row: _interval(row.score_low, row.score_high, words.percent))
        )
    columns.append(("for one look>", _ratio_interval))
    if any(row.neighbour is not None for row in board.rows):
        columns.append(("votes that decide>", _deciding))
    if board.counts_duels:
        columns.append(("duels>", lambda row: row.duels))
    columns += [
        ("ratings>", lambda row: row.feedback_count),
        ("length>", lambda row: _decimal(row.mean_conversation_length)),
    ]
    return [*columns, SORTED_BY[sort]] if sort in SORTED_BY else columns


def _deciding(row: LeaderboardRow) -> str:
    """Write how few votes decide between it and the one above; ``--stability`` says what they turn."""
    pair = row.neighbour
    if pair is None:
        return ""
    if pair.votes is None:
        return "not found"
    return f"{pair.votes:,}" if pair.is_fewest else f"about {pair.votes:,}"


def _rank(row: LeaderboardRow, sharing: Counter[int | None]) -> str:
    if row.rank is None:
        return ""
    return f"={row.rank}" if sharing[row.rank] > 1 else str(row.rank)


def _ratio_interval(row: LeaderboardRow) -> str:
    return _interval(row.interval_low, row.interval_high, words.percent)


def _interval(low: float | None, high: float | None, shown: Callable[[float | None], str]) -> str:
    return "" if low is None or high is None else f"{shown(low)} to {shown(high)}"


def _strength(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _decimal(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _estimate(found: Estimate | None, shown: Callable[[float | None], str]) -> str:
    return shown(found.value) if found else ""


SORTED_BY: dict[str, Column] = {
    "retention": ("retention>", lambda row: _estimate(row.retention, words.percent)),
    "repetition": ("repetition>", lambda row: _estimate(row.repetition, words.percent)),
    "regenerate_rate": ("regenerated>", lambda row: _estimate(row.regenerate_rate, words.percent)),
    "ttft": ("TTFT>", lambda row: _estimate(row.ttft_ms_median, words.milliseconds)),
    "reply_time": ("reply time>", lambda row: _estimate(row.reply_ms_median, words.milliseconds)),
    "newest": ("submitted", lambda row: words.moment(row.created_at)),
}


def watch_leaderboard(
    fetch: Callable[[], Leaderboard], every_s: float, sort: str, *, is_grouped: bool = False
) -> None:
    """Show the table again and again until Ctrl-C. While the server does not answer, the last table stays and says so."""
    from rich.live import Live

    from guanaco.errors import Unavailable

    board = fetch()
    first = ranks_of(board)

    def table(trouble: str | None = None) -> Table:
        shown = _shown(board, is_grouped=is_grouped)
        return live_table(board, first, sort, trouble, shown)

    with Live(table(), console=console.rich(is_talk=False), auto_refresh=False) as live:
        try:
            while True:
                time.sleep(every_s)
                try:
                    board, trouble = fetch(), None
                except Unavailable as error:
                    trouble = error.detail
                live.update(table(trouble), refresh=True)
        except KeyboardInterrupt:
            return


def ranks_of(board: Leaderboard) -> dict[str, int | None]:
    return {row.submission_id: row.rank for row in board.rows}


def live_table(
    board: Leaderboard,
    first: dict[str, int | None],
    sort: str,
    trouble: str | None = None,
    shown: ShownRows | None = None,
) -> Table:
    shown = shown or ShownRows(board.rows, {})
    marks = [mark(first.get(row.submission_id, 0), row.rank) for row in shown.rows]
    cells = rows_of(board, sort, shown)
    rows = [(moved, *each) for moved, each in zip(marks, cells, strict=True)]
    caption = f"as of {words.clock(board.at)}; Ctrl-C ends"
    return console.make_table(
        ("moved", *columns_of(board, sort)),
        rows,
        caption=f"{caption}. {trouble} Trying again." if trouble else caption,
        keep=_sorted_by(sort),
    )


def mark(before: int | None, now: int | None) -> str:
    """Say how many places a row moved; ``new`` for one that was not there (0) or had no rank."""
    if now is None or now == before:
        return ""
    if not before:
        return "new"
    return f"up {before - now}" if now < before else f"down {now - before}"
