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
    """List all GPU work in order of `launch_ns`, when the call that asked for it began.

    Work that names no call counts by its own start and has no thread. `table` is a position in
    `GPU_WORK`, `row` the row there. `process` is that of the call where the work names none.
    """
    return trace.derive("launched-1", lambda: _launched(trace))


def of_process(work: pl.DataFrame, process: int | None) -> pl.DataFrame:
    """Keep the work of a process; work that names none may be anyone's."""
    if process is None:
        return work
    return work.filter((pl.col("process") == process) | pl.col("process").is_null())


def launches_of(work: pl.DataFrame, steps: Sequence[TraceStep]) -> Ints:
    """Count the work that the process of these steps launched during each of them."""
    mine = of_process(work, steps[0].process if steps else None)
    return count_in(mine["launch_ns"].to_numpy(), steps)


def count_in(times: Ints, steps: Sequence[TraceStep]) -> Ints:
    """Count how many of these rising times lie in each step."""
    first, after = slices(times, steps)
    return after - first


def slices(times: Ints, steps: Sequence[TraceStep]) -> tuple[Ints, Ints]:
    """Give the first and last-plus-one of these rising times that lie in each step."""
    first = np.searchsorted(times, np.array([s.start_ns for s in steps], np.int64))
    after = np.searchsorted(times, np.array([s.end_ns for s in steps], np.int64))
    return first.astype(np.int64), np.maximum(first, after).astype(np.int64)


def rows_of_steps(work: pl.DataFrame, steps: Sequence[TraceStep]) -> tuple[Ints, Ints]:
    """Give the rows of the work that each step launched, one step after the other, and the step."""
    first, after = slices(work["launch_ns"].to_numpy(), steps)
    many = after - first
    before = np.cumsum(many) - many
    return np.arange(many.sum()) + np.repeat(first - before, many), np.repeat(
        np.arange(len(steps)), many
    )


def done_ns(work: pl.DataFrame, steps: Sequence[TraceStep]) -> Ints:
    """Say when each step and all GPU work that it launched had ended."""
    mine = of_process(work, steps[0].process if steps else None)
    done = np.array([s.end_ns for s in steps], np.int64)
    first, after = slices(mine["launch_ns"].to_numpy(), steps)
    some = np.flatnonzero(after > first)
    if len(some):
        ends = mine["end_ns"].to_numpy()
        bounds = np.stack((first[some], after[some]), axis=1).ravel()
        last = np.maximum.reduceat(np.append(ends, ends[-1]), bounds)[::2]
        done[some] = np.maximum(done[some], last)
    return done


def _launched(trace: Trace) -> pl.DataFrame:
    api = trace.table("api_calls", ["start_ns", "thread", "process", "correlation"])
    index = KeyIndex(api["process"], api["correlation"])
    parts = [pl.DataFrame(schema=_SCHEMA)]
    for table in tables_with_rows(trace, GPU_WORK):
        columns = ["start_ns", "end_ns", "device", "process", "correlation"]
        parts.append(_of(trace.table(table, columns), api, index, GPU_WORK.index(table)))
    return pl.concat(parts).sort("launch_ns", maintain_order=True)


def _of(work: pl.DataFrame, api: pl.DataFrame, index: KeyIndex, table: int) -> pl.DataFrame:
    # A correlation of 0 is none: the driver moved memory on its own account.
    asked = work["correlation"].set((work["correlation"] == 0).fill_null(value=False), None)
    call = optional(index.find(work["process"], asked))
    called = pl.DataFrame(
        {name: api[name].gather(call).alias(name) for name in ("start_ns", "thread", "process")}
    )
    return pl.DataFrame(
        {
            "launch_ns": _first(called["start_ns"], work["start_ns"]),
            "process": _first(work["process"], called["process"]),
            "thread": called["thread"],
            "start_ns": work["start_ns"],
            "end_ns": work["end_ns"],
            "device": work["device"],
            "table": pl.Series(np.full(work.height, table, dtype=np.int8)),
            "row": pl.Series(np.arange(work.height, dtype=np.int64)),
        },
        schema=_SCHEMA,
    )


def _first(known: pl.Series, otherwise: pl.Series) -> pl.Series:
    return known.zip_with(known.is_not_null(), otherwise)


def took_ns(work: pl.DataFrame, steps: Sequence[TraceStep]) -> Ints:
    """Say how long each step took until its GPU work was done, what the one before left apart."""
    done = np.maximum.accumulate(done_ns(work, steps))
    starts = np.array([s.start_ns for s in steps], np.int64)
    took: Ints = done - np.maximum(starts, np.append(starts[:1], done[:-1]))
    return took


# Repetition ---------------------------------------------------------------------------------------

_LOOKED_AT = 1 << 18
"""Codes in the middle of a long sequence that the length of the period is found from."""
_EXACT = 1 << 11
"""Up to here every lag is tried; beyond, those that a spectrum suggests."""
_SUGGESTED = 200
_PHASES = 4
_AROUND = (-1, 1, -2)
"""Where the codes lie, from a place, that make it recognisable."""
_TOLERANCE = 0.25
"""Part of a period by which the distance of two may differ from its length."""
_WHOLE = 0.9
"""Part of a period that must be left after its beginning for the last to be whole."""
_MIN_EQUAL_SHARE = 0.85
"""Part of the codes that a period must share with a typical one."""
_COMPARED = 256
_SAME = 0.002
_UNSURE = 0.05
"""Parts of the codes that may differ: without a reason to prefer another lag, and to look on."""


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

    `opens` says which codes may begin one; where several could, the one with most `weights` does
    (the time before it, for launches).
    """
    if len(codes) < 2:
        return None
    length = _length(codes)
    if length is None:
        return None
    found = _begin(codes, length, weights, opens)
    return found if found is not None and _repeats(codes, found) else None


def _length(codes: Ints) -> int | None:
    """Find the lag at which the sequence agrees with itself best.

    The middle of a long sequence tells it, unless periods are longer than half of that.
    """
    spare = max(0, len(codes) - _LOOKED_AT) // 2
    length, differ = _best(codes[spare : spare + _LOOKED_AT])
    if spare and differ > _UNSURE:
        length, _ = _best(codes)
    return length


def _best(part: Ints) -> tuple[int | None, float]:
    """Give the lag at which a sequence agrees with itself best, and the part that still differs."""
    lags = np.arange(1, len(part) // 2 + 1)
    if len(part) > _EXACT:
        lags = _suggested(part)
    differ = np.array([np.mean(part[lag:] != part[:-lag]) for lag in lags])
    if not len(differ):
        return None, 1.0
    least = float(differ.min())
    near = differ <= max(1.5 * least, least + _SAME)
    return int(lags[near].min()), least


def _suggested(codes: Ints) -> Ints:
    """List the lags at which a long sequence agrees with itself most, by its spectrum.

    Codes become random numbers on the unit circle: their products add up where codes are equal
    and cancel out elsewhere.
    """
    random = np.random.default_rng(0)
    size = 1 << (2 * len(codes) - 1).bit_length()
    power = np.zeros(size)
    for _ in range(_PHASES):
        angles = random.uniform(0, 2 * np.pi, int(codes.max()) + 1)
        power += np.abs(np.fft.fft(np.exp(1j * angles[codes]), size)) ** 2
    lags = np.arange(1, len(codes) // 2 + 1)
    agree = np.fft.ifft(power).real[lags] / (len(codes) - lags)
    best = np.argpartition(-agree, min(_SUGGESTED, len(agree) - 1))[:_SUGGESTED]
    return np.sort(lags[best])


def _begin(
    codes: Ints, length: int, weights: Ints, opens: NDArray[np.bool_]
) -> LaunchPeriod | None:
    """Choose the run of codes that begins periods: the one that gives most whole ones."""
    runs = _runs(codes, length)
    places = np.argsort(runs, kind="stable")
    places = places[opens[places]]
    if not len(places):
        return None
    kind = runs[places]
    first = np.flatnonzero(np.diff(kind, prepend=-1))
    many = np.diff(np.append(first, len(kind)))
    whole, wrong = _fitting(places, kind, length, len(codes))
    good = np.add.reduceat(whole, first) + _earlier(codes, places[first], length)
    good[np.add.reduceat(wrong, first) > _TOLERANCE * many] = 0
    if good.max() < 2:
        return None
    ahead = np.add.reduceat(weights[places], first) / many
    chosen = int(np.argmax(np.where(good == good.max(), ahead, -1)))
    mine = slice(int(first[chosen]), int(first[chosen] + many[chosen]))
    starts = places[mine][whole[mine] > 0]
    return _cut_at(starts, codes, length) if len(starts) else None


def _runs(codes: Ints, length: int) -> Ints:
    """Number the runs of codes around each place, within the reach of a period."""
    runs, base, size = codes, int(codes.max()) + 2, len(codes)
    for away in _AROUND:
        if abs(away) < length:
            gone = np.full(min(abs(away), size), -1)
            beside = np.append(codes[away:], gone) if away > 0 else np.append(gone, codes)[:size]
            runs = np.unique(runs * base + beside + 1, return_inverse=True)[1].astype(np.int64)
    return runs


def _fitting(places: Ints, kind: Ints, length: int, count: int) -> tuple[Ints, Ints]:
    """Tell which places begin a whole period, and which come again at a wrong distance."""
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
    """Tell before which places a whole period ends that no other place begins.

    Nothing is before the first code of all: a period that begins there is recognised so.
    """
    same = np.append(0, np.cumsum(codes[length:] == codes[:-length]))
    can = (firsts >= length) & (firsts < len(same))
    at = np.where(can, firsts, length)
    agree: NDArray[np.bool_] = (same[at] - same[at - length]) >= _WHOLE * length
    return can & agree


def _repeats(codes: Ints, period: LaunchPeriod) -> bool:
    """Tell whether periods hold the same codes, by and large; of many, some are looked at."""
    count = len(period.starts)
    if count < 2:
        return False
    ends = np.append(period.starts[1:], period.end)
    looked_at = np.unique(np.linspace(0, count - 1, min(count, _COMPARED)).astype(np.int64))
    kinds, numbers = np.unique(codes, return_inverse=True)
    held = np.stack(
        [np.bincount(numbers[period.starts[i] : ends[i]], minlength=len(kinds)) for i in looked_at]
    )
    typical = np.median(held, axis=0)
    shared = np.minimum(held, typical).sum(axis=1)
    alike = shared / np.maximum(held.sum(axis=1), typical.sum())
    return bool(np.mean(alike >= _MIN_EQUAL_SHARE) >= _MIN_EQUAL_SHARE)


_SHORTEST_NS = 100_000
"""What repeats faster than this is a loop inside a step rather than a step."""
_MOST = 0.5
_NEARLY_ALL = 0.8
"""Part of the GPU work that steps must hold, with and without a wait in them."""
_OFTEN = 3
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
        found = _steps(_launches(trace, work, columns), work["process"][0])
        if found is not None:
            return found
    return None


def _launches(trace: Trace, work: pl.DataFrame, columns: _Columns) -> pl.DataFrame:
    """List launches and waits in order, each with a code of what it is."""
    parts = [_waits(trace, work)]
    for number, table in enumerate(GPU_WORK):
        if table not in tables_with_rows(trace, GPU_WORK):
            continue
        mine = work.filter(pl.col("table") == number)
        told = trace.table(table, list(columns.get(table, ())) or ["device"])
        key = told[mine["row"]].hash_rows(seed=number).alias("key")
        place = mine.select("launch_ns", "end_ns", "thread", *_flags(table))
        parts.append(place.with_columns(key))
    every = pl.concat(parts).sort("launch_ns", maintain_order=True)
    return every.with_columns((pl.col("key").rank("dense").cast(pl.Int64) - 1).alias("code"))


def _flags(table: str | None) -> list[pl.Expr]:
    """Say whether something may open a step, computes, is a graph; None for a wait."""
    computes = table in {"kernels", "graph_launches"}
    flags = {
        "opens": table is not None,
        "computes": computes,
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
    took = np.median(ends - times[period.starts])
    if took < _SHORTEST_NS or not _plausible(launches, period):
        return None
    count = len(ends) - _unended(times[period.starts], ends)
    frame = launches[period.starts].select(
        pl.lit(UNNAMED).alias("name"),
        pl.int_range(pl.len()).alias("number"),
        pl.col("launch_ns").alias("start_ns"),
        pl.Series("end_ns", ends),
        pl.lit(process, pl.Int64).alias("process"),
        "thread",
    )
    graphs = bool(launches["graph"][int(period.starts[0]) : period.end].all())
    how, evidence = _step_note(launches, period, graphs=graphs)
    return TraceSteps.of(frame[:count], how, evidence)


def _step_note(
    launches: pl.DataFrame, period: LaunchPeriod, *, graphs: bool
) -> tuple[str, StepEvidence]:
    inside = launches["opens"][int(period.starts[0]) : period.end]
    each = round(int(inside.sum()) / len(period.starts))
    if graphs:
        return "launches of CUDA graphs, which repeat", StepEvidence.GRAPHS
    what = "one kernel" if each == 1 else f"the same {format_count(each)} pieces of GPU work"
    return f"{what}, launched over and over", StepEvidence.PERIODIC


def _plausible(launches: pl.DataFrame, period: LaunchPeriod) -> bool:
    """Tell steps from a loop inside of one: they hold most work, and kernels, often enough."""
    inside = launches[int(period.starts[0]) : period.end]
    work, held = int(launches["opens"].sum()), int(inside["opens"].sum())
    # Layers follow each other without a wait, and what is around them is part of the step too.
    least = _MOST if held < inside.height else _NEARLY_ALL
    often = len(period.starts) >= _OFTEN or period.length >= _LONG
    return often and held >= least * work and bool(inside["computes"].any())


def _ends(launches: pl.DataFrame, period: LaunchPeriod) -> Ints:
    """Say when periods end: where the next begins, the last with the work that it launched."""
    times = launches["launch_ns"].to_numpy()
    done = int(launches["end_ns"][int(period.starts[-1]) : period.end].max())  # type: ignore[arg-type]
    if period.end < len(times):
        done = min(done, int(times[period.end]))
    return np.append(times[period.starts[1:]], max(done, int(times[period.end - 1]) + 1))


def _unended(starts: Ints, ends: Ints) -> int:
    """Count 1 where the end of the last step was not seen: what the host did before the next."""
    took = ends - starts
    return int(len(took) > _OFTEN and took[-1] < _NEARLY_ALL * np.median(took[:-1]))
