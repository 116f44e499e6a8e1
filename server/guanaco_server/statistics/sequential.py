"""Sequential tests of whether a proportion is worse than another or over a limit, which may be looked at after every observation.

Two arms count bad outcomes: the old one (``s0`` of ``n0``) and the new one (``s1`` of ``n1``). The null hypothesis is that
the new one is at most ``margin`` worse, ``p1 <= p0 + margin``. The evidence against it is the mixture likelihood ratio

    E = ∫ L(p0) dπ(p0) ∫ L(p1) dπ(p1)  /  max { L(p0) L(p1) : p1 <= p0 + margin }

with Jeffreys' prior π = Beta(½, ½). Under the null the denominator is at least the likelihood of the truth, so E is at
most a nonnegative martingale that begins at 1, and by Ville's inequality

    P(E ever reaches 1 / alpha) <= alpha

however often one looks, however the observations of the two arms alternate, and whatever one does upon seeing them.
(L. Wasserman, A. Ramdas, S. Balakrishnan, "Universal inference", PNAS 2020; H. Robbins, "Statistical methods related
to the law of the iterated logarithm", 1970, for mixtures.) No number of observations is assumed, nor that it is large.
Against a limit the same holds with one arm: E is its mixture over its highest likelihood with ``p <= limit``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HALVINGS = 60


@dataclass(frozen=True)
class Proportion:
    """``bad`` of ``total`` outcomes."""

    bad: int
    total: int

    @property
    def rate(self) -> float:
        return self.bad / self.total if self.total else 0.0


def is_worse(new: Proportion, old: Proportion, *, margin: float, alpha: float) -> bool:
    """Tell whether the new one is worse by more than the margin; the chance of ever saying so wrongly is at most ``alpha``."""
    return log_evidence(new, old, margin) >= -math.log(alpha)


def is_over(seen: Proportion, limit: float, *, alpha: float) -> bool:
    """Tell whether the proportion is over the limit, with a chance of at most ``alpha`` ever to say so wrongly."""
    best_null = _log_likelihood(seen, min(seen.rate, limit))
    return _log_mixture(seen) - best_null >= -math.log(alpha)


def log_evidence(new: Proportion, old: Proportion, margin: float = 0.0) -> float:
    """Return log E."""
    return _log_mixture(old) + _log_mixture(new) - _log_best_null(new, old, margin)


def _log_mixture(seen: Proportion) -> float:
    """The logarithm of the likelihood, averaged over Beta(½, ½)."""
    good = seen.total - seen.bad
    return (
        math.lgamma(seen.bad + 0.5)
        + math.lgamma(good + 0.5)
        - math.lgamma(seen.total + 1.0)
        - math.log(math.pi)
    )


def _log_best_null(new: Proportion, old: Proportion, margin: float) -> float:
    """The highest log-likelihood of both arms with ``p1 <= p0 + margin``."""
    if new.rate <= old.rate + margin:
        return _log_likelihood(new, new.rate) + _log_likelihood(old, old.rate)
    # The likelihood is concave, so the best is on the boundary p1 = p0 + margin, between the two observed rates.
    low, high = max(0.0, old.rate), min(1.0 - margin, new.rate - margin)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _slope(new, middle + margin) + _slope(old, middle) > 0:
            low = middle
        else:
            high = middle
    p0 = (low + high) / 2
    return _log_likelihood(new, p0 + margin) + _log_likelihood(old, p0)


def _slope(seen: Proportion, p: float) -> float:
    """The derivative of the log-likelihood at p."""
    slope = 0.0
    if seen.bad:
        slope += seen.bad / p if p > 0 else math.inf
    if good := seen.total - seen.bad:
        slope -= good / (1 - p) if p < 1 else math.inf
    return slope


def _log_likelihood(seen: Proportion, p: float) -> float:
    log = 0.0
    if seen.bad:
        log += seen.bad * math.log(p) if p > 0 else -math.inf
    if good := seen.total - seen.bad:
        log += good * math.log1p(-p) if p < 1 else -math.inf
    return log
