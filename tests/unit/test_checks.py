"""Every way in which a repo is refused before its weights are fetched."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from guanaco import errors
from guanaco.submissions import GenerationParams
from guanaco_server.artifacts.checking.checks import (
    CheckedModel,
    CheckLimits,
    check_context,
    check_repo,
)
from guanaco_server.artifacts.checking.weights import FIRST_READ_BYTES, MAX_HEADER_BYTES
from guanaco_server.artifacts.hub.hub import RepoSnapshot
from guanaco_server.artifacts.hub.memory import MemoryHub
from guanaco_server.demo.tiny_repo import make_tiny_repo

Files = dict[str, bytes]
LIMITS = CheckLimits(max_parameters=10_000, max_weight_bytes=40_000)
INDEX = "model.safetensors.index.json"


def weights(**shapes: tuple[int, ...]) -> bytes:
    """A safetensors file of zeros."""
    header, position = {}, 0
    for name, shape in shapes.items():
        end = position + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [position, end]}
        position = end
    encoded = json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + bytes(position)


def repo(**changes: bytes | None) -> Files:
    """A good repo; ``config_json=None`` takes config.json away."""
    files: dict[str, bytes | None] = {
        "config.json": config(),
        "tokenizer.json": b"{}",
        "model.safetensors": weights(a=(10, 10), b=(5,)),
    }
    files |= {
        name.replace("__", ".").replace("_json", ".json"): data for name, data in changes.items()
    }
    return {name: data for name, data in files.items() if data is not None}


def config(**changes: Any) -> bytes:
    content = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 2_048}
    return json.dumps(content | changes).encode()


class CountingHub(MemoryHub):
    """Remembers how many bytes of which file were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, int]] = []

    async def read(self, snapshot: RepoSnapshot, path: str, start: int, length: int) -> bytes:
        self.asked.append((path, length))
        return await super().read(snapshot, path, start, length)


async def check(
    files: Files, limits: CheckLimits = LIMITS, hub: MemoryHub | None = None
) -> CheckedModel:
    hub = hub or MemoryHub()
    hub.add_repo("acme/x", files)
    return await check_repo(hub, await hub.resolve("acme/x", None), limits)


async def test_a_good_repo_is_counted_from_its_headers() -> None:
    model = await check(repo())
    assert model.architecture == "LlamaForCausalLM"
    assert (model.parameter_count, model.weight_bytes) == (105, 420)
    assert model.weight_files == ("model.safetensors",)
    assert model.small_files == ("config.json", "tokenizer.json")
    assert model.max_positions == 2_048


async def test_the_demos_own_repo_passes(tmp_path: Path) -> None:
    make_tiny_repo(tmp_path / "repo")
    files = {path.name: path.read_bytes() for path in (tmp_path / "repo").iterdir()}
    model = await check(files, CheckLimits(10**9, 10**9))
    assert model.parameter_count == 1_574_144


async def test_a_sharded_repo_is_read_by_its_index() -> None:
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    files = repo() | {
        INDEX: json.dumps(index).encode(),
        "one.safetensors": weights(a=(10,)),
        "two.safetensors": weights(b=(20,)),
    }
    model = await check(files)
    assert model.weight_files == ("one.safetensors", "two.safetensors")
    assert model.parameter_count == 30


async def test_a_header_longer_than_the_first_read_is_read_whole() -> None:
    many = {f"layer.{number}.weight": (1,) for number in range(2_000)}
    data = weights(**many)
    assert int.from_bytes(data[:8], "little") > FIRST_READ_BYTES
    hub = CountingHub()
    model = await check(repo() | {"model.safetensors": data}, hub=hub)
    assert model.parameter_count == 2_000
    assert [path for path, _ in hub.asked].count("model.safetensors") == 2


async def test_no_weights_are_fetched() -> None:
    hub = CountingHub()
    await check(
        repo() | {"model.safetensors": weights(a=(1_000, 1_000))}, CheckLimits(10**9, 10**9), hub
    )
    assert [read for read in hub.asked if read[0] == "model.safetensors"] == [
        ("model.safetensors", FIRST_READ_BYTES)
    ]


async def test_pickles_beside_safetensors_are_left_alone() -> None:
    model = await check(repo() | {"pytorch_model.bin": b"pickle"})
    assert model.weight_files == ("model.safetensors",)


def nested(levels: int) -> Any:
    inner: Any = 0
    for _ in range(levels):
        inner = [inner]
    return inner


def sharded(**weight_map: Any) -> Files:
    return repo() | {INDEX: json.dumps({"weight_map": weight_map}).encode()}


def without(name: str) -> Files:
    return {path: data for path, data in repo().items() if path != name}


def long_header(length: int) -> bytes:
    """A file without tensors whose header is all padding."""
    return length.to_bytes(8, "little") + b"{}".ljust(length)


@pytest.mark.parametrize(
    ("files", "kind", "says"),
    [
        (without("model.safetensors") | {"m.bin": b""}, errors.PickleWeights, r"m\.bin"),
        (without("model.safetensors"), errors.MissingFile, "no weights"),
        (without("model.safetensors") | {"a.safetensors": b"", "b.safetensors": b""}, errors.MissingFile, "2 safetensors files"),
        (without("config.json"), errors.MissingFile, r"no config\.json"),
        (without("tokenizer.json"), errors.MissingFile, r"no tokenizer\.json and no tokenizer\.model"),
        (repo() | {"config.json": b"{"}, errors.CorruptConfig, "not valid JSON"),
        (repo() | {"config.json": b"[" * 100_000}, errors.CorruptConfig, "not valid JSON"),
        (repo() | {"config.json": b"[]"}, errors.CorruptConfig, "not a JSON object"),
        (repo() | {"config.json": b" " * 1_000_001}, errors.CorruptConfig, "1,000,001 bytes"),
        (repo() | {"config.json": config(auto_map={})}, errors.RemoteCode, r"config\.json has an auto_map"),
        (repo() | {"tokenizer_config.json": b'{"auto_map": {}}'}, errors.RemoteCode, "tokenizer_config"),
        (repo() | {"config.json": config(rope={"x": [{"auto_map": {}}]})}, errors.RemoteCode, r"config\.json has an auto_map"),
        (repo() | {"generation_config.json": b'{"auto_map": {}}'}, errors.RemoteCode, "generation_config"),
        (repo() | {"config.json": config(speculators_config={"verifier": {}})}, errors.CorruptConfig, "speculators_config, which names another model"),
        (repo() | {"tokenizer_config.json": b'{"tokenizer_class": "os.system"}'}, errors.CorruptConfig, "'os.system', which is no tokenizer"),
        (repo() | {"tokenizer_config.json": b'{"tokenizer_class": ["LlamaTokenizer"]}'}, errors.CorruptConfig, "which is no tokenizer"),
        (repo() | {"config.json": config(num_hidden_layers=10**9)}, errors.CorruptConfig, "num_hidden_layers in config.json is 1000000000"),
        (repo() | {"config.json": config(architectures=["Bert"])}, errors.UnsupportedArchitecture, "Bert"),
        (repo() | {"config.json": config(architectures=[])}, errors.CorruptConfig, "one architecture"),
        (repo() | {"model.safetensors": weights(a=(10,))[:-1]}, errors.CorruptWeights, r"model\.safetensors is corrupt"),
        (repo() | {"model.safetensors": b""}, errors.CorruptWeights, "only 0 bytes"),
        (repo() | {"model.safetensors": b"\xff" * 100}, errors.CorruptWeights, "claims"),
        (repo() | {"model.safetensors": weights(a=(101, 100))}, errors.ModelTooLarge, "10,100 parameters; 10,000"),
        (sharded(a="gone.safetensors"), errors.MissingFile, r"gone\.safetensors"),
        (sharded(a="evil.bin"), errors.PickleWeights, r"evil\.bin"),
        (sharded(), errors.CorruptWeights, "no weight_map"),
        (sharded(**{"evil\x1b[2J": "model.safetensors"}), errors.CorruptWeights, r"'evil\\x1b\[2J' is in model"),
        (sharded(a="model.safetensors", c="model.safetensors"), errors.CorruptWeights, "'c' is in model.safetensors, and it is not"),
        (sharded(a="model.safetensors", b="two.safetensors") | {"two.safetensors": weights(a=(1,))}, errors.CorruptWeights, "'a' is in both"),
        (repo() | {"model.safetensors": long_header(MAX_HEADER_BYTES + 1)}, errors.CorruptWeights, "10,000,001 bytes"),
        (repo() | {"tokenizer.model": b" " * 64_000_001}, errors.ModelTooLarge, r"tokenizer\.model has 64,000,001"),
        (repo() | {"config.json": config(architectures=["\ud800\x1b"])}, errors.UnsupportedArchitecture, r"'\\ud800\\x1b'"),
        (repo() | {"../escape": b""}, errors.CorruptConfig, "forbidden name"),
        (repo() | {"config.json": b"../../etc/passwd"}, errors.CorruptConfig, "not valid JSON"),
        (repo() | {"config.json": config(a=nested(64))}, errors.CorruptConfig, "more than 64 levels"),
        (repo() | {"config.json": "{}".encode("utf-16")}, errors.CorruptConfig, "not valid JSON"),
        (repo() | {"config.json": b'{"a": ' + b"1" * 5_000 + b"}"}, errors.CorruptConfig, "not valid JSON"),
        (repo() | {"model.safetensors": b"../../etc/passwd"}, errors.CorruptWeights, "corrupt or truncated"),
        (sharded(a=5), errors.CorruptWeights, "does not name files"),
        (sharded(a=["model.safetensors"]), errors.CorruptWeights, "does not name files"),
        (sharded(**{str(n): f"{n}.safetensors" for n in range(1_001)}), errors.CorruptWeights, "names 1,001 files; 1,000"),
        (sharded() | {INDEX: b" " * 10_000_001}, errors.CorruptConfig, "10,000,001 bytes; 10,000,000"),
    ],
)  # fmt: skip
async def test_a_bad_repo_is_refused_with_what_is_wrong(
    files: Files, kind: type[errors.SubmissionFailure], says: str
) -> None:
    with pytest.raises(kind, match=says):
        await check(files)


async def test_headers_that_are_too_long_together_are_refused() -> None:
    shard = long_header(MAX_HEADER_BYTES)
    index = {str(number): f"{number}.safetensors" for number in range(7)}
    with pytest.raises(errors.CorruptWeights, match="32,000,000 a repo"):
        await check(sharded(**index) | dict.fromkeys(index.values(), shard))


async def test_a_repo_with_a_sentencepiece_tokenizer_only_passes() -> None:
    model = await check(without("tokenizer.json") | {"tokenizer.model": b"pieces"})
    assert model.small_files == ("config.json", "tokenizer.model")


async def test_what_the_headers_say_is_told() -> None:
    model = await check(repo())
    assert (model.tensor_count, model.embedding_rows) == (2, None)


async def test_json_of_64_levels_is_read() -> None:
    await check(repo() | {"config.json": config(a=nested(63))})


async def test_a_huge_index_is_read() -> None:
    """In time linear in its length; by its square it would not end within the suite's limit for a test."""
    index = {f"t{number}": "model.safetensors" for number in range(200_000)}
    with pytest.raises(errors.CorruptWeights, match="'t0' is in model"):
        await check(sharded(**index))


async def test_too_many_bytes_are_refused_with_both_figures() -> None:
    with pytest.raises(errors.ModelTooLarge, match="420 bytes; 100 are allowed"):
        await check(repo(), CheckLimits(10_000, 100))


async def test_a_context_beyond_the_models_positions_is_refused() -> None:
    model = await check(repo())
    check_context(model, GenerationParams(max_input_tokens=2_000, max_output_tokens=48))
    with pytest.raises(errors.ContextTooLong, match=r"2,049.*2,048 positions"):
        check_context(model, GenerationParams(max_input_tokens=2_000, max_output_tokens=49))


@pytest.mark.parametrize("positions", [None, True, 0, -1, "2048", 2.5, []])
async def test_positions_that_are_no_number_are_not_known(positions: Any) -> None:
    model = await check(repo() | {"config.json": config(max_position_embeddings=positions)})
    assert model.max_positions is None
    check_context(model, GenerationParams())
