"""What to say of a kernel's occupancy: whether it matters, and why less was achieved."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Mapping

_FULL = 0.9999
"""Profilers print percentages rounded."""
_GAP = 0.10
"""Achieved occupancy this far under the theoretical one is worth a word (as in Nsight Compute)."""
_NEAR = 0.85
"""Where the theoretical one is low itself, less than this part of it is."""
_EMPTY_TAIL = 0.85
_BUSY = 0.80
"""A kernel this near to what its busiest unit can do gains little from more warps."""


def remarks(row: Mapping[str, Any]) -> list[str]:
    """Say what matters about a row of the table of kernels; nothing when there is nothing."""
    if row["refused"]:
        return [f"cannot be launched: {row['refused']}"]
    if row["theoretical"] is None:
        return []
    more_would_fit = row["theoretical"] < _FULL
    found = (_gap(row), _clusters(row), _busy(row) if more_would_fit else None)
    return list(dict.fromkeys(text for text in found if text))


def _gap(row: Mapping[str, Any]) -> str | None:
    """Explain why an SM held fewer warps than would have fit."""
    theoretical, achieved, waves = row["theoretical"], row["achieved"], row["waves"]
    if achieved is not None and achieved > max(theoretical - _GAP, theoretical * _NEAR):
        return None
    if waves is not None and waves < 1:
        return f"small grid: {format_share(waves)} of a wave"
    if achieved is None:
        return None
    if waves is not None and waves / math.ceil(waves) < _EMPTY_TAIL:
        return f"tail: {waves:.2f} waves"
    return _busy(row) or "short or uneven blocks"


def _busy(row: Mapping[str, Any]) -> str | None:
    """Say when more warps could not make the kernel much faster."""
    units = (("SMs", row["sm_share"]), ("memory", row["memory_share"]))
    name, share = max(units, key=lambda unit: unit[1] or 0)
    if not share or share < _BUSY:
        return None
    return f"{name} {format_share(share)} busy already"


def _clusters(row: Mapping[str, Any]) -> str | None:
    """Say when clusters, which need SMs that lie together, leave places empty."""
    size, active, sms, blocks = (
        row[key] for key in ("cluster_blocks", "active_clusters", "sm_count", "blocks")
    )
    if not (size and active and sms and blocks) or active * size >= blocks * sms:
        return None
    return f"clusters of {size} fill {format_share(active * size / (blocks * sms))}"
