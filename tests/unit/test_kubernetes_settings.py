"""Tests how a cluster is made of the settings: what is missing is said before anything starts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from guanaco.errors import InvalidSettings
from guanaco_server.clusters.kubernetes.api.client import connect
from guanaco_server.clusters.kubernetes.options import connected, options_of, split_context
from guanaco_server.settings import Settings

NEEDED: dict[str, object] = {
    "cluster": "kubernetes",
    "artifacts_url": "s3://models",
    "engine_image": "engine:1",
    "serializer_image": "serializer:1",
    "kubernetes_engine_egress": ["10.0.0.0/8:443"],
}


def settings(**changes: object) -> Settings:
    return Settings(**{**NEEDED, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("missing", sorted(NEEDED.keys() - {"cluster"}))
def test_what_is_missing_is_named(missing: str) -> None:
    given = {name: value for name, value in NEEDED.items() if name != missing}
    with pytest.raises(InvalidSettings) as refused:
        connected(Settings(**given), "in-cluster")  # type: ignore[arg-type]
    assert missing in f"{refused.value} {refused.value.hint}"


@pytest.mark.parametrize(
    ("text", "context", "namespace"),
    [
        ("in-cluster", "in-cluster", "guanaco"),
        ("in-cluster:models", "in-cluster", "models"),
        ("gpu", "gpu", "guanaco"),
        ("gpu:models", "gpu", "models"),
        ("arn:aws:eks:eu-west-1:1234:cluster/gpu", "arn:aws:eks:eu-west-1:1234:cluster/gpu", "guanaco"),
        ("arn:aws:eks:eu-west-1:1234:cluster/gpu:models", "arn:aws:eks:eu-west-1:1234:cluster/gpu", "models"),
    ],
)  # fmt: skip
def test_a_context_may_name_its_namespace(text: str, context: str, namespace: str) -> None:
    assert split_context(text, "guanaco") == (context, namespace)


@pytest.mark.parametrize("context", ["in-cluster", "nowhere"])
def test_a_cluster_that_is_not_there_is_one_sentence(context: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="There is no Kubernetes context"):
        connect(context, str(tmp_path / "none"))


def test_options_come_from_the_settings() -> None:
    options = options_of(settings(serializer_memory_bytes=2**30, executor_id="w-2"), "models")
    assert options.namespace == "models"
    assert options.worker == "w-2"
    assert options.job_defaults.memory_bytes == 2**30 + 2**29


POOL = {"size": 1, "memory_bytes": 2**33}


def test_empty_pools_are_left_out_and_others_sorted_by_name() -> None:
    pools = {
        "off": {"size": 0},
        "large": {**POOL, "size": 2},
        "gpu": {**POOL, "gpu_type": "H100", "gpu_count": 1},
    }
    options = options_of(settings(kubernetes_pools=pools), "models")
    assert [(pool.name, pool.size) for pool in options.pools] == [("gpu", 1), ("large", 2)]
    assert options.pools[0].resources.gpu_type == "H100"
    assert options_of(settings(), "models").pools == ()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kubernetes_pools": {"Large": POOL}}, "is no name of a pool"),
        ({"kubernetes_pools": {"gpu": {**POOL, "gpu_count": 1}}}, "needs gpu_type and gpu_count"),
        ({"kubernetes_queue": "gpus"}, "do not go together"),
        ({"engine_command": ["vllm"]}, "do not go together"),
        ({"kubernetes_endpoint": "http://{name}.{namespace}.svc:8000"}, "{address}"),
        ({"kubernetes_endpoint": "http://{address}:80"}, "the port 8000"),
        (
            {
                "kubernetes_pools": {"gpu": {**POOL, "gpu_type": "H100", "gpu_count": 1}},
                "kubernetes_gpu_nodes": {"L40S": {}},
            },
            "asks for H100 GPUs",
        ),
    ],
)
def test_pools_that_cannot_be_are_refused_in_a_sentence(
    changes: dict[str, object], says: str
) -> None:
    with pytest.raises(InvalidSettings, match=re.escape(says)):
        options_of(settings(**{"kubernetes_pools": {"large": POOL}, **changes}), "models")


@pytest.mark.parametrize("pool", [{"size": -1}, {"size": 1, "sise": 2}, {}, {"size": 1, "cpus": 0}])
def test_a_pool_that_is_misspelt_is_refused(pool: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        settings(kubernetes_pools={"large": pool})
