"""Occupancy: how many warps an SM holds at once, what limits it, and what would raise it."""

from gpusight.analyses.occupancy.calculator import occupancy_of
from gpusight.analyses.occupancy.report import occupancy

__all__ = ["occupancy", "occupancy_of"]
