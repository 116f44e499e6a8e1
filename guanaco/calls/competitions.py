"""Calls about how submissions compare: the leaderboard, competitions with their seasons, votes and experiments."""

from __future__ import annotations

from guanaco.calls.wire import Call, get, of_submission, post, put, segment
from guanaco.competitions import OPEN, Competition, CompetitionRequest
from guanaco.experiments import Experiment, ExperimentRequest, ExperimentResults
from guanaco.leaderboard import (
    Leaderboard,
    LeaderboardSort,
    LeaderboardStability,
    ScoreHistory,
    Season,
    SeasonCheck,
    UniformRatios,
    VoteFlag,
    VotePattern,
)


def leaderboard(
    *, competition: str = OPEN, sort: LeaderboardSort | str = LeaderboardSort.RANK
) -> Call[Leaderboard]:
    """Return how all submissions compare. Needs no key."""
    params = {"competition": competition, "sort": str(sort)}
    return get("/leaderboard", Leaderboard, params=params)


def stability(
    *, competition: str = OPEN, submission_id: str | None = None
) -> Call[LeaderboardStability]:
    """Read how few votes decide between neighbours at the top, or around one submission. Needs no key."""
    params = {"competition": competition}
    if submission_id is not None:
        params["submission"] = submission_id
    return get("/leaderboard/stability", LeaderboardStability, params=params)


def score_history(submission_id: str, *, competition: str = OPEN) -> Call[ScoreHistory]:
    """A submission's score over time. Needs no key."""
    return get(
        of_submission(submission_id, "score-history"),
        ScoreHistory,
        params={"competition": competition},
    )


def competitions() -> Call[list[Competition]]:
    """All of them. Needs no key."""
    return get("/competitions", list[Competition])


def competition(competition_id: str) -> Call[Competition]:
    """One, with its rules. Needs no key."""
    return get(f"/competitions/{segment(competition_id)}", Competition)


def put_competition(competition_id: str, request: CompetitionRequest) -> Call[Competition]:
    """Make one, or change its rules until it is frozen. Admin."""
    return put(f"/competitions/{segment(competition_id)}", Competition, request)


def season(competition_id: str) -> Call[Season]:
    """The final ranking of a frozen competition. Needs no key."""
    return get(f"/competitions/{segment(competition_id)}/season", Season)


def freeze(competition_id: str) -> Call[Season]:
    """End a competition for good, and rank it. Admin."""
    return post(f"/competitions/{segment(competition_id)}/freeze", Season)


def recompute(competition_id: str) -> Call[SeasonCheck]:
    """Rank a frozen competition again from what is recorded, and compare the bytes. Admin."""
    return post(f"/competitions/{segment(competition_id)}/recompute", SeasonCheck)


def uniform_ratios(competition_id: str) -> Call[UniformRatios]:
    """Read what uniform assignment would have shown, from the recorded chance of each assignment. Admin."""
    return get(f"/competitions/{segment(competition_id)}/uniform", UniformRatios)


def vote_flags(
    *, competition: str | None = None, submission_id: str | None = None, limit: int = 100
) -> Call[list[VoteFlag]]:
    """Ratings that rules have left out, newest first. Admin."""
    wanted = {"competition": competition, "submission": submission_id, "limit": str(limit)}
    params = {name: value for name, value in wanted.items() if value is not None}
    return get("/votes/flags", list[VoteFlag], params=params)


def vote_patterns(*, competition: str = OPEN) -> Call[list[VotePattern]]:
    """Read which submissions' votes come from another kind of users than the others', the farthest first. Admin."""
    return get("/votes/patterns", list[VotePattern], params={"competition": competition})


def allow_vote(feedback_id: str) -> Call[list[VoteFlag]]:
    """Let a rating count, whatever rule has left it out. Admin."""
    return post(f"/votes/{segment(feedback_id)}/allow", list[VoteFlag])


def experiments() -> Call[list[Experiment]]:
    """Every experiment, in the order in which they were made. Admin."""
    return get("/experiments", list[Experiment])


def experiment(name: str) -> Call[Experiment]:
    """One experiment with its variants. Admin."""
    return get(f"/experiments/{segment(name)}", Experiment)


def create_experiment(request: ExperimentRequest) -> Call[Experiment]:
    """A draft, which takes nobody yet. Admin."""
    return post("/experiments", Experiment, request)


def start_experiment(name: str) -> Call[Experiment]:
    """Start an experiment: new conversations take part from now on. Admin."""
    return post(f"/experiments/{segment(name)}/start", Experiment)


def stop_experiment(name: str) -> Call[Experiment]:
    """No new conversation takes part; the open ones keep their variant. Admin."""
    return post(f"/experiments/{segment(name)}/stop", Experiment)


def experiment_results(name: str) -> Call[ExperimentResults]:
    """Return the results of each variant, with 95 % intervals. Admin."""
    return get(f"/experiments/{segment(name)}/results", ExperimentResults)
