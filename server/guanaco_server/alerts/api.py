"""Alerts and the service level over HTTP, for admins."""

from __future__ import annotations

from guanaco.accounts import Role
from guanaco.alerts import AlertMessage, Alerts, ServiceLevel
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.alerts.service import AlertService
from guanaco_server.http.routes import Routes


def router(alerts: AlertService, auth: Auth) -> Routes:
    routes = Routes(prefix="/api/v1", tags=["alerts"])
    admin = auth.require(Role.ADMIN)

    @routes.get("/alerts")
    async def read_alerts(account: Account = admin) -> Alerts:
        return await alerts.read()

    @routes.post("/alerts/test", status_code=202)
    async def test_alerts(account: Account = admin) -> AlertMessage:
        return await alerts.test()

    @routes.get("/slo")
    async def read_service_level(account: Account = admin) -> ServiceLevel:
        return await alerts.service_level()

    return routes
