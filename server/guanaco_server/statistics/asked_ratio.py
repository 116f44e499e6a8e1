"""Estimates the thumbs-up ratio of all who could be asked from a random share that was asked, validly at every look.

Conversation i of a submission may be asked, and is with the chance p_i, drawn by the platform. If it is asked, R_i = 1 says that the user
answered and U_i = 1 that they answered with thumbs up. Before the draw, lines fitted to earlier conversations give g^U_i <= g^R_i
within [0, 1] (statistics/answer_lines.py). With A_i = 1 for "asked",

    T^U_i = g^U_i + A_i / p_i (U_i - g^U_i)        T^R_i = g^R_i + A_i / p_i (R_i - g^R_i)

have the means μ^U_i and μ^R_i that U_i and R_i would have had if everybody had been asked, given the conversations before, whatever the
lines are: good lines only make them vary less (prediction-powered inference; A. Angelopoulos and others, Science 382 (2023)). The target
after n conversations is θ = Σ μ^U / Σ μ^R, the estimate Σ T^U / Σ T^R.

The sequence. For a direction r in [0, 1], Z_i = T^U_i - r T^R_i differs from a center z_i that was known before conversation i by at most
c = 1/p: its values lie between (1 - r) - 1/p and 1/p - r, and z_i between -r and 1 - r. So

    exp( λ Σ (Z_i - E Z_i)  -  ψ(λ) Σ (Z_i - z_i)² ),     ψ(λ) = (-log(1 - c|λ|) - c|λ|) / c²

is a nonnegative supermartingale that begins at 1 at most (X. Fan, I. Grama, Q. Liu, Electronic Journal of Probability 20 (2015); S. R. Howard, A. Ramdas,
J. McAuliffe, J. Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences", Annals of Statistics 49 (2021), theorem 4; I.
Waudby-Smith, A. Ramdas, JRSS B 86 (2024)). So is a mixture over λ and r. In Σ E Z_i = Σ μ^U - r Σ μ^R, only m = Σ μ^R is unknown once θ is supposed, and lies between 0 and n: the least of the mixture over m is the evidence against θ. Had one direction, r = θ, been taken
for each θ, then m would drop out; but nothing would hold all the time while θ moves with users and days, and here it does.

With slopes λ > 0 it is evidence against "θ is at most so much", with λ < 0 against "at least". Sums up to the second degree are
all that it needs. Where p falls during a competition, slopes that are too steep for the new one are dropped, which leaves a supermartingale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from guanaco_server.statistics.answer_lines import AskedConversations, Predictions
from guanaco_server.statistics.confidence_sequences import ALPHA, shared_alpha
from guanaco_server.statistics.decisions import Comparison
from guanaco_server.statistics.foretelling import Foretold, times_until

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

STEEPEST = 0.8  # of c λ, which is below 1
RATIO = 1.6
SIZES = 12  # the flattest is 0.0045: the best one for some hundred thousand answers
DIRECTIONS = (0.1, 0.3, 0.5, 0.7, 0.9)  # more of them gain nothing
HALVINGS = 34
BISECTIONS = 16  # to 0.0015 points
CELLS = 8  # of the ratios that may be; those that do not decide are divided again
DIVISIONS = 6


@dataclass(frozen=True)
class AskedSums:
    """The sums of a submission's conversations that could be asked.

    ``first_chance`` was the chance of the competition's first one, ``least_chance`` the least of any until now. The sums of squares are
    those of T^U and T^R less their centers, and of their products.
    """

    first_chance: float
    least_chance: float
    eligible: float
    asked: int
    answered: float
    up: int
    up_terms: float
    answer_terms: float
    up_squares: float
    products: float
    answer_squares: float

    @property
    def ratio(self) -> float | None:
        """The estimate; None while nobody has answered."""
        if not self.answered or self.answer_terms <= 0:
            return None
        return min(max(self.up_terms / self.answer_terms, 0.0), 1.0)

    def squares(self, direction: float) -> float:
        """Return Σ (Z - z)² in a direction."""
        return (
            self.up_squares
            - 2 * direction * self.products
            + direction * direction * self.answer_squares
        )

    def times(self, factor: float) -> AskedSums:
        """Return the sums of so many times as many conversations of the same kind."""
        return replace(
            self,
            eligible=self.eligible * factor,
            answered=self.answered * factor,
            up_terms=self.up_terms * factor,
            answer_terms=self.answer_terms * factor,
            up_squares=self.up_squares * factor,
            products=self.products * factor,
            answer_squares=self.answer_squares * factor,
        )


def asked_sequences(
    all_sums: Sequence[AskedSums], alpha: float = ALPHA
) -> list[tuple[float, float]]:
    """Return the interval of each θ, valid at all looks together, of submissions of one competition; its ends err outwards."""
    import numpy as np

    if not all_sums:
        return []
    columns = np.array([astuple(one) for one in all_sums], dtype=np.float64).T
    first, least, eligible, _, _, _, up_terms, answer_terms, *squares = columns
    chances = float(first[0]), float(least[0])
    needed = -math.log(alpha / 2)
    ends = []
    for above in (True, False):
        shown, other = np.zeros(len(all_sums)), np.ones(len(all_sums))
        if not above:
            shown, other = other, shown
        for _ in range(BISECTIONS):
            middle = (shown + other) / 2
            found = log_mixture(
                up_terms,
                answer_terms,
                (squares[0], squares[1], squares[2]),
                eligible,
                chances,
                middle,
                above=above,
            )
            is_shown = found >= needed
            shown, other = np.where(is_shown, middle, shown), np.where(is_shown, other, middle)
        ends.append(shown)
    return list(zip(ends[0].tolist(), ends[1].tolist(), strict=True))


def compare_asked(
    leader: AskedSums,
    other: AskedSums,
    *,
    margin: float,
    members: int,
    alpha: float = ALPHA,
    foretells: bool = True,
) -> Comparison:
    """Compare a leader with one of ``members`` submissions, as decisions.compare does with the votes of all.

    Foretold is how many more answers of both would show that the leader is within the margin if both ratios stay, without a range.
    """
    needed = -math.log(shared_alpha(members, alpha))
    if is_excluded(leader, other, 0.0, needed):
        return Comparison(is_better=True, is_within=True)
    if is_excluded(leader, other, margin, needed):
        return Comparison(is_better=False, is_within=True)
    votes = _answers_until(leader, other, margin, needed) if foretells else None
    return Comparison(is_better=False, is_within=False, foretold=Foretold(votes))


def is_excluded(leader: AskedSums, other: AskedSums, margin: float, needed: float) -> bool:
    """Tell whether the evidence against "the other is better by the margin or more" is enough, whichever ratios make that true.

    Evidence against "θ <= x" falls with x, and against "θ' >= x + margin" rises: so within a cell of x both are at least what they are at one of
    its ends.
    """
    import numpy as np

    starts, width = np.array([0.0]), 1.0 - margin
    for _ in range(DIVISIONS):
        width /= CELLS
        edges = starts[:, None] + width * np.arange(CELLS + 1)
        low = evidence(leader, edges, above=True)
        high = evidence(other, edges + margin, above=False)
        if bool((low + high < needed).any()):
            return False
        is_open = low[:, 1:] + high[:, :-1] < needed
        starts = edges[:, :-1][is_open]
        if not len(starts):
            return True
    return False


def evidence(sums: AskedSums, ratios: Floats, *, above: bool) -> Floats:
    """Return the log of the evidence that θ is ``above`` each of these ratios, or otherwise below."""
    return log_mixture(
        sums.up_terms,
        sums.answer_terms,
        (sums.up_squares, sums.products, sums.answer_squares),
        sums.eligible,
        (sums.first_chance, sums.least_chance),
        ratios,
        above=above,
    )


def log_mixture(
    up_terms: Floats | float,
    answer_terms: Floats | float,
    squares: tuple[Floats | float, Floats | float, Floats | float],
    eligible: Floats | float,
    chances: tuple[float, float],
    ratios: Floats,
    *,
    above: bool,
) -> Floats:
    """Return the least of the mixture over m; sums and ratios are single numbers, or arrays of the same shape.

    The mixture is convex in m, so its tangent where the search ends bounds it from below: the result errs towards no evidence.
    """
    import numpy as np

    first, least = chances
    slopes = first * STEEPEST / RATIO ** np.arange(SIZES)
    slopes = slopes[slopes < least]
    lam = slopes[:, None] if above else -slopes[:, None]
    psi = ((-np.log1p(-slopes / least) - slopes / least) * least**2)[:, None]
    r = np.array(DIRECTIONS)

    def spread(values: Floats | float) -> Floats:
        return np.asarray(values, dtype=np.float64)[..., None, None]

    up_squares, products, answer_squares = (spread(one) for one in squares)
    total = up_squares - 2 * r * products + r * r * answer_squares
    fixed = lam * (spread(up_terms) - r * spread(answer_terms)) - psi * total
    growth = lam * (r - spread(ratios))
    fixed, growth = np.broadcast_arrays(fixed - math.log(SIZES * len(DIRECTIONS)), growth)
    low = np.zeros(fixed.shape[:-2])
    high = low + np.asarray(eligible, dtype=np.float64)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        _, slope = _log_sum(fixed + growth * middle[..., None, None], growth)
        low, high = np.where(slope < 0, middle, low), np.where(slope < 0, high, middle)
    at_low, slope = _log_sum(fixed + growth * low[..., None, None], growth)
    found: Floats = at_low + np.minimum(0.0, slope) * (high - low)
    return found


def _log_sum(logs: Floats, growth: Floats) -> tuple[Floats, Floats]:
    """Return the log of the sum, and its derivative."""
    import numpy as np

    most = logs.max(axis=(-2, -1), keepdims=True)
    parts = np.exp(logs - most)
    whole = parts.sum(axis=(-2, -1))
    return most[..., 0, 0] + np.log(whole), (parts * growth).sum(axis=(-2, -1)) / whole


def _answers_until(leader: AskedSums, other: AskedSums, margin: float, needed: float) -> int | None:
    if leader.ratio is None or other.ratio is None or leader.ratio + margin <= other.ratio:
        return None
    times = times_until(
        lambda times: is_excluded(leader.times(times), other.times(times), margin, needed)
    )
    total = leader.answered + other.answered
    return None if times is None else max(1, round((times - 1) * total))


def sums_of(
    asked: AskedConversations, predicted: Predictions, *, uses_signals: bool
) -> list[AskedSums]:
    """Add up each submission's conversations, with the lines or with their centers alone."""
    import numpy as np

    count = int(asked.submissions.max(initial=-1)) + 1
    up, answered, squares = terms_of(asked, predicted, uses_signals=uses_signals)

    def added(values: Floats) -> Floats:
        found: Floats = np.bincount(asked.submissions, values, count).astype(np.float64)
        return found

    first = float(asked.chances[0]) if len(asked.chances) else 1.0
    least = float(asked.chances.min(initial=1.0))
    columns = (up, answered, *squares)
    sums = [added(values) for values in columns]
    counts = [
        added(values) for values in (np.ones(len(up)), asked.is_asked, asked.answered, asked.up)
    ]
    return [
        AskedSums(
            first,
            least,
            *(int(one[place]) for one in counts),
            *(float(one[place]) for one in sums),
        )
        for place in range(count)
    ]


def terms_of(
    asked: AskedConversations, predicted: Predictions, *, uses_signals: bool
) -> tuple[Floats, Floats, tuple[Floats, Floats, Floats]]:
    """Return T^U, T^R, and the squares of their distances from the centers."""
    up, answered = (
        (predicted.up, predicted.answered)
        if uses_signals
        else (predicted.center_up, predicted.center_answered)
    )
    weight = asked.is_asked / asked.chances
    up_terms = up + weight * (asked.up - up)
    answer_terms = answered + weight * (asked.answered - answered)
    off, answer_off = up_terms - predicted.center_up, answer_terms - predicted.center_answered
    return up_terms, answer_terms, (off * off, off * answer_off, answer_off * answer_off)
