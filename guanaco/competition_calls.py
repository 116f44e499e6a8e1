"""The calls about competitions: the leaderboard, its history, seasons and votes. As calls.py, which has all others."""

from __future__ import annotations

from guanaco.assignments import AssignmentReplay
from guanaco.calls import API, _get, _id, _of, _post
from guanaco.competitions import OPEN, Competition, CompetitionRequest
from guanaco.contract import reader
from guanaco.leaderboard import (
    Leaderboard,
    LeaderboardSort,
    ScoreHistory,
    Season,
    SeasonCheck,
    VoteFlag,
)
from guanaco.wire import Call

_parse_competitions = reader(list[Competition]).from_json
_parse_flags = reader(list[VoteFlag]).from_json


def leaderboard(
    *, competition: str = OPEN, sort: LeaderboardSort | str = LeaderboardSort.RANK
) -> Call[Leaderboard]:
    """How all submissions compare. Needs no key."""
    params = {"competition": competition, "sort": str(sort)}
    return _get("/leaderboard", parse=reader(Leaderboard).from_json, params=params)


def score_history(submission_id: str, *, competition: str = OPEN) -> Call[ScoreHistory]:
    """A submission's score over time. Needs no key."""
    return _get(
        _of(submission_id, "score-history"),
        parse=reader(ScoreHistory).from_json,
        params={"competition": competition},
    )


def competitions() -> Call[list[Competition]]:
    """All of them. Needs no key."""
    return _get("/competitions", parse=_parse_competitions)


def competition(competition_id: str) -> Call[Competition]:
    """One, with its rules. Needs no key."""
    return _get(f"/competitions/{_id(competition_id)}", parse=reader(Competition).from_json)


def assignment(conversation_id: str) -> Call[AssignmentReplay]:
    """How a conversation got its submission, and whether the same choice gives it again. Admin."""
    return _get(
        f"/conversations/{_id(conversation_id)}/assignment",
        parse=reader(AssignmentReplay).from_json,
    )


def put_competition(competition_id: str, request: CompetitionRequest) -> Call[Competition]:
    """Make one, or change its rules until it is frozen. Admin."""
    return Call(
        method="PUT",
        path=f"{API}/competitions/{_id(competition_id)}",
        json=request.model_dump(mode="json"),
        parse=reader(Competition).from_json,
        is_repeatable=True,
    )


def season(competition_id: str) -> Call[Season]:
    """The final ranking of a frozen competition. Needs no key."""
    return _get(f"/competitions/{_id(competition_id)}/season", parse=reader(Season).from_json)


def freeze(competition_id: str) -> Call[Season]:
    """End a competition for good, and rank it. Admin."""
    return _post(f"/competitions/{_id(competition_id)}/freeze", parse=reader(Season).from_json)


def recompute(competition_id: str) -> Call[SeasonCheck]:
    """Rank a frozen competition again from what is recorded, and compare the bytes. Admin."""
    return _post(
        f"/competitions/{_id(competition_id)}/recompute", parse=reader(SeasonCheck).from_json
    )


def vote_flags(
    *, competition: str | None = None, submission_id: str | None = None, limit: int = 100
) -> Call[list[VoteFlag]]:
    """Ratings that rules have left out, newest first. Admin."""
    wanted = {"competition": competition, "submission": submission_id, "limit": str(limit)}
    params = {name: value for name, value in wanted.items() if value is not None}
    return _get("/votes/flags", parse=_parse_flags, params=params)


def allow_vote(feedback_id: str) -> Call[list[VoteFlag]]:
    """Let a rating count, whatever rule has left it out. Admin."""
    return _post(f"/votes/{_id(feedback_id)}/allow", parse=_parse_flags)
