"""Estimates what uniform assignment would have shown, from conversations that were assigned by another rule.

A thumbs-up ratio is of those who were assigned to a submission and rated. When a rule's chances change while apps, bots or days
change too, two submissions are rated by different users, and their ratios differ although the same users would like them alike.
The exact chance p of each assignment puts that right. For submission s and conversation i with stratum x (app, bot and
day), the augmented inverse-propensity term (J. Robins, A. Rotnitzky, L. Zhao, JASA 89 (1994))

    m_s(x) + [s was assigned] / p_is · (Y_i - m_s(x))

has the mean that s would have had in i, whatever m is; a good m only makes it vary less. It is right if the chances are, and
nearly right with wrong chances if m is: doubly robust. Here m is a mean of *earlier* conversations only, so that each term has
that mean given all that was recorded before it, also when the assignment follows the ratings. Y is taken twice, "rated" and
"rated with thumbs up"; the ratio of the two means is the thumbs-up ratio. A conversation counts for s if s could have been
assigned with a chance of LEAST_CHANCE at least, which is known before the choice.

Users who like more than others do are known by their earlier ratings: z is the sum of what a user's ratings were above m's ratio, drawn to
0. A ridge line on z, fitted to the past too, is added to m for thumbs up; where earlier ratings say nothing its slope stays near 0.

The interval is the asymptotic confidence sequence of statistics/confidence_sequences.py with errors clustered by user: it
holds at every look in the limit of many users, not exactly with few. Few is meant of the users who rated the submission itself: others add a mean
of the model each, whose spread says nothing of what is missing. They are counted as (Σ w)² / Σ w² (L. Kish, *Survey Sampling*, 1965), with w the sum of a user's 1 / p, so that one
with a small chance is no crowd.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from guanaco_server.statistics.confidence_sequences import asymptotic_multiple, shared_alpha

LEAST_CHANCE = 0.005  # below it one conversation would weigh as much as 200
DRAWN = 2.0  # ratings by which a user's earlier ones are drawn to the mean
RIDGE = (
    2.0  # of the line on earlier ratings: of some fifty conversations of users who differ usually
)
PRIOR = 5.0  # conversations by which a stratum's mean is drawn to the submission's, and that to all submissions'
FEWEST_RATERS = 30  # with fewer of its own the limit is far away: no interval


@dataclass(frozen=True)
class AssignedConversation:
    """A conversation with the chance that each submission had of getting it; ``thumbs_up`` is None without a rating."""

    user: Hashable
    stratum: Hashable
    chances: Mapping[str, float]
    chosen: str
    thumbs_up: bool | None


@dataclass(frozen=True)
class UniformRatio:
    """A submission's thumbs-up ratio if every conversation that it could have got had been as likely to be its own.

    Attributes:
        conversations: Those that it could have got.
        rated: Of those that it got: the rated ones.
        observed: The ratio of the ratings as they are.
        ratio: The estimate; None without a rating.
        low: The interval's lower end; None with too few users who rated it.
        high: The interval's upper end.
    """

    conversations: int
    rated: int
    observed: float | None
    ratio: float | None
    low: float | None
    high: float | None


@dataclass
class _Means:
    """Sums of (conversations, rated, thumbs up)."""

    count: float = 0.0
    rated: float = 0.0
    up: float = 0.0

    def add(self, rated: float, up: float) -> None:
        self.count += 1
        self.rated += rated
        self.up += up

    def drawn_to(self, rated: float, up: float) -> tuple[float, float]:
        total = self.count + PRIOR
        return (self.rated + PRIOR * rated) / total, (self.up + PRIOR * up) / total


def _nothing() -> list[float]:
    return [0.0, 0.0]


@dataclass
class _Terms:
    """The sums of a submission's terms, in all and by user."""

    conversations: int = 0
    rated_sum: float = 0.0
    up_sum: float = 0.0
    rated: int = 0
    up: int = 0
    by_user: defaultdict[Hashable, list[float]] = field(
        default_factory=lambda: defaultdict(_nothing)
    )
    rated_weights: defaultdict[Hashable, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, user: Hashable, rated_term: float, up_term: float) -> None:
        self.conversations += 1
        self.rated_sum += rated_term
        self.up_sum += up_term
        sums = self.by_user[user]
        sums[0] += rated_term
        sums[1] += up_term

    @property
    def raters(self) -> float:
        """The users who rated it, as many as weigh alike."""
        weights = self.rated_weights.values()
        return sum(weights) ** 2 / math.fsum(one * one for one in weights) if weights else 0.0


class _UserEffects:
    """How much more each user liked than was expected, and the slope of the line that foretells it."""

    def __init__(self) -> None:
        self._by_user = defaultdict[Hashable, list[float]](_nothing)
        self._squares = self._products = 0.0

    def of(self, user: Hashable) -> float:
        if user not in self._by_user:
            return 0.0
        above, ratings = self._by_user[user]
        return above / (ratings + DRAWN)

    @property
    def slope(self) -> float:
        return self._products / (self._squares + RIDGE)

    def add(self, one: AssignedConversation, rated: float, up: float) -> None:
        """Take in what became of a conversation whose submission was expected to have these means."""
        if one.thumbs_up is None:
            return
        z, above = self.of(one.user), one.thumbs_up - up / max(rated, 1e-9)
        self._squares += z * z
        self._products += z * above
        sums = self._by_user[one.user]
        sums[0] += above
        sums[1] += 1


class UniformSums:
    """The sums of all terms. Conversations are added in the order in which they began, each once: so the sums are those of one sequence."""

    def __init__(self) -> None:
        self._everything, self._own = _Means(), defaultdict[str, _Means](_Means)
        self._strata = defaultdict[tuple[str, Hashable], _Means](_Means)
        self._terms = defaultdict[str, _Terms](_Terms)
        self._tastes = _UserEffects()

    def add(self, one: AssignedConversation) -> None:
        rated, up = float(one.thumbs_up is not None), float(one.thumbs_up is True)
        overall = self._everything.drawn_to(0.5, 0.25)
        taste = self._tastes.slope * self._tastes.of(one.user)
        expected = (0.5, 0.25)
        for name, chance in one.chances.items():
            own = self._own[name].drawn_to(*overall)
            means = self._strata[name, one.stratum].drawn_to(*own)
            if name == one.chosen:
                expected = means
            if chance >= LEAST_CHANCE:
                likely = min(max(means[1] + taste * means[0], 0.0), means[0])
                weight = 1 / chance if name == one.chosen else 0.0
                self._terms[name].add(
                    one.user,
                    means[0] + weight * (rated - means[0]),
                    likely + weight * (up - likely),
                )
                if weight and rated:
                    self._terms[name].rated_weights[one.user] += weight
        chosen = one.chosen
        for means_of in (self._everything, self._own[chosen], self._strata[chosen, one.stratum]):
            means_of.add(rated, up)
        self._tastes.add(one, *expected)
        self._terms[chosen].rated += one.thumbs_up is not None
        self._terms[chosen].up += one.thumbs_up is True

    def ratios(self) -> dict[str, UniformRatio]:
        alpha = shared_alpha(max(1, len(self._terms)))
        return {name: _ratio(one, alpha) for name, one in self._terms.items()}


def uniform_ratios(conversations: Iterable[AssignedConversation]) -> dict[str, UniformRatio]:
    """Estimate the ratio of each submission; ``conversations`` are in the order in which they began."""
    sums = UniformSums()
    for one in conversations:
        sums.add(one)
    return sums.ratios()


def _ratio(terms: _Terms, alpha: float) -> UniformRatio:
    observed = terms.up / terms.rated if terms.rated else None
    if not terms.rated or terms.rated_sum <= 0:
        return UniformRatio(terms.conversations, terms.rated, observed, None, None, None)
    ratio = min(max(terms.up_sum / terms.rated_sum, 0.0), 1.0)
    low = high = None
    if terms.raters >= FEWEST_RATERS:
        squares = math.fsum((up - ratio * rated) ** 2 for rated, up in terms.by_user.values())
        error = math.sqrt(squares) / terms.rated_sum
        spread = asymptotic_multiple(len(terms.by_user), alpha) * error
        low, high = max(0.0, ratio - spread), min(1.0, ratio + spread)
    return UniformRatio(terms.conversations, terms.rated, observed, ratio, low, high)
