"""Requests that are repeated with their Idempotency-Key across an upgrade are known."""

from __future__ import annotations

import pytest

from guanaco.submissions import SubmissionRequest
from guanaco.sweeps import SweepRequest
from guanaco_server.submissions.service import request_hash

REQUEST = SubmissionRequest(repo="acme/tiny", name="a")


def test_request_hash_equals_that_of_the_previous_version() -> None:
    assert (
        request_hash(REQUEST) == "4ad3dfc69362f7e05be86f13ec29e06968b524e674f40d5ca7be812b63feea25"
    )
    assert (
        request_hash(SweepRequest(variants=(REQUEST,)))
        == "4df087b4f7353fdac100365621abf59bd85cb3e0837c6db3b7ce462c41d2f020"
    )


@pytest.mark.parametrize("new", [{"prompt": "support@1"}, {"show_prompt": True}])
def test_what_is_new_in_a_request_changes_its_hash(new: dict[str, object]) -> None:
    stored = REQUEST.model_copy(update=new)
    assert request_hash(stored) != request_hash(REQUEST)
    one, other = (SweepRequest(variants=(request,)) for request in (stored, REQUEST))
    assert request_hash(one) != request_hash(other)
