"""Steps, what they are made of, and the time that analyses look at."""

from __future__ import annotations

from gpusight.analyses.steps.focus import Focus, focus
from gpusight.analyses.steps.names import PROFILER_STEP, find_steps, read_name
from gpusight.analyses.steps.report import steps
from gpusight.analyses.steps.step import Evidence, Step, Steps

__all__ = [
    "PROFILER_STEP",
    "Evidence",
    "Focus",
    "Step",
    "Steps",
    "find_steps",
    "focus",
    "read_name",
    "steps",
]
