"""Estimates the ratio of all conversations that could be asked for a rating, and which submission is within a margin of the best in it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime

from guanaco.competitions import Competition
from guanaco.leaderboard import AskedRatio, AskedVerdict, VerdictPair, VerdictState
from guanaco_server.database.database import Database
from guanaco_server.leaderboard.counting.asks import AskedConversationCache
from guanaco_server.leaderboard.field import Field, placed
from guanaco_server.runtime import threads
from guanaco_server.statistics.answer_lines import AskedConversations, predictions
from guanaco_server.statistics.asked_ratio import (
    AskedSums,
    asked_sequences,
    compare_asked,
    sums_of,
)
from guanaco_server.statistics.confidence_sequences import shared_alpha
from guanaco_server.statistics.decisions import Comparison
from guanaco_server.submissions.service import SubmissionService

MAX_BOOKS = 16
FORETOLD = (
    5  # pairs for which the answers that are still needed are estimated, a quarter of a second each
)
FEWEST = 30  # answers before the gain is told


class AskedReader:
    """Keeps what was read of competitions that ask a random share; who calls it sees to it that one call at a time is under way."""

    def __init__(self, database: Database, submissions: SubmissionService) -> None:
        self._database = database
        self._submissions = submissions
        self._books: OrderedDict[str, AskedConversationCache] = OrderedDict()
        self._verdicts: dict[str, tuple[float, Field, AskedVerdict]] = {}

    async def verdict(self, competition: Competition, field: Field, now: datetime) -> AskedVerdict:
        """Return the verdict on all who could be asked in a competition that asks."""
        briefs = await self._submissions.catalog.briefs(may_be_stale=True)
        owners = {one.id: one.account_id for one in briefs}
        book = self._books.pop(competition.id, None) or AskedConversationCache()
        async with self._database.read(may_be_stale=True) as session:
            if await book.has_lost(session, competition.id):
                self._verdicts.pop(competition.id, None)
                book = AskedConversationCache()
            has_changed = await book.refresh(session, competition, owners, now)
        self._keep(competition.id, book)
        margin = competition.assignment.within
        known = self._verdicts.get(competition.id)
        if known is None or has_changed or known[:2] != (margin, field):
            columns = book.columns()
            found = await threads.PAGES.run(_verdict, book.names, columns, margin, field)
            self._verdicts[competition.id] = known = (margin, field, found)
        return known[2].model_copy(update={"waiting": book.waiting})

    def _keep(self, competition: str, book: AskedConversationCache) -> None:
        self._books[competition] = book
        if len(self._books) > MAX_BOOKS:
            self._verdicts.pop(self._books.popitem(last=False)[0], None)


def _verdict(
    names: Sequence[str], asked: AskedConversations, margin: float, field: Field
) -> AskedVerdict:
    """Compare the field (field.py): the first live one leads, and the error is shared by all who were ever asked or take part."""
    predicted = predictions(asked)
    with_signals = dict(zip(names, sums_of(asked, predicted, uses_signals=True), strict=True))
    plain = dict(zip(names, sums_of(asked, predicted, uses_signals=False), strict=True))
    members = len(field.votes.keys() | set(names))
    alpha = shared_alpha(max(1, members))
    intervals, plain_intervals = (
        dict(zip(names, asked_sequences(list(sums.values()), alpha), strict=True))
        for sums in (with_signals, plain)
    )
    rows = [
        _row(name, with_signals[name], plain[name], intervals[name], plain_intervals[name])
        for name in names
    ]
    rows.sort(key=lambda row: (-row.low, -(row.ratio or 0.0), row.submission_id))
    answered = [row.submission_id for row in rows if row.answered]
    first = [name for name in answered if not field.is_withdrawn(name)][:1]
    answered = first + [name for name in answered if name not in first]
    pairs = []
    foretold = FORETOLD
    for name in answered[1:]:
        found = compare_asked(
            with_signals[answered[0]],
            with_signals[name],
            margin=margin,
            members=members,
            foretells=foretold > 0,
        )
        foretold -= not found.is_within
        pairs.append(
            VerdictPair(submission_id=name, state=_state(found), votes=found.foretold.votes)
        )
    leader = answered[0] if answered else None
    placed_pairs, is_decided = ([], False) if leader is None else placed(leader, pairs, field)
    return AskedVerdict(
        waiting=0,
        leader=leader,
        is_decided=is_decided,
        worth=_worth(with_signals, plain),
        pairs=placed_pairs,
        rows=rows,
    )


def _row(
    name: str,
    sums: AskedSums,
    plain: AskedSums,
    interval: tuple[float, float],
    plain_interval: tuple[float, float],
) -> AskedRatio:
    (low, high), (plain_low, plain_high) = interval, plain_interval
    return AskedRatio(
        submission_id=name,
        eligible=int(sums.eligible),
        asked=sums.asked,
        answered=int(sums.answered),
        up=sums.up,
        ratio=sums.ratio,
        low=low,
        high=high,
        plain_ratio=plain.ratio,
        plain_low=plain_low,
        plain_high=plain_high,
    )


def _worth(with_signals: dict[str, AskedSums], plain: dict[str, AskedSums]) -> int | None:
    """Compare the variances of both estimates, summed over all submissions."""
    ratios = {name: one.ratio for name, one in plain.items()}
    if sum(one.answered for one in plain.values()) < FEWEST:
        return None
    ours = sum(with_signals[name].squares(at) for name, at in ratios.items() if at is not None)
    theirs = sum(plain[name].squares(at) for name, at in ratios.items() if at is not None)
    return round(1_000 * theirs / ours) if ours > 0 else None


def _state(found: Comparison) -> VerdictState:
    if found.is_better:
        return VerdictState.BETTER
    return VerdictState.WITHIN if found.is_within else VerdictState.OPEN
