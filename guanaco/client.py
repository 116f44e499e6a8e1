"""The HTTP API as methods: ``Client``, and ``AsyncClient`` for asyncio.

Their methods are the functions of ``guanaco.calls``, sent. Each raises a GuanacoError: the one that the
server named, or ServerUnreachable.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from guanaco.calls import accounts as accounts_calls
from guanaco.calls import aliases as aliases_calls
from guanaco.calls import characters as characters_calls
from guanaco.calls import chat as chat_calls
from guanaco.calls import competitions as competitions_calls
from guanaco.calls import duels as duels_calls
from guanaco.calls import feedback as feedback_calls
from guanaco.calls import gpus as gpus_calls
from guanaco.calls import prompts as prompts_calls
from guanaco.calls import submissions as submissions_calls
from guanaco.calls import sweeps as sweeps_calls
from guanaco.calls.wire import Call, StreamCall, described
from guanaco.feedback_methods import AsyncFeedbackMethods, FeedbackMethods
from guanaco.profile import Profile
from guanaco.submissions import Submission, SubmissionEvent
from guanaco.transport import Address, AsyncTransport, SyncTransport

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
        return self.transport.run(described(call, *args, **kwargs))

    return method


def _streamed(
    call: Callable[P, StreamCall[T]],
) -> Callable[Concatenate[Client, P], Generator[T, None, None]]:
    @_documented(call)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        return self.transport.stream(described(call, *args, **kwargs))

    return method


def _awaited(
    call: Callable[P, Call[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    @_documented(call)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.transport.run(described(call, *args, **kwargs))

    return method


def _async_streamed(
    call: Callable[P, StreamCall[T]],
) -> Callable[Concatenate[AsyncClient, P], AsyncGenerator[T, None]]:
    @_documented(call)
    async def method(
        self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[T, None]:
        async with aclosing(self.transport.stream(described(call, *args, **kwargs))) as items:
            async for item in items:
                yield item

    return method


class Client(FeedbackMethods):
    """A server as one key sees it. Without arguments, it is the profile's (``guanaco login``)."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Make a client; it connects with its first call.

        Args:
            url: The platform's address; without it that of the profile, which ``guanaco login`` writes.
            key: Your API key; without it the profile's, which is sent to the profile's address only.
            transport: A transport of httpx in place of the network, for tests.

        Raises:
            InvalidSettings: The address is none, or the profile cannot be read.
        """
        self.transport = SyncTransport(_address(url, key), transport)

    me = _sent(accounts_calls.me)
    create_key = _sent(accounts_calls.create_key)
    keys = _sent(accounts_calls.keys)
    revoke_key = _sent(accounts_calls.revoke_key)
    quota = _sent(accounts_calls.quota)
    set_quota = _sent(accounts_calls.set_quota)
    submit = _sent(submissions_calls.submit)
    check = _sent(submissions_calls.check)
    render_prompt = _sent(prompts_calls.render_prompt)
    plan = _sent(gpus_calls.plan)
    submissions = _sent(submissions_calls.submissions)
    card = _sent(submissions_calls.card)
    aliases = _sent(aliases_calls.aliases)
    set_alias = _sent(aliases_calls.set_alias)
    remove_alias = _sent(aliases_calls.remove_alias)
    set_tags = _sent(submissions_calls.set_tags)
    show_prompt = _sent(submissions_calls.show_prompt)
    submission = _sent(submissions_calls.submission)
    events = _streamed(submissions_calls.events)
    stress = _sent(submissions_calls.stress)
    cancel = _sent(submissions_calls.cancel)
    deactivate = _sent(submissions_calls.deactivate)
    reactivate = _sent(submissions_calls.reactivate)
    redeploy = _sent(submissions_calls.redeploy)
    promote = _sent(submissions_calls.promote)
    rollback = _sent(submissions_calls.rollback)
    teardown = _sent(submissions_calls.teardown)
    delete = _sent(submissions_calls.delete)
    submit_sweep = _sent(sweeps_calls.submit_sweep)
    sweeps = _sent(sweeps_calls.sweeps)
    sweep = _sent(sweeps_calls.sweep)
    cancel_sweep = _sent(sweeps_calls.cancel_sweep)
    deactivate_sweep = _sent(sweeps_calls.deactivate_sweep)
    reactivate_sweep = _sent(sweeps_calls.reactivate_sweep)
    teardown_sweep = _sent(sweeps_calls.teardown_sweep)
    recipe = _sent(gpus_calls.recipe)
    set_recipe = _sent(gpus_calls.set_recipe)
    cost = _sent(gpus_calls.cost)
    costs = _sent(gpus_calls.costs)
    experiments = _sent(competitions_calls.experiments)
    experiment = _sent(competitions_calls.experiment)
    create_experiment = _sent(competitions_calls.create_experiment)
    change_experiment = _sent(competitions_calls.change_experiment)
    start_experiment = _sent(competitions_calls.start_experiment)
    stop_experiment = _sent(competitions_calls.stop_experiment)
    experiment_results = _sent(competitions_calls.experiment_results)
    feedback_page = _sent(feedback_calls.feedback_page)
    metrics = _sent(submissions_calls.metrics)
    leaderboard = _sent(competitions_calls.leaderboard)
    stability = _sent(competitions_calls.stability)
    verdict = _sent(competitions_calls.verdict)
    score_history = _sent(competitions_calls.score_history)
    competitions = _sent(competitions_calls.competitions)
    competition = _sent(competitions_calls.competition)
    assignment = _sent(chat_calls.assignment)
    next_assignment = _sent(chat_calls.next_assignment)
    put_competition = _sent(competitions_calls.put_competition)
    season = _sent(competitions_calls.season)
    freeze = _sent(competitions_calls.freeze)
    recompute = _sent(competitions_calls.recompute)
    uniform_ratios = _sent(competitions_calls.uniform_ratios)
    vote_flags = _sent(competitions_calls.vote_flags)
    vote_patterns = _sent(competitions_calls.vote_patterns)
    allow_vote = _sent(competitions_calls.allow_vote)
    push_prompt = _sent(prompts_calls.push_prompt)
    prompts = _sent(prompts_calls.prompts)
    prompt = _sent(prompts_calls.prompt)
    prompt_version = _sent(prompts_calls.prompt_version)
    label_prompt = _sent(prompts_calls.label_prompt)
    remove_prompt_label = _sent(prompts_calls.remove_prompt_label)
    delete_prompt = _sent(prompts_calls.delete_prompt)
    push_character = _sent(characters_calls.push_character)
    characters = _sent(characters_calls.characters)
    character = _sent(characters_calls.character)
    change_character = _sent(characters_calls.change_character)
    character_card = _sent(characters_calls.character_card)
    character_picture = _sent(characters_calls.character_picture)
    character_bot = _sent(characters_calls.character_bot)
    set_lorebook = _sent(characters_calls.set_lorebook)
    delete_character = _sent(characters_calls.delete_character)
    erase_characters = _sent(characters_calls.erase_characters)
    preview = _sent(chat_calls.preview)
    stream_preview = _streamed(chat_calls.stream_preview)
    open_conversation = _sent(chat_calls.open_conversation)
    conversation = _sent(chat_calls.conversation)
    conversation_page = _sent(chat_calls.conversation_page)
    note_metadata = _sent(chat_calls.note_metadata)
    delete_conversation = _sent(chat_calls.delete_conversation)
    edit_message = _sent(chat_calls.edit_message)
    delete_message = _sent(chat_calls.delete_message)
    rate_message = _sent(chat_calls.rate_message)
    withdraw_message_rating = _sent(chat_calls.withdraw_message_rating)
    swipes = _sent(chat_calls.swipes)
    choose = _sent(chat_calls.choose)
    memory = _sent(chat_calls.memory)
    persona = _sent(chat_calls.persona)
    correct_memory = _sent(chat_calls.correct_memory)
    erase_memory = _sent(chat_calls.erase_memory)
    battle = _sent(duels_calls.battle)
    stream_battle = _streamed(duels_calls.stream_battle)
    battles = _sent(duels_calls.battles)
    vote_on_battle = _sent(duels_calls.vote_on_battle)
    duels = _sent(duels_calls.duels)
    duels_of_pairs = _sent(duels_calls.duels_of_pairs)
    rival = _sent(duels_calls.rival)
    rivals = _sent(duels_calls.rivals)
    regenerations_of_pairs = _sent(duels_calls.regenerations_of_pairs)
    send = _sent(chat_calls.send)
    stream_send = _streamed(chat_calls.stream_send)
    regenerate = _sent(chat_calls.regenerate)
    stream_regenerate = _streamed(chat_calls.stream_regenerate)
    continue_reply = _sent(chat_calls.continue_reply)
    stream_continue_reply = _streamed(chat_calls.stream_continue_reply)
    rate = _sent(feedback_calls.rate)
    rating = _sent(feedback_calls.rating)
    change_rating = _sent(feedback_calls.change_rating)
    withdraw_rating = _sent(feedback_calls.withdraw_rating)
    rating_changes = _sent(feedback_calls.rating_changes)
    webhook = _sent(accounts_calls.webhook)
    set_webhook = _sent(accounts_calls.set_webhook)
    remove_webhook = _sent(accounts_calls.remove_webhook)
    rotate_webhook_secret = _sent(accounts_calls.rotate_webhook_secret)
    test_webhook = _sent(accounts_calls.test_webhook)
    feedback_of = _sent(feedback_calls.feedback_of)
    raw_feedback = _sent(feedback_calls.raw_feedback)
    hide_quote = _sent(feedback_calls.hide_quote)
    erase_user = _sent(accounts_calls.erase_user)
    audit = _sent(accounts_calls.audit)
    alerts = _sent(accounts_calls.alerts)
    test_alerts = _sent(accounts_calls.test_alerts)
    service_level = _sent(accounts_calls.service_level)

    def wait(self, submission_id: str, on_event: OnEvent | None = None) -> Submission:
        """Wait until a submission is no longer in progress.

        Args:
            submission_id: The submission's id, or an alias like ``org/model@champion``.
            on_event: Called with each event on the way.

        Returns:
            The Submission, as it is then.

        Raises:
            SubmissionNotFound: There is no such submission, or it is another developer's.
        """
        seen = 0
        while True:
            for event in self.events(submission_id, after=seen):
                seen = event.seq
                if on_event is not None:
                    on_event(event)
            submission = self.submission(submission_id)
            if not submission.is_in_progress:
                return submission

    def close(self) -> None:
        """Close the connections."""
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
        """Make a client; it connects with its first call.

        Args:
            url: The platform's address; without it that of the profile, which ``guanaco login`` writes.
            key: Your API key; without it the profile's, which is sent to the profile's address only.
            transport: A transport of httpx in place of the network, for tests.

        Raises:
            InvalidSettings: The address is none, or the profile cannot be read.
        """
        self.transport = AsyncTransport(_address(url, key), transport)

    me = _awaited(accounts_calls.me)
    create_key = _awaited(accounts_calls.create_key)
    keys = _awaited(accounts_calls.keys)
    revoke_key = _awaited(accounts_calls.revoke_key)
    quota = _awaited(accounts_calls.quota)
    set_quota = _awaited(accounts_calls.set_quota)
    submit = _awaited(submissions_calls.submit)
    check = _awaited(submissions_calls.check)
    render_prompt = _awaited(prompts_calls.render_prompt)
    plan = _awaited(gpus_calls.plan)
    submissions = _awaited(submissions_calls.submissions)
    card = _awaited(submissions_calls.card)
    aliases = _awaited(aliases_calls.aliases)
    set_alias = _awaited(aliases_calls.set_alias)
    remove_alias = _awaited(aliases_calls.remove_alias)
    set_tags = _awaited(submissions_calls.set_tags)
    show_prompt = _awaited(submissions_calls.show_prompt)
    submission = _awaited(submissions_calls.submission)
    events = _async_streamed(submissions_calls.events)
    stress = _awaited(submissions_calls.stress)
    cancel = _awaited(submissions_calls.cancel)
    deactivate = _awaited(submissions_calls.deactivate)
    reactivate = _awaited(submissions_calls.reactivate)
    redeploy = _awaited(submissions_calls.redeploy)
    promote = _awaited(submissions_calls.promote)
    rollback = _awaited(submissions_calls.rollback)
    teardown = _awaited(submissions_calls.teardown)
    delete = _awaited(submissions_calls.delete)
    submit_sweep = _awaited(sweeps_calls.submit_sweep)
    sweeps = _awaited(sweeps_calls.sweeps)
    sweep = _awaited(sweeps_calls.sweep)
    cancel_sweep = _awaited(sweeps_calls.cancel_sweep)
    deactivate_sweep = _awaited(sweeps_calls.deactivate_sweep)
    reactivate_sweep = _awaited(sweeps_calls.reactivate_sweep)
    teardown_sweep = _awaited(sweeps_calls.teardown_sweep)
    recipe = _awaited(gpus_calls.recipe)
    set_recipe = _awaited(gpus_calls.set_recipe)
    cost = _awaited(gpus_calls.cost)
    costs = _awaited(gpus_calls.costs)
    experiments = _awaited(competitions_calls.experiments)
    experiment = _awaited(competitions_calls.experiment)
    create_experiment = _awaited(competitions_calls.create_experiment)
    change_experiment = _awaited(competitions_calls.change_experiment)
    start_experiment = _awaited(competitions_calls.start_experiment)
    stop_experiment = _awaited(competitions_calls.stop_experiment)
    experiment_results = _awaited(competitions_calls.experiment_results)
    feedback_page = _awaited(feedback_calls.feedback_page)
    metrics = _awaited(submissions_calls.metrics)
    leaderboard = _awaited(competitions_calls.leaderboard)
    stability = _awaited(competitions_calls.stability)
    verdict = _awaited(competitions_calls.verdict)
    score_history = _awaited(competitions_calls.score_history)
    competitions = _awaited(competitions_calls.competitions)
    competition = _awaited(competitions_calls.competition)
    assignment = _awaited(chat_calls.assignment)
    next_assignment = _awaited(chat_calls.next_assignment)
    put_competition = _awaited(competitions_calls.put_competition)
    season = _awaited(competitions_calls.season)
    freeze = _awaited(competitions_calls.freeze)
    recompute = _awaited(competitions_calls.recompute)
    uniform_ratios = _awaited(competitions_calls.uniform_ratios)
    vote_flags = _awaited(competitions_calls.vote_flags)
    vote_patterns = _awaited(competitions_calls.vote_patterns)
    allow_vote = _awaited(competitions_calls.allow_vote)
    push_prompt = _awaited(prompts_calls.push_prompt)
    prompts = _awaited(prompts_calls.prompts)
    prompt = _awaited(prompts_calls.prompt)
    prompt_version = _awaited(prompts_calls.prompt_version)
    label_prompt = _awaited(prompts_calls.label_prompt)
    remove_prompt_label = _awaited(prompts_calls.remove_prompt_label)
    delete_prompt = _awaited(prompts_calls.delete_prompt)
    push_character = _awaited(characters_calls.push_character)
    characters = _awaited(characters_calls.characters)
    character = _awaited(characters_calls.character)
    change_character = _awaited(characters_calls.change_character)
    character_card = _awaited(characters_calls.character_card)
    character_picture = _awaited(characters_calls.character_picture)
    character_bot = _awaited(characters_calls.character_bot)
    set_lorebook = _awaited(characters_calls.set_lorebook)
    delete_character = _awaited(characters_calls.delete_character)
    erase_characters = _awaited(characters_calls.erase_characters)
    preview = _awaited(chat_calls.preview)
    stream_preview = _async_streamed(chat_calls.stream_preview)
    open_conversation = _awaited(chat_calls.open_conversation)
    conversation = _awaited(chat_calls.conversation)
    conversation_page = _awaited(chat_calls.conversation_page)
    note_metadata = _awaited(chat_calls.note_metadata)
    delete_conversation = _awaited(chat_calls.delete_conversation)
    edit_message = _awaited(chat_calls.edit_message)
    delete_message = _awaited(chat_calls.delete_message)
    rate_message = _awaited(chat_calls.rate_message)
    withdraw_message_rating = _awaited(chat_calls.withdraw_message_rating)
    swipes = _awaited(chat_calls.swipes)
    choose = _awaited(chat_calls.choose)
    memory = _awaited(chat_calls.memory)
    persona = _awaited(chat_calls.persona)
    correct_memory = _awaited(chat_calls.correct_memory)
    erase_memory = _awaited(chat_calls.erase_memory)
    battle = _awaited(duels_calls.battle)
    stream_battle = _async_streamed(duels_calls.stream_battle)
    battles = _awaited(duels_calls.battles)
    vote_on_battle = _awaited(duels_calls.vote_on_battle)
    duels = _awaited(duels_calls.duels)
    duels_of_pairs = _awaited(duels_calls.duels_of_pairs)
    rival = _awaited(duels_calls.rival)
    rivals = _awaited(duels_calls.rivals)
    regenerations_of_pairs = _awaited(duels_calls.regenerations_of_pairs)
    send = _awaited(chat_calls.send)
    stream_send = _async_streamed(chat_calls.stream_send)
    regenerate = _awaited(chat_calls.regenerate)
    stream_regenerate = _async_streamed(chat_calls.stream_regenerate)
    continue_reply = _awaited(chat_calls.continue_reply)
    stream_continue_reply = _async_streamed(chat_calls.stream_continue_reply)
    rate = _awaited(feedback_calls.rate)
    rating = _awaited(feedback_calls.rating)
    change_rating = _awaited(feedback_calls.change_rating)
    withdraw_rating = _awaited(feedback_calls.withdraw_rating)
    rating_changes = _awaited(feedback_calls.rating_changes)
    webhook = _awaited(accounts_calls.webhook)
    set_webhook = _awaited(accounts_calls.set_webhook)
    remove_webhook = _awaited(accounts_calls.remove_webhook)
    rotate_webhook_secret = _awaited(accounts_calls.rotate_webhook_secret)
    test_webhook = _awaited(accounts_calls.test_webhook)
    feedback_of = _awaited(feedback_calls.feedback_of)
    raw_feedback = _awaited(feedback_calls.raw_feedback)
    hide_quote = _awaited(feedback_calls.hide_quote)
    erase_user = _awaited(accounts_calls.erase_user)
    audit = _awaited(accounts_calls.audit)
    alerts = _awaited(accounts_calls.alerts)
    test_alerts = _awaited(accounts_calls.test_alerts)
    service_level = _awaited(accounts_calls.service_level)

    async def wait(self, submission_id: str, on_event: OnEvent | None = None) -> Submission:
        """Wait until a submission is no longer in progress.

        Args:
            submission_id: The submission's id, or an alias like ``org/model@champion``.
            on_event: Called with each event on the way.

        Returns:
            The Submission, as it is then.

        Raises:
            SubmissionNotFound: There is no such submission, or it is another developer's.
        """
        seen = 0
        while True:
            async for event in self.events(submission_id, after=seen):
                seen = event.seq
                if on_event is not None:
                    on_event(event)
            submission = await self.submission(submission_id)
            if not submission.is_in_progress:
                return submission

    async def close(self) -> None:
        """Close the connections."""
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
    """Take what is not given from the profile, whose key goes to the profile's server only."""
    if url is not None and key is not None:
        profile = Profile(url, key)
    else:
        stored = Profile.load()
        profile = Profile(url or stored.url, key).with_key_of(stored)
    return Address(profile.url, profile.key)
