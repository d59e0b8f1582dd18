"""Columns of the source page, and the metric that each shows an instruction's part of."""

from __future__ import annotations

import re

_COLUMNS = {
    "# samples": "smsp__pcsamp_sample_count",
    "instructions executed": "inst_executed",
    "thread instructions executed": "thread_inst_executed",
    "predicated-on thread instructions executed": "thread_inst_executed_true",
    "avg. threads executed": "derived__avg_thread_executed",
    "avg. predicated-on threads executed": "derived__avg_thread_executed_true",
    "address space": "memory_type",
    "access operation": "memory_access_type",
    "access size": "memory_access_size_type",
    "l2 theoretical sectors global excessive": (
        "derived__memory_l2_theoretical_sectors_global_excessive"
    ),
    "l1 wavefronts shared excessive": "derived__memory_l1_wavefronts_shared_excessive",
    "l1 conflicts shared n-way": "derived__memory_l1_conflicts_shared_nway",
}
_MEMORY = re.compile(r"l[12] (?:tag requests|wavefronts|theoretical sectors) [a-z ]+")
_STALL = re.compile(r"stall_(?P<why>[a-z_]+)(?P<waiting> \(not issued\))?")
_WHY = {
    "barrier": "barrier",
    "branch_resolving": "branch_resolving",
    "dispatch": "dispatch_stall",
    "drain": "drain",
    "gmma": "gmma",
    "imc": "imc_miss",
    "lg": "lg_throttle",
    "long_sb": "long_scoreboard",
    "math": "math_pipe_throttle",
    "membar": "membar",
    "mio": "mio_throttle",
    "misc": "misc",
    "no_inst": "no_instructions",
    "not_selected": "not_selected",
    "selected": "selected",
    "short_sb": "short_scoreboard",
    "sleep": "sleeping",
    "sleeping": "sleeping",
    "tex": "tex_throttle",
    "wait": "wait",
}
_NOT_SUMS = ("derived__avg_", "memory_type", "memory_access_", "derived__memory_l1_conflicts")


def source_metric(column: str) -> str | None:
    """Give the metric that a column shows the parts of; None where it is not known."""
    name = column.strip().casefold()
    stall = _STALL.fullmatch(name)
    if stall and stall["why"] in _WHY:
        waiting = "_not_issued" if stall["waiting"] else ""
        return f"smsp__pcsamp_warps_issue_stalled_{_WHY[stall['why']]}{waiting}"
    if name in _COLUMNS:
        return _COLUMNS[name]
    return f"memory_{name.replace(' ', '_')}" if _MEMORY.fullmatch(name) else None


def is_sum(metric: str) -> bool:
    """Tell whether the whole of a metric is the sum of its parts: counts are, averages are not."""
    return not metric.startswith(_NOT_SUMS)
