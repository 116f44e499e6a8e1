"""GPU hours until the best of 40 submissions on 2 model servers is known, by who sleeps: figures of docs/benchmarks.md.

    make bench-worth ARGS='--seasons=50'

Each season is played by both policies with the same true ratios and the platform's own functions (simulation/engines.py). Prints a
table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from typing import Any

from guanaco.simulations import SharedServers, SimulationRequest, SleepPolicy
from guanaco_server.simulation.engines import (
    SharedPlan,
    SharedSeason,
    shared_season,
    simulate_shared,
)

SWAPS_S = (0.6, 10.0, 30.0, 120.0)
AIM = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seasons", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--submissions", type=int, default=40)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--rating-s", type=float, default=10.0, help="of a server for each rating")
    parser.add_argument("--within", type=float, default=0.05)
    parser.add_argument("--most-ratings", type=int, default=200_000)
    options = parser.parse_args()
    request = SimulationRequest(
        submissions=options.submissions, most_ratings=options.most_ratings,
        seasons=options.seasons, seed=options.seed,
    )  # fmt: skip
    found = []
    with ProcessPoolExecutor() as pool:
        for swap_s in SWAPS_S:
            servers = SharedServers(
                engines=options.engines, swap_s=swap_s, rating_s=options.rating_s
            )
            found.append(compared(request, servers, options.within, pool))
            show(found[-1])
    figures = {
        "seasons": options.seasons, "seed": options.seed, "submissions": options.submissions, "engines": options.engines,
        "rating_s": options.rating_s, "within": options.within, "aim_times": AIM, "cores": os.cpu_count(), "swaps": found,
    }  # fmt: skip
    print(json.dumps(figures))


def compared(
    request: SimulationRequest, servers: SharedServers, within: float, pool: ProcessPoolExecutor
) -> dict[str, Any]:
    """Play all seasons by both policies, and compare them season by season."""
    seasons: dict[SleepPolicy, list[SharedSeason]] = {}
    figures: dict[str, Any] = {"swap_s": servers.swap_s}
    for policy in SleepPolicy:
        print(f"{request.seasons} seasons of {policy} at {servers.swap_s:g} s", file=sys.stderr)

        def run(plan: SharedPlan, seeds: Sequence[int]) -> Iterator[SharedSeason]:
            seasons[plan.policy] = list(pool.map(shared_season, [plan] * len(seeds), seeds))
            return iter(seasons[plan.policy])

        verdict = simulate_shared(SharedPlan(request, servers, within, policy), run)
        figures[policy.value] = verdict.model_dump(mode="json", exclude={"policy"})
    pairs = zip(seasons[SleepPolicy.LEAST_USEFUL], seasons[SleepPolicy.WORTH], strict=True)
    times = sorted(theirs.seconds / ours.seconds for theirs, ours in pairs)
    hours = figures["least_useful"]["gpu_hours"], figures["worth"]["gpu_hours"]
    figures["times_of_medians"] = hours[0] / hours[1]
    figures["times_by_season"] = {
        "median": median(times),
        "quarter": times[len(times) // 4],
        "three_quarters": times[-1 - len(times) // 4],
    }
    return figures


def show(figures: dict[str, Any]) -> None:
    print(f"\na change takes {figures['swap_s']:g} s")
    print(f"  {'':<14}{'GPU hours':>11}{'middle half':>18}{'ratings':>10}{'changes':>9}{'decided':>9}{'wrong':>7}")  # fmt: skip
    for policy in SleepPolicy:
        one = figures[policy.value]
        spread = f"{one['quarter']:.1f} to {one['three_quarters']:.1f}"
        print(f"  {policy.value:<14}{one['gpu_hours']:>11.1f}{spread:>18}{one['ratings']:>10,.0f}{one['changes']:>9,.0f}{one['decided']:>9.1%}{one['wrong']:>7.1%}")  # fmt: skip
    times = figures["times_by_season"]
    print(
        f"  {figures['times_of_medians']:.1f} times fewer; by season {times['median']:.1f} ({times['quarter']:.1f} to {times['three_quarters']:.1f}); aim {AIM:g}",
        flush=True,
    )


if __name__ == "__main__":
    main()
