"""From sums to a value and its 95 % interval. Each function says whose formula it is."""

from __future__ import annotations

import math
from collections.abc import Mapping

from guanaco.leaderboard import Estimate
from guanaco_server.intervals import Z_95, wilson_interval

BUCKET_RATIO = 1.05  # neighbouring buckets of a time: a value read from one is off by 2.5 % at most


def bucket_of(milliseconds: float) -> int:
    """The bucket of a time; below a millisecond all are one."""
    return math.floor(math.log(max(1.0, milliseconds)) / math.log(BUCKET_RATIO))


def middle_of(bucket: int) -> float:
    """The geometric middle of a bucket, in milliseconds."""
    return float(BUCKET_RATIO ** (bucket + 0.5))


def proportion(successes: int, trials: int) -> Estimate | None:
    """Wilson's score interval."""
    if trials == 0:
        return None
    low, high = wilson_interval(successes, trials)
    return Estimate(value=successes / trials, low=low, high=high, n=trials)


def mean(n: int, total: int, squares: int, unit: float = 1.0) -> Estimate | None:
    """The mean, and 1.96 standard errors to each side (central limit theorem); none below two values."""
    if n == 0:
        return None
    value = total / n * unit
    if n == 1:
        return Estimate(value=value, low=None, high=None, n=1)
    # n · squares - total² is exact, whatever the numbers' size
    error = math.sqrt((n * squares - total * total) / (n * n * (n - 1))) * unit
    return Estimate(value=value, low=value - Z_95 * error, high=value + Z_95 * error, n=n)


def quantile(counts: Mapping[int, int], share: float) -> tuple[int, int, int] | None:
    """The bucket of the quantile, and those of the order statistics that bound it with 95 % confidence.

    W. J. Conover, "Practical Nonparametric Statistics" (3rd ed., 1999), section 3.2: the normal approximation.
    """
    n = sum(counts.values())
    if n == 0:
        return None
    spread = Z_95 * math.sqrt(n * share * (1 - share))
    ranks = (math.ceil(n * share), math.floor(n * share - spread), math.ceil(n * share + spread))
    value, low, high = (_at_rank(counts, min(n, max(1, rank))) for rank in ranks)
    return value, low, high


def ratio(n: int, sums: tuple[int, int], products: tuple[int, int, int]) -> Estimate | None:
    """Σy/Σx over ``n`` independent pairs: y is counted within x, and a conversation is a cluster.

    ``products`` are Σyy, Σxy, Σxx. W. G. Cochran, "Sampling Techniques" (3rd ed., 1977), equation 6.13.
    """
    (y, x), (yy, xy, xx) = sums, products
    if x == 0:
        return None
    value = y / x
    if n < 2:
        return Estimate(value=value, low=None, high=None, n=n)
    residuals = max(0.0, yy - 2 * value * xy + value * value * xx)
    error = math.sqrt(residuals * n / (n - 1)) / x
    low, high = max(0.0, value - Z_95 * error), min(1.0, value + Z_95 * error)
    return Estimate(value=value, low=low, high=high, n=n)


def slope_speed(
    n: int, firsts: tuple[int, int, int], products: tuple[int, int, int, int, int, int]
) -> Estimate | None:
    """1,000 over the first coefficient of t = a + b·x + c·y by least squares: units of x a second, t being in ms.

    ``firsts`` are Σx, Σy, Σt; ``products`` Σxx, Σxy, Σyy, Σxt, Σyt, Σtt. The interval is b's, turned over; its
    upper end is None where b's reaches 0. None where the data say nothing, or that writing takes no time.
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
    spread = Z_95 * math.sqrt(variance * n * yy / determinant)
    return Estimate(
        value=1_000 / b,
        low=1_000 / (b + spread),
        high=1_000 / (b - spread) if b > spread else None,
        n=n,
    )


def _at_rank(counts: Mapping[int, int], rank: int) -> int:
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            return bucket
    raise AssertionError("the rank is within the counts")
