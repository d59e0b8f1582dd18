"""Quantities of a launch that kernel rules need, and the ncu metrics they are computed from."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.counters.launch_quantities import (
    SHARE,
    LaunchQuantity,
    QuantityFormula,
    metric,
    percent,
    ratio,
    total,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


_SPEED = "SpeedOfLight"
_COMPUTE = "ComputeWorkloadAnalysis"
_TABLES = "MemoryWorkloadAnalysis_Tables"
_SOURCE = "SourceCounters"
_STATES = "WarpStateStats"
_SCHEDULER = "SchedulerStats"
_INSTRUCTIONS = "InstructionStats"
_ROOFLINE = "SpeedOfLight_RooflineChart"
_ELAPSED = "pct_of_peak_sustained_elapsed"
_ACTIVE = "pct_of_peak_sustained_active"


def _quantity(
    key: str, meaning: str, section: str, *formulas: QuantityFormula, unit: str = ""
) -> LaunchQuantity:
    return LaunchQuantity(key, unit, meaning, formulas, section)


def _busy(key: str, what: str, *names: str, section: str = _SPEED) -> LaunchQuantity:
    """Declare the utilization of a unit: over the whole launch, else while its SM was active."""
    formulas = (percent(f"{name}.avg.{over}") for over in (_ELAPSED, _ACTIVE) for name in names)
    return _quantity(key, f"{what} utilization", section, *formulas, unit=SHARE)


def _pipe(key: str, what: str, *names: str) -> LaunchQuantity:
    return _busy(key, what, *names, section=_COMPUTE)


L1_ELAPSED = _quantity(
    "l1_elapsed",
    "L1/TEX throughput, % of peak over all cycles (ncu: active cycles)",
    _SPEED,
    percent(f"l1tex__throughput.avg.{_ELAPSED}"),
    *(
        QuantityFormula(
            (f"l1tex__throughput.avg.{_ACTIVE}", "sm__cycles_active.avg", elapsed),
            lambda values: values[0] * values[1] / values[2] * 0.01,
        )
        for elapsed in ("sm__cycles_elapsed.max", "gpc__cycles_elapsed.max")
    ),
    percent(f"l1tex__throughput.avg.{_ACTIVE}"),
    unit=SHARE,
)
L1_DATA = _busy("l1_data", "L1/shared-memory data pipe", "l1tex__data_pipe_lsu_wavefronts")
L1_DELIVERED = _busy("l1_delivered", "L1 write-back to registers", "l1tex__lsu_writeback_active")
L1_STORED = _busy("l1_stored", "Store data path to L1", "sm__mio_pq_read_cycles_active")
L1_REQUESTS = _busy("l1_requests", "L1 request input", "l1tex__lsuin_requests")
L1_TO_L2 = _busy("l1_to_l2", "L1-to-L2 path", "l1tex__m_l1tex2xbar_req_cycles_active")
ISSUE = replace(
    _pipe(
        "issue_busy",
        "",
        "sm__issue_active",
        "sm__inst_issued",
        "smsp__issue_active",
        "sm__inst_executed",
    ),
    meaning="Issue slot utilization",
)
FMA = _pipe("fma_busy", "FP32 pipe", "sm__pipe_fma_cycles_active", "sm__inst_executed_pipe_fma")
ALU = _pipe(
    "alu_busy",
    "Integer (ALU) pipe",
    "sm__pipe_alu_cycles_active",
    "sm__inst_executed_pipe_alu",
)
FP64 = _pipe("fp64_busy", "FP64 pipe", "sm__pipe_fp64_cycles_active", "sm__inst_executed_pipe_fp64")
XU = _pipe("xu_busy", "XU pipe (special functions, conversions)", "sm__inst_executed_pipe_xu")
LSU = _pipe("lsu_busy", "LSU pipe", "sm__inst_executed_pipe_lsu")
FP16 = _pipe(
    "fp16_busy",
    "FP16 pipe",
    "sm__inst_executed_pipe_fp16",
    "sm__inst_executed_pipe_fma_type_fp16",
)
TENSOR = _pipe(
    "tensor_busy",
    "Tensor Core",
    "sm__pipe_tensor_cycles_active",
    "sm__inst_executed_pipe_tensor",
)
CONSTANTS = _busy("constants_busy", "Constant cache", "idc__request_cycles_active")
L2_ATOMICS = _busy("l2_atomics", "L2 atomic unit", "lts__d_atomic_input_cycles_active")
L2_ATOMICS_HOTTEST = _quantity(
    "l2_atomics_hottest",
    "Atomic unit utilization of the busiest L2 slice",
    _SPEED,
    percent(f"lts__d_atomic_input_cycles_active.max.{_ELAPSED}"),
    unit=SHARE,
)
SM_ACTIVE = _quantity(
    "sm_active",
    "SM active cycles, average over the SMs",
    _SPEED,
    ratio("sm__cycles_active.avg", "sm__cycles_elapsed.max"),
    ratio("smsp__cycles_active.avg", "smsp__cycles_elapsed.max"),
    ratio("sm__cycles_active.avg", "gpc__cycles_elapsed.max"),
    ratio("sm__cycles_active.avg", "sm__cycles_elapsed.avg"),
    unit=SHARE,
)


WARPS = _quantity(
    "scheduler_warps",
    "Active warps per scheduler",
    _SCHEDULER,
    metric("smsp__warps_active.avg.per_cycle_active"),
    metric("sm__warps_active.avg.per_cycle_active", 1 / 4),
)
ISSUED = _quantity(
    "issued_per_cycle",
    "Instructions issued per scheduler and active cycle",
    _SCHEDULER,
    # Sums first: ncu prints the rate with two decimals, 0.00 for a kernel that waits for memory.
    *(
        QuantityFormula((f"smsp__{sum_}.sum", "smsp__cycles_active.sum"), lambda v: v[0] / v[1])
        for sum_ in ("inst_issued", "inst_executed")
    ),
    metric("smsp__issue_active.avg.per_cycle_active"),
    percent(f"smsp__issue_active.avg.{_ACTIVE}"),
    metric("sm__inst_issued.avg.per_cycle_active", 1 / 4),
    metric("sm__inst_executed.avg.per_cycle_active", 1 / 4),
)
THREADS_PER_INSTRUCTION = _quantity(
    "threads_per_instruction",
    "Average active threads per warp",
    _STATES,
    metric("smsp__thread_inst_executed_per_inst_executed.ratio"),
    ratio("smsp__thread_inst_executed.sum", "smsp__inst_executed.sum"),
    ratio("thread_inst_executed", "inst_executed"),
)
THREADS_NOT_PREDICATED = _quantity(
    "threads_not_predicated",
    "Average active threads per warp, predicated-off threads excluded",
    _STATES,
    metric("smsp__thread_inst_executed_pred_on_per_inst_executed.ratio"),
    ratio("smsp__thread_inst_executed_pred_on.sum", "smsp__inst_executed.sum"),
    ratio("thread_inst_executed_true", "inst_executed"),
)
UNIFORM_BRANCHES = _quantity(
    "uniform_branches",
    "Uniform branches",
    _SOURCE,
    percent("smsp__sass_average_branch_targets_threads_uniform.pct"),
    unit=SHARE,
)
INSTRUCTIONS = _quantity(
    "instructions",
    "Warp instructions executed",
    _INSTRUCTIONS,
    metric("smsp__inst_executed.sum"),
    metric("sm__inst_executed.sum"),
    metric("inst_executed"),
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
_ACRONYMS = {"gmma": "GMMA", "imc": "IMC", "lg": "LG", "mio": "MIO"}


def stall_name(reason: str) -> str:
    """Write a stall reason as Nsight Compute shows it: `Stall Long Scoreboard`."""
    return " ".join(["Stall", *(_ACRONYMS.get(w, w.capitalize()) for w in reason.split("_"))])


def _stall(reason: str) -> LaunchQuantity:
    sampled = "no_instructions" if reason == "no_instruction" else reason
    return _quantity(
        f"stall_{reason}",
        stall_name(reason),
        _STATES,
        metric(f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"),
        metric(f"smsp__pcsamp_warps_issue_stalled_{sampled}"),
    )


STALL_QUANTITIES = {reason: _stall(reason) for reason in STALLS}
WARP_STATES = _quantity(
    "warp_states", "Warp stall reasons", _STATES, *STALL_QUANTITIES["selected"].formulas
)


def _thread_instructions(*operations: str) -> tuple[QuantityFormula, ...]:
    """Count thread instructions: a sum, else a rate per cycle times cycles."""
    sums = tuple(f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in operations)
    rates = tuple(f"{name}.per_cycle_elapsed" for name in sums)
    cycles = (f"{unit}__cycles_elapsed.{of}" for of in ("avg", "max") for unit in ("smsp", "sm"))
    return (
        total(*sums),
        total(*(name.replace("smsp__", "sm__") for name in sums)),
        *(QuantityFormula((*rates, c), lambda v: reduce(add, v[:-1]) * v[-1]) for c in cycles),
    )


FFMA = _quantity(
    "ffma",
    "FP32 FMA thread instructions",
    _ROOFLINE,
    *_thread_instructions("ffma"),
)
FP32_OTHER = _quantity(
    "fp32_other",
    "FP32 add and multiply thread instructions",
    _ROOFLINE,
    *_thread_instructions("fadd", "fmul"),
)
FP32_SHARE = _quantity(
    "fp32_share",
    "Achieved share of the FP32 peak",
    _ROOFLINE,
    percent("sm__sass_thread_inst_executed_op_ffma_pred_on.avg.pct_of_peak_sustained_elapsed"),
    percent("sm__sass_thread_inst_executed_op_ffma_pred_on.sum.pct_of_peak_sustained_elapsed"),
    unit=SHARE,
)
HFMA = _quantity(
    "hfma",
    "FP16 FMA thread instructions",
    "SpeedOfLight_HierarchicalHalfRooflineChart",
    *_thread_instructions("hfma"),
)
FP64_OPERATIONS = _quantity(
    "fp64_operations",
    "FP64 thread instructions",
    _ROOFLINE,
    *_thread_instructions("dadd", "dmul", "dfma"),
)


def _loads_and_stores(name: str) -> QuantityFormula:
    return total(name.format("ld"), name.format("st"))


_GLOBAL_SECTORS = (
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
)
_USED = "smsp__sass_average_data_bytes_per_sector_mem_global_op_{}.{}"


def _requested_sectors(form: str, whole: float) -> QuantityFormula:
    """Multiply the sectors of loads and of stores by the part of each that was requested."""
    names = (*_GLOBAL_SECTORS, _USED.format("ld", form), _USED.format("st", form))
    return QuantityFormula(names, lambda v: (_part(v[0], v[2]) + _part(v[1], v[3])) / whole)


def _requested_load_sectors(*sectors: str) -> QuantityFormula:
    """Do the same for loads alone, assuming that all of the stores are needed."""
    names = (*sectors, _USED.format("ld", "pct"))
    return QuantityFormula(names, lambda v: reduce(add, v[1:-1], _part(v[0], v[-1]) / 100))


def _part(sectors: pl.Expr, used: pl.Expr) -> pl.Expr:
    """Multiply, where no sectors are 0: then the average is null although nothing is missing."""
    return pl.when(sectors == 0).then(0.0).otherwise(sectors * used)


SECTORS_MOVED = _quantity(
    "sectors_moved",
    "Sectors of global loads and stores",
    _SOURCE,
    metric("memory_l2_theoretical_sectors_global"),
    total(*_GLOBAL_SECTORS),
    metric(_GLOBAL_SECTORS[0]),
)
SECTORS_NEEDED = _quantity(
    "sectors_needed",
    "Ideal sectors of global loads and stores",
    _SOURCE,
    metric("memory_l2_theoretical_sectors_global_ideal"),
    _requested_sectors("pct", 100),
    _requested_sectors("ratio", 32),
    _requested_load_sectors(*_GLOBAL_SECTORS),
    _requested_load_sectors(_GLOBAL_SECTORS[0]),
)
LOAD_REQUESTS, STORE_REQUESTS = (
    _quantity(
        f"{access}_requests",
        f"Global {access} requests",
        _TABLES,
        metric(f"l1tex__t_requests_pipe_lsu_mem_global_op_{op}.sum"),
        metric(f"smsp__sass_inst_executed_op_global_{op}.sum"),
        metric(f"smsp__inst_executed_op_global_{op}.sum"),
    )
    for access, op in (("load", "ld"), ("store", "st"))
)
LOAD_SECTORS = _quantity(
    "load_sectors",
    "Sectors of global loads",
    _TABLES,
    metric(_GLOBAL_SECTORS[0]),
)
TEXTURE_SECTORS = _quantity(
    "texture_sectors",
    "Sectors of texture reads",
    _TABLES,
    metric("l1tex__t_sectors_pipe_tex_mem_texture.sum"),
)
TEXTURE_REQUESTS = _quantity(
    "texture_requests",
    "Texture requests (eight threads each)",
    _TABLES,
    metric("l1tex__t_requests_pipe_tex_mem_texture.sum"),
)
L2_SECTORS = _quantity(
    "l2_sectors",
    "L2 sectors requested by the SMs",
    _TABLES,
    metric("lts__t_sectors_srcunit_tex.sum"),
    total("lts__t_sectors_srcunit_tex_op_read.sum", "lts__t_sectors_srcunit_tex_op_write.sum"),
)
L2_READ_HITS = _quantity(
    "l2_read_hits",
    "L2 read hit rate",
    _TABLES,
    percent("lts__t_sector_op_read_hit_rate.pct"),
    ratio(
        "lts__t_sectors_srcunit_tex_op_read_lookup_hit.sum",
        "lts__t_sectors_srcunit_tex_op_read.sum",
    ),
    unit=SHARE,
)
DRAM_READ = _quantity(
    "dram_read_bytes",
    "DRAM bytes read",
    _TABLES,
    metric("dram__bytes_read.sum"),
    metric("dram__sectors_read.sum", 32),
    unit="byte",
)
ACCESSIBLE = _quantity(
    "accessible_bytes",
    "Allocated device memory",
    _SPEED,
    metric("profiler__replayer_bytes_mem_accessible.avg"),
    unit="byte",
)
SHARED_WAVEFRONTS = _quantity(
    "shared_wavefronts",
    "Shared-memory wavefronts",
    _TABLES,
    metric("memory_l1_wavefronts_shared"),
    metric("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"),
    _loads_and_stores("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"),
)
SHARED_EXCESS = _quantity(
    "shared_excess",
    "Excess shared-memory wavefronts (bank conflicts)",
    _TABLES,
    QuantityFormula(
        ("memory_l1_wavefronts_shared", "memory_l1_wavefronts_shared_ideal"),
        lambda values: values[0] - values[1],
    ),
    metric("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"),
    _loads_and_stores("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"),
)
SHARED_LOAD_WAVEFRONTS, SHARED_STORE_WAVEFRONTS = (
    _quantity(
        f"shared_{access}_wavefronts",
        f"Wavefronts of shared-memory {access}s per ideal wavefront",
        _TABLES,
        QuantityFormula(
            (
                f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum",
                f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum",
            ),
            lambda v: pl.when(v[0] > v[1]).then(v[0] / (v[0] - v[1])),
        ),
    )
    for access, op in (("load", "ld"), ("store", "st"))
)
SHARED_INSTRUCTIONS = _quantity(
    "shared_instructions",
    "Shared-memory instructions",
    _TABLES,
    metric("smsp__sass_inst_executed_op_shared.sum"),
    _loads_and_stores("smsp__sass_inst_executed_op_shared_{}.sum"),
    _loads_and_stores("smsp__inst_executed_op_shared_{}.sum"),
    total("sass__inst_executed_shared_loads", "sass__inst_executed_shared_stores"),
)
SHARED_SHARE = _quantity(
    "shared_data",
    "L1 data pipe utilization by shared memory",
    _TABLES,
    percent(f"l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.{_ELAPSED}"),
    unit=SHARE,
)


def _known_total(*names: str) -> QuantityFormula:
    """Sum those of these counters that were collected; one is enough."""

    def compute(values: Sequence[pl.Expr]) -> pl.Expr:
        collected = pl.any_horizontal([v.is_not_null() for v in values])
        return pl.when(collected).then(reduce(add, [v.fill_null(0.0) for v in values]))

    return QuantityFormula(names, compute)


LOCAL_INSTRUCTIONS = _quantity(
    "local_instructions",
    "Local-memory instructions",
    _SOURCE,
    _loads_and_stores("smsp__sass_inst_executed_op_local_{}.sum"),
    _loads_and_stores("smsp__inst_executed_op_local_{}.sum"),
    _loads_and_stores("l1tex__t_requests_pipe_lsu_mem_local_op_{}.sum"),
    total("sass__inst_executed_local_loads", "sass__inst_executed_local_stores"),
)
LOCAL_SECTORS = _quantity(
    "local_sectors",
    "Sectors of local-memory accesses",
    _TABLES,
    _loads_and_stores("l1tex__t_sectors_pipe_lsu_mem_local_op_{}.sum"),
    metric("memory_l2_theoretical_sectors_local"),
)
LOCAL_MISSES = _quantity(
    "local_misses",
    "Local-memory sectors that missed L1",
    _TABLES,
    _loads_and_stores("l1tex__t_sectors_pipe_lsu_mem_local_op_{}_lookup_miss.sum"),
)
SPILL_REQUESTS = _quantity(
    "spill_requests",
    "Local-memory requests due to register spills",
    _SOURCE,
    metric("derived__local_spilling_requests"),
)
SPILL_SHARE = _quantity(
    "spill_share",
    "Share of L1 requests due to register spills",
    _SOURCE,
    percent("derived__local_spilling_requests_pct"),
    unit=SHARE,
)
GLOBAL_ATOMICS = _quantity(
    "global_atomics",
    "Global atomic instructions",
    _TABLES,
    _known_total(
        "l1tex__t_requests_pipe_lsu_mem_global_op_atom.sum",
        "l1tex__t_requests_pipe_lsu_mem_global_op_red.sum",
    ),
    _known_total(
        "smsp__inst_executed_op_global_red.sum",
        "smsp__inst_executed_op_generic_atom_dot_alu.sum",
        "smsp__inst_executed_op_generic_atom_dot_cas.sum",
    ),
    total("lts__t_requests_srcunit_tex_op_red.sum"),
)
L2_ATOMIC_SECTORS = _quantity(
    "l2_atomic_sectors",
    "L2 atomic sectors",
    _TABLES,
    _known_total(
        "lts__t_sectors_srcunit_tex_op_red.sum",
        "lts__t_sectors_srcunit_tex_op_atom_dot_alu.sum",
        "lts__t_sectors_srcunit_tex_op_atom_dot_cas.sum",
    ),
)
SHARED_ATOMICS = _quantity(
    "shared_atomics",
    "Shared-memory atomic instructions",
    _TABLES,
    metric("smsp__inst_executed_op_shared_atom.sum"),
)
SHARED_ATOMIC_WAVEFRONTS = _quantity(
    "shared_atomic_wavefronts",
    "Shared-memory atomic wavefronts",
    _TABLES,
    metric("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_atom.sum"),
)
