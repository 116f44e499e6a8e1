"""`guanaco recipe`, `costs` and `plan`: which GPUs serve a submission, what they cost, and what some traffic needs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from guanaco.errors import InvalidInput
from guanaco_cli import words
from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.installation import has_platform, needs_platform, read_settings
from guanaco_cli.options import AsJson, Quantization, SubmissionId

if TYPE_CHECKING:
    from guanaco.costs import Costs, SubmissionCost
    from guanaco.plans import GpuPlan, PlanComparison, PlanRequest
    from guanaco.recipes import Recipe, RecipeStatus

app = typer.Typer()

Gpu = Annotated[str | None, typer.Option(metavar="TYPE", help="H100, MI325X, …")]
Gpus = Annotated[int | None, typer.Option(help="GPUs of one replica.")]
Nodes = Annotated[int | None, typer.Option(help="Machines that share one replica.")]
Cpus = Annotated[int | None, typer.Option(help="CPUs of each machine.")]
Memory = Annotated[
    float | None, typer.Option("--memory-gib", help="Memory of each machine, in GiB.")
]
Tensor = Annotated[int | None, typer.Option(help="GPUs over which each layer is split.")]
Data = Annotated[int | None, typer.Option(help="Groups of GPUs that each hold the layers.")]
Expert = Annotated[
    bool | None,
    typer.Option(
        "--expert-parallel/--no-expert-parallel", help="Spread a mixture's experts whole."
    ),
]
Utilization = Annotated[float | None, typer.Option(help="Share of each GPU's memory, 0.1 to 0.98.")]
KvCache = Annotated[Literal["auto", "fp8"] | None, typer.Option(help="Type of the KV cache.")]
MaxNumSeqs = Annotated[int | None, typer.Option(help="Sessions that generate at once.")]
Flags = Annotated[
    list[str] | None,
    typer.Option("--flag", metavar="--NAME=VALUE", help="A further vLLM flag; may be repeated."),
]
Variables = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME=VALUE", help="A variable; may be repeated."),
]
Clear = Annotated[bool, typer.Option("--clear", help="Leave all to the platform again.")]


@app.command(epilog="Example: guanaco recipe org-model_v1 --gpu H100 --gpus 2")
def recipe(
    submission_id: SubmissionId,
    gpu: Gpu = None,
    gpus: Gpus = None,
    nodes: Nodes = None,
    tensor_parallel: Tensor = None,
    data_parallel: Data = None,
    expert_parallel: Expert = None,
    gpu_memory_utilization: Utilization = None,
    kv_cache_dtype: KvCache = None,
    max_num_seqs: MaxNumSeqs = None,
    cpus: Cpus = None,
    memory_gib: Memory = None,
    flag: Flags = None,
    env: Variables = None,
    clear: Clear = False,
    as_json: AsJson = False,
) -> None:
    """Show which GPUs serve a submission, or set it (admin).

    With options, set parts of the recipe for the next redeploy.
    """
    given: dict[str, Any] = {
        "gpu": gpu,
        "gpus": gpus,
        "nodes": nodes,
        "tensor_parallel": tensor_parallel,
        "data_parallel": data_parallel,
        "expert_parallel": expert_parallel,
        "gpu_memory_utilization": gpu_memory_utilization,
        "kv_cache_dtype": kv_cache_dtype,
        "max_num_seqs": max_num_seqs,
        "cpus": cpus,
        "memory_bytes": None if memory_gib is None else int(memory_gib * 2**30),
        "flags": flag,
        "environment": dict(_pair(text) for text in env) if env else None,
    }
    wanted = {name: value for name, value in given.items() if value is not None}
    if clear and wanted:
        raise InvalidInput("--clear takes back what was set, so no other option goes with it.")
    status = _send(submission_id, wanted, is_set=clear or bool(wanted))
    if as_json:
        console.json(status)
    else:
        _print_recipe(status)
        if clear or wanted:
            console.say(f"It counts from the next `guanaco redeploy {submission_id}` on.")


def _send(submission_id: str, wanted: dict[str, Any], *, is_set: bool) -> RecipeStatus:
    from guanaco.recipes import RecipeOverride

    override = RecipeOverride(**wanted)
    with connect() as client:
        return (
            client.set_recipe(submission_id, override) if is_set else client.recipe(submission_id)
        )


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise InvalidInput(f"--env takes NAME=VALUE, and {text[:80]!r} has no =.")
    return name, value


def _print_recipe(status: RecipeStatus) -> None:
    served = _facts(status.served) if status.served else {}
    wanted = status.override.model_dump(mode="json") if status.override else {}
    rows = [
        (label, served.get(label, ""), _format_value(wanted.get(OVERRIDES.get(label, label))))
        for label in LABELS
    ]
    if rows := [row for row in rows if any(row[1:])]:
        console.table(("", "served", "set by an admin"), rows)
    if status.served is None:
        console.say("It is not served on GPUs now.")


LABELS = (
    "gpu_type", "gpu_count", "nodes", "tensor_parallel", "data_parallel", "expert_parallel", "gpu_memory_utilization",
    "kv_cache_dtype", "quantization", "max_num_seqs", "max_model_len", "sessions", "flags", "environment", "image",
    "machine",
)  # fmt: skip
OVERRIDES = {"gpu_type": "gpu", "gpu_count": "gpus"}


def _facts(recipe: Recipe) -> dict[str, str]:
    return {label: _format_value(value) for label, value in recipe.model_dump(mode="json").items()}


def _format_value(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={text}" for name, text in value.items())
    if isinstance(value, list):
        return " ".join(str(item) for item in value)
    return "" if value is None else str(value)


@app.command(epilog="Example: guanaco costs --month 2026-11")
def costs(
    submission_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Only this submission, since it began.")
    ] = None,
    month: Annotated[
        str | None, typer.Option(metavar="YYYY-MM", help="A calendar month, UTC. [default: this]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the costs of GPUs: of one submission, or of all (admin)."""
    if submission_id is not None and month is not None:
        raise InvalidInput("A submission's cost is since it began, so --month does not go with it.")
    since, until = _month(month) if month else (None, None)
    with connect() as client:
        if submission_id is not None:
            _print_cost(client.cost(submission_id), as_json)
        else:
            _print_costs(client.costs(since=since, until=until), as_json)


def _month(text: str) -> tuple[datetime, datetime]:
    try:
        first = datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC)
    except ValueError:
        raise InvalidInput(f"--month takes a month like 2026-11, and not {text[:20]!r}.") from None
    year, month = (first.year + 1, 1) if first.month == 12 else (first.year, first.month + 1)
    return first, first.replace(year=year, month=month)


def _print_cost(cost: SubmissionCost, as_json: bool) -> None:
    if as_json:
        console.json(cost)
        return
    console.line(
        f"{cost.submission_id}: {cost.gpu_hours:,.1f} GPU hours, {cost.cost:,.2f} {cost.currency}"
        f" since {words.moment(cost.since)}; {cost.gpus_now} GPUs now"
    )


def _print_costs(found: Costs, as_json: bool) -> None:
    if as_json:
        console.json(found)
        return
    console.line(
        f"{found.gpu_hours:,.1f} GPU hours, {found.cost:,.2f} {found.currency},"
        f" {words.moment(found.since)} to {words.moment(found.until)}"
    )
    console.table(
        ("developer", "GPU hours>", f"{found.currency}>", "budget>", "used>"),
        [
            (
                one.developer,
                f"{one.gpu_hours:,.1f}",
                f"{one.cost:,.2f}",
                "" if one.budget is None else f"{one.budget:,.2f}",
                words.percent(one.cost / one.budget) if one.budget else "",
            )
            for one in found.developers
        ],
    )
    console.table(
        ("submission", "developer", "GPU hours>", f"{found.currency}>", "GPUs now>"),
        [
            (
                one.submission_id,
                one.developer,
                f"{one.gpu_hours:,.1f}",
                f"{one.cost:,.2f}",
                one.gpus_now,
            )
            for one in found.submissions
        ],
    )


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A Hub repo, a folder with a config.json, or llama-3-8b, qwen3-235b-a22b, qwen3-235b-a22b-fp8.",
    ),
]
PerSecond = Annotated[float, typer.Option("--messages-per-second", help="Messages that come.")]
Context = Annotated[
    int, typer.Option("--context-tokens", help="A message's prompt: persona and earlier turns.")
]
Output = Annotated[int, typer.Option("--output-tokens", help="A reply.")]
GpuTypes = Annotated[
    list[str] | None, typer.Option("--gpu", metavar="TYPE", help="Only this type; may be repeated.")
]
HitRate = Annotated[
    float,
    typer.Option(
        "--prefix-hit-rate",
        help="Share of the prompt that the prefix cache has, when sessions stay with their replica.",
    ),
]
Speed = Annotated[
    float,
    typer.Option("--tokens-per-second", help="Least number of tokens a second for each session."),
]
COLUMNS = (
    "GPU", "a replica", "weights>", "sessions>", "batch>", "tokens/s>", "each>", "first token>",
    "replicas>", "GPUs>", "a month>", "GPUs uncached>", "machine",
)  # fmt: skip


@app.command(
    epilog="Example: guanaco plan llama-3-8b --messages-per-second 50 --gpu H100 --gpu L40S"
)
def plan(
    model: Model,
    messages_per_second: PerSecond = 10,
    context_tokens: Context = 2_048,
    output_tokens: Output = 128,
    gpu: GpuTypes = None,
    prefix_hit_rate: HitRate = 0.8,
    tokens_per_second: Speed = 20,
    quantization: Quantization = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the GPUs, replicas and money that traffic needs.

    There is an estimate for each type of GPU. Where the platform is not installed, the server does."""
    from pydantic import ValidationError

    from guanaco.errors.validation import one_sentence
    from guanaco.plans import PlanRequest

    try:
        request = PlanRequest(
            model=model,
            messages_per_second=messages_per_second,
            context_tokens=context_tokens,
            output_tokens=output_tokens,
            prefix_hit_rate=prefix_hit_rate,
            tokens_per_second=tokens_per_second,
            gpus=gpu or [],
            quantization=quantization,
        )
    except ValidationError as error:
        raise InvalidInput(one_sentence(error)) from None
    found = _compare(request)
    if as_json:
        console.json(found)
    else:
        _print_plans(found)


def _compare(request: PlanRequest) -> PlanComparison:
    import asyncio

    if not has_platform():
        if Path(request.model).expanduser().exists():
            raise InvalidInput(
                "The server cannot read a folder of this machine.",
                hint="Install the platform here, pip install 'guanaco-platform[server]', or name a repo.",
            )
        with connect() as client:
            return client.plan(request)
    with needs_platform():
        from guanaco_server.planning import compare
    return asyncio.run(compare(request, read_settings({})))


def _print_plans(found: PlanComparison) -> None:
    traffic = found.traffic
    met = f", {words.count(found.active_parameters)} a token" if found.is_mixture else ""
    console.line(
        f"{found.model}: {words.count(found.parameters)} parameters{met}, {words.size(found.weight_bytes)} of weights"
    )
    console.line(
        f"{traffic.messages_per_second:g} messages/s of {traffic.context_tokens:,} + {traffic.output_tokens:,} tokens,"
        f" {traffic.prefix_hit_rate:.0%} of each prompt cached, at least {traffic.tokens_per_second:g} tokens/s a session"
    )
    console.table(COLUMNS, [_row(one.gpu, one.plan) for one in found.plans])
    console.say(
        "These are estimates from data sheets, none of them measured; docs/recipes.md has the formulas."
    )


def _row(name: str, plan: GpuPlan | None) -> tuple[object, ...]:
    if plan is None:
        return (name, "too small or too slow", *[""] * (len(COLUMNS) - 2))
    capacity, memory = plan.capacity_a_replica, plan.memory_a_gpu
    return (
        name,
        _split(plan.recipe),
        words.size(memory.weights * plan.recipe.gpu_count),
        f"{memory.sessions:,}",
        capacity.batch,
        f"{capacity.tokens_per_second:,.0f}",
        f"{capacity.session_tokens_per_second:,.0f}",
        words.milliseconds(capacity.first_token_s * 1_000),
        f"{plan.replicas:,}",
        f"{plan.gpus:,}",
        f"{plan.cost_per_month:,.0f}",
        "never" if plan.uncached_gpus is None else f"{plan.uncached_gpus:,}",
        _machine(plan.recipe),
    )


def _machine(recipe: Recipe) -> str:
    """Describe what a replica takes of its machine beside GPUs."""
    needs = recipe.machine
    if needs is None:
        return ""
    return (
        f"{needs.cpus} CPUs, {words.size(needs.memory_bytes)}, {words.size(needs.disk_bytes)} disk"
    )


def _split(recipe: Recipe) -> str:
    sizes = {"TP": recipe.tensor_parallel, "DP": recipe.data_parallel, "EP": recipe.expert_parallel}
    split = " ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
    cache = " fp8 KV" if recipe.kv_cache_dtype == "fp8" else ""
    return f"{recipe.gpu_count} GPU{'s' if recipe.gpu_count > 1 else ''} {split}".strip() + cache
