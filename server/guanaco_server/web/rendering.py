"""Templates to answers: every page goes through here, and leaves with the headers that keep it a page of ours.

Templates escape everything, know no undefined name, and hold no script or style of their own: the
Content-Security-Policy would not run it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from guanaco.errors import GuanacoError
from guanaco_server.http.errors import status_of
from guanaco_server.runtime.clock import Clock
from guanaco_server.web import words
from guanaco_server.web.access.viewer import NOBODY, Viewer
from guanaco_server.web.assets import Assets
from guanaco_server.web.views import highlighting

TEMPLATES = Path(__file__).parent / "templates"
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # a form's Origin header would be empty under no-referrer
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "private, no-cache",
    "Vary": "Cookie",
}
FILTERS = (
    words.tone,
    words.spoken,
    words.percent,
    words.count,
    words.size,
    words.milliseconds,
    words.seconds,
    words.decimal,
    words.headline,
    words.prose,
    words.spaced_percents,
    highlighting.marked,
    highlighting.excerpt,
)
TIMES = (words.moment, words.day, words.clock)


class Pages:
    def __init__(self, assets: Assets, clock: Clock, compiled: BytecodeCache | None = None) -> None:
        """``compiled`` is for whoever makes many of them: a template is then read when it is first shown, and compiled once."""
        self._clock = clock
        self._environment = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            auto_reload=False,
            bytecode_cache=compiled,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update({fn.__name__: fn for fn in FILTERS})
        self._environment.filters.update({fn.__name__: _time_filter(fn) for fn in TIMES})
        self._environment.filters["ago"] = _time_filter(
            lambda at: words.ago(at, clock.now()), "ago"
        )
        self._environment.globals["asset"] = assets.url
        for name in self._environment.list_templates() if compiled is None else ():
            self._environment.get_template(name)  # compiled now, not while the first visitor waits

    def show(
        self, request: Request, template: str, *, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """The page; who looks at it is known from the request."""
        viewer: Viewer = getattr(request.state, "viewer", NOBODY)
        text = self._environment.get_template(template).render(
            viewer=viewer,
            path=request.url.path,
            now=self._clock.now(),
            is_given_back=getattr(request.state, "is_given_back", False),
            **values,
        )
        return HTMLResponse(text, status_code=status, headers=SECURITY_HEADERS)

    def fragment(self, template: str, **values: Any) -> Markup:
        """A part of a page that is the same for everybody."""
        return Markup(self._environment.get_template(template).render(**values))  # noqa: S704 - the template escapes

    def error(self, request: Request, error: GuanacoError) -> HTMLResponse:
        """Render an error as a page: its sentence, and what to do next."""
        status = status_of(error)
        viewer: Viewer = getattr(request.state, "viewer", NOBODY)
        hint = error.hint if viewer.is_developer else words.without_commands(error.hint)
        return self.show(request, "error.html", status=status, error=error, hint=hint, code=status)


def _time_filter(
    say: Callable[[datetime], str] | Callable[[datetime | None], str], kind: str | None = None
) -> Callable[[datetime | None], Markup]:
    """Make a filter that says a time in UTC, as an element that times.js says in the reader's own zone."""
    name = kind or say.__name__

    def show(at: datetime | None) -> Markup:
        if at is None:
            return Markup(say(at))  # type: ignore[arg-type]  # noqa: S704 - a word of ours
        element = Markup('<time datetime="{}" data-as="{}">{}</time>')
        return element.format(at.isoformat(), name, say(at))

    return show


def see_other(path: str) -> Response:
    """After a form: reloading what comes next repeats nothing."""
    return RedirectResponse(path, status_code=303, headers=SECURITY_HEADERS)
