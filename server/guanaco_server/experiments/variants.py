"""Decides who is in which variant, and applies what a variant changes. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import accumulate

from guanaco.experiments import ExperimentRequest, Overrides, Variant
from guanaco_server.submissions.catalog import ServingSubmission

ALL_EXPERIMENTS = "users"  # the salt that divides users among experiments


def unit_of(account_id: str, user_id: str) -> str:
    """Return the user's unit under this account, the same in every experiment."""
    return sha256(f"{account_id}\n{user_id}".encode()).hexdigest()[:32]


def is_in_part(experiment: ExperimentRequest, unit: str) -> bool:
    """Tell whether a unit is in the experiment's part of the users.

    Experiments share one order of the users, so that parts that do not overlap have no user in common.
    """
    return experiment.users_from <= _place(ALL_EXPERIMENTS, unit) < experiment.users_to


def variant_of(experiment: ExperimentRequest, unit: str) -> Variant:
    """Return a unit's variant, salted by the experiment's name, so that each experiment divides users differently."""
    variants = experiment.variants
    bounds = list(accumulate(variant.share for variant in variants))
    place = _place(f"variant {experiment.name}", unit) * bounds[-1]
    return next(
        (one for one, bound in zip(variants, bounds, strict=True) if place < bound), variants[-1]
    )


def apply_variant(serving: ServingSubmission, overrides: Overrides) -> ServingSubmission:
    """Apply a variant to the submission. Token budgets never grow, because the server was sized for them."""
    changes = overrides.params
    params = changes.applied_to(serving.params) if changes is not None else serving.params
    return replace(serving, params=params, formatter=overrides.formatter or serving.formatter)


def models_of(experiment: ExperimentRequest) -> Sequence[str]:
    return [variant.model for variant in experiment.variants if variant.model is not None]


def _place(salt: str, unit: str) -> float:
    """Return a number in [0, 1), uniform over units."""
    return int.from_bytes(sha256(f"{salt}\n{unit}".encode()).digest()[:6]) / 2**48
