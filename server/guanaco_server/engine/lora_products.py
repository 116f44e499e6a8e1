"""The products of LoRA adapters on a CPU, for batches in which tokens of several adapters, and of none, are computed together.

    y[rows of an adapter] += (x[rows] · Aᵀ) · Bᵀ        each adapter once, with all of its tokens
    y[rows of none]                                     untouched

vLLM 0.32's own kernels copy an adapter's matrices for every token, and take index -1, which stands for none, for the last
adapter: a base that is computed beside its adapters would answer with one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

EVERY_ROW = slice(None)


@dataclass(frozen=True)
class AdapterRows:
    """The rows of a batch that belong to one adapter, which is in this slot."""

    slot: int
    rows: slice | torch.Tensor


def rows_by_adapter(slots: torch.Tensor) -> tuple[AdapterRows, ...]:
    """Group a batch's rows by the slots of their adapters; rows of slot -1 belong to none."""
    found = []
    for slot in torch.unique(slots).tolist():
        if slot >= 0:
            rows = (slots == slot).nonzero().squeeze(1)
            found.append(AdapterRows(slot, EVERY_ROW if len(rows) == len(slots) else rows))
    return tuple(found)


def shrink(
    into: torch.Tensor,
    x: torch.Tensor,
    matrices: torch.Tensor,
    scale: float,
    adapters: tuple[AdapterRows, ...],
) -> None:
    """Write ``scale`` · x · Aᵀ; ``matrices`` are those of all slots, [slots, 1, rank, columns]."""
    for each in adapters:
        a = _matrix(matrices, each.slot).to(into.dtype)
        into[each.rows, : a.shape[0]] = scale * (x[each.rows].to(into.dtype) @ a.T)


def expand(
    y: torch.Tensor,
    x: torch.Tensor,
    matrices: torch.Tensor,
    adapters: tuple[AdapterRows, ...],
    *,
    first: int = 0,
    count: int | None = None,
    adds: bool = True,
) -> None:
    """Add x · Bᵀ to ``count`` columns of y from ``first`` on, or write it there; ``matrices`` are [slots, 1, rows, rank]."""
    for each in adapters:
        b = _matrix(matrices, each.slot)
        width = min(b.shape[0], y.shape[1] - first) if count is None else count
        product = (x[each.rows] @ b[:width].to(x.dtype).T).to(y.dtype)
        columns = slice(first, first + width)
        y[each.rows, columns] = y[each.rows, columns] + product if adds else product


def _matrix(matrices: torch.Tensor, slot: int) -> torch.Tensor:
    found = matrices[slot]
    return found.squeeze(0) if found.dim() == 3 else found
