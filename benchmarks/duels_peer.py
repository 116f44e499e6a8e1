"""Fits votes by arena-rank and choix, in an environment of their own: arena-rank pins a numpy that the platform is past.

    python duels_peer.py VOTES.npz PEER

PEER is choix, arena_rank or arena_rank_style. Prints one JSON object.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

import numpy as np

MODULES = {
    "choix": ["choix"],
    "arena_rank": ["pandas", "arena_rank.models.bradley_terry"],
    "arena_rank_style": ["pandas", "arena_rank.models.contextual_bradley_terry"],
}


def main() -> None:
    votes, peer = dict(np.load(sys.argv[1])), sys.argv[2]
    for module in MODULES[peer]:
        importlib.import_module(module)
    began = time.perf_counter()
    found = {"choix": choix, "arena_rank": arena_rank, "arena_rank_style": arena_rank_style}[peer](
        votes
    )
    strengths = np.asarray(found["strengths"])
    print(
        json.dumps(
            found
            | {"strengths": (strengths - strengths.mean()).tolist()}
            | {"seconds": time.perf_counter() - began}
        )
    )


def choix(votes: Any) -> dict[str, Any]:
    """A comparison is two wins for choix, which knows no ties: both for the winner, or one for each."""
    import choix

    size = int(max(votes["first"].max(), votes["second"].max())) + 1
    wins = np.zeros((size, size))
    np.add.at(wins, (votes["first"], votes["second"]), 2 * votes["outcome"])
    np.add.at(wins, (votes["second"], votes["first"]), 2 * (1 - votes["outcome"]))
    found = choix.ilsr_pairwise_dense(wins, alpha=0.0, tol=1e-12)
    return {"strengths": found.tolist()}


def _frame(votes: Any) -> Any:
    import pandas

    words = np.asarray(["model_b", "tie", "model_a"])
    names = np.asarray([f"{index:04}" for index in range(int(votes["first"].max()) + 1)])
    frame = pandas.DataFrame(
        {
            "model_a": names[votes["first"]],
            "model_b": names[votes["second"]],
            "winner": words[(2 * votes["outcome"]).astype(int)],
        }
    )
    for column in range(votes["terms"].shape[1]):
        frame[f"term{column}"] = votes["terms"][:, column]
    return frame


def arena_rank(votes: Any) -> dict[str, Any]:
    from arena_rank.models.bradley_terry import BradleyTerry
    from arena_rank.utils.data_utils import PairDataset

    data = PairDataset.from_pandas(_frame(votes))
    model = BradleyTerry(n_competitors=len(data.competitors), ftol=0.0, gtol=1e-10)
    found = model.compute_ratings_and_cis(data)
    return {"strengths": ((np.asarray(found["ratings"]) - 1000) / model.alpha).tolist()}


def arena_rank_style(votes: Any) -> dict[str, Any]:
    from arena_rank.models.contextual_bradley_terry import ContextualBradleyTerry
    from arena_rank.utils.data_utils import ContextualPairDataset

    columns = [f"term{column}" for column in range(votes["terms"].shape[1])]
    data = ContextualPairDataset.from_pandas(
        _frame(votes), columns, reweighted=False, normalize_features=False
    )
    model = ContextualBradleyTerry(
        n_competitors=len(data.competitors), n_features=len(columns), reg=0.0, ftol=0.0, gtol=1e-10
    )
    found = model.compute_ratings_and_cis(data)
    strengths = (np.asarray(found["ratings"]) - 1000) / model.alpha
    return {"strengths": strengths.tolist(), "effects": np.asarray(found["coeffs"]).tolist()}


if __name__ == "__main__":
    main()
