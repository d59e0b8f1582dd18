"""The command line that measures kernels with Nsight Compute: options, sections, NVTX filters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.errors import UsageError
from gpusight.recording.request import NcuLevel
from gpusight.recording.tools import (
    OptionSpelling,
    ToolCommand,
    ToolOption,
    ToolOptions,
    ToolVersion,
    option,
)

if TYPE_CHECKING:
    from pathlib import Path

    from gpusight.recording.request import RecordRequest
    from gpusight.recording.tools import InstalledTool


_RENAMED = ToolVersion(2021, 1)

EXPORT = option("--export", short="-o")
OVERWRITE = option("--force-overwrite", short="-f")
CLOCKS = option("--clock-control")
PROCESSES = option("--target-processes")
SET = option("--set")
SECTION = ToolOption((OptionSpelling("--section"),), repeats=True)
SASS = option("--import-sass", since=ToolVersion(2025, 1))
KERNEL = ToolOption(
    (
        OptionSpelling("--kernel-name", since=_RENAMED),
        OptionSpelling("--kernel-regex", until=_RENAMED),
    ),
    short="-k",
)
KERNEL_BASE = ToolOption(
    (
        OptionSpelling("--kernel-name-base", since=_RENAMED),
        OptionSpelling("--kernel-regex-base", until=_RENAMED),
    )
)
SKIP = option("--launch-skip", short="-s")
COUNT = option("--launch-count", short="-c")
NVTX = option("--nvtx")
NVTX_INCLUDE = ToolOption((OptionSpelling("--nvtx-include"),), repeats=True)
NVTX_SCOPE = option("--nvtx-push-pop-scope", since=ToolVersion(2025, 1))
FROM_START = option("--profile-from-start")
KILL = option("--kill", since=ToolVersion(2020, 2))

BASIC_SECTIONS = ("LaunchStats", "Occupancy", "SpeedOfLight")
"""Of the set that ncu takes by itself; that set is called `default`, later `basic`."""
RULE_SECTIONS = (
    *BASIC_SECTIONS,
    "ComputeWorkloadAnalysis",
    "InstructionStats",
    "MemoryWorkloadAnalysis",
    "MemoryWorkloadAnalysis_Tables",
    "SchedulerStats",
    "SourceCounters",
    "SpeedOfLight_RooflineChart",
    "WarpStateStats",
)
"""What our rules and the roofline need: a test compares it with the counters they name."""
ARITHMETIC_SECTIONS = (
    "SpeedOfLight_HierarchicalHalfRooflineChart",
    "SpeedOfLight_HierarchicalTensorRooflineChart",
)
"""Counters of FP16 and tensor core operations; not in the set `full` before 2025."""
HAS_ARITHMETIC = ToolVersion(2021, 3)


_QUANTIFIERS = re.compile(r"([@,\[\]/*+])")
_AMBIGUOUS = re.compile(r"\\[@,\[\]/*+]|\\$")
"""A backslash before such a letter cannot be written: ncu would take it for the mark of one."""
_REGEX = "regex:"


def of_range(text: str) -> tuple[str, ...]:
    """Write the filters for a range `NAME` or `NAME@DOMAIN`, of either kind; one must fit."""
    name, _, domain = text.partition("@")
    filters = either_kind(name, domain=domain)
    if not filters:
        raise UsageError(
            f"Nsight Compute cannot filter by the range {text!r}",
            hint="rename the range, or use --steps (cudaProfilerStart/Stop)",
        )
    return filters


def either_kind(name: str, *, domain: str | None) -> tuple[str, ...]:
    """Write filters for a range that may be of either kind; none where no filter can name it.

    ncu measures what fits any of several filters.
    """
    kinds = (include_filter(name, domain=domain, push_pop=push_pop) for push_pop in (True, False))
    return tuple(text for text in kinds if text is not None)


def include_filter(name: str, *, domain: str | None, push_pop: bool) -> str | None:
    """Write a filter for a range; None where no filter can name it."""
    if not name.strip() or (domain or name).startswith(_REGEX):
        return None
    for text in (name, domain or ""):
        if not text.isprintable() or _AMBIGUOUS.search(text):
            return None
    where = f"{_quoted(domain)}@" if domain else ""
    return f"{where}{_quoted(name)}{'/' if push_pop else ''}"


def _quoted(text: str) -> str:
    return _QUANTIFIERS.sub(r"\\\1", text.replace("\\", "\\" * 4))


SUFFIX = ".ncu-rep"
STOCK_SECTIONS = "NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT"
"""Set to 1, ncu reads its sections where it is installed and copies none into the home folder."""
_BY_FUNCTION = "function"


@dataclass(frozen=True)
class KernelFilter:
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


def filter_for(request: RecordRequest) -> KernelFilter:
    """Choose the launches that a request to record is about."""
    return KernelFilter(
        kernel=request.kernel,
        launch_skip=request.launch_skip or 0,
        launch_count=request.launch_count,
        nvtx_include=of_range(request.range_name) if request.range_name else (),
        from_start=request.steps is None,
        kill=request.stop and request.launch_count is not None,
    )


def ncu_command(
    installed: InstalledTool,
    program: tuple[str, ...],
    output: Path,
    chosen: KernelFilter,
    level: NcuLevel = NcuLevel.QUICK,
    extra: tuple[str, ...] = (),
    *,
    overwrite: bool = False,
) -> ToolCommand:
    """Build `ncu …` that measures these launches of a program, as this version of ncu takes it.

    Clocks are left as they are (`--clock-control none`): by default ncu locks them to the base
    clock, and times would not compare with those of the timeline, in which they ran free. Child
    processes are measured too, because Python programs are often started by others (torchrun,
    bash). NVTX is on, so that the report has the ranges in which a kernel was launched.
    """
    if EXPORT.among(extra):
        raise UsageError(
            "ncu's own --export conflicts with gpusight's",
            hint="use -o of gpusight",
        )
    options = ToolOptions(installed, extra, joined=False)
    options.add(CLOCKS, "none")
    options.add(PROCESSES, "all")
    own_sections = SET.among(extra) or SECTION.among(extra)
    _add_sections(options, level, own=own_sections)
    _add_filters(options, chosen)
    produces = output if output.name.endswith(SUFFIX) else output.with_name(output.name + SUFFIX)
    if overwrite:
        options.add(OVERWRITE)
    options.add(EXPORT, str(produces).replace("%", "%%"))
    argv = (str(installed.path), *options.argv, *program)
    # Keep ncu from writing into the home folder, unless sections of the user's may lie there.
    environment = {} if own_sections else {STOCK_SECTIONS: "1"}
    return ToolCommand(argv, produces, environment, tuple(options.notes))


def _add_sections(options: ToolOptions, level: NcuLevel, *, own: bool) -> None:
    """Name what is measured of each launch.

    `quick`: how busy SMs and memory are, and what limits occupancy. `detail`: what our rules and
    the roofline need. `full`: everything that ncu has, about 2 s a launch.
    """
    if level is NcuLevel.FULL:
        options.add(SET, "full")
    sections = {NcuLevel.QUICK: BASIC_SECTIONS, NcuLevel.DETAIL: RULE_SECTIONS}
    for section in sections.get(level, ()):
        options.add(SECTION, section)
    if level is NcuLevel.QUICK:
        # The machine code of every loaded library makes reports a hundred times as large.
        if not own:
            options.add(SASS, "no")
    elif options.installed.version >= HAS_ARITHMETIC:
        for section in ARITHMETIC_SECTIONS:
            options.add(SECTION, section)
    else:
        options.notes.append(
            f"{options.installed} does not count FP16 and Tensor Core operations "
            f"({HAS_ARITHMETIC.year}.{HAS_ARITHMETIC.minor} and newer do): "
            "their roofline is estimated"
        )


def _add_filters(options: ToolOptions, chosen: KernelFilter) -> None:
    """Name which launches are measured."""
    options.add(NVTX)
    if chosen.kernel is not None:
        # The older spelling always means a regular expression.
        by_name = options.installed.spelling(KERNEL) == "--kernel-name"
        options.need(KERNEL, f"regex:{chosen.kernel}" if by_name else chosen.kernel)
        if chosen.base != _BY_FUNCTION:
            options.need(KERNEL_BASE, chosen.base)
    for statement in chosen.nvtx_include:
        options.need(NVTX_INCLUDE, statement)
    if chosen.nvtx_include and chosen.process_scope:
        options.add(
            NVTX_SCOPE,
            "process",
            otherwise="filters ranges on one thread only: kernels of the backward pass, which "
            "autograd launches from a thread of its own, are not measured",
        )
    if not chosen.from_start:
        options.need(FROM_START, "off")
    if chosen.launch_skip:
        options.need(SKIP, str(chosen.launch_skip))
    if chosen.launch_count is not None:
        options.need(COUNT, str(chosen.launch_count))
        if chosen.kill:
            options.add(
                KILL, "yes", otherwise="cannot stop the program early: it runs to completion"
            )
