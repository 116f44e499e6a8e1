"""`guanaco plan` of a repo: its config and its weights' headers are read, and no weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from guanaco.errors import CorruptConfig, MissingFile, RepoNotFound
from guanaco_server.planning import LLAMA_3_8B, ExpectedTraffic, compare
from guanaco_server.settings import Settings
from tests.fixtures.hub import ControlledHub
from tests.fixtures.repos import safetensors

TRAFFIC = ExpectedTraffic(1, 1_024, 64, 0.5, 10)


def repo(root: Path, name: str, **files: bytes) -> None:
    folder = root / "acme" / name
    folder.mkdir(parents=True)
    for path, content in files.items():
        (folder / path.replace("_", ".")).write_bytes(content)


async def test_a_repos_exact_size_counts_and_its_weights_stay_where_they_are(
    tmp_path: Path,
) -> None:
    config = json.dumps(LLAMA_3_8B).encode()
    repo(tmp_path, "llama", config_json=config, model_safetensors=safetensors({"x": (512, 512)}))
    with ControlledHub(tmp_path) as hub:
        settings = Settings(hub_endpoint=hub.url)
        found = await compare("acme/llama", TRAFFIC, ["H100", "L40S"], None, settings)
    assert found.weight_bytes == 512 * 512 * 2
    assert [(name, plan is not None) for name, plan in found.plans] == [
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
                await compare(name, TRAFFIC, [], None, settings)
