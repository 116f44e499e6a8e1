"""Signatures as Standard Webhooks has them, and what a receiver refuses."""

from __future__ import annotations

import pytest

from guanaco.errors import InvalidInput
from guanaco.webhooks import signature, verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID, TIMESTAMP, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
HEADERS = {
    "Webhook-Id": ID,
    "Webhook-Timestamp": str(TIMESTAMP),
    "Webhook-Signature": f"v1a,other {SIGNATURE}",
}


def test_it_is_the_standards_own_example() -> None:
    assert signature(SECRET, ID, TIMESTAMP, BODY) == SIGNATURE


def test_receiver_accepts_a_signature_of_any_of_its_secrets() -> None:
    other = "whsec_" + "A" * 32
    assert verify([other, SECRET], HEADERS, BODY, now=TIMESTAMP + 299) == ID


@pytest.mark.parametrize(
    ("headers", "body", "now", "sentence"),
    [
        (HEADERS, BODY + b" ", TIMESTAMP, "not the platform's"),
        (HEADERS | {"Webhook-Id": "msg_other"}, BODY, TIMESTAMP, "not the platform's"),
        (HEADERS | {"Webhook-Signature": ""}, BODY, TIMESTAMP, "not the platform's"),
        (HEADERS | {"Webhook-Timestamp": "soon"}, BODY, TIMESTAMP, "no timestamp"),
        (HEADERS, BODY, TIMESTAMP + 301, "within the last 300 s"),
        (HEADERS, BODY, TIMESTAMP - 301, "within the last 300 s"),
        ({}, BODY, TIMESTAMP, "no timestamp"),
    ],
)
def test_a_receiver_refuses_anything_else(
    headers: dict[str, str], body: bytes, now: int, sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        verify(SECRET, headers, body, now=now)
