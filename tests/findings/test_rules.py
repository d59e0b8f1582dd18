"""Each rule on launches built by hand: found, clean, and not applicable."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.rules.registry import KERNEL_RULES, kernel_rules
from gpusight.rules.rule import Clean, KernelRuleMatch, RuleNotApplicable
from tests.findings.launches import ELAPSED, IDLE, STALLED, launch_of, verdict_of

SECTORS = "memory_l2_theoretical_sectors_global"
SHARED = "memory_l1_wavefronts_shared"
SHARED_PIPE = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed"
ATOMIC_MAX = "lts__d_atomic_input_cycles_active.max.pct_of_peak_sustained_elapsed"
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
WAITING = {**IDLE, "smsp__issue_active.avg.per_cycle_active": 0.1}

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


@pytest.mark.parametrize("rule", sorted(KERNEL_RULES))
def test_found(rule: str) -> None:
    verdict = verdict_of(rule, launch_of(**FOUND[rule]))
    assert isinstance(verdict, KernelRuleMatch)
    assert verdict.evidence
    assert verdict.time_share is not None
    assert 0 < verdict.time_share <= 1
    assert verdict.title
    assert verdict.estimate


@pytest.mark.parametrize("rule", sorted(KERNEL_RULES))
def test_clean(rule: str) -> None:
    assert isinstance(verdict_of(rule, launch_of(**CLEAN[rule])), Clean)


@pytest.mark.parametrize("rule", sorted(KERNEL_RULES))
def test_not_applicable(rule: str) -> None:
    verdict = verdict_of(rule, launch_of(without=LACKING[rule], **FOUND[rule]))
    assert isinstance(verdict, RuleNotApplicable)
    assert verdict.reason
    assert verdict.sections


@pytest.mark.parametrize("rule", sorted(KERNEL_RULES))
def test_a_capture_of_nothing_but_durations_is_not_applicable(rule: str) -> None:
    launch = launch_of(without=("",), grid_x=None, block_x=None, compute_major=None)
    assert isinstance(verdict_of(rule, launch), RuleNotApplicable)


def test_estimates_follow_the_numbers() -> None:
    uncoalesced = verdict_of("uncoalesced-access", launch_of(**FOUND["uncoalesced-access"]))
    assert isinstance(uncoalesced, KernelRuleMatch)
    # One sector in eight is needed: DRAM keeps 12.5%, issuing 20% is what is next.
    assert uncoalesced.time_share == pytest.approx(0.2 / 0.9, rel=0.25)
    fp64 = verdict_of("fp64-heavy", launch_of(**FOUND["fp64-heavy"]))
    assert isinstance(fp64, KernelRuleMatch)
    # H200: FP64 at half the FP32 rate, and the FP32 pipe has 5% to do already.
    assert fp64.time_share == pytest.approx((0.05 + 0.97 / 2) / 0.97, rel=0.05)
    grid = verdict_of("small-grid", launch_of(**FOUND["small-grid"]))
    assert isinstance(grid, KernelRuleMatch)
    assert grid.time_share == pytest.approx(0.2 / 0.9, rel=0.1)


def test_the_rate_of_fp64_is_that_of_the_gpu() -> None:
    from dataclasses import replace

    from gpusight.hardware.gpu_lookup import find_gpu

    launch = launch_of(**FOUND["fp64-heavy"])
    geforce = replace(launch, gpu=find_gpu("RTX 4090"))
    ours, theirs = verdict_of("fp64-heavy", launch), verdict_of("fp64-heavy", geforce)
    assert isinstance(ours, KernelRuleMatch)
    assert isinstance(theirs, KernelRuleMatch)
    assert theirs.time_share is not None
    assert ours.time_share is not None
    assert theirs.time_share < ours.time_share / 2
    assert "1/64" in theirs.title


def test_a_gain_that_cannot_be_computed_is_unknown() -> None:
    units = ("throughput", "pipe_", "issue", "l1tex2xbar", "stalled", "cycles_active")
    verdict = verdict_of(
        "uncoalesced-access", launch_of({f"{SECTORS}_ideal": 125_000}, without=units)
    )
    assert isinstance(verdict, KernelRuleMatch)
    assert verdict.time_share is None


def test_tensor_cores_are_asked_for_where_there_are_some() -> None:
    from dataclasses import replace

    from gpusight.hardware.gpu_lookup import find_gpu

    launch = launch_of(**FOUND["tensor-cores-idle"])
    pascal = replace(launch, gpu=find_gpu("GTX 1080 Ti"))
    assert isinstance(verdict_of("tensor-cores-idle", pascal), Clean)


def test_uneven_blocks_and_starting_blocks_are_seen() -> None:
    uneven = launch_of({**IDLE, "sm__cycles_active.avg": 100})
    verdict = verdict_of("tail-effect", uneven)
    assert isinstance(verdict, KernelRuleMatch)
    assert "run much longer" in verdict.title
    many: dict[str, Any] = {"block_x": 64, "grid_x": 5_000_000, "duration_ns": 2e6}
    starting = launch_of({**IDLE, OCCUPANCY: 25}, **many)
    verdict = verdict_of("low-occupancy-block-size", starting)
    assert isinstance(verdict, KernelRuleMatch)
    assert "starting them" in verdict.title
    # SMs that are full all the same do not wait for blocks to start.
    assert isinstance(verdict_of("low-occupancy-block-size", launch_of(IDLE, **many)), Clean)
    partial = launch_of({**IDLE, f"sm__inst_executed_pipe_xu{ELAPSED}": 95}, block_x=40)
    verdict = verdict_of("low-occupancy-block-size", partial)
    assert isinstance(verdict, KernelRuleMatch)
    assert verdict.time_share == pytest.approx(0.625, rel=0.05)


def test_a_graph_has_no_grid_to_judge() -> None:
    graph = launch_of(**{**FOUND["small-grid"], "kind": "graph"})
    assert isinstance(verdict_of("small-grid", graph), RuleNotApplicable)


@pytest.mark.parametrize("rule", sorted(KERNEL_RULES))
def test_rules_explain_themselves(rule: str) -> None:
    declared = kernel_rules()[rule]
    texts = (declared.detects, declared.why, declared.fix, declared.caveats, declared.estimate)
    assert all(text.endswith(".") for text in texts)
    assert declared.explains <= KERNEL_RULES.keys()
    assert rule not in declared.explains
    assert declared.sections
    assert all(threshold.why for threshold in declared.thresholds.values())
    # The snippet is shown behind a margin of 11 columns on a screen of 80.
    assert max(map(len, declared.code.splitlines())) <= 69
