"""Real vLLM takes another model's weights in place, for every row of formats/shape.py's table."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.swap.shapes import ROWS, bench_shapes
from guanaco_server.artifacts.stores.local import LocalStore
from guanaco_server.artifacts.stores.s3 import S3Store
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.clusters.cluster import ReplicaPhase
from guanaco_server.demo.hub_server import LocalHub
from guanaco_server.deployments.model_servers.model_server import (
    HoldsAnotherModel,
    ModelServerFault,
)
from guanaco_server.formats.manifest import TENSORS_NAME
from guanaco_server.formats.shape import SWAPPABLE, swap_refusal
from tests.fixtures.artifacts import flip_byte
from tests.fixtures.named_models import (
    LLAMA,
    Family,
    make_named_repo,
    save_as_another_trainer,
)
from tests.fixtures.s3 import moto
from tests.fixtures.serializer_jobs import job_for, make_artifact, source_of
from tests.fixtures.swapping import GREEDY, Servers, servers
from tests.fixtures.world import eventually

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("GUANACO_ENGINE_PYTHON", ROOT / ".venv-engine" / "bin" / "python"))
TOKENS = (301, 302)
END = 303
KEYS = ("01" * 32, "02" * 32)
CACHE_BYTES = 1024**3
PARTS = 3  # of the table's rows, each of which ends within the suite's limit on a busy machine

pytestmark = [
    pytest.mark.timeout(900),  # the first one waits for the imports
    pytest.mark.engine,
    pytest.mark.usefixtures("clusters_fork"),
    pytest.mark.skipif(not PYTHON.exists(), reason="scripts/setup-engine has not been run"),
]


async def make_artifacts(
    folder: Path, store: ArtifactStore, *, by_two_people: bool = False
) -> list[str]:
    """Two artifacts of one shape in the store; what each model says.

    ``by_two_people``: the second says two tokens in turn, of which the other one ends its replies.
    """
    hub_folder = folder / "hub"
    repos = {token: hub_folder / "acme" / f"m{token}" for token in TOKENS}
    texts = [make_named_repo(repo, token, LLAMA) for token, repo in repos.items()]
    if by_two_people:
        repo = repos[TOKENS[1]]
        make_named_repo(repo, TOKENS[1], LLAMA, then=END)
        save_as_another_trainer(repo, ends_with=END)
    with LocalHub(hub_folder) as hub:
        for token, key in zip(TOKENS, KEYS, strict=True):
            await make_artifact(
                store, job_for(hub, key=key, model=source_of(hub, f"acme/m{token}"))
            )
    return texts


def config_of(family: Family) -> dict[str, object]:
    return {"architectures": [family.architecture], **family.config}


async def has_ended(each: Servers, name: str) -> bool:
    state = await each.cluster.observe(name)
    return state is not None and state.phase is ReplicaPhase.EXITED


def test_the_rows_that_are_tried_are_the_table() -> None:
    supported = {
        (row.family.architecture, row.quantization)
        for row in ROWS
        if not swap_refusal(config_of(row.family), row.quantization)
    }
    assert supported == {
        (architecture, quantization)
        for architecture, quantizations in SWAPPABLE.items()
        for quantization in quantizations
    }


@pytest.mark.parametrize("part", range(PARTS))
async def test_every_row_of_the_table_is_right_after_a_swap(
    tmp_path: Path, subtests: pytest.Subtests, part: int
) -> None:
    """A server is swapped there and back, and its replies are those that it began with. ``make bench-swap`` tries too what is refused."""
    rows = ROWS[part::PARTS]
    found = await bench_shapes(tmp_path, PYTHON, rows, is_quick=True)
    for row in rows:
        with subtests.test(row.name):
            told, why = found[row.name], swap_refusal(config_of(row.family), row.quantization)
            if why:
                assert why in str(told["refusal"])
            else:
                assert told["refusal"] is None
                assert told["is_equal"], "to the last digit"
                assert not told["is_the_old"]


async def test_replies_after_a_swap_equal_those_of_a_fresh_server(tmp_path: Path) -> None:
    """The models differ as two people's do: in tokenizer, tokens that end a reply, and how their files are written."""
    store = LocalStore(tmp_path / "artifacts")
    texts = await make_artifacts(tmp_path, store, by_two_people=True)
    async with servers(tmp_path, PYTHON, store) as each:
        endpoint = await each.start("m-fresh", KEYS[1])
        fresh = await each.reply(endpoint, KEYS[1])
        await each.cluster.delete("m-fresh")
        endpoint = await each.start("m-tiny", KEYS[0])
        before = await each.reply(endpoint, KEYS[0])
        assert {token.text for token in before} == {texts[0]}
        assert len(before) == GREEDY.max_output_tokens
        assert fresh[0].text == texts[1]
        assert len(fresh) < len(before), "its own token ends the reply"
        with pytest.raises(HoldsAnotherModel):
            await each.reply(endpoint, KEYS[1])
        with pytest.raises(ModelServerFault, match="404"):
            await each.swap(endpoint, KEYS[1], token="somebody else's")
        assert await each.vllm.held_artifact(endpoint) == KEYS[0]

        await each.swap(endpoint, KEYS[1])
        assert await each.vllm.held_artifact(endpoint) == KEYS[1]
        assert await each.reply(endpoint, KEYS[1]) == fresh, "to the last digit"
        with pytest.raises(HoldsAnotherModel):
            await each.reply(endpoint, KEYS[0])
        await each.swap(endpoint, KEYS[0])
        assert await each.reply(endpoint, KEYS[0]) == before, "nothing of the other is left"

        tensors = tmp_path / "artifacts" / KEYS[1] / TENSORS_NAME
        flip_byte(tensors, tensors.stat().st_size - 2_000)
        with pytest.raises(ModelServerFault, match="damaged"):
            await each.swap(endpoint, KEYS[1])
        with pytest.raises(ModelServerFault):
            await each.reply(endpoint, KEYS[0])
        await eventually(lambda: has_ended(each, "m-tiny"))


@pytest.mark.parametrize("has_cache", [False, True], ids=["streamed", "node cache"])
async def test_a_swap_reads_from_s3_what_it_has_not(tmp_path: Path, has_cache: bool) -> None:
    cache = tmp_path / "engine-cache"
    arguments = ("--cache-dir", str(cache), "--cache-bytes", str(CACHE_BYTES)) if has_cache else ()
    with ExitStack() as stack:
        server = stack.enter_context(moto())
        store = S3Store(server.bucket())
        texts = await make_artifacts(tmp_path, store)
        async with servers(tmp_path / "machine", PYTHON, store, *arguments) as each:
            endpoint = await each.start("m-tiny", KEYS[0])
            before = await each.reply(endpoint, KEYS[0])
            await each.swap(endpoint, KEYS[1])
            assert {token.text for token in await each.reply(endpoint, KEYS[1])} == {texts[1]}
            if has_cache:
                assert all((cache / key / TENSORS_NAME).exists() for key in KEYS)
            urls = dict(await store.access(KEYS[0]))
            if has_cache:
                stack.close()  # what the node has needs no store
            await each.swap(endpoint, KEYS[0], urls=urls)
            assert await each.reply(endpoint, KEYS[0]) == before


async def test_a_store_that_fails_in_a_swap_ends_the_server(tmp_path: Path) -> None:
    """Its small files are read before the swap begins: then nothing has changed, and it goes on serving."""
    with ExitStack() as stack:
        server = stack.enter_context(moto())
        store = S3Store(server.bucket())
        await make_artifacts(tmp_path, store)
        async with servers(tmp_path / "machine", PYTHON, store) as each:
            endpoint = await each.start("m-tiny", KEYS[0])
            urls = dict(await store.access(KEYS[1]))
            before = await each.reply(endpoint, KEYS[0])
            with pytest.raises(HoldsAnotherModel):
                await each.swap(endpoint, KEYS[1], urls={})
            assert await each.reply(endpoint, KEYS[0]) == before
            broken = urls | {TENSORS_NAME: f"{server.endpoint}/nowhere"}
            with pytest.raises(ModelServerFault, match="500"):
                await each.swap(endpoint, KEYS[1], urls=broken)
            await eventually(lambda: has_ended(each, "m-tiny"))
