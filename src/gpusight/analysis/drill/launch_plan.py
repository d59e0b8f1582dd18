"""ncu filters that hit the wanted launches after warm-up, as requests to record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analysis.drill.drill_kernels import (
    COMMAND,
    CUT,
    DEFAULT_TOP_KERNELS,
    FUNCTION,
    MANGLED,
    DrillKernel,
    choose_kernels,
    function_of,
    matching_names,
    pattern_of,
)
from gpusight.analysis.drill.launch_anchors import (
    SKIPPED_STEPS,
    AnchorSupport,
    LaunchAnchor,
    LaunchCounting,
    countings,
)
from gpusight.analysis.kernel_summary import SHAPE, kernels
from gpusight.recording import ncu_command as options
from gpusight.recording.request import Ranks, RecordedSteps, RecordRequest, Tool
from gpusight.results import NotApplicable
from gpusight.units import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpusight.analysis.drill.drill_kernels import DrillSelection
    from gpusight.recording.request import NcuLevel
    from gpusight.recording.tools import InstalledTool
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace

    PositionRange = tuple[int, int]
    """First and last-plus-one position."""


@dataclass(frozen=True, slots=True)
class LaunchWindow:
    """A run of consecutive launches."""

    first: int
    count: int
    part: int
    """Which of the parts it lies in."""


def shortest_window(keys: Ints, wanted: int, parts: Sequence[PositionRange]) -> LaunchWindow | None:
    """Find the shortest run inside one part that holds 0 to `wanted` - 1; the first of equals."""
    best: LaunchWindow | None = None
    for number, (first, after) in enumerate(parts):
        found = _shortest_from(keys[first:after], wanted)
        if found is not None and (best is None or found[1] < best.count):
            best = LaunchWindow(first + found[0], found[1], number)
        if best is not None and best.count == wanted:
            break
    return best


def _shortest_from(keys: Ints, wanted: int) -> PositionRange | None:
    """Give the first position and the length of the shortest run that holds all."""
    positions = np.arange(len(keys))
    begin = np.full(len(keys), len(keys), dtype=np.int64)
    for key in range(wanted):
        # Where the last one was, at every position: a run that ends here must begin there.
        latest = np.maximum.accumulate(np.where(keys == key, positions, -1))
        begin = np.minimum(begin, latest)
    length = np.where(begin >= 0, positions - begin + 1, len(keys) + 1)
    if not len(length) or length.min() > len(keys):
        return None
    last = int(np.argmin(length))
    return int(begin[last]), int(length[last])


def sure_length(keys: Ints, wanted: int) -> int | None:
    """Say how many launches hold every wanted one wherever they begin.

    The sequence is taken to go round: whole steps, of which more come before and after. None where
    a wanted one is missing.
    """
    longest = 0
    for key in range(wanted):
        at = np.flatnonzero(keys == key)
        if not len(at):
            return None
        longest = max(longest, int(np.diff(at, append=at[0] + len(keys)).max()))
    return longest


MAX_LAUNCHES_PER_RUN = 64
"""Launches measured in one run of the program; beyond, names are told apart by template arguments,
or each kernel gets a run of its own."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of the program under Nsight Compute, and what it measures."""

    covers: tuple[int, ...]
    """Which of the chosen kernels, by their place."""
    pattern: str
    """Regular expression that names must match."""
    base: str
    """What of a name: `function` or `mangled`."""
    skip: int
    """Launches that match, before the first that is measured."""
    count: int
    include: tuple[str, ...] = ()
    """NVTX filters, of which one must fit."""
    process_scope: bool = False
    """They are to hold for what other threads launch."""
    from_start: bool = True
    """Whether launches count from the start of the program, not from where it starts profilers."""
    step: int | None = None
    """Step at which gpusight switches the profiler on, counted from 0 inside the program."""
    inside: str = ""
    """Name of the range or step that it lies in."""

    def document(self) -> dict[str, Any]:
        """Give it as plain objects."""
        return {
            "kernels": list(self.covers),
            "kernel_regex": self.pattern,
            "kernel_name_base": self.base,
            "launch_skip": self.skip,
            "launch_count": self.count,
            "nvtx_include": list(self.include),
            "nvtx_process_scope": self.process_scope,
            "profile_from_start": self.from_start,
            "step": self.step,
        }


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How the chosen kernels are measured."""

    anchor: LaunchAnchor
    why: str
    """From where launches are counted, and why from there."""
    runs: tuple[PlannedRun, ...]
    notes: tuple[str, ...] = ()

    @property
    def launches(self) -> int:
        """How many launches are measured."""
        return sum(run.count for run in self.runs)

    @property
    def exact(self) -> bool:
        """Whether the very launches are hit, as long as the program does the same again."""
        return self.anchor is not LaunchAnchor.UNSURE


def plan_launches(picked: DrillSelection, means: AnchorSupport | None = None) -> LaunchPlan | None:
    """Work out filters for the chosen kernels; None where none were chosen."""
    chosen = picked.chosen
    if not chosen:
        return None
    for counting in countings(picked, means or AnchorSupport()):
        runs = _runs(picked, counting, chosen)
        if runs is not None:
            run = runs[0]
            why = counting.why.format(name=run.inside, number=run.step)
            return LaunchPlan(counting.anchor, why, runs, _notes(counting, runs))
    raise AssertionError("what is counted from nowhere always finds the kernels")


def _runs(
    picked: DrillSelection, counting: LaunchCounting, chosen: Sequence[DrillKernel]
) -> tuple[PlannedRun, ...] | None:
    """Measure all kernels at once where that is short; else each by itself."""
    together = _shortest(picked, counting, chosen)
    if together is not None and together.count <= MAX_LAUNCHES_PER_RUN:
        return (together,)
    alone = [_shortest(picked, counting, [kernel]) for kernel in chosen]
    found = tuple(run for run in alone if run is not None)
    if len(found) == len(chosen):
        return found
    return None if together is None else (together,)


def _shortest(
    picked: DrillSelection, counting: LaunchCounting, wanted: Sequence[DrillKernel]
) -> PlannedRun | None:
    """Compare names by function; by mangled name where that would measure too much."""
    run = _run(picked, counting, wanted, FUNCTION)
    if run is not None and run.count <= max(MAX_LAUNCHES_PER_RUN, len(wanted)):
        return run
    exact = _run(picked, counting, wanted, MANGLED)
    known = [found for found in (run, exact) if found is not None]
    return min(known, key=lambda found: found.count, default=None)


def _run(
    picked: DrillSelection, counting: LaunchCounting, wanted: Sequence[DrillKernel], base: str
) -> PlannedRun | None:
    names = [kernel.function if base == FUNCTION else kernel.mangled_name for kernel in wanted]
    texts = [name for name in names if name is not None]
    if len(texts) < len(names):
        return None
    matching = _Matching.of(picked, counting, wanted, base, texts)
    found = matching.sure() if counting.sure else matching.anywhere()
    if found is None:
        return None
    skip, count, number = found
    part = counting.parts[number]
    return PlannedRun(
        covers=tuple(kernel.group for kernel in wanted),
        pattern=pattern_of(texts),
        base=base,
        skip=skip,
        count=count,
        include=part.include
        if counting.anchor in {LaunchAnchor.RANGE, LaunchAnchor.RANGES}
        else (),
        process_scope=counting.process_scope,
        from_start=counting.begins is not LaunchAnchor.PROFILER
        and counting.anchor is not LaunchAnchor.STEP,
        step=part.number if counting.anchor is LaunchAnchor.STEP else None,
        inside=part.name,
    )


@dataclass(frozen=True)
class _Matching:
    """The launches that a filter matches, in order, and the parts that they lie in."""

    keys: Ints
    """Which of the wanted kernels each is; -1 for none, or outside the window."""
    times: Ints
    counting: LaunchCounting
    wanted: int

    @classmethod
    def of(
        cls,
        picked: DrillSelection,
        counting: LaunchCounting,
        wanted: Sequence[DrillKernel],
        base: str,
        texts: Sequence[str],
    ) -> _Matching:
        column = "function" if base == FUNCTION else "mangled_name"
        rows = picked.launches.filter(pl.col(column).cast(pl.String).is_in(set(texts)))
        if counting.thread is not None:
            rows = rows.filter(pl.col("thread") == counting.thread)
        place = {kernel.group: number for number, kernel in enumerate(wanted)}
        key = pl.col("group").replace_strict(place, default=-1, return_dtype=pl.Int64)
        keys = rows.select(pl.when("inside").then(key).otherwise(-1)).to_series().fill_null(-1)
        return cls(keys.to_numpy(), rows["launch_ns"].to_numpy(), counting, len(wanted))

    def slices(self, parts: Sequence[Any]) -> list[tuple[int, int]]:
        """Give the positions of the launches in each part."""
        first = np.searchsorted(self.times, [part.start_ns for part in parts])
        after = np.searchsorted(self.times, [part.end_ns for part in parts])
        return [(int(a), max(int(a), int(b))) for a, b in zip(first, after, strict=True)]

    def sure(self) -> tuple[int, int, int] | None:
        """Find the shortest run; gives what to skip, its length, and the number of its part."""
        parts = self.slices(self.counting.parts)
        window = shortest_window(self.keys, self.wanted, parts)
        if window is None:
            return None
        skip = self._skipped(window, parts)
        return None if skip is None else (skip, window.count, window.part)

    def _skipped(self, window: LaunchWindow, parts: Sequence[tuple[int, int]]) -> int | None:
        """Count what comes before a run, from where counting begins."""
        if self.counting.anchor in {
            LaunchAnchor.PROGRAM,
            LaunchAnchor.PROFILER,
            LaunchAnchor.UNSURE,
        }:
            return window.first
        inside = window.first - parts[window.part][0]
        if self.counting.anchor is not LaunchAnchor.RANGES:
            return inside
        every = self.slices(self.counting.everywhere)
        start = self.counting.parts[window.part].start_ns
        before = [
            after - first
            for part, (first, after) in zip(self.counting.everywhere, every, strict=True)
            if part.start_ns < start
        ]
        if self.counting.begins is not None:
            return sum(before) + inside
        each = {after - first for first, after in parts}
        # Before the capture there were more ranges: only of equal ones is it known what they hold.
        return SKIPPED_STEPS * each.pop() + inside if len(each) == 1 else None

    def anywhere(self) -> tuple[int, int, int] | None:
        """Find a length that holds all wherever it begins, whole steps being alike."""
        parts = self.slices(self.counting.parts)
        first, after = parts[0][0], parts[-1][1]
        length = sure_length(self.keys[first:after], self.wanted)
        if length is None:
            return None
        if self.counting.anchor is LaunchAnchor.STEP:
            return 0, length, 0
        each = round((after - first) / len(parts))
        return SKIPPED_STEPS * each, length, 0


def _notes(counting: LaunchCounting, runs: Sequence[PlannedRun]) -> tuple[str, ...]:
    notes = []
    if counting.anchor is LaunchAnchor.RANGE and counting.begins is None:
        notes.append(
            f"should the program open a range {runs[0].inside!r} before the capture began as well, "
            "that one is measured"
        )
    if len(runs) > 1:
        many = format_count(len(runs))
        notes.append(
            f"{many} runs of the program: the kernels lie too far apart to be measured in one"
        )
    long = [run for run in runs if run.count > MAX_LAUNCHES_PER_RUN]
    if long:
        most = max(run.count for run in long)
        notes.append(f"{most:,} launches are measured where one is wanted: names alone do not tell")
    return tuple(notes)


def request_of(
    run: PlannedRun,
    installed: InstalledTool,
    program: tuple[str, ...],
    level: NcuLevel,
    *,
    output: Path | None = None,
    ranks: Ranks | None = None,
    overwrite: bool = False,
) -> RecordRequest:
    """Ask for the launches of a run; the program ends once they are measured."""
    return RecordRequest(
        program,
        tool=Tool.NCU,
        output=output,
        steps=None if run.step is None else RecordedSteps(run.step, run.step),
        ranks=Ranks() if ranks is None else ranks,
        stop=True,
        overwrite=overwrite,
        kernel=run.pattern,
        launch_skip=run.skip or None,
        launch_count=run.count,
        level=level,
        extra=_extra(run, installed),
    )


def _extra(run: PlannedRun, installed: InstalledTool) -> tuple[str, ...]:
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


_MEASURED = 8
"""Launches of each kernel: several, since their shapes may differ."""
_WHY = (
    "approximate: totals do not tell the order of launches, so of each kernel some from the middle "
    "are measured"
)


def pick_totals(
    trace: Trace, *, top: int = DEFAULT_TOP_KERNELS, kernel: str | None = None
) -> tuple[tuple[DrillKernel, ...], tuple[str, ...]] | NotApplicable:
    """Choose kernels by their total time; gives them with what a reader must know."""
    table = kernels(trace)
    if isinstance(table, NotApplicable):
        return NotApplicable(COMMAND, table.reason, table.hint)
    frame = table.frame
    if kernel is not None:
        frame = frame.filter(pl.col("name").is_in(matching_names(frame["name"], kernel)))
    found = [
        DrillKernel(
            group=group,
            row=-1,
            name=row["name"],
            function=_function(row["name"]),
            mangled_name=None,
            shape=(None,) * len(SHAPE),
            launches=row["calls"],
            time_ns=row["total_ns"],
            share=row["share"] or 0.0,
            roof_share=None,
        )
        for group, row in enumerate(frame.iter_rows(named=True))
    ]
    return choose_kernels(found, top, asked=kernel is not None), table.notes


def _function(name: str) -> str:
    """Give the function; one that the table cut short keeps the mark of that."""
    return function_of(name.removesuffix(CUT) if "<" in name else name)


def plan_totals(chosen: tuple[DrillKernel, ...]) -> LaunchPlan | None:
    """Measure each kernel in a run of its own."""
    if not chosen:
        return None
    runs = tuple(
        PlannedRun(
            covers=(kernel.group,),
            pattern=pattern_of([kernel.function]),
            base=FUNCTION,
            skip=kernel.launches // 2,
            count=min(_MEASURED, kernel.launches - kernel.launches // 2),
        )
        for kernel in chosen
    )
    return LaunchPlan(LaunchAnchor.UNSURE, _WHY, runs)
