"""Arithmetic: how much operators compute, how fast, and how far below the roofline that is."""

from __future__ import annotations

from gpusight.analyses.flops.report import flops

__all__ = ["flops"]
