"""Webhooks: what a developer's own server is told, and how it knows that the platform said it.

Signed as Standard Webhooks (https://www.standardwebhooks.com) says: HMAC-SHA256 over ``id.timestamp.body``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping, Sequence
from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from guanaco.errors import InvalidInput
from guanaco.open_enum import OpenEnum

SECRET_PREFIX = "whsec_"  # noqa: S105 - what a secret begins with
TOLERANCE_S = 300
MAX_URL_CHARS = 2_048


class WebhookEvent(OpenEnum):
    DEPLOYED = "deployed"
    FAILED = "failed"
    FIRST_FEEDBACK = "first_feedback"
    FEEDBACK_COUNT = "feedback_count"
    VERDICT = "verdict"
    TEST = "test"


class WebhookRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(min_length=1, max_length=MAX_URL_CHARS, description="Where to POST to.")
    feedback_every: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Also notify of every N-th rating of a submission.",
    )


class DeliveryState(OpenEnum):
    """A pending one is tried again, for about a day."""

    PENDING = "pending"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"


class Delivery(BaseModel):
    """``id`` is the ``webhook-id`` of each try: a receiver that has seen it before has seen this event."""

    id: str
    event: WebhookEvent
    submission_id: str | None
    state: DeliveryState
    attempts: int
    created_at: datetime
    last_attempt_at: datetime | None
    next_attempt_at: datetime | None = Field(description="Null once it is no longer pending.")
    last_result: str | None = Field(
        description="The status that the receiver answered, or why none came."
    )


class Webhook(BaseModel):
    url: str
    feedback_every: int | None
    created_at: datetime
    old_secret_until: datetime | None = Field(
        description="Until this time, each delivery is also signed with the secret before the last rotation."
    )
    deliveries: list[Delivery] = Field(default=[], description="The newest, newest first.")


class WebhookSet(Webhook):
    """``secret`` is there once: when the webhook is made, and when its secret is rotated."""

    secret: str | None = None


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """``v1,`` and the signature in base64."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.new(_key(secret), signed, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def verify(
    secret: str | Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: float | None = None,
) -> str:
    """Check that the platform has sent a webhook just now.

    Args:
        secret: The webhook's secret; several while one is being replaced.
        headers: The request's headers, in any case.
        body: The request's body, as it came.
        now: The time in seconds since 1970; without it that of this machine.

    Returns:
        The message's id, by which to ignore what came twice.

    Raises:
        InvalidInput: The platform did not send this, or not now.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    message_id, timestamp = lower.get("webhook-id", ""), lower.get("webhook-timestamp", "")
    if not timestamp.isdecimal() or len(timestamp) > 12:
        raise InvalidInput("The webhook carries no timestamp.")
    if abs((time.time() if now is None else now) - int(timestamp)) > TOLERANCE_S:
        raise InvalidInput(f"The webhook was not sent within the last {TOLERANCE_S} s.")
    given = lower.get("webhook-signature", "").split()
    secrets = [secret] if isinstance(secret, str) else secret
    for one in secrets:
        wanted = signature(one, message_id, int(timestamp), body).encode()
        if any(hmac.compare_digest(wanted, found.encode()) for found in given):
            return message_id
    raise InvalidInput("The webhook's signature is not the platform's.")


def _key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise InvalidInput(f"A webhook's secret looks like {SECRET_PREFIX}….") from None
