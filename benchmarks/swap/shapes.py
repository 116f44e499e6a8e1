"""The table of formats/shape.py, row by row: what a swap leaves in real vLLM, beside a fresh server of the same artifact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.swap import unchecked_server
from benchmarks.swap.figures import talk
from guanaco_server.artifacts.stores.local import LocalStore
from guanaco_server.demo.hub_server import LocalHub
from guanaco_server.deployments.engines.specs import AdapterLimits
from guanaco_server.deployments.model_servers.model_server import GeneratedToken, HoldsAnotherModel
from guanaco_server.submissions.pipeline.adapter_choice import ARCHITECTURES
from tests.fixtures.named_models import (
    LLAMA,
    LONG_PADDED_LLAMA,
    MISTRAL,
    MIXTRAL,
    PADDED_LLAMA,
    QWEN2,
    QWEN3,
    TIED_LLAMA,
    TIED_QWEN2,
    Family,
    make_named_repo,
    save_as_another_trainer,
)
from tests.fixtures.serializer_jobs import job_for, make_artifact, source_of
from tests.fixtures.swapping import Servers, servers

TOKENS = (301, 302)


@dataclass(frozen=True)
class Row:
    """A family with what vLLM quantizes it to while loading."""

    name: str
    family: Family
    quantization: str | None = None


ROWS = (
    Row("Llama", LLAMA),
    Row("Llama, fp8 by channel", LLAMA, "fp8_per_channel"),
    Row("Llama, int8", LLAMA, "int8_per_channel_weight_only"),
    Row("Llama, padded by 63", PADDED_LLAMA),
    Row("Llama, 32,001 entries", LONG_PADDED_LLAMA),
    Row("Llama, padded, fp8 by channel", PADDED_LLAMA, "fp8_per_channel"),
    Row("Mistral", MISTRAL),
    Row("Qwen2", QWEN2),
    Row("Qwen3", QWEN3),
    Row("Llama, tied output", TIED_LLAMA),
    Row("Qwen2, tied output", TIED_QWEN2),
    Row("Mixtral", MIXTRAL),
)


async def bench_shapes(
    folder: Path, python: Path, rows: Sequence[Row] = ROWS, *, is_quick: bool = False
) -> dict[str, dict[str, Any]]:
    """Each row: what a swap leaves, and for what is refused by name what it would have left.

    ``is_quick`` needs one server a row: it is swapped there and back, and what is refused is not tried.
    """
    store = LocalStore(folder / "artifacts")
    keys = await _make_artifacts(folder, store, rows)
    found = {}
    async with servers(folder / "machine", python, store) as each:
        for number, row in enumerate(rows):
            told = await _try(each, f"m-{number}", row, keys[row.name], is_quick=is_quick)
            found[row.name] = told
            talk(f"  {row.name:30s} {_verdict(told):26s} {told['refusal'] or 'supported'}")
    return found


async def _make_artifacts(
    folder: Path, store: LocalStore, rows: Sequence[Row]
) -> dict[str, list[str]]:
    """Two artifacts of each row's shape, which two people saved; their keys by row."""
    keys: dict[str, list[str]] = {}
    with LocalHub(folder / "hub") as hub:
        for number, row in enumerate(rows):
            keys[row.name] = []
            for token in TOKENS:
                repo, key = f"acme/m{number}-{token}", f"{number:02x}{token:04x}".ljust(64, "0")
                make_named_repo(folder / "hub" / repo, token, row.family)
                if token == TOKENS[1]:
                    save_as_another_trainer(folder / "hub" / repo)
                await make_artifact(store, job_for(hub, key=key, model=source_of(hub, repo)))
                keys[row.name].append(key)
    return keys


async def _try(
    each: Servers, name: str, row: Row, keys: list[str], *, is_quick: bool
) -> dict[str, Any]:
    """Swap in a server as the product starts it; where that is refused, in one that refuses nothing."""
    further: tuple[str, ...] = ()
    if row.quantization:
        further = ("--quantization", row.quantization)
    elif row.family.architecture in ARCHITECTURES:  # as the product starts it
        further = AdapterLimits().arguments
    first, second = keys
    endpoint = await each.start(name, first, *further)
    before, refusal = await each.reply(endpoint, first), None
    try:
        await each.swap(endpoint, second)
    except HoldsAnotherModel as refused:
        refusal = str(refused)
        assert await each.reply(endpoint, first) == before, "a swap that is refused changes nothing"
        await each.cluster.delete(name)
        if is_quick:
            return {"refusal": refusal}
        endpoint = await each.start(name, first, *further, module=unchecked_server.__name__)
        await each.swap(endpoint, second)
    fresh, old, after = before, before, await each.reply(endpoint, second)
    if is_quick:
        await each.swap(endpoint, first)
        old, after = after, await each.reply(endpoint, first)
    await each.cluster.delete(name)
    if not is_quick:
        endpoint = await each.start(f"{name}-fresh", second, *further)
        fresh = await each.reply(endpoint, second)
        await each.cluster.delete(f"{name}-fresh")
    return {
        "is_equal": after == fresh,
        "has_same_words": _words(after) == _words(fresh),
        "is_the_old": _words(after) == _words(old),
        "refusal": refusal,
    }


def _words(tokens: Sequence[GeneratedToken]) -> list[str]:
    return [token.text for token in tokens]


def _verdict(told: dict[str, Any]) -> str:
    if "is_equal" not in told:
        return "not tried"
    if told["is_equal"]:
        return "equal to the last digit"
    return "same words, other numbers" if told["has_same_words"] else "other words"
