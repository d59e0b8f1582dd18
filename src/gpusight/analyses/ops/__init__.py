"""Operators of the framework: their own time and that of what they call, on host and GPU."""

from __future__ import annotations

from gpusight.analyses.ops.report import ops

__all__ = ["ops"]
