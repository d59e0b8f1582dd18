"""Launches built by hand: a healthy kernel, and what a test changes about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusight.analysis.counters.profiled_launch import ProfiledLaunch, launches
from gpusight.rules.registry import kernel_rules
from tests.traces import build_trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusight.rules.rule import RuleVerdict
    from gpusight.trace.trace import Trace

H200 = {
    "device": 0,
    "name": "NVIDIA H200",
    "compute_major": 9,
    "compute_minor": 0,
    "sm_count": 132,
    "l2_bytes": 60_000_000,
}
ELAPSED = ".avg.pct_of_peak_sustained_elapsed"
STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"

HEALTHY: dict[str, float] = {
    # A copy at the DRAM roof: full warps, full GPU, everything that is moved is used.
    f"sm__throughput{ELAPSED}": 20,
    f"gpu__compute_memory_throughput{ELAPSED}": 90,
    f"gpu__dram_throughput{ELAPSED}": 90,
    f"lts__throughput{ELAPSED}": 60,
    f"l1tex__throughput{ELAPSED}": 30,
    f"l1tex__data_pipe_lsu_wavefronts{ELAPSED}": 30,
    f"l1tex__m_l1tex2xbar_req_cycles_active{ELAPSED}": 25,
    f"sm__issue_active{ELAPSED}": 20,
    f"sm__pipe_fma_cycles_active{ELAPSED}": 5,
    f"sm__pipe_alu_cycles_active{ELAPSED}": 5,
    f"sm__pipe_fp64_cycles_active{ELAPSED}": 0,
    f"sm__inst_executed_pipe_xu{ELAPSED}": 0,
    f"sm__inst_executed_pipe_lsu{ELAPSED}": 10,
    f"sm__pipe_tensor_cycles_active{ELAPSED}": 0,
    "sm__cycles_active.avg": 980,
    "sm__cycles_elapsed.max": 1000,
    "smsp__cycles_elapsed.avg.per_second": 1.98e9,
    "sm__warps_active.avg.pct_of_peak_sustained_active": 95,
    "sm__maximum_warps_per_active_cycle_pct": 100,
    "smsp__warps_active.avg.per_cycle_active": 15,
    "smsp__issue_active.avg.per_cycle_active": 0.2,
    "smsp__thread_inst_executed_per_inst_executed.ratio": 32,
    "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio": 31,
    "smsp__inst_executed.sum": 1_000_000,
    STALLED.format("long_scoreboard"): 60,
    STALLED.format("wait"): 5,
    STALLED.format("selected"): 1,
    "memory_l2_theoretical_sectors_global": 1_000_000,
    "memory_l2_theoretical_sectors_global_ideal": 1_000_000,
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 125_000,
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": 125_000,
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 500_000,
    "l1tex__t_sector_hit_rate.pct": 0,
    "lts__t_sectors_srcunit_tex.sum": 1_000_000,
    "lts__t_sectors_srcunit_tex_op_read.sum": 500_000,
    "lts__t_sector_op_read_hit_rate.pct": 0,
    "dram__bytes_read.sum": 160_000_000,
    "dram__bytes_write.sum": 160_000_000,
    "memory_l1_wavefronts_shared": 100_000,
    "memory_l1_wavefronts_shared_ideal": 100_000,
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed": 5,
    "smsp__sass_inst_executed_op_shared.sum": 100_000,
    "smsp__sass_inst_executed_op_local_ld.sum": 0,
    "smsp__sass_inst_executed_op_local_st.sum": 0,
    "l1tex__t_requests_pipe_lsu_mem_global_op_atom.sum": 0,
    "l1tex__t_requests_pipe_lsu_mem_global_op_red.sum": 0,
    "smsp__inst_executed_op_shared_atom.sum": 0,
    "lts__d_atomic_input_cycles_active.max.pct_of_peak_sustained_elapsed": 0,
    f"lts__d_atomic_input_cycles_active{ELAPSED}": 0,
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": 1_000_000,
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": 0,
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum": 0,
    "smsp__sass_thread_inst_executed_op_dadd_pred_on.sum": 0,
    "smsp__sass_thread_inst_executed_op_dmul_pred_on.sum": 0,
    "smsp__sass_thread_inst_executed_op_dfma_pred_on.sum": 0,
    "launch__registers_per_thread": 32,
    "launch__shared_mem_per_block_static": 0,
    "launch__shared_mem_per_block_dynamic": 0,
    "launch__sm_count": 132,
    "launch__occupancy_limit_warps": 8,
    "launch__occupancy_limit_blocks": 32,
    "launch__occupancy_limit_registers": 8,
    "launch__occupancy_limit_shared_mem": 32,
    "launch__occupancy_limit_barriers": 32,
}
IDLE: dict[str, float] = {
    # Nothing is busy: what a kernel looks like that waits.
    f"sm__throughput{ELAPSED}": 20,
    f"gpu__compute_memory_throughput{ELAPSED}": 15,
    f"gpu__dram_throughput{ELAPSED}": 10,
    f"lts__throughput{ELAPSED}": 15,
    f"l1tex__throughput{ELAPSED}": 10,
    f"l1tex__data_pipe_lsu_wavefronts{ELAPSED}": 10,
    f"l1tex__m_l1tex2xbar_req_cycles_active{ELAPSED}": 10,
}


def trace_of(
    *kernels: Mapping[str, Any], without: Iterable[str] = (), **tables: Sequence[Mapping[str, Any]]
) -> Trace:
    """Make a capture of these kernels: `counters` over `HEALTHY`, and columns of `profiles`."""
    profiles, counters = [], []
    for number, kernel in enumerate(kernels):
        changed = {**HEALTHY, **kernel.get("counters", {})}
        columns = {k: v for k, v in kernel.items() if k != "counters"}
        profiles.append({**DEFAULTS, "launch": number, **columns})
        counters += [
            {"launch": number, "metric": name, "value": float(value)}
            for name, value in changed.items()
            if not any(part in name for part in without)
        ]
    meta = {"source": "ncu-rep", "tool": "Nsight Compute"}
    return build_trace(meta, profiles=profiles, counters=counters, devices=[H200], **tables)


DEFAULTS: dict[str, Any] = {
    "kind": "kernel",
    "name": "stream(float*)",
    "device": 0,
    "grid_x": 132 * 8 * 20,
    "grid_y": 1,
    "grid_z": 1,
    "block_x": 256,
    "block_y": 1,
    "block_z": 1,
    "duration_ns": 200_000.0,
    "compute_major": 9,
    "compute_minor": 0,
}


def launch_of(
    counters: Mapping[str, float] | None = None, *, without: Iterable[str] = (), **columns: Any
) -> ProfiledLaunch:
    """Make one launch of a healthy kernel with these changes."""
    trace = trace_of({"counters": counters or {}, **columns}, without=without)
    return launches(trace)[0]


def verdict_of(rule: str, launch: ProfiledLaunch) -> RuleVerdict:
    """Ask one rule."""
    return kernel_rules()[rule].evaluate(launch)
