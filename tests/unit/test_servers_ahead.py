"""Tests which shapes are due a server ahead of demand."""

from __future__ import annotations

from pathlib import Path

import pytest

from guanaco_server.scaling.spares import most_wanted
from guanaco_server.settings import Settings, settings


def test_each_number_of_requests_is_due_one_server() -> None:
    asked = {"a": 1, "b": 2, "c": 5, "d": 9}
    assert most_wanted(asked, dict.fromkeys(asked, 0), 2) == ["d", "c", "b"]
    assert most_wanted(asked, {"a": 0, "b": 1, "c": 1, "d": 3}, 2) == ["c", "d"]


def test_one_machine_without_gpus_keeps_a_server_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(settings, "GPU_DEVICES", (tmp_path,))
    assert Settings().hot_engine_limit == 0
    monkeypatch.setattr(settings, "GPU_DEVICES", ())
    assert Settings().hot_engine_limit == 1
    assert Settings(gpu_types=["H100"]).hot_engine_limit == 0
    assert Settings(gpu_types=["H100"], hot_engines=2).hot_engine_limit == 2
    assert Settings(cluster="kubernetes").hot_engine_limit == 0


def test_requests_are_remembered_an_hour_where_servers_stay() -> None:
    assert Settings(hot_engine_s=0).hot_engine_memory_s == 3600
    assert Settings(hot_engine_s=60).hot_engine_memory_s == 60
