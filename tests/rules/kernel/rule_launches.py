"""Launches that each kernel rule finds, passes or cannot evaluate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusight.rules.registry import KERNEL_RULES
from gpusight.rules.rule import KernelRuleMatch
from tests.rules.launches import ELAPSED, IDLE, STALLED, launch_of, verdict_of

if TYPE_CHECKING:
    from collections.abc import Mapping


SECTORS = "memory_l2_theoretical_sectors_global"
SHARED = "memory_l1_wavefronts_shared"
SHARED_PIPE = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed"
ATOMIC_MAX = "lts__d_atomic_input_cycles_active.max.pct_of_peak_sustained_elapsed"
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
WAITING = {**IDLE, "smsp__issue_active.avg.per_cycle_active": 0.1}
L1_DATA = f"l1tex__data_pipe_lsu_wavefronts{ELAPSED}"
FOUND: dict[str, dict[str, Any]] = {
    "uncoalesced-access": {
        "counters": {f"{SECTORS}_ideal": 125_000, "smsp__inst_executed.sum": 20_000_000}
    },
    "bank-conflict": {
        "counters": {
            f"l1tex__data_pipe_lsu_wavefronts{ELAPSED}": 95,
            SHARED_PIPE: 90,
            SHARED: 1_600_000,
            f"gpu__dram_throughput{ELAPSED}": 20,
            f"gpu__compute_memory_throughput{ELAPSED}": 95,
            f"lts__throughput{ELAPSED}": 20,
            f"l1tex__throughput{ELAPSED}": 95,
            STALLED.format("mio_throttle"): 200,
        }
    },
    "atomic-contention": {
        "counters": {
            **IDLE,
            f"sm__throughput{ELAPSED}": 2,
            f"sm__issue_active{ELAPSED}": 1,
            f"sm__pipe_fma_cycles_active{ELAPSED}": 1,
            f"sm__pipe_alu_cycles_active{ELAPSED}": 1,
            f"sm__inst_executed_pipe_lsu{ELAPSED}": 1,
            f"gpu__dram_throughput{ELAPSED}": 1,
            ATOMIC_MAX: 80,
            f"lts__d_atomic_input_cycles_active{ELAPSED}": 1,
            "l1tex__t_requests_pipe_lsu_mem_global_op_red.sum": 500_000,
        }
    },
    "register-spill": {
        "counters": {
            "smsp__sass_inst_executed_op_local_ld.sum": 1_000_000,
            "smsp__sass_inst_executed_op_local_st.sum": 500_000,
            "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum": 8_000_000,
            "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum": 4_000_000,
            "lts__t_sectors_srcunit_tex.sum": 12_000_000,
            "dram__bytes_read.sum": 2_000_000_000,
        }
    },
    "cache-miss": {
        "counters": {
            f"{SECTORS}_ideal": 300_000,
            f"gpu__dram_throughput{ELAPSED}": 50,
            f"lts__throughput{ELAPSED}": 80,
            f"gpu__compute_memory_throughput{ELAPSED}": 55,
            STALLED.format("long_scoreboard"): 300,
        }
    },
    "low-occupancy-registers": {
        "counters": {
            **WAITING,
            "launch__registers_per_thread": 250,
            "launch__occupancy_limit_registers": 1,
            "sm__maximum_warps_per_active_cycle_pct": 12.5,
        }
    },
    "low-occupancy-shared-memory": {
        "counters": {
            **WAITING,
            "launch__shared_mem_per_block_dynamic": 150_000,
            "launch__occupancy_limit_shared_mem": 1,
            "sm__maximum_warps_per_active_cycle_pct": 12.5,
        }
    },
    "low-occupancy-block-size": {
        "counters": {
            **WAITING,
            "launch__occupancy_limit_warps": 64,
            "launch__occupancy_limit_registers": 64,
            "sm__maximum_warps_per_active_cycle_pct": 50,
        },
        "block_x": 32,
    },
    "small-grid": {"counters": IDLE, "grid_x": 4},
    "tail-effect": {
        "counters": {**IDLE, "sm__warps_active.avg.pct_of_peak_sustained_active": 52},
        "grid_x": 132 * 8 + 20,
    },
    "divergence": {
        "counters": {
            **IDLE,
            f"sm__throughput{ELAPSED}": 95,
            f"sm__issue_active{ELAPSED}": 95,
            "smsp__thread_inst_executed_per_inst_executed.ratio": 8,
            STALLED.format("long_scoreboard"): 1,
        }
    },
    "fp64-heavy": {
        "counters": {
            **IDLE,
            f"sm__throughput{ELAPSED}": 97,
            f"sm__pipe_fp64_cycles_active{ELAPSED}": 97,
            "smsp__sass_thread_inst_executed_op_dfma_pred_on.sum": 30_000_000,
        }
    },
    "tensor-cores-idle": {
        "counters": {
            **IDLE,
            f"sm__throughput{ELAPSED}": 90,
            f"sm__pipe_fma_cycles_active{ELAPSED}": 90,
            FFMA: 10_000_000_000,
        },
        "name": "sgemm_128x128_nn(float*)",
    },
    "memory-bound": {},
    "compute-bound": {
        "counters": {**IDLE, f"sm__throughput{ELAPSED}": 95, f"sm__issue_active{ELAPSED}": 95}
    },
    "latency-bound": {"counters": WAITING},
}
CLEAN: dict[str, dict[str, Any]] = {
    **{rule: {} for rule in KERNEL_RULES},
    "memory-bound": FOUND["compute-bound"],
    # A conflict where DRAM is what holds the kernel up gains nothing.
    "bank-conflict": {"counters": {SHARED: 200_000}},
    # Three floats of a structure, all used: L1 makes up for it.
    "uncoalesced-access": {
        "counters": {SECTORS: 3_000_000, "l1tex__t_sector_hit_rate.pct": 66},
    },
    # Few warps, but one unit at its roof all the same.
    "low-occupancy-registers": {
        "counters": {
            "launch__occupancy_limit_registers": 1,
            "sm__maximum_warps_per_active_cycle_pct": 12.5,
        }
    },
    "low-occupancy-shared-memory": {
        "counters": {
            "launch__shared_mem_per_block_dynamic": 150_000,
            "launch__occupancy_limit_shared_mem": 1,
            "sm__maximum_warps_per_active_cycle_pct": 12.5,
        }
    },
    # Atomics that are spread over all slices.
    "atomic-contention": {
        "counters": {
            "l1tex__t_requests_pipe_lsu_mem_global_op_red.sum": 500_000,
            ATOMIC_MAX: 22,
            f"lts__d_atomic_input_cycles_active{ELAPSED}": 20,
        }
    },
    # Double precision beside a kernel at its DRAM roof.
    "fp64-heavy": {"counters": {f"sm__pipe_fp64_cycles_active{ELAPSED}": 25}},
    "tensor-cores-idle": {
        "counters": {f"sm__pipe_tensor_cycles_active{ELAPSED}": 80},
        "name": "sgemm_128x128_nn(float*)",
    },
    # A stream reads more than L2 holds and misses all of it, as it must.
    "cache-miss": {"counters": {"dram__bytes_read.sum": 5_000_000_000}},
    "tail-effect": {"counters": IDLE, "grid_x": 132 * 8 * 2},
    "divergence": {
        # A memory-bound kernel gains nothing from full warps.
        "counters": {"smsp__thread_inst_executed_per_inst_executed.ratio": 16}
    },
}
LACKING: dict[str, tuple[str, ...]] = {
    "uncoalesced-access": ("sectors",),
    "bank-conflict": ("wavefronts_shared", "bank_conflicts"),
    "atomic-contention": ("atom", "_red"),
    "register-spill": ("_local_",),
    "cache-miss": ("hit_rate",),
    "low-occupancy-registers": ("occupancy_limit", "registers"),
    "low-occupancy-shared-memory": ("shared_mem_per_block",),
    "low-occupancy-block-size": ("registers",),
    "small-grid": ("occupancy_limit", "registers"),
    "tail-effect": ("occupancy_limit", "registers", "waves"),
    "divergence": ("thread_inst_executed_per",),
    "fp64-heavy": ("fp64",),
    "tensor-cores-idle": ("tensor",),
    "memory-bound": ("throughput", "pipe", "issue", "l1tex2xbar"),
    "compute-bound": ("throughput", "pipe", "issue", "l1tex2xbar"),
    "latency-bound": ("throughput", "pipe", "issue", "l1tex2xbar"),
}


def matched(
    rule: str, counters: Mapping[str, float] | None = None, **columns: Any
) -> KernelRuleMatch:
    """Return the match of a rule that must find something."""
    verdict = verdict_of(rule, launch_of(counters, **columns))
    assert isinstance(verdict, KernelRuleMatch)
    return verdict


def speedup(verdict: KernelRuleMatch) -> float:
    """Return the speedup of the kernel that a match estimates."""
    assert verdict.time_share is not None
    return 1 / verdict.time_share
