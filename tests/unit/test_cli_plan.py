"""`guanaco plan`: works without a platform, without a Hub, and says what is wrong in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from guanaco_cli.main import run
from guanaco_server.recipes.presets import LLAMA_3_8B
from tests.fixtures.repos import safetensors


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GUANACO_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("model", ["llama-3-8b", "Qwen/Qwen3-235B-A22B", "qwen3-235b-a22b-fp8"])
def test_preset_needs_no_hub_and_prints_a_row_per_gpu(model: str, capsys: Any) -> None:
    assert run(["plan", model]) == 0
    shown = capsys.readouterr()
    assert f"{model}: " in shown.out
    for gpu in ("A100-40", "A100-80", "H100", "H200", "L40S", "MI300X", "MI325X"):
        assert f" {gpu} " in shown.out
    assert "none of them measured" in shown.err


def test_json_has_the_whole_recipe_and_the_money(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("GUANACO_GPU_PRICES", '{"MI325X": 10}')
    options = ["--gpu", "mi325x", "--messages-per-second", "1000", "--json"]
    assert run(["plan", "qwen3-235b-a22b-fp8", *options]) == 0
    document = json.loads(capsys.readouterr().out)
    [entry] = document["plans"]
    plan = entry["plan"]
    assert entry["gpu"] == "MI325X"
    assert plan["recipe"]["kv_cache_dtype"] == "fp8"
    assert plan["gpus"] == plan["replicas"] * plan["recipe"]["gpu_count"]
    assert plan["cost_per_month"] == plan["gpus"] * 730 * 10
    assert plan["uncached_gpus"] > plan["gpus"]


def test_a_folder_is_read_with_its_weights_headers(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B))
    assert run(["plan", str(tmp_path), "--gpu", "H100"]) == 0
    assert "16.1 GB of weights" in capsys.readouterr().out
    (tmp_path / "model.safetensors").write_bytes(safetensors({"x": (1_000, 1_000)}))
    assert run(["plan", str(tmp_path), "--gpu", "H100"]) == 0
    assert "2.0 MB of weights" in capsys.readouterr().out  # float32 is served as bfloat16
    assert run(["plan", str(tmp_path / "config.json"), "--gpu", "H100"]) == 0
    assert "16.1 GB of weights" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["llama-9"], "'llama-9' is no preset, no folder and no repo of the Hub"),
        (["../.."], "There is no config.json in"),
        (["llama-3-8b", "--gpu", "B200"], "There is no GPU of the type 'B200' here"),
        (["llama-3-8b", "--messages-per-second", "-1"], "Messages a second must be over 0"),
        (["llama-3-8b", "--prefix-hit-rate", "2"], "The prefix hit rate must be"),
        (["llama-3-8b", "--context-tokens", "9000"], "llama-3-8b has 8,192 positions"),
        (["llama-3-8b", "--output-tokens", "0"], "must be at least 1 each"),
        (["llama-3-8b", "--quantization", "int8"], "int8 quantizes the experts of a mixture"),
        (["qwen3-235b-a22b-fp8", "--quantization", "fp8"], "is quantized already"),
    ],
)
def test_nonsense_is_one_sentence(arguments: list[str], says: str, capsys: Any) -> None:
    assert run(["plan", *arguments]) in (1, 2)
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.err.count("error: ") == 1
    assert "Traceback" not in shown.err
    assert not shown.out


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        ('{"model_type": "rwkv"}', "'rwkv' cannot be worked out"),
        ('{"model_type": "llama"}', "does not say num_hidden_layers"),
    ],
)
def test_a_config_that_cannot_be_read_is_one_sentence(
    config: str, says: str, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "config.json").write_text(config)
    assert run(["plan", str(tmp_path)]) == 1
    assert says in capsys.readouterr().err
