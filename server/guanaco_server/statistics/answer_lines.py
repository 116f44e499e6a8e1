"""Predicts from a conversation's signals whether its user answers, and with thumbs up, by lines fitted to earlier conversations only.

    g^R = mean of the submission + κ β_R · z        g^U = mean of the submission + κ β_U · z, at most g^R; both within [0, 1]

z are the signals' distances from the submission's mean in standard deviations, at most FARTHEST; a signal that is not there is at the mean. β comes from a ridge
regression over all submissions of the competition. κ, within [0, 1], is the factor that would have predicted earlier conversations best with
the lines as they were at the time, drawn to 0: signals that say nothing get a κ near 0 and cost nothing.

Conversations are taken in batches. A batch is predicted with what was learnt from the batches before it, whose borders depend on numbers of
conversations alone: so nothing that is predicted depends on what came later, and counting the same conversations again gives the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Places: TypeAlias = NDArray[np.int64]

SMALLEST_BATCH = 50
GROWTH = 0.05  # of all before: a batch's lines are at most so much older
RIDGE = 20.0  # conversations
FACTOR_RIDGE = 1.0  # of what the lines have predicted: some four signals' worth of noise
FARTHEST = 3.0
PRIOR = 5.0  # conversations by which a submission's mean is drawn to the competition's
UNKNOWN = (0.25, 0.5)  # up and answered, before anything is known
LEAST_SPREAD = 1e-6


@dataclass(frozen=True)
class AskedConversations:
    """Conversations that could be asked, in the order in which they could, in columns.

    Attributes:
        submissions: Which submission each is of, as a place from 0.
        chances: The chance of each to be asked.
        is_asked: 1.0 if it was.
        answered: 1.0 if it was asked and its user answered in time.
        up: 1.0 if the answer was thumbs up.
        signals: A row for each conversation; NaN for a signal that is not there.
    """

    submissions: Places
    chances: Floats
    is_asked: Floats
    answered: Floats
    up: Floats
    signals: Floats


@dataclass(frozen=True)
class Predictions:
    """The predictions for each conversation, with its signals and without them."""

    up: Floats
    answered: Floats
    center_up: Floats
    center_answered: Floats


def predictions(asked: AskedConversations, *, smallest_batch: int = SMALLEST_BATCH) -> Predictions:
    """Predict each conversation from those before it."""
    import numpy as np

    count = len(asked.submissions)
    found = Predictions(*(np.empty(count) for _ in range(4)))
    learnt = _Regression(int(asked.submissions.max(initial=-1)) + 1, asked.signals.shape[1])
    for batch in _batches(count, smallest_batch):
        centers = learnt.means(asked.submissions[batch])
        z = learnt.distances(asked.submissions[batch], asked.signals[batch])
        moves = z @ learnt.slopes
        answered = np.clip(centers[:, 1] + learnt.factor * moves[:, 1], 0, 1)
        found.answered[batch] = answered
        found.up[batch] = np.clip(centers[:, 0] + learnt.factor * moves[:, 0], 0, answered)
        found.center_up[batch], found.center_answered[batch] = centers.T
        learnt.learn(asked, batch, centers, z, moves)
    return found


def _batches(count: int, smallest: int) -> Iterator[slice]:
    start = 0
    while start < count:
        end = start + max(smallest, int(start * GROWTH))
        yield slice(start, min(end, count))
        start = end


class _Regression:
    """Sums over the batches before, and the lines that follow from them."""

    def __init__(self, submissions: int, signals: int) -> None:
        import numpy as np

        self._asked = np.zeros(submissions)
        self._outcomes = np.zeros((submissions, 2))
        self._known = np.zeros((submissions, signals))
        self._sums = np.zeros((submissions, signals))
        self._squares = np.zeros(signals)
        self._zz = np.zeros((signals, signals))
        self._zy = np.zeros((signals, 2))
        self._predicted = 0.0
        self._of_moves = 0.0
        self.slopes: Floats = np.zeros((signals, 2))
        self.factor = 0.0

    def means(self, submissions: Places) -> Floats:
        """Return the means of (up, answered), drawn to the competition's."""
        import numpy as np

        total, asked = self._outcomes.sum(axis=0), self._asked.sum()
        overall = (total + PRIOR * np.array(UNKNOWN)) / (asked + PRIOR)
        own = (self._outcomes + PRIOR * overall) / (self._asked[:, None] + PRIOR)
        found: Floats = own[submissions]
        return found

    def distances(self, submissions: Places, signals: Floats) -> Floats:
        """Return z."""
        import numpy as np

        known, sums = self._known.sum(axis=0), self._sums.sum(axis=0)
        overall = sums / np.maximum(known, 1)
        own = (self._sums + PRIOR * overall) / (self._known + PRIOR)
        spread = np.sqrt(np.maximum(self._squares / np.maximum(known, 1), LEAST_SPREAD))
        away = np.where(known > 0, (signals - own[submissions]) / spread, 0.0)
        found: Floats = np.clip(np.nan_to_num(away, nan=0.0), -FARTHEST, FARTHEST)
        return found

    def learn(
        self, asked: AskedConversations, batch: slice, centers: Floats, z: Floats, moves: Floats
    ) -> None:
        """Add a batch, and fit the lines again."""
        import numpy as np

        places, is_asked = asked.submissions[batch], asked.is_asked[batch]
        outcomes = np.stack([asked.up[batch], asked.answered[batch]], axis=1)
        off = (outcomes - centers) * is_asked[:, None]
        self._predicted += float((off * moves).sum())
        self._of_moves += float((moves * moves * is_asked[:, None]).sum())
        np.add.at(self._asked, places, is_asked)
        np.add.at(self._outcomes, places, outcomes * is_asked[:, None])
        self._zz += (z * is_asked[:, None]).T @ z
        self._zy += z.T @ off
        self._note_signals(places, asked.signals[batch])
        ridge = RIDGE * np.eye(len(self._zz))
        self.slopes = np.linalg.solve(self._zz + ridge, self._zy).astype(np.float64)
        best = self._predicted / (self._of_moves + FACTOR_RIDGE)
        self.factor = min(max(best, 0.0), 1.0)

    def _note_signals(self, places: Places, signals: Floats) -> None:
        import numpy as np

        is_known = ~np.isnan(signals)
        values = np.where(is_known, signals, 0.0)
        np.add.at(self._known, places, is_known.astype(np.float64))
        np.add.at(self._sums, places, values)
        own = self._sums / np.maximum(self._known, 1)
        self._squares += (np.where(is_known, values - own[places], 0.0) ** 2).sum(axis=0)
