"""Models of the leaderboard: how submissions compare."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, Field

from guanaco.competitions import OPEN, RankingRule
from guanaco.estimates import Estimate
from guanaco.open_enum import OpenEnum
from guanaco.submissions import Status


class SubmissionMetrics(BaseModel):
    """A submission's metrics. A user has one vote: their latest rating. docs/scores.md defines each metric."""

    submission_id: str
    thumbs_up: int
    thumbs_down: int
    feedback_count: int = Field(description="Every rating, also a user's earlier ones.")
    thumbs_up_ratio: float | None = Field(description="Null if there is no rating.")
    interval_low: float | None = Field(
        description="Wilson score interval, 95 %: for one look at one submission."
    )
    interval_high: float | None
    conversation_count: int
    mean_conversation_length: float | None = Field(
        description="Messages not deleted, both sides, of rated conversations."
    )
    conversation_length: Estimate | None = Field(
        default=None, description="The same mean with its interval."
    )
    median_conversation_length: Estimate | None = None
    ttft_ms_median: Estimate | None = Field(
        default=None, description="Until the first token, as the gateway saw it for the user."
    )
    ttft_ms_p95: Estimate | None = None
    reply_ms_median: Estimate | None = Field(default=None, description="Time until the last token.")
    reply_ms_p95: Estimate | None = None
    retention: Estimate | None = Field(
        default=None, description="Share of users who wrote to it on the next day (UTC) too."
    )
    repetition: Estimate | None = Field(
        default=None, description="Jaccard similarity of a bot's consecutive messages, 0 to 1."
    )
    writing_speed: Estimate | None = Field(
        default=None, description="Characters a second that users write."
    )
    regenerate_rate: Estimate | None = Field(
        default=None, description="Share of replies that users had regenerated."
    )
    duels: int = Field(
        default=0,
        description="Duels of it that count in the score, where the competition counts them.",
    )


class StabilityPair(BaseModel):
    """Two neighbours on the board, and how few votes decide between them."""

    above: str
    below: str
    are_apart: bool = Field(
        description="True if the interval of the upper one lies wholly above the other's."
    )
    votes: int | None = Field(
        description="Number of votes without which the two intervals meet, or, if they meet already, the two change places. Null if more than 2,000 are needed, or no number does it."
    )
    is_fewest: bool = Field(
        description="True if no smaller number does it. By strengths, it is false: about this number does it, and a smaller set may exist."
    )
    duels: int = Field(
        default=0,
        description="How many of these votes are on battles, where the ranking counts them.",
    )


class LeaderboardRow(SubmissionMetrics):
    rank: int | None = Field(
        description="1 plus the number of submissions whose score's interval lies wholly above this one's; shared by those that cannot be told apart; None without a score."
    )
    score: float | None = Field(
        default=None, description="The score by the competition's ranking rule."
    )
    score_low: float | None = Field(
        default=None,
        description="The interval holds at every look and for all submissions together with 95 %; ranks come from it.",
    )
    score_high: float | None = None
    developer: str
    name: str
    repo: str
    status: Status
    created_at: datetime
    parameter_count: int | None = None
    license: str | None = Field(
        default=None, description="The licence that the repo's model card names."
    )
    architecture: str | None = None
    sweep: str | None = Field(
        default=None, description="The sweep that it is a variant of; its variants are one group."
    )
    neighbour: StabilityPair | None = Field(
        default=None,
        description="It beside the one above that its place depends on, and how few votes decide between the two. Null for the first, without a rank, and until it has been found.",
    )


class Leaderboard(BaseModel):
    at: datetime
    competition: str = OPEN
    ranking: RankingRule = RankingRule.THUMBS_UP
    counts_duels: bool = Field(
        default=False, description="True if votes on battles count in the scores."
    )
    controls_style: bool = Field(
        default=False,
        description="True if the scores are for replies that are alike in length and markdown.",
    )
    rows: list[LeaderboardRow]


def group_by_sweep(
    rows: Sequence[LeaderboardRow],
) -> tuple[list[LeaderboardRow], dict[str, int]]:
    """Keep the first row of each sweep; one that is neither served nor scored only where all are like that.

    Args:
        rows: Rows of a board, in the order in which they are shown.

    Returns:
        The rows that are kept, and by submission how many variants of its sweep stand behind it.
    """
    leaders: dict[str, LeaderboardRow] = {}
    behind: dict[str, int] = {}
    for row in rows:
        if row.sweep:
            leader = leaders.setdefault(row.sweep, row)
            if not _counts(leader) and _counts(row):
                leaders[row.sweep] = row
    kept = [row for row in rows if not row.sweep or leaders[row.sweep] is row]
    for row in rows:
        if row.sweep and (leader := leaders[row.sweep]) is not row:
            behind[leader.submission_id] = behind.get(leader.submission_id, 0) + 1
    return kept, behind


def _counts(row: LeaderboardRow) -> bool:
    return row.score is not None or row.status in (Status.DEPLOYED, Status.INACTIVE)


class SettledDuels(BaseModel):
    """The settled pair of the leader that the fewest duels decide, where duels settle who is best."""

    leader: str
    submission_id: str = Field(description="The other one of the pair.")
    duels: int = Field(
        description="Least number of duels of the two without which the verdict on them would be open."
    )


class LeaderboardStability(BaseModel):
    """The pairs at the top of the board, best first, or those of one submission. docs/scores.md says how they are found."""

    at: datetime
    competition: str
    ranking: RankingRule
    pairs: list[StabilityPair]
    duels: SettledDuels | None = Field(
        default=None, description="Null if nothing is settled by duels."
    )


class VerdictState(OpenEnum):
    """The answers for a leader and another submission, by what the votes have shown."""

    BETTER = "better"
    WITHIN = "within"
    OPEN = "open"


class VerdictPair(BaseModel):
    """The leader beside one other submission."""

    submission_id: str
    state: VerdictState = Field(
        description="`better`: the leader is; `within`: the leader is at most `within` worse; `open`: neither is shown yet."
    )
    votes: int | None = Field(
        default=None,
        description="About how many more votes on both, or duels of the two, settle an open one, if what they say stays. Null if no number would, or if the verdict is by intervals of strengths.",
    )
    votes_low: int | None = Field(
        default=None,
        description="In about one of ten cases fewer do. Null in `asked`, and where `votes` is.",
    )
    votes_high: int | None = Field(
        default=None,
        description="In about one of ten cases more are needed. Null if they are more than 63 times as many as there are, in `asked`, and where `votes` is.",
    )
    is_withdrawn: bool = Field(
        default=False,
        description="True if the other one takes no conversations any more. It holds up no verdict.",
    )


class AskedRatio(BaseModel):
    """A submission's thumbs-up ratio of all conversations that could be asked for a rating, from those that were."""

    submission_id: str
    eligible: int = Field(description="Conversations that could be asked, and whose time is over.")
    asked: int
    answered: int
    up: int = Field(description="Answers with thumbs up.")
    ratio: float | None = Field(description="The estimate; None without an answer.")
    low: float = Field(
        description="The interval holds at every look and for all submissions together."
    )
    high: float
    plain_ratio: float | None = Field(description="The same from the answers alone.")
    plain_low: float
    plain_high: float


class AskedVerdict(BaseModel):
    """The verdict on all conversations that could be asked for a rating, where a competition has a random share of them asked.

    It is a claim of its own, and neither follows from that on those who rate nor the other way round.
    """

    waiting: int = Field(description="Conversations whose time to answer is not over.")
    leader: str | None = Field(description="The one with the highest interval.")
    is_decided: bool = Field(
        description="True if the leader is shown to be within the margin of every other one. With 95 % this is never said wrongly, however often one looks."
    )
    worth: int | None = Field(
        description="About how many answers alone say as much as 1,000 with the signals of all conversations. Null before there are 30."
    )
    pairs: list[VerdictPair] = Field(
        description="All others, the best first. `votes` are answers of both."
    )
    rows: list[AskedRatio] = Field(description="The leader and the others.")


class LeaderboardVerdict(BaseModel):
    """The verdict on a board's leader: whether it is known to be within a margin of the best. docs/scores.md says how that is known."""

    at: datetime
    competition: str
    ranking: RankingRule
    within: float = Field(
        description="The competition's margin, in shares of thumbs up; by duels, of the chance to be preferred."
    )
    is_by_duels: bool = Field(
        default=False,
        description="True if it is by the duels of the leader with each other one: where the competition counts duels and assigns by `decide`.",
    )
    leader: str | None = Field(
        description="The first on the board, or who leads in duels; None without a score."
    )
    is_decided: bool = Field(
        description="True if the leader is shown to be within the margin of every other one that takes part. With 95 % this is never said wrongly, however often one looks."
    )
    is_leader_withdrawn: bool = Field(
        default=False, description="True if the leader takes no conversations any more."
    )
    settled_at: datetime | None = Field(
        default=None,
        description="When it was first settled, by this margin and this kind of votes. That claim stands, also where newcomers or later votes leave the present one open.",
    )
    settled_leader: str | None = Field(
        default=None, description="Submissions that were within the margin of the best then."
    )
    chance: float | None = Field(
        default=None,
        description="The probability of the same by Bayes' rule, with the prior below. Null by strengths, unless duels settle who is best.",
    )
    prior_up: float = Field(
        default=1.0, description="The prior of thumbs is Beta(prior_up, prior_down)."
    )
    prior_down: float = 1.0
    prior_spread: float | None = Field(
        default=None,
        description="By duels, the prior of strengths is normal, with about this deviation in log odds, which the duels correct. Null by thumbs.",
    )
    prior_submissions: int = Field(
        default=0,
        description="Submissions of frozen competitions that the prior was fitted to; 0 if it is flat, or wide by duels.",
    )
    pairs: list[VerdictPair] = Field(
        description="All others, in the order of the board; those that take part without a vote come last, and are open."
    )
    asked: AskedVerdict | None = Field(
        default=None,
        description="The verdict on all who could be asked, where the competition's rule is `ask`.",
    )


class LeaderboardSort(StrEnum):
    """The orders of the rows: ``rank`` by rank, then by the score's lower end; the others best first."""

    RANK = "rank"
    THUMBS_UP = "thumbs_up"
    CONVERSATION_LENGTH = "conversation_length"
    RETENTION = "retention"
    REPETITION = "repetition"
    REGENERATE_RATE = "regenerate_rate"
    TTFT = "ttft"
    REPLY_TIME = "reply_time"
    FEEDBACK = "feedback"
    NEWEST = "newest"


class ScorePoint(BaseModel):
    at: datetime
    rank: int | None
    score: float
    low: float
    high: float


class ScoreHistory(BaseModel):
    """A score's points, oldest first: hourly for a week, daily before; the last is the present score."""

    submission_id: str
    competition: str
    points: list[ScorePoint]


class VoteFlag(BaseModel):
    """The reason why a rating or a duel is left out of the votes. A flag that was lifted (the rule no longer holds) or allowed has no effect."""

    feedback_id: str = Field(description="The rating's id; of a duel, its battle's.")
    submission_id: str
    rival_id: str | None = Field(
        default=None, description="The other submission of a duel. Null for a rating."
    )
    competition: str
    rule: str
    evidence: str
    at: datetime
    lifted_at: datetime | None
    allowed_at: datetime | None
    allowed_by: str | None


class UniformRow(BaseModel):
    """A submission's thumbs-up ratio had every conversation that it could have got been as likely to be its own."""

    submission_id: str
    conversations: int = Field(description="Conversations that it could have got.")
    rated: int = Field(description="Conversations that it got and that were rated.")
    observed: float | None = Field(description="The ratio of these ratings as they are.")
    ratio: float | None = Field(description="The estimate; Null if there is no rating.")
    low: float | None = Field(
        description="The interval holds at every look in the limit of many users. Null with fewer than 30 users who rated this submission itself, as many as weigh alike."
    )
    high: float | None


class UniformRatios(BaseModel):
    """The ratios that uniform assignment would have shown, the best first. docs/scores.md says how they are estimated."""

    at: datetime
    competition: str
    conversations: int = Field(
        description="The conversations with a recorded assignment, from the competition's first one on."
    )
    is_whole: bool = Field(
        default=True,
        description="False while older conversations are still being added, 20,000 with each request.",
    )
    unknown: int = Field(description="Conversations whose chances can no longer be computed.")
    rows: list[UniformRow]


class VotePattern(BaseModel):
    """A submission's votes by users who voted on it alone (narrow), and by those who voted on others too (broad).

    In duels *up* is won and *down* lost. A narrow user is one who had no duel without the submission; of each user the first duel with a
    winner counts.
    """

    submission_id: str
    narrow_up: int
    narrow_down: int
    broad_up: int
    broad_down: int
    excess: float | None = Field(
        description="Difference of the two thumbs-up ratios, less the same difference of all others. Null if there are too few votes."
    )
    z: float | None = Field(description="The excess in standard errors.")
    is_suspicious: bool = Field(
        description="Chance shows such an excess for any submission in at most 1 of 100 boards."
    )


class Season(BaseModel):
    """The final ranking of a frozen competition; ``sha256`` is the hash of ``ranking``, canonical JSON in UTF-8."""

    competition: str
    frozen_at: datetime
    sha256: str
    ranking: str


class SeasonCheck(BaseModel):
    """The result of computing a season again from what is recorded: whether its bytes are the same."""

    competition: str
    sha256: str
    recomputed_sha256: str
    is_same: bool
    reasons: list[str] = Field(
        default=[],
        description="Where the bytes differ: what is known to have taken ratings away since the freeze, in sentences. Empty where nothing is known.",
    )
