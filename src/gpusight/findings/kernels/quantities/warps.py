"""What warps did: how many there were, what they waited for, how many threads took part."""

from __future__ import annotations

from gpusight.analyses.counters.quantity import SHARE, Quantity, metric, percent, ratio

_SOURCE = "SourceCounters"
_STATES = "WarpStateStats"
_SCHEDULER = "SchedulerStats"
_INSTRUCTIONS = "InstructionStats"
_ACTIVE = "pct_of_peak_sustained_active"


WARPS = Quantity(
    "scheduler_warps",
    "",
    "Warps that a scheduler had to choose from, on average",
    (
        metric("smsp__warps_active.avg.per_cycle_active"),
        metric("sm__warps_active.avg.per_cycle_active", 1 / 4),
    ),
    _SCHEDULER,
)
ISSUED = Quantity(
    "issued_per_cycle",
    "",
    "Instructions that a scheduler issued each cycle that its SM was active",
    (
        metric("smsp__issue_active.avg.per_cycle_active"),
        percent(f"smsp__issue_active.avg.{_ACTIVE}"),
        metric("sm__inst_issued.avg.per_cycle_active", 1 / 4),
        metric("sm__inst_executed.avg.per_cycle_active", 1 / 4),
    ),
    _SCHEDULER,
)
THREADS_PER_INSTRUCTION = Quantity(
    "threads_per_instruction",
    "",
    "Threads of a warp that took part in an instruction, on average",
    (
        metric("smsp__thread_inst_executed_per_inst_executed.ratio"),
        ratio("smsp__thread_inst_executed.sum", "smsp__inst_executed.sum"),
        ratio("thread_inst_executed", "inst_executed"),
    ),
    _STATES,
)
THREADS_NOT_PREDICATED = Quantity(
    "threads_not_predicated",
    "",
    "The same, without threads that a condition switched off",
    (
        metric("smsp__thread_inst_executed_pred_on_per_inst_executed.ratio"),
        ratio("smsp__thread_inst_executed_pred_on.sum", "smsp__inst_executed.sum"),
        ratio("thread_inst_executed_true", "inst_executed"),
    ),
    _STATES,
)
UNIFORM_BRANCHES = Quantity(
    "uniform_branches",
    SHARE,
    "Branches at which all threads of the warp went the same way",
    (percent("smsp__sass_average_branch_targets_threads_uniform.pct"),),
    _SOURCE,
)
INSTRUCTIONS = Quantity(
    "instructions",
    "",
    "Instructions that warps executed",
    (metric("smsp__inst_executed.sum"), metric("sm__inst_executed.sum"), metric("inst_executed")),
    _INSTRUCTIONS,
)

STALLS = (
    "barrier",
    "branch_resolving",
    "dispatch_stall",
    "drain",
    "gmma",
    "imc_miss",
    "lg_throttle",
    "long_scoreboard",
    "math_pipe_throttle",
    "membar",
    "mio_throttle",
    "misc",
    "no_instruction",
    "not_selected",
    "selected",
    "short_scoreboard",
    "sleeping",
    "tex_throttle",
    "wait",
    "warpgroup_arrive",
)
"""Reasons for which a warp does not issue, as Nsight Compute names them."""
_SAMPLED_NAMES = {"no_instruction": "no_instructions"}


def _stall(reason: str) -> Quantity:
    sampled = _SAMPLED_NAMES.get(reason, reason)
    return Quantity(
        f"stall_{reason}",
        "",
        f"Warps that were waiting for {reason}",
        (
            metric(f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"),
            metric(f"smsp__pcsamp_warps_issue_stalled_{sampled}"),
        ),
        _STATES,
    )


STALL_QUANTITIES = {reason: _stall(reason) for reason in STALLS}
WARP_STATES = Quantity(
    "warp_states",
    "",
    "What warps were waiting for",
    STALL_QUANTITIES["selected"].formulas,
    _STATES,
)
