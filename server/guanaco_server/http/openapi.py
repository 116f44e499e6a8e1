"""The OpenAPI document: what FastAPI writes of the routes, completed by what it cannot know.

FastAPI writes parameters, bodies and answers, and which keys a guard takes. This module adds the errors, each in the
form of its path, the roles of a key, and names of operations that generated clients can show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.openapi.utils import get_openapi
from fastapi.routing import RouteContext, iter_route_contexts
from pydantic import BaseModel, TypeAdapter
from starlette.routing import BaseRoute

from guanaco.errors import error_classes
from guanaco_server.http.errors import ErrorForm, ErrorForms, status_of_class

REFERENCE = "#/components/schemas/{model}"
OF_FASTAPI = ("HTTPValidationError", "ValidationError")  # what it says a 422 is; ours are ErrorBody
ALWAYS = frozenset((500, 503))
WITH_KEY = frozenset((401, 403))
SENTENCES = {
    401: "No key, or one that is wrong or revoked.",
    403: "The key's role does not allow this.",
    404: "It does not exist, or the caller may not see it.",
    409: "The present state does not allow it.",
    413: "The request's body is over the limit.",
    422: "A value is missing, unknown or out of range.",
    429: "Too often. `Retry-After` says when to try again.",
    500: "An unforeseen error, logged under the number in the sentence.",
    501: "This server cannot write that format.",
    503: "Trying again later can help: no model can answer now, or the platform cannot. `Retry-After` says when.",
    504: "A model answered too late. `Retry-After` says when to try again.",
}
OTHER = "Faults of the HTTP request itself (400, 405, 408, 431)."
HEADERS = {
    401: ("WWW-Authenticate", "`Bearer`"),
    409: ("Retry-After", "Seconds, where waiting may help."),
    429: ("Retry-After", "Seconds."),
    503: ("Retry-After", "Seconds."),
    504: ("Retry-After", "Seconds."),
}
ABOUT_REQUESTS = "guanaco.errors.requests."  # the package of the errors that an answer may name


def event_schema(events: Mapping[str, type[BaseModel]]) -> dict[str, Any]:
    """Describe a stream of server-sent events: the names of its events, and the JSON that is the data of each."""
    schemas: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
    for name, model in events.items():
        schema = schema_of(model)
        definitions |= schema.pop("$defs")
        schemas.append(
            {
                "title": f"{name} event",
                "type": "object",
                "properties": {"event": {"type": "string", "const": name}, "data": schema},
                "required": ["event", "data"],
            }
        )
    return {
        "description": "Server-sent events. This is one of them: its name, and the JSON of its data.",
        "oneOf": schemas,
        "$defs": definitions,
    }


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return a reference to the model; its definition is under ``$defs``, from where ``write_document`` takes it."""
    name = model.__name__
    schema = TypeAdapter(model).json_schema(ref_template=REFERENCE, mode="serialization")
    definitions = schema.pop("$defs", {})
    return {"$ref": REFERENCE.format(model=name), "$defs": {**definitions, name: schema}}


def write_document(
    app: FastAPI,
    routes: Sequence[BaseRoute],
    forms: ErrorForms,
    *,
    description: str,
    tags: Mapping[str, str],
    honours_keys: Callable[[str], bool],
) -> dict[str, Any]:
    """Describe these routes, which may be more than the app's own. ``tags`` are described in the order of the reference.

    ``honours_keys`` says whether a POST to a path honours an Idempotency-Key, where its route does not name the header.
    """
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=description,
        routes=routes,
        tags=[{"name": name, "description": sentence} for name, sentence in tags.items()],
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in OF_FASTAPI:
        schemas.pop(name, None)
    for context in iter_route_contexts(routes):
        if not getattr(context, "include_in_schema", False):
            continue
        form = forms.of(str(context.path))
        for method in context.methods or ():
            operation = document["paths"][context.path_format][method.lower()]
            _complete(operation, context, method, form, components)
            is_keyed = method == "POST" and _guard(context.dependant) is not None
            if is_keyed and honours_keys(str(context.path_format)):
                _take_idempotency_key(operation)
    _hoist(document, schemas)
    return document


def _complete(
    operation: dict[str, Any],
    context: RouteContext,
    method: str,
    form: ErrorForm,
    components: dict[str, Any],
) -> None:
    guard = _guard(context.dependant)
    roles = sorted(guard.roles) if guard else []
    tag, name = context.tags[0], str(context.name)
    operation["operationId"] = f"{tag}_{name}".replace(" ", "_")
    operation["summary"] = context.summary or name.replace("_", " ").capitalize()
    key = f"A key with the role {' or '.join(roles)}." if roles else "No key."
    if guard:
        operation["security"] = [{name: []} for name in guard.schemes]
        components.setdefault("securitySchemes", {}).update(guard.schemes)
    operation["description"] = "\n\n".join(filter(None, (operation.get("description"), key)))
    responses = components.setdefault("responses", {})
    answers = operation["responses"]
    if answers.get("422", {}).get("description") == "Validation Error":
        del answers["422"]
    declared = {int(status) for status in answers if status.isdigit()}
    bare = {
        status for status in declared if status >= 400 and "content" not in answers[str(status)]
    }
    statuses = (_statuses(operation, method, bool(roles)) - declared) | bare
    for status in sorted(form.statuses.get(status, status) for status in statuses):
        answers[str(status)] = _error(status, form, responses)
    answers["default"] = _error(None, form, responses)


def _take_idempotency_key(operation: dict[str, Any]) -> None:
    """Add the header (idempotency/requests.py), unless its route names it."""
    parameters = operation.setdefault("parameters", [])
    if not any(one["name"].lower() == "idempotency-key" for one in parameters):
        parameters.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "schema": {"type": "string", "minLength": 1, "maxLength": 255},
                "description": "The same request with the same key gets the first answer again, for a day.",
            }
        )


def _guard(dependant: Dependant) -> Any:
    """Return the guard that `Auth` made for the route; None for a public one."""
    for inner in dependant.dependencies:
        if found := inner.call if hasattr(inner.call, "roles") else _guard(inner):
            return found
    return None


def _statuses(operation: dict[str, Any], method: str, has_key: bool) -> set[int]:
    """Return the errors that an operation like this may answer with. A route declares what goes beyond them."""
    found = set(ALWAYS)
    if has_key:
        found |= WITH_KEY
    if operation.get("parameters"):
        found |= {404, 422}
    if method != "GET":
        found |= {404, 409, 413, 422, 429}
    return found


def _error(status: int | None, form: ErrorForm, responses: dict[str, Any]) -> dict[str, str]:
    """Return a reference to the answer, which is written among ``responses`` the first time."""
    name = f"{form.body.__name__}{status or 'Other'}"
    if name not in responses:
        meant = next((ours for ours, theirs in form.statuses.items() if theirs == status), status)
        responses[name] = {
            "description": _sentence(meant),
            "content": {"application/json": {"schema": schema_of(form.body)}},
        }
        if meant in HEADERS:
            header, text = HEADERS[meant]
            described = {"description": text, "schema": {"type": "string"}}
            responses[name]["headers"] = {header: described}
    return {"$ref": f"#/components/responses/{name}"}


def _sentence(status: int | None) -> str:
    if status is None:
        return OTHER
    codes = sorted(
        code
        for code, kind in error_classes().items()
        if kind.__module__.startswith(ABOUT_REQUESTS) and status_of_class(kind) == status
    )
    which = f" Codes: {', '.join(f'`{code}`' for code in codes)}." if codes else ""
    return SENTENCES[status] + which


def _hoist(node: Any, schemas: dict[str, Any]) -> None:
    """Move every ``$defs`` in the document to its schemas. Two different models of one name are an error.

    A default that is an object becomes an example: openapi-python-client leaves a call out whose body has such a default.
    """
    if isinstance(node, dict):
        if "oneOf" in node and isinstance(node.get("default"), dict):
            node["examples"] = [node.pop("default")]
        for name, schema in node.pop("$defs", {}).items():
            if schemas.setdefault(name, schema) != schema:
                raise ValueError(f"two different schemas are called {name}")
    children: Iterable[Any] = node.values() if isinstance(node, dict) else node
    for child in list(children):
        if isinstance(child, dict | list):
            _hoist(child, schemas)
