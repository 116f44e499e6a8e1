"""Puts a leaderboard's verdict into words, for the command line, the pages and apps alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from guanaco.leaderboard import LeaderboardRow, LeaderboardVerdict, VerdictPair


def uncounted_words(rows: Iterable[LeaderboardRow]) -> str | None:
    """Say of a board without a score that ratings were given all the same; None otherwise."""
    rows = list(rows)
    given = sum(row.feedback_count for row in rows)
    if not given or any(row.thumbs_up + row.thumbs_down or row.duels for row in rows):
        return None
    were = "1 rating was" if given == 1 else f"{given:,} ratings were"
    return f"{were} given, and none counts: rules leave out bursts, a developer's own votes and users who rate one developer alone."


def headline(verdict: LeaderboardVerdict) -> str:
    """Say in a sentence or two whether the best one is known.

    Args:
        verdict: The verdict, from `Client.verdict`.

    Returns:
        The sentences.
    """
    leader, margin = verdict.leader, margin_words(verdict)
    if leader is None:
        return "No submission has a score in this competition yet."
    if not verdict.pairs:
        return f"{leader} is the only one with a score."
    field = [pair for pair in verdict.pairs if not pair.is_withdrawn] or verdict.pairs
    still = [pair for pair in field if pair.state not in ("better", "within")]
    if verdict.is_decided:
        is_best = all(pair.state == "better" for pair in field)
        what = "the best" if is_best else f"within {margin} of the best"
        untold = any(pair.state not in ("better", "within") for pair in verdict.pairs)
        of_whom = " of those that take part" if untold else ""
        return f"Settled{_how(verdict)}: {leader} is {what}{of_whom}."
    everybody = len(still) == len(field)
    number = "any of the others" if everybody else f"{len(still)} of {len(field)} others"
    sentence = f"Not settled{_how(verdict)}: {leader} leads, but {number} may be more than {margin} better."
    known = [pair for pair in still if pair.votes is not None]
    if len(known) == len(still):
        hardest = max(known, key=lambda pair: pair.votes or 0)
        sentence += f" The hardest to tell needs {about(hardest, verdict)}."
    if verdict.settled_at is not None:
        sentence += f" It was settled on {verdict.settled_at:%-d %B %Y} that {verdict.settled_leader} was within {margin} of the best of those that took part."
    return sentence


def pair_headline(verdict: LeaderboardVerdict) -> str:
    """Say in a sentence what is known of two submissions that were compared alone.

    Args:
        verdict: A verdict with one pair.

    Returns:
        The sentence.
    """
    pair, leader = verdict.pairs[0], verdict.leader
    if pair.state == "better":
        return f"Settled{_how(verdict)}: {leader} is better than {pair.submission_id}."
    if pair.state == "within":
        return f"Settled{_how(verdict)}: {leader} is at most {margin_words(verdict)} worse than {pair.submission_id}."
    more = f" Needed: {about(pair, verdict)}." if pair.votes is not None else ""
    return f"Not settled{_how(verdict)}: {leader} leads, but {pair.submission_id} may be more than {margin_words(verdict)} better.{more}"


def pair_words(pair: VerdictPair, verdict: LeaderboardVerdict) -> str:
    """Say what is known of the leader beside one other submission.

    Args:
        pair: One of the verdict's pairs.
        verdict: The verdict that it is from.

    Returns:
        A few words, such as "not yet: about 400 to 1,500 more votes".
    """
    if pair.state == "better":
        return _labelled("the leader is better: settled", pair)
    if pair.state == "within":
        return _labelled(f"the leader is at most {margin_words(verdict)} worse: settled", pair)
    if pair.is_withdrawn:
        return "withdrawn: not settled"
    return "not yet" if pair.votes is None else f"not yet: {about(pair, verdict)}"


def chance_words(verdict: LeaderboardVerdict) -> str | None:
    """Say the same by Bayes' rule, with the prior that it depends on.

    Args:
        verdict: The verdict, from `Client.verdict`.

    Returns:
        A sentence; None where there is no such probability.
    """
    if verdict.chance is None or verdict.leader is None or not verdict.pairs:
        return None
    prior = (
        f"a prior from {verdict.prior_submissions} submissions of past seasons"
        if verdict.prior_submissions
        else "a wide prior"
        if verdict.is_by_duels
        else "a flat prior"
    )
    chance = f"{verdict.chance:.0%}" if verdict.chance < 0.995 else "over 99%"
    return f"By Bayes' rule, with {prior}, {verdict.leader} is within {margin_words(verdict)} of the best with a probability of {chance}."


def asked_words(verdict: LeaderboardVerdict) -> str | None:
    """Say what is known of all who could be asked for a rating, and what the signals of their conversations are worth.

    It is a claim of its own, beside the one on those who rate.

    Args:
        verdict: The verdict, from `Client.verdict`.

    Returns:
        A few sentences; None where the competition asks no random share.
    """
    found = verdict.asked
    if found is None:
        return None
    if found.leader is None:
        waiting = f" The time to answer is not over for {found.waiting:,}." if found.waiting else ""
        return f"Nobody of all who could be asked for a rating has answered yet.{waiting}"
    leader, margin = found.leader, margin_words(verdict)
    if not found.pairs:
        sentence = f"{leader} is the only one with an answer."
    elif all(pair.state == "better" for pair in found.pairs):
        sentence = f"{leader} is the best: settled."
    elif found.is_decided:
        sentence = f"{leader} is within {margin} of the best: settled."
    else:
        still = sum(pair.state not in ("better", "within") for pair in found.pairs)
        others = "1 other" if still == 1 else f"{still} others"
        sentence = f"{leader} leads, but {others} may be more than {margin} better."
    worth = (
        ""
        if found.worth is None
        else f" With the signals of all conversations, 1,000 answers do as much as {found.worth:,} alone."
    )
    return f"Among all who could be asked for a rating: {sentence}{worth}"


def margin_words(verdict: LeaderboardVerdict) -> str:
    """Write the margin as points of thumbs up, or of the chance to be preferred.

    Args:
        verdict: The verdict, from `Client.verdict`.

    Returns:
        Such as "5 points".
    """
    points = verdict.within * 100
    return "1 point" if points == 1 else f"{points:g} points"


def about(pair: VerdictPair, verdict: LeaderboardVerdict) -> str:
    """Say how many more votes, or duels, settle an open pair, as exactly as they are foretold.

    Args:
        pair: One of the verdict's pairs, with a number of votes.
        verdict: The verdict that it is from.

    Returns:
        Such as "about 400 to 1,500 more votes".
    """
    kind = "duel" if verdict.is_by_duels else "vote"
    if pair.votes_low is None:  # a server of the version before
        number = _rounded(pair.votes or 0)
    elif pair.votes_high is None:
        return f"{_rounded(pair.votes_low):,} more {kind}s or many more"
    else:
        low, number = _rounded(pair.votes_low), _rounded(pair.votes_high)
        if low != number:
            return f"about {low:,} to {number:,} more {kind}s"
    return f"about 1 more {kind}" if number == 1 else f"about {number:,} more {kind}s"


def _rounded(votes: int) -> int:
    return round(votes, -max(0, len(str(votes)) - 2))


def _labelled(text: str, pair: VerdictPair) -> str:
    return f"{text} (withdrawn)" if pair.is_withdrawn else text


def _how(verdict: LeaderboardVerdict) -> str:
    return " by duels" if verdict.is_by_duels else ""
