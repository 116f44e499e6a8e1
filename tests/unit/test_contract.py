"""Requests are strict; what another version stored or sent is read tolerantly."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from guanaco.chat import Bot, ConversationRequest
from guanaco.competitions import Competition, CompetitionRequest, RankingRule
from guanaco.contract import (
    Reader,
    carry_unknown_fields,
    reader,
    to_stored,
    unknown_members,
    without_unknown_fields,
)
from guanaco.feedback import FeedbackFilter, FeedbackRequest
from guanaco.prompts import Prompt, PromptFormatter, UnknownPrompt
from guanaco.recipes import RecipeOverride
from guanaco.submissions import Stage, Status, SubmissionRequest, last_to_read_hub

RULES: dict[str, Any] = {
    "name": "Spring",
    "starts_at": "2026-01-01T00:00:00Z",
    "ends_at": None,
    "prize": 100,
    "entry": {
        "max_parameters": 7,
        "per_developer": None,
        "submitted_within": False,
        "region": "eu",
    },
    "assignment": {"kind": "by_mood", "moods": ["calm"]},
    "ranking": "by_length",
}


STORED: Reader[CompetitionRequest] = Reader(CompetitionRequest, keeps_unknown_fields=True)
PROMPTS: Reader[Prompt] = Reader(Prompt, keeps_unknown_fields=True)


def test_known_text_reads_as_the_known_member() -> None:
    assert Status.read("deployed") is Status.DEPLOYED
    assert not Status.DEPLOYED.is_unknown


def test_unknown_text_reads_as_an_unknown_member_that_keeps_it() -> None:
    status = Status.read("hibernating")
    assert status.is_unknown
    assert (str(status), status.value, status.name) == ("hibernating", "hibernating", "UNKNOWN")
    assert status not in list(Status)
    assert status == Status.read("hibernating")
    assert status != Status.read("dreaming")
    assert not status.is_in_progress
    assert RankingRule.read("hibernating") is not status


def test_an_enum_still_refuses_unknown_text() -> None:
    with pytest.raises(ValueError, match="hibernating"):
        Status("hibernating")


def test_an_unknown_member_survives_copies_and_pickles() -> None:
    status = Status.read("hibernating")
    assert copy.deepcopy(status) is status
    assert pickle.loads(pickle.dumps(status)) is status
    assert pickle.loads(pickle.dumps(Status.DEPLOYED)) is Status.DEPLOYED


def test_a_reader_keeps_unknown_fields_and_words() -> None:
    rules = STORED.from_python(RULES)
    assert rules.model_extra == {"prize": 100}
    assert rules.entry.model_extra == {"region": "eu"}
    assert rules.assignment.kind.is_unknown
    assert list(unknown_members(rules)) == ["assignment.kind", "ranking"]


def test_a_rewritten_row_keeps_what_a_newer_version_put_there() -> None:
    rules = STORED.from_python(RULES)
    stored = to_stored(rules.model_copy(update={"name": "Summer"}))
    known = CompetitionRequest(name="x", starts_at=rules.starts_at).model_dump(mode="json")
    assert stored == {
        **known,
        **RULES,
        "name": "Summer",
        "assignment": {**known["assignment"], **RULES["assignment"]},
    }


def test_a_replacement_carries_the_unknown_fields_over() -> None:
    old = STORED.from_python(RULES)
    new = CompetitionRequest(name="Summer", starts_at=old.starts_at)
    stored = to_stored(carry_unknown_fields(old, new))
    assert stored["name"] == "Summer"
    assert stored["assignment"]["kind"] == "newest"
    assert (stored["prize"], stored["entry"]["region"]) == (100, "eu")
    assert stored["assignment"]["moods"] == ["calm"]
    assert to_stored(new) == new.model_dump(mode="json")


def test_unknown_fields_can_be_left_behind() -> None:
    rules = STORED.from_python(RULES)
    plain = without_unknown_fields(rules)
    assert not plain.model_extra
    assert not plain.entry.model_extra
    assert plain.assignment.kind == rules.assignment.kind


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("ranking", "by_length", "'thumbs_up', 'bradley_terry' or 'combined'"),
        ("prize", 100, "Extra inputs are not permitted"),
        ("entry", {"region": "eu"}, "Extra inputs are not permitted"),
        ("assignment", {"kind": "by_mood"}, "'newest', 'uniform', 'adaptive' or 'decide'"),
    ],
)
def test_a_request_of_the_next_version_is_refused(field: str, value: object, problem: str) -> None:
    request = {"name": "Spring", "starts_at": "2026-01-01T00:00:00Z", field: value}
    with pytest.raises(ValidationError, match=problem):
        CompetitionRequest.model_validate(request)


def test_no_schema_shows_an_unknown_member() -> None:
    for mode in ("validation", "serialization"):
        schema = SubmissionRequest.model_json_schema(mode=mode)  # type: ignore[arg-type]
        assert schema["$defs"]["WeightDtype"]["enum"] == ["auto", "bfloat16", "float16"]
        assert "UnknownPrompt" not in schema["$defs"]
        assert "UNKNOWN" not in str(schema)


@pytest.mark.parametrize(
    "stored",
    [
        {"kind": "tree", "root": {"says": "hello"}},
        {"kind": "templates", "memory_template": "{mood} {memory}"},
        {"kind": "file", "parts": [{"name": "a", "content": "b", "role": "narrator"}]},
    ],
)
def test_a_prompt_of_the_next_version_is_read_as_unknown(stored: dict[str, Any]) -> None:
    prompt = PROMPTS.from_python(stored)
    assert isinstance(prompt, UnknownPrompt)
    assert to_stored(prompt) == stored
    assert list(unknown_members(prompt)) == [""]


def test_a_known_prompt_with_a_further_field_stays_itself() -> None:
    stored = {"bot_template": "{message}!", "mood": "calm"}
    prompt = PROMPTS.from_python(stored)
    assert isinstance(prompt, PromptFormatter)
    assert to_stored(prompt)["mood"] == "calm"
    assert Reader[Prompt](Prompt).from_python(stored) == PromptFormatter(bot_template="{message}!")


def test_what_was_stored_equals_what_was_never_stored() -> None:
    rules = CompetitionRequest(name="Spring", starts_at=datetime(2026, 1, 1, tzinfo=UTC))
    assert STORED.from_python(to_stored(rules)) == rules
    assert STORED.from_json(rules.model_dump_json()) == rules


def test_prompt_of_an_unknown_kind_is_refused_in_a_request() -> None:
    with pytest.raises(ValidationError, match="templates, chat_template, file or poet"):
        SubmissionRequest.model_validate({"repo": "org/model", "formatter": {"kind": "tree"}})


def test_what_was_read_may_be_answered_and_sent_on() -> None:
    """A server answers with the members that it read; only text is checked."""
    rules = STORED.from_python(RULES)
    answer = Competition(
        id="spring", **{name: getattr(rules, name) for name in type(rules).model_fields}
    )
    assert answer.model_dump(mode="json")["ranking"] == "by_length"


def test_flag_that_became_the_platforms_own_is_still_read() -> None:
    stored = {"flags": ["--model=other"]}
    assert reader(RecipeOverride).from_python(stored).flags == ["--model=other"]
    with pytest.raises(ValidationError, match="the platform's own"):
        RecipeOverride.model_validate(stored)


def test_readers_refuse_values_of_a_wrong_type() -> None:
    with pytest.raises(ValidationError):
        reader(Bot).from_json(b'{"name": 3}')


@pytest.mark.parametrize(
    "name",
    [
        "Lu\u202ena",
        "\u2066Luna",
        "Luna\u200b",
        "\ufeffLuna",
        "Lu\u0085na",
        "Lu\u2028na",
        "Lu\u00adna",
        "Luna\U000e0041",
        "\u3164",
        "Lu\u115fna",
        "Lu\u1160na",
        "Luna\uffa0",
        "\U0001f3f4\U000e0068\U000e0069",
    ],
)
def test_a_name_has_no_characters_that_deceive_its_reader(name: str) -> None:
    with pytest.raises(ValidationError, match="invisible characters"):
        Bot(name=name)
    assert Reader[Bot](Bot).from_python({"name": name}).name == name, "stored ones are still read"


@pytest.mark.parametrize(
    "name",
    [
        "\u0646\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "\U0001f469\u200d\U0001f680",
        "\u05d9\u05e2\u05dc",
        "Zo\u00eb",
        "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    ],
)
def test_a_name_may_be_in_any_script(name: str) -> None:
    assert Bot(name=name).name == name


@pytest.mark.parametrize(
    "moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00", "9999-01-01T00:00:00Z"]
)
def test_a_moment_can_be_told_in_every_zone(moment: str) -> None:
    for fields in ({"since": moment}, {"until": moment}):
        with pytest.raises(ValidationError, match="between the years 1900 and 9998"):
            FeedbackFilter.model_validate(fields)
    with pytest.raises(ValidationError, match="between the years 1900 and 9998"):
        CompetitionRequest.model_validate({"name": "Open", "starts_at": moment})


@pytest.mark.parametrize("consent", ["yes", "true", 1, "1", None])
def test_consent_is_true_and_nothing_like_it(consent: object) -> None:
    with pytest.raises(ValidationError, match="consent"):
        ConversationRequest.model_validate(
            {"user_id": "u", "bot": {"name": "Luna"}, "consent": consent}
        )
    with pytest.raises(ValidationError, match="may_be_quoted"):
        FeedbackRequest.model_validate({"thumbs_up": True, "text": "x", "may_be_quoted": consent})


def test_stages_say_which_reads_the_hub_last() -> None:
    assert last_to_read_hub(is_adapter=False) is Stage.SERIALIZE
    assert last_to_read_hub(is_adapter=True) is Stage.DEPLOY
