"""The answer of `drill`: kernels, filters, commands, and what was measured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpusight.analyses.drill.pick import COMMAND, Verdict
from gpusight.capture.request import Level

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.analyses.drill.measured import Measured
    from gpusight.analyses.drill.pick import Kernel
    from gpusight.analyses.drill.plan import LaunchPlan
    from gpusight.capture.command import Command

PASSES = {Level.QUICK: 10, Level.DETAIL: 34, Level.FULL: 38}
"""How often Nsight Compute runs a kernel; seen on an H200, other GPUs differ somewhat."""
_LAUNCH_S = {Level.QUICK: 0.3, Level.DETAIL: 1.2, Level.FULL: 2.0}
"""What a launch costs beside those runs of it, on the same machine."""


@dataclass(frozen=True)
class Drill:
    """Kernels worth measuring, and how to measure them."""

    kernels: tuple[Kernel, ...]
    """By time, the longest first: those that matter."""
    plan: LaunchPlan | None
    """None where nothing is worth measuring."""
    level: Level
    commands: tuple[Command, ...] = ()
    """One for each run of the plan."""
    tool: str = ""
    """What the commands are for: `ncu 2025.3.1`."""
    installed: bool = False
    """Whether it is on this machine."""
    program: tuple[str, ...] | None = None
    """What is measured; None: commands name a stand-in."""
    steps: int = 0
    """Steps in the window; 0 where none are known."""
    window_ns: int | None = None
    kernel_ns: int = 0
    """Time of all kernels in the window."""
    measured: Mapping[int, Measured] | None = None
    """What reports hold of the chosen kernels; None: no report was given."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What it is about."""
        return "Kernels worth measuring"

    @property
    def chosen(self) -> tuple[Kernel, ...]:
        """What to measure, the longest first."""
        return tuple(k for k in self.kernels if k.verdict is Verdict.CHOSEN)

    @property
    def missing(self) -> tuple[Kernel, ...]:
        """What was to be measured and is in no report."""
        held = self.measured
        return () if held is None else tuple(k for k in self.chosen if not held[k.group].launches)

    @property
    def per_step(self) -> int:
        """What to divide by for a step: 1 where none are known."""
        return max(1, self.steps)

    @property
    def estimate_s(self) -> float | None:
        """How long measuring takes, roughly, beside the program's own time."""
        if self.plan is None:
            return None
        longest = max(k.time_ns / max(1, k.launches) for k in self.chosen)
        launch_s = _LAUNCH_S[self.level] + PASSES[self.level] * longest * 1e-9
        return self.plan.launches * launch_s

    def with_warnings(self, warnings: Sequence[str]) -> Drill:
        """Say first what is wrong with the capture."""
        return replace(self, notes=tuple(dict.fromkeys((*warnings, *self.notes))))

    def document(self) -> dict[str, Any]:
        """Give what `--format json` writes, as plain objects."""
        plan = self.plan
        return {
            "meta": {"command": COMMAND, **self.meta},
            "window_ns": self.window_ns,
            "steps": self.steps,
            "kernel_ns": self.kernel_ns,
            "kernels": [self._kernel(kernel) for kernel in self.kernels],
            "level": self.level.value,
            "anchor": None if plan is None else plan.anchor.value,
            "why": None if plan is None else plan.why,
            "exact": None if plan is None else plan.exact,
            "runs": [] if plan is None else [self._run(n) for n in range(len(plan.runs))],
            "tool": self.tool or None,
            "installed": self.installed,
            "program": None if self.program is None else list(self.program),
            "estimate_s": self.estimate_s,
            "notes": list(self.notes),
        }

    def _run(self, number: int) -> dict[str, Any]:
        assert self.plan is not None
        told = self.plan.runs[number].document()
        if number >= len(self.commands):
            return told
        command = self.commands[number]
        return told | {
            "command": list(command.argv),
            "environment": dict(command.environment),
            "report": str(command.produces),
            "notes": list(command.notes),
        }

    def _kernel(self, kernel: Kernel) -> dict[str, Any]:
        held = None if self.measured is None else self.measured.get(kernel.group)
        return {
            "kernel": kernel.group,
            "name": kernel.name,
            "label": kernel.short_name,
            "function": kernel.function,
            "category": kernel.category,
            "grid": list(kernel.shape[:3]),
            "block": list(kernel.shape[3:]),
            "launches": kernel.launches,
            "launches_per_step": kernel.launches / self.steps if self.steps else None,
            "time_ns": kernel.time_ns,
            "time_ns_per_step": kernel.time_ns / self.steps if self.steps else None,
            "share": kernel.share,
            "roof_share": kernel.roof_share,
            "verdict": kernel.verdict.value,
            "why": kernel.why,
            "measured": None if held is None else held.launches,
            "measured_other_shapes": None if held is None else held.other_shapes,
        }
