"""Arithmetic that threads did."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from gpusight.analyses.counters.quantity import SHARE, Formula, Quantity, percent, total

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

_ROOFLINE = "SpeedOfLight_RooflineChart"


def _thread_instructions(*operations: str) -> tuple[Formula, ...]:
    """Count instructions that threads executed: a sum, else a rate a cycle times cycles."""
    sums = tuple(f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in operations)
    rates = tuple(f"{name}.per_cycle_elapsed" for name in sums)

    def of_rates(values: Sequence[pl.Expr]) -> pl.Expr:
        return reduce(add, values[:-1]) * values[-1]

    return (
        total(*sums),
        total(*(name.replace("smsp__", "sm__") for name in sums)),
        Formula((*rates, "smsp__cycles_elapsed.avg"), of_rates),
        Formula((*rates, "sm__cycles_elapsed.avg"), of_rates),
        Formula((*rates, "smsp__cycles_elapsed.max"), of_rates),
        Formula((*rates, "sm__cycles_elapsed.max"), of_rates),
    )


FFMA = Quantity(
    "ffma",
    "",
    "Fused multiply-adds in FP32 that threads executed",
    _thread_instructions("ffma"),
    _ROOFLINE,
)
FP32_OTHER = Quantity(
    "fp32_other",
    "",
    "Additions and multiplications in FP32 that threads executed",
    _thread_instructions("fadd", "fmul"),
    _ROOFLINE,
)
FP32_SHARE = Quantity(
    "fp32_share",
    SHARE,
    "Part of the peak rate of the FP32 pipe that was reached",
    (
        percent("sm__sass_thread_inst_executed_op_ffma_pred_on.avg.pct_of_peak_sustained_elapsed"),
        percent("sm__sass_thread_inst_executed_op_ffma_pred_on.sum.pct_of_peak_sustained_elapsed"),
    ),
    _ROOFLINE,
)
HFMA = Quantity(
    "hfma",
    "",
    "Fused multiply-adds in FP16 that threads executed",
    _thread_instructions("hfma"),
    "SpeedOfLight_HierarchicalHalfRooflineChart",
)
FP64_OPERATIONS = Quantity(
    "fp64_operations",
    "",
    "FP64 instructions that threads executed",
    _thread_instructions("dadd", "dmul", "dfma"),
    _ROOFLINE,
)
