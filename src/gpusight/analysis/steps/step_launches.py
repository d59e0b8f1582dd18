"""GPU work in the order of its launches: what each step launched, and steps by repetition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.nested_intervals import optional
from gpusight.analysis.gpu_schedule import CallKind, kind_of
from gpusight.analysis.launch_index import KeyIndex, tables_with_rows
from gpusight.analysis.selection import GPU_WORK
from gpusight.analysis.steps.step_list import UNNAMED, StepEvidence, TraceSteps
from gpusight.units import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace

    _Columns = dict[str, tuple[str, ...]]


_SCHEMA = {
    "launch_ns": pl.Int64(),
    "process": pl.Int64(),
    "thread": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "device": pl.Int64(),
    "table": pl.Int8(),
    "row": pl.Int64(),
}


def launched(trace: Trace) -> pl.DataFrame:
    """Return all GPU work in order of `launch_ns`, when the call that issued it started.

    Work that names no call counts by its own start and has no thread. `table` is a position in
    `GPU_WORK`, `row` the row there. `process` is that of the call where the work names none.
    """
    return trace.derive("launched-1", lambda: _launched(trace))


def launch_times(trace: Trace, table: str) -> pl.Series:
    """Return when each row of a table of GPU work was launched, in the order of the rows."""
    own = launched(trace).filter(pl.col("table") == GPU_WORK.index(table)).sort("row")
    return own["launch_ns"]


def of_process(work: pl.DataFrame, process: int | None) -> pl.DataFrame:
    """Keep the work of a process; work that names none may be anyone's."""
    if process is None:
        return work
    return work.filter((pl.col("process") == process) | pl.col("process").is_null())


def launches_of(work: pl.DataFrame, steps: Sequence[TraceStep]) -> Ints:
    """Count the work that the process of these steps launched during each of them."""
    own = of_process(work, steps[0].process if steps else None)
    return count_in(own["launch_ns"].to_numpy(), steps)


def count_in(times: Ints, steps: Sequence[TraceStep]) -> Ints:
    """Count how many of these rising times lie in each step."""
    first, after = slices(times, steps)
    return after - first


def slices(times: Ints, steps: Sequence[TraceStep]) -> tuple[Ints, Ints]:
    """Return the first and last-plus-one of these rising times that lie in each step."""
    first = np.searchsorted(times, np.array([s.start_ns for s in steps], np.int64))
    after = np.searchsorted(times, np.array([s.end_ns for s in steps], np.int64))
    return first.astype(np.int64), np.maximum(first, after).astype(np.int64)


def rows_of_steps(work: pl.DataFrame, steps: Sequence[TraceStep]) -> tuple[Ints, Ints]:
    """Return the rows that each step launched, one step after the other, and the step of each."""
    first, after = slices(work["launch_ns"].to_numpy(), steps)
    count = after - first
    before = np.cumsum(count) - count
    rows = np.arange(count.sum()) + np.repeat(first - before, count)
    return rows, np.repeat(np.arange(len(steps)), count)


def done_ns(work: pl.DataFrame, steps: Sequence[TraceStep]) -> Ints:
    """Return when each step and all GPU work that it launched had ended."""
    own = of_process(work, steps[0].process if steps else None)
    done = np.array([s.end_ns for s in steps], np.int64)
    first, after = slices(own["launch_ns"].to_numpy(), steps)
    at = np.flatnonzero(after > first)
    if len(at):
        ends = own["end_ns"].to_numpy()
        bounds = np.stack((first[at], after[at]), axis=1).ravel()
        last = np.maximum.reduceat(np.append(ends, ends[-1]), bounds)[::2]
        done[at] = np.maximum(done[at], last)
    return done


def _launched(trace: Trace) -> pl.DataFrame:
    api = trace.table("api_calls", ["start_ns", "thread", "process", "correlation"])
    index = KeyIndex(api["process"], api["correlation"])
    parts = [pl.DataFrame(schema=_SCHEMA)]
    for table in tables_with_rows(trace, GPU_WORK):
        work = trace.table(table, ["start_ns", "end_ns", "device", "process", "correlation"])
        # A correlation of 0 is none: the driver moved memory on its own account.
        correlation = work["correlation"]
        correlation = correlation.set((correlation == 0).fill_null(value=False), None)
        call = optional(index.find(work["process"], correlation))
        start, thread, process = (api[c].gather(call) for c in ("start_ns", "thread", "process"))
        columns = {
            "launch_ns": start.zip_with(start.is_not_null(), work["start_ns"]),
            "process": work["process"].zip_with(work["process"].is_not_null(), process),
            "thread": thread,
            "start_ns": work["start_ns"],
            "end_ns": work["end_ns"],
            "device": work["device"],
            "table": np.full(work.height, GPU_WORK.index(table), dtype=np.int8),
            "row": np.arange(work.height, dtype=np.int64),
        }
        parts.append(pl.DataFrame(columns, schema=_SCHEMA))
    return pl.concat(parts).sort("launch_ns", maintain_order=True)


def took_ns(work: pl.DataFrame, steps: Sequence[TraceStep]) -> Ints:
    """Return how long each step took until its GPU work was done, after that of the one before."""
    done = np.maximum.accumulate(done_ns(work, steps))
    starts = np.array([s.start_ns for s in steps], np.int64)
    took: Ints = done - np.maximum(starts, np.append(starts[:1], done[:-1]))
    return took


# Repetition ---------------------------------------------------------------------------------------

_MAX_CODES = 1 << 18
"""Codes in the middle of a long sequence that the length of the period is found from."""
_MAX_EXACT = 1 << 11
"""Up to here every lag is tried; beyond, those that a spectrum suggests."""
_SUGGESTED_LAGS = 200
_SPECTRA = 4
_NEIGHBORS = (-1, 1, -2)
"""Offsets of the codes by which a place is recognized."""
_TOLERANCE = 0.25
"""Part of a period by which the distance of two may differ from its length."""
_WHOLE = 0.9
"""Part of a period that must follow its start for the last to be whole."""
_MIN_EQUAL_SHARE = 0.85
"""Part of the codes that a period must share with a typical one."""
_MAX_COMPARED = 256
_SAME = 0.002
_UNSURE = 0.05
"""Parts of the codes that may differ: without a reason to prefer another lag, and to try on."""


@dataclass(frozen=True, slots=True)
class LaunchPeriod:
    """Where the periods of a sequence begin."""

    starts: Ints
    """Position of the first code of each whole period."""
    end: int
    """Position after the last code of the last one."""
    length: int
    """Codes of a typical one."""


def find_period(codes: Ints, weights: Ints, opens: NDArray[np.bool_]) -> LaunchPeriod | None:
    """Find the periods of a sequence; None where it does not repeat itself.

    `opens` marks the codes that may begin one; where several could, the one with most
    `weights` does (the time before it, for launches).
    """
    if len(codes) < 2:
        return None
    # The middle of a long sequence is enough, unless periods are longer than half of that.
    spare = max(0, len(codes) - _MAX_CODES) // 2
    length, difference = _best_lag(codes[spare : spare + _MAX_CODES])
    if spare and difference > _UNSURE:
        length, _ = _best_lag(codes)
    period = _best_period(codes, length, weights, opens)
    return period if period is not None and _repeats(codes, period) else None


def _best_lag(codes: Ints) -> tuple[int, float]:
    """Return the lag at which a sequence agrees with itself best, and the part that differs."""
    lags = np.arange(1, len(codes) // 2 + 1)
    if len(codes) > _MAX_EXACT:
        lags = _suggested_lags(codes)
    differences = np.array([np.mean(codes[lag:] != codes[:-lag]) for lag in lags])
    least = float(differences.min())
    near = differences <= max(1.5 * least, least + _SAME)
    return int(lags[near].min()), least


def _suggested_lags(codes: Ints) -> Ints:
    """Return the lags at which a long sequence agrees with itself most, by its spectrum.

    Codes become random numbers on the unit circle: the products of two such numbers add up where
    codes are equal and cancel out elsewhere.
    """
    random = np.random.default_rng(0)
    size = 1 << (2 * len(codes) - 1).bit_length()
    power = np.zeros(size)
    for _ in range(_SPECTRA):
        angles = random.uniform(0, 2 * np.pi, int(codes.max()) + 1)
        power += np.abs(np.fft.fft(np.exp(1j * angles[codes]), size)) ** 2
    lags = np.arange(1, len(codes) // 2 + 1)
    agree = np.fft.ifft(power).real[lags] / (len(codes) - lags)
    best = np.argpartition(-agree, min(_SUGGESTED_LAGS, len(agree) - 1))[:_SUGGESTED_LAGS]
    return np.sort(lags[best])


def _best_period(
    codes: Ints, length: int, weights: Ints, opens: NDArray[np.bool_]
) -> LaunchPeriod | None:
    """Choose the run of codes that starts periods: the one that gives most whole ones."""
    runs = _runs(codes, length)
    places = np.argsort(runs, kind="stable")
    places = places[opens[places]]
    if not len(places):
        return None
    kind = runs[places]
    first = np.flatnonzero(np.diff(kind, prepend=-1))
    count = np.diff(np.append(first, len(kind)))
    whole, wrong = _fitting(places, kind, length, len(codes))
    periods = np.add.reduceat(whole, first) + _earlier(codes, places[first], length)
    periods[np.add.reduceat(wrong, first) > _TOLERANCE * count] = 0
    if periods.max() < 2:
        return None
    weight = np.add.reduceat(weights[places], first) / count
    chosen = int(np.argmax(np.where(periods == periods.max(), weight, -1)))
    own = slice(int(first[chosen]), int(first[chosen] + count[chosen]))
    starts = places[own][whole[own] > 0]
    return _cut_at(starts, codes, length) if len(starts) else None


def _runs(codes: Ints, length: int) -> Ints:
    """Number the runs of codes around each place, within the reach of a period."""
    runs, base, size = codes, int(codes.max()) + 2, len(codes)
    for offset in _NEIGHBORS:
        if abs(offset) < length:
            pad = np.full(min(abs(offset), size), -1)
            beside = np.append(codes[offset:], pad) if offset > 0 else np.append(pad, codes)[:size]
            runs = np.unique(runs * base + beside + 1, return_inverse=True)[1].astype(np.int64)
    return runs


def _fitting(places: Ints, kind: Ints, length: int, count: int) -> tuple[Ints, Ints]:
    """Return which places start a whole period, and which come again at a wrong distance."""
    after = np.append(places[1:], count)
    same = np.append(kind[1:] == kind[:-1], False)
    distance = np.where(same, after - places, count - places)
    fits = np.abs(distance - length) <= _TOLERANCE * length
    whole = np.where(same, fits, distance >= _WHOLE * length)
    return whole.astype(np.int64), (same & ~fits).astype(np.int64)


def _cut_at(starts: Ints, codes: Ints, length: int) -> LaunchPeriod:
    """Keep the longest stretch of periods that follow one another."""
    apart = np.flatnonzero(np.diff(starts) > (1 + _TOLERANCE) * length) + 1
    kept = max(np.split(starts, apart), key=len)
    after = starts[np.searchsorted(starts, kept[-1], "right") :]
    end = min(int(kept[-1]) + length, len(codes), *after[:1].tolist())
    if _earlier(codes, kept[:1], length)[0]:
        kept = np.append(kept[0] - length, kept)
    return LaunchPeriod(kept, end, length)


def _earlier(codes: Ints, firsts: Ints, length: int) -> NDArray[np.bool_]:
    """Return before which places a whole period ends that no other place starts.

    Nothing is before the first code of all: a period that starts there is recognized so.
    """
    same = np.append(0, np.cumsum(codes[length:] == codes[:-length]))
    can = (firsts >= length) & (firsts < len(same))
    at = np.where(can, firsts, length)
    agree: NDArray[np.bool_] = (same[at] - same[at - length]) >= _WHOLE * length
    return can & agree


def _repeats(codes: Ints, period: LaunchPeriod) -> bool:
    """Return whether periods hold the same codes, by and large; of many, some are compared."""
    count = len(period.starts)
    if count < 2:
        return False
    ends = np.append(period.starts[1:], period.end)
    compared = np.unique(np.linspace(0, count - 1, min(count, _MAX_COMPARED)).astype(np.int64))
    kinds, numbers = np.unique(codes, return_inverse=True)
    counts = np.stack(
        [np.bincount(numbers[period.starts[i] : ends[i]], minlength=len(kinds)) for i in compared]
    )
    typical = np.median(counts, axis=0)
    shared = np.minimum(counts, typical).sum(axis=1)
    alike = shared / np.maximum(counts.sum(axis=1), typical.sum())
    return bool(np.mean(alike >= _MIN_EQUAL_SHARE) >= _MIN_EQUAL_SHARE)


_MIN_STEP_NS = 100_000
"""What repeats faster than this is a loop inside a step rather than a step."""
_MOST = 0.5
_NEARLY_ALL = 0.8
"""Part of the GPU work that steps must hold, with and without a wait in them."""
_MIN_REPETITIONS = 3
_LONG = 20
"""Repetitions that are enough, unless what repeats is this long."""
_SHAPE = ["grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"]
_CODE: _Columns = {
    "kernels": ("name", *_SHAPE),
    "copies": ("kind", "bytes"),
    "graph_launches": ("graph",),
}
_VAGUE: _Columns = {"kernels": ("name",), "copies": ("kind",), "graph_launches": ("graph",)}


def periodic_steps(trace: Trace, work: pl.DataFrame) -> TraceSteps | None:
    """Find steps by the order in which a process launches work and waits for it.

    `work` is what `launched` gives of that process and, where it uses several, one GPU.
    """
    if work.height < 2:
        return None
    for columns in (_CODE, _VAGUE):
        steps = _steps(_launches(trace, work, columns), work["process"][0])
        if steps is not None:
            return steps
    return None


def _launches(trace: Trace, work: pl.DataFrame, columns: _Columns) -> pl.DataFrame:
    """List launches and waits in order, each with a code of what it is."""
    parts = [_waits(trace, work)]
    for number, table in enumerate(GPU_WORK):
        if table not in tables_with_rows(trace, GPU_WORK):
            continue
        own = work.filter(pl.col("table") == number)
        shape = trace.table(table, list(columns.get(table, ())) or ["device"])
        key = shape[own["row"]].hash_rows(seed=number).alias("key")
        parts.append(own.select("launch_ns", "end_ns", "thread", *_flags(table), key))
    launches = pl.concat(parts).sort("launch_ns", maintain_order=True)
    return launches.with_columns((pl.col("key").rank("dense").cast(pl.Int64) - 1).alias("code"))


def _flags(table: str | None) -> list[pl.Expr]:
    """Return whether it may open a step, computes, is a graph; None for a wait."""
    flags = {
        "opens": table is not None,
        "computes": table in {"kernels", "graph_launches"},
        "graph": table in {None, "graph_launches"},
    }
    return [pl.lit(value).alias(name) for name, value in flags.items()]


def _waits(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """List the calls of the process that wait for the GPU."""
    calls = trace.table("api_calls", ["start_ns", "end_ns", "thread", "process", "name"])
    waits = [n for n, name in enumerate(names_of(calls["name"])) if kind_of(name) is CallKind.SYNC]
    processes = work["process"].unique().implode()
    return calls.filter(
        pl.col("name").to_physical().is_in(waits), pl.col("process").is_in(processes)
    ).select(
        pl.col("start_ns").alias("launch_ns"),
        "end_ns",
        "thread",
        *_flags(None),
        pl.col("name").to_physical().cast(pl.UInt64).alias("key"),
    )


def _steps(launches: pl.DataFrame, process: int | None) -> TraceSteps | None:
    times = launches["launch_ns"].to_numpy()
    before = np.diff(times, prepend=times[0])
    period = find_period(launches["code"].to_numpy(), before, launches["opens"].to_numpy())
    if period is None:
        return None
    ends = _ends(launches, period)
    took = ends - times[period.starts]
    if np.median(took) < _MIN_STEP_NS or not _plausible(launches, period):
        return None
    # Of the last step the end was not seen: what the host did before the next.
    unended = len(took) > _MIN_REPETITIONS and took[-1] < _NEARLY_ALL * np.median(took[:-1])
    count = len(ends) - int(unended)
    frame = launches[period.starts].select(
        pl.lit(UNNAMED).alias("name"),
        pl.int_range(pl.len()).alias("number"),
        pl.col("launch_ns").alias("start_ns"),
        pl.Series("end_ns", ends),
        pl.lit(process, pl.Int64).alias("process"),
        "thread",
    )
    inside = launches[int(period.starts[0]) : period.end]
    if inside["graph"].all():
        how = "launches of CUDA graphs, which repeat"
        return TraceSteps.of(frame[:count], how, StepEvidence.GRAPHS)
    each = round(int(inside["opens"].sum()) / len(period.starts))
    what = "one kernel" if each == 1 else f"the same {format_count(each)} GPU activities"
    how = f"{what}, launched repeatedly"
    return TraceSteps.of(frame[:count], how, StepEvidence.PERIODIC)


def _plausible(launches: pl.DataFrame, period: LaunchPeriod) -> bool:
    """Distinguish steps from a loop in one: they hold most work, and kernels, often enough."""
    inside = launches[int(period.starts[0]) : period.end]
    total, inside_steps = int(launches["opens"].sum()), int(inside["opens"].sum())
    # Layers follow each other without a wait, and what is around them is part of the step too.
    least = _MOST if inside_steps < inside.height else _NEARLY_ALL
    often = len(period.starts) >= _MIN_REPETITIONS or period.length >= _LONG
    return often and inside_steps >= least * total and bool(inside["computes"].any())


def _ends(launches: pl.DataFrame, period: LaunchPeriod) -> Ints:
    """Return when periods end: where the next starts, the last with the work that it launched."""
    times = launches["launch_ns"].to_numpy()
    done = int(launches["end_ns"][int(period.starts[-1]) : period.end].max())  # type: ignore[arg-type]
    if period.end < len(times):
        done = min(done, int(times[period.end]))
    return np.append(times[period.starts[1:]], max(done, int(times[period.end - 1]) + 1))
