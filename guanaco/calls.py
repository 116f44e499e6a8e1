"""Every call of the HTTP API, defined once: what is sent and what comes back.

These are pure functions. ``Client`` and ``AsyncClient`` turn each of them into a method with the same
arguments, which sends it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast
from urllib.parse import quote

from pydantic import BaseModel

from guanaco.accounts import ApiKey, CreatedKey, Identity, KeyRequest, Role
from guanaco.chat import (
    Bot,
    Conversation,
    ConversationOpened,
    ConversationRequest,
    MessageRequest,
    PreviewRequest,
    RegenerateRequest,
    Reply,
    Token,
    Turn,
)
from guanaco.contract import reader
from guanaco.errors import InvalidInput
from guanaco.feedback import FeedbackRecorded, FeedbackRequest
from guanaco.formatters import load_formatter
from guanaco.leaderboard import SubmissionMetrics
from guanaco.prompts import Prompt, PromptFormatter
from guanaco.replies import LAST_EVENT, parse_reply_event
from guanaco.sse import ServerEvent
from guanaco.submissions import (
    GenerationParams,
    Quantization,
    StressReport,
    Submission,
    SubmissionEvent,
    SubmissionKind,
    SubmissionRequest,
    WeightDtype,
)
from guanaco.wire import ANSWER_TIMEOUT_S, REPLY_TIMEOUT_S, Call, StreamCall

T = TypeVar("T")

API = "/api/v1"

_parse_keys = reader(list[ApiKey]).from_json
_parse_submissions = reader(list[Submission]).from_json


def me() -> Call[Identity]:
    """Who the key speaks for."""
    return _get("/me", parse=reader(Identity).from_json)


def create_key(name: str, role: Role | str) -> Call[CreatedKey]:
    """A new key; its secret is in this answer only. Admin."""
    request = KeyRequest(name=name, role=Role(role))
    return _post("/keys", request, parse=reader(CreatedKey).from_json)


def keys() -> Call[list[ApiKey]]:
    """Every key, without its secret. Admin."""
    return _get("/keys", parse=_parse_keys)


def revoke_key(key_id: str) -> Call[ApiKey]:
    """From now on the key opens nothing. Admin."""
    return _post(f"/keys/{_id(key_id)}/revoke", parse=reader(ApiKey).from_json)


def submit(
    repo: str,
    *,
    revision: str | None = None,
    name: str | None = None,
    params: GenerationParams | None = None,
    formatter: Prompt | str | None = None,
    dtype: WeightDtype | str = WeightDtype.AUTO,
    quantization: Quantization | str | None = None,
    kind: SubmissionKind | str = SubmissionKind.CHAT,
    reward: str | None = None,
    reward_formatter: Prompt | str | None = None,
    idempotency_key: str | None = None,
) -> Call[Submission]:
    """Enter a Hub repo; the answer is queued, not yet checked. Formatters may name a preset or a file.

    With ``params.best_of`` over 1 the submission ``reward``, one of ``kind="reward"``, picks the reply.

    It carries a random Idempotency-Key unless you give one, so sending it again makes no second submission.
    """
    request = SubmissionRequest(
        repo=repo,
        revision=revision,
        name=name,
        params=params or GenerationParams(),
        formatter=_formatter(formatter) or PromptFormatter(),
        dtype=cast(WeightDtype, dtype),  # pydantic takes the plain word too
        quantization=cast(Quantization | None, quantization),
        kind=cast(SubmissionKind, kind),
        reward=reward,
        reward_formatter=_formatter(reward_formatter),
    )
    return Call(
        method="POST",
        path=f"{API}/submissions",
        json=_json(request),
        headers={"Idempotency-Key": idempotency_key or uuid.uuid4().hex},
        parse=reader(Submission).from_json,
        is_repeatable=True,
    )


def submissions() -> Call[list[Submission]]:
    """Your submissions, newest first; an admin's are everybody's."""
    return _get("/submissions", parse=_parse_submissions)


def submission(submission_id: str) -> Call[Submission]:
    """One submission with its stages."""
    return _get(_of(submission_id), parse=reader(Submission).from_json)


def events(
    submission_id: str, *, after: int = 0, follow: bool = True
) -> StreamCall[SubmissionEvent]:
    """The events numbered over ``after``, then each as it comes, until the submission is no longer in progress.

    A broken connection is resumed where it was. Without ``follow`` it ends with what is recorded.
    """
    return StreamCall(
        method="GET",
        path=f"{API}{_of(submission_id, 'events')}",
        params={} if follow else {"follow": "false"},
        headers={"Last-Event-ID": str(after)} if after else {},
        parse=_parse_submission_event,
        is_resumable=True,
    )


def stress(submission_id: str) -> Call[StressReport]:
    """What the stress check measured; ReportNotFound before it ran."""
    return _get(_of(submission_id, "stress"), parse=reader(StressReport).from_json)


def cancel(submission_id: str) -> Call[Submission]:
    """Stop the pipeline and clean up."""
    return _move(submission_id, "cancel")


def deactivate(submission_id: str) -> Call[Submission]:
    """Take no new conversations; the open ones go on."""
    return _move(submission_id, "deactivate")


def reactivate(submission_id: str) -> Call[Submission]:
    """Take new conversations again."""
    return _move(submission_id, "reactivate")


def redeploy(submission_id: str) -> Call[Submission]:
    """Run the pipeline again, at the same commit."""
    return _move(submission_id, "redeploy")


def teardown(submission_id: str) -> Call[Submission]:
    """Stop its model server for good; its feedback stays readable."""
    return _move(submission_id, "teardown")


def metrics(submission_id: str) -> Call[SubmissionMetrics]:
    """How people like the submission."""
    return _get(_of(submission_id, "metrics"), parse=reader(SubmissionMetrics).from_json)


def preview(
    submission_id: str, bot: Bot, turns: Sequence[Turn] = (), *, user_name: str = "You"
) -> Call[Reply]:
    """What your own submission answers, and the very prompt it got. Nothing is recorded."""
    request = PreviewRequest(bot=bot, turns=list(turns), user_name=user_name)
    return _reply(_of(submission_id, "preview"), request)


def stream_preview(
    submission_id: str, bot: Bot, turns: Sequence[Turn] = (), *, user_name: str = "You"
) -> StreamCall[Token | Reply]:
    """``preview``, token by token; the whole Reply comes last."""
    request = PreviewRequest(bot=bot, turns=list(turns), user_name=user_name, stream=True)
    return _reply_stream(_of(submission_id, "preview"), request)


def open_conversation(
    user_id: str, bot: Bot, *, consent: bool, user_name: str = "You"
) -> Call[ConversationOpened]:
    """Begin a conversation of a consenting user with a submission that the platform chooses. Backend."""
    request = ConversationRequest(user_id=user_id, bot=bot, user_name=user_name, consent=consent)
    return _post("/conversations", request, parse=reader(ConversationOpened).from_json)


def conversation(conversation_id: str) -> Call[Conversation]:
    """A conversation with its messages. Backend."""
    return _get(_talk(conversation_id), parse=reader(Conversation).from_json)


def send(conversation_id: str, content: str) -> Call[Reply]:
    """Say something; the answer is the bot's whole reply. Backend."""
    return _reply(_talk(conversation_id, "messages"), MessageRequest(content=content))


def stream_send(conversation_id: str, content: str) -> StreamCall[Token | Reply]:
    """``send``, token by token; the whole Reply comes last. Backend."""
    request = MessageRequest(content=content, stream=True)
    return _reply_stream(_talk(conversation_id, "messages"), request)


def regenerate(conversation_id: str) -> Call[Reply]:
    """Another reply in place of the last one. Backend."""
    return _reply(_talk(conversation_id, "regenerate"), RegenerateRequest())


def stream_regenerate(conversation_id: str) -> StreamCall[Token | Reply]:
    """``regenerate``, token by token; the whole Reply comes last. Backend."""
    return _reply_stream(_talk(conversation_id, "regenerate"), RegenerateRequest(stream=True))


def rate(conversation_id: str, thumbs_up: bool, text: str = "") -> Call[FeedbackRecorded]:
    """What the user thought of the conversation; once only. Backend."""
    request = FeedbackRequest(thumbs_up=thumbs_up, text=text)
    return _post(
        _talk(conversation_id, "feedback"), request, parse=reader(FeedbackRecorded).from_json
    )


def _get(
    path: str, *, parse: Callable[[bytes], T], params: Mapping[str, str] | None = None
) -> Call[T]:
    return Call(
        method="GET", path=f"{API}{path}", params=params or {}, parse=parse, is_repeatable=True
    )


def _post(
    path: str,
    body: BaseModel | None = None,
    *,
    parse: Callable[[bytes], T],
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> Call[T]:
    return Call(
        method="POST", path=f"{API}{path}", json=_json(body), parse=parse, timeout_s=timeout_s
    )


def _json(body: BaseModel | None) -> dict[str, Any] | None:
    return None if body is None else body.model_dump(mode="json")


def _of(submission_id: str, *rest: str) -> str:
    return "/".join(("/submissions", _id(submission_id), *rest))


def _talk(conversation_id: str, *rest: str) -> str:
    return "/".join(("/conversations", _id(conversation_id), *rest))


def _formatter(given: Prompt | str | None) -> Prompt | None:
    return load_formatter(given) if isinstance(given, str) else given


def _id(value: str) -> str:
    if not value.strip("."):  # "", "." and ".." would name another place
        raise InvalidInput(f"{value!r} is not an id.")
    return quote(value, safe="")


def _move(submission_id: str, verb: str) -> Call[Submission]:
    return _post(_of(submission_id, verb), parse=reader(Submission).from_json)


def _reply(path: str, body: BaseModel) -> Call[Reply]:
    return _post(path, body, parse=reader(Reply).from_json, timeout_s=REPLY_TIMEOUT_S)


def _reply_stream(path: str, body: BaseModel) -> StreamCall[Token | Reply]:
    return StreamCall(
        method="POST",
        path=f"{API}{path}",
        json=_json(body),
        parse=parse_reply_event,
        must_end_with=LAST_EVENT,
    )


def _parse_submission_event(event: ServerEvent) -> SubmissionEvent:
    return reader(SubmissionEvent).from_json(event.data)
