"""`guanaco plan` of a repo: its config and its weights' headers are read, and no weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from guanaco.accounts import Role
from guanaco.errors import CorruptConfig, MissingFile, RepoNotFound
from guanaco.plans import PlanRequest
from guanaco_server.database.database import Database
from guanaco_server.demo.tiny_repo import make_tiny_repo
from guanaco_server.planning import compare
from guanaco_server.recipes.presets import LLAMA_3_8B
from guanaco_server.settings import Settings
from tests.fixtures.hub import ControlledHub
from tests.fixtures.repos import safetensors
from tests.fixtures.world import World

TRAFFIC = {
    "messages_per_second": 1, "context_tokens": 1_024, "output_tokens": 64, "prefix_hit_rate": 0.5,
    "tokens_per_second": 10,
}  # fmt: skip


def request(model: str, *gpus: str) -> PlanRequest:
    return PlanRequest.model_validate({**TRAFFIC, "model": model, "gpus": gpus})


def repo(root: Path, name: str, **files: bytes) -> None:
    folder = root / "acme" / name
    folder.mkdir(parents=True)
    for path, content in files.items():
        (folder / path.replace("_", ".")).write_bytes(content)


async def test_exact_size_of_a_repo_counts_and_weights_stay(
    tmp_path: Path,
) -> None:
    config = json.dumps(LLAMA_3_8B).encode()
    repo(tmp_path, "llama", config_json=config, model_safetensors=safetensors({"x": (512, 512)}))
    with ControlledHub(tmp_path) as hub:
        settings = Settings(hub_endpoint=hub.url)
        found = await compare(request("acme/llama", "H100", "L40S"), settings)
    assert found.weight_bytes == 512 * 512 * 2
    assert [(one.gpu, one.plan is not None) for one in found.plans] == [
        ("H100", True),
        ("L40S", True),
    ]


async def test_what_is_wrong_with_a_repo_is_said(tmp_path: Path) -> None:
    repo(tmp_path, "bare", readme_md=b"nothing")
    repo(tmp_path, "odd", config_json=b"{", model_safetensors=safetensors({"x": (2, 2)}))
    with ControlledHub(tmp_path) as hub:
        settings = Settings(hub_endpoint=hub.url)
        for name, error in {
            "acme/none": RepoNotFound,
            "acme/bare": MissingFile,
            "acme/odd": CorruptConfig,
        }.items():
            with pytest.raises(error):
                await compare(request(name), settings)


@pytest.mark.slow
async def test_the_server_plans_for_who_has_no_platform(database: Database, tmp_path: Path) -> None:
    world = World(database)
    make_tiny_repo(tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    world.hub.add_repo("acme/base", files)
    http = await world.http(Role.DEVELOPER)

    async def planned(**fields: Any) -> tuple[int, Any]:
        answer = await http.post("/plans", json={**TRAFFIC, **fields})
        return answer.status_code, answer.json()

    status, found = await planned(model="llama-3-8b", gpus=["h100"])
    assert status == 200, found
    assert [one["gpu"] for one in found["plans"]] == ["H100"]
    status, found = await planned(model="acme/base", context_tokens=16, output_tokens=16)
    assert status == 200, found
    assert found["weight_bytes"]
    for fields, code in (
        ({"model": "no such thing"}, "invalid_input"),
        ({"model": "acme/none"}, "repo_not_found"),
        ({"model": "llama-3-8b", "gpus": ["abacus"]}, "no_such_gpu"),
        ({"model": "llama-3-8b", "messages_per_second": 0}, "invalid_input"),
        ({"model": "llama-3-8b", "quantization": "int8"}, "invalid_input"),
    ):
        status, found = await planned(**fields)
        assert (status, found["error"]) == (422, code), found
