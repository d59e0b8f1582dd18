"""THE table of timeline rules: one file each, listed once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.findings.timeline.rules.alloc_churn import AllocChurn
from gpusight.findings.timeline.rules.between_steps import BetweenSteps
from gpusight.findings.timeline.rules.capture_incomplete import CaptureIncomplete
from gpusight.findings.timeline.rules.conv_algorithm import ConvAlgorithm
from gpusight.findings.timeline.rules.dependency_stall import DependencyStall
from gpusight.findings.timeline.rules.elementwise_chain import ElementwiseChain
from gpusight.findings.timeline.rules.exposed_communication import ExposedCommunication
from gpusight.findings.timeline.rules.exposed_copy import ExposedCopy
from gpusight.findings.timeline.rules.fp32_no_tensor_cores import Fp32NoTensorCores
from gpusight.findings.timeline.rules.graph_candidate import GraphCandidate
from gpusight.findings.timeline.rules.host_sync import HostSync
from gpusight.findings.timeline.rules.input_starved import InputStarved
from gpusight.findings.timeline.rules.launch_bound import LaunchBound
from gpusight.findings.timeline.rules.layout_transpose import LayoutTranspose
from gpusight.findings.timeline.rules.memory_growth import MemoryGrowth
from gpusight.findings.timeline.rules.pageable_copy import PageableCopy
from gpusight.findings.timeline.rules.profiler_overhead import ProfilerOverhead
from gpusight.findings.timeline.rules.small_grid import SmallGrid
from gpusight.findings.timeline.rules.unfused_attention import UnfusedAttention
from gpusight.findings.timeline.rules.unfused_optimizer import UnfusedOptimizer
from gpusight.findings.timeline.rules.warmup_in_window import WarmupInWindow

if TYPE_CHECKING:
    from gpusight.findings.timeline.rule import Rule

RULES: dict[str, Rule] = {
    rule.id: rule
    for rule in (
        InputStarved(),
        LaunchBound(),
        HostSync(),
        AllocChurn(),
        ExposedCopy(),
        PageableCopy(),
        Fp32NoTensorCores(),
        UnfusedAttention(),
        UnfusedOptimizer(),
        LayoutTranspose(),
        ConvAlgorithm(),
        ElementwiseChain(),
        SmallGrid(),
        GraphCandidate(),
        ExposedCommunication(),
        MemoryGrowth(),
        BetweenSteps(),
        WarmupInWindow(),
        DependencyStall(),
        ProfilerOverhead(),
        CaptureIncomplete(),
    )
}
"""Every rule by its identifier."""
