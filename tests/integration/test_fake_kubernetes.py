"""The fake API server does what the real one's documentation says, where we lean on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from guanaco.errors import ClusterRefused, ClusterUnreachable
from guanaco_server.clusters.kubernetes.api.client import (
    LEASE,
    SECRET,
    KubernetesApi,
    UnexpectedStatus,
    connect,
)
from tests.fixtures.fake_kubernetes.server import FakeKubernetes

pytestmark = pytest.mark.slow

Json = dict[str, Any]
PATH = SECRET.path("models")


@pytest.fixture
def server() -> Iterator[FakeKubernetes]:
    with FakeKubernetes() as server:
        yield server


@pytest.fixture
def api(server: FakeKubernetes, tmp_path: Path) -> KubernetesApi:
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    return KubernetesApi(connect("fake", str(kubeconfig)), "models", patience_s=0.5, timeout_s=30)


def secret(name: str = "s", labels: dict[str, str] | None = None, **data: str) -> Json:
    metadata = {"name": name, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


async def apply_as(api: KubernetesApi, manager: str, given: Json, force: str = "") -> Json:
    query = {"fieldManager": manager, "force": force}
    return await api.call("PATCH", f"{PATH}/s", query, given, "application/apply-patch+yaml")


async def test_applying_the_same_again_changes_no_version(api: KubernetesApi) -> None:
    first = await api.apply(secret(a="1"))
    again = await api.apply(secret(a="1"))
    other = await api.apply(secret(a="2"))
    assert first == again
    assert int(other["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])


async def test_what_a_manager_no_longer_applies_goes_and_anothers_stays(api: KubernetesApi) -> None:
    await apply_as(api, "one", secret(a="1", b="1"))
    await apply_as(api, "two", secret(c="2"))
    assert (await apply_as(api, "one", secret(b="1")))["data"] == {"b": "1", "c": "2"}
    await apply_as(api, "two", secret(b="1", c="2"))
    assert (await apply_as(api, "one", secret()))["data"] == {"b": "1", "c": "2"}, "of both"


async def test_a_field_of_another_manager_is_a_conflict_unless_forced(api: KubernetesApi) -> None:
    await apply_as(api, "one", secret(a="1"))
    with pytest.raises(UnexpectedStatus, match=r'conflict with "one": \.data\.a') as conflict:
        await apply_as(api, "two", secret(a="2"))
    assert conflict.value.status == 409
    assert (await apply_as(api, "two", secret(a="2"), "true"))["data"] == {"a": "2"}
    assert (await apply_as(api, "one", secret()))["data"] == {"a": "2"}


async def test_what_is_missing_there_already_stale_or_badly_named(api: KubernetesApi) -> None:
    assert await api.get(SECRET, "s") is None
    created = await api.create(secret(a="1"))
    with pytest.raises(UnexpectedStatus) as exists:
        await api.create(secret(a="1"))
    assert exists.value.status == 409
    await api.replace({**created, "data": {"a": "2"}})
    with pytest.raises(UnexpectedStatus, match="has been modified") as stale:
        await api.replace({**created, "data": {"a": "3"}})
    assert stale.value.status == 409
    with pytest.raises(ClusterRefused, match="422"):
        await api.apply(secret("Upper_Case"))
    await api.delete(SECRET, "s")
    await api.delete(SECRET, "s")


async def test_lists_are_selected_by_labels(api: KubernetesApi) -> None:
    for name in ("a", "b"):
        await api.apply(secret(name, {"kind": name, "all": "yes"}))
    found = await api.list(SECRET, labelSelector="all=yes,kind=b")
    assert [item["metadata"]["name"] for item in found["items"]] == ["b"]
    assert "kind" not in found["items"][0]


async def test_watch_reports_later_changes_and_resumes_from_bookmarks(
    api: KubernetesApi,
) -> None:
    first = await api.apply(secret(a="1"))
    await api.apply(secret(a="2"))
    await api.delete(SECRET, "s")
    query = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": first["metadata"]["resourceVersion"],
        "timeoutSeconds": "2",
    }
    events = []
    async with aclosing(api.stream(PATH, query, 30)) as lines:
        async for line in lines:
            events.append(json.loads(line))
    told = [event["type"] for event in events]
    assert told[:2] == ["MODIFIED", "DELETED"]
    assert set(told[2:]) == {"BOOKMARK"}
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(versions)


async def test_a_watch_from_a_forgotten_version_is_told_410(
    api: KubernetesApi, server: FakeKubernetes
) -> None:
    first = await api.apply(secret(a="1"))
    server.store.forget_history()
    query = {"watch": "true", "resourceVersion": first["metadata"]["resourceVersion"]}
    async with aclosing(api.stream(PATH, query, 30)) as lines:
        event = json.loads(await anext(lines))
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


async def test_a_watch_that_is_cut_is_out_of_reach(
    api: KubernetesApi, server: FakeKubernetes
) -> None:
    query = {"watch": "true", "resourceVersion": "100"}
    async with aclosing(api.stream(PATH, query, 30)) as lines:
        waiting = asyncio.create_task(anext(lines))
        while not waiting.done():  # it may not have begun
            await asyncio.sleep(0.05)
            server.faults.cut_streams()
        with pytest.raises(ClusterUnreachable, match="broke off"):
            await waiting


async def test_a_wrong_token_is_unknown(server: FakeKubernetes, tmp_path: Path) -> None:
    kubeconfig = server.write_kubeconfig(tmp_path / "wrong", token="wrong")
    api = KubernetesApi(connect("fake", str(kubeconfig)), "models", patience_s=1)
    with pytest.raises(ClusterRefused, match="does not know the platform"):
        await api.get(LEASE, "any")


async def test_a_server_that_is_not_there_is_out_of_reach(tmp_path: Path) -> None:
    with FakeKubernetes() as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    api = KubernetesApi(connect("fake", str(kubeconfig)), "models", patience_s=0.3)
    with pytest.raises(ClusterUnreachable, match="does not answer"):
        await api.get(LEASE, "any")
