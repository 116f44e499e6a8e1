"""Measures which time of a server a rating of each submission takes.

    seconds of all servers in the last hour / ratings that came in it   (the pace: a usual rating)
    times the tokens that a rating of the submission takes / those that a usual one takes

So the time of all servers is divided between the ratings by their tokens: who answers at length, or whose users write long before they rate, pays
for it. Tokens are weighted as for costs (costs/meter.py). Samples are in memory. Until there are some, a rating takes a minute and a usual number of tokens.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

USUAL_RATING_S = 60.0
SURE = 5  # ratings that the usual figures count for
PACE_WINDOW = timedelta(hours=1)
RECENT = 200.0  # ratings of a submission after which those before count half


class RatingPace:
    """Measures how many seconds of a server one rating takes."""

    def __init__(self) -> None:
        self._samples: deque[tuple[datetime, int, float]] = deque()

    def note(self, now: datetime, ratings: int, servers: int) -> None:
        """Note how many ratings there are in all, and how many servers there were since the last note."""
        if self._samples:
            before, had, spent = self._samples[-1]
            if ratings < had:  # a competition has ended, or somebody was erased
                self._samples.clear()
                spent = 0.0
            else:
                spent += servers * (now - before).total_seconds()
        else:
            spent = 0.0
        self._samples.append((now, ratings, spent))
        while self._samples[0][0] < now - PACE_WINDOW:
            self._samples.popleft()

    @property
    def rating_s(self) -> float:
        if not self._samples:
            return USUAL_RATING_S
        _, had, before = self._samples[0]
        _, ratings, spent = self._samples[-1]
        return (spent - before + SURE * USUAL_RATING_S) / (ratings - had + SURE)


@dataclass
class _Use:
    tokens: float = 0.0
    ratings: float = 0.0


class RatingTokens:
    """Measures how many tokens a rating of each submission takes, beside a usual one."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}
        self._uses: dict[str, _Use] = {}
        self._usual = 0.0  # tokens of a usual rating; 0 where nothing is known

    def note(self, tokens: Mapping[str, float], ratings: Mapping[str, int]) -> None:
        """Note how many tokens each submission has used in all, and how many ratings it has. Forget those without a number of ratings."""
        seen, self._seen = self._seen, {}
        for name, count in ratings.items():
            used = tokens.get(name, 0.0)
            self._seen[name] = used, count
            before, had = seen.get(name, (used, count))
            use = self._uses.setdefault(name, _Use())
            if used < before or count < had:  # deployed again, or ratings are gone
                self._uses[name] = _Use()
                continue
            use.tokens += used - before
            use.ratings += count - had
            while use.ratings > RECENT:
                use.tokens, use.ratings = use.tokens / 2, use.ratings / 2
        self._uses = {name: self._uses[name] for name in ratings}
        heard = math.fsum(use.ratings for use in self._uses.values())
        self._usual = math.fsum(use.tokens for use in self._uses.values()) / (heard or math.inf)

    def relative(self, name: str) -> float:
        """Return how many times the tokens of a usual rating one of this submission takes; 1 where nothing is known."""
        own, usual = self._uses.get(name), self._usual
        if own is None or usual <= 0:
            return 1.0
        return (own.tokens + SURE * usual) / (own.ratings + SURE) / usual
