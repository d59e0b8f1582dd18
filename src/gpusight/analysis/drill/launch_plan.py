"""ncu filters that select the chosen kernels' launches after warm-up, as requests to record."""

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
    DrillChoice,
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
from gpusight.recording import ncu_command
from gpusight.recording.request import Ranks, RecordedSteps, RecordRequest, Tool
from gpusight.results import NotApplicable
from gpusight.units import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpusight.analysis.drill.drill_kernels import DrillSelection
    from gpusight.analysis.drill.launch_anchors import AnchorStep
    from gpusight.recording.request import NcuLevel
    from gpusight.recording.tools import InstalledTool
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace

    PositionRange = tuple[int, int]
    """First and last-plus-one position."""
    _Filter = tuple[int, int, int, tuple[int, ...] | None]
    """Launches to skip and to measure, number of the part, and launches of each wanted kernel."""


@dataclass(frozen=True, slots=True)
class LaunchWindow:
    """A run of consecutive launches."""

    first: int
    count: int
    part: int
    """Which of the parts it lies in."""


def shortest_window(keys: Ints, wanted: int, parts: Sequence[PositionRange]) -> LaunchWindow | None:
    """Find the shortest run inside one part with all keys below `wanted`; the first of equals."""
    best: LaunchWindow | None = None
    for number, (first, after) in enumerate(parts):
        run = _shortest_run(keys[first:after], wanted)
        if run is not None and (best is None or run[1] < best.count):
            best = LaunchWindow(first + run[0], run[1], number)
        if best is not None and best.count == wanted:
            break
    return best


def _shortest_run(keys: Ints, wanted: int) -> tuple[int, int] | None:
    """Return the first position and the length of the shortest run with all wanted keys."""
    positions = np.arange(len(keys))
    begin = np.full(len(keys), len(keys), dtype=np.int64)
    for key in range(wanted):
        # The latest occurrence up to each position: a run that ends here must begin there.
        latest = np.maximum.accumulate(np.where(keys == key, positions, -1))
        begin = np.minimum(begin, latest)
    length = np.where(begin >= 0, positions - begin + 1, len(keys) + 1)
    if not len(length) or length.min() > len(keys):
        return None
    last = int(np.argmin(length))
    return int(begin[last]), int(length[last])


def sure_length(keys: Ints, wanted: int) -> int | None:
    """Return how many launches include every wanted key wherever they begin.

    The sequence is cyclic: whole steps, with more before and after. None where a key is missing.
    """
    longest_gap = 0
    for key in range(wanted):
        positions = np.flatnonzero(keys == key)
        if not len(positions):
            return None
        gaps = np.diff(positions, append=positions[0] + len(keys))
        longest_gap = max(longest_gap, int(gaps.max()))
    return longest_gap


MAX_LAUNCHES_PER_RUN = 64
"""Beyond, names are compared with template arguments, or each kernel gets a run of its own."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of the program under Nsight Compute, and what it measures."""

    covers: tuple[int, ...]
    """Groups of the kernels that it measures."""
    pattern: str
    """Regular expression that names must match."""
    base: str
    """Name base: `function` or `mangled`."""
    skip: int
    """Matching launches before the first that is measured."""
    count: int
    include: tuple[str, ...] = ()
    """NVTX filters, of which one must match."""
    process_scope: bool = False
    """Ranges include launches of other threads."""
    from_start: bool = True
    """Whether launches count from the start of the program, not from where it starts profilers."""
    step: int | None = None
    """Step at which gpusight starts the profiler, counted from 0 inside the program."""
    inside: str = ""
    """Name of the range or step that it lies in."""
    hits: tuple[int, ...] | None = None
    """Launches of each covered kernel among those measured; None where that is not known."""

    def document(self) -> dict[str, Any]:
        """Return it as plain objects."""
        return {
            "kernels": list(self.covers),
            "kernel_regex": self.pattern,
            "kernel_name_base": self.base,
            "launch_skip": self.skip,
            "launch_count": self.count,
            "launches_of_kernels": None if self.hits is None else list(self.hits),
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
        """Number of launches to measure."""
        return sum(run.count for run in self.runs)

    @property
    def hits(self) -> dict[int, int] | None:
        """Launches of each chosen kernel that are measured, by group; None where not known."""
        if any(run.hits is None for run in self.runs):
            return None
        hits: dict[int, int] = {}
        for run in self.runs:
            for group, launches in zip(run.covers, run.hits or (), strict=True):
                hits[group] = hits.get(group, 0) + launches
        return hits

    @property
    def exact(self) -> bool:
        """Whether exactly these launches are hit, as long as the program repeats itself."""
        return self.anchor is not LaunchAnchor.UNSURE


def plan_launches(picked: DrillSelection, means: AnchorSupport | None = None) -> LaunchPlan | None:
    """Compute filters for the chosen kernels; None where none were chosen."""
    chosen = picked.chosen
    if not chosen:
        return None
    for counting in countings(picked, means or AnchorSupport()):
        # All kernels in one run where that is short; else each in its own.
        together = _shortest(picked, counting, chosen)
        runs: tuple[PlannedRun, ...] = () if together is None else (together,)
        if together is None or together.count > MAX_LAUNCHES_PER_RUN:
            separate = [_shortest(picked, counting, [kernel]) for kernel in chosen]
            each = tuple(run for run in separate if run is not None)
            runs = each if len(each) == len(chosen) else runs
        if runs:
            run = runs[0]
            why = counting.why.format(name=run.inside, number=run.step)
            return LaunchPlan(counting.anchor, why, runs, _notes(counting, runs))
    raise AssertionError("what is counted from nowhere always finds the kernels")


def _shortest(
    picked: DrillSelection, counting: LaunchCounting, wanted: Sequence[DrillKernel]
) -> PlannedRun | None:
    """Compare names by function; by mangled name where that would measure too much."""
    by_function = _run(picked, counting, wanted, FUNCTION)
    if by_function and by_function.count <= max(MAX_LAUNCHES_PER_RUN, len(wanted)):
        return by_function
    by_mangled = _run(picked, counting, wanted, MANGLED)
    runs = [run for run in (by_function, by_mangled) if run is not None]
    return min(runs, key=lambda run: run.count, default=None)


def _run(
    picked: DrillSelection, counting: LaunchCounting, wanted: Sequence[DrillKernel], base: str
) -> PlannedRun | None:
    names = [kernel.function if base == FUNCTION else kernel.mangled_name for kernel in wanted]
    texts = [name for name in names if name is not None]
    if len(texts) < len(names):
        return None
    matching = _Matching.of(picked, counting, wanted, base, texts)
    window = matching.sure() if counting.sure else matching.anywhere()
    if window is None:
        return None
    skip, count, number, hits = window
    part, anchor = counting.parts[number], counting.anchor
    in_range = anchor in {LaunchAnchor.RANGE, LaunchAnchor.RANGES}
    in_step = anchor is LaunchAnchor.STEP
    return PlannedRun(
        covers=tuple(kernel.group for kernel in wanted),
        pattern=pattern_of(texts),
        base=base,
        skip=skip,
        count=count,
        include=part.include if in_range else (),
        process_scope=counting.process_scope,
        from_start=counting.begins is not LaunchAnchor.PROFILER and not in_step,
        step=part.number if in_step else None,
        inside=part.name,
        hits=hits if anchor is not LaunchAnchor.UNSURE else None,
    )


@dataclass(frozen=True)
class _Matching:
    """The launches that a filter matches, in order."""

    keys: Ints
    """Position of each in the wanted kernels; -1 for others, and outside the window."""
    groups: Ints
    """The same, in and outside the window."""
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
        positions = {kernel.group: number for number, kernel in enumerate(wanted)}
        key = pl.col("group").replace_strict(positions, default=-1, return_dtype=pl.Int64)
        groups = rows.select(key.fill_null(-1)).to_series()
        keys = rows.select(pl.when("inside").then(groups).otherwise(-1)).to_series()
        times = rows["launch_ns"].to_numpy()
        return cls(keys.to_numpy(), groups.to_numpy(), times, counting, len(wanted))

    def slices(self, parts: Sequence[AnchorStep]) -> list[PositionRange]:
        """Return the positions of the launches in each part."""
        first = np.searchsorted(self.times, [part.start_ns for part in parts])
        after = np.searchsorted(self.times, [part.end_ns for part in parts])
        return [(int(a), max(int(a), int(b))) for a, b in zip(first, after, strict=True)]

    def sure(self) -> _Filter | None:
        """Find the shortest run of launches that has every wanted kernel."""
        parts = self.slices(self.counting.parts)
        window = shortest_window(self.keys, self.wanted, parts)
        if window is None:
            return None
        counting = self.counting
        skip = window.first
        if counting.anchor in {LaunchAnchor.RANGE, LaunchAnchor.STEP, LaunchAnchor.RANGES}:
            skip -= parts[window.part][0]
        if counting.anchor is LaunchAnchor.RANGES and counting.begins is not None:
            start_ns = counting.parts[window.part].start_ns
            earlier = [part for part in counting.everywhere if part.start_ns < start_ns]
            skip += sum(after - first for first, after in self.slices(earlier))
        elif counting.anchor is LaunchAnchor.RANGES:
            # Of ranges before the capture, launches are only known if all ranges have as many.
            launches = {after - first for first, after in parts}
            if len(launches) > 1:
                return None
            skip += SKIPPED_STEPS * launches.pop()
        groups = self.groups[window.first : window.first + window.count]
        hits = tuple(int((groups == number).sum()) for number in range(self.wanted))
        return skip, window.count, window.part, hits

    def anywhere(self) -> _Filter | None:
        """Find a length that includes all wherever it begins, as whole steps are alike."""
        parts = self.slices(self.counting.parts)
        first, after = parts[0][0], parts[-1][1]
        length = sure_length(self.keys[first:after], self.wanted)
        if length is None:
            return None
        if self.counting.anchor is LaunchAnchor.STEP:
            return 0, length, 0, None
        launches_per_step = round((after - first) / len(parts))
        return SKIPPED_STEPS * launches_per_step, length, 0, None


def _notes(counting: LaunchCounting, runs: Sequence[PlannedRun]) -> tuple[str, ...]:
    notes = []
    if counting.anchor is LaunchAnchor.RANGE and counting.begins is None:
        notes.append(
            f"if the program also opens a range {runs[0].inside!r} before the capture, that one is "
            "profiled"
        )
    if len(runs) > 1:
        notes.append(
            f"{format_count(len(runs))} runs of the program: the kernels are too far apart for "
            "one run"
        )
    most = max(run.count for run in runs)
    if most > MAX_LAUNCHES_PER_RUN:
        notes.append(f"{most:,} launches are profiled instead of one: their names are the same")
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
    """Return the request to record a run; the program ends once its launches are measured."""
    options = (
        (run.base != FUNCTION, ncu_command.KERNEL_BASE, run.base),
        *((True, ncu_command.NVTX_INCLUDE, text) for text in run.include),
        (run.process_scope, ncu_command.NVTX_SCOPE, "process"),
        (not run.from_start and run.step is None, ncu_command.FROM_START, "off"),
    )
    extra: list[str] = []
    for needed, option, value in options:
        spelling = installed.spelling(option) if needed else None
        if spelling is not None:
            extra += [spelling, value]
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
        extra=tuple(extra),
    )


_LAUNCHES_OF_TOTALS = 8
"""Launches measured of each kernel: several, since their shapes may differ."""
_WHY_TOTALS = (
    "approximate: totals do not have the order of launches, so some launches from the middle are "
    "profiled"
)


def pick_totals(
    trace: Trace, *, top: int = DEFAULT_TOP_KERNELS, kernel: str | None = None
) -> tuple[tuple[DrillKernel, ...], tuple[str, ...]] | NotApplicable:
    """Choose kernels of a table of totals by their time; returns them with notes."""
    table = kernels(trace)
    if isinstance(table, NotApplicable):
        return NotApplicable(COMMAND, table.reason, table.hint)
    frame = table.frame
    if kernel is not None:
        frame = frame.filter(pl.col("name").is_in(matching_names(frame["name"], kernel)))
    candidates = []
    for group, row in enumerate(frame.iter_rows(named=True)):
        name = row["name"]
        candidates.append(
            DrillKernel(
                group=group,
                row=-1,
                name=name,
                short_name=row["short_name"],
                # A function that the table cut short keeps the mark of that.
                function=function_of(name.removesuffix(CUT) if "<" in name else name),
                mangled_name=None,
                shape=(None,) * len(SHAPE),
                launches=row["calls"],
                time_ns=row["total_ns"],
                share=row["share"] or 0.0,
                roof_share=None,
            )
        )
    return choose_kernels(candidates, top, selected=kernel is not None), table.notes


def plan_totals(kernels: Sequence[DrillKernel]) -> LaunchPlan | None:
    """Measure each chosen kernel in a run of its own; None where none is chosen.

    Where other kernels have the same function, the filter matches their launches too: more are
    measured, in proportion.
    """
    runs, shared = [], []
    for kernel in kernels:
        if kernel.choice is not DrillChoice.CHOSEN:
            continue
        prefix = kernel.function.removesuffix(CUT)
        is_cut = prefix != kernel.function
        same_function = [
            k
            for k in kernels
            if k.function == kernel.function or (is_cut and k.function.startswith(prefix))
        ]
        matching = sum(k.launches for k in same_function)
        wanted = -(-_LAUNCHES_OF_TOTALS * matching // max(1, kernel.launches))
        count = min(wanted, MAX_LAUNCHES_PER_RUN, matching - matching // 2)
        pattern = pattern_of([kernel.function])
        runs.append(PlannedRun((kernel.group,), pattern, FUNCTION, matching // 2, max(1, count)))
        if len(same_function) > 1:
            shared.append(kernel.short_name)
    if not runs:
        return None
    note = "other kernels have the same function name, and some of their launches are profiled"
    notes = (f"{', '.join(shared)}: {note}",) if shared else ()
    return LaunchPlan(LaunchAnchor.UNSURE, _WHY_TOTALS, tuple(runs), notes)
