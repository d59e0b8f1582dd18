"""Filters for Nsight Compute that hit the wanted launches after warm-up, and few others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analyses.drill.anchors import SKIPPED_STEPS, Anchor, Counting, Means, countings
from gpusight.analyses.drill.functions import FUNCTION, MANGLED, pattern_of
from gpusight.analyses.drill.window import shortest_window, sure_length
from gpusight.units import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analyses.drill.pick import Kernel, Picked
    from gpusight.analyses.drill.window import Ints, Window

MOST_LAUNCHES = 64
"""Launches measured in one run of the program; beyond, names are told apart by template arguments,
or each kernel gets a run of its own."""


@dataclass(frozen=True, slots=True)
class Run:
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

    anchor: Anchor
    why: str
    """From where launches are counted, and why from there."""
    runs: tuple[Run, ...]
    notes: tuple[str, ...] = ()

    @property
    def launches(self) -> int:
        """How many launches are measured."""
        return sum(run.count for run in self.runs)

    @property
    def exact(self) -> bool:
        """Whether the very launches are hit, as long as the program does the same again."""
        return self.anchor is not Anchor.UNSURE


def plan(picked: Picked, means: Means | None = None) -> LaunchPlan | None:
    """Work out filters for the chosen kernels; None where none were chosen."""
    chosen = picked.chosen
    if not chosen:
        return None
    for counting in countings(picked, means or Means()):
        runs = _runs(picked, counting, chosen)
        if runs is not None:
            run = runs[0]
            why = counting.why.format(name=run.inside, number=run.step)
            return LaunchPlan(counting.anchor, why, runs, _notes(counting, runs))
    raise AssertionError("what is counted from nowhere always finds the kernels")


def _runs(picked: Picked, counting: Counting, chosen: Sequence[Kernel]) -> tuple[Run, ...] | None:
    """Measure all kernels at once where that is short; else each by itself."""
    together = _shortest(picked, counting, chosen)
    if together is not None and together.count <= MOST_LAUNCHES:
        return (together,)
    alone = [_shortest(picked, counting, [kernel]) for kernel in chosen]
    found = tuple(run for run in alone if run is not None)
    if len(found) == len(chosen):
        return found
    return None if together is None else (together,)


def _shortest(picked: Picked, counting: Counting, wanted: Sequence[Kernel]) -> Run | None:
    """Compare names by function; by mangled name where that would measure too much."""
    run = _run(picked, counting, wanted, FUNCTION)
    if run is not None and run.count <= max(MOST_LAUNCHES, len(wanted)):
        return run
    exact = _run(picked, counting, wanted, MANGLED)
    known = [found for found in (run, exact) if found is not None]
    return min(known, key=lambda found: found.count, default=None)


def _run(picked: Picked, counting: Counting, wanted: Sequence[Kernel], base: str) -> Run | None:
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
    return Run(
        covers=tuple(kernel.group for kernel in wanted),
        pattern=pattern_of(texts),
        base=base,
        skip=skip,
        count=count,
        include=part.include if counting.anchor in {Anchor.RANGE, Anchor.RANGES} else (),
        process_scope=counting.process_scope,
        from_start=counting.begins is not Anchor.PROFILER and counting.anchor is not Anchor.STEP,
        step=part.number if counting.anchor is Anchor.STEP else None,
        inside=part.name,
    )


@dataclass(frozen=True)
class _Matching:
    """The launches that a filter matches, in order, and the parts that they lie in."""

    keys: Ints
    """Which of the wanted kernels each is; -1 for none, or outside the window."""
    times: Ints
    counting: Counting
    wanted: int

    @classmethod
    def of(
        cls,
        picked: Picked,
        counting: Counting,
        wanted: Sequence[Kernel],
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

    def _skipped(self, window: Window, parts: Sequence[tuple[int, int]]) -> int | None:
        """Count what comes before a run, from where counting begins."""
        if self.counting.anchor in {Anchor.PROGRAM, Anchor.PROFILER, Anchor.UNSURE}:
            return window.first
        inside = window.first - parts[window.part][0]
        if self.counting.anchor is not Anchor.RANGES:
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
        if self.counting.anchor is Anchor.STEP:
            return 0, length, 0
        each = round((after - first) / len(parts))
        return SKIPPED_STEPS * each, length, 0


def _notes(counting: Counting, runs: Sequence[Run]) -> tuple[str, ...]:
    notes = []
    if counting.anchor is Anchor.RANGE and counting.begins is None:
        notes.append(
            f"should the program open a range {runs[0].inside!r} before the capture began as well, "
            "that one is measured"
        )
    if len(runs) > 1:
        many = format_count(len(runs))
        notes.append(
            f"{many} runs of the program: the kernels lie too far apart to be measured in one"
        )
    long = [run for run in runs if run.count > MOST_LAUNCHES]
    if long:
        most = max(run.count for run in long)
        notes.append(f"{most:,} launches are measured where one is wanted: names alone do not tell")
    return tuple(notes)
