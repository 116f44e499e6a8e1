"""Ids that the old client takes apart: it finds in them what it looks for, whoever the user and the bot are."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from guanaco.chat import Message, Sender
from guanaco.feedback import Feedback
from guanaco_server.compat import translation as ids
from guanaco_server.compat.translation import sent_date

EARLIEST = datetime(1971, 1, 1)  # noqa: DTZ001 - hypothesis adds the zone
LATEST = datetime(2200, 1, 1)  # noqa: DTZ001

names = st.text(min_size=1, max_size=64)
moments = st.datetimes(min_value=EARLIEST, max_value=LATEST, timezones=st.just(UTC))


def rating(user: str, bot: str, at: datetime) -> Feedback:
    message = Message(id="m", sender=Sender.BOT, content="", at=at)
    return Feedback(
        id="fb",
        submission_id="s_v1",
        conversation_id="c",
        user=user,
        bot_name=bot,
        thumbs_up=True,
        text="",
        at=at,
        messages=[message],
    )


@given(names, names, moments)
def test_the_parts_are_where_the_client_looks(user: str, bot: str, at: datetime) -> None:
    conversation = ids.ConversationIds().of(rating(user, bot, at))
    parts = ids.feedback_id(conversation, at).split("_")
    assert len(parts) == 6
    assert "_".join(parts[:3]) == ids.bot_id(bot)
    assert parts[3] == ids.user_id(user)
    assert int(parts[4]) // 1_000 == int(parts[5]) == int(at.timestamp())
    assert "_bot" in ids.bot_id(bot)
    assert "_" not in ids.user_id(user)


@given(names, names, moments)
def test_ids_are_the_same_every_time_and_tell_nothing(user: str, bot: str, at: datetime) -> None:
    one = rating(user, bot, at)
    assert ids.ConversationIds().of(one) == ids.ConversationIds().of(one)
    assert ids.user_id(user) != ids.user_id(user + "x")
    assert len(ids.user_id(user)) == 32


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), moments), max_size=30))
def test_no_two_conversations_share_an_id(rated: list[tuple[str, str, datetime]]) -> None:
    conversations = ids.ConversationIds()
    twice = [rating(*one) for one in rated for _ in range(2)]
    assert len({conversations.of(one) for one in twice}) == len(twice)


@given(moments)
def test_dates_are_read_back_to_the_millisecond(at: datetime) -> None:
    read = datetime.fromisoformat(sent_date(at)).replace(tzinfo=UTC)
    assert len(sent_date(at)) == len("2023-12-01 10:00:00.000")
    assert 0 <= (at - read).total_seconds() < 0.001
