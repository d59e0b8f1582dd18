"""Which kernels belong together and could be one: each kernel is part of one thing at most."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpusight.findings.timeline.once import once
from gpusight.findings.timeline.parts.attention import Attention, find_attention
from gpusight.findings.timeline.parts.chains import Chains, find_chains
from gpusight.findings.timeline.parts.optimizer import Optimizer, find_optimizer
from gpusight.findings.timeline.parts.order import InOrder

if TYPE_CHECKING:
    from gpusight.analyses.replay.program import Flags
    from gpusight.findings.timeline.timeline import Timeline

__all__ = ["Parts", "parts_of"]

LAYOUT = r"nchw|nhwc|ncdhw|ndhwc|^tensor transform"
"""Labels of kernels that only change the layout of a tensor for a convolution."""


class Parts(NamedTuple):
    """What kernels are part of, all by position in `Schedule.ops`."""

    attention: Attention
    optimizer: Optimizer
    layout: Flags
    """It changes the layout of a tensor for a convolution."""
    chains: Chains


@once
def parts_of(timeline: Timeline) -> Parts:
    """Sort kernels into attention, optimizer, layout and chains, in this order; done once."""
    order = InOrder(timeline.ops)
    attention = find_attention(order)
    free = attention.group < 0
    optimizer = find_optimizer(order, free[order.ops])
    free &= optimizer.group < 0
    copies = timeline.ops["category"].fill_null("") == "copy"
    layout = (copies & timeline.ops["label"].str.contains(LAYOUT)).to_numpy() & free
    chains = find_chains(order, timeline.schedule, (free & ~layout)[order.ops])
    return Parts(attention, optimizer, layout, chains)
