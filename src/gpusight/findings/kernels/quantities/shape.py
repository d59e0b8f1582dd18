"""The shape of a launch, and what fits an SM."""

from __future__ import annotations

from gpusight.analyses.counters.quantity import Quantity, metric

_OCCUPANCY = "Occupancy"
_LAUNCH = "LaunchStats"


GRID = Quantity("grid", "", "Blocks of the grid", (metric("launch__grid_size"),), _LAUNCH)
BLOCK = Quantity("block", "", "Threads of a block", (metric("launch__block_size"),), _LAUNCH)


def _limit(key: str, what: str, name: str) -> Quantity:
    return Quantity(key, "", f"Blocks that fit an SM by {what}", (metric(name),), _OCCUPANCY)


OCCUPANCY_LIMITS = {
    "warps": _limit("limit_warps", "their warps", "launch__occupancy_limit_warps"),
    "blocks": _limit("limit_blocks", "their number", "launch__occupancy_limit_blocks"),
    "registers": _limit("limit_registers", "registers", "launch__occupancy_limit_registers"),
    "shared_memory": _limit(
        "limit_shared_memory", "shared memory", "launch__occupancy_limit_shared_mem"
    ),
    "barriers": _limit("limit_barriers", "barriers", "launch__occupancy_limit_barriers"),
}
