"""Routes that are worked out when they are first asked for.

FastAPI looks at each route's parameters, body and answer when the route is made: 150 routes take a third of a second, of
which a process that has just started, or a test, needs a few. These know their path and methods at once, which is all
that finding one takes, and the rest when one is called or described.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response, params  # noqa: TID251 - others take Routes
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import compile_path

from guanaco_server.http.bodies import refuse_nul


class LateRoute(APIRoute):
    """A route that FastAPI completes at the first look at anything but its path, methods and name."""

    _completing = threading.RLock()  # the OpenAPI document is written in a thread

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self.path = path
        self.endpoint = endpoint
        self.name = options.get("name") or endpoint.__name__
        self.methods = {method.upper() for method in options.get("methods") or ("GET",)}
        self.path_regex, self.path_format, self.param_convertors = _compiled(path)
        self._options: dict[str, Any] | None = options

    def depend_on(self, dependencies: Sequence[params.Depends]) -> None:
        """Let it ask these before its own."""
        assert self._options is not None, f"{self.path} is complete already"
        own = self._options.get("dependencies") or ()
        self._options = {**self._options, "dependencies": [*dependencies, *own]}

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request; a body with a NUL, which PostgreSQL cannot store, is refused before."""
        answer = super().get_route_handler()
        if self.body_field is None:
            return answer

        async def checked(request: Request) -> Response:
            try:
                refuse_nul(await request.body())
            except ClientDisconnect:  # as FastAPI does, which reads the body after this
                raise HTTPException(400) from None
            return await answer(request)

        return checked

    def __getattr__(self, name: str) -> Any:
        """Python asks this for what is not there yet."""
        if name.startswith("__"):
            raise AttributeError(name)
        with self._completing:
            if (options := self._options) is not None:
                self._options = None
                super().__init__(self.path, self.endpoint, **options)
            if name not in self.__dict__:
                raise AttributeError(name)
            return self.__dict__[name]


@cache
def _compiled(path: str) -> tuple[Any, str, dict[str, Any]]:
    """Compile a path's expression, once in a process: an app's routes are made of the same paths as another's."""
    return compile_path(path)


class Routes(APIRouter):
    """A room's routes. ``add_routes`` puts them into an app."""

    def __init__(
        self,
        prefix: str = "",
        tags: Sequence[str] = (),
        *,
        route_class: type[LateRoute] = LateRoute,
        include_in_schema: bool = True,
    ) -> None:
        super().__init__(
            prefix=prefix,
            tags=list(tags),
            route_class=route_class,
            include_in_schema=include_in_schema,
        )


def add_routes(app: FastAPI, routes: Routes, *dependencies: params.Depends) -> None:
    """Put them into the app as they are: ``include_router`` would work each out a second time."""
    for route in routes.routes:
        assert isinstance(route, LateRoute)
        if dependencies:
            route.depend_on(dependencies)
        app.router.routes.append(route)
