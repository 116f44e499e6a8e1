"""Calls about submissions: to enter, check, read, serve and withdraw them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from guanaco.aliases import TagChanges
from guanaco.calls.wire import (
    API,
    Call,
    StreamCall,
    get,
    hub_token_header,
    of_submission,
    post,
    put,
    to_json,
)
from guanaco.cards import ModelCard
from guanaco.checks import RepoCheck
from guanaco.contract import reader
from guanaco.formatters import load_formatter, stored_reference
from guanaco.leaderboard import SubmissionMetrics
from guanaco.prompts import Prompt, PromptFormatter
from guanaco.sse import ServerEvent
from guanaco.submissions import (
    GenerationParams,
    PublicPageRequest,
    Quantization,
    RedeployRequest,
    StressReport,
    Submission,
    SubmissionEvent,
    SubmissionKind,
    SubmissionRequest,
    WeightDtype,
)

CHECK_TIMEOUT_S = 180.0  # longer than the server takes at most, its queue included


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
    show_prompt: bool = False,
    idempotency_key: str | None = None,
    hub_token: str | None = None,
) -> Call[Submission]:
    """Enter a Hub repo; the answer is queued, not yet checked. Formatters may name a preset or a file.

    With ``params.best_of`` over 1 the submission ``reward``, one of ``kind="reward"``, picks the reply.

    ``hub_token`` is your own token for the Hub, for a private or gated repo. The platform keeps it encrypted and deletes it
    when the weights are serialized.

    It carries a random Idempotency-Key unless you give one, so sending it again makes no second submission.

    Args:
        repo: The Hugging Face repo, ``org/name``.
        revision: A branch, tag or commit; None for ``main``.
        name: The name on the leaderboard; None for the repo's.
        params: The generation parameters; None for the defaults.
        formatter: The prompt: a preset's name, a file's path, ``chat-template``, a stored prompt's ``name@version`` or ``name@label``, or a prompt of :mod:`guanaco.prompts`.
        dtype: The type of the served weights.
        quantization: How the weights are quantized when they are served; None for as they are.
        kind: Whether it is a chat model or a reward model.
        reward: The id of the reward model that picks among candidates; None for the platform's.
        reward_formatter: How the reward model sees the conversation.
        show_prompt: Whether everybody sees the prompt on the model's public page.
        idempotency_key: With a key of your own the request is sent again when the connection breaks, and done once.
        hub_token: Your own Hub token, for a private or gated repo. It is deleted when the weights are fetched.

    Returns:
        The Submission, as it is then.

    Raises:
        InvalidInput: A value is out of range, or names nothing that is there.
        QuotaExceeded: You have as many submissions as you may have.
        TooManySubmissions: You have submitted as often within an hour as you may.
    """
    request = _request(
        repo, revision, name, params, formatter, dtype, quantization, kind, reward, reward_formatter
    )
    request = request.model_copy(update={"show_prompt": show_prompt})
    return Call(
        method="POST",
        path=f"{API}/submissions",
        json=to_json(request),
        headers={"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        | hub_token_header(hub_token),
        parse=reader(Submission).from_json,
        is_repeatable=True,
    )


def check(
    repo: str,
    *,
    revision: str | None = None,
    params: GenerationParams | None = None,
    formatter: Prompt | str | None = None,
    dtype: WeightDtype | str = WeightDtype.AUTO,
    quantization: Quantization | str | None = None,
    kind: SubmissionKind | str = SubmissionKind.CHAT,
    reward: str | None = None,
    reward_formatter: Prompt | str | None = None,
    hub_token: str | None = None,
) -> Call[RepoCheck]:
    """Carry out all checks of the first two stages, and submit nothing. The answer says what a submission would fail with.

    Args:
        repo: The Hugging Face repo, ``org/name``.
        revision: A branch, tag or commit; None for ``main``.
        params: The generation parameters; None for the defaults.
        formatter: The prompt: a preset's name, a file's path, ``chat-template``, a stored prompt's ``name@version`` or ``name@label``, or a prompt of :mod:`guanaco.prompts`.
        dtype: The type of the served weights.
        quantization: How the weights are quantized when they are served; None for as they are.
        kind: Whether it is a chat model or a reward model.
        reward: The id of the reward model that picks among candidates; None for the platform's.
        reward_formatter: How the reward model sees the conversation.
        hub_token: Your own Hub token, for a private or gated repo. It is deleted when the weights are fetched.

    Returns:
        The RepoCheck.

    Raises:
        InvalidInput: A value is out of range, or names nothing that is there.
    """
    request = _request(
        repo, revision, None, params, formatter, dtype, quantization, kind, reward, reward_formatter
    )
    called = post("/checks", RepoCheck, request, timeout_s=CHECK_TIMEOUT_S)
    return replace(called, headers=hub_token_header(hub_token), is_repeatable=True)


def submissions(*, tags: Sequence[str] = ()) -> Call[list[Submission]]:
    """List your submissions, newest first; everybody's as an admin.

    Args:
        tags: Only submissions that have all of these.

    Returns:
        A list of Submission objects.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    call = get("/submissions", list[Submission])
    return replace(call, params={"tag": tuple(tags)}) if tags else call


def card(submission_id: str) -> Call[ModelCard]:
    """Read the model card: what the repo's README.md said when it was checked, Markdown that a stranger wrote.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.

    Returns:
        The ModelCard.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
    """
    return get(of_submission(submission_id, "card"), ModelCard)


def set_tags(submission_id: str, tags: Sequence[str]) -> Call[Submission]:
    """Replace a submission's tags, by which `submissions` can be filtered.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.
        tags: Words of your own.

    Returns:
        The Submission, as it is then.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
    """
    return put(of_submission(submission_id, "tags"), Submission, TagChanges(tags=list(tags)))


def show_prompt(submission_id: str, is_shown: bool = True) -> Call[Submission]:
    """Show a submission's prompt on its public page, or show it no longer.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.
        is_shown: Whether everybody sees it from now on.

    Returns:
        The Submission, as it is then.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
    """
    request = PublicPageRequest(show_prompt=is_shown)
    return put(of_submission(submission_id, "public-page"), Submission, request)


def submission(submission_id: str) -> Call[Submission]:
    """Read one submission with its stages.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.

    Returns:
        The Submission, as it is then.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
    """
    return get(of_submission(submission_id), Submission)


def events(
    submission_id: str, *, after: int = 0, follow: bool = True
) -> StreamCall[SubmissionEvent]:
    """Read the events numbered over ``after``, then each as it comes, until the submission is no longer in progress.

    A broken connection is resumed where it was. Without ``follow``, it ends with what is recorded.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.
        after: The number of the last event that you know.
        follow: Whether to wait for new events.

    Returns:
        The SubmissionEvent objects, one after another.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
    """
    return StreamCall(
        method="GET",
        path=f"{API}{of_submission(submission_id, 'events')}",
        params={} if follow else {"follow": "false"},
        headers={"Last-Event-ID": str(after)} if after else {},
        parse=_parse_submission_event,
        is_resumable=True,
    )


def stress(submission_id: str) -> Call[StressReport]:
    """Read what the stress check measured.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.

    Returns:
        The StressReport.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
        ReportNotFound: The stress check has not run yet.
    """
    return get(of_submission(submission_id, "stress"), StressReport)


def cancel(submission_id: str) -> Call[Submission]:
    """Stop the pipeline and clean up.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.

    Returns:
        The Submission, as it is then.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
    """
    return _change(submission_id, "cancel")


def deactivate(submission_id: str) -> Call[Submission]:
    """Take no new conversations; the open ones go on.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.

    Returns:
        The Submission, as it is then.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
    """
    return _change(submission_id, "deactivate")


def reactivate(submission_id: str) -> Call[Submission]:
    """Take new conversations again.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.

    Returns:
        The Submission, as it is then.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
    """
    return _change(submission_id, "reactivate")


def redeploy(
    submission_id: str,
    *,
    canary: float | None = None,
    canary_s: float = 3_600,
    hub_token: str | None = None,
) -> Call[Submission]:
    """Run the pipeline again, at the same commit. A private or gated repo needs your Hub token again.

    The served version stays until the new one takes its place. With a ``canary``, a share between 0 and 1, that takes
    this share of the new conversations first: it is stopped if it is worse, and takes over after ``canary_s`` if not.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.
        canary: The share of new conversations, between 0 and 1, that the new version takes at first.
        canary_s: After so many seconds without being worse, the canary takes over.
        hub_token: Your own Hub token, for a private or gated repo. It is deleted when the weights are fetched.

    Returns:
        The Submission, as it is then.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
        RedeployInProgress: The last redeploy has not ended.
    """
    request = RedeployRequest(canary=canary, canary_s=canary_s) if canary is not None else None
    call = post(of_submission(submission_id, "redeploy"), Submission, request)
    return replace(call, headers=hub_token_header(hub_token))


def promote(
    submission_id: str,
    *,
    canary: float | None = None,
    canary_s: float = 3_600,
    hub_token: str | None = None,
) -> Call[Submission]:
    """Redeploy a LoRA adapter that is served on its base's model server, merged into its base.

    As for ``redeploy``, the version that serves goes on until the merged one takes its place; ``rollback`` brings it back.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.
        canary: The share of new conversations, between 0 and 1, that the new version takes at first.
        canary_s: After so many seconds without being worse, the canary takes over.
        hub_token: Your own Hub token, for a private or gated repo. It is deleted when the weights are fetched.

    Returns:
        The Submission, as it is then.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
        RedeployInProgress: The last redeploy has not ended.
        InvalidInput: It is no adapter, or is merged already.
    """
    request = RedeployRequest(canary=canary, canary_s=canary_s, promote=True)
    call = post(of_submission(submission_id, "redeploy"), Submission, request)
    return replace(call, headers=hub_token_header(hub_token))


def rollback(submission_id: str) -> Call[Submission]:
    """End the redeploy that is under way; or else bring back the version that the last one replaced.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.

    Returns:
        The Submission, as it is then.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
        NothingToRollBack: No redeploy has replaced a version.
    """
    return _change(submission_id, "rollback")


def delete(submission_id: str) -> Call[Submission]:
    """Delete a submission that failed or was cancelled before it was live.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.

    Returns:
        The Submission, as it is then.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
        CannotDelete: It was live, or is in progress.
    """
    return Call(
        method="DELETE",
        path=f"{API}{of_submission(submission_id)}",
        parse=reader(Submission).from_json,
    )


def teardown(submission_id: str) -> Call[Submission]:
    """Stop its model server for good; its feedback stays readable.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.

    Returns:
        The Submission, as it is then.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
    """
    return _change(submission_id, "teardown")


def metrics(submission_id: str, *, competition: str | None = None) -> Call[SubmissionMetrics]:
    """Return the submission's metrics: ratings, conversations, and how they went.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.
        competition: The id of the competition whose conversations are counted; otherwise those of all.

    Returns:
        The SubmissionMetrics.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
        CompetitionNotFound: There is no such competition.
    """
    params = {} if competition is None else {"competition": competition}
    return get(of_submission(submission_id, "metrics"), SubmissionMetrics, params=params)


def _request(
    repo: str,
    revision: str | None,
    name: str | None,
    params: GenerationParams | None,
    formatter: Prompt | str | None,
    dtype: WeightDtype | str,
    quantization: Quantization | str | None,
    kind: SubmissionKind | str,
    reward: str | None,
    reward_formatter: Prompt | str | None,
) -> SubmissionRequest:
    reference = str(formatter) if stored_reference(formatter) is not None else None
    return SubmissionRequest(
        repo=repo,
        revision=revision,
        name=name,
        params=params or GenerationParams(),
        formatter=(_formatter(formatter) if reference is None else None) or PromptFormatter(),
        prompt=reference,
        dtype=cast(WeightDtype, dtype),  # pydantic takes the plain word too
        quantization=cast(Quantization | None, quantization),
        kind=cast(SubmissionKind, kind),
        reward=reward,
        reward_formatter=_formatter(reward_formatter),
    )


def _formatter(given: Prompt | str | None) -> Prompt | None:
    return load_formatter(given) if isinstance(given, str) else given


def _change(submission_id: str, verb: str) -> Call[Submission]:
    return post(of_submission(submission_id, verb), Submission)


def _parse_submission_event(event: ServerEvent) -> SubmissionEvent:
    return reader(SubmissionEvent).from_json(event.data)
