"""The gateway's routes in the OpenAPI document, which the framework writes of its own routes only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from guanaco.chat import Reply
from guanaco_server.chat.gateway import ReplyRoute

REFERENCE = "#/components/schemas/{model}"


def document(openapi: dict[str, Any], routes: Sequence[ReplyRoute]) -> None:
    """Write them into the document."""
    models: list[type[BaseModel]] = [Reply, *(route.model for route in routes)]
    _, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template=REFERENCE
    )
    components = openapi.setdefault("components", {})
    for name, schema in definitions["$defs"].items():
        components.setdefault("schemas", {}).setdefault(name, schema)
    for route in routes:
        openapi["paths"][route.path] = {"post": _operation(route)}


def _operation(route: ReplyRoute) -> dict[str, Any]:
    reply = {
        "description": "The reply; with `stream` as events: token, then done or error.",
        "content": {
            "application/json": {"schema": _reference(Reply)},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    return {
        "tags": ["chat"],
        "summary": route.summary,
        "operationId": route.path.strip("/").replace("/", "_").replace("{", "").replace("}", ""),
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ],
        "requestBody": {"content": {"application/json": {"schema": _reference(route.model)}}},
        "responses": {"200": reply},
    }


def _reference(model: type[Any]) -> dict[str, str]:
    return {"$ref": REFERENCE.format(model=model.__name__)}
