"""Tests what is taken out of the words of jobs and model servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from guanaco_server.clusters.cluster import DeploymentSpec, JobSpec
from guanaco_server.clusters.memory import JobScript, MemoryCluster
from guanaco_server.clusters.redacted import RedactedCluster
from guanaco_server.observability.redaction import Redaction

SIGNATURE = "0123456789abcdef" * 4
TICKET = f"/bucket/staging/ab/ticket.json?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20261122&X-Amz-Expires=7200&X-Amz-Signature={SIGNATURE}"
REDACTION = Redaction(["s3cret-value"], [Path("/srv/guanaco-data")])


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            f"HTTPSConnectionPool(host='s3', port=443): Max retries exceeded with url: {TICKET} (Caused by X)",
            "HTTPSConnectionPool(host='s3', port=443): Max retries exceeded with url: /bucket/staging/ab/ticket.json?*** (Caused by X)",
        ),
        (
            f'{{"message": "https://s3{TICKET}", "level": "info"}}',
            '{"message": "https://s3/bucket/staging/ab/ticket.json?***", "level": "info"}',
        ),
        (
            f"GET https://cdn/f?Policy=p&Signature={SIGNATURE}&Key-Pair-Id=K",
            "GET https://cdn/f?***",
        ),
        (f"https://blob/f?sv=2024&sig={SIGNATURE}", "https://blob/f?***"),
        (f"cut: X-Amz-Signature={SIGNATURE}&next=1", "cut: X-Amz-Signature=***&next=1"),
        (f"X-Amz-Signature%3D{SIGNATURE}", "X-Amz-Signature%3D***"),
        ("Authorization: Bearer abcdefgh.ijk", "Authorization: Bearer ***"),
        ("{'authorization': 'Bearer abcdefgh'}", "{'authorization': 'Bearer ***'}"),
        ("HF_TOKEN=hf_abcdefghijkl", "HF_TOKEN=***"),
        ("AWS_SECRET_ACCESS_KEY='wJalr/XUtn'", "AWS_SECRET_ACCESS_KEY='***'"),
        ("postgresql://guanaco:hunter22@db/x", "postgresql://guanaco:***@db/x"),
        ("postgresql://guanaco:hun/ter@22@db/x", "postgresql://guanaco:***@db/x"),
        ("http://hub:8080/models/@me", "http://hub:8080/models/@me"),
        (f"{{'X-Amz-Signature': '{SIGNATURE}'}}", "{'X-Amz-Signature': '***'}"),
        (f"('X-Amz-Signature', '{SIGNATURE}')", "('X-Amz-Signature', '***')"),
        (f'{{"X-Amz-Signature":"{SIGNATURE}"}}', '{"X-Amz-Signature":"***"}'),
        (f"X-Amz-Signature%253D{SIGNATURE}", "X-Amz-Signature%253D***"),
        (f"next=%252Fa%253FX-Amz-Signature%253D{SIGNATURE}", "next=%252Fa%253F***"),
        ("X-Hub-Token: abcdefgh", "X-Hub-Token: ***"),
        ("{'x-api-key': b'abcdefgh'}", "{'x-api-key': b'***'}"),
        ("host=db password=hunter22 dbname=x", "host=db password=*** dbname=x"),
        ("connect(user='u', password='hunter22')", "connect(user='u', password='***')"),
        ('{"token": "abcdefgh", "n": 1}', '{"token": "***", "n": 1}'),
        ("token hf_oauth_eyJhbGci.abc-def_1", "token hf_oauth_***"),
        ("org api_org_abcdefghijkl", "org api_org_***"),
        ("jwt eyJhbGciOiJFZERTQSJ9.eyJyZWFkIjp0.c2lnbmF0dXJl.", "jwt eyJ***."),
        (
            "max_tokens=8, eos_token='</s>', tokenizer='x'",
            "max_tokens=8, eos_token='</s>', tokenizer='x'",
        ),
        (
            "from huggingface_hub import hf_hub_download",
            "from huggingface_hub import hf_hub_download",
        ),
        ("the secret of its password: none", "the secret of its password: none"),
        ("it said s3cret-value", "it said ***"),
        ("GET /v1/models?limit=2 200", "GET /v1/models?limit=2 200"),
        ("Is this a signature? No.", "Is this a signature? No."),
    ],
)
def test_a_secret_is_masked(line: str, shown: str) -> None:
    assert REDACTION.clean(line) == shown
    assert REDACTION.clean_output(line) == shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            'File "/srv/x/.venv-engine/lib/python3.11/site-packages/vllm/engine.py", line 7',
            'File "vllm/engine.py", line 7',
        ),
        (
            'File "/usr/lib/python3.11/asyncio/runners.py", line 1',
            'File "asyncio/runners.py", line 1',
        ),
        ("no file:///srv/guanaco-data/artifacts/ab/config.json", "no …/config.json"),
        ("open('/root/guanaco/key')", "open('…/key')"),
        ("POST /v1/chat/completions, and/or", "POST /v1/chat/completions, and/or"),
        ("http://hub/home/x is no path", "http://hub/home/x is no path"),
    ],
)
def test_a_path_of_the_server_is_shortened(line: str, shown: str) -> None:
    assert REDACTION.clean(line) == line
    assert REDACTION.clean_output(line) == shown


async def test_everything_that_processes_say_comes_through_it() -> None:
    inner = MemoryCluster(JobScript([f"url: {TICKET}"], exit_code=1))
    cluster, said = RedactedCluster(inner, REDACTION), list[str]()

    async def on_line(line: str) -> None:
        said.append(line)

    result = await cluster.run_job(JobSpec("s-job", ("x",)), on_line)
    await cluster.apply_deployment(DeploymentSpec("m-tiny", ("x",)))
    inner.die("m-tiny", lines=[f"failed: {TICKET}"])
    inner.trouble("m-tiny", f"failed: {TICKET}")
    lines, _ = await cluster.logs("m-tiny")
    told = (*said, *result.last_lines, *lines, str(await cluster.observe("m-tiny")))
    assert all("***" in one and SIGNATURE not in one for one in told)
    assert len(told) == 4


async def test_a_secret_that_a_process_was_given_is_masked() -> None:
    token, signed = "a developer's odd token", f"https://s3{TICKET}"
    words = [f"{token}!", f"it signed {SIGNATURE}", "X-Amz-Date is no secret"]
    inner = MemoryCluster(JobScript(words, exit_code=1))
    cluster, said = RedactedCluster(inner, Redaction(())), list[str]()

    async def on_line(line: str) -> None:
        said.append(line)

    given = {"HF_TOKEN": token, "TICKET": signed}
    result = await cluster.run_job(JobSpec("s-job", ("x",), secrets=given), on_line)
    masked = ["***!", "it signed ***", "X-Amz-Date is no secret"]
    assert said == list(result.last_lines) == masked
    urls = json.dumps({"model.tensors": signed})
    first = DeploymentSpec("m-tiny", ("x",), secrets={"CONTROL": token, "URLS": urls})
    await cluster.apply_deployment(first)
    await cluster.renew_secrets(DeploymentSpec("m-tiny", ("x",), secrets={"CONTROL": "another"}))
    inner.die("m-tiny", lines=[*words, "another"])
    inner.trouble("m-tiny", token)
    assert (await cluster.logs("m-tiny"))[0] == [*masked, "***"]
    state = await cluster.observe("m-tiny")
    assert state is not None
    assert state.problem == "***"
