"""What kernel rules need to know about a launch, and the ncu metrics it is computed from."""

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
_ELAPSED = "pct_of_peak_sustained_elapsed"
_ACTIVE = "pct_of_peak_sustained_active"


def _busy(key: str, what: str, *names: str, section: str = _SPEED) -> LaunchQuantity:
    """Declare how busy a unit was: over the whole launch, else while its SM was active."""
    formulas = [percent(f"{name}.avg.{over}") for over in (_ELAPSED, _ACTIVE) for name in names]
    return LaunchQuantity(key, SHARE, f"How busy {what}, of the peak", tuple(formulas), section)


L1_ELAPSED = LaunchQuantity(
    "l1_elapsed",
    SHARE,
    "How busy the L1 caches were, of the peak",
    (
        percent(f"l1tex__throughput.avg.{_ELAPSED}"),
        QuantityFormula(
            (f"l1tex__throughput.avg.{_ACTIVE}", "sm__cycles_active.avg", "sm__cycles_elapsed.max"),
            lambda values: values[0] * values[1] / values[2] * 0.01,
        ),
        QuantityFormula(
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
L2_ATOMICS_HOTTEST = LaunchQuantity(
    "l2_atomics_hottest",
    SHARE,
    "How busy the atomic unit of the busiest L2 slice was, of the peak",
    (percent(f"lts__d_atomic_input_cycles_active.max.{_ELAPSED}"),),
    _SPEED,
)
SM_ACTIVE = LaunchQuantity(
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


_WARP_SOURCE_SECTION = "SourceCounters"
_STATES = "WarpStateStats"
_SCHEDULER = "SchedulerStats"
_INSTRUCTIONS = "InstructionStats"
_WARP_PCT_ACTIVE = "pct_of_peak_sustained_active"


WARPS = LaunchQuantity(
    "scheduler_warps",
    "",
    "Warps that a scheduler had to choose from, on average",
    (
        metric("smsp__warps_active.avg.per_cycle_active"),
        metric("sm__warps_active.avg.per_cycle_active", 1 / 4),
    ),
    _SCHEDULER,
)
ISSUED = LaunchQuantity(
    "issued_per_cycle",
    "",
    "Instructions that a scheduler issued each cycle that its SM was active",
    (
        metric("smsp__issue_active.avg.per_cycle_active"),
        percent(f"smsp__issue_active.avg.{_WARP_PCT_ACTIVE}"),
        metric("sm__inst_issued.avg.per_cycle_active", 1 / 4),
        metric("sm__inst_executed.avg.per_cycle_active", 1 / 4),
    ),
    _SCHEDULER,
)
THREADS_PER_INSTRUCTION = LaunchQuantity(
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
THREADS_NOT_PREDICATED = LaunchQuantity(
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
UNIFORM_BRANCHES = LaunchQuantity(
    "uniform_branches",
    SHARE,
    "Branches at which all threads of the warp went the same way",
    (percent("smsp__sass_average_branch_targets_threads_uniform.pct"),),
    _WARP_SOURCE_SECTION,
)
INSTRUCTIONS = LaunchQuantity(
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


def _stall(reason: str) -> LaunchQuantity:
    sampled = _SAMPLED_NAMES.get(reason, reason)
    return LaunchQuantity(
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
WARP_STATES = LaunchQuantity(
    "warp_states",
    "",
    "What warps were waiting for",
    STALL_QUANTITIES["selected"].formulas,
    _STATES,
)


_ROOFLINE = "SpeedOfLight_RooflineChart"


def _thread_instructions(*operations: str) -> tuple[QuantityFormula, ...]:
    """Count instructions that threads executed: a sum, else a rate a cycle times cycles."""
    sums = tuple(f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in operations)
    rates = tuple(f"{name}.per_cycle_elapsed" for name in sums)

    def of_rates(values: Sequence[pl.Expr]) -> pl.Expr:
        return reduce(add, values[:-1]) * values[-1]

    return (
        total(*sums),
        total(*(name.replace("smsp__", "sm__") for name in sums)),
        QuantityFormula((*rates, "smsp__cycles_elapsed.avg"), of_rates),
        QuantityFormula((*rates, "sm__cycles_elapsed.avg"), of_rates),
        QuantityFormula((*rates, "smsp__cycles_elapsed.max"), of_rates),
        QuantityFormula((*rates, "sm__cycles_elapsed.max"), of_rates),
    )


FFMA = LaunchQuantity(
    "ffma",
    "",
    "Fused multiply-adds in FP32 that threads executed",
    _thread_instructions("ffma"),
    _ROOFLINE,
)
FP32_OTHER = LaunchQuantity(
    "fp32_other",
    "",
    "Additions and multiplications in FP32 that threads executed",
    _thread_instructions("fadd", "fmul"),
    _ROOFLINE,
)
FP32_SHARE = LaunchQuantity(
    "fp32_share",
    SHARE,
    "Part of the peak rate of the FP32 pipe that was reached",
    (
        percent("sm__sass_thread_inst_executed_op_ffma_pred_on.avg.pct_of_peak_sustained_elapsed"),
        percent("sm__sass_thread_inst_executed_op_ffma_pred_on.sum.pct_of_peak_sustained_elapsed"),
    ),
    _ROOFLINE,
)
HFMA = LaunchQuantity(
    "hfma",
    "",
    "Fused multiply-adds in FP16 that threads executed",
    _thread_instructions("hfma"),
    "SpeedOfLight_HierarchicalHalfRooflineChart",
)
FP64_OPERATIONS = LaunchQuantity(
    "fp64_operations",
    "",
    "FP64 instructions that threads executed",
    _thread_instructions("dadd", "dmul", "dfma"),
    _ROOFLINE,
)


_MEMORY_SPEED_SECTION = "SpeedOfLight"
_TABLES = "MemoryWorkloadAnalysis_Tables"
_SOURCE_SECTION = "SourceCounters"
_MEMORY_PCT_ELAPSED = "pct_of_peak_sustained_elapsed"


_GLOBAL_SECTORS = (
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
)
_USED = "smsp__sass_average_data_bytes_per_sector_mem_global_op_{}.{}"


def _used(form: str, whole: float) -> QuantityFormula:
    """Multiply the sectors of loads and of stores by the part of each that was asked for."""
    names = (*_GLOBAL_SECTORS, _USED.format("ld", form), _USED.format("st", form))
    return QuantityFormula(names, lambda v: (_part(v[0], v[2]) + _part(v[1], v[3])) / whole)


def _loads_used(*sectors: str) -> QuantityFormula:
    """Do the same for loads alone, all of the stores being needed as far as is known."""
    names = (*sectors, _USED.format("ld", "pct"))
    return QuantityFormula(names, lambda v: reduce(add, v[1:-1], _part(v[0], v[-1]) / 100))


def _part(sectors: pl.Expr, used: pl.Expr) -> pl.Expr:
    """Take a part of some sectors; of no sectors there is no part, which is no gap in the data."""
    return pl.when(sectors == 0).then(0.0).otherwise(sectors * used)


SECTORS_MOVED = LaunchQuantity(
    "sectors_moved",
    "",
    "Sectors of 32 bytes that global loads and stores touched",
    (
        metric("memory_l2_theoretical_sectors_global"),
        total(*_GLOBAL_SECTORS),
        metric(_GLOBAL_SECTORS[0]),
    ),
    _SOURCE_SECTION,
)
SECTORS_NEEDED = LaunchQuantity(
    "sectors_needed",
    "",
    "Sectors of 32 bytes that would have held what global loads and stores asked for",
    (
        metric("memory_l2_theoretical_sectors_global_ideal"),
        _used("pct", 100),
        _used("ratio", 32),
        _loads_used(*_GLOBAL_SECTORS),
        _loads_used(_GLOBAL_SECTORS[0]),
    ),
    _SOURCE_SECTION,
)
LOAD_REQUESTS = LaunchQuantity(
    "load_requests",
    "",
    "Global loads that warps executed",
    (
        metric("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"),
        metric("smsp__sass_inst_executed_op_global_ld.sum"),
        metric("smsp__inst_executed_op_global_ld.sum"),
    ),
    _TABLES,
)
STORE_REQUESTS = LaunchQuantity(
    "store_requests",
    "",
    "Global stores that warps executed",
    (
        metric("l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"),
        metric("smsp__sass_inst_executed_op_global_st.sum"),
        metric("smsp__inst_executed_op_global_st.sum"),
    ),
    _TABLES,
)
LOAD_SECTORS = LaunchQuantity(
    "load_sectors",
    "",
    "Sectors of 32 bytes that global loads touched",
    (metric(_GLOBAL_SECTORS[0]),),
    _TABLES,
)
TEXTURE_SECTORS = LaunchQuantity(
    "texture_sectors",
    "",
    "Sectors of 32 bytes that texture reads touched",
    (metric("l1tex__t_sectors_pipe_tex_mem_texture.sum"),),
    _TABLES,
)
TEXTURE_REQUESTS = LaunchQuantity(
    "texture_requests",
    "",
    "Texture reads of eight threads each",
    (metric("l1tex__t_requests_pipe_tex_mem_texture.sum"),),
    _TABLES,
)
L2_SECTORS = LaunchQuantity(
    "l2_sectors",
    "",
    "Sectors of 32 bytes that the SMs asked of L2",
    (
        metric("lts__t_sectors_srcunit_tex.sum"),
        total("lts__t_sectors_srcunit_tex_op_read.sum", "lts__t_sectors_srcunit_tex_op_write.sum"),
    ),
    _TABLES,
)
L2_READ_HITS = LaunchQuantity(
    "l2_read_hits",
    SHARE,
    "Sectors read from the L2 cache that were there",
    (
        percent("lts__t_sector_op_read_hit_rate.pct"),
        ratio(
            "lts__t_sectors_srcunit_tex_op_read_lookup_hit.sum",
            "lts__t_sectors_srcunit_tex_op_read.sum",
        ),
    ),
    _TABLES,
)
DRAM_READ = LaunchQuantity(
    "dram_read_bytes",
    "byte",
    "Bytes read from the GPU's memory",
    (metric("dram__bytes_read.sum"), metric("dram__sectors_read.sum", 32)),
    _TABLES,
)
ACCESSIBLE = LaunchQuantity(
    "accessible_bytes",
    "byte",
    "Memory that the program had allocated",
    (metric("profiler__replayer_bytes_mem_accessible.avg"),),
    _MEMORY_SPEED_SECTION,
)
SHARED_WAVEFRONTS = LaunchQuantity(
    "shared_wavefronts",
    "",
    "Steps that shared-memory accesses took",
    (
        metric("memory_l1_wavefronts_shared"),
        metric("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"),
        total(
            "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
            "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
        ),
    ),
    _TABLES,
)
SHARED_EXCESS = LaunchQuantity(
    "shared_excess",
    "",
    "Steps of shared-memory accesses that bank conflicts added",
    (
        QuantityFormula(
            ("memory_l1_wavefronts_shared", "memory_l1_wavefronts_shared_ideal"),
            lambda values: values[0] - values[1],
        ),
        metric("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"),
        total(
            "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
            "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
        ),
    ),
    _TABLES,
)
SHARED_INSTRUCTIONS = LaunchQuantity(
    "shared_instructions",
    "",
    "Shared-memory instructions that warps executed",
    (
        metric("smsp__sass_inst_executed_op_shared.sum"),
        total(
            "smsp__sass_inst_executed_op_shared_ld.sum", "smsp__sass_inst_executed_op_shared_st.sum"
        ),
        total("smsp__inst_executed_op_shared_ld.sum", "smsp__inst_executed_op_shared_st.sum"),
        total("sass__inst_executed_shared_loads", "sass__inst_executed_shared_stores"),
    ),
    _TABLES,
)
SHARED_SHARE = LaunchQuantity(
    "shared_data",
    SHARE,
    "Part of the data pipe of L1 that shared memory took",
    (percent(f"l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.{_MEMORY_PCT_ELAPSED}"),),
    _TABLES,
)


def _known_total(*names: str) -> QuantityFormula:
    """Add up those of these counters that there are; one of them is enough."""

    def compute(values: Sequence[pl.Expr]) -> pl.Expr:
        some = pl.any_horizontal([v.is_not_null() for v in values])
        return pl.when(some).then(reduce(add, [v.fill_null(0.0) for v in values]))

    return QuantityFormula(names, compute)


LOCAL_INSTRUCTIONS = LaunchQuantity(
    "local_instructions",
    "",
    "Instructions that read or wrote local memory, where spilled registers go",
    (
        total(
            "smsp__sass_inst_executed_op_local_ld.sum", "smsp__sass_inst_executed_op_local_st.sum"
        ),
        total("smsp__inst_executed_op_local_ld.sum", "smsp__inst_executed_op_local_st.sum"),
        total(
            "l1tex__t_requests_pipe_lsu_mem_local_op_ld.sum",
            "l1tex__t_requests_pipe_lsu_mem_local_op_st.sum",
        ),
        total("sass__inst_executed_local_loads", "sass__inst_executed_local_stores"),
    ),
    _SOURCE_SECTION,
)
LOCAL_SECTORS = LaunchQuantity(
    "local_sectors",
    "",
    "Sectors of 32 bytes that accesses to local memory touched",
    (
        total(
            "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
            "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
        ),
        metric("memory_l2_theoretical_sectors_local"),
    ),
    _TABLES,
)
LOCAL_MISSES = LaunchQuantity(
    "local_misses",
    "",
    "Sectors of local memory that were not in L1",
    (
        total(
            "l1tex__t_sectors_pipe_lsu_mem_local_op_ld_lookup_miss.sum",
            "l1tex__t_sectors_pipe_lsu_mem_local_op_st_lookup_miss.sum",
        ),
    ),
    _TABLES,
)
SPILL_REQUESTS = LaunchQuantity(
    "spill_requests",
    "",
    "Accesses to local memory that the compiler added to spill registers",
    (metric("derived__local_spilling_requests"),),
    _SOURCE_SECTION,
)
SPILL_SHARE = LaunchQuantity(
    "spill_share",
    SHARE,
    "Part of the accesses to L1 that the compiler added to spill registers",
    (percent("derived__local_spilling_requests_pct"),),
    _SOURCE_SECTION,
)
GLOBAL_ATOMICS = LaunchQuantity(
    "global_atomics",
    "",
    "Atomic instructions on global memory that warps executed",
    (
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
    ),
    _TABLES,
)
L2_ATOMIC_SECTORS = LaunchQuantity(
    "l2_atomic_sectors",
    "",
    "Atomic operations that reached L2, in sectors of 32 bytes",
    (
        _known_total(
            "lts__t_sectors_srcunit_tex_op_red.sum",
            "lts__t_sectors_srcunit_tex_op_atom_dot_alu.sum",
            "lts__t_sectors_srcunit_tex_op_atom_dot_cas.sum",
        ),
    ),
    _TABLES,
)
SHARED_ATOMICS = LaunchQuantity(
    "shared_atomics",
    "",
    "Atomic instructions on shared memory that warps executed",
    (metric("smsp__inst_executed_op_shared_atom.sum"),),
    _TABLES,
)
SHARED_ATOMIC_WAVEFRONTS = LaunchQuantity(
    "shared_atomic_wavefronts",
    "",
    "Steps that atomic accesses to shared memory took",
    (metric("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_atom.sum"),),
    _TABLES,
)
