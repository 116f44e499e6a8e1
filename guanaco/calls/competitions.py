"""Calls about how submissions compare: the leaderboard, competitions with their seasons, votes and experiments."""

from __future__ import annotations

from guanaco.calls.wire import Call, get, of_submission, post, put, segment
from guanaco.competitions import OPEN, Competition, CompetitionRequest
from guanaco.experiments import Experiment, ExperimentRequest, ExperimentResults
from guanaco.leaderboard import (
    Leaderboard,
    LeaderboardSort,
    LeaderboardStability,
    LeaderboardVerdict,
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
    """Return how all submissions compare. Needs no key.

    Args:
        competition: The competition's id.
        sort: The metric by which the rows are sorted.

    Returns:
        The Leaderboard.

    Raises:
        CompetitionNotFound: There is no such competition.
    """
    params = {"competition": competition, "sort": str(sort)}
    return get("/leaderboard", Leaderboard, params=params)


def stability(
    *, competition: str = OPEN, submission_id: str | None = None
) -> Call[LeaderboardStability]:
    """Read how few votes decide between neighbours on the board, or around one submission. Needs no key.

    Args:
        competition: The competition's id.
        submission_id: Only its neighbours; None for the top of the board.

    Returns:
        The LeaderboardStability.

    Raises:
        CompetitionNotFound: There is no such competition.
        SubmissionNotFound: There is no such submission, or it is another developer's.
    """
    params = {"competition": competition}
    if submission_id is not None:
        params["submission"] = submission_id
    return get("/leaderboard/stability", LeaderboardStability, params=params)


def verdict(*, competition: str = OPEN) -> Call[LeaderboardVerdict]:
    """Read which submission is known to be within the competition's margin of the best. Needs no key.

    Args:
        competition: The competition's id.

    Returns:
        The LeaderboardVerdict; `guanaco.verdicts` puts it into words.

    Raises:
        CompetitionNotFound: There is no such competition.
    """
    return get("/leaderboard/verdict", LeaderboardVerdict, params={"competition": competition})


def score_history(submission_id: str, *, competition: str = OPEN) -> Call[ScoreHistory]:
    """Read a submission's score over time. Needs no key.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.
        competition: The competition's id.

    Returns:
        The ScoreHistory.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
        CompetitionNotFound: There is no such competition.
    """
    return get(
        of_submission(submission_id, "score-history"),
        ScoreHistory,
        params={"competition": competition},
    )


def competitions() -> Call[list[Competition]]:
    """List all competitions. Needs no key.

    Returns:
        A list of Competition objects.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    return get("/competitions", list[Competition])


def competition(competition_id: str) -> Call[Competition]:
    """Read one competition with its rules. Needs no key.

    Args:
        competition_id: The competition's id.

    Returns:
        The Competition, as it is then.

    Raises:
        CompetitionNotFound: There is no such competition.
    """
    return get(f"/competitions/{segment(competition_id)}", Competition)


def put_competition(competition_id: str, request: CompetitionRequest) -> Call[Competition]:
    """Make a competition, or change its rules until it is frozen. Admin.

    Args:
        competition_id: The competition's id.
        request: The competition's window and rules.

    Returns:
        The Competition, as it is then.

    Raises:
        CompetitionNotFound: There is no such competition.
    """
    return put(f"/competitions/{segment(competition_id)}", Competition, request)


def season(competition_id: str) -> Call[Season]:
    """Read the final ranking of a frozen competition. Needs no key.

    Args:
        competition_id: The competition's id.

    Returns:
        The Season.

    Raises:
        CompetitionNotFound: There is no such competition.
        SeasonNotFound: It is not frozen yet.
    """
    return get(f"/competitions/{segment(competition_id)}/season", Season)


def freeze(competition_id: str) -> Call[Season]:
    """End a competition for good, and rank it. Admin.

    Args:
        competition_id: The competition's id.

    Returns:
        The Season.

    Raises:
        CompetitionNotFound: There is no such competition.
    """
    return post(f"/competitions/{segment(competition_id)}/freeze", Season)


def recompute(competition_id: str) -> Call[SeasonCheck]:
    """Rank a frozen competition again from what is recorded, and compare the bytes. Admin.

    Args:
        competition_id: The competition's id.

    Returns:
        The SeasonCheck.

    Raises:
        CompetitionNotFound: There is no such competition.
    """
    return post(f"/competitions/{segment(competition_id)}/recompute", SeasonCheck)


def uniform_ratios(competition_id: str) -> Call[UniformRatios]:
    """Read what uniform assignment would have shown, from the recorded chance of each assignment. Admin.

    Args:
        competition_id: The competition's id.

    Returns:
        The UniformRatios.

    Raises:
        CompetitionNotFound: There is no such competition.
    """
    return get(f"/competitions/{segment(competition_id)}/uniform", UniformRatios)


def vote_flags(
    *,
    competition: str | None = None,
    submission_id: str | None = None,
    duels: bool | None = None,
    limit: int = 100,
) -> Call[list[VoteFlag]]:
    """List the ratings and duels that rules have left out, newest first. Admin.

    Args:
        competition: The competition's id.
        submission_id: Only ratings and duels of this submission; None for all.
        duels: True for duels alone, False for ratings alone; None for both.
        limit: The most that are returned.

    Returns:
        A list of VoteFlag objects.

    Raises:
        CompetitionNotFound: There is no such competition.
        SubmissionNotFound: There is no such submission, or it is another developer's.
    """
    wanted = {"competition": competition, "submission": submission_id, "limit": str(limit)}
    params = {name: value for name, value in wanted.items() if value is not None}
    params |= {} if duels is None else {"duels": str(duels).lower()}
    return get("/votes/flags", list[VoteFlag], params=params)


def vote_patterns(*, competition: str = OPEN, duels: bool = False) -> Call[list[VotePattern]]:
    """Read which submissions' votes come from another kind of users than the others', the farthest first. Admin.

    Args:
        competition: The competition's id.
        duels: Compare the votes on battles, where *up* is a duel that was won.

    Returns:
        A list of VotePattern objects.

    Raises:
        CompetitionNotFound: There is no such competition.
    """
    params = {"competition": competition} | ({"duels": "true"} if duels else {})
    return get("/votes/patterns", list[VotePattern], params=params)


def allow_vote(feedback_id: str) -> Call[list[VoteFlag]]:
    """Let a rating or a duel count, whatever rule has left it out. Admin.

    Args:
        feedback_id: The rating's id, or the battle's.

    Returns:
        A list of VoteFlag objects.

    Raises:
        FlagNotFound: No rule has left it out.
    """
    return post(f"/votes/{segment(feedback_id)}/allow", list[VoteFlag])


def experiments() -> Call[list[Experiment]]:
    """List every experiment, in the order in which they were made. Admin.

    Returns:
        A list of Experiment objects.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    return get("/experiments", list[Experiment])


def experiment(name: str) -> Call[Experiment]:
    """Read one experiment with its variants. Admin.

    Args:
        name: The experiment's name.

    Returns:
        The Experiment, as it is then.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    return get(f"/experiments/{segment(name)}", Experiment)


def create_experiment(request: ExperimentRequest) -> Call[Experiment]:
    """Make a draft of an experiment, which takes nobody yet. Admin.

    Args:
        request: The experiment's variants and users.

    Returns:
        The Experiment, as it is then.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    return post("/experiments", Experiment, request)


def change_experiment(name: str, request: ExperimentRequest) -> Call[Experiment]:
    """Replace the variants and users of an experiment that has not run yet. Admin.

    Args:
        name: The experiment's name.
        request: The experiment's variants and users, under the same name.

    Returns:
        The Experiment, as it is then.

    Raises:
        ExperimentNotFound: There is no such experiment.
        ExperimentConflict: It has run, so it stays as it is.
    """
    return put(f"/experiments/{segment(name)}", Experiment, request)


def start_experiment(name: str) -> Call[Experiment]:
    """Start an experiment: new conversations take part from now on. Admin.

    Args:
        name: The experiment's name.

    Returns:
        The Experiment, as it is then.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    return post(f"/experiments/{segment(name)}/start", Experiment)


def stop_experiment(name: str) -> Call[Experiment]:
    """Stop an experiment: no new conversation takes part, and the open ones keep their variant. Admin.

    Args:
        name: The experiment's name.

    Returns:
        The Experiment, as it is then.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    return post(f"/experiments/{segment(name)}/stop", Experiment)


def experiment_results(name: str) -> Call[ExperimentResults]:
    """Return the results of each variant, with 95 % intervals. Admin.

    Args:
        name: The experiment's name.

    Returns:
        The ExperimentResults.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    return get(f"/experiments/{segment(name)}/results", ExperimentResults)
