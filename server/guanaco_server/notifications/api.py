"""A developer's webhook over HTTP."""

from __future__ import annotations

from guanaco.accounts import Role
from guanaco.webhooks import Delivery, Webhook, WebhookRequest, WebhookSet
from guanaco_server.accounts.auth import Auth
from guanaco_server.accounts.service import Account
from guanaco_server.http.routes import Routes
from guanaco_server.notifications.service import WebhookService


def router(webhooks: WebhookService, auth: Auth) -> Routes:
    routes = Routes(prefix="/api/v1/webhook", tags=["webhooks"])
    developer = auth.require(Role.DEVELOPER)

    @routes.put("")
    async def put_webhook(request: WebhookRequest, account: Account = developer) -> WebhookSet:
        return await webhooks.put(account, request)

    @routes.get("", responses={404: {}})
    async def read_webhook(account: Account = developer) -> Webhook:
        return await webhooks.read(account)

    @routes.delete("")
    async def remove_webhook(account: Account = developer) -> Webhook:
        return await webhooks.remove(account)

    @routes.post("/secret")
    async def rotate_secret(account: Account = developer) -> WebhookSet:
        return await webhooks.rotate(account)

    @routes.post("/test", status_code=202)
    async def test_webhook(account: Account = developer) -> Delivery:
        return await webhooks.test(account)

    return routes
