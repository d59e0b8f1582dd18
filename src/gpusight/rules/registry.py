"""The list of rules, one line each; a rule is imported on first use.

A timeline imports no kernel rule, and a report of Nsight Compute no timeline rule.
"""

from __future__ import annotations

import difflib
import importlib
from functools import cache
from typing import TYPE_CHECKING, TypeVar, cast

from gpusight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusight.rules.rule import KernelRule, Rule, TimelineRule

AnyRule = TypeVar("AnyRule", bound="Rule")

TIMELINE_RULES = {
    "input-starved": "timeline.input_starved:InputStarved",
    "launch-bound": "timeline.launch_bound:LaunchBound",
    "recompilation": "timeline.recompilation:Recompilation",
    "host-sync": "timeline.host_sync:HostSync",
    "alloc-churn": "timeline.alloc_churn:AllocChurn",
    "exposed-copy": "timeline.exposed_copy:ExposedCopy",
    "small-transfers": "timeline.small_transfers:SmallTransfers",
    "pageable-copy": "timeline.pageable_copy:PageableCopy",
    "fp32-no-tensor-cores": "timeline.fp32_no_tensor_cores:Fp32NoTensorCores",
    "unfused-attention": "timeline.unfused_attention:UnfusedAttention",
    "unfused-optimizer": "timeline.unfused_optimizer:UnfusedOptimizer",
    "recomputation": "timeline.recomputation:Recomputation",
    "layout-transpose": "timeline.layout_transpose:LayoutTranspose",
    "conv-algorithm": "timeline.conv_algorithm:ConvAlgorithm",
    "elementwise-chain": "timeline.elementwise_chain:ElementwiseChain",
    "small-grid": "timeline.small_grid_timeline:SmallGridTimeline",
    "page-faults": "timeline.page_faults:PageFaults",
    "gpu-shared": "timeline.gpu_shared:GpuShared",
    "gil-contention": "timeline.gil_contention:GilContention",
    "anomaly-mode": "timeline.anomaly_mode:AnomalyMode",
    "blocking-launches": "timeline.blocking_launches:BlockingLaunches",
    "fp64-math": "timeline.fp64_math:Fp64Math",
    "graph-candidate": "timeline.graph_candidate:GraphCandidate",
    "exposed-communication": "timeline.exposed_communication:ExposedCommunication",
    "memory-growth": "timeline.memory_growth:MemoryGrowth",
    "between-steps": "timeline.between_steps:BetweenSteps",
    "host-bound": "timeline.host_bound:HostBound",
    "startup-bound": "timeline.startup_bound:StartupBound",
    "warmup-in-window": "timeline.warmup_in_window:WarmupInWindow",
    "dependency-stall": "timeline.dependency_stall:DependencyStall",
    "profiler-overhead": "timeline.profiler_overhead:ProfilerOverhead",
    "capture-incomplete": "timeline.capture_incomplete:CaptureIncomplete",
}
"""Rules for timelines: module and class of each identifier."""
KERNEL_RULES = {
    "uncoalesced-access": "kernel.uncoalesced_access:UncoalescedAccess",
    "bank-conflict": "kernel.bank_conflict:BankConflict",
    "atomic-contention": "kernel.atomic_contention:AtomicContention",
    "register-spill": "kernel.register_spill:RegisterSpill",
    "cache-miss": "kernel.cache_miss:CacheMiss",
    "low-occupancy-registers": "kernel.low_occupancy_registers:LowOccupancyRegisters",
    "low-occupancy-shared-memory": "kernel.low_occupancy_shared_memory:LowOccupancySharedMemory",
    "low-occupancy-block-size": "kernel.low_occupancy_block_size:LowOccupancyBlockSize",
    "small-grid": "kernel.small_grid_counters:SmallGridCounters",
    "tail-effect": "kernel.tail_effect:TailEffect",
    "divergence": "kernel.divergence:Divergence",
    "fp64-heavy": "kernel.fp64_heavy:Fp64Heavy",
    "tensor-cores-idle": "kernel.tensor_cores_idle:TensorCoresIdle",
    "memory-bound": "kernel.memory_bound:MemoryBound",
    "compute-bound": "kernel.compute_bound:ComputeBound",
    "latency-bound": "kernel.latency_bound:LatencyBound",
}
"""Rules for profiled kernels: causes first, then what a launch is bound by."""


@cache
def timeline_rules() -> dict[str, TimelineRule]:
    """Return the rules for timelines, by identifier."""
    return {id_: cast("TimelineRule", _instantiate(path)) for id_, path in TIMELINE_RULES.items()}


@cache
def kernel_rules() -> dict[str, KernelRule]:
    """Return the rules for profiled kernels, by identifier."""
    return {id_: cast("KernelRule", _instantiate(path)) for id_, path in KERNEL_RULES.items()}


def unknown_rule(id_: str, known: Iterable[str]) -> UsageError:
    """Return the error for a rule that does not exist, with the one that was meant."""
    near = difflib.get_close_matches(id_, list(known), n=1)
    hint = f"did you mean {near[0]}?" if near else "gpusight diagnose --list-rules lists them"
    return UsageError(f"no rule {id_!r}", hint=hint)


def rules_named(id_: str) -> list[Rule]:
    """Return the rules of an identifier: `small-grid` is one for timelines and one for kernels."""
    rules: list[Rule] = [r[id_] for r in (timeline_rules(), kernel_rules()) if id_ in r]
    if not rules:
        raise unknown_rule(id_, (*TIMELINE_RULES, *KERNEL_RULES))
    return rules


def select_rules(rules: Mapping[str, AnyRule], ids: Sequence[str]) -> dict[str, AnyRule]:
    """Choose rules by their identifiers; all where none is named."""
    for id_ in ids:
        if id_ not in rules:
            raise unknown_rule(id_, rules)
    return {id_: rule for id_, rule in rules.items() if not ids or id_ in ids}


def _instantiate(path: str) -> Rule:
    module, _, name = path.partition(":")
    rule: Rule = getattr(importlib.import_module(f"gpusight.rules.{module}"), name)()
    return rule
