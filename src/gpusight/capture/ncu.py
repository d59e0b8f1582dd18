"""The command line that measures kernels with Nsight Compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.capture import nvtx_filter
from gpusight.capture.command import Command
from gpusight.capture.options import ncu as options
from gpusight.capture.options.build import Options
from gpusight.capture.request import Level
from gpusight.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from gpusight.capture.request import Request
    from gpusight.capture.tools import InstalledTool

SUFFIX = ".ncu-rep"
STOCK_SECTIONS = "NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT"
"""Set to 1, ncu reads its sections where it is installed and copies none into the home folder."""
_BY_FUNCTION = "function"


@dataclass(frozen=True)
class Filter:
    """Which launches are measured."""

    kernel: str | None = None
    """Regular expression, found anywhere in the name; None: any."""
    base: str = _BY_FUNCTION
    """Which name: `function` (no namespace, template or parameters), `demangled`, `mangled`."""
    launch_skip: int = 0
    """Of the launches that pass all other filters, how many to leave out first."""
    launch_count: int | None = None
    """How many to measure then; None: all."""
    nvtx_include: tuple[str, ...] = ()
    """Filters in ncu's own language, of which one must fit; see `nvtx_filter`."""
    process_scope: bool = True
    """A range that was pushed counts for all threads: autograd launches from one of its own."""
    from_start: bool = True
    """False: only between cudaProfilerStart and Stop."""
    kill: bool = False
    """End the program when `launch_count` launches are measured."""


def filter_for(request: Request) -> Filter:
    """Choose the launches that a request to record is about."""
    return Filter(
        kernel=request.kernel,
        launch_skip=request.launch_skip or 0,
        launch_count=request.launch_count,
        nvtx_include=nvtx_filter.of_range(request.range_name) if request.range_name else (),
        from_start=request.steps is None,
        kill=request.stop and request.launch_count is not None,
    )


def ncu_command(
    installed: InstalledTool,
    program: tuple[str, ...],
    output: Path,
    chosen: Filter,
    level: Level = Level.QUICK,
    extra: tuple[str, ...] = (),
    *,
    overwrite: bool = False,
) -> Command:
    """Build `ncu …` that measures these launches of a program, as this version of ncu takes it.

    Clocks are left as they are (`--clock-control none`): by default ncu locks them to the base
    clock, and times would not compare with those of the timeline, in which they ran free. Child
    processes are measured too, because Python programs are often started by others (torchrun,
    bash). NVTX is on, so that the report says in which ranges a kernel was launched.
    """
    if options.EXPORT.among(extra):
        raise UsageError(
            "ncu's own --export would hide the capture from gpusight",
            hint="say where to with -o",
        )
    found = Options(installed, extra, joined=False)
    found.add(options.CLOCKS, "none")
    found.add(options.PROCESSES, "all")
    _measure(found, level, own=_own_sections(extra))
    _choose(found, chosen)
    produces = output if output.name.endswith(SUFFIX) else output.with_name(output.name + SUFFIX)
    if overwrite:
        found.add(options.OVERWRITE)
    found.add(options.EXPORT, str(produces).replace("%", "%%"))
    argv = (str(installed.path), *found.argv, *program)
    return Command(argv, produces, _environment(extra), tuple(found.notes))


def _measure(found: Options, level: Level, *, own: bool) -> None:
    """Name what is measured of each launch.

    `quick`: how busy SMs and memory are, and what limits occupancy. `detail`: what our rules and
    the roofline ask for. `full`: everything that ncu has, about 2 s a launch.
    """
    if level is Level.FULL:
        found.add(options.SET, "full")
    sections = {Level.QUICK: options.BASIC_SECTIONS, Level.DETAIL: options.RULE_SECTIONS}
    for section in sections.get(level, ()):
        found.add(options.SECTION, section)
    if level is Level.QUICK:
        # The machine code of every loaded library makes reports a hundred times as large.
        if not own:
            found.add(options.SASS, "no")
    elif found.installed.version >= options.HAS_ARITHMETIC:
        for section in options.ARITHMETIC_SECTIONS:
            found.add(options.SECTION, section)
    else:
        found.notes.append(
            f"{found.installed} does not count operations of FP16 and tensor cores "
            f"({options.HAS_ARITHMETIC.year}.{options.HAS_ARITHMETIC.minor} and newer do): "
            "their roofline is estimated"
        )


def _choose(found: Options, chosen: Filter) -> None:
    """Name which launches are measured."""
    found.add(options.NVTX)
    if chosen.kernel is not None:
        # The older spelling always means a regular expression.
        by_name = found.installed.spelling(options.KERNEL) == "--kernel-name"
        found.need(options.KERNEL, f"regex:{chosen.kernel}" if by_name else chosen.kernel)
        if chosen.base != _BY_FUNCTION:
            found.need(options.KERNEL_BASE, chosen.base)
    for statement in chosen.nvtx_include:
        found.need(options.NVTX_INCLUDE, statement)
    if chosen.nvtx_include and chosen.process_scope:
        found.add(
            options.NVTX_SCOPE,
            "process",
            otherwise="looks for a range on one thread only: kernels of the backward pass, which "
            "autograd launches from a thread of its own, are not measured",
        )
    if not chosen.from_start:
        found.need(options.FROM_START, "off")
    if chosen.launch_skip:
        found.need(options.SKIP, str(chosen.launch_skip))
    if chosen.launch_count is not None:
        found.need(options.COUNT, str(chosen.launch_count))
        if chosen.kill:
            found.add(options.KILL, "yes", otherwise="cannot end the program: it runs to its end")


def _own_sections(extra: tuple[str, ...]) -> bool:
    return options.SET.among(extra) or options.SECTION.among(extra)


def _environment(extra: tuple[str, ...]) -> dict[str, str]:
    """Keep ncu from writing into the home folder, unless sections of the user's may lie there."""
    return {} if _own_sections(extra) else {STOCK_SECTIONS: "1"}
