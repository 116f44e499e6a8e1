"""A plan for each type of GPU, side by side."""

from __future__ import annotations

from dataclasses import asdict

from guanaco.errors import InvalidInput
from guanaco.plans import (
    GpuComparison,
    GpuMemory,
    GpuPlan,
    PlanComparison,
    PlannedTraffic,
    PlanRequest,
    ReplicaCapacity,
)
from guanaco.submissions import Quantization
from guanaco_server.recipes.hardware import GPUS, find_gpus
from guanaco_server.recipes.memory import Model, weight_bytes
from guanaco_server.recipes.model_shape import ModelShape, active_parameters, count_parameters
from guanaco_server.recipes.prices import PriceTable
from guanaco_server.recipes.traffic import ExpectedTraffic, TrafficPlan, check_traffic, plan_traffic


def compare_gpus(
    model: Model, request: PlanRequest, prices: PriceTable, gpus_per_machine: int
) -> PlanComparison:
    """Compare the types of GPU that the request names, by default all. InvalidInput, NoSuchGpu."""
    wanted = {name: getattr(request, name) for name in PlannedTraffic.model_fields}
    traffic = ExpectedTraffic(**wanted)
    check_traffic(model, traffic)
    plans = [
        GpuComparison(
            gpu=gpu.name,
            plan=_read(plan_traffic(model, traffic, gpu, prices, gpus_per_machine)),
        )
        for gpu in find_gpus(request.gpus or GPUS)
    ]
    return PlanComparison(
        model=model.name,
        parameters=count_parameters(model.shape).total,
        active_parameters=active_parameters(model.shape),
        is_mixture=model.shape.experts is not None,
        weight_bytes=weight_bytes(model),
        traffic=PlannedTraffic(**wanted),
        plans=plans,
    )


def quantized_model(
    name: str, shape: ModelShape, served_bytes: int | None, quantization: Quantization | None
) -> Model:
    """InvalidInput where such a model cannot be quantized so."""
    if quantization is not None and shape.weights.is_quantized:
        raise InvalidInput(f"{name} is quantized already, so it cannot be quantized again.")
    if quantization is Quantization.INT8 and shape.experts is None:
        raise InvalidInput(f"int8 quantizes the experts of a mixture, and {name} has none.")
    return Model(name, shape, served_bytes, quantization)


def _read(plan: TrafficPlan | None) -> GpuPlan | None:
    if plan is None:
        return None
    return GpuPlan(
        recipe=plan.recipe,
        memory_a_gpu=GpuMemory(**asdict(plan.memory)),
        capacity_a_replica=ReplicaCapacity(**asdict(plan.capacity)),
        replicas=plan.replicas,
        gpus=plan.gpus,
        cost_per_month=plan.cost_per_month,
        uncached_gpus=plan.uncached_gpus,
    )
