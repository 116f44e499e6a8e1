"""Estimates a value and its 95 % interval from sums. Each function names the source of its formula."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

from guanaco.estimates import Estimate
from guanaco_server.statistics.intervals import quantile_ranks, t_95, wilson_interval

SAME = 1e-12  # share of the variance below which a difference is rounding


def proportion(successes: int, trials: int) -> Estimate | None:
    """Estimate a proportion with Wilson's score interval."""
    if trials == 0:
        return None
    low, high = wilson_interval(successes, trials)
    return Estimate(value=successes / trials, low=low, high=high, n=trials)


def mean(n: int, total: int, squares: int, unit: float = 1.0) -> Estimate | None:
    """Estimate a mean; the interval is Student's t times the standard error to each side.

    There is no interval where all values are equal or there is only one: they do not tell how far another could lie.
    """
    if n == 0:
        return None
    value = total / n * unit
    spread = n * squares - total * total  # exact, whatever the numbers' size
    if n == 1 or spread == 0:
        return Estimate(value=value, low=None, high=None, n=n)
    error = t_95(n - 1) * math.sqrt(spread / (n * n * (n - 1))) * unit
    return Estimate(value=value, low=value - error, high=value + error, n=n)


def quantile(counts: Mapping[int, int], share: float) -> tuple[int, int | None, int | None] | None:
    """Return the bucket of the quantile, and the buckets of the order statistics that bound it with 95 % confidence.

    The number of values below the quantile is binomial, so each end is missed in 2.5 % of cases at most. An end is None
    where not even the smallest or the greatest value is far enough out. H. A. David, H. N. Nagaraja, "Order Statistics"
    (3rd ed., 2003), section 7.1.
    """
    n = sum(counts.values())
    if n == 0:
        return None
    low, high = quantile_ranks(n, share)
    buckets = sorted(counts)
    ranks = list(accumulate(counts[bucket] for bucket in buckets))  # of the last value in each
    return (
        buckets[bisect_left(ranks, max(1, math.ceil(n * share)))],
        buckets[bisect_left(ranks, low)] if low >= 1 else None,
        buckets[bisect_left(ranks, high)] if high <= n else None,
    )


def ratio(n: int, sums: tuple[int, int], products: tuple[int, int, int]) -> Estimate | None:
    """Estimate Σy/Σx over ``n`` independent pairs, where y is counted within x and a conversation is a cluster.

    ``products`` are Σyy, Σxy, Σxx. W. G. Cochran, "Sampling Techniques" (3rd ed., 1977), equation 6.13. Where all
    clusters have the same ratio, as when nothing or everything was counted, the spread says nothing. The interval is
    then Wilson's, with a cluster as one trial (near 3/n for 0 of n, like J. A. Hanley and A. Lippman-Hand's rule of three).
    """
    (y, x), (yy, xy, xx) = sums, products
    if x == 0:
        return None
    value = y / x
    residuals = x * x * yy - 2 * x * y * xy + y * y * xx  # exact, times x²
    if residuals == 0:
        low, high = wilson_interval(value * n, n)
    elif n < 2:
        return Estimate(value=value, low=None, high=None, n=n)
    else:
        error = t_95(n - 1) * math.sqrt(residuals * n / (n - 1)) / (x * x)
        low, high = max(0.0, value - error), min(1.0, value + error)
    return Estimate(value=value, low=low, high=high, n=n)


def slope_speed(
    n: int, firsts: tuple[int, int, int], products: tuple[int, int, int, int, int, int]
) -> Estimate | None:
    """Estimate units of x a second: 1,000 / b of t = a + b·x + c·y by least squares, with t in ms.

    Args:
        n: The number of observations.
        firsts: Σx, Σy, Σt.
        products: Σxx, Σxy, Σyy, Σxt, Σyt, Σtt.

    Returns:
        The estimate; its interval is the inverse of b's. The upper end is None where b's interval reaches 0, and both
        ends are None where the times fit exactly. None where the data say nothing, or that writing takes no time.
    """
    if n < 4:
        return None
    (x, y, t), (xx, xy, yy, xt, yt, tt) = firsts, products
    xx, xy, yy = n * xx - x * x, n * xy - x * y, n * yy - y * y  # centred, times n; exact
    xt, yt, tt = n * xt - x * t, n * yt - y * t, n * tt - t * t
    determinant = xx * yy - xy * xy
    if determinant <= 0:
        return None
    b = (yy * xt - xy * yt) / determinant
    c = (xx * yt - xy * xt) / determinant
    if b <= 0:
        return None
    variance = max(0.0, tt - b * xt - c * yt) / n / (n - 3)
    if variance <= SAME * tt:
        return Estimate(value=1_000 / b, low=None, high=None, n=n)
    spread = t_95(n - 3) * math.sqrt(variance * n * yy / determinant)
    return Estimate(
        value=1_000 / b,
        low=1_000 / (b + spread),
        high=1_000 / (b - spread) if b > spread else None,
        n=n,
    )
