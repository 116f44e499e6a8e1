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
    """Return the account of the key.

    Returns:
        The Identity.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    return get("/me", Identity)


def create_key(name: str, role: Role | str, *, may_choose_models: bool = False) -> Call[CreatedKey]:
    """Make a new key, whose secret is in this answer only. A backend's may be allowed to choose its models. Admin.

    Args:
        name: The account's name; it is made if there is none.
        role: What the key may do.
        may_choose_models: Whether a backend's key may name the submission of a conversation.

    Returns:
        The CreatedKey.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    request = KeyRequest(name=name, role=Role(role), may_choose_models=may_choose_models)
    return post("/keys", CreatedKey, request)


def keys() -> Call[list[ApiKey]]:
    """List every key, without its secret. Admin.

    Returns:
        A list of ApiKey objects.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    return get("/keys", list[ApiKey])


def revoke_key(key_id: str) -> Call[ApiKey]:
    """Revoke a key at once. Admin.

    Args:
        key_id: The key's id.

    Returns:
        The ApiKey, as it is then.

    Raises:
        KeyNotFound: There is no such key.
    """
    return post(f"/keys/{segment(key_id)}/revoke", ApiKey)


def quota(account: str | None = None) -> Call[Quota]:
    """Read your limits and what you have used of them; those of another developer as an admin.

    Args:
        account: Another developer's name, for an admin; None for your own.

    Returns:
        The Quota, as it is then.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    return get(f"/accounts/{segment(account)}/quota" if account else "/quota", Quota)


def set_quota(
    account: str,
    *,
    per_hour: int | None = None,
    live: int | None = None,
    in_progress: int | None = None,
    artifact_bytes: int | None = None,
) -> Call[Quota]:
    """Replace all limits of a developer: None is the platform's own, 0 no limit. Admin.

    Args:
        account: The developer's name.
        per_hour: Submissions and redeploys within an hour.
        live: Submissions that are live.
        in_progress: Submissions in the pipeline.
        artifact_bytes: Bytes of weights.

    Returns:
        The Quota, as it is then.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    override = QuotaOverride(
        per_hour=per_hour, live=live, in_progress=in_progress, artifact_bytes=artifact_bytes
    )
    return put(f"/accounts/{segment(account)}/quota", Quota, override)


def webhook() -> Call[Webhook]:
    """Read your webhook, with its last deliveries.

    Returns:
        The Webhook, as it is then.

    Raises:
        WebhookNotFound: You have none.
    """
    return get(WEBHOOK, Webhook)


def set_webhook(url: str, *, feedback_every: int | None = None) -> Call[WebhookSet]:
    """Have the platform tell you at this URL. The secret is in this answer only, and only when you had no webhook before.

    Args:
        url: Where the webhook's messages go.
        feedback_every: After how many ratings there is a message.

    Returns:
        The WebhookSet.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    request = WebhookRequest(url=url, feedback_every=feedback_every)
    return put(WEBHOOK, WebhookSet, request, is_repeatable=False)


def remove_webhook() -> Call[Webhook]:
    """Remove your webhook. What still waits is not sent either.

    Returns:
        The Webhook, as it is then.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    return Call(method="DELETE", path=f"{API}{WEBHOOK}", parse=reader(Webhook).from_json)


def rotate_webhook_secret() -> Call[WebhookSet]:
    """Make a new secret. For a day the old one signs too.

    Returns:
        The WebhookSet.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    return post(f"{WEBHOOK}/secret", WebhookSet)


def test_webhook() -> Call[Delivery]:
    """Send a test; ``webhook()`` shows how it went.

    Returns:
        The Delivery.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    return post(f"{WEBHOOK}/test", Delivery)


def alerts() -> Call[Alerts]:
    """Return the alerts that fire, the values that each compares now, and the last messages to the operator's webhook. Admin.

    Returns:
        The Alerts.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    return get("/alerts", Alerts)


def test_alerts() -> Call[AlertMessage]:
    """Send a test to the operator's webhook; ``alerts()`` shows how it went. Admin.

    Returns:
        The AlertMessage.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    return post("/alerts/test", AlertMessage)


def service_level() -> Call[ServiceLevel]:
    """Return how well the platform keeps its service level, and how fast the error budget burns. Admin.

    Returns:
        The ServiceLevel.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    return get("/slo", ServiceLevel)


def erase_user(user_id: str, *, account: str | None = None) -> Call[Erasure]:
    """Erase everything of one user of a backend, for good. Admin.

    Args:
        user_id: The app's own id of the user.
        account: The backend's account; None where only one backend has such a user.

    Returns:
        The Erasure.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    request = ErasureRequest(user_id=user_id, account=account)
    return post("/users/erase", Erasure, request)


def audit(*, cursor: str | None = None, limit: int = 100) -> Call[AuditPage]:
    """Return who read or erased users' raw data, newest first. Admin.

    Args:
        cursor: The ``next_cursor`` of the page before; None for the first page.
        limit: The most that are returned.

    Returns:
        The AuditPage.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    params = {"limit": str(limit)} | ({"cursor": cursor} if cursor else {})
    return get("/audit", AuditPage, params=params)
