"""`guanaco plan`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from guanaco_cli import words
from guanaco_cli.console import console
from guanaco_cli.installation import needs_platform, read_settings
from guanaco_cli.options import AsJson, Quantization

if TYPE_CHECKING:
    from guanaco_server.planning import Comparison, TrafficPlan

app = typer.Typer()

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
Gpus = Annotated[
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
    float, typer.Option("--tokens-per-second", help="What each session must get at least.")
]
COLUMNS = (
    "GPU", "a replica", "weights>", "sessions>", "batch>", "tokens/s>", "each>", "first token>",
    "replicas>", "GPUs>", "a month>", "GPUs uncached>",
)  # fmt: skip


@app.command(
    epilog="Example: guanaco plan llama-3-8b --messages-per-second 50 --gpu H100 --gpu L40S"
)
def plan(
    model: Model,
    messages_per_second: PerSecond = 10,
    context_tokens: Context = 2_048,
    output_tokens: Output = 128,
    gpu: Gpus = None,
    prefix_hit_rate: HitRate = 0.8,
    tokens_per_second: Speed = 20,
    quantization: Quantization = None,
    as_json: AsJson = False,
) -> None:
    """What some traffic needs: GPUs, replicas and money, one type of GPU beside the other."""
    import asyncio

    with needs_platform():
        from guanaco.submissions import Quantization as Kind
        from guanaco_server.planning import ExpectedTraffic, compare
    traffic = ExpectedTraffic(
        messages_per_second, context_tokens, output_tokens, prefix_hit_rate, tokens_per_second
    )
    kind = Kind(quantization) if quantization else None
    found = asyncio.run(compare(model, traffic, gpu or [], kind, read_settings({})))
    if as_json:
        console.json(_document(found))
    else:
        _print(found)


def _print(found: Comparison) -> None:
    traffic, (total, active) = found.traffic, found.parameters
    met = f", {words.count(active)} a token" if found.model.shape.experts else ""
    console.line(
        f"{found.model.name}: {words.count(total)} parameters{met}, {words.size(found.weight_bytes)} of weights"
    )
    console.line(
        f"{traffic.messages_per_second:g} messages/s of {traffic.context_tokens:,} + {traffic.output_tokens:,} tokens,"
        f" {traffic.prefix_hit_rate:.0%} of each prompt cached, at least {traffic.tokens_per_second:g} tokens/s a session"
    )
    console.table(COLUMNS, [_row(name, plan) for name, plan in found.plans])
    console.say(
        "These are estimates from data sheets, none of them measured; docs/recipes.md has the formulas."
    )


def _row(name: str, plan: TrafficPlan | None) -> tuple[object, ...]:
    if plan is None:
        return (name, "too small or too slow", *[""] * (len(COLUMNS) - 2))
    capacity, recipe = plan.capacity, plan.recipe
    return (
        name,
        _split(plan),
        words.size(plan.memory.weights * recipe.gpu_count),
        f"{plan.memory.sessions:,}",
        capacity.batch,
        f"{capacity.tokens_per_second:,.0f}",
        f"{capacity.session_tokens_per_second:,.0f}",
        words.milliseconds(capacity.first_token_s * 1_000),
        f"{plan.replicas:,}",
        f"{plan.gpus:,}",
        f"{plan.cost_per_month:,.0f}",
        "never" if plan.uncached_gpus is None else f"{plan.uncached_gpus:,}",
    )


def _split(plan: TrafficPlan) -> str:
    recipe = plan.recipe
    sizes = {"TP": recipe.tensor_parallel, "DP": recipe.data_parallel, "EP": recipe.expert_parallel}
    split = " ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
    cache = " fp8 KV" if recipe.kv_cache_dtype == "fp8" else ""
    return f"{recipe.gpu_count} GPU{'s' if recipe.gpu_count > 1 else ''} {split}".strip() + cache


def _document(found: Comparison) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "model": found.model.name,
        "traffic": asdict(found.traffic),
        "plans": [
            {"gpu": name, "plan": None if plan is None else _plan_document(plan)}
            for name, plan in found.plans
        ],
    }


def _plan_document(plan: TrafficPlan) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "recipe": plan.recipe.model_dump(mode="json"),
        "memory_a_gpu": asdict(plan.memory),
        "capacity_a_replica": asdict(plan.capacity),
        "replicas": plan.replicas,
        "gpus": plan.gpus,
        "cost_per_month": plan.cost_per_month,
        "uncached_gpus": plan.uncached_gpus,
    }
