"""Tests what a model server is started with."""

from __future__ import annotations

import json
from pathlib import Path

from guanaco_server.deployments.engines.specs import EngineOptions, model_server_spec
from guanaco_server.engine.artifacts.source import URLS_VARIABLE

ENGINE = EngineOptions(("serve",), ("--extra",), Path("/cache"), 7)
URLS = {"model.tensors": "https://store/model.tensors?signature=secret"}


def test_local_artifact_needs_no_urls_and_no_cache() -> None:
    spec = model_server_spec("a_v1", 1, "file:///artifacts/ab", 100, ENGINE, {}, 0)
    assert spec.command[:3] == ("serve", "--artifact", "file:///artifacts/ab")
    assert not any("cache" in part for part in spec.command)
    assert spec.secrets == {}


def test_remote_artifact_gets_the_cache_and_secret_urls() -> None:
    spec = model_server_spec("a_v1", 1, "s3://bucket/ab", 100, ENGINE, URLS, 0)
    assert spec.command[3:7] == ("--cache-dir", "/cache", "--cache-bytes", "7")
    assert json.loads(spec.secrets[URLS_VARIABLE]) == URLS
    assert "secret" not in repr(spec)


def test_fresh_urls_make_no_other_spec() -> None:
    one, other = (
        model_server_spec("a_v1", 1, "s3://b/ab", 9, ENGINE, urls, 0) for urls in (URLS, {})
    )
    assert one == other
    assert one != model_server_spec("a_v1", 2, "s3://b/ab", 9, ENGINE, URLS, 0)


def test_a_cache_of_no_bytes_is_none() -> None:
    engine = EngineOptions(("serve",), (), Path("/cache"), 0)
    assert "--cache-dir" not in model_server_spec("a", 1, "s3://b/ab", 9, engine, URLS, 0).command
