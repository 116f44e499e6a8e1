"""The form that submits a model."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import ValidationError

from guanaco.accounts import Role
from guanaco.errors.validation import problems_of
from guanaco.prompts import PRESETS
from guanaco.submissions import GenerationParams, Quantization, SubmissionRequest, WeightDtype
from guanaco_server.web import tokens
from guanaco_server.web.guards import Member
from guanaco_server.web.rendering import see_other
from guanaco_server.web.room import WebRoom

PARAMS = tuple(name for name in GenerationParams.model_fields if name != "stopping_words")
STOPPING_WORDS = "stopping_words"


def add_routes(routes: APIRouter, web: WebRoom) -> None:
    developer = web.guards.member(Role.DEVELOPER)

    @routes.get("/submissions/new")
    async def show_form(request: Request, member: Member = developer) -> Response:
        return _show(web, request, _defaults(), {}, 200)

    @routes.post("/submissions/new")
    async def submit(request: Request, member: Member = developer) -> Response:
        fields = _defaults() | member.fields
        try:
            wanted = SubmissionRequest.model_validate(_request(fields))
        except ValidationError as error:
            problems = {place.removeprefix("params."): text for place, text in problems_of(error)}
            return _show(web, request, fields, problems, 422)
        key = member.fields.get("once") or None
        submission = await web.submissions.submit(member.account, wanted, key and key[:128])
        return see_other(f"/submissions/{submission.id}")


def _show(
    web: WebRoom, request: Request, fields: dict[str, str], problems: dict[str, str], status: int
) -> Response:
    return web.pages.show(
        request,
        "submit.html",
        status=status,
        fields=fields,
        problems=problems,
        params={name: GenerationParams.model_fields[name] for name in PARAMS},
        formatters=list(PRESETS),
        dtypes=list(WeightDtype),
        quantizations=list(Quantization),
    )


def _defaults() -> dict[str, str]:
    """The form as it first comes; ``once`` makes a double click submit once."""
    defaults = GenerationParams()
    return {
        "repo": "",
        "revision": "",
        "name": "",
        "formatter": next(iter(PRESETS)),
        "dtype": WeightDtype.AUTO.value,
        "quantization": "",
        STOPPING_WORDS: "\n".join(word.replace("\n", "\\n") for word in defaults.stopping_words),
        "once": tokens.new_cookie(),
    } | {name: f"{getattr(defaults, name):g}" for name in PARAMS}


def _request(fields: dict[str, str]) -> dict[str, Any]:
    """As the API would get it: what is empty is left out."""
    words = [line.replace("\\n", "\n") for line in fields[STOPPING_WORDS].split("\n") if line]
    params: dict[str, Any] = {name: fields[name].strip() for name in PARAMS if fields[name].strip()}
    wanted: dict[str, Any] = {
        "repo": fields["repo"].strip(),
        "params": params | {STOPPING_WORDS: words},
        "formatter": PRESETS.get(fields["formatter"], fields["formatter"]),
        "dtype": fields["dtype"],
    }
    for name in ("revision", "name", "quantization"):
        if fields[name].strip():
            wanted[name] = fields[name].strip()
    return wanted
