"""The calls about a developer's webhook. As calls.py, which has all others."""

from __future__ import annotations

from guanaco.calls import API, _get, _post
from guanaco.contract import reader
from guanaco.webhooks import Delivery, Webhook, WebhookRequest, WebhookSet
from guanaco.wire import Call

PATH = "/webhook"


def webhook() -> Call[Webhook]:
    """Your webhook, with its last deliveries; WebhookNotFound when you have none."""
    return _get(PATH, parse=reader(Webhook).from_json)


def set_webhook(url: str, *, feedback_every: int | None = None) -> Call[WebhookSet]:
    """Be told at this URL. Its secret is in this answer only, and only when you had no webhook before."""
    request = WebhookRequest(url=url, feedback_every=feedback_every)
    return Call(
        method="PUT",
        path=f"{API}{PATH}",
        json=request.model_dump(mode="json"),
        parse=reader(WebhookSet).from_json,
    )


def remove_webhook() -> Call[Webhook]:
    """Be told no more, of nothing that still waits either."""
    return Call(method="DELETE", path=f"{API}{PATH}", parse=reader(Webhook).from_json)


def rotate_webhook_secret() -> Call[WebhookSet]:
    """A new secret; for a day the old one signs too."""
    return _post(f"{PATH}/secret", parse=reader(WebhookSet).from_json)


def test_webhook() -> Call[Delivery]:
    """Send a test; ``webhook()`` shows how it went."""
    return _post(f"{PATH}/test", parse=reader(Delivery).from_json)
