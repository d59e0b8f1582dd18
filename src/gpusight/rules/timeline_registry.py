"""The list of timeline rules: one file each, listed once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.rules.timeline.alloc_churn import AllocChurn
from gpusight.rules.timeline.between_steps import BetweenSteps
from gpusight.rules.timeline.capture_incomplete import CaptureIncomplete
from gpusight.rules.timeline.conv_algorithm import ConvAlgorithm
from gpusight.rules.timeline.dependency_stall import DependencyStall
from gpusight.rules.timeline.elementwise_chain import ElementwiseChain
from gpusight.rules.timeline.exposed_communication import ExposedCommunication
from gpusight.rules.timeline.exposed_copy import ExposedCopy
from gpusight.rules.timeline.fp32_no_tensor_cores import Fp32NoTensorCores
from gpusight.rules.timeline.graph_candidate import GraphCandidate
from gpusight.rules.timeline.host_sync import HostSync
from gpusight.rules.timeline.input_starved import InputStarved
from gpusight.rules.timeline.launch_bound import LaunchBound
from gpusight.rules.timeline.layout_transpose import LayoutTranspose
from gpusight.rules.timeline.memory_growth import MemoryGrowth
from gpusight.rules.timeline.pageable_copy import PageableCopy
from gpusight.rules.timeline.profiler_overhead import ProfilerOverhead
from gpusight.rules.timeline.small_grid import SmallGrid
from gpusight.rules.timeline.unfused_attention import UnfusedAttention
from gpusight.rules.timeline.unfused_optimizer import UnfusedOptimizer
from gpusight.rules.timeline.warmup_in_window import WarmupInWindow

if TYPE_CHECKING:
    from gpusight.rules.rule import Rule


TIMELINE_RULES: dict[str, Rule] = {
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
