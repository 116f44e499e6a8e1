"""Reports whether this process is alive, and whether it can take work."""

from __future__ import annotations

from collections.abc import Callable

from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from guanaco_server.database.database import Database
from guanaco_server.database.schema import is_current
from guanaco_server.http.errors import RETRY_AFTER_S
from guanaco_server.http.routes import Routes

STALE_S = 15.0  # the routing snapshot is remade every second


class Readiness(BaseModel):
    status: str = Field(description="`ok`, or what keeps this process from taking work.")


class Health:
    """``routing_age_s`` is None in a process that routes nothing."""

    def __init__(self, database: Database, routing_age_s: Callable[[], float] | None) -> None:
        self._database = database
        self._routing_age_s = routing_age_s
        self._is_schema_current = False  # once it is, it stays so: migrations only go forward

    async def problem(self) -> str | None:
        """Return in a few words why this process cannot take work; None if it can."""
        if not await self._database.is_up():
            return "database down"
        self._is_schema_current = self._is_schema_current or await is_current(self._database)
        if not self._is_schema_current:
            return "database not migrated"
        if self._routing_age_s is not None and self._routing_age_s() > STALE_S:
            return "routing snapshot stale"
        return None


def router(health: Health) -> Routes:
    routes = Routes(tags=["health"])

    @routes.get("/healthz")
    async def is_alive() -> dict[str, str]:
        """Answers while the process does; it asks nobody else, so that a database's outage restarts nothing."""
        return {"status": "ok"}

    @routes.get("/readyz", responses={503: {"model": Readiness}}, response_model=Readiness)
    async def is_ready() -> JSONResponse:
        """503 while the database does not answer, lacks migrations, or the routing snapshot is old."""
        if (problem := await health.problem()) is None:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": problem}, 503, {"Retry-After": RETRY_AFTER_S[503]})

    return routes
