"""Computes what a number of daily users needs, and where each part of a deployment ends: the figures of docs/scale.md.

    make scale

INPUTS are measured costs, each with the document that has it; ASSUMED are not measured. Nothing else goes in, so a test
compares the document with the computation, and every measured figure with its source (tests/unit/test_scale.py). A seeded
simulation plays a day of one submission second by second, with the product's own rule for replicas.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path

from guanaco.plans import GpuPlan, PlanRequest
from guanaco_server.recipes.comparison import compare_gpus, quantized_model
from guanaco_server.recipes.model_shape import read_shape
from guanaco_server.recipes.presets import LLAMA_3_8B
from guanaco_server.recipes.prices import PriceTable
from guanaco_server.scaling.replicas import DeploymentLoad, LoadSample, ReplicaLimits, decide

DOCUMENT = Path(__file__).parents[1] / "docs" / "scale.md"
BEGIN, END = "<!-- computed: {} -->", "<!-- end -->"
DAY_S = 86_400
BURST_S = 600  # a message to all users, say
MONTH_H = 365 / 12 * 24
USERS = (1_000, 1_000_000, 30_000_000)


@dataclass(frozen=True)
class Input:
    """``said`` is how the source writes the figure."""

    value: float
    unit: str
    source: str
    said: str


BENCHMARKS, OPERATING = "docs/benchmarks.md", "docs/operating.md"
INPUTS = {
    "a stream's work": Input(0.889, "ms of a core", BENCHMARKS, "889 µs of processor"),
    "a token that comes alone": Input(0.075, "ms of a core", BENCHMARKS, "75 µs, 30 of them"),
    "memory of an open stream": Input(38, "KB", BENCHMARKS, "36.8 KiB (38 KB) each"),
    "connections of a gateway": Input(9_744, "", "docs/gateway.md", "9,744"),
    "ratings counted": Input(1_691, "a second", BENCHMARKS, "1,691 ratings a second"),
    "ratings recorded": Input(10_119, "a second", BENCHMARKS, "10,119"),
    "ratings anonymized": Input(330, "a second", BENCHMARKS, "330 ratings a second"),
    "text of a message": Input(1.9 / 6, "KB", BENCHMARKS, "6 messages (1.9 KB)"),
}
# Transaction ids for a thousand turns, by the users of one gateway at once, whose replies took 0.3 s each.
IDS_SAID = "| ids for a thousand turns | 2,000 | 1,769 | 1,272 | 379 | 96 |"
IDS = ((1, 2_000.0), (8, 1_769.0), (32, 1_272.0), (128, 379.0), (512, 96.0))
IDS_REPLY_S = 0.3


@dataclass(frozen=True)
class Assumption:
    value: float
    unit: str
    why: str


ASSUMED = {
    "turns of a user a day": Assumption(20, "", "two conversations of ten messages"),
    "peak to mean": Assumption(2.0, "times", "a sine over the day; users of one continent"),
    "tokens of a reply": Assumption(128, "tokens", "the default of `guanaco plan`"),
    "tokens a second": Assumption(20, "", "the default of `guanaco plan`: a reply takes 6.4 s"),
    "ratings a turn": Assumption(0.025, "", "one for two days of a user"),
    "use of a core": Assumption(0.6, "", "the rest is for bursts of a second"),
    "daily users of a submission": Assumption(100_000, "at most", "then another one serves"),
    "memory of a turn's rows": Assumption(4.0, "times its text", "keys, indexes and row headers"),
    "a core for an hour": Assumption(0.04, "dollars", "a usual price of a cloud's virtual core"),
    "connections of PostgreSQL": Assumption(500, "", "of its own; more need a pooler"),
    "connections of a process": Assumption(24, "at most", "a pool of 10 and 10 more, 4 direct"),
}
WRAP = 2**31 - 3_000_000  # PostgreSQL refuses writes three million ids before
FREEZE_AGE = 200_000_000  # autovacuum_freeze_max_age


def measured(name: str) -> float:
    return INPUTS[name].value


def assumed(name: str) -> float:
    return ASSUMED[name].value


@dataclass(frozen=True)
class Load:
    users: int

    @property
    def turns_a_day(self) -> float:
        return self.users * assumed("turns of a user a day")

    @property
    def mean(self) -> float:
        """Turns a second."""
        return self.turns_a_day / DAY_S

    @property
    def peak(self) -> float:
        return self.mean * assumed("peak to mean")

    @property
    def open_streams(self) -> float:
        """At the peak, by Little's law."""
        return self.peak * reply_s()

    @property
    def submissions(self) -> int:
        return math.ceil(self.users / assumed("daily users of a submission"))

    @property
    def ratings(self) -> float:
        """Ratings a second in the mean."""
        return self.mean * assumed("ratings a turn")

    def rate(self, at_s: float) -> float:
        """Turns a second at a time of the day: lowest at its beginning, highest in its middle."""
        swing = assumed("peak to mean") - 1
        return self.mean * (1 - swing * math.cos(2 * math.pi * at_s / DAY_S))


def reply_s() -> float:
    return assumed("tokens of a reply") / assumed("tokens a second")


def turn_ms() -> float:
    """Milliseconds of a core that a turn takes in a gateway. A token of a reply comes alone, at 20 a second."""
    return measured("a stream's work") + assumed("tokens of a reply") * measured(
        "a token that comes alone"
    )


def gateway_turns() -> float:
    """Turns a second of one gateway process, which has one core."""
    return 1_000 * assumed("use of a core") / turn_ms()


def gateways(load: Load) -> int:
    return max(1, math.ceil(load.peak / gateway_turns()))


def ids_for_a_thousand(turns_a_second: float) -> float:
    """Ids for a thousand turns of a gateway with this many: what is written at the same time shares one."""
    users = max(1.0, turns_a_second * IDS_REPLY_S)
    for (low, more), (high, fewer) in pairwise(IDS):
        if users <= high:
            share = math.log(users / low) / math.log(high / low)
            return more + (fewer - more) * share
    return IDS[-1][1]


def ids_a_day(load: Load) -> float:
    each = load.mean / gateways(load)
    return load.turns_a_day * ids_for_a_thousand(each) / 1_000


def stored_gb_a_day(load: Load) -> float:
    messages = 2 * load.turns_a_day
    return messages * measured("text of a message") * assumed("memory of a turn's rows") / 1e6


@cache
def plan(load: Load, gpu: str = "H100") -> GpuPlan:
    """`guanaco plan llama-3-8b` for the peak of one submission."""
    request = PlanRequest(
        model="llama-3-8b",
        gpus=[gpu],
        messages_per_second=round(load.peak / load.submissions, 3),
        output_tokens=int(assumed("tokens of a reply")),
        tokens_per_second=assumed("tokens a second"),
    )
    model = quantized_model("llama-3-8b", read_shape(LLAMA_3_8B), None, None)
    found = compare_gpus(model, request, PriceTable({}), 8).plans[0].plan
    assert found is not None, "an H100 holds this model"
    return found


@dataclass(frozen=True)
class Day:
    """A simulated day of one submission. ``gpu_hours`` are those of replicas that ran, ``refused`` turns found too many waiting."""

    turns: int
    refused: int
    waited: int
    longest_wait_s: float
    most_replicas: int
    gpu_hours: float


@cache
def simulate(
    load: Load,
    capacity: int,
    least: int,
    seed: int = 1,
    *,
    start_s: float = 120.0,
    wait_s: float = 15.0,
    burst: float = 1.0,
) -> Day:
    """Play a day of one submission with this load, a second at a time.

    Turns come at random (Poisson) at the day's rate, take exponential times, and wait in a queue for a place. ``decide``,
    the product's rule, sets the replicas each five seconds from what runs and waits; one that is added serves after
    ``start_s``. A turn that would wait for more than ``wait_s`` is refused. From noon on, for BURST_S, ``burst`` times as many come.
    """
    chance = random.Random(seed)
    limits = ReplicaLimits(min_replicas=least, max_replicas=10_000)
    midnight = datetime(2026, 1, 1, tzinfo=UTC)
    wanted, ready, starting = least, least, deque[float]()
    samples: deque[LoadSample] = deque()
    scaled_at: datetime | None = None
    running, waiting = 0, deque[int]()
    turns = refused = waited = 0
    longest_s, most, replica_s = 0, least, 0.0
    for second in range(DAY_S):
        while starting and starting[0] <= second:
            starting.popleft()
            ready += 1
        places = ready * capacity
        running -= binomial(chance, running, 1 - math.exp(-1 / reply_s()))
        is_burst = DAY_S // 2 <= second < DAY_S // 2 + BURST_S
        come = poisson(chance, load.rate(second) * (burst if is_burst else 1))
        turns += come
        room = int(places * wait_s / reply_s())
        taken = min(come, max(0, room + places - running - len(waiting)))
        refused += come - taken
        waiting.extend([second] * taken)
        while waiting and running < places:
            came = waiting.popleft()
            waited += came < second
            longest_s = max(longest_s, second - came)
            running += 1
        now = midnight + timedelta(seconds=second)
        if second % 5 == 0:
            samples.append(LoadSample(now, running, len(waiting), wanted - ready))
            while len(samples) > 1 and _is_old(samples[1], now, limits):
                samples.popleft()
            shown = DeploymentLoad(wanted, capacity, tuple(samples), 0, scaled_at)
            decided = decide(shown, limits, now)
            if decided != wanted:
                scaled_at = now
                for _ in range(decided - wanted):
                    starting.append(second + start_s)
                for _ in range(wanted - decided):
                    if starting:
                        starting.pop()
                    else:
                        ready -= 1
                wanted = decided
        most = max(most, wanted)
        replica_s += wanted
    return Day(turns, refused, waited, float(longest_s), most, replica_s / 3_600)


def _is_old(sample: LoadSample, now: datetime, limits: ReplicaLimits) -> bool:
    return sample.at <= now - timedelta(seconds=limits.memory_s)


def poisson(chance: random.Random, mean: float) -> int:
    if mean > 50:
        return max(0, round(chance.gauss(mean, math.sqrt(mean))))
    limit, product, count = math.exp(-mean), chance.random(), 0
    while product > limit:
        product *= chance.random()
        count += 1
    return count


def binomial(chance: random.Random, number: int, share: float) -> int:
    if number > 100:
        spread = math.sqrt(number * share * (1 - share))
        return min(number, max(0, round(chance.gauss(number * share, spread))))
    return sum(chance.random() < share for _ in range(number))


def longest_backlog_s(load: Load, a_second: float) -> float:
    """Return how long the last rating of the day's worst moment waits where this number is worked off a second; infinite where a day is not enough."""
    if load.ratings >= a_second:
        return math.inf
    waiting = most = 0.0
    for minute in range(2 * DAY_S // 60):
        comes = load.rate(minute * 60) * assumed("ratings a turn")
        waiting = max(0.0, waiting + 60 * (comes - a_second))
        most = max(most, waiting)
    return most / a_second


# --- the document


def number(value: float) -> str:
    if math.isinf(value):
        return "never"
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def inputs() -> str:
    rows = [
        (
            name,
            f"{number(one.value)} {one.unit}".strip(),
            f"[{Path(one.source).stem}]({Path(one.source).name})",
        )
        for name, one in INPUTS.items()
    ]
    rows.append(
        (
            "ids for a thousand turns, of 1 to 512 users at once",
            "2,000 to 96",
            "[benchmarks](benchmarks.md#transaction-ids)",
        )
    )
    return table(("measured", "figure", "where"), rows)


def assumptions() -> str:
    rows = [
        (name, f"{number(one.value)} {one.unit}".strip(), one.why) for name, one in ASSUMED.items()
    ]
    return table(("assumed", "figure", "why"), rows)


def needs() -> str:
    loads = [Load(users) for users in USERS]
    plans = [plan(load) for load in loads]
    days = [day_of(load, found) for load, found in zip(loads, plans, strict=True)]
    rows: list[tuple[str, list[str]]] = [
        ("turns a second, mean and peak", [f"{number(x.mean)}, {number(x.peak)}" for x in loads]),
        ("open streams at the peak", [number(round(x.open_streams)) for x in loads]),
        ("gateway processes of a core", [number(gateways(x)) for x in loads]),
        ("their cost a month", [dollars(gateways(x) * assumed("a core for an hour") * MONTH_H) for x in loads]),
        ("memory of their streams", [f"{number(round(x.open_streams * measured('memory of an open stream') / 1e3, 1))} MB" for x in loads]),
        ("connections to PostgreSQL, at most", [number(gateways(x) * assumed("connections of a process")) for x in loads]),
        ("stored a day", [f"{number(round(stored_gb_a_day(x), 2))} GB" for x in loads]),
        ("transaction ids a day", [f"{number(round(ids_a_day(x) / 1e6, 2))} million" for x in loads]),
        ("days to a freeze of every table", [number(round(FREEZE_AGE / ids_a_day(x), 1)) for x in loads]),
        ("ratings a second, mean", [number(x.ratings) for x in loads]),
        ("longest wait for the anonymized copy", [wait(longest_backlog_s(x, measured("ratings anonymized"))) for x in loads]),
        ("submissions of Llama 3 8B", [number(x.submissions) for x in loads]),
        ("H100 GPUs for the peak, by `guanaco plan`", [number(p.gpus * x.submissions) for p, x in zip(plans, loads, strict=True)]),
        ("cost of these GPUs a month, all running always", [dollars(p.cost_per_month * x.submissions) for p, x in zip(plans, loads, strict=True)]),
        ("GPU hours a day with replicas by load, simulated", [number(round(d.gpu_hours * x.submissions)) for d, x in zip(days, loads, strict=True)]),
        ("cost of these hours a month", [dollars(d.gpu_hours * x.submissions * MONTH_H / 24 * hourly(p)) for d, p, x in zip(days, plans, loads, strict=True)]),
    ]  # fmt: skip
    head = ("", *(f"{users:,} daily users" for users in USERS))
    return table(head, [(name, *cells) for name, cells in rows])


def hourly(found: GpuPlan) -> float:
    return found.cost_per_month / found.gpus / (MONTH_H)


def dollars(value: float) -> str:
    return f"${value:,.0f}"


def wait(seconds: float) -> str:
    if math.isinf(seconds):
        return "grows for ever"
    return f"{seconds / 3_600:.1f} h" if seconds >= 3_600 else f"{seconds:.0f} s"


def day_of(load: Load, found: GpuPlan) -> Day:
    return simulate(of_one_submission(load), found.capacity_a_replica.batch, 1)


def of_one_submission(load: Load) -> Load:
    return Load(load.users // load.submissions)


def simulation() -> str:
    rows = []
    for users in USERS[1:2]:
        load = Load(users)
        found = plan(load)
        for least, burst in ((1, 1), (1, 3), (4, 3), (6, 3)):
            day = simulate(
                of_one_submission(load), found.capacity_a_replica.batch, least, burst=burst
            )
            rows.append(
                (
                    f"{users // load.submissions:,}",
                    f"{least}",
                    f"{burst}",
                    f"{day.turns:,}",
                    f"{day.most_replicas}",
                    f"{day.gpu_hours:.1f}",
                    f"{day.waited:,}",
                    f"{day.longest_wait_s:.0f} s",
                    f"{day.refused:,}",
                )
            )
    return table(
        ("daily users of the submission", "`min_replicas`", "times as many at noon", "turns", "most replicas", "GPU hours", "turns that waited", "longest wait", "refused"),
        rows,
    )  # fmt: skip


def first_users(ends: Callable[[Load], bool]) -> int:
    """The fewest daily users at which a part ends, to two figures."""
    low, high = 1, 10**10
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if ends(Load(middle)) else (middle + 1, high)
    digits = int(10 ** max(0, len(str(low)) - 2))
    return low // digits * digits


def ends() -> Iterator[tuple[str, str, int]]:
    yield (
        "one gateway process",
        f"{gateway_turns():.0f} turns a second",
        first_users(lambda x: gateways(x) > 1),
    )
    yield (
        "connections without a pooler",
        f"{assumed('connections of PostgreSQL'):.0f}",
        first_users(
            lambda x: (
                gateways(x) * assumed("connections of a process")
                > assumed("connections of PostgreSQL")
            )
        ),
    )
    yield (
        "a freeze of every table each day",
        "200 million ids a day",
        first_users(lambda x: ids_a_day(x) > FREEZE_AGE),
    )
    yield (
        "a day from a stuck vacuum to refused writes",
        "2.1 billion ids a day",
        first_users(lambda x: ids_a_day(x) > WRAP),
    )
    yield (
        "copies of ratings, at the peak",
        "330 a second",
        first_users(lambda x: x.ratings * assumed("peak to mean") > measured("ratings anonymized")),
    )
    yield (
        "copies of ratings, for good",
        "330 a second",
        first_users(lambda x: x.ratings > measured("ratings anonymized")),
    )
    yield (
        "counting of ratings, for good",
        "1,691 a second",
        first_users(lambda x: x.ratings > measured("ratings counted")),
    )
    yield (
        "ratings recorded, at the peak",
        "10,119 a second",
        first_users(lambda x: x.ratings * assumed("peak to mean") > measured("ratings recorded")),
    )


def limits() -> str:
    rows = [
        (what, limit, f"{users:,}") for what, limit, users in sorted(ends(), key=lambda one: one[2])
    ]
    return table(("what ends", "its limit", "at daily users"), rows)


PARTS: dict[str, Callable[[], str]] = {
    "inputs": inputs,
    "assumptions": assumptions,
    "needs": needs,
    "limits": limits,
    "simulation": simulation,
}


def written(document: str) -> str:
    """The document with every part computed again."""
    for name, compute in PARTS.items():
        before, begin, rest = document.partition(BEGIN.format(name))
        _, end, after = rest.partition(END)
        if not (begin and end):
            raise ValueError(f"docs/scale.md has no part {name}")
        document = f"{before}{begin}\n{compute()}\n{end}{after}"
    return document


def main() -> None:
    DOCUMENT.write_text(written(DOCUMENT.read_text()))


if __name__ == "__main__":
    main()
