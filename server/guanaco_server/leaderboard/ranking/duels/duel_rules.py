"""The rules that leave duels out, as those of flags/rules.py leave out ratings.

    own_account   one of the two submissions' own accounts had the chat
    devoted_user  the user had 20 duels or more between two developers' submissions, and always preferred one developer's
    burst         within a minute more of a submission's duels went one way than all its earlier ones make likely

The plan of the next pairs may turn to a submission from one minute to the next. So a burst is not told by the number of a
submission's duels, as of its ratings: more than 37 of its duels within a minute have the same
result (won, lost or neither), and the odds of that result would have to be more than twice those of all its duels before, but for
a chance of 10⁻⁹. Then all its duels of that minute are left out, whatever their result, and they are not among those *before*
of later minutes. Votes for one submission are votes against its rivals: so the most one-sided burst of a minute is taken first, with the
fewest bystanders, and the others are looked for in what it leaves.

A rule depends on the recorded votes alone, neither on the clock nor on what an admin has allowed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from guanaco_server.leaderboard.flags.rules import (
    BURST_ODDS,
    DEVOTED_RATINGS,
    SLOT_S,
    UNEVENNESS,
    Owner,
    Rule,
    least_burst,
)
from guanaco_server.leaderboard.ranking.duels.duel_rows import BAD, HALF, WON, NameCodes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from guanaco_server.leaderboard.ranking.duels.duel_rows import Codes, Flags, Rows

    Counts = NDArray[np.int64]

SLOT_TICKS = SLOT_S * 1_000_000
NEWCOMERS_ODDS = 9  # before its first duels a submission may lose nine of ten
RESULTS = ("lost", "left open", "won")
# Schemas of seasons (seasons/document.py), which are recomputed by their own rules.
BURSTS_SINCE = 6
FIRST_VOTES_SINCE = NEWEST_SCHEMA = 7


class DuelFlag(NamedTuple):
    """The reason why a duel is left out: it is about ``submission_id``, whose rival was ``rival_id``."""

    battle_id: str
    rule: Rule
    submission_id: str
    rival_id: str
    evidence: str

    @property
    def key(self) -> tuple[str, str]:
        return self.battle_id, self.rule.value


class Mark(NamedTuple):
    """The duels that a rule leaves out for one reason, of which ``is_about_a`` tells the side of the submission that it is about."""

    rule: Rule
    places: Codes
    is_about_a: Flags
    evidence: str


class Sides(NamedTuple):
    """The account that had the chat, and those that own both sides, as codes; a side without a known owner has ``UNOWNED``."""

    app: Codes
    a: Codes
    b: Codes


UNOWNED = -1


def sides_of(
    rows: Rows, users: Sequence[str], submissions: Sequence[str], owners: Mapping[str, Owner]
) -> Sides:
    """Return the accounts of each duel; a user's key begins with the account of the app."""
    import numpy as np

    accounts = NameCodes()
    owner = np.asarray(
        [
            accounts.code(owners[one].account_id) if one in owners else UNOWNED
            for one in submissions
        ],
        dtype=np.int64,
    )
    apps = np.asarray([accounts.code(user.partition("/")[0]) for user in users], dtype=np.int64)
    return Sides(apps[rows["user"]], owner[rows["a"]], owner[rows["b"]])


def marks(
    rows: Rows,
    sides: Sides,
    submissions: Sequence[str],
    owners: Mapping[str, Owner],
    *,
    schema: int,
) -> list[Mark]:
    """Find what the rules of a season's schema leave out of these duels."""
    import numpy as np

    is_own = (sides.app == sides.a) | (sides.app == sides.b)
    own, others = np.flatnonzero(is_own), np.flatnonzero(~is_own)
    is_about_a = sides.app[own] == sides.a[own]
    evidence = "The submission's own account had this chat."
    is_between_rivals = schema >= FIRST_VOTES_SINCE
    found = _by_loyal_users(rows[others], submissions, owners, is_between_rivals=is_between_rivals)
    if schema >= BURSTS_SINCE:
        found += bursts(rows[others], submissions)
    return [
        Mark(Rule.OWN_ACCOUNT, own, is_about_a, evidence),
        *(mark._replace(places=others[mark.places]) for mark in found),
    ]


def _by_loyal_users(
    rows: Rows,
    submissions: Sequence[str],
    owners: Mapping[str, Owner],
    *,
    is_between_rivals: bool,
) -> list[Mark]:
    """Find the users who always preferred one developer, whoever stood against it.

    A duel between two submissions of one developer says nothing of that; up to schema 6 it counted too.
    """
    import numpy as np

    if not len(rows):
        return []
    users, developers = int(rows["user"].max()) + 1, NameCodes()
    whose = np.asarray(
        [developers.code(owners[one].developer if one in owners else "") for one in submissions],
        dtype=np.int64,
    )
    of_a, of_b = whose[rows["a"]], whose[rows["b"]]
    says = (of_a != of_b) if is_between_rivals else np.ones(len(rows), dtype=bool)
    preferred = np.where(rows["outcome"] == WON, of_a, of_b)[says]
    theirs = rows["user"][says]
    first, last = np.full(users, len(developers.all)), np.full(users, -1)
    np.minimum.at(first, theirs, preferred)
    np.maximum.at(last, theirs, preferred)
    held = np.bincount(theirs, minlength=users)
    is_half = (rows["outcome"] == HALF) | (rows["outcome"] == BAD)
    halves = np.bincount(rows["user"][says & is_half], minlength=users)
    devoted = (held >= DEVOTED_RATINGS) & (halves == 0) & (first == last)
    theirs = np.flatnonzero(devoted[rows["user"]])
    found = []
    for user in np.flatnonzero(devoted).tolist():
        places = theirs[rows["user"][theirs] == user]
        evidence = f"All {held[user]} duels of this user preferred {developers.all[first[user]]}."
        found.append(Mark(Rule.DEVOTED_USER, places, of_a[places] == first[user], evidence))
    return found


def bursts(rows: Rows, submissions: Sequence[str]) -> list[Mark]:
    """Find the minutes in which the duels of a submission went one way, by the time of each duel's first vote."""
    import numpy as np

    order = np.argsort(rows["at"], kind="stable")
    ordered = rows[order]
    minutes = ordered["at"] // SLOT_TICKS
    _, begins, counts = np.unique(minutes, return_index=True, return_counts=True)
    before = np.zeros((len(submissions), len(RESULTS)), dtype=np.int64)
    found: list[Mark] = []
    done = 0
    for slot in np.flatnonzero(counts > least_burst()).tolist():
        begin, end = int(begins[slot]), int(begins[slot] + counts[slot])
        before += _results(ordered[done:begin], len(submissions))
        left = np.arange(begin, end)
        while one := _most_one_sided(
            _results(ordered[left], len(submissions)), before, submissions
        ):
            theirs = left[(ordered["a"][left] == one.code) | (ordered["b"][left] == one.code)]
            is_about_a = ordered["a"][theirs] == one.code
            is_new = ~np.isin(ordered["user"][theirs], ordered["user"][:begin])
            evidence = _evidence(one, ordered["user"][theirs], is_new)
            found.append(Mark(Rule.BURST, order[theirs], is_about_a, evidence))
            left = np.setdiff1d(left, theirs)
        before += _results(ordered[left], len(submissions))
        done = end
    return found


class _OneWay(NamedTuple):
    """The number of a submission's duels within a minute that had the same result, of all that it had."""

    code: int
    result: str
    same: int
    total: int


def _results(rows: Rows, size: int) -> Counts:
    """Count the duels by submission and result."""
    import numpy as np

    of_a = np.where(rows["outcome"] == BAD, HALF, rows["outcome"]).astype(np.int64)
    cells = np.concatenate(
        [rows["a"] * len(RESULTS) + of_a, rows["b"] * len(RESULTS) + (WON - of_a)]
    )
    return np.bincount(cells, minlength=size * len(RESULTS)).reshape(size, len(RESULTS))


def _most_one_sided(counts: Counts, before: Counts, submissions: Sequence[str]) -> _OneWay | None:
    """Return the burst of a minute that has the fewest other results, if there is any."""
    import numpy as np

    found = []
    for code, result in np.argwhere(counts > least_burst()).tolist():
        same, total = int(counts[code, result]), int(counts[code].sum())
        known = int(before[code, result]), int(before[code].sum())
        chance = log_chance(same, total, *known)
        if chance < math.log(BURST_ODDS):
            one = _OneWay(code, RESULTS[result], same, total)
            found.append((1 - same / total, -result, chance, submissions[code], one))
    return min(found)[-1] if found else None


def log_chance(same: int, total: int, same_before: int, before: int) -> float:
    """Bound the logarithm of the chance that as many of a minute's duels have the same result.

    The odds of that result may be ``UNEVENNESS`` times those of the duels before. P(K ≥ k) ≤ exp(-n KL(k/n ‖ q)) of n trials with the
    chance q (H. Chernoff, Annals of Mathematical Statistics 23, 1952).
    """
    odds = UNEVENNESS * (same_before + NEWCOMERS_ODDS) / (before - same_before + 1)
    chance, share = odds / (1 + odds), same / total
    if share <= chance:
        return 0.0
    others = (1 - share) * math.log((1 - share) / (1 - chance)) if share < 1 else 0.0
    return -total * (share * math.log(share / chance) + others)


def _evidence(one: _OneWay, users: Codes, is_new: Flags) -> str:
    import numpy as np

    new = len(np.unique(users[is_new]))
    return (
        f"One of {one.total} duels of the submission within a minute, of which {one.same} were {one.result}; "
        f"by {len(np.unique(users))} users, {new} of them with no duel before that minute."
    )


def flags_of(
    found: Sequence[Mark], rows: Rows, ids: NDArray[np.bytes_], submissions: Sequence[str]
) -> list[DuelFlag]:
    """Name the duels that marks are about."""
    flags = []
    for mark in found:
        for place, is_about_a in zip(mark.places.tolist(), mark.is_about_a.tolist(), strict=True):
            sides = submissions[rows["a"][place]], submissions[rows["b"][place]]
            one, rival = sides if is_about_a else sides[::-1]
            flags.append(DuelFlag(ids[place].decode(), mark.rule, one, rival, mark.evidence))
    return flags
