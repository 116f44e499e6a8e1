"""Performs the stages. Each may be run again after a kill: it looks before it makes, and names what it makes after the submission.

The stages and their order are in ``guanaco.submissions.Stage``; each function here is marked with the stage that it
performs. It gets its submission fresh from the database, and returns the facts that it found out, which are recorded
in the same transaction as the stage's end. Its inputs are the submission's columns, never what an earlier stage left
in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import SecretStr

from guanaco.bots import BOTS
from guanaco.errors import (
    BadPrompt,
    HubTokenGone,
    ModelServerDied,
    ModelTooLarge,
    PromptFailed,
    RepoGated,
    RepoNotFound,
    StressCheckFailed,
)
from guanaco.prompts import Prompt
from guanaco.submissions import Level, Stage, Submission
from guanaco_server.artifacts.checking.checks import (
    TOKENIZER_NAME,
    CheckedModel,
    CheckLimits,
    check_context,
    check_quantization,
    require_rows,
)
from guanaco_server.artifacts.checking.model_card import StoredCard
from guanaco_server.artifacts.checking.process import RepoChecker
from guanaco_server.artifacts.hub.hub import Hub, RepoFile, RepoSnapshot
from guanaco_server.artifacts.service import ArtifactService, Log
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.formats.manifest import Manifest
from guanaco_server.prompts.service import PromptService, is_by_chat_template
from guanaco_server.prompts.templates.files import FILES
from guanaco_server.scaling.replicas import capacity_shown
from guanaco_server.submissions.pipeline.adapter_choice import (
    AdapterPolicy,
    merged_after,
    why_merged,
)
from guanaco_server.submissions.pipeline.checks.load import LoadCheck
from guanaco_server.submissions.pipeline.records import PipelineRun, RunRecords
from guanaco_server.submissions.pipeline.server_start import AdapterNotLoaded, ServerStart
from guanaco_server.submissions.pipeline.sweep_order import SharedChecks
from guanaco_server.submissions.quotas.service import QuotaService
from guanaco_server.tokenization.service import Tokenizers

Facts = dict[str, Any]
T = TypeVar("T")


PIECE_BYTES = 4_194_304
MAX_BYTES = 4_000_000  # Gemma 3's tokenizer_config.json has 1.2 MB


@dataclass(frozen=True)
class StageParts:
    """The services that the stages use."""

    records: RunRecords
    quotas: QuotaService
    hub: Hub
    limits: CheckLimits
    checker: RepoChecker
    artifacts: ArtifactService
    prompts: PromptService
    tokenizers: Tokenizers
    deployments: DeploymentService
    server_start: ServerStart
    load_check: LoadCheck
    shared_checks: SharedChecks = field(default_factory=SharedChecks)
    adapters: AdapterPolicy = field(default_factory=AdapterPolicy)


StageFunction = Callable[[StageParts, PipelineRun, Submission], Awaitable[Facts]]
FUNCTIONS: dict[Stage, StageFunction] = {}


def performs(stage: Stage) -> Callable[[StageFunction], StageFunction]:
    """Mark the function that performs a stage."""

    def note(function: StageFunction) -> StageFunction:
        FUNCTIONS[stage] = function
        return function

    return note


@performs(Stage.RESOLVE)
async def resolve(parts: StageParts, run: PipelineRun, submission: Submission) -> Facts:
    """Pin the commit; a redeploy keeps the one it had."""
    token = await parts.records.hub_token(run)
    pinned: Facts = {}
    if submission.sweep is not None and submission.commit is None:
        pinned = await parts.records.found_by_sweep(submission)
        submission = submission.model_copy(update=pinned)
    with _explain_missing_token(token, submission.commit and submission.repo):
        snapshot = await _snapshot(hub_of(parts, token), parts, submission)
    await parts.records.log(run, Stage.RESOLVE, f"{snapshot.repo} is at commit {snapshot.commit}.")
    return pinned | {"commit": snapshot.commit}


@performs(Stage.CHECK)
async def check(parts: StageParts, run: PipelineRun, submission: Submission) -> Facts:
    await parts.deployments.servers.expect_server()
    token = await parts.records.hub_token(run)
    with _explain_missing_token(token, submission.base_commit and submission.base_repo):
        model = await examine(parts, hub_of(parts, token), submission)
    ended = await parts.quotas.take_disk(submission.id, model.weight_bytes)
    if ended is not None:
        await parts.artifacts.keep_within(ended.room_bytes, ended.size_bytes)
    if model.adapter and model.base:
        await parts.records.log(
            run,
            Stage.CHECK,
            f"A LoRA adapter on {len(model.adapter.modules)} modules of {model.base.repo} at commit {model.base.commit}.",
        )
    await parts.records.log(
        run,
        Stage.CHECK,
        f"{model.architecture} with {model.parameter_count:,} parameters in {model.weight_bytes:,} bytes of safetensors.",
    )
    facts: Facts = {
        "card": StoredCard.of(model.card) if model.card else None,
        "license": model.card.license if model.card else None,
        "architecture": model.architecture,
        "parameter_count": model.parameter_count,
        "weight_bytes": model.weight_bytes,
    }
    if model.base is None:
        return facts
    return facts | {"base_repo": model.base.repo, "base_commit": model.base.commit}


@performs(Stage.SERIALIZE)
async def serialize(parts: StageParts, run: PipelineRun, submission: Submission) -> Facts:
    token = await parts.records.hub_token(run)
    hub = hub_of(parts, token)
    snapshot, model = await _checked(hub, parts, submission)

    async def log(message: str, level: Level) -> None:
        await parts.records.log(run, Stage.SERIALIZE, message, level=level)

    merged_because: str | None = None
    if model.adapter is None:
        manifest = await parts.artifacts.ensure(
            submission.id, snapshot, model, submission.dtype, token, log
        )
    else:
        manifest, merged_because = await _serialize_adapter(
            parts, run, submission, snapshot, model, token, log
        )
    await log(
        f"Artifact {manifest.key[:12]} holds {manifest.tensor_count} tensors, {manifest.size_bytes:,} bytes.",
        Level.INFO,
    )
    return {"artifact_key": manifest.key, "merged_because": merged_because}


async def _serialize_adapter(
    parts: StageParts,
    run: PipelineRun,
    submission: Submission,
    snapshot: RepoSnapshot,
    model: CheckedModel,
    token: SecretStr | None,
    log: Log,
) -> tuple[Manifest, str | None]:
    """Make the base's artifact, which all that use it share, and the adapter's own; or one of both merged. Return why it is merged, if it is."""
    assert model.adapter is not None, "it is one"
    assert model.base is not None, "an adapter has a base"
    dtype = submission.dtype
    why = why_merged(parts.adapters, submission, model) or await parts.records.refused_because(run)
    if why is not None:
        await log(f"The adapter is merged into its base. {why}", Level.INFO)
        merged = await parts.artifacts.ensure(submission.id, snapshot, model, dtype, token, log)
        return merged, why
    alone = replace(model, adapter=None, base=None)
    base = await parts.artifacts.ensure(submission.id, model.base, alone, dtype, token, log)
    if why := await parts.server_start.why_no_adapters(run, submission, base.key):
        await log(f"The adapter is merged into its base. {why}", Level.INFO)
        merged = await parts.artifacts.ensure(submission.id, snapshot, model, dtype, token, log)
        return merged, why
    await log(
        "The adapter is not merged: its base's model server adds it to each token.", Level.INFO
    )
    small = replace(
        model,
        weight_bytes=model.adapter.weight_bytes,
        tensor_count=2 * len(model.adapter.modules),
    )
    added = await parts.artifacts.ensure(
        submission.id, snapshot, small, dtype, token, log, base_key=base.key
    )
    return added, None


@performs(Stage.DEPLOY)
async def deploy(parts: StageParts, run: PipelineRun, submission: Submission) -> Facts:
    """Start the model server and wait until it has generated. An adapter that its base's server does not load is merged."""
    try:
        await parts.server_start.run(run, submission)
    except AdapterNotLoaded as refusal:
        if await parts.records.restored(run) is not None:
            raise ModelServerDied(
                f"The model server does not load the adapter that was to be brought back: {refusal}",
                hint="`guanaco redeploy` merges it into its base.",
            ) from None
        merged = await _merge_refused(parts, run, submission, str(refusal))
        await parts.server_start.run(run, merged)
    return {}


async def _merge_refused(
    parts: StageParts, run: PipelineRun, submission: Submission, refusal: str
) -> Submission:
    """Serialize the adapter merged into its base, and record that in the adapter's place. The server of its base is no longer requested for it."""
    why = merged_after(refusal)
    await parts.records.log(run, Stage.DEPLOY, why, level=Level.WARNING)
    token = await parts.records.hub_token(run)

    async def log(message: str, level: Level) -> None:
        await parts.records.log(run, Stage.DEPLOY, message, level=level)

    with _explain_missing_token(token, submission.commit and submission.repo):
        snapshot, model = await _checked(hub_of(parts, token), parts, submission)
        manifest = await parts.artifacts.ensure(
            submission.id, snapshot, model, submission.dtype, token, log
        )
    facts: Facts = {"artifact_key": manifest.key, "merged_because": why}
    key = await parts.records.replace_artifact(run, facts)
    await parts.deployments.servers.stop_withdrawn(key)
    return submission.model_copy(update=facts)


@performs(Stage.STRESS)
async def stress(parts: StageParts, run: PipelineRun, submission: Submission) -> Facts:
    report = await parts.load_check.run(run, submission)
    await parts.records.save_report(run, report)
    key = await parts.records.deployment_key(run)
    await parts.deployments.note(key, capacity=capacity_shown(report))
    if not report.is_passed:
        raise StressCheckFailed(
            " ".join(report.reasons),
            hint=f"`guanaco stress {submission.id}` shows the report; a smaller model or fewer tokens answer faster.",
        )
    if report.reused is not None:
        await parts.records.log(
            run,
            Stage.STRESS,
            f"{report.reused.own_requests} requests of its own kept to every limit; the load is that of {report.reused.at:%Y-%m-%d %H:%M}.",
        )
        return {}
    first = f"time to first token p95 {report.ttft_ms.p95:.0f} ms, " if report.ttft_ms else ""
    if report.e2e_ms:
        await parts.records.log(
            run,
            Stage.STRESS,
            f"{report.requests} requests at {report.offered_rate:.3g} a second, {report.errors} errors; {first}whole answer p95 {report.e2e_ms.p95:.0f} ms.",
        )
    return {}


@performs(Stage.PUBLISH)
async def publish(parts: StageParts, run: PipelineRun, submission: Submission) -> Facts:
    """Make sure that the server still runs; the status is set with the stage's end."""
    await parts.server_start.require_ready(run)
    return {}


@contextmanager
def _explain_missing_token(token: SecretStr | None, opened_before: str | None) -> Iterator[None]:
    """HubTokenGone in place of the Hub's refusal of a repo that an earlier run has read, perhaps with a token."""
    try:
        yield
    except (RepoNotFound, RepoGated):
        if token is None and opened_before:
            raise HubTokenGone(opened_before) from None
        raise


def hub_of(parts: StageParts, token: SecretStr | None) -> Hub:
    """Return the Hub as the developer's own token opens it, if one was given; else its public repos."""
    return parts.hub.with_token(token.get_secret_value() if token else None)


async def _snapshot(hub: Hub, parts: StageParts, submission: Submission) -> RepoSnapshot:
    return await _once(
        parts,
        submission,
        "files",
        lambda: hub.resolve(submission.repo, submission.commit or submission.revision),
    )


async def _once(
    parts: StageParts, submission: Submission, what: str, find: Callable[[], Awaitable[T]]
) -> T:
    """Find it once for all variants of a sweep, and again for each other run."""
    if submission.sweep is None or submission.run != 1 or submission.commit is None:
        return await find()
    key = (submission.sweep, submission.commit, what)
    return await parts.shared_checks.get(key, find)


async def _checked(
    hub: Hub, parts: StageParts, submission: Submission
) -> tuple[RepoSnapshot, CheckedModel]:
    """Checked again where it is needed again: a few small requests, and nothing stale is trusted. Variants of a sweep share it."""
    snapshot = await _snapshot(hub, parts, submission)
    model = await _once(
        parts,
        submission,
        "model",
        lambda: parts.checker.check(
            hub, snapshot, parts.limits, submission.base_commit, submission.kind
        ),
    )
    check_context(model, submission.params, submission.kind)
    return snapshot, model


async def examine(parts: StageParts, hub: Hub, submission: Submission) -> CheckedModel:
    """Carry out every check of a repo that needs no weights. Raise the SubmissionFailure of the first that fails."""
    snapshot, model = await _checked(hub, parts, submission)
    if submission.quantization is not None:
        check_quantization(
            submission.quantization,
            is_quantized=model.is_quantized,
            has_experts=model.has_experts,
        )

    async def tokenizer_is_good() -> bool:
        await check_tokenizer(hub, snapshot, model, parts.tokenizers)
        return True

    await _once(parts, submission, "tokenizer", tokenizer_is_good)
    await check_prompt(hub, snapshot, model, parts.prompts, submission.formatter)
    return model


async def check_prompt(
    hub: Hub, snapshot: RepoSnapshot, model: CheckedModel, prompts: PromptService, formatter: Prompt
) -> None:
    """MissingFile for a chat template that the repo lacks, BadChatTemplate or BadPrompt for what cannot be rendered."""
    files = {}
    if is_by_chat_template(formatter):
        files = await _template_files(hub, _tokenizers_repo(snapshot, model))
    try:
        await prompts.check(formatter, files, next(iter(BOTS.values())))
    except PromptFailed as error:
        raise BadPrompt(
            error.detail,
            hint="Submit with another prompt; `guanaco prompts render` tries one without submitting it.",
        ) from None


async def check_tokenizer(
    hub: Hub, snapshot: RepoSnapshot, model: CheckedModel, tokenizers: Tokenizers
) -> None:
    """CorruptConfig or UnsupportedTokenizer for a tokenizer.json that cannot be served, or has more entries than the embedding.

    One that the serializer will make of a sentencepiece model is checked when it is there.
    """
    repo = _tokenizers_repo(snapshot, model)
    file = repo.file(TOKENIZER_NAME)
    if file is None:
        return
    facts = await tokenizers.examine(_pieces(hub, repo, file))
    require_rows(facts.entries, model)


async def _pieces(hub: Hub, repo: RepoSnapshot, file: RepoFile) -> AsyncIterator[bytes]:
    for start in range(0, file.size_bytes, PIECE_BYTES):
        length = min(PIECE_BYTES, file.size_bytes - start)
        yield await hub.read(repo, file.path, start, length)


def _tokenizers_repo(snapshot: RepoSnapshot, model: CheckedModel) -> RepoSnapshot:
    """Return an adapter's own, if it brings a tokenizer; else its base's."""
    if model.base is None or (model.adapter and model.adapter.small_files):
        return snapshot
    return model.base


async def _template_files(hub: Hub, snapshot: RepoSnapshot) -> dict[str, bytes]:
    files = {}
    for name in FILES:
        file = snapshot.file(name)
        if file is None:
            continue
        if file.size_bytes > MAX_BYTES:
            raise ModelTooLarge(f"{name} has {file.size_bytes:,} bytes; {MAX_BYTES:,} are allowed.")
        files[name] = await hub.read(snapshot, name, 0, file.size_bytes)
    return files
