"""Reward models without a server: their checks, their wire, their scores, and their place in the scaling."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guanaco import errors
from guanaco.submissions import GenerationParams, SubmissionKind
from guanaco_server.artifacts.checking.checks import CheckLimits, check_context, check_repo
from guanaco_server.artifacts.hub.memory import MemoryHub
from guanaco_server.deployments.model_servers.memory import MemoryModelServer
from guanaco_server.deployments.model_servers.model_server import (
    Candidate,
    Candidates,
    ModelServerFault,
    NotANumber,
    reward_score,
)
from guanaco_server.deployments.model_servers.vllm_protocol import read_candidates, read_logits
from guanaco_server.deployments.tables import DeploymentRow, Phase
from guanaco_server.runtime.clock import FixedClock
from guanaco_server.scaling.admission import is_rated, tenants_of
from guanaco_server.scaling.usage import DeploymentUsage, Ownership
from guanaco_server.stress.service import SCORED_AT_ONCE, LoadPlan, StressService
from guanaco_server.stress.verdict import Thresholds
from tests.fixtures.checked_server import unshared
from tests.fixtures.repos import base_repo, safetensors
from tests.fixtures.reward_repos import make_reward_repo

LIMITS = CheckLimits(10**9, 10**9)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
CLASSIFIER = "LlamaForSequenceClassification"


def reward_repo(head: tuple[int, ...] | None = (1, 8), **config: Any) -> dict[str, bytes]:
    shapes = {"model.embed_tokens.weight": (32, 8)} | ({"score.weight": head} if head else {})
    given = {"architectures": [CLASSIFIER], "num_labels": 1} | config
    return base_repo(**given) | {"model.safetensors": safetensors(shapes)}


async def check(files: dict[str, bytes], kind: SubmissionKind = SubmissionKind.REWARD) -> str:
    hub = MemoryHub()
    hub.add_repo("acme/judge", files)
    snapshot = await hub.resolve("acme/judge", None)
    return (await check_repo(hub, snapshot, LIMITS, kind=kind)).architecture


@pytest.mark.parametrize(
    "repo",
    [
        reward_repo(),
        reward_repo((2, 8), num_labels=2),
        reward_repo((2, 8), num_labels=None),
        reward_repo((5, 8), id2label={str(stars): f"{stars + 1} stars" for stars in range(5)}),
        reward_repo(problem_type="regression"),
        reward_repo(architectures=["GPT2ForSequenceClassification"]),
    ],
)
async def test_single_or_exclusive_label_classifier_can_be_a_reward_model(
    repo: dict[str, bytes],
) -> None:
    assert (await check(repo)).endswith("ForSequenceClassification")


@pytest.mark.parametrize(
    ("repo", "error", "says"),
    [
        (base_repo(), errors.UnsupportedArchitecture, "LlamaForCausalLM' is not one that a reward model can have"),
        (reward_repo(architectures=["DebertaV2ForSequenceClassification"]), errors.UnsupportedArchitecture, "not one that a reward"),
        (reward_repo(None), errors.CorruptWeights, "no score.weight"),
        (reward_repo((8,)), errors.CorruptWeights, "no score.weight"),
        (reward_repo((2, 8)), errors.CorruptConfig, "1 labels, and score.weight has 2 rows"),
        (reward_repo((3, 8), num_labels="3"), errors.CorruptConfig, "2 labels, and score.weight has 3 rows"),
        (reward_repo((2, 8), num_labels=2, problem_type="regression"), errors.CorruptConfig, "must choose one of them"),
        (reward_repo((2, 8), num_labels=2, problem_type=["x"]), errors.CorruptConfig, "must choose one of them"),
    ],
)  # fmt: skip
async def test_what_gives_no_single_score_is_refused_with_a_sentence(
    repo: dict[str, bytes], error: type[errors.GuanacoError], says: str
) -> None:
    with pytest.raises(error, match=says):
        await check(repo)


async def test_reward_model_submitted_as_chat_model_is_told_how() -> None:
    with pytest.raises(errors.UnsupportedArchitecture) as caught:
        await check(reward_repo(), SubmissionKind.CHAT)
    assert caught.value.hint == "A reward model is submitted with --kind reward."


async def test_a_reward_model_needs_positions_for_what_it_reads_alone(tmp_path: Path) -> None:
    make_reward_repo(tmp_path / "judge")
    hub = MemoryHub()
    files = {path.name: path.read_bytes() for path in (tmp_path / "judge").iterdir()}
    hub.add_repo("acme/judge", files)
    snapshot = await hub.resolve("acme/judge", None)
    model = await check_repo(hub, snapshot, LIMITS, kind=SubmissionKind.REWARD)
    whole = GenerationParams(max_input_tokens=2_048)
    check_context(model, whole, SubmissionKind.REWARD)
    with pytest.raises(errors.ContextTooLong):
        check_context(model, whole)
    with pytest.raises(errors.ContextTooLong, match="max_input_tokens is 2,049"):
        check_context(model, GenerationParams(max_input_tokens=2_049), SubmissionKind.REWARD)


def test_single_logit_is_the_score_else_the_last_log_odds() -> None:
    assert reward_score([-3.5]) == -3.5
    assert reward_score([1.0, 3.0]) == pytest.approx(2.0)
    assert reward_score([0.0, 0.0, math.log(2)]) == pytest.approx(0.0)
    assert reward_score([1_000.0, -1_000.0]) == -2_000.0


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=6), st.floats(-50, 50))
def test_log_odds_do_not_depend_on_where_the_logits_begin(logits: list[float], by: float) -> None:
    moved = [logit + by for logit in logits]
    assert reward_score(moved) == pytest.approx(reward_score(logits), abs=1e-6)


def test_log_probability_prefers_a_candidate_with_text() -> None:
    found = Candidates((Candidate(" ", "stop", -0.1), Candidate("x", "stop", -9.0)), 1, 2)
    assert found.best() == 1
    assert found.chunk(1, 0.5).reward_score == 0.5


def scored(*probs: Any) -> dict[str, Any]:
    return {"data": [{"index": index, "probs": each} for index, each in enumerate(probs)]}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (scored([1.0]), ModelServerFault),
        (scored([1.0], []), ModelServerFault),
        (scored([1.0], "high"), ModelServerFault),
        (scored([1.0], [None]), NotANumber),
        (scored([1.0], [math.nan]), NotANumber),
        (scored([1.0], [-math.inf]), NotANumber),
        ({"data": [{"index": 1, "probs": [1]}, {"index": 0, "probs": [2]}]}, ModelServerFault),
        ({"data": "no"}, ModelServerFault),
        ({"error": {"message": "engine is dead"}}, ModelServerFault),
        ([], ModelServerFault),
    ],
)
def test_garbage_in_place_of_scores_is_a_fault(body: Any, kind: type[ModelServerFault]) -> None:
    with pytest.raises(kind):
        read_logits(json.dumps(body).encode(), 2)


def candidates(**changes: Any) -> bytes:
    choice = {"text": "a", "finish_reason": "stop", "logprobs": {"token_logprobs": [-1.0, -3.0]}}
    usage = {"prompt_tokens": 3, "completion_tokens": 9}
    choices = [choice, choice | {"text": "b", "finish_reason": "length"} | changes]
    return json.dumps({"choices": choices, "usage": usage | changes}).encode()


def test_whole_candidates_come_with_their_mean_log_probability() -> None:
    replies = (Candidate("a", "stop", -2.0), Candidate("b", "length", -2.0))
    assert read_candidates(candidates()) == Candidates(replies, 3, 9)


@pytest.mark.parametrize(
    "change",
    [
        {"text": "half a character: \ud800"},
        {"text": None},
        {"finish_reason": "x" * 33},
        {"finish_reason": "st\x00op"},
        {"finish_reason": 3},
        {"prompt_tokens": 3_000_000_000},
        {"prompt_tokens": -1},
        {"completion_tokens": "many"},
    ],
)
def test_candidates_that_could_not_be_stored_are_a_fault(change: dict[str, Any]) -> None:
    with pytest.raises(ModelServerFault):
        read_candidates(candidates(**change))


def row(name: str, phase: Phase) -> DeploymentRow:
    return DeploymentRow(
        submission_id=name,
        phase=phase,
        gpu_count=1,
        wanted_replicas=1,
        updated_at=NOW - timedelta(hours=1),
        last_traffic_at=None,
    )


@pytest.mark.parametrize(
    ("chat", "may_go"),
    [(Phase.READY, False), (Phase.RESTARTING, False), (Phase.SLEEPING, True)],
)
def test_reward_model_keeps_its_room_while_a_user_has_some(chat: Phase, may_go: bool) -> None:
    rows = [row("judge", Phase.READY), row("chat", chat)]
    usage = {
        "judge": DeploymentUsage(Ownership("ada", True, True, frozenset({"chat"}))),
        "chat": DeploymentUsage(Ownership("ada", True, True)),
    }
    tenants = {tenant.submission_id: tenant for tenant in tenants_of(rows, usage, 1)}
    assert (tenants["judge"].used_at is not None) is may_go
    assert tenants["judge"].is_rated, "once nobody needs it, it is the first to go"


def test_a_reward_model_has_no_ratings_to_wait_for() -> None:
    judge = DeploymentUsage(Ownership("ada", True, True, frozenset()))
    assert is_rated(judge, 10)
    assert not is_rated(judge, 0), "nothing sleeps there"


@pytest.mark.parametrize(("delay_s", "is_passed"), [(0.0, True), (0.2, False)])
async def test_the_stress_check_asks_a_reward_model_what_replies_will(
    delay_s: float, is_passed: bool
) -> None:
    server = MemoryModelServer()
    server.reward_delay_s = delay_s
    thresholds = Thresholds(1, 1, 1, 0.0)
    stress = StressService(server, FixedClock(), LoadPlan(100, 0.05, 5), thresholds, 0.15)
    report = await stress.check_reward(
        unshared("memory://judge"), "judge_v1", ["Hi", "Ho"], "ada's"
    )
    assert (report.errors, report.is_passed) == (0, is_passed)
    assert report.requests == 5 or not is_passed, "a hopeless load is given up early"
    assert (report.ttft_ms, report.e2e_ms is not None) == (None, True)
    assert {len(texts) for _, texts in server.classified} == {SCORED_AT_ONCE}
    assert set(server.classified_salts) == {"ada's"}
    if not is_passed:
        assert "in scoring requests took up to" in report.reasons[0]
        assert "allowed 150 ms" in report.reasons[0]
