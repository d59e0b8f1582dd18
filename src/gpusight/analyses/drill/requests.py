"""A run of the plan as a request to record, in the words of the installed Nsight Compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.analyses.drill.functions import FUNCTION
from gpusight.capture.options import ncu as options
from gpusight.capture.request import Ranks, Request, StepRange, Tool

if TYPE_CHECKING:
    from pathlib import Path

    from gpusight.analyses.drill.plan import Run
    from gpusight.capture.request import Level
    from gpusight.capture.tools import InstalledTool


def request_of(
    run: Run,
    installed: InstalledTool,
    program: tuple[str, ...],
    level: Level,
    *,
    output: Path | None = None,
    ranks: Ranks | None = None,
    overwrite: bool = False,
) -> Request:
    """Ask for the launches of a run; the program ends once they are measured."""
    return Request(
        program,
        tool=Tool.NCU,
        output=output,
        steps=None if run.step is None else StepRange(run.step, run.step),
        ranks=Ranks() if ranks is None else ranks,
        stop=True,
        overwrite=overwrite,
        kernel=run.pattern,
        launch_skip=run.skip or None,
        launch_count=run.count,
        level=level,
        extra=_extra(run, installed),
    )


def _extra(run: Run, installed: InstalledTool) -> tuple[str, ...]:
    """Write what a request has no words for."""
    wanted = (
        (run.base != FUNCTION, options.KERNEL_BASE, run.base),
        *((True, options.NVTX_INCLUDE, text) for text in run.include),
        (run.process_scope, options.NVTX_SCOPE, "process"),
        (not run.from_start and run.step is None, options.FROM_START, "off"),
    )
    found: list[str] = []
    for asked, option, value in wanted:
        spelled = installed.spelling(option) if asked else None
        if spelled is not None:
            found += [spelled, value]
    return tuple(found)
