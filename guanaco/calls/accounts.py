"""Calls about accounts: API keys, webhooks, and what admins may do with users' data; alerts and the service level."""

from __future__ import annotations

from guanaco.accounts import ApiKey, AuditPage, CreatedKey, Identity, KeyRequest, Role
from guanaco.alerts import AlertMessage, Alerts, ServiceLevel
from guanaco.calls.wire import API, Call, get, post, put, segment
from guanaco.contract import reader
from guanaco.feedback import Erasure, ErasureRequest
from guanaco.quotas import Quota, QuotaOverride
from guanaco.webhooks import Delivery, Webhook, WebhookRequest, WebhookSet

WEBHOOK = "/webhook"


def me() -> Call[Identity]:
    """Return the account of the key."""
    return get("/me", Identity)


def create_key(name: str, role: Role | str, *, may_choose_models: bool = False) -> Call[CreatedKey]:
    """A new key; its secret is in this answer only. A backend's may be allowed to choose its models. Admin."""
    request = KeyRequest(name=name, role=Role(role), may_choose_models=may_choose_models)
    return post("/keys", CreatedKey, request)


def keys() -> Call[list[ApiKey]]:
    """Every key, without its secret. Admin."""
    return get("/keys", list[ApiKey])


def revoke_key(key_id: str) -> Call[ApiKey]:
    """Revoke a key at once. Admin."""
    return post(f"/keys/{segment(key_id)}/revoke", ApiKey)


def quota(account: str | None = None) -> Call[Quota]:
    """Your limits and what you have used of them; of another developer for an admin."""
    return get(f"/accounts/{segment(account)}/quota" if account else "/quota", Quota)


def set_quota(
    account: str,
    *,
    per_hour: int | None = None,
    live: int | None = None,
    in_progress: int | None = None,
    artifact_bytes: int | None = None,
) -> Call[Quota]:
    """Set a developer's limits, all anew: None is the platform's own, 0 no limit. Admin."""
    override = QuotaOverride(
        per_hour=per_hour, live=live, in_progress=in_progress, artifact_bytes=artifact_bytes
    )
    return put(f"/accounts/{segment(account)}/quota", Quota, override)


def webhook() -> Call[Webhook]:
    """Your webhook, with its last deliveries; WebhookNotFound when you have none."""
    return get(WEBHOOK, Webhook)


def set_webhook(url: str, *, feedback_every: int | None = None) -> Call[WebhookSet]:
    """Be told at this URL. Its secret is in this answer only, and only when you had no webhook before."""
    request = WebhookRequest(url=url, feedback_every=feedback_every)
    return put(WEBHOOK, WebhookSet, request, is_repeatable=False)


def remove_webhook() -> Call[Webhook]:
    """Be told no more, of nothing that still waits either."""
    return Call(method="DELETE", path=f"{API}{WEBHOOK}", parse=reader(Webhook).from_json)


def rotate_webhook_secret() -> Call[WebhookSet]:
    """A new secret; for a day the old one signs too."""
    return post(f"{WEBHOOK}/secret", WebhookSet)


def test_webhook() -> Call[Delivery]:
    """Send a test; ``webhook()`` shows how it went."""
    return post(f"{WEBHOOK}/test", Delivery)


def alerts() -> Call[Alerts]:
    """Return the alerts that fire, the values that each compares now, and the last messages to the operator's webhook. Admin."""
    return get("/alerts", Alerts)


def test_alerts() -> Call[AlertMessage]:
    """Send a test to the operator's webhook; ``alerts()`` shows how it went. Admin."""
    return post("/alerts/test", AlertMessage)


def service_level() -> Call[ServiceLevel]:
    """Return how well the platform keeps its service level, and how fast the error budget burns. Admin."""
    return get("/slo", ServiceLevel)


def erase_user(user_id: str, *, account: str | None = None) -> Call[Erasure]:
    """Everything of one user of a backend, for good. Admin."""
    request = ErasureRequest(user_id=user_id, account=account)
    return post("/users/erase", Erasure, request)


def audit(*, cursor: str | None = None, limit: int = 100) -> Call[AuditPage]:
    """Return who read or erased users' raw data, newest first. Admin."""
    params = {"limit": str(limit)} | ({"cursor": cursor} if cursor else {})
    return get("/audit", AuditPage, params=params)
