"""The rules that leave duels out: which minutes are bursts, what is flagged, and what an admin lets count."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from guanaco_server.duels.records import RecordedDuel
from guanaco_server.leaderboard.counting.votes import VotingWindow
from guanaco_server.leaderboard.flags.rules import DEVOTED_RATINGS, Owner, Rule, least_burst
from guanaco_server.leaderboard.ranking.duels.duel_rules import NEWEST_SCHEMA, log_chance
from guanaco_server.leaderboard.ranking.duels.duel_table import DuelTable, DuelVotes

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NAMES = ("one", "two", "three", "four")
OWNERS = {name: Owner(f"acc-{name}", f"dev-{name}") for name in NAMES}

Given = tuple[float, str, str, str, str]  # seconds, user, a, b, outcome


def counted(
    duels: Sequence[Given],
    allowed: Collection[tuple[str, str]] = (),
    *,
    schema: int = NEWEST_SCHEMA,
    is_reversed: bool = False,
    owners: Mapping[str, Owner] = OWNERS,
) -> DuelVotes:
    table = DuelTable()
    recorded = [
        RecordedDuel(f"b{n:06}", app, user, a, b, ((NOON + timedelta(seconds=at), outcome),))
        for n, (at, named, a, b, outcome) in enumerate(duels)
        for app, user in [named.split(":") if ":" in named else ("app", named)]
    ]
    if is_reversed:
        table.take(recorded[:1:-2])
        recorded.reverse()
    table.take(recorded)
    return table.counted(owners, VotingWindow(NOON, None), allowed=allowed, schema=schema)


def honest(rng: random.Random, minutes: int, per_minute: int) -> list[Given]:
    """The leader is in every duel and wins six of ten; each user has one."""
    return [
        (
            60 * minute + 60 * n / per_minute,
            f"user-{minute}-{n}",
            "one",
            rng.choice(NAMES[1:]),
            rng.choices(("a", "b", "tie"), (6, 3, 1))[0],
        )
        for minute in range(minutes)
        for n in range(per_minute)
    ]


def made(minute: int, votes: int, winner: str, loser: str) -> list[Given]:
    return [(60 * minute + n / 10, f"made-{minute}-{n}", winner, loser, "a") for n in range(votes)]


def test_minute_that_goes_one_way_is_left_out() -> None:
    usual = honest(random.Random(1), 30, 20)
    found = counted([*usual, *made(30, 60, "three", "one")])
    assert {flag.submission_id for flag in found.flags} == {"three"}
    assert {flag.rival_id for flag in found.flags} == {"one"}
    assert found.total == len(usual)
    assert found.flags[0].evidence == (
        "One of 60 duels of the submission within a minute, of which 60 were won; "
        "by 60 users, 60 of them with no duel before that minute."
    )


def test_votes_against_the_leader_are_found_too() -> None:
    usual = honest(random.Random(2), 60, 20)
    against = [
        vote for k in range(1, 4) for vote in made(59, 30, NAMES[k], "one")
    ]  # no winner has enough to be noticed
    found = counted([*usual, *against])
    assert {flag.submission_id for flag in found.flags} == {"one"}
    assert "were lost" in found.flags[0].evidence


def test_a_rush_with_the_usual_results_is_no_burst() -> None:
    rng = random.Random(3)
    assert counted([*honest(rng, 5, 10), *honest(rng, 1, 900)]).flags == []


def test_newcomer_may_lose_nine_of_ten_in_a_rush() -> None:
    rng = random.Random(4)
    usual = [duel for duel in honest(rng, 31, 100) if "four" not in duel]
    theirs = [
        (1800 + n / 10, f"new-{n}", "one", "four", rng.choices("ab", (9, 1))[0]) for n in range(50)
    ]
    assert counted(usual + theirs).flags == []


def test_what_a_burst_holds_explains_no_later_burst() -> None:
    attacks = [vote for minute in range(30, 50) for vote in made(minute, 60, "three", "one")]
    found = counted([*honest(random.Random(5), 50, 10), *attacks])
    held = {flag.battle_id for flag in found.flags}
    assert len(held) >= len(attacks)
    assert len(held) < 1.2 * len(attacks), "few honest ones are of the same minute and submission"


def test_few_duels_are_never_a_burst() -> None:
    assert counted(made(0, least_burst(), "three", "one")).flags == []


def test_flags_do_not_depend_on_the_order_of_reading() -> None:
    duels = [*honest(random.Random(6), 10, 10), *made(9, 80, "three", "one")]
    assert set(counted(duels).flags) == set(counted(duels, is_reversed=True).flags) != set()


def test_each_rule_names_the_submission_it_is_about() -> None:
    own = [(0.0, "acc-two:ada", "one", "two", "b")]
    fan = [(60.0 * n, "fan", "three", "one", "a") for n in range(DEVOTED_RATINGS)]
    found = counted(own + fan)
    assert Counter((flag.rule, flag.submission_id, flag.rival_id) for flag in found.flags) == {
        (Rule.OWN_ACCOUNT, "two", "one"): 1,
        (Rule.DEVOTED_USER, "three", "one"): DEVOTED_RATINGS,
    }
    assert found.total == 0


def test_one_developer_alone_has_no_devoted_users() -> None:
    """Whoever duels among one developer's submissions prefers that developer each time."""
    among = [(60.0 * n, "ada", "one", "two", "ab"[n % 2]) for n in range(DEVOTED_RATINGS)]
    against = [(60.0 * n, "ada", "one", "three", "a") for n in range(DEVOTED_RATINGS - 1)]
    owners = OWNERS | {"two": OWNERS["one"]}
    assert counted(among, owners=owners).total == DEVOTED_RATINGS
    assert counted(among, owners=owners, schema=6).total == 0
    assert counted(among + against, owners=owners).total == len(among + against)
    found = counted([*among, *against, (0.0, "ada", "one", "four", "a")], owners=owners)
    assert found.total == 0, "a devoted user's duels are left out, whoever owned both sides"
    assert found.flags[0].evidence == "All 20 duels of this user preferred dev-one."


def test_an_allowed_duel_counts_and_stays_flagged() -> None:
    duels = [*made(9, 200, "three", "one"), *honest(random.Random(9), 9, 20)]
    found = counted(duels, {("b000003", "burst"), ("b000004", "own_account")})
    assert (found.total, len(found.flags)) == (9 * 20 + 1, 200)
    assert counted(duels, schema=5).total == len(duels)


def test_the_chance_bounds_what_is_drawn() -> None:
    """P(K ≥ k) for an even chance doubled in its odds, by counting."""
    rng = random.Random(8)
    drawn = [sum(rng.random() < 2 / 3 for _ in range(60)) for _ in range(20_000)]
    for same in (45, 48, 50):
        often = sum(one >= same for one in drawn) / len(drawn)
        assert often <= 2.72 ** log_chance(same, 60, 1_000_000, 2_000_000)
    assert log_chance(40, 60, 1_000_000, 2_000_000) == 0.0
