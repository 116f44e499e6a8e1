"""The form that submits a model."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response
from pydantic import SecretStr, ValidationError

from guanaco.accounts import Role
from guanaco.errors import InvalidInput, QuotaExceeded, TooManySubmissions
from guanaco.parameters import GenerationParams, parameters
from guanaco.prompts import CHAT_TEMPLATE, PRESETS, ChatTemplatePrompt
from guanaco.submissions import Quantization, SubmissionRequest, WeightDtype
from guanaco_server.http.errors import status_of
from guanaco_server.http.routes import Routes
from guanaco_server.submissions.service import request_hash
from guanaco_server.web.access.guards import Member
from guanaco_server.web.access.viewer import new_cookie
from guanaco_server.web.field_problems import field_problems, in_short
from guanaco_server.web.rendering import see_other
from guanaco_server.web.room import WebRoom

FORMATTERS = {**PRESETS, CHAT_TEMPLATE: ChatTemplatePrompt()}


def add_routes(routes: Routes, web: WebRoom) -> None:
    developer = web.guards.member(Role.DEVELOPER)
    sender = web.guards.member(Role.DEVELOPER, keeps_form=True)

    @routes.get("/submissions/new")
    async def show_form(request: Request, member: Member = developer) -> Response:
        return _show(web, request, _defaults(), {}, 200)

    @routes.post("/submissions/new")
    async def submit(request: Request, member: Member = sender) -> Response:
        fields = _defaults() | member.fields
        if member.is_given_back:
            return _show(web, request, fields, {}, 200)
        try:
            wanted = SubmissionRequest.model_validate(_request(fields))
        except ValidationError as error:
            return _show(web, request, fields, field_problems(error), 422)
        try:
            submission = await web.submissions.submit(
                member.account, wanted, _key(member.fields, wanted), hub_token_of(member.fields)
            )
        except InvalidInput as error:
            return _show(web, request, fields, {"hub_token": error.detail}, status_of(error))
        except (TooManySubmissions, QuotaExceeded) as error:
            return _show(web, request, fields, {"": error.detail}, status_of(error))
        return see_other(f"/submissions/{submission.id}")


def hub_token_of(fields: dict[str, str]) -> SecretStr | None:
    """Return the developer's own Hub token, if the form has one. No page shows it again."""
    given = fields.get("hub_token", "").strip()
    return SecretStr(given) if given else None


def _key(fields: dict[str, str], wanted: SubmissionRequest) -> str | None:
    """Return the key that makes a double click submit once. A form that was changed and sent again, by Back, is another request."""
    once = fields.get("once")
    return f"{once[:63]}.{request_hash(wanted)}" if once else None


def _show(
    web: WebRoom, request: Request, fields: dict[str, str], problems: dict[str, str], status: int
) -> Response:
    return web.pages.show(
        request,
        "submit.html",
        status=status,
        fields=fields,
        problems=problems,
        in_short=in_short(problems),
        params=parameters(),
        formatters=list(FORMATTERS),
        dtypes=list(WeightDtype),
        quantizations=list(Quantization),
    )


def _defaults() -> dict[str, str]:
    """Return the fields of an empty form. ``once`` makes a double click submit once."""
    defaults = GenerationParams()
    return {
        "repo": "",
        "revision": "",
        "name": "",
        "formatter": next(iter(PRESETS)),
        "dtype": WeightDtype.AUTO.value,
        "quantization": "",
        "show_prompt": "",
        "once": new_cookie(),
    } | {one.name: _written(getattr(defaults, one.name)) for one in parameters()}


def _written(value: Any) -> str:
    """Return a parameter's value as people write it; a list has one item a line."""
    if isinstance(value, list):
        return "\n".join(word.replace("\n", "\\n") for word in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _request(fields: dict[str, str]) -> dict[str, Any]:
    """Return the request that the API would get. Empty fields are left out."""
    params: dict[str, Any] = {}
    for one in parameters():
        if one.is_list:
            lines = fields[one.name].split("\n")
            params[one.name] = [line.replace("\\n", "\n") for line in lines if line]
        elif text := fields[one.name].strip():
            params[one.name] = text
    wanted: dict[str, Any] = {
        "repo": fields["repo"].strip(),
        "params": params,
        "formatter": FORMATTERS.get(fields["formatter"], fields["formatter"]),
        "dtype": fields["dtype"],
        "show_prompt": fields["show_prompt"] == "yes",
    }
    for name in ("revision", "name", "quantization"):
        if fields[name].strip():
            wanted[name] = fields[name].strip()
    return wanted
