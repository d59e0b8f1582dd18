"""Memory: how much was in use over time, who held it at the peak, and whether it grows."""

from __future__ import annotations

from gpusight.analyses.memory.report import memory

__all__ = ["memory"]
