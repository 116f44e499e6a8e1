"""One model lists the generation parameters: a new field of it is an option, a form field, a request's, a variant's."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from guanaco.parameters import GenerationParams, ParamChanges, parameters, sampling_fields

ROOT = Path(__file__).parents[2]

# Runs in a process of its own: every module is imported after GenerationParams has got three more fields, of which one
# is plain, one has names of its own and one is a list. Nothing else is changed.
WITH_MORE_FIELDS = """
import contextlib, io, json
from typing import Annotated
from pydantic import Field
import guanaco.parameters as contract

text = open(contract.__file__).read()
marker = "    best_of: Annotated"
assert text.count(marker) == 1
exec(compile(text.replace(marker, '''
    min_tokens: int = Field(default=0, ge=0, le=64, description="No reply is shorter.")
    calmness: Annotated[float, Parameter(vllm="typical_p", openai="calm", option="--calm")] = Field(
        default=1.0, gt=0, le=1)
    bad_words: Annotated[list[StoppingWord], Parameter(openai="avoid")] = Field(
        default=[], max_length=4, description="Never said.")
''' + marker), contract.__file__, "exec"), contract.__dict__)

from guanaco.experiments import Variant
from guanaco.submissions import SubmissionRequest
from guanaco_cli.main import run
from guanaco_server.compat.schemas import SubmitRequest as OldRequest
from guanaco_server.deployments.model_servers.model_server import Generation
from guanaco_server.deployments.model_servers.vllm_protocol import request_body
from guanaco_server.openai.schemas import ChatCompletionRequest, CompletionRequest
from guanaco_server.runtime.clock import FixedClock
from guanaco_server.web.assets import Assets
from guanaco_server.web.pages.developer import submitting
from guanaco_server.web.rendering import Pages
from starlette.requests import Request
from types import SimpleNamespace

def body(params):
    return request_body(Generation("m", "p", params))

shown = io.StringIO()
with contextlib.redirect_stdout(shown):
    run(["submit", "--help"])
variant = Variant.model_validate({"name": "a", "params": {"min_tokens": 5, "calmness": 0.5}})
chat = ChatCompletionRequest.model_validate(
    {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "calm": 0.25, "avoid": "no"})
own = contract.GenerationParams(min_tokens=3)
fields = {**submitting._defaults(), "repo": "a/b", "min_tokens": "7", "bad_words": "never\\nno"}
pages = SimpleNamespace(pages=Pages(Assets(), FixedClock()))
request = Request({"type": "http", "path": "/submissions/new", "headers": [], "query_string": b""})
print(json.dumps({
    "help": shown.getvalue(),
    "openai": [sorted(model.model_json_schema()["properties"]) for model in (ChatCompletionRequest, CompletionRequest)],
    "sent": body(own),
    "sent_for_variant": body(variant.params.applied_to(own)),
    "sent_for_chat": body(chat.changes().applied_to(own)),
    "form": submitting._show(pages, request, fields, {}, 200).body.decode(),
    "submitted": SubmissionRequest.model_validate(submitting._request(fields)).params.model_dump(),
    "old": OldRequest.model_validate({"model_repo": "a/b", "generation_params": {"min_tokens": 2}}).generation_params.model_dump(),
}))
"""


@cache
def with_more_fields() -> dict[str, Any]:
    ran = subprocess.run(
        [sys.executable, "-c", WITH_MORE_FIELDS],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@pytest.mark.slow
def test_a_new_field_is_an_option_of_submit() -> None:
    shown = " ".join(with_more_fields()["help"].split())
    assert "--min-tokens N 0 to 64. No reply is shorter. [default: 0]" in shown
    assert "--calm NUMBER Over 0, to 1. [default: 1.0]" in shown
    assert "--bad-words TEXT Never said; may be repeated." in shown


def test_named_new_field_is_in_openais_api() -> None:
    for names in with_more_fields()["openai"]:
        assert {"calm", "avoid", "temperature"} <= set(names)
        assert not {"min_tokens", "calmness", "bad_words"} & set(names)


@pytest.mark.slow
def test_new_field_is_sent_to_the_model_server() -> None:
    found = with_more_fields()
    names = ("min_tokens", "typical_p", "bad_words")
    assert [found["sent"][name] for name in names] == [3, 1.0, []]
    assert [found["sent_for_variant"][name] for name in names] == [5, 0.5, []]
    assert [found["sent_for_chat"][name] for name in names] == [3, 0.25, ["no"]]


def test_new_field_is_in_the_form_and_its_submission() -> None:
    found = with_more_fields()
    assert '<input id="min_tokens" name="min_tokens" value="7" inputmode="decimal"' in found["form"]
    assert "0 to 64. No reply is shorter." in found["form"]
    assert '<textarea id="bad_words"' in found["form"]
    submitted = found["submitted"]
    assert (submitted["min_tokens"], submitted["bad_words"]) == (7, ["never", "no"])


def test_the_old_client_may_set_a_new_field() -> None:
    old = with_more_fields()["old"]
    assert (old["min_tokens"], old["best_of"]) == (2, 4)


def test_the_model_server_is_sent_what_vllm_calls_the_parameters() -> None:
    """vLLM's names differ for three; every other parameter that is sent has the model's name and value."""
    params = GenerationParams(top_k=0, stopping_words=[])
    expected = {
        one.use.vllm or one.name: getattr(params, one.name)
        for one in parameters()
        if one.use.is_sent
    }
    expected |= {"top_k": -1}  # vLLM's word for no limit
    assert sampling_fields(params) == expected
    assert {"stop", "max_tokens", "temperature"} <= expected.keys()


@pytest.mark.parametrize("one", parameters(), ids=lambda one: one.name)
def test_a_change_has_the_bounds_of_the_parameter(one: Any) -> None:
    assert ParamChanges.model_validate({one.name: one.field.get_default()})
    high = one.bound("le")
    wrong = ["x"] * 17 if one.is_list else high + 1
    for model in (GenerationParams, ParamChanges):
        with pytest.raises(ValueError, match=one.name):
            model.model_validate({one.name: wrong})


def test_a_change_never_raises_a_token_budget() -> None:
    own = GenerationParams(max_input_tokens=512, max_output_tokens=32)
    more = ParamChanges.model_validate({"max_input_tokens": 1_024, "max_output_tokens": 16})
    changed = more.applied_to(own)
    assert (changed.max_input_tokens, changed.max_output_tokens) == (512, 16)
