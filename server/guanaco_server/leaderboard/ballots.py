"""The votes of a competition by user, held small: a million are some 20 MB."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from guanaco_server.leaderboard.bradley_terry import Ballot


class BallotBox:
    """``ids`` are the submissions, at the index by which ballots name them; more are added at its end."""

    def __init__(self, votes: Iterable[tuple[str, str, bool]]) -> None:
        """Of (user, submission, thumbs up)."""
        self.ids: list[str] = []
        self._indexes: dict[str, int] = {}
        found: defaultdict[str, list[int]] = defaultdict(list)
        for user, submission_id, thumbs_up in votes:
            found[user].append(self._code(submission_id, thumbs_up))
        self._by_user = {user: tuple(sorted(codes)) for user, codes in found.items()}

    def put(self, user: str, votes: Mapping[str, bool]) -> None:
        """All votes that the user has now."""
        if votes:
            self._by_user[user] = tuple(sorted(self._code(*vote) for vote in votes.items()))
        else:
            self._by_user.pop(user, None)

    def ballots(self) -> list[Ballot]:
        """Of those who voted on two submissions or more."""
        return [ballot for ballot in self._by_user.values() if len(ballot) > 1]

    def _code(self, submission_id: str, thumbs_up: bool) -> int:
        index = self._indexes.setdefault(submission_id, len(self.ids))
        if index == len(self.ids):
            self.ids.append(submission_id)
        return 2 * index + thumbs_up
