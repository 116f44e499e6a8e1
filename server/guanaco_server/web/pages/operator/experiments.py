"""A/B experiments, for the operator: all of them, what came of each, and starting and stopping one."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from guanaco.accounts import Role
from guanaco.errors import NotFound
from guanaco.experiments import Experiment, ExperimentState, Variant
from guanaco_server.http.routes import Routes
from guanaco_server.web.access.guards import Member
from guanaco_server.web.rendering import see_other
from guanaco_server.web.room import WebRoom


def add_routes(routes: Routes, web: WebRoom) -> None:
    admin = web.guards.member(Role.ADMIN)
    moves = {"start": web.experiments.start, "stop": web.experiments.stop}

    @routes.get("/admin/experiments")
    async def list_experiments(request: Request, member: Member = admin) -> Response:
        found = await web.experiments.list_all()
        return web.pages.show(request, "admin/experiments.html", experiments=found)

    @routes.get("/admin/experiments/{name}")
    async def show_one(request: Request, name: str, member: Member = admin) -> Response:
        experiment = await web.experiments.find(name)
        results = await web.experiments.results(name)
        return web.pages.show(
            request,
            "admin/experiment.html",
            experiment=experiment,
            move=_move_of(experiment),
            rows=list(zip(experiment.variants, results.variants, strict=True)),
            changes=changes_of,
        )

    @routes.get("/admin/experiments/{name}/{move}")
    async def ask(request: Request, name: str, move: str, member: Member = admin) -> Response:
        experiment = await web.experiments.find(name)
        if move != _move_of(experiment):
            raise NotFound("There is no such page.")
        return web.pages.show(
            request, "admin/experiment_move.html", experiment=experiment, move=move
        )

    @routes.post("/admin/experiments/{name}/{move}")
    async def do(name: str, move: str, member: Member = admin) -> Response:
        if move not in moves:
            raise NotFound("There is no such page.")
        await moves[move](name)
        return see_other(f"/admin/experiments/{name}")


def _move_of(experiment: Experiment) -> str | None:
    """Return the action that is possible now; None for a state that only a newer version knows."""
    if experiment.state is ExperimentState.RUNNING:
        return "stop"
    return None if experiment.state.is_unknown else "start"


def changes_of(variant: Variant) -> list[str]:
    """Say what is different for a conversation with this variant."""
    changes = [f"model {variant.model}"] if variant.model else []
    if variant.formatter is not None:
        changes.append(f"prompt of the kind {variant.formatter.kind}")
    if variant.params is not None:
        chosen = variant.params.model_dump(exclude_none=True)
        changes += [f"{name} {value}" for name, value in chosen.items()]
    return changes or ["nothing: what the others are compared with"]
