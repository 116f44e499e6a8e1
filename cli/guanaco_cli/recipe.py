"""`guanaco recipe`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from guanaco.errors import InvalidInput
from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.options import AsJson, SubmissionId

if TYPE_CHECKING:
    from guanaco.recipes import Recipe, RecipeStatus

app = typer.Typer()

Gpu = Annotated[str | None, typer.Option(metavar="TYPE", help="H100, MI325X, …")]
Gpus = Annotated[int | None, typer.Option(help="GPUs of one replica.")]
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
    tensor_parallel: Tensor = None,
    data_parallel: Data = None,
    expert_parallel: Expert = None,
    gpu_memory_utilization: Utilization = None,
    kv_cache_dtype: KvCache = None,
    max_num_seqs: MaxNumSeqs = None,
    flag: Flags = None,
    env: Variables = None,
    clear: Clear = False,
    as_json: AsJson = False,
) -> None:
    """Which GPUs serve a submission, and how; with options, set it for the next redeploy (admin)."""
    given: dict[str, Any] = {
        "gpu": gpu,
        "gpus": gpus,
        "tensor_parallel": tensor_parallel,
        "data_parallel": data_parallel,
        "expert_parallel": expert_parallel,
        "gpu_memory_utilization": gpu_memory_utilization,
        "kv_cache_dtype": kv_cache_dtype,
        "max_num_seqs": max_num_seqs,
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
        _print(status)
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


def _print(status: RecipeStatus) -> None:
    served = _facts(status.served) if status.served else {}
    wanted = status.override.model_dump(mode="json") if status.override else {}
    rows = [
        (label, served.get(label, ""), _shown(wanted.get(OVERRIDES.get(label, label))))
        for label in LABELS
    ]
    console.table(("", "served", "set by an admin"), rows)
    if status.served is None:
        console.say("It is not served on GPUs now.")


LABELS = (
    "gpu_type", "gpu_count", "tensor_parallel", "data_parallel", "expert_parallel", "gpu_memory_utilization",
    "kv_cache_dtype", "quantization", "max_num_seqs", "max_model_len", "sessions", "flags", "environment", "image",
)  # fmt: skip
OVERRIDES = {"gpu_type": "gpu", "gpu_count": "gpus"}


def _facts(recipe: Recipe) -> dict[str, str]:
    return {label: _shown(value) for label, value in recipe.model_dump(mode="json").items()}


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={text}" for name, text in value.items())
    if isinstance(value, list):
        return " ".join(str(item) for item in value)
    return "" if value is None else str(value)
