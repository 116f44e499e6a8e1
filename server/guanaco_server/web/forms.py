"""Forms as browsers post them, and the proof that a page of ours sent them."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from fastapi import Request

from guanaco.errors import Forbidden, InvalidInput
from guanaco_server.web.access.viewer import is_form_token

MEDIA_TYPE = "application/x-www-form-urlencoded"
MOST_FIELDS = 100
KEPT = "kept."  # before the name of a field that signing in gives back
NEVER_KEPT = ("form_token", "hub_token", "key")  # secrets
TOKEN_FIELD = "form_token"  # noqa: S105 - a field's name


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields; of several of one name the last. Line ends are made \\n."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != MEDIA_TYPE:
        raise InvalidInput(f"A form is sent as {MEDIA_TYPE}.")
    try:
        body = (await request.body()).decode()
        pairs = parse_qsl(body, keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise InvalidInput("The form cannot be read.") from None
    return {name: value.replace("\r\n", "\n") for name, value in pairs}


def require_same_origin(request: Request) -> None:
    """Refuse a form from another site, by Fetch Metadata, which browsers send over https and to localhost, or else by Origin."""
    if (site := request.headers.get("sec-fetch-site")) is not None:
        is_ours = site == "same-origin"
    else:
        origin = request.headers.get("origin", "")
        is_ours = urlsplit(origin).netloc == request.headers.get("host", "").lower() != ""
    if not is_ours:
        raise _cross_site_request()


class FormKept(Exception):
    """A form that came after its session had ended. ``path`` is where it is sent again."""

    def __init__(self, path: str, fields: dict[str, str]) -> None:
        super().__init__(path)
        self.path = path
        self.fields = keepable(fields)


def keepable(fields: dict[str, str]) -> dict[str, str]:
    """Leave out secrets."""
    return {name: value for name, value in fields.items() if name not in NEVER_KEPT}


def kept_of(fields: dict[str, str]) -> dict[str, str]:
    """Return the fields of another form that the form to sign in carries."""
    kept = {
        name.removeprefix(KEPT): value for name, value in fields.items() if name.startswith(KEPT)
    }
    return keepable(kept)


def has_token(fields: dict[str, str], cookie: str) -> bool:
    return bool(cookie) and is_form_token(fields.get(TOKEN_FIELD, ""), cookie)


def require_token(fields: dict[str, str], cookie: str) -> None:
    if not has_token(fields, cookie):
        raise _cross_site_request()


def _cross_site_request() -> Forbidden:
    return Forbidden(
        "This form did not come from a page of yours here.",
        hint="Open the page again and send the form from there.",
    )
