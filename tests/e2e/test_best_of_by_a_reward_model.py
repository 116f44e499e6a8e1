"""A developer submits their own reward model, and it picks what their chat model says."""

from __future__ import annotations

import pytest

from guanaco.accounts import Role
from guanaco.bots import BOTS
from guanaco.chat import Reply
from guanaco.errors import RewardInUse
from guanaco.submissions import GenerationParams, Status, SubmissionKind
from tests.e2e.conftest import SharedPlatform
from tests.fixtures.reward_repos import make_reward_repo


def test_a_developers_own_reward_model_picks_the_reply(platform: SharedPlatform) -> None:
    make_reward_repo(platform.hub.root / "acme" / "judge")
    platform.repo("judged")
    up = platform.up
    developer, app = (
        up.client(Role.DEVELOPER, "judges-developer"),
        up.client(Role.BACKEND, "judges-app"),
    )

    judge = developer.submit("acme/judge", kind=SubmissionKind.REWARD)
    judge = developer.wait(judge.id)
    assert judge.status is Status.DEPLOYED, judge.failure
    assert judge.architecture == "LlamaForSequenceClassification"
    assert developer.stress(judge.id).is_passed

    params = GenerationParams(best_of=3, max_output_tokens=24)
    chat = developer.wait(developer.submit("acme/judged", params=params, reward=judge.id).id)
    assert chat.status is Status.DEPLOYED, chat.failure

    opened = app.open_conversation("user-17", next(iter(BOTS.values())), consent=True)
    assert opened.submission_id == chat.id
    *_, reply = app.stream_send(opened.conversation_id, "Hello! How are you?")
    assert isinstance(reply, Reply)
    assert reply.content.endswith("Really! Really!"), "the longest, which is the least likely"
    assert reply.reward_score is not None

    with pytest.raises(RewardInUse):
        developer.teardown(judge.id)
    developer.teardown(chat.id)
    assert developer.teardown(judge.id).status is Status.TORN_DOWN
    ranked = {row.submission_id for row in app.leaderboard().rows}
    assert chat.id in ranked
    assert judge.id not in ranked
