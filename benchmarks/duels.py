"""Fits strengths to a million duels, beside arena-rank and choix on the same votes: figures of docs/benchmarks.md.

    make bench-duels ARGS='--votes=1000000 --rounds=3'

The peers run in an environment of their own, since arena-rank pins an older numpy; ARGS=--peer=PYTHON takes one that is there,
--peer=none measures ours alone. Each fit includes its standard errors, ours clustered by user; choix finds none, and is beside our strengths alone. Fails if a strength differs from a
peer's by more than 0.0001. Prints a table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.duels_data import SUBMISSIONS, Columns, made_votes
from guanaco_server.leaderboard.ranking.strengths.bradley_terry import Strengths
from guanaco_server.leaderboard.ranking.strengths.comparisons import (
    CodedDuels,
    fit,
    maximum,
    wins_of_duels,
)

PEERS = {"choix": "choix==0.4.1", "arena_rank": "arena-rank==0.1.1"}
SCRIPT = Path(__file__).with_name("duels_peer.py")
TOLERANCE = 1e-4
NEARLY_NONE = 1e-6  # our prior and ridge, which the peers do not have


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--votes", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--peer", help="an interpreter that has both peers, or 'none'")
    options = parser.parse_args()
    votes = made_votes(options.votes, options.seed, max(50, options.votes // 20))
    figures: dict[str, Any] = {"votes": options.votes, "seed": options.seed}
    with tempfile.TemporaryDirectory() as folder:
        python = options.peer or _installed(Path(folder) / "peers")
        np.savez(Path(folder) / "votes.npz", **votes)  # type: ignore[arg-type]
        for name in ("choix", "arena_rank", "arena_rank_style"):
            ours, seconds = _ours(votes, name, options.rounds)
            figures[name] = {"our_seconds": seconds}
            if python != "none":
                figures[name] |= _beside(
                    python, Path(folder) / "votes.npz", name, ours, options.rounds
                )
    for name in ("choix", "arena_rank", "arena_rank_style"):
        print(name, figures[name])
    print(json.dumps(figures))
    if any(one.get("difference", 0.0) > TOLERANCE for one in figures.values() if type(one) is dict):
        raise SystemExit(f"a strength differs from a peer's by more than {TOLERANCE}")


def fitted(votes: Columns, has_terms: bool) -> Strengths:
    return fit([], SUBMISSIONS, coded(votes, has_terms), prior=NEARLY_NONE, ridge=NEARLY_NONE)


def coded(votes: Columns, has_terms: bool) -> CodedDuels:
    count = len(votes["outcome"])
    return CodedDuels(
        users=votes["user"].astype(np.int64),
        first=votes["first"].astype(np.int64),
        second=votes["second"].astype(np.int64),
        outcomes=votes["outcome"],
        weights=np.ones(count),
        terms=votes["terms"] if has_terms else np.zeros((count, 0)),
    )


def _ours(votes: Columns, peer: str, rounds: int) -> tuple[Strengths, float]:
    """Return our strengths, and the seconds for what the peer does: choix finds no errors."""
    found, seconds = fitted(votes, peer == "arena_rank_style"), []
    for _ in range(rounds):
        began = time.perf_counter()
        if peer == "choix":
            duels = coded(votes, False)
            duelled = wins_of_duels(duels, SUBMISSIONS)
            maximum(np.zeros(duelled.shape), duelled, duels, NEARLY_NONE, NEARLY_NONE)
        else:
            fitted(votes, peer == "arena_rank_style")
        seconds.append(time.perf_counter() - began)
    return found, round(statistics.median(seconds), 3)


def _beside(python: str, votes: Path, peer: str, ours: Strengths, rounds: int) -> dict[str, float]:
    seconds, difference = [], 0.0
    for _ in range(rounds):
        done = subprocess.run(
            [python, str(SCRIPT), str(votes), peer], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{peer} cannot be run here: {done.stderr[-500:]}")
        found = json.loads(done.stdout.splitlines()[-1])
        seconds.append(found["seconds"])
        theirs = [*found["strengths"], *found.get("effects", [])]
        mine = [*ours.values, *ours.effects]
        difference = max(abs(a - b) for a, b in zip(mine, theirs, strict=True))
    return {"seconds": round(statistics.median(seconds), 3), "difference": difference}


def _installed(folder: Path) -> str:
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS.values()], check=True)
    return python


if __name__ == "__main__":
    main()
