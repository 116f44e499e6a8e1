"""The serializer job: a model of the Hub becomes an artifact, in one streaming pass.

    GUANACO_TICKET=URL python -m guanaco_server.serializer.job

The task says what to make and where to write it (task.py); making.py makes it. HF_TOKEN holds the Hub
token, if any. stdout has one JSON object a line (reporting.py); exit status 1 after a last line that says why.
"""

from __future__ import annotations

import os
import resource
import sys
import traceback
from pathlib import Path
from urllib.parse import unquote, urlsplit

os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # each of its threads takes memory; ours are enough

import urllib3

from guanaco_server.confinement.environment import hide_secrets
from guanaco_server.confinement.landlock import Access
from guanaco_server.confinement.profiles import confine_program, forbid_processes, ports_of
from guanaco_server.confinement.scratch import scratch_folder
from guanaco_server.confinement.sockets import Sockets
from guanaco_server.engine import lifeline
from guanaco_server.engine.artifacts.store_trust import trusted_by
from guanaco_server.serializer.making import make_artifact
from guanaco_server.serializer.repo_files import prepare
from guanaco_server.serializer.reporting import JobFailed, diagnose, say, say_failed
from guanaco_server.serializer.targets import FolderTarget, Target
from guanaco_server.serializer.task import TICKET_VARIABLE, SerializerTask
from guanaco_server.serializer.upload_target import TIMEOUT, UploadTarget, why_unreachable

BASE_BYTES = 256 * 1024**2  # what the process takes beside its parts
MIN_WORKERS, MAX_WORKERS = 2, 8
PARTS_A_WORKER = 3  # the one it fills, one shared with a neighbour, one whose header waits


def main() -> int:
    hide_secrets()
    try:
        task = read_task(os.environ.pop(TICKET_VARIABLE))
        with scratch_folder("guanaco-job-") as scratch:
            confine_program(access_of(task, scratch), Sockets(), owned_by(task, scratch))
            lifeline.hold()
            serialize(task, scratch)
    except Exception as error:  # noqa: BLE001 - the job's outermost frame: whatever happened must be told
        traceback.print_exc()
        failure = diagnose(error)
        say_failed(failure.code, failure.message)
        return 1
    return 0


def read_task(url: str) -> SerializerTask:
    """Read the task from a file or an HTTP URL. The URL is a secret and is not shown."""
    if urlsplit(url).scheme == "file":
        return SerializerTask.model_validate_json(Path(unquote(urlsplit(url).path)).read_bytes())
    http = urllib3.PoolManager(retries=False, timeout=TIMEOUT, ssl_context=trusted_by())
    try:
        answer = http.request("GET", url)
    except (urllib3.exceptions.HTTPError, OSError) as error:  # whose text has the whole URL
        raise JobFailed(
            "store_unreachable", f"The ticket could not be read: {why_unreachable(error)}."
        ) from None
    if answer.status != 200:
        raise JobFailed(
            "store_unreachable", f"The ticket could not be read: status {answer.status}."
        )
    return SerializerTask.model_validate_json(answer.data)


def access_of(task: SerializerTask, scratch: Path) -> Access:
    """Return the job's own two folders, /dev/null, and the ports of the Hub, of what it redirects to, and of the store."""
    upload = task.upload
    urls = (task.hub_endpoint, *upload.part_urls[:1], *upload.put_urls.values())
    watched = lifeline.named()
    return Access(
        reads=(watched,) if watched else (),
        writes=(scratch, Path(upload.folder)) if upload.folder else (scratch,),
        tidies=(scratch.parent,),
        devices=(Path(os.devnull),),  # of the children that try out templates and tokenizers
        connects=ports_of("https:", *urls),
    )


def owned_by(task: SerializerTask, scratch: Path) -> tuple[Path, ...]:
    """Return the folders that the job writes into."""
    return (scratch, Path(task.upload.folder)) if task.upload.folder else (scratch,)


def serialize(task: SerializerTask, scratch: Path) -> None:
    prepare(scratch)
    _limit_memory(task.memory_bytes)
    manifest = make_artifact(
        task, _target(task), _workers(task), scratch, before_weights=forbid_processes
    )
    say(
        f"Artifact of {manifest.tensor_count} tensors and {manifest.size_bytes / 1e6:,.1f} MB is complete."
    )


def _target(task: SerializerTask) -> Target:
    folder = task.upload.folder
    return UploadTarget(task.upload) if folder is None else FolderTarget(Path(folder))


def _workers(task: SerializerTask) -> int:
    """Return one worker per core, because most of the work is hashing, but no more than the memory has parts for.

    With more, they only hold each other up: the oldest part, which in-order servers wait for, is late.
    """
    part_bytes = task.upload.part_bytes or 1
    fitting = (task.memory_bytes - BASE_BYTES) // (PARTS_A_WORKER * part_bytes)
    cores = len(os.sched_getaffinity(0))
    return max(1, min(max(MIN_WORKERS, min(cores, MAX_WORKERS)), fitting))


def _limit_memory(memory_bytes: int) -> None:
    """Limit the memory once everything is imported, so that a limit too small is an error that can be reported."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, hard))


if __name__ == "__main__":
    sys.exit(main())
