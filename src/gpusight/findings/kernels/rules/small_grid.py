"""small-grid: the grid has too few blocks or warps for the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.analyses.counters import quantities as shared
from gpusight.findings.finding import Confidence, Evidence
from gpusight.findings.kernels import quantities as q
from gpusight.findings.kernels.model import WORTH, limited, roof_limited
from gpusight.findings.kernels.residency import (
    issue_rate,
    lives_on_tensor_cores,
    ready,
)
from gpusight.findings.kernels.rule import Absent, Found, Rule, Verdict
from gpusight.findings.kernels.stalls import MEMORY_WAITS
from gpusight.findings.verdict import CLEAN, Limit

if TYPE_CHECKING:
    from gpusight.findings.kernels.launch import Launch

WAITING = Limit(
    0.5,
    "part of their time that warps wait for memory, from which on a grid that reaches every SM is "
    "latency-bound rather than small",
)


def check(launch: Launch) -> Verdict:
    """Compare the blocks of the grid with what the GPU holds at once."""
    grid, sms, blocks = launch.grid, launch.sm_count, launch.blocks_per_sm
    if grid is None or not sms or not blocks:
        return Absent("not measured: blocks of the grid and SMs of the GPU", RULE.sections)
    idle = grid < sms
    if grid >= sms * blocks or (not idle and _is_as_meant(launch)):
        return CLEAN
    left = _left(launch, grid, sms, blocks)
    if left > 1 / WORTH:
        return CLEAN
    return Found(
        title=f"{grid:,} block{'s' if grid != 1 else ''} for {sms} SMs that hold {sms * blocks:,}",
        time_share=left,
        estimate=_estimate(launch, grid, sms, blocks),
        evidence=(
            Evidence("grid", grid, "", shared.GRID_SIZE.meaning),
            Evidence("sm_count", sms, "", shared.SM_COUNT.meaning),
            Evidence("blocks_per_sm", blocks, "", "Blocks that fit an SM at once"),
            *launch.evidence(shared.WAVES, shared.OCCUPANCY, shared.SM_SHARE, q.SM_ACTIVE),
        ),
        confidence=Confidence.MEDIUM if idle and launch.busy else Confidence.LOW,
        confidence_reason="whether the work can be cut into more blocks is not known",
    )


def _is_as_meant(launch: Launch) -> bool:
    """Tell whether a grid that reaches every SM is small on purpose, or not the main thing."""
    waiting = sum(launch.stalls.get(reason, 0.0) for reason in MEMORY_WAITS)
    return lives_on_tensor_cores(launch) or waiting >= WAITING.value


def _left(launch: Launch, grid: int, sms: int, blocks: int) -> float:
    """Spread the same work over all SMs, and over the warps that each can hold."""
    spread = min(1.0, grid / sms)
    rate = issue_rate(launch)
    if rate is None or rate <= 0:
        return roof_limited(launch, spread)
    times = blocks / max(1.0, grid / sms)
    return roof_limited(launch, spread * rate / ready(rate, times))


def _estimate(launch: Launch, grid: int, sms: int, blocks: int) -> str:
    spread = f"the work on {sms} SMs instead of {grid}" if grid < sms else "the work on all SMs"
    filled = f", with {blocks} blocks on each"
    left = _left(launch, grid, sms, blocks)
    floor = "; starting a grid takes 1.5 µs" if left <= 2 * limited(launch, 0.0) else ""
    return spread + filled + floor


RULE = Rule(
    id="small-grid",
    detects="The grid has fewer blocks than the GPU has SMs, or too few for the warps that they "
    "hold.",
    why="A block runs on one SM. SMs without a block do nothing, and SMs with one small block wait "
    "most of the time.",
    fix="Cut the work into more blocks: fewer elements a thread, split the reduction (split-k), "
    "take several problems in one launch (batching); or fuse the kernel with its neighbours.",
    code="""\
int blocks = (n + threads - 1) / threads; // from the problem
// few long rows: several blocks for each, added up afterwards
dim3 grid(rows, (columns + chunk - 1) / chunk);
""",
    misleads="A small problem stays small: when there is no more work, only batching, fusing or "
    "running beside another kernel helps.",
    limits={"WAITING": WAITING},
    needs=(),
    helps=(shared.REGISTERS, shared.SM_COUNT, shared.GRID_SIZE, q.ISSUED, shared.OCCUPANCY),
    check=check,
    single_kernels=True,
    estimate="The same work on all SMs, each with the blocks that it holds; not below the 1.5 µs "
    "that any launch takes, and no unit beyond its roof.",
    explains=frozenset({"latency-bound"}),
)
