"""The OpenAPI document as a person reads it: rooms of calls, their fields, and an example of each body."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "over {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "under {}",
    "minLength": "{} characters or more",
    "maxLength": "{} characters at most",
    "minItems": "{} items or more",
    "maxItems": "{} items at most",
}
DEEPEST = 4  # of an example


@dataclass(frozen=True)
class TypePart:
    """A piece of a type's text; ``schema`` is the one that it names."""

    text: str
    schema: str | None = None


@dataclass(frozen=True)
class FieldShown:
    name: str
    type: tuple[TypePart, ...]
    about: str
    is_required: bool
    place: str = "body"


@dataclass(frozen=True)
class AnswerShown:
    status: str
    about: str
    type: tuple[TypePart, ...]


@dataclass(frozen=True)
class CallShown:
    id: str
    method: str
    path: str
    summary: str
    description: str
    fields: tuple[FieldShown, ...]
    body: tuple[TypePart, ...]
    example: str
    answers: tuple[AnswerShown, ...]


@dataclass(frozen=True)
class SchemaShown:
    name: str
    about: str
    type: tuple[TypePart, ...]
    fields: tuple[FieldShown, ...]


@dataclass(frozen=True)
class CallRoom:
    name: str
    about: str
    calls: tuple[CallShown, ...]


@dataclass(frozen=True)
class ApiReference:
    about: str
    rooms: tuple[CallRoom, ...]
    schemas: tuple[SchemaShown, ...]


def read(document: Mapping[str, Any]) -> ApiReference:
    """Tags and calls in the order of the document, schemas by name."""
    components = document["components"]
    calls: defaultdict[str, list[CallShown]] = defaultdict(list)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            calls[operation["tags"][0]].append(_call(method, path, operation, components))
    rooms = (
        CallRoom(tag["name"], tag["description"], tuple(calls[tag["name"]]))
        for tag in document["tags"]
        if tag["name"] in calls
    )
    schemas = (_schema(name, schema) for name, schema in sorted(components["schemas"].items()))
    return ApiReference(document["info"]["description"], tuple(rooms), tuple(schemas))


def _call(method: str, path: str, operation: Mapping[str, Any], components: Any) -> CallShown:
    given = operation.get("requestBody", {}).get("content", {})
    schema = given.get("application/json", {}).get("schema")
    return CallShown(
        id=operation["operationId"],
        method=method.upper(),
        path=path,
        summary=operation["summary"],
        description=operation["description"],
        fields=tuple(map(_parameter, operation.get("parameters", ()))),
        body=tuple(_type(schema)) if schema else (),
        example=_command(method, path, operation, schema, components["schemas"]),
        answers=tuple(_answers(operation["responses"], components["responses"])),
    )


def _parameter(parameter: Mapping[str, Any]) -> FieldShown:
    return FieldShown(
        name=parameter["name"],
        type=tuple(_type(parameter["schema"])),
        about=_about(parameter["schema"], parameter.get("description", "")),
        is_required=parameter.get("required", False),
        place=parameter["in"],
    )


def _answers(
    answers: Mapping[str, Any], shared: Mapping[str, Mapping[str, Any]]
) -> Iterator[AnswerShown]:
    for status, given in sorted(answers.items()):
        answer = shared[given["$ref"].rpartition("/")[2]] if "$ref" in given else given
        parts: list[TypePart] = []
        for media, content in answer.get("content", {}).items():
            suffix = f" as {media}" if media != "application/json" else ""
            shown = _type(content["schema"]) if "schema" in content else (TypePart("bytes"),)
            parts += [TypePart(", or "), *shown, TypePart(suffix)]
        about = answer["description"]
        if about == "Successful Response":
            about = ""
        yield AnswerShown("other" if status == "default" else status, about, tuple(parts[1:]))


def _schema(name: str, schema: Mapping[str, Any]) -> SchemaShown:
    required = schema.get("required", ())
    fields = (
        FieldShown(
            name=field,
            type=tuple(_type(inner)),
            about=_about(inner, inner.get("description", "")),
            is_required=field in required,
        )
        for field, inner in schema.get("properties", {}).items()
    )
    shown = () if "properties" in schema else tuple(_type(schema))
    return SchemaShown(name, schema.get("description", ""), shown, tuple(fields))


def _type(schema: Mapping[str, Any]) -> Iterator[TypePart]:
    """Yield the type in words."""
    match schema:
        case {"$ref": str(reference)}:
            name = reference.rpartition("/")[2]
            yield TypePart(name, name)
        case {"anyOf": choices} | {"oneOf": choices} | {"allOf": choices}:
            for number, choice in enumerate(choices):
                if number:
                    yield TypePart(" or ")
                yield from _type(choice)
        case {"const": value}:
            yield TypePart(json.dumps(value))
        case {"enum": values}:
            yield TypePart(", ".join(map(json.dumps, values)))
        case {"type": "array", **rest}:
            yield TypePart("list of ")
            yield from _type(rest.get("items", {}))
        case {"properties": {"event": {"const": event}, "data": data}}:
            yield TypePart(f"{event} with ")
            yield from _type(data)
        case {"type": "object", "additionalProperties": dict(inner)}:
            yield TypePart("map to ")
            yield from _type(inner)
        case {"type": kind}:
            yield TypePart(schema.get("format", kind))
        case _:
            yield TypePart("anything")


def _about(schema: Mapping[str, Any], description: str) -> str:
    """Describe a field: its meaning, bounds and default."""
    choices = [schema, *schema.get("anyOf", ())]
    bounds = [
        text.format(f"{choice[key]:,}")
        for choice in choices
        for key, text in BOUNDS.items()
        if isinstance(choice.get(key), int | float)
    ]
    if schema.get("default") is not None:
        bounds.append(f"default {json.dumps(schema['default'], ensure_ascii=False)}")
    sentence = f"{', '.join(bounds)}." if bounds else ""
    return " ".join(filter(None, (description, sentence[:1].upper() + sentence[1:])))


def _command(
    method: str, path: str, operation: Mapping[str, Any], schema: Any, schemas: Mapping[str, Any]
) -> str:
    """Return the call as a command, with the fields that its body needs."""
    words = ["curl"]
    if method not in ("get", "post") or (method == "post" and schema is None):
        words.append(f"-X {method.upper()}")
    words.append(f'"$URL{path}"')
    if operation.get("security"):
        words.append('-H "Authorization: Bearer $KEY"')
    if schema is not None:
        words.append(f"--json '{json.dumps(_example(schema, schemas), ensure_ascii=False)}'")
    return " ".join(words)


def _example(schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int = 0) -> Any:
    """Return a value of the schema: of an object the required fields only."""
    match schema:
        case {"examples": [first, *_]}:
            return first
        case {"default": value} if value is not None:
            return value
        case {"$ref": str(reference)} if depth < DEEPEST:
            return _example(schemas[reference.rpartition("/")[2]], schemas, depth + 1)
        case {"anyOf": [first, *_]} | {"oneOf": [first, *_]} | {"allOf": [first, *_]}:
            return _example(first, schemas, depth)
        case {"const": value} | {"enum": [value, *_]}:
            return value
        case {"type": "array", **rest}:
            return [_example(rest.get("items", {}), schemas, depth + 1)]
        case {"type": "object", **rest}:
            properties = rest.get("properties", {})
            needed = rest.get("required", ())
            return {name: _example(properties[name], schemas, depth + 1) for name in needed}
        case {"type": "integer" | "number"}:
            return schema.get("minimum", 1)
        case {"type": "boolean"}:
            return True
        case _:
            return "…"
