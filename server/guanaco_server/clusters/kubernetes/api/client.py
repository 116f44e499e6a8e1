"""The Kubernetes API as the platform uses it: JSON in, JSON out, retried where a retry can help.

The official client reads kubeconfig files and in-cluster credentials, renews tokens and does TLS. Importing it takes
0.6 s, so ``connect`` does it. 401 and 403 are ClusterRefused at once; 429, 5xx and silence are retried for
``patience_s``, then ClusterUnreachable. 400, 404, 409 and 410 are UnexpectedStatus, for the caller to handle.
The client is blocking: calls run in threads, and each stream has a thread of its own.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import urllib3

from guanaco.errors import ClusterRefused, ClusterUnreachable, InvalidSettings
from guanaco_server.clusters.kubernetes.names import MANAGER, Json
from guanaco_server.runtime.threads import Threads

IN_CLUSTER = "in-cluster"
CONNECTIONS = 32
THREADS = 16
CONNECT_S = 5.0
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
RETRIED = {429, 500, 502, 503, 504}
FIRST_DELAY_S, LONGEST_DELAY_S = 0.2, 5.0
CONFLICT_TRIES = 8


@dataclass(frozen=True)
class Kind:
    api_version: str
    name: str
    plural: str

    def path(self, namespace: str, name: str = "") -> str:
        root = "/apis/" if "/" in self.api_version else "/api/"
        path = f"{root}{self.api_version}/namespaces/{quote(namespace)}/{self.plural}"
        return f"{path}/{quote(name)}" if name else path


DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
JOB = Kind("batch/v1", "Job", "jobs")
POD = Kind("v1", "Pod", "pods")
EVENT = Kind("v1", "Event", "events")
GROUP_SET = Kind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets")
SECRET = Kind("v1", "Secret", "secrets")
SERVICE = Kind("v1", "Service", "services")
DISRUPTION_BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")
KINDS = {
    kind.name: kind
    for kind in (
        *(DEPLOYMENT, GROUP_SET, JOB, POD, SECRET, SERVICE),
        *(DISRUPTION_BUDGET, NETWORK_POLICY, LEASE),
    )
}


class UnexpectedStatus(Exception):
    """The API answered 400, 404, 409 or 410."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ClusterBusy(ClusterUnreachable):
    """The API answered 429, or an error that passes, and said when to come again."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def connect(context: str, kubeconfig: str | None = None) -> Any:
    """Return an ApiClient for a context of the kubeconfig, or for the cluster that this process runs in. InvalidSettings if there is none."""
    try:
        from kubernetes import client, config
    except ModuleNotFoundError:
        raise InvalidSettings(
            "The cluster is kubernetes, but its client is not installed.",
            hint="`pip install 'guanaco-platform[server,kubernetes]'`",
        ) from None
    settings = client.Configuration()
    try:
        if context == IN_CLUSTER:
            config.load_incluster_config(client_configuration=settings)
        else:
            config.load_kube_config(kubeconfig, context or None, client_configuration=settings)
    except (config.ConfigException, OSError) as error:
        raise InvalidSettings(
            f"There is no Kubernetes context {context or 'of that kubeconfig'} to use: {str(error).rstrip('.')}."
        ) from None
    settings.connection_pool_maxsize = CONNECTIONS
    return client.ApiClient(settings)


class KubernetesApi:
    """One namespace of one cluster. ``client`` is the official client's ApiClient.

    Its requests have threads of their own: those to a cluster that does not answer keep none from another cluster.
    """

    def __init__(
        self, client: Any, namespace: str, *, patience_s: float = 60, timeout_s: float = 20
    ) -> None:
        self.namespace = namespace
        self._client = client
        self._patience_s = patience_s
        self._timeout_s = timeout_s
        self._threads = Threads(f"cluster-{namespace}", THREADS)

    def with_own_threads(self) -> KubernetesApi:
        """Return the same namespace for requests that must not wait behind others."""
        return KubernetesApi(
            self._client, self.namespace, patience_s=self._patience_s, timeout_s=self._timeout_s
        )

    async def get(self, kind: Kind, name: str) -> Json | None:
        try:
            return await self.call("GET", kind.path(self.namespace, name))
        except UnexpectedStatus as answered:
            if answered.status == 404:
                return None
            raise

    async def list(self, kind: Kind, **selectors: str) -> Json:
        """Return the List object: ``items``, and the version from which to watch."""
        return await self.call("GET", kind.path(self.namespace), selectors)

    async def apply(self, manifest: Json, manager: str = MANAGER) -> Json:
        """Apply the manifest on the server's side. Two workers that apply at once both get the resulting object.

        A field that this manager no longer applies is removed, unless another manager applies it.
        """
        kind = KINDS[manifest["kind"]]
        path = kind.path(self.namespace, manifest["metadata"]["name"])
        for attempt in range(CONFLICT_TRIES):
            try:
                query = {"fieldManager": manager, "force": "true"}
                return await self.call("PATCH", path, query, manifest, APPLY)
            except UnexpectedStatus as answered:
                if answered.status != 409:
                    raise ClusterRefused(f"The cluster does not take it: {answered}.") from None
                await asyncio.sleep(FIRST_DELAY_S * attempt)
        raise ClusterUnreachable(
            f"{kind.name} {manifest['metadata']['name']} kept being changed by somebody else."
        )

    async def create(self, manifest: Json) -> Json:
        return await self.call("POST", KINDS[manifest["kind"]].path(self.namespace), body=manifest)

    async def replace(self, manifest: Json) -> Json:
        """Replace the object; UnexpectedStatus 409 if somebody else changed it since it was read."""
        path = KINDS[manifest["kind"]].path(self.namespace, manifest["metadata"]["name"])
        return await self.call("PUT", path, body=manifest)

    async def merge(self, kind: Kind, name: str, change: Json) -> Json:
        """Change fields of an object; None removes one. UnexpectedStatus 409 if it is not at the ``resourceVersion`` that the change names."""
        path = kind.path(self.namespace, name)
        return await self.call("PATCH", path, {"fieldManager": MANAGER}, change, MERGE)

    async def delete(
        self, kind: Kind, name: str, uid: str | None = None, grace_s: int | None = None
    ) -> None:
        """Delete the object; what it owns goes in the background, whenever its nodes allow it.

        Do nothing if it is gone, or has another ``uid`` by now. In the foreground the object itself, and with it
        its name, would wait for the last pod: on a lost node for ever.
        """
        body: Json = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
        }
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            await self.call("DELETE", kind.path(self.namespace, name), body=body)
        except UnexpectedStatus as answered:
            if answered.status != 404 and (uid is None or answered.status != 409):
                raise

    def stream(
        self, path: str, query: Mapping[str, str], silence_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a streamed answer. The errors are those of ``call``, without retries."""

        def begin() -> urllib3.BaseHTTPResponse:
            return self._begin("GET", path, query, None, "", silence_s)

        return read_lines(begin)

    async def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Json:
        answer: Json = json.loads(await self.text(method, path, query, body, content_type))
        return answer

    async def text(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        def once() -> bytes:
            return self._begin(method, path, query or {}, body, content_type, self._timeout_s).data

        deadline, delay_s = time.monotonic() + self._patience_s, FIRST_DELAY_S
        while True:
            try:
                return await self._threads.run(once)
            except ClusterUnreachable as error:
                asked_s = error.retry_after_s if isinstance(error, ClusterBusy) else 0.0
                wait_s = max(delay_s, asked_s)
                if time.monotonic() + wait_s > deadline:
                    raise
            await asyncio.sleep(wait_s)
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)

    def _begin(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Json | None,
        content_type: str,
        silence_s: float,
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        try:
            self._client.update_params_for_auth(headers, [], ["BearerToken"])
            # A token file that ends with a line break is common, and no header may have one.
            headers = {name: value.strip() for name, value in headers.items()}
            answer: urllib3.BaseHTTPResponse = self._client.rest_client.pool_manager.request(
                method,
                f"{self._client.configuration.host}{path}{_query(query)}",
                body=json.dumps(body) if body is not None else None,
                headers={**self._client.default_headers, **headers},
                preload_content=False,
                timeout=urllib3.Timeout(connect=CONNECT_S, read=silence_s),
                retries=False,
            )
            if answer.status < 300:
                if "follow" not in query and "watch" not in query:
                    answer.read(cache_content=True)
                return answer
            error_body = answer.data
            retry_after = answer.headers.get("Retry-After", "")
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterUnreachable(
                f"The Kubernetes API does not answer: {type(error).__name__}."
            ) from error
        raise _refusal(answer.status, error_body, retry_after)


def _query(query: Mapping[str, str]) -> str:
    given = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items() if value)
    return f"?{given}" if given else ""


def _refusal(status: int, body: bytes, retry_after: str) -> Exception:
    try:
        message = str(json.loads(body).get("message", ""))
    except (ValueError, AttributeError):
        message = body.decode(errors="replace")
    message = " ".join(message.split())[:500].rstrip(".")
    if status in (400, 404, 409, 410):
        return UnexpectedStatus(status, message)
    if status == 401:
        return ClusterRefused(
            "The Kubernetes API does not know the platform: its credentials are missing, wrong or expired.",
            hint="The operator renews the kubeconfig or the service account's token.",
        )
    if status == 403:
        return ClusterRefused(
            f"The Kubernetes API does not allow it: {message}.",
            hint="The operator looks at the platform's role and at the namespace's quota.",
        )
    if status in RETRIED:
        retry_after_s = float(retry_after) if retry_after.isdigit() else 0.0
        return ClusterBusy(f"The Kubernetes API answered {status}: {message}.", retry_after_s)
    return ClusterRefused(f"The Kubernetes API refused it with status {status}: {message}.")


CHUNK_BYTES = 65_536
WAITING_CHUNKS = 64  # a reader that is slower than the server makes the server wait
LINE_BYTES = (
    8_388_608  # an object of the API has at most 3 MiB; the rest of a longer line is dropped
)

Begin = Callable[[], urllib3.BaseHTTPResponse]


async def read_lines(begin: Begin) -> AsyncGenerator[bytes, None]:
    """Yield whole lines as they come; ClusterUnreachable if the stream breaks. Closing the generator ends the connection."""
    reading = _StreamReader(begin, asyncio.get_running_loop())
    rest = b""
    try:
        while data := await reading.next():
            *whole, rest = (rest + data).split(b"\n")
            rest = rest[:LINE_BYTES]
            for line in whole:
                yield line
        if rest:
            yield rest
    finally:
        reading.stop()


class _StreamReader:
    """Reads one stream in a daemon thread, which never delays the end of the process."""

    def __init__(self, begin: Begin, loop: asyncio.AbstractEventLoop) -> None:
        self._begin = begin
        self._loop = loop
        self._chunks: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self._room = threading.Semaphore(WAITING_CHUNKS)
        self._is_stopped = False
        self._answer: urllib3.BaseHTTPResponse | None = None
        threading.Thread(target=self._read, name="kubernetes-stream", daemon=True).start()

    async def next(self) -> bytes:
        """Return the next bytes, empty at the end."""
        item = await self._chunks.get()
        self._room.release()
        if isinstance(item, Exception):
            raise item
        return item

    def stop(self) -> None:
        self._is_stopped = True
        self._room.release()
        if isinstance(self._answer, urllib3.HTTPResponse):
            with suppress(ValueError, RuntimeError, OSError):  # it has ended already
                self._answer.shutdown()

    def _read(self) -> None:
        try:
            self._answer = answer = self._begin()
            try:
                while not self._is_stopped:
                    data = answer.read1(CHUNK_BYTES)
                    self._give(data)
                    if not data:
                        return
            finally:
                answer.close()
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            self._give(ClusterUnreachable(f"The Kubernetes API broke off: {type(error).__name__}."))
        except Exception as error:  # noqa: BLE001 - the thread's outermost frame: the reader must hear of it
            self._give(error)

    def _give(self, item: bytes | Exception) -> None:
        self._room.acquire()
        with suppress(RuntimeError):  # the loop has ended, and with it the reader
            self._loop.call_soon_threadsafe(self._chunks.put_nowait, item)
