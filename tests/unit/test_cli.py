from __future__ import annotations

import errno
import io
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from guanaco import errors
from guanaco.accounts import Role
from guanaco.profile import Profile
from guanaco.prompts import PRESETS
from guanaco.submissions import GenerationParams
from guanaco_cli import accounts
from guanaco_cli.main import run
from tests.fixtures.cli import HOSTILE, is_safe, profile, server
from tests.fixtures.wire import (
    AT,
    event_json,
    refused,
    reply_json,
    sse,
    submission_events,
    submission_json,
)

__all__ = ["profile", "server"]
EXPERIMENT = {
    "name": "prompts", "state": "running", "created_at": AT, "started_at": AT, "stopped_at": None,
    "variants": [{"name": "a"}, {"name": "b", "model": "x_v1", "params": {"top_k": 3}}],
}  # fmt: skip


def test_submit_sends_every_option_and_prints_the_id_alone(server: Any, capsys: Any) -> None:
    script = server(httpx.Response(202, json=submission_json(status="queued")))
    options = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.1,
        "presence_penalty": -0.5, "frequency_penalty": 0.5, "max_input_tokens": 512,
        "recall_tokens": 64, "summary_tokens": 48, "max_output_tokens": 32, "best_of": 2,
    }  # fmt: skip
    arguments = [
        part
        for name, value in options.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    words = ["--stopping-word", r"\n", "--stopping-word", "END"]
    rest = ["--revision", "v1", "--name", "mine", "--formatter", "chatml", "--no-wait"]
    kind = ["--dtype", "float16", "--quantization", "fp8"]
    assert run(["submit", "org/model", *arguments, *words, *rest, *kind]) == 0
    sent = json.loads(script.requests[0].content)
    assert sent["params"] == options | {"stopping_words": ["\n", "END"]}
    assert (sent["revision"], sent["name"]) == ("v1", "mine")
    assert (sent["dtype"], sent["quantization"]) == ("float16", "fp8")
    assert set(options) | {"stopping_words"} == set(GenerationParams.model_fields)
    shown = capsys.readouterr()
    assert shown.out == "org-model_v1\n"
    assert "logs -f org-model_v1" in shown.err


def test_submit_says_that_no_worker_is_there(server: Any, capsys: Any) -> None:
    server(httpx.Response(202, json=submission_json(status="queued", no_worker_since=AT)))
    assert run(["submit", "org/model", "--no-wait"]) == 0
    assert "waits until one starts" in capsys.readouterr().err


def test_a_reward_model_is_submitted_and_named(server: Any) -> None:
    script = server(httpx.Response(202, json=submission_json(status="queued")))
    assert run(["submit", "org/judge", "--kind", "reward", "--no-wait"]) == 0
    named = ["--best-of", "4", "--reward", "org-judge_v1", "--reward-formatter", "chatml"]
    assert run(["submit", "org/model", *named, "--no-wait"]) == 0
    judge, model = (json.loads(request.content) for request in script.requests)
    assert (judge["kind"], judge["reward"], judge["reward_formatter"]) == ("reward", None, None)
    assert (model["kind"], model["reward"]) == ("chat", "org-judge_v1")
    assert model["reward_formatter"] == PRESETS["chatml"].model_dump()


def judge_json(**changes: Any) -> dict[str, Any]:
    return submission_json(id="org-judge_v3", repo="org/judge", kind="reward") | changes


WITH_JUDGE = ["submit", "org/model", "--best-of", "4", "--reward-repo", "org/judge", "--no-wait"]
ME = httpx.Response(200, json={"name": "alice", "role": "developer"})


def test_own_live_reward_model_of_a_repo_is_reused(server: Any) -> None:
    others = [
        judge_json(id="org-judge_v6", status="inactive"),
        judge_json(id="org-judge_v5", developer="bob"),
        judge_json(id="org-judge_v4", kind="chat"),
    ]
    queued = httpx.Response(202, json=submission_json(status="queued"))
    script = server(ME, httpx.Response(200, json=[*others, judge_json()]), queued)
    assert run(WITH_JUDGE) == 0
    assert json.loads(script.requests[-1].content)["reward"] == "org-judge_v3"
    assert len(script.requests) == 3


@pytest.mark.parametrize("status", ["deployed", "failed"])
def test_a_reward_model_of_a_repo_is_submitted_first(server: Any, status: str, capsys: Any) -> None:
    failure = {"code": "corrupt_weights", "detail": "The weights have no score.weight.", "hint": None, "blame": "developer", "stage": "check"}  # fmt: skip
    ended = judge_json(status=status, failure=failure if status == "failed" else None)
    script = server(
        ME,
        httpx.Response(200, json=[]),
        httpx.Response(202, json=judge_json(status="queued")),
        httpx.Response(200, content=submission_events(1)),
        httpx.Response(200, json=ended),
        httpx.Response(202, json=submission_json(status="queued")),
    )
    assert run(WITH_JUDGE) == (0 if status == "deployed" else 1)
    sent = [json.loads(each.content) for each in script.requests if each.method == "POST"]
    assert (sent[0]["repo"], sent[0]["kind"]) == ("org/judge", "reward")
    if status == "deployed":
        assert sent[1]["reward"] == "org-judge_v3"
    else:
        assert len(sent) == 1
        assert "no score.weight" in capsys.readouterr().err


def test_no_stopping_words_can_be_asked_for(server: Any) -> None:
    script = server(httpx.Response(202, json=submission_json(status="queued")))
    assert run(["submit", "org/model", "--stopping-word", "", "--no-wait"]) == 0
    assert json.loads(script.requests[0].content)["params"]["stopping_words"] == []


def test_a_parameter_that_is_not_given_has_its_default(server: Any) -> None:
    script = server(httpx.Response(202, json=submission_json(status="queued")))
    assert run(["submit", "org/model", "--top-k", "7", "--no-wait"]) == 0
    defaults = GenerationParams(top_k=7).model_dump()
    assert json.loads(script.requests[0].content)["params"] == defaults


def test_submit_follows_the_stages_to_the_end(server: Any, capsys: Any) -> None:
    stage = {"kind": "stage", "stage": "check"}
    events = (
        sse("stage", event_json(1, **stage, message="Stage check started.", data={"outcome": None}), 1)
        + sse("log", event_json(2, message="a debug line", level="debug"), 2)
        + sse("log", event_json(3, message=f"a line {HOSTILE}"), 3)
        + sse("stage", event_json(4, **stage, message="Stage check done after 1.5 s.", data={"outcome": "done", "duration_s": 1.5}), 4)
    )  # fmt: skip
    server(
        httpx.Response(202, json=submission_json(status="queued")),
        httpx.Response(200, content=events),
        httpx.Response(200, json=submission_json()),
    )
    assert run(["submit", "org/model", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["status"] == "deployed"
    assert "Stage check done after 1.5 s." in shown.err
    assert "a debug line" not in shown.err
    assert is_safe(shown.err)


def test_a_submission_that_fails_says_why_and_whom_to_blame(server: Any, capsys: Any) -> None:
    failure = {
        "code": "pickle_weights", "detail": "It holds pickles.", "hint": "Convert them.",
        "blame": "developer", "stage": "check",
    }  # fmt: skip
    server(
        httpx.Response(202, json=submission_json(status="queued")),
        httpx.Response(200, content=b""),
        httpx.Response(200, json=submission_json(status="failed", failure=failure)),
    )
    assert run(["submit", "org/model"]) == 1
    shown = capsys.readouterr().err
    assert "error: org-model_v1 failed in stage check: It holds pickles." in shown
    assert "hint: Convert them." in shown
    assert "blame: developer" in shown


def test_ctrl_c_leaves_remote_work_running_and_explains_following(server: Any, capsys: Any) -> None:
    def interrupt(_request: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    script = server(httpx.Response(202, json=submission_json(status="queued")), interrupt)
    assert run(["submit", "org/model"]) == 130
    assert "guanaco logs -f org-model_v1" in capsys.readouterr().err
    assert not any(request.url.path.endswith("cancel") for request in script.requests)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["submit", "nonsense"], "REPO: It should look like org/name"),
        (["submit", "a/b", "--temperature", "3"], "--temperature: Input should be less than or equal to 2."),
        (["submit", "a/b", "--stopping-word", "x" * 65], "--stopping-word: "),
        (["submit", "a/b", "--formatter", "nothing"], "neither a preset nor a file"),
        (["submit", "a/b", "--top-k", "many"], "--top-k"),
        (["submit", "a/b", "--reward", "r_v1"], "error: A reward model picks among candidates: --best-of must be 2 or more"),
        (["submit", "a/b", "--reward-repo", "a/r"], "--reward-repo needs --best-of"),
        (["submit", "a/b", "--best-of", "2", "--reward-repo", "a/r", "--reward", "r_v1"], "exclude each other"),
        (["submit", "a/b", "--kind", "reward", "--formatter", "chatml"], "takes --reward-formatter"),
        (["keys", "create", "--role", "king", "--name", "x"], "--role"),
        (["keys", "create", "--role", "admin", "--name", "no spaces"], "--name: It should be"),
        (["chat", "x", "--bot", "nobody"], "marlowe"),
        (["feedback", "x", "--json", "--csv"], "not both"),
        (["recipe", "x", "--gpus", "0"], "--gpus: "),
        (["recipe", "x", "--flag", "--model=y"], "is the platform's own"),
        (["recipe", "x", "--env", "A"], "--env takes NAME=VALUE"),
        (["recipe", "x", "--clear", "--gpus", "2"], "--clear takes back"),
        (["costs", "--month", "may"], "--month takes a month like 2026-11"),
        (["costs", "x", "--month", "2026-11"], "--month does not go with it"),
        (["keys", "create", "--role", "developer", "--name", "x", "--may-choose-models"], "error: --may-choose-models is for"),
        (["recipe", "x", "--flag", "foo"], "error: --flag: "),
        (["feedback", "x", "--since", "yesterday"], "'--since': 'yesterday' is no time. Write it like 2026-11-01,"),
        (["feedback", "x", "--rating", "fine"], "'--rating': 'fine' is not one of"),
        (["nonsense"], "No such command"),
    ],
)  # fmt: skip
def test_wrong_use_is_a_sentence_and_exit_status_2(
    arguments: list[str], says: str, server: Any, capsys: Any
) -> None:
    script = server(httpx.Response(500))
    assert run(arguments) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert "Traceback" not in shown.err
    assert not shown.out
    assert not script.requests


@pytest.mark.parametrize(
    ("arguments", "detail", "says"),
    [
        (["submissions", "--tag", "A B"], "tag.0: It is wrong.", "--tag: It is wrong."),
        (["alias", "set", "x_v1", "Champion"], "alias: It is wrong.", "NAME: It is wrong."),
        (["conversations", "note", "c", "a=b"], "metadata.a: It is wrong.", "NAME=VALUE: It is wrong."),
        (["status", "x_v1"], "tag.0: It is wrong.", "tag.0: It is wrong."),
    ],
)  # fmt: skip
def test_fields_that_a_server_refuses_are_said_as_typed(
    arguments: list[str], detail: str, says: str, server: Any, capsys: Any
) -> None:
    server(refused(errors.InvalidInput(detail), 422))
    assert run(arguments) == 2
    assert f"error: {says}" in capsys.readouterr().err


def test_wrong_tags_are_named_as_the_argument(server: Any, capsys: Any) -> None:
    server(httpx.Response(200, json=submission_json()))
    assert run(["tag", "x_v1", "Bad Tag"]) == 2
    assert "error: TAG: It should be small letters" in capsys.readouterr().err


def test_two_problems_are_two_sentences(capsys: Any) -> None:
    assert run(["submit", "a/b", "--temperature", "3", "--top-p", "0"]) == 2
    assert capsys.readouterr().err.count("error: ") == 2


@pytest.mark.parametrize(
    ("rollout", "says"),
    [
        ({"phase": "preparing"}, "run 2, preparing"),
        (
            {"phase": "shifting", "share": 0.2, "canary_s": 3_600},
            "run 2, shifting: a canary with 20.0% of new conversations, for ",
        ),
        (
            {
                "phase": "failed",
                "failure": {"code": "canary_worse", "detail": "The canary is worse: 7 of 9.", "hint": None, "blame": "developer"},
            },
            "run 2, failed, and the version before serves on: The canary is worse: 7 of 9.",
        ),
    ],
)  # fmt: skip
def test_status_says_how_the_newest_redeploy_stands(
    server: Any, capsys: Any, rollout: dict[str, Any], says: str
) -> None:
    shown = {"run": 2, "began_at": AT, "shifting_at": None, **rollout}
    server(httpx.Response(200, json=submission_json(run=2, rollout=shown)))
    assert run(["status", "org-model_v1"]) == 0
    assert f"redeploy     {says}" in capsys.readouterr().out


def test_refusal_is_a_sentence_with_a_hint_and_exit_1(server: Any, capsys: Any) -> None:
    server(refused(errors.SubmissionNotFound("x"), 404))
    assert run(["status", "x"]) == 1
    assert (
        capsys.readouterr().err
        == "error: No submission x.\nhint: `guanaco submissions` lists yours.\n"
    )


def test_unforeseen_error_is_a_sentence_and_traceback_on_request(
    server: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server(ZeroDivisionError("odd"))
    assert run(["submissions"]) == 1
    assert capsys.readouterr().err.startswith(
        "error: Something unexpected happened: ZeroDivisionError: odd"
    )
    monkeypatch.setenv("GUANACO_DEBUG", "1")
    assert run(["submissions"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_full_disk_is_a_sentence(server: Any, capsys: Any) -> None:
    server(OSError(errno.ENOSPC, "No space left on device"))
    assert run(["submissions"]) == 1
    assert capsys.readouterr().err.startswith("error: The disk is full.\nhint: Make room")


def chat_answer(request: httpx.Request) -> httpx.Response:
    if request.method == "GET":
        return httpx.Response(200, json=submission_json())
    sent = json.loads(request.content)
    reply = reply_json(f"reply {len(sent['turns'])}{HOSTILE}", prompt=f"the prompt {HOSTILE}")
    if not sent["stream"]:
        return httpx.Response(200, json=reply)
    return httpx.Response(
        200, content=sse("token", {"text": reply["content"]}) + sse("done", reply)
    )


def test_chat_reads_lines_from_stdin_and_remembers_the_turns(
    server: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = server(chat_answer)
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n\nand then?\n"))
    assert run(["chat", "x", "--bot", "ada"]) == 0
    shown = capsys.readouterr()
    assert [line[:7] for line in shown.out.splitlines()] == ["reply 1", "reply 3"]
    assert is_safe(shown.out)
    turns = json.loads(script.requests[2].content)["turns"]
    assert [turn["sender"] for turn in turns] == ["user", "bot", "user"]


def test_chat_says_at_once_that_there_is_no_such_submission(server: Any, capsys: Any) -> None:
    server(refused(errors.SubmissionNotFound("nope"), 404))
    assert run(["chat", "nope", "--message", "hello"]) == 1
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "error: No submission nope."
    assert len(shown) == 2, "no greeting"


def test_chat_says_one_message_and_shows_the_very_prompt(server: Any, capsys: Any) -> None:
    server(chat_answer)
    assert run(["chat", "x", "--message", "hello", "--show-prompt"]) == 0
    shown = capsys.readouterr()
    assert "the prompt" in shown.err
    assert is_safe(shown.err)
    assert run(["chat", "x", "--message", "hello", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt"].startswith("the prompt")


def test_recipe_is_set_by_options_and_removed_by_clear(server: Any, capsys: Any) -> None:
    answer = {"submission_id": "x", "override": None, "served": None}
    script = server(httpx.Response(200, json=answer))
    options = ["--gpu", "H100", "--gpus", "2", "--no-expert-parallel", "--kv-cache-dtype", "fp8"]
    rest = ["--flag", "--enforce-eager", "--env", "A=b=c", "--memory-gib", "1.5", "--nodes", "2"]
    assert run(["recipe", "x", *options, *rest]) == 0
    assert "guanaco redeploy x" in capsys.readouterr().err
    request = script.requests[0]
    assert (request.method, request.url.path) == ("PUT", "/api/v1/submissions/x/recipe")
    sent = {name: value for name, value in json.loads(request.content).items() if value is not None}
    assert sent == {
        "gpu": "H100", "gpus": 2, "expert_parallel": False, "kv_cache_dtype": "fp8",
        "flags": ["--enforce-eager"], "environment": {"A": "b=c"}, "memory_bytes": 3 * 2**29, "nodes": 2,
    }  # fmt: skip
    assert run(["recipe", "x", "--clear"]) == 0
    cleared = json.loads(script.requests[1].content)
    assert not any(cleared.values())


def test_an_experiment_is_made_of_a_file_started_and_stopped(
    server: Any, capsys: Any, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.yaml"
    file.write_text("name: prompts\nvariants: [{name: a}, {name: b, params: {top_k: 3}}]\n")
    script = server(httpx.Response(200, json=EXPERIMENT))
    assert run(["experiments", "create", str(file)]) == 0
    assert json.loads(script.requests[0].content)["variants"][1]["params"]["top_k"] == 3
    for verb in ("start", "stop"):
        assert run(["experiments", verb, "prompts", *(["--yes"] if verb == "stop" else [])]) == 0
        assert script.requests[-1].url.path == f"/api/v1/experiments/prompts/{verb}"
    assert "prompts is running" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: [", "neither YAML nor JSON"),
        ("name: a\nvariants: []", "variants: "),
        ("- a", "holds no fields"),
    ],
)
def test_file_that_is_no_experiment_is_refused_in_a_sentence(
    text: str, says: str, capsys: Any, tmp_path: Path
) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    assert run(["experiments", "create", str(file)]) in (1, 2)
    assert says in capsys.readouterr().err


def test_a_faulty_variant_is_the_only_fault_that_is_named(capsys: Any, tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text("name: a\nvariants: [{name: a, share: -1}, {name: b}]")
    assert run(["experiments", "create", str(file)]) == 2
    shown = capsys.readouterr().err
    assert "variants.0.share" in shown
    assert "items" not in shown


def test_costs_of_a_month_span_its_first_to_last_moment(server: Any) -> None:
    answer = {"gpu_hours": 0, "cost": 0, "since": AT, "until": AT, "currency": "USD"}
    script = server(httpx.Response(200, json=answer | {"submissions": [], "developers": []}))
    assert run(["costs", "--month", "2026-12"]) == 0
    assert dict(script.requests[0].url.params) == {
        "since": "2026-12-01T00:00:00+00:00",
        "until": "2027-01-01T00:00:00+00:00",
    }


@pytest.mark.parametrize("verb", ["cancel", "deactivate", "reactivate", "teardown"])
def test_a_verb_is_one_request_and_one_line(verb: str, server: Any, capsys: Any) -> None:
    script = server(httpx.Response(200, json=submission_json(status="inactive")))
    assert run([verb, "org-model_v1", *(["--yes"] if verb == "teardown" else [])]) == 0
    assert script.requests[0].url.path == f"/api/v1/submissions/org-model_v1/{verb}"
    assert capsys.readouterr().err == "org-model_v1 is inactive.\n"


@pytest.mark.parametrize(
    "command",
    [
        "teardown org-model_v1",
        "delete org-model_v1",
        "keys revoke k1",
        "users erase user-17",
        "competitions freeze autumn",
        "experiments stop prompts",
        "webhook remove",
    ],
)
def test_what_cannot_be_undone_needs_yes_without_a_terminal(
    command: str, server: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = server(httpx.Response(500))
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert run(command.split()) == 2
    shown = capsys.readouterr().err
    assert "no terminal to ask at" in shown
    assert "--yes" in shown
    assert not script.requests


def test_redeploy_shows_only_what_happens_from_now_on(server: Any, capsys: Any) -> None:
    old = event_json(1, message="an old line", at="2026-01-02T03:04:04Z")
    server(
        httpx.Response(202, json=submission_json(status="queued")),
        httpx.Response(200, content=sse("log", old, 1) + submission_events(2)),
        httpx.Response(200, json=submission_json()),
    )
    assert run(["redeploy", "org-model_v1"]) == 0
    shown = capsys.readouterr().err
    assert "line 2" in shown
    assert "an old line" not in shown


def test_a_new_key_is_the_only_thing_on_stdout(server: Any, capsys: Any) -> None:
    created = {"id": "k1", "name": "app", "role": "backend", "created_at": AT, "key": "gk_secret"}
    server(httpx.Response(201, json=created))
    assert run(["keys", "create", "--role", "backend", "--name", "app"]) == 0
    assert capsys.readouterr().out == "gk_secret\n"


def test_the_roles_that_can_be_chosen_are_all_roles() -> None:
    from typing import get_args, get_type_hints

    assert set(get_args(get_type_hints(accounts.create)["role"])) == {str(role) for role in Role}


def test_login_tries_the_key_before_it_is_stored(server: Any, profile: Path, capsys: Any) -> None:
    server(refused(errors.Unauthenticated(), 401))
    before = profile.read_text()
    assert run(["login", "--url", "http://new.test", "--key", "wrong"]) == 1
    assert profile.read_text() == before
    script = server(httpx.Response(200, json={"name": "alice", "role": "developer"}))
    assert run(["login", "--url", "http://new.test", "--key", "right"]) == 0
    assert script.requests[0].headers["Authorization"] == "Bearer right"
    assert Profile.read(profile) == Profile("http://new.test", "right")
    assert "right" not in capsys.readouterr().err


def test_a_quota_is_shown_with_what_is_left_and_when(server: Any, capsys: Any) -> None:
    quota = {
        "account": "ada",
        "per_hour": {"used": 30, "limit": 30},
        "live": {"used": 3, "limit": 20},
        "in_progress": {"used": 0, "limit": None},
        "artifact_bytes": {"used": 1_000, "limit": 4_000},
        "next_submission_at": "2026-11-22T10:00:00Z",
    }
    script = server(httpx.Response(200, json=quota), httpx.Response(200, json=quota))
    assert run(["quota"]) == 0
    shown = capsys.readouterr()
    assert all(text in shown.out for text in ("17", "3,000"))
    assert "none" in shown.out
    assert "next submission" in shown.err
    assert run(["quota", "set", "ada", "--live", "50"]) == 0
    assert script.requests[1].url.path == "/api/v1/accounts/ada/quota"
    assert json.loads(script.requests[1].content)["live"] == 50


def test_hub_token_comes_from_the_environment_only_when_wanted(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    accepted = httpx.Response(202, json=submission_json(status="queued"))
    script = server(accepted, accepted)
    assert run(["submit", "org/model", "--no-wait", "--hub-token"]) == 0
    assert run(["submit", "org/model", "--no-wait"]) == 0
    assert [request.headers.get("X-Hub-Token") for request in script.requests] == ["hf_mine", None]
    assert b"hf_mine" not in script.requests[0].content


def test_secrets_are_read_from_stdin_without_a_terminal(
    server: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    script = server(httpx.Response(202, json=submission_json(status="queued")))
    monkeypatch.setattr(sys, "stdin", io.StringIO("hf_piped\n"))
    assert run(["submit", "org/model", "--no-wait", "--hub-token"]) == 0
    assert script.requests[0].headers["X-Hub-Token"] == "hf_piped"
    for command in (["submit", "org/model", "--hub-token"], ["login", "--url", "http://new.test"]):
        assert run(command) == 2
        said = capsys.readouterr().err
        assert "There is no terminal to ask" in said
        assert "Warning" not in said
