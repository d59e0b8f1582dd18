"""A stretch of a capture as a timeline that can be printed: one typical step, or what is asked."""

from __future__ import annotations

from gpusight.analyses.excerpt.report import timeline

__all__ = ["timeline"]
