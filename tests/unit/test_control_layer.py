"""Tests how a model server's control layer handles orders to sleep, wake and swap; the engine is scripted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guanaco_server.engine import adapters
from guanaco_server.engine.adapters import HeldAdapters
from guanaco_server.engine.artifacts.errors import DamagedArtifactError
from guanaco_server.engine.artifacts.source import ArtifactSource, ModelFolder
from guanaco_server.engine.control import (
    KEEPS_NOTHING,
    KEEPS_WEIGHTS,
    AdapterOrder,
    ControlLayer,
    Message,
    Receive,
    RepliesInProgress,
    Scope,
    Send,
    ServedArtifact,
    SleepRequest,
    State,
    SwapRefused,
    SwapRequest,
)
from guanaco_server.formats.control import ARTIFACT_HEADER, SLEEP_PATH
from tests.fixtures.artifacts import random_tensors, write_artifact

FIRST, SECOND, ADAPTER, OTHERS = "c" * 64, "d" * 64, "e" * 64, "a" * 64
CONFIG = {"config.json": json.dumps({"architectures": ["LlamaForCausalLM"]}).encode()}
TOKEN = "the server's"
OUT_OF_MEMORY = RuntimeError("out of memory")


class ScriptedEngine:
    def __init__(
        self, *, can_sleep: bool = True, fails: str = "", error: Exception = OUT_OF_MEMORY
    ) -> None:
        self.can_sleep = can_sleep
        self.fails = fails
        self.error = error
        self.done: list[str] = []

    async def read_tokenizer(self, found: ModelFolder) -> str:
        self._do(f"tokenizer {found.path.name[0]}")
        return found.path.name

    async def load(
        self, source: ArtifactSource, found: ModelFolder, tokenizer: str | None
    ) -> dict[str, float]:
        assert tokenizer in (None, source.key)
        self._do(f"load {source.key[0]}{' with its tokenizer' if tokenizer else ''}")
        return {}

    async def sleep(self, level: int) -> None:
        self._do(f"sleep {level}")

    async def wake(self) -> None:
        self._do("wake")

    async def generate(self) -> None:
        self._do("generate")

    def _do(self, what: str) -> None:
        self.done.append(what)
        if what == self.fails:
            raise self.error


class ScriptedAdapters:
    """vLLM's list of adapters."""

    def __init__(self) -> None:
        self.held: list[str] = []
        self.folders: list[Path] = []

    async def load(self, name: str, folder: Path) -> None:
        self.held.append(name)
        self.folders.append(folder)

    async def unload(self, name: str) -> None:
        self.held.remove(name)


NO_ADAPTERS = ScriptedAdapters()


class UncheckedAdapters(HeldAdapters):
    """Adapters whose bytes are not looked at: that takes torch, which test_adapters_on_vllm.py has."""

    def _copy_verified(self, source: ArtifactSource, folder: Path) -> None:
        return


@contextmanager
def open_folder(source: ArtifactSource) -> Iterator[ModelFolder]:
    assert source.folder is not None
    yield ModelFolder(source.folder)


def source(folder: Path, key: str) -> ArtifactSource:
    return ArtifactSource((folder / key).as_uri())


@pytest.fixture
def served(tmp_path: Path) -> ServedArtifact:
    for key in (FIRST, SECOND):
        write_artifact(tmp_path / key, random_tensors(8), CONFIG, key)

    first = source(tmp_path, FIRST)
    assert first.folder is not None
    return ServedArtifact(first, ModelFolder(first.folder), ExitStack(), open_folder, None, TOKEN)


def swap_to(folder: Path, key: str) -> SwapRequest:
    return SwapRequest(source(folder, key), drain_s=0)


async def ask(served: ServedArtifact, path: str, expected: str = "") -> tuple[int, dict[str, str]]:
    """Send a request through the layer to an app that answers everything; the status and the headers."""
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Message:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: Message) -> None:
        sent.append(message)

    state = SimpleNamespace(args=SimpleNamespace(guanaco_served=served), engine_client=None)
    headers = [(ARTIFACT_HEADER.lower().encode(), expected.encode())] if expected else []
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": path, "headers": headers}
    await ControlLayer(app)(scope | {"app": SimpleNamespace(state=state)}, receive, send)
    told = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
    return sent[0]["status"], told


async def test_what_sleeps_answers_no_request_and_says_so_at_health(served: ServedArtifact) -> None:
    assert await ask(served, "/v1/completions", FIRST) == (200, {})
    await served.sleep(SleepRequest(KEEPS_WEIGHTS, 0), ScriptedEngine())
    assert (await ask(served, "/v1/completions", FIRST))[0] == 409
    assert await ask(served, "/health") == (200, {ARTIFACT_HEADER.lower(): "sleeping"})


async def test_it_wakes_with_the_weights_that_it_kept(served: ServedArtifact) -> None:
    engine = ScriptedEngine()
    await served.sleep(SleepRequest(KEEPS_WEIGHTS, 0), engine)
    await served.sleep(SleepRequest(KEEPS_WEIGHTS, 0), engine)
    await served.wake(engine)
    await served.wake(engine)
    assert engine.done == ["sleep 1", "wake", "generate"], "an order may be repeated"
    assert (await ask(served, "/v1/completions", FIRST))[0] == 200


@pytest.mark.parametrize("level", [KEEPS_WEIGHTS, KEEPS_NOTHING])
@pytest.mark.parametrize("key", [FIRST, SECOND])
async def test_a_swap_wakes_it_with_any_artifact(
    served: ServedArtifact, tmp_path: Path, level: int, key: str
) -> None:
    engine = ScriptedEngine()
    await served.sleep(SleepRequest(level, 0), engine)
    await served.swap(swap_to(tmp_path, key), engine, NO_ADAPTERS)
    is_kept = (level, key) == (KEEPS_WEIGHTS, FIRST)
    assert engine.done == [f"sleep {level}", "wake", "generate" if is_kept else f"load {key[0]}"]
    assert (served.state, served.key) == (State.SERVING, key)
    await served.swap(swap_to(tmp_path, FIRST), engine, NO_ADAPTERS)
    assert engine.done.count("wake") == 1


async def test_server_without_weights_is_woken_only_by_a_swap(
    served: ServedArtifact, tmp_path: Path
) -> None:
    engine = ScriptedEngine()
    await served.sleep(SleepRequest(KEEPS_NOTHING, 0), engine)
    with pytest.raises(SwapRefused, match="a swap wakes it"):
        await served.wake(engine)
    assert served.state is State.SLEEPING
    await served.swap(swap_to(tmp_path, FIRST), engine, NO_ADAPTERS)
    assert served.accepts(FIRST)


async def test_a_swap_forgets_the_adapters_of_the_model_before(
    served: ServedArtifact, tmp_path: Path
) -> None:
    adapters = ScriptedAdapters()
    held = served.adapters = UncheckedAdapters(FIRST, 8, open_folder)
    order = AdapterOrder(source(tmp_path, ADAPTER), is_to_forget=False)
    await served.change_adapters(order, held, adapters)
    assert (held.keys, adapters.held) == ([ADAPTER], [ADAPTER])
    await served.swap(swap_to(tmp_path, SECOND), ScriptedEngine(), adapters)
    assert (held.keys, adapters.held) == ([], [])


@pytest.mark.parametrize("path", ["tokenizer.json", "generation_config.json"])
async def test_a_swap_reads_the_tokenizer_only_where_files_differ(
    served: ServedArtifact, tmp_path: Path, path: str
) -> None:
    engine = ScriptedEngine()
    await served.swap(swap_to(tmp_path, SECOND), engine, NO_ADAPTERS)
    assert engine.done == ["load d"]
    write_artifact(tmp_path / OTHERS, random_tensors(8), {**CONFIG, path: b"{}"}, OTHERS)
    for key in (OTHERS, SECOND):
        await served.swap(swap_to(tmp_path, key), engine, NO_ADAPTERS)
    assert engine.done[1:] == [
        "tokenizer a", "load a with its tokenizer", "tokenizer d", "load d with its tokenizer",
    ]  # fmt: skip


async def test_a_tokenizer_that_cannot_be_read_changes_nothing(
    served: ServedArtifact, tmp_path: Path
) -> None:
    write_artifact(tmp_path / OTHERS, random_tensors(8), {**CONFIG, "tokenizer.json": b""}, OTHERS)
    engine = ScriptedEngine(fails="tokenizer a", error=DamagedArtifactError("No tokenizer."))
    with pytest.raises(SwapRefused, match="No tokenizer"):
        await served.swap(swap_to(tmp_path, OTHERS), engine, NO_ADAPTERS)
    assert served.accepts(FIRST)


@pytest.mark.parametrize("config", [b"[]", b"{", b"[" * 100_000])
async def test_a_config_that_cannot_be_read_changes_nothing(
    served: ServedArtifact, tmp_path: Path, config: bytes
) -> None:
    write_artifact(tmp_path / OTHERS, random_tensors(8), {"config.json": config}, OTHERS)
    with pytest.raises(SwapRefused, match=r"config\.json cannot be read"):
        await served.swap(swap_to(tmp_path, OTHERS), ScriptedEngine(), NO_ADAPTERS)
    assert served.accepts(FIRST)


async def test_a_swap_gives_up_the_folder_of_the_model_before(tmp_path: Path) -> None:
    in_use: list[str] = []

    @contextmanager
    def recorded(source: ArtifactSource) -> Iterator[ModelFolder]:
        in_use.append(source.key)
        yield ModelFolder(tmp_path / source.key)
        in_use.remove(source.key)

    for key in (FIRST, SECOND):
        write_artifact(tmp_path / key, random_tensors(8), CONFIG, key)
    first = source(tmp_path, FIRST)
    with ExitStack() as held:
        found = held.enter_context(recorded(first))
        served = ServedArtifact(first, found, held, recorded, None, TOKEN)
        for key in (SECOND, FIRST, SECOND):
            await served.swap(swap_to(tmp_path, key), ScriptedEngine(), NO_ADAPTERS)
            assert in_use == [key]
    assert in_use == []


async def test_adapters_wait_for_the_artifact_under_them(
    served: ServedArtifact, tmp_path: Path
) -> None:
    held = UncheckedAdapters(FIRST, 8, open_folder)
    order = AdapterOrder(source(tmp_path, ADAPTER), is_to_forget=False)
    await served.sleep(SleepRequest(KEEPS_WEIGHTS, 0), ScriptedEngine())
    with pytest.raises(RepliesInProgress, match="sleeping"):
        await served.change_adapters(order, held, NO_ADAPTERS)


async def test_a_forgotten_adapters_folder_outlasts_replies_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM may read it again for a request that waits, and would end without it."""
    held, engine = UncheckedAdapters(FIRST, 8, open_folder), ScriptedAdapters()
    await held.load(source(tmp_path, ADAPTER), engine)
    await held.unload(ADAPTER, engine)
    (folder,) = engine.folders
    assert (engine.held, held.keys, folder.exists()) == ([], [], True)
    monkeypatch.setattr(adapters, "KEPT_S", 0.0)
    await held.load(source(tmp_path, ADAPTER), engine)
    await held.unload(ADAPTER, engine)
    while engine.folders[-1].exists():
        await asyncio.sleep(0)
    assert [one.exists() for one in engine.folders] == [True, False]


async def test_an_engine_without_sleep_levels_goes_on_serving(served: ServedArtifact) -> None:
    engine = ScriptedEngine(can_sleep=False)
    with pytest.raises(SwapRefused, match="only one on a GPU"):
        await served.sleep(SleepRequest(KEEPS_WEIGHTS, 0), engine)
    assert (served.state, engine.done) == (State.SERVING, [])


async def test_open_replies_are_completed_before_it_sleeps(served: ServedArtifact) -> None:
    engine = ScriptedEngine()
    served.enter()
    with pytest.raises(RepliesInProgress):
        await served.sleep(SleepRequest(KEEPS_WEIGHTS, 0), engine)
    assert (served.state, engine.done) == (State.SERVING, [])
    served.leave()
    await served.sleep(SleepRequest(KEEPS_WEIGHTS, 0), engine)
    assert served.state is State.SLEEPING


async def test_a_server_swapped_meanwhile_refuses_to_sleep(
    served: ServedArtifact, tmp_path: Path
) -> None:
    """Another worker has had it swapped while the order was on its way."""
    engine = ScriptedEngine()
    order = SleepRequest(KEEPS_WEIGHTS, 0, FIRST)
    await served.swap(swap_to(tmp_path, SECOND), engine, NO_ADAPTERS)
    with pytest.raises(SwapRefused, match="another artifact by now"):
        await served.sleep(order, engine)
    assert served.accepts(SECOND)
    await served.sleep(SleepRequest(KEEPS_WEIGHTS, 0, SECOND), engine)
    assert engine.done == ["load d", "sleep 1"]


def test_an_order_of_the_version_before_names_no_artifact() -> None:
    read = SleepRequest.read(b'{"level": 1, "drain_s": 5}')
    assert read == SleepRequest(KEEPS_WEIGHTS, 5)
    assert SleepRequest.read(b'{"level": 1, "drain_s": 5, "artifact": "c"}').artifact == "c"


async def sleep_and_wake(served: ServedArtifact, engine: ScriptedEngine) -> None:
    await served.sleep(SleepRequest(KEEPS_WEIGHTS, 0), engine)
    await served.wake(engine)


@pytest.mark.parametrize("fails", ["sleep 1", "wake", "generate"])
async def test_a_failure_between_sleeping_and_serving_breaks_it(
    served: ServedArtifact, tmp_path: Path, fails: str
) -> None:
    engine = ScriptedEngine(fails=fails)
    with pytest.raises(RuntimeError):
        await sleep_and_wake(served, engine)
    assert served.state is State.BROKEN
    assert not served.accepts(FIRST)
    for order in (served.wake(engine), served.swap(swap_to(tmp_path, SECOND), engine, NO_ADAPTERS)):
        with pytest.raises(SwapRefused, match="broken"):
            await order


async def test_who_has_not_the_servers_token_finds_no_such_route(served: ServedArtifact) -> None:
    assert (await ask(served, SLEEP_PATH))[0] == 404


@pytest.mark.parametrize("body", ["{}", '{"level": 3, "drain_s": 1}', "[]"])
def test_an_order_to_sleep_names_one_of_two_levels(body: str) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        SleepRequest.read(body.encode())
