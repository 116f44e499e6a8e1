"""The HTTP API as methods: ``Client``, and ``AsyncClient`` for asyncio.

Their methods are the functions of ``guanaco.calls``, sent. Each raises a GuanacoError: the one that the
server named, or ServerUnreachable.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from guanaco import (
    calls,
    competition_calls,
    experiment_calls,
    feedback_calls,
    gpu_calls,
    webhook_calls,
)
from guanaco.feedback_methods import AsyncFeedbackMethods, FeedbackMethods
from guanaco.profile import Profile
from guanaco.submissions import Submission, SubmissionEvent
from guanaco.transport import Address, AsyncTransport, SyncTransport
from guanaco.wire import Call, StreamCall

if TYPE_CHECKING:
    import httpx

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., object])
OnEvent = Callable[[SubmissionEvent], None]


def _documented(call: Callable[..., object]) -> Callable[[M], M]:
    """Give a method the call's name, docstring and arguments, for ``help()`` and editors."""
    signature = inspect.signature(call)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)

    def document(method: M) -> M:
        method.__name__, method.__doc__ = call.__name__, call.__doc__
        method.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[itself, *signature.parameters.values()]
        )
        return method

    return document


def _sent(call: Callable[P, Call[T]]) -> Callable[Concatenate[Client, P], T]:
    @_documented(call)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.transport.run(call(*args, **kwargs))

    return method


def _streamed(
    call: Callable[P, StreamCall[T]],
) -> Callable[Concatenate[Client, P], Generator[T, None, None]]:
    @_documented(call)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        return self.transport.stream(call(*args, **kwargs))

    return method


def _awaited(
    call: Callable[P, Call[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    @_documented(call)
    def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self.transport.run(call(*args, **kwargs))

    return method


def _async_streamed(
    call: Callable[P, StreamCall[T]],
) -> Callable[Concatenate[AsyncClient, P], AsyncGenerator[T, None]]:
    @_documented(call)
    def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T, None]:
        return self.transport.stream(call(*args, **kwargs))

    return method


class Client(FeedbackMethods):
    """A server as one key sees it. Without arguments it is the profile's (``guanaco login``)."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.transport = SyncTransport(_address(url, key), transport)

    me = _sent(calls.me)
    create_key = _sent(calls.create_key)
    keys = _sent(calls.keys)
    revoke_key = _sent(calls.revoke_key)
    submit = _sent(calls.submit)
    submissions = _sent(calls.submissions)
    submission = _sent(calls.submission)
    events = _streamed(calls.events)
    stress = _sent(calls.stress)
    cancel = _sent(calls.cancel)
    deactivate = _sent(calls.deactivate)
    reactivate = _sent(calls.reactivate)
    redeploy = _sent(calls.redeploy)
    teardown = _sent(calls.teardown)
    recipe = _sent(gpu_calls.recipe)
    set_recipe = _sent(gpu_calls.set_recipe)
    cost = _sent(gpu_calls.cost)
    costs = _sent(gpu_calls.costs)
    experiments = _sent(experiment_calls.experiments)
    experiment = _sent(experiment_calls.experiment)
    create_experiment = _sent(experiment_calls.create_experiment)
    start_experiment = _sent(experiment_calls.start_experiment)
    stop_experiment = _sent(experiment_calls.stop_experiment)
    experiment_results = _sent(experiment_calls.experiment_results)
    feedback_page = _sent(feedback_calls.feedback_page)
    metrics = _sent(calls.metrics)
    leaderboard = _sent(competition_calls.leaderboard)
    score_history = _sent(competition_calls.score_history)
    competitions = _sent(competition_calls.competitions)
    competition = _sent(competition_calls.competition)
    assignment = _sent(competition_calls.assignment)
    put_competition = _sent(competition_calls.put_competition)
    season = _sent(competition_calls.season)
    freeze = _sent(competition_calls.freeze)
    recompute = _sent(competition_calls.recompute)
    vote_flags = _sent(competition_calls.vote_flags)
    allow_vote = _sent(competition_calls.allow_vote)
    preview = _sent(calls.preview)
    stream_preview = _streamed(calls.stream_preview)
    open_conversation = _sent(calls.open_conversation)
    conversation = _sent(calls.conversation)
    send = _sent(calls.send)
    stream_send = _streamed(calls.stream_send)
    regenerate = _sent(calls.regenerate)
    stream_regenerate = _streamed(calls.stream_regenerate)
    rate = _sent(calls.rate)
    webhook = _sent(webhook_calls.webhook)
    set_webhook = _sent(webhook_calls.set_webhook)
    remove_webhook = _sent(webhook_calls.remove_webhook)
    rotate_webhook_secret = _sent(webhook_calls.rotate_webhook_secret)
    test_webhook = _sent(webhook_calls.test_webhook)
    feedback_of = _sent(feedback_calls.feedback_of)
    raw_feedback = _sent(feedback_calls.raw_feedback)
    erase_user = _sent(feedback_calls.erase_user)
    audit = _sent(feedback_calls.audit)

    def wait(self, submission_id: str, on_event: OnEvent | None = None) -> Submission:
        """The submission once it is no longer in progress; ``on_event`` hears each event on the way."""
        seen = 0
        while True:
            for event in self.events(submission_id, after=seen):
                seen = event.seq
                if on_event is not None:
                    on_event(event)
            submission = self.submission(submission_id)
            if not submission.status.is_in_progress:
                return submission

    def close(self) -> None:
        self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClient(AsyncFeedbackMethods):
    """``Client`` for asyncio: the same methods, to be awaited, or iterated with ``async for``."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.transport = AsyncTransport(_address(url, key), transport)

    me = _awaited(calls.me)
    create_key = _awaited(calls.create_key)
    keys = _awaited(calls.keys)
    revoke_key = _awaited(calls.revoke_key)
    submit = _awaited(calls.submit)
    submissions = _awaited(calls.submissions)
    submission = _awaited(calls.submission)
    events = _async_streamed(calls.events)
    stress = _awaited(calls.stress)
    cancel = _awaited(calls.cancel)
    deactivate = _awaited(calls.deactivate)
    reactivate = _awaited(calls.reactivate)
    redeploy = _awaited(calls.redeploy)
    teardown = _awaited(calls.teardown)
    recipe = _awaited(gpu_calls.recipe)
    set_recipe = _awaited(gpu_calls.set_recipe)
    cost = _awaited(gpu_calls.cost)
    costs = _awaited(gpu_calls.costs)
    experiments = _awaited(experiment_calls.experiments)
    experiment = _awaited(experiment_calls.experiment)
    create_experiment = _awaited(experiment_calls.create_experiment)
    start_experiment = _awaited(experiment_calls.start_experiment)
    stop_experiment = _awaited(experiment_calls.stop_experiment)
    experiment_results = _awaited(experiment_calls.experiment_results)
    feedback_page = _awaited(feedback_calls.feedback_page)
    metrics = _awaited(calls.metrics)
    leaderboard = _awaited(competition_calls.leaderboard)
    score_history = _awaited(competition_calls.score_history)
    competitions = _awaited(competition_calls.competitions)
    competition = _awaited(competition_calls.competition)
    assignment = _awaited(competition_calls.assignment)
    put_competition = _awaited(competition_calls.put_competition)
    season = _awaited(competition_calls.season)
    freeze = _awaited(competition_calls.freeze)
    recompute = _awaited(competition_calls.recompute)
    vote_flags = _awaited(competition_calls.vote_flags)
    allow_vote = _awaited(competition_calls.allow_vote)
    preview = _awaited(calls.preview)
    stream_preview = _async_streamed(calls.stream_preview)
    open_conversation = _awaited(calls.open_conversation)
    conversation = _awaited(calls.conversation)
    send = _awaited(calls.send)
    stream_send = _async_streamed(calls.stream_send)
    regenerate = _awaited(calls.regenerate)
    stream_regenerate = _async_streamed(calls.stream_regenerate)
    rate = _awaited(calls.rate)
    webhook = _awaited(webhook_calls.webhook)
    set_webhook = _awaited(webhook_calls.set_webhook)
    remove_webhook = _awaited(webhook_calls.remove_webhook)
    rotate_webhook_secret = _awaited(webhook_calls.rotate_webhook_secret)
    test_webhook = _awaited(webhook_calls.test_webhook)
    feedback_of = _awaited(feedback_calls.feedback_of)
    raw_feedback = _awaited(feedback_calls.raw_feedback)
    erase_user = _awaited(feedback_calls.erase_user)
    audit = _awaited(feedback_calls.audit)

    async def wait(self, submission_id: str, on_event: OnEvent | None = None) -> Submission:
        """The submission once it is no longer in progress; ``on_event`` hears each event on the way."""
        seen = 0
        while True:
            async for event in self.events(submission_id, after=seen):
                seen = event.seq
                if on_event is not None:
                    on_event(event)
            submission = await self.submission(submission_id)
            if not submission.status.is_in_progress:
                return submission

    async def close(self) -> None:
        await self.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _address(url: str | None, key: str | None) -> Address:
    """What is not given comes from the profile, whose key goes to the profile's server only."""
    if url is not None and key is not None:
        profile = Profile(url, key)
    else:
        stored = Profile.load()
        profile = Profile(url or stored.url, key).with_key_of(stored)
    return Address(profile.url, profile.key)
