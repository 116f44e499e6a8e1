"""The deploy stage refuses a model that serves and says nothing of use, and tells what it said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from guanaco.errors import Blame
from guanaco.submissions import GenerationParams, Outcome, Stage, SubmissionKind
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import Script
from guanaco_server.deployments.model_servers.model_server import ModelServerFault, NotANumber
from guanaco_server.submissions.pipeline.checks.content import PROMPTS
from tests.fixtures.clocks import after
from tests.fixtures.pipeline import ID, PipelineWorld, tiny_files
from tests.fixtures.world import TEST_SETTINGS, eventually

GOOD = Script()
CHECKS = ["vocabulary", "stopping words", "answers", "numbers", "not empty", "not constant", "ends"]


REPLY_S = TEST_SETTINGS["reply_timeout_s"]


class Held(asyncio.Event):
    """Says when somebody has begun to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_awaited = False

    async def wait(self) -> Literal[True]:
        self.is_awaited = True
        return await super().wait()


async def refusal(world: PipelineWorld, code: str = "content_check_failed") -> str:
    assert await world.deploy() is Outcome.FAILED
    failure = (await world.submission()).failure
    assert failure is not None
    assert (failure.code, failure.blame, failure.stage) == (code, Blame.DEVELOPER, Stage.DEPLOY)
    assert not world.deployments.replicas(ID)
    return failure.detail


async def test_good_model_passes_every_check_and_logs_it(
    database: Database, tmp_path: Path
) -> None:
    world = PipelineWorld(database)
    await world.serialized(tiny_files(tmp_path))
    assert await world.deploy() is Outcome.DONE
    passed = [line for line in await world.log() if "Content check" in line]
    assert [line.split("`")[1] for line in passed] == CHECKS
    assert world.deployments.replicas(ID)


@pytest.mark.parametrize(
    ("script", "check", "evidence"),
    [
        (Script(pieces=()), "answers", "to 'Hello' the model generated no token"),
        (Script(pieces=("", " \n")), "not empty", "To 'Hello' it said ' \\n'"),
        (Script(pieces=(" la",) * 5), "not constant", "repeats the token ' la'"),
        (Script(logprob=float("nan")), "numbers", "for 'Hello' the model computed NaN"),
    ],
)
async def test_useless_reply_is_refused_and_shown(
    database: Database, tmp_path: Path, script: Script, check: str, evidence: str
) -> None:
    world = PipelineWorld(database, script)
    await world.serialized(tiny_files(tmp_path))
    detail = await refusal(world)
    assert f"Content check `{check}` failed" in detail
    assert evidence in detail


async def test_vllms_own_refusal_of_nan_is_the_models_fault(
    database: Database, tmp_path: Path
) -> None:
    world = PipelineWorld(database, *[GOOD] * len(PROMPTS), Script(fault=NotANumber("NaN.")))
    await world.serialized(tiny_files(tmp_path))
    assert "Content check `numbers` failed" in await refusal(world)


async def test_a_server_that_breaks_off_is_a_dead_server(
    database: Database, tmp_path: Path
) -> None:
    world = PipelineWorld(database, Script(fault="it broke off."))
    await world.serialized(tiny_files(tmp_path))
    assert "cannot generate: it broke off." in await refusal(world, "model_server_died")


async def test_one_odd_reply_among_several_is_no_failure(
    database: Database, tmp_path: Path
) -> None:
    odd = (Script(pieces=("", "")), Script(pieces=("ha", "ha")))
    world = PipelineWorld(database, *odd, GOOD)
    await world.serialized(tiny_files(tmp_path))
    assert await world.deploy() is Outcome.DONE


async def test_endless_replies_are_refused_when_they_take_too_long(
    database: Database, tmp_path: Path
) -> None:
    held = Held()
    world = PipelineWorld(database, *[GOOD] * len(PROMPTS), Script(go_on=held))
    await world.serialized(tiny_files(tmp_path))
    refusing = asyncio.create_task(refusal(world))

    async def has_said_a_word() -> bool:
        return held.is_awaited

    await eventually(has_said_a_word)
    detail = await after(REPLY_S, refusing)
    assert f"Content check `ends` failed: after {REPLY_S:g} s" in detail
    assert detail.endswith("so far it is 'Hello'.")


async def test_replies_that_only_their_length_ends_are_warned_of(
    database: Database, tmp_path: Path
) -> None:
    world = PipelineWorld(database, Script(finish_reason="length"))
    await world.serialized(tiny_files(tmp_path))
    assert await world.deploy() is Outcome.DONE
    (warning,) = [line for line in await world.log() if line.startswith("warning")]
    assert "None of 3 replies ended by itself within max_output_tokens = 64" in warning
    assert "it said 'Hello from memory.'" in warning


def one_row_too_few(folder: Path) -> None:
    tiny_files(folder, vocab_size=511)


def foreign_end(folder: Path) -> None:
    tiny_files(folder, eos_token_id=[1, 512])


def damaged_tokenizer(folder: Path) -> None:
    tiny_files(folder)
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')


@pytest.mark.parametrize(
    ("make", "code", "evidence"),
    [
        (one_row_too_few, "content_check_failed", "highest token id is 511 ("),
        (foreign_end, "content_check_failed", "eos_token_id in config.json is 512, and the"),
        (damaged_tokenizer, "corrupt_config", "tokenizer.json "),
    ],
)
async def test_unfitting_vocabulary_is_refused_before_anything_starts(
    database: Database, tmp_path: Path, make: Callable[[Path], None], code: str, evidence: str
) -> None:
    world = PipelineWorld(database)
    make(tmp_path)
    await world.serialized(tmp_path)
    assert evidence in await refusal(world, code)
    assert world.cluster.starts == []


WORDS: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "Bye": 1}, "unk_token": "[UNK]"},
}
PIECES: dict[str, Any] = WORDS | {
    "pre_tokenizer": None,
    "model": {"type": "Unigram", "unk_id": 0, "vocab": [["?", 0.0], ["Bye", -1.0], ["a", -1.0]]},
}


@pytest.mark.parametrize("tokenizer", [WORDS, PIECES], ids=["words", "pieces"])
@pytest.mark.parametrize(("word", "outcome"), [("Bye", Outcome.DONE), ("Ciao?", Outcome.FAILED)])
async def test_a_stopping_word_must_be_spelled_by_the_vocabulary(
    database: Database, tmp_path: Path, tokenizer: dict[str, Any], word: str, outcome: Outcome
) -> None:
    world = PipelineWorld(database)
    tiny_files(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    await world.serialized(tmp_path, params=GenerationParams(stopping_words=[word]))
    assert await world.deploy() is outcome
    if outcome is Outcome.FAILED:
        failure = (await world.submission()).failure
        assert failure is not None
        assert f"cannot spell the stopping word '{word}'" in failure.detail
        assert world.cluster.starts == []


async def reward_world(
    database: Database, folder: Path, make: type[PipelineWorld] = PipelineWorld
) -> PipelineWorld:
    world = make(database)
    await world.serialized(tiny_files(folder), kind=SubmissionKind.REWARD)
    return world


async def test_reward_model_is_ready_when_its_scores_are_usable(
    database: Database, tmp_path: Path
) -> None:
    world = await reward_world(database, tmp_path)
    assert await world.deploy() is Outcome.DONE
    passed = [line for line in await world.log() if "Content check" in line]
    assert [line.split("`")[1] for line in passed] == ["vocabulary", "numbers", "not constant"]
    assert world.model_server.generations == []
    spec = next(iter(world.cluster.deployments.values())).spec
    limit = spec.command[spec.command.index("--max-model-len") + 1]
    assert limit == str(GenerationParams().max_input_tokens), "it reads and does not write"


def failing(fault: ModelServerFault) -> Callable[[str], tuple[float, ...]]:
    def rewards(text: str) -> tuple[float, ...]:
        raise fault

    return rewards


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rewards", "code", "says"),
    [
        (lambda text: (0.25,), "content_check_failed", "4 different replies all have the score 0.25"),
        (failing(NotANumber("It computed NaN.")), "content_check_failed", "`numbers` failed: It computed NaN."),
        (failing(ModelServerFault("status 404.")), "model_server_died", "cannot score: status 404."),
    ],
)  # fmt: skip
async def test_reward_model_with_unusable_scores_is_refused(
    database: Database,
    tmp_path: Path,
    rewards: Callable[[str], tuple[float, ...]],
    code: str,
    says: str,
) -> None:
    world = await reward_world(database, tmp_path)
    world.model_server.rewards = rewards
    assert says in await refusal(world, code)


async def test_reward_model_that_answers_too_late_is_refused(
    database: Database, tmp_path: Path
) -> None:
    world = await reward_world(database, tmp_path)
    world.model_server.reward_delay_s = 3_600
    refusing = asyncio.create_task(refusal(world))

    async def is_asked() -> bool:
        return bool(world.model_server.classified)

    await eventually(is_asked)
    assert f"were not scored within {REPLY_S:g} s" in await after(REPLY_S, refusing)
