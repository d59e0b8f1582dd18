"""The digest of a capture: what a comparison needs, small enough for a repository.

Series of steps are joined to blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import polars as pl

from gpusight.analysis.launch_index import done_ns, rows_of_steps
from gpusight.analysis.steps.step_list import TraceStep

if TYPE_CHECKING:
    from gpusight.analysis.selection import TimeWindow
    from gpusight.analysis.steps.window_headline import StepWindow
    from gpusight.trace.intervals import Ints, Reals


FORMAT = 3
"""Raise it when a meaning changes; files of another format are refused."""
MAX_BLOCKS = 50
"""Blocks that the steps of a capture are joined to."""

_QUARTILES_APART = 1.349
"""Interquartile range of a normal distribution, in standard deviations."""

Series: TypeAlias = tuple[float, ...]
"""One value for each block: the mean per step."""


class KernelDigest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The launches of one kernel inside one range."""

    name: str
    short: str
    """Short name."""
    category: str
    range: str | None
    """Innermost range that it was launched in, without numbers that count; None for none."""
    ns: Series
    """Durations, summed over GPUs."""
    calls: Series


class CallDigest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ranges, or API calls, of one name."""

    name: str
    calls: Series
    host_ns: Series
    """Durations on the host, summed over threads."""
    gpu_ns: Series | None = None
    """GPU work launched inside; None where that is not known, and for API calls."""
    outer: bool = False
    """Most of its time is on the thread of the steps, inside no other range but the step."""


class CopyDigest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Copies or memsets of one direction between two kinds of memory."""

    operation: str
    src_kind: str | None
    dst_kind: str | None
    calls: Series
    ns: Series
    bytes: Series


class DigestFinding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A finding of `diagnose`."""

    rule: str
    title: str
    step_ns: float | None
    """Time per step that its fix saves after the findings above (incremental, as in the plan of
    `diagnose`); None where there is no estimate."""
    share: float | None
    confidence: str
    alone_ns: float | None = None
    """Time per step that its fix saves alone."""
    in_plan: bool = True
    """Whether the plan of `diagnose` lists it; else it is a note, or saves too little."""


class JobDigest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All ranks of a job; times are as recorded, means over ranks."""

    ranks: int
    step_ns: Series
    communication_ns: Series
    """Exposed time in collectives, waits for other ranks included."""
    wait_ns: Series | None
    """The waits; None where no collective shows them."""
    straggler_share: float | None
    """Largest part of the step that a straggler costs; None where waits are not known."""
    missing: str = ""
    """Which ranks are not among the captures: one of them may be a straggler."""


class Digest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One capture, summarized; of a job the capture of its first rank, and all ranks in `job`."""

    label: str
    """Name of the file, without its folder."""
    tool: str
    """Tool that made the capture, with its version."""
    gpus: tuple[str, ...]
    """Names of the GPUs that worked, one for each."""
    steps: int
    """Steps in the window; 0 where none are found, and the window counts as one."""
    steps_left_out: int
    steps_found: str
    """How they were found, in words."""
    blocks: tuple[int, ...]
    """Steps in each block, in order of time; (1,) where no steps are known."""
    step_ns: Series
    """From the start of a step to that of the next. The mean is the step time of every command:
    the window divided by the steps."""
    between_ns: Series
    """The part of it in which neither the step nor the next one ran."""
    median_ns: float
    """Of the durations of all steps, without the time between them, as are the next two."""
    min_ns: float
    max_ns: float
    ledger: dict[str, Series]
    """By entry, mean over GPUs; the entries of a block sum to its `step_ns`."""
    kernel_ns: Series
    """Durations of all kernels, summed over GPUs."""
    phases: dict[str, Series]
    """Durations of GPU work by phase, summed over GPUs; empty where phases are not known."""
    kernels: tuple[KernelDigest, ...]
    """They sum to `kernel_ns`. The most expensive first; the rest as one row with an empty name."""
    order: tuple[int, ...]
    """Launches of the median step, in order, as positions in `kernels`; empty when too many."""
    ranges: tuple[CallDigest, ...]
    api: tuple[CallDigest, ...]
    copies: tuple[CopyDigest, ...]
    memory_peak: dict[str, int]
    """Largest number of bytes in use at once, by GPU; empty where that is not known."""
    findings: tuple[DigestFinding, ...]
    """The one that saves most first."""
    missing: dict[str, str]
    """Parts that the capture does not have, and why: `memory_peak`, `ranges`, `findings` …"""
    notes: tuple[str, ...]
    """What a reader must know about the capture."""
    launch_calls: float | None = None
    """Kernel and graph launch calls per step; None where no API calls were recorded."""
    processes: int = 1
    """Processes that used a GPU."""
    lost: dict[str, str] = {}
    """Sources that were traced but lack rows, and how that shows: `kernels`, `copies`, `memsets`.
    What is summed over them is too small, so it is missing rather than 0."""
    not_evaluated: dict[str, str] = {}
    """Rules of `diagnose` that lacked data, and why: a finding of theirs is not known."""
    recorded_step_ns: float | None = None
    """Step time under the profiler, where times were corrected for it; None where they were not."""
    pace_steps: int = 0
    """Steps that were timed without the profiler, to correct for it; 0 where they are not known."""
    pace_spread: float = 0.0
    """Interquartile range of these times, relative to their median."""
    is_estimate: bool = False
    """The step time without the profiler is estimated, not measured."""
    stddev_ns: float | None = None
    """Of the durations of all steps; None for one step, and in older baselines."""
    reported_losses: tuple[str, ...] = ()
    """What the reader or the profiler reports as missing from the capture."""
    host_step_ns: float | None = None
    """Simulated step time if all GPU work took no time: what the host alone needs; None where
    nothing could be simulated."""
    scope: str = ""
    """The options that chose a part of the capture, as they are typed; empty where all counts."""
    process: str = ""
    """Whose steps they are, where several processes used the GPU and none was selected."""
    job: JobDigest | None = None
    """All ranks, where the captures of several were given; its stragglers are findings, too."""

    @property
    def pace_error(self) -> float:
        """Standard error of the step time without the profiler, relative to it; 0 if unknown."""
        if self.pace_steps < 2:
            return 0.0
        return self.pace_spread / _QUARTILES_APART / math.sqrt(self.pace_steps)

    def document(self) -> dict[str, Any]:
        """Return it as plain objects, for JSON."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document


@dataclass(frozen=True)
class StepBlocks:
    """The steps of a digest; one that is the whole window where none are known."""

    steps: tuple[TraceStep, ...]
    known: bool
    """Whether these are steps; else one stands for the window."""
    begun_ns: Ints
    """Start of each step, or the end of the previous one."""
    done_ns: Ints
    """When all its GPU work was done; these spans do not overlap."""
    time: TimeWindow
    """The window; what is launched or starts in it counts for a step."""
    apart: bool = True
    """Whether time between steps counts."""

    @classmethod
    def of(cls, focus: StepWindow, work: pl.DataFrame, *, apart: bool = True) -> StepBlocks:
        """Take the steps of a window; `work` is the GPU work of their process."""
        if not focus.steps:
            window = TraceStep("window", 0, focus.start_ns, focus.end_ns)
            bounds = np.array([focus.start_ns], np.int64), np.array([focus.end_ns], np.int64)
            return cls((window,), False, *bounds, focus.time, apart=False)
        all_steps = sorted((*focus.steps, *focus.left_out), key=lambda step: step.start_ns)
        # GPU work that a step left over from the one before is not its own, warm-up included.
        done = np.minimum(np.maximum.accumulate(done_ns(work, all_steps)), focus.end_ns)
        starts = np.array([step.start_ns for step in all_steps], np.int64)
        begun = np.minimum(np.maximum(starts, np.append(starts[:1], done[:-1])), done)
        kept = np.isin(starts, [step.start_ns for step in focus.steps])
        steps = tuple(step for step, keep in zip(all_steps, kept, strict=True) if keep)
        return cls(steps, True, begun[kept], done[kept], focus.time, apart)

    @property
    def duration_ns(self) -> Ints:
        """Duration of each step."""
        return self.done_ns - self.begun_ns

    @property
    def sizes(self) -> Ints:
        """Steps in each block: they differ by one at most."""
        count, blocks = len(self.steps), min(len(self.steps), MAX_BLOCKS)
        return np.bincount(np.arange(count) * blocks // count, minlength=blocks)

    @property
    def of_step(self) -> Ints:
        """The block of each step."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def median_step(self) -> int:
        """Position of the step with the median duration, the earlier of two."""
        return int(np.argsort(self.duration_ns, kind="stable")[(len(self.steps) - 1) // 2])

    @property
    def pauses(self) -> tuple[Ints, Ints]:
        """End of each step but the last, and start of the next; equal where they do not count."""
        ends = self.done_ns[:-1]
        return ends, np.maximum(ends, self.begun_ns[1:]) if self.apart else ends

    def scaled(self, in_step: Reals, after: Reals, total: Reals) -> Reals:
        """Share totals among the steps (last dimension), by what each has in it and after it.

        A window holds one pause less than steps, and the end of older GPU work. A step without a
        pause would be an outlier among the samples: the last one gets the mean pause, and all are
        scaled to the total. What no step has is shared evenly.
        """
        count = len(self.steps)
        usual = after.mean(axis=-1, keepdims=True) if count > 1 else 0.0
        filled = np.broadcast_to(usual, (*in_step.shape[:-1], 1))
        values = in_step + np.concatenate((after, filled), axis=-1)
        known = values.sum(axis=-1, keepdims=True)
        total = np.asarray(total, np.float64)[..., np.newaxis]
        with np.errstate(divide="ignore", invalid="ignore"):
            shares: Reals = np.where(known > 0, values / known, 1 / count)
        return shares * total

    def between_ns(self) -> Series:
        """Compute the time between steps, per step."""
        starts, ends = self.pauses
        pauses = (ends - starts).astype(np.float64)
        return rounded(self.mean(self.scaled(np.zeros(len(self.steps)), pauses, pauses.sum())))

    @property
    def from_ns(self) -> Ints:
        """Host start of each step; that of the window for the first, unless ranges are selected."""
        starts = np.array([step.start_ns for step in self.steps], np.int64)
        if self.apart:
            starts[0] = min(starts[0], self.time.start_ns)
        return starts

    @property
    def until_ns(self) -> Ints:
        """Host start of the next step; for the last, the end of the window on the host."""
        ends = np.array([step.end_ns for step in self.steps], np.int64)
        if self.apart:
            ends[:-1] = np.maximum(ends[:-1], self.from_ns[1:])
            ends[-1] = max(ends[-1], self.time.host_end_ns)
        return ends

    def mean(self, by_step: Ints | Reals) -> Reals:
        """Compute the mean per step in each block, of values by step (the last dimension)."""
        starts = np.cumsum(self.sizes) - self.sizes
        return np.add.reduceat(np.asarray(by_step, np.float64), starts, axis=-1) / self.sizes

    def launched(self, work: pl.DataFrame) -> pl.DataFrame:
        """Keep the work launched from the start of a step to that of the next, in that order.

        It gets the columns of `_placed`.
        """
        spans = zip(self.steps, self.from_ns.tolist(), self.until_ns.tolist(), strict=True)
        steps = [replace(step, start_ns=start, end_ns=end) for step, start, end in spans]
        rows, step = rows_of_steps(work, steps)
        return self._add_step(work[rows], step, "launch_ns")

    def begun_in(self, events: pl.DataFrame) -> pl.DataFrame:
        """Keep host events that start in a step or before the next, with columns of `_placed`."""
        times = events["start_ns"].to_numpy()
        step_of = np.searchsorted(self.from_ns, times, side="right") - 1
        inside = (step_of >= 0) & (times < self.until_ns[step_of])
        kept = events.filter(pl.Series(inside, dtype=pl.Boolean))
        return self._add_step(kept, step_of[inside], "start_ns")

    def _add_step(self, events: pl.DataFrame, step: Ints, time: str) -> pl.DataFrame:
        """Add `step`, `block`, `ns`, and `after`: whether it was only after the end of the step."""
        ends = np.array([each.end_ns for each in self.steps], np.int64)
        return events.with_columns(
            pl.Series("step", step, pl.Int64),
            pl.Series("block", self.of_step[step], pl.Int64),
            (pl.col("end_ns") - pl.col("start_ns")).alias("ns"),
            (pl.col(time) >= pl.Series(ends[step])).alias("after"),
        )

    def sums(self, events: pl.DataFrame, code: Ints, column: str | None, codes: int) -> Reals:
        """Add a column up (or count) by code (rows) and block (columns), as means per step.

        They are scaled as in `scaled`: what is between steps is not an outlier of the last one.
        """
        blocks, count = len(self.sizes), len(self.steps)
        key = code * blocks + events["block"].to_numpy()
        weights = None if column is None else events[column].to_numpy().astype(np.float64)
        sums = np.bincount(key, weights, codes * blocks).reshape(codes, blocks).astype(np.float64)
        after = events["after"].to_numpy()
        if count > 1 and after.any():
            totals = sums.sum(axis=1, keepdims=True)
            own = None if weights is None else weights[after]
            sums[:, -1] += np.bincount(code[after], own, codes) / (count - 1)
            known = sums.sum(axis=1, keepdims=True)
            sums *= np.divide(totals, known, out=np.ones_like(totals), where=known > 0)
        means: Reals = sums / self.sizes
        return means


@dataclass(frozen=True)
class Ranked:
    """Groups numbered by what they cost, the most expensive first; the cheapest are one."""

    code: Ints
    """The number of each event's group."""
    groups: Ints
    """The original number of each group that stands alone."""
    count: int
    """Groups, that of the rest included where there is one."""


def ranked(code: Ints, cost: Ints, most: int) -> Ranked:
    """Number the groups of events by cost: the `most` expensive, and the rest as one more."""
    known, group = np.unique(code, return_inverse=True)
    total = np.bincount(group, cost.astype(np.float64), len(known))
    order = np.argsort(-total, kind="stable")
    new = np.empty(len(known), np.int64)
    new[order] = np.minimum(np.arange(len(known)), most)
    return Ranked(new[group], known[order[:most]], min(len(known), most + 1))


def rounded(values: Reals, decimals: int = 0) -> Series:
    """Round values to a series of short numbers."""
    return tuple(np.round(values, decimals).tolist())


def rounded_parts(parts: Reals, totals: Series) -> list[Series]:
    """Round parts (rows) to whole numbers that still sum to the total of each block."""
    down = np.floor(parts)
    short = np.round(np.asarray(totals) - down.sum(axis=0)).astype(np.int64)
    # Those that lost most by rounding down are rounded up, as many as it takes.
    rank = np.argsort(np.argsort(down - parts, axis=0, kind="stable"), axis=0, kind="stable")
    return [tuple(row) for row in (down + (rank < short)).tolist()]
