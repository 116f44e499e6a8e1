"""Experiments over HTTP, for admins."""

from __future__ import annotations

from guanaco.accounts import Role
from guanaco.experiments import Experiment, ExperimentRequest, ExperimentResults
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.experiments.service import ExperimentService
from guanaco_server.http.routes import Routes


def router(experiments: ExperimentService, auth: Auth) -> Routes:
    routes = Routes(prefix="/api/v1/experiments", tags=["experiments"])
    admin = auth.require(Role.ADMIN)

    @routes.get("")
    async def list_experiments(account: Account = admin) -> list[Experiment]:
        return await experiments.list_all()

    @routes.post("", status_code=201)
    async def create_experiment(request: ExperimentRequest, account: Account = admin) -> Experiment:
        return await experiments.create(account, request)

    @routes.get("/{name}")
    async def read_experiment(name: str, account: Account = admin) -> Experiment:
        return await experiments.find(name)

    @routes.put("/{name}")
    async def change_experiment(
        name: str, request: ExperimentRequest, account: Account = admin
    ) -> Experiment:
        return await experiments.change(account, name, request)

    @routes.post("/{name}/start")
    async def start_experiment(name: str, account: Account = admin) -> Experiment:
        return await experiments.start(name)

    @routes.post("/{name}/stop")
    async def stop_experiment(name: str, account: Account = admin) -> Experiment:
        return await experiments.stop(name)

    @routes.get("/{name}/results")
    async def read_results(name: str, account: Account = admin) -> ExperimentResults:
        return await experiments.results(name)

    return routes
