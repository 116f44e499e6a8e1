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

The interval is the asymptotic confidence sequence of statistics/confidence_sequences.py with errors clustered by user: it
holds at every look in the limit of many users, not exactly with few.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from guanaco_server.statistics.confidence_sequences import asymptotic_multiple, shared_alpha

LEAST_CHANCE = 0.005  # below it one conversation would weigh as much as 200
PRIOR = 5.0  # conversations by which a stratum's mean is drawn to the submission's, and that to all submissions'
FEWEST_USERS = 30  # with fewer the limit is far away: no interval


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
        low: The interval's lower end; None with too few users.
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


@dataclass
class _Terms:
    """The sums of a submission's terms, in all and by user."""

    conversations: int = 0
    rated_sum: float = 0.0
    up_sum: float = 0.0
    rated: int = 0
    up: int = 0
    by_user: defaultdict[Hashable, list[float]] = field(
        default_factory=lambda: defaultdict(lambda: [0.0, 0.0])
    )


def uniform_ratios(conversations: Iterable[AssignedConversation]) -> dict[str, UniformRatio]:
    """Estimate the ratio of each submission; ``conversations`` are in the order in which they began."""
    everything, own = _Means(), defaultdict[str, _Means](_Means)
    strata = defaultdict[tuple[str, Hashable], _Means](_Means)
    terms = defaultdict[str, _Terms](_Terms)
    for one in conversations:
        rated, up = float(one.thumbs_up is not None), float(one.thumbs_up is True)
        overall = everything.drawn_to(0.5, 0.25)
        for name, chance in one.chances.items():
            if chance < LEAST_CHANCE:
                continue
            means = strata[name, one.stratum].drawn_to(*own[name].drawn_to(*overall))
            weight = 1 / chance if name == one.chosen else 0.0
            found = terms[name]
            rated_term = means[0] + weight * (rated - means[0])
            up_term = means[1] + weight * (up - means[1])
            found.conversations += 1
            found.rated_sum += rated_term
            found.up_sum += up_term
            sums = found.by_user[one.user]
            sums[0] += rated_term
            sums[1] += up_term
        for means_of in (everything, own[one.chosen], strata[one.chosen, one.stratum]):
            means_of.add(rated, up)
        terms[one.chosen].rated += one.thumbs_up is not None
        terms[one.chosen].up += one.thumbs_up is True
    alpha = shared_alpha(max(1, len(terms)))
    return {name: _ratio(one, alpha) for name, one in terms.items()}


def _ratio(terms: _Terms, alpha: float) -> UniformRatio:
    observed = terms.up / terms.rated if terms.rated else None
    if not terms.rated or terms.rated_sum <= 0:
        return UniformRatio(terms.conversations, terms.rated, observed, None, None, None)
    ratio = min(max(terms.up_sum / terms.rated_sum, 0.0), 1.0)
    low = high = None
    users = len(terms.by_user)
    if users >= FEWEST_USERS:
        squares = math.fsum((up - ratio * rated) ** 2 for rated, up in terms.by_user.values())
        error = math.sqrt(squares) / terms.rated_sum
        spread = asymptotic_multiple(users, alpha) * error
        low, high = max(0.0, ratio - spread), min(1.0, ratio + spread)
    return UniformRatio(terms.conversations, terms.rated, observed, ratio, low, high)
