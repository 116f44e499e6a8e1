"""The OpenAPI document: valid, complete, and what the platform really answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from openapi_spec_validator import validate

from guanaco_server.database.database import Database
from guanaco_server.http import api_document
from scripts import document_http
from tests.fixtures.world import World
from tests.integration.test_accounts import PUBLIC


@pytest.fixture
def document() -> dict[str, Any]:
    return api_document.read_file()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_the_document_is_what_make_docs_writes_of_the_routes(database: Database) -> None:
    written = document_http.text_of(World(database).app.openapi())
    assert api_document.FILE.read_text() == written, "`make docs` helps"


def test_the_http_reference_is_what_make_docs_writes(document: dict[str, Any]) -> None:
    assert document_http.PAGE.read_text() == document_http.page(document), "`make docs` helps"


@pytest.mark.slow
def test_it_is_a_valid_document_of_schemas_that_are_sent(document: dict[str, Any]) -> None:
    validate(document)
    assert "HTTPValidationError" not in json.dumps(document)
    assert document["components"]["schemas"]["Turn"]["required"] == ["sender", "content"]


def test_each_operation_says_which_key_it_takes(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        assert bool(operation.get("security")) != (name in PUBLIC), name
    schemes = document["components"]["securitySchemes"]
    assert (schemes["key"]["type"], schemes["key"]["scheme"]) == ("http", "bearer")
    assert schemes["old_key"]["name"] == "developer_key"
    chat = document["paths"]["/models/{submission_id}/chat"]["post"]
    assert chat["security"] == [{"key": []}, {"old_key": []}]
    keys = document["paths"]["/api/v1/keys"]["post"]
    assert "A key with the role admin." in keys["description"]


def test_each_error_has_the_form_of_its_path(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        form = "OpenAiError" if " /v1/" in name else "ErrorBody"
        for status, answer in operation["responses"].items():
            if status == "default" or (int(status) >= 400 and "content" not in answer):
                assert answer["$ref"].startswith(f"#/components/responses/{form}"), (name, status)
    refused = document["components"]["responses"]["ErrorBody409"]
    assert "`already_rated`" in refused["description"]
    assert refused["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorBody")


def test_streams_name_their_events(document: dict[str, Any]) -> None:
    def events(path: str, method: str) -> dict[str, str]:
        answer = document["paths"][path][method]["responses"]["200"]
        schemas = answer["content"]["text/event-stream"]["schema"]["oneOf"]
        parts = [one["properties"] for one in schemas]
        return {one["event"]["const"]: one["data"]["$ref"].rpartition("/")[2] for one in parts}

    for path in ("conversations/{conversation_id}/messages", "submissions/{submission_id}/preview"):
        assert events(f"/api/v1/{path}", "post") == {
            "token": "Token",
            "done": "Reply",
            "error": "ErrorBody",
        }
    followed = events("/api/v1/submissions/{submission_id}/events", "get")
    assert followed == dict.fromkeys(("status", "stage", "log"), "SubmissionEvent")
    chunks = document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert chunks["text/event-stream"]["schema"]["$ref"].endswith("/ChatCompletionChunk")


def test_operations_have_short_names_of_their_own(document: dict[str, Any]) -> None:
    names = Counter(operation["operationId"] for _, operation in operations(document))
    assert [name for name, count in names.items() if count > 1] == []
    assert {"submissions_submit", "chat_messages", "openai_chat_completions"} <= set(names)
    tags = {tag for _, operation in operations(document) for tag in operation["tags"]}
    assert tags == {tag["name"] for tag in document["tags"]}
