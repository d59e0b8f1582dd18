"""How busy each unit of the GPU was."""

from __future__ import annotations

from dataclasses import replace

from gpusight.analyses.counters.quantity import SHARE, Formula, Quantity, percent, ratio

_SPEED = "SpeedOfLight"
_COMPUTE = "ComputeWorkloadAnalysis"
_ELAPSED = "pct_of_peak_sustained_elapsed"
_ACTIVE = "pct_of_peak_sustained_active"


def _busy(key: str, what: str, *names: str, section: str = _SPEED) -> Quantity:
    """Declare how busy a unit was: over the whole launch, else while its SM was active."""
    formulas = [percent(f"{name}.avg.{over}") for over in (_ELAPSED, _ACTIVE) for name in names]
    return Quantity(key, SHARE, f"How busy {what}, of the peak", tuple(formulas), section)


L1_ELAPSED = Quantity(
    "l1_elapsed",
    SHARE,
    "How busy the L1 caches were, of the peak",
    (
        percent(f"l1tex__throughput.avg.{_ELAPSED}"),
        Formula(
            (f"l1tex__throughput.avg.{_ACTIVE}", "sm__cycles_active.avg", "sm__cycles_elapsed.max"),
            lambda values: values[0] * values[1] / values[2] * 0.01,
        ),
        Formula(
            (
                f"l1tex__throughput.avg.{_ACTIVE}",
                "sm__cycles_active.avg",
                "gpc__cycles_elapsed.max",
            ),
            lambda values: values[0] * values[1] / values[2] * 0.01,
        ),
        percent(f"l1tex__throughput.avg.{_ACTIVE}"),
    ),
    _SPEED,
)
L1_DATA = _busy(
    "l1_data", "the data pipe of L1 and shared memory was", "l1tex__data_pipe_lsu_wavefronts"
)
L1_DELIVERED = _busy(
    "l1_delivered", "the way from L1 back to the registers was", "l1tex__lsu_writeback_active"
)
L1_STORED = _busy("l1_stored", "the way of stored data to L1 was", "sm__mio_pq_read_cycles_active")
L1_REQUESTS = _busy("l1_requests", "the entrance of L1 was", "l1tex__lsuin_requests")
L1_TO_L2 = _busy("l1_to_l2", "the way from L1 to L2 was", "l1tex__m_l1tex2xbar_req_cycles_active")
ISSUE = replace(
    _busy(
        "issue_busy",
        "",
        "sm__issue_active",
        "sm__inst_issued",
        "smsp__issue_active",
        "sm__inst_executed",
        section=_COMPUTE,
    ),
    meaning="Cycles in which the schedulers issued an instruction",
)
FMA = _busy(
    "fma_busy",
    "the FP32 pipe was",
    "sm__pipe_fma_cycles_active",
    "sm__inst_executed_pipe_fma",
    section=_COMPUTE,
)
ALU = _busy(
    "alu_busy",
    "the integer and logic pipe was",
    "sm__pipe_alu_cycles_active",
    "sm__inst_executed_pipe_alu",
    section=_COMPUTE,
)
FP64 = _busy(
    "fp64_busy",
    "the FP64 pipe was",
    "sm__pipe_fp64_cycles_active",
    "sm__inst_executed_pipe_fp64",
    section=_COMPUTE,
)
XU = _busy(
    "xu_busy",
    "the pipe of special functions and conversions was",
    "sm__inst_executed_pipe_xu",
    section=_COMPUTE,
)
LSU = _busy(
    "lsu_busy", "the load and store pipe was", "sm__inst_executed_pipe_lsu", section=_COMPUTE
)
FP16 = _busy(
    "fp16_busy",
    "the FP16 pipe was",
    "sm__inst_executed_pipe_fp16",
    "sm__inst_executed_pipe_fma_type_fp16",
    section=_COMPUTE,
)
TENSOR = _busy(
    "tensor_busy",
    "the tensor cores were",
    "sm__pipe_tensor_cycles_active",
    "sm__inst_executed_pipe_tensor",
    section=_COMPUTE,
)
CONSTANTS = _busy("constants_busy", "the constant caches were", "idc__request_cycles_active")
L2_ATOMICS = _busy("l2_atomics", "the atomic units of L2 were", "lts__d_atomic_input_cycles_active")
L2_ATOMICS_HOTTEST = Quantity(
    "l2_atomics_hottest",
    SHARE,
    "How busy the atomic unit of the busiest L2 slice was, of the peak",
    (percent(f"lts__d_atomic_input_cycles_active.max.{_ELAPSED}"),),
    _SPEED,
)
SM_ACTIVE = Quantity(
    "sm_active",
    SHARE,
    "Part of the launch in which an SM had warps, on average",
    (
        ratio("sm__cycles_active.avg", "sm__cycles_elapsed.max"),
        ratio("smsp__cycles_active.avg", "smsp__cycles_elapsed.max"),
        ratio("sm__cycles_active.avg", "gpc__cycles_elapsed.max"),
        ratio("sm__cycles_active.avg", "sm__cycles_elapsed.avg"),
    ),
    _SPEED,
)
