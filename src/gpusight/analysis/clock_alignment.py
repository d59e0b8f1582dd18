"""Whether the clocks of host and GPU agree, and the same capture with GPU times that do.

GPU work cannot start before the call that launched it, and has ended when a wait for it returns.
Where a capture shows otherwise, one of its clocks is off: by minutes on some virtual machines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import polars as pl

from gpusight.analysis.aggregates import kept, names_of
from gpusight.analysis.attribution.nested_intervals import optional
from gpusight.analysis.launch_index import KeyIndex, tables_with_rows
from gpusight.analysis.selection import GPU_WORK
from gpusight.trace.trace import MovedSource, Trace
from gpusight.units import format_time

if TYPE_CHECKING:
    from collections.abc import Sequence


TOLERANCE_NS = 200_000
"""Clocks that differ by less count as equal: time stamps of one capture differ by some µs."""
_MIN_WRONG_SHARE = 0.05
"""Part of the launches, or of the waits, that must contradict the clocks: single records do."""
_SHIFTED = (*GPU_WORK, "gpu_ranges")
_WAITS_FOR_ALL = re.compile(r"(?:Device|Ctx|Context|Thread)Synchronize")
_WAITS_FOR_STREAM = re.compile(r"StreamSynchronize")
_ASYNC = re.compile(r"Async|Batch")
_STREAM = ["process", "context", "stream"]
_CONTEXT = ["process", "context"]


@dataclass(frozen=True, slots=True)
class ClockShift:
    """What must be added to the times of a GPU so that they agree with those of the host."""

    device: int
    shift_ns: int
    """0 where no one number makes them agree: the clocks drift."""
    wrong: int
    """Launches or waits that contradict the clocks."""
    compared: int
    early: bool
    """GPU work starts before its launch; else it ends after a wait for it."""
    apart_ns: int

    def described(self, *, corrected: bool = True) -> str:
        """Say what is wrong, and what `diagnose` does about it."""
        what = "starts before its launch" if self.early else "ends after the wait for it"
        corrected &= bool(self.shift_ns)
        remedy = "GPU times are corrected" if corrected else "idle causes are unreliable"
        return (
            f"the clocks of host and GPU {self.device} are {format_time(self.apart_ns, digits=3)} "
            f"apart; {remedy} (GPU work {what}: {self.wrong:,} of {self.compared:,})"
        )


_CHECKED: WeakKeyDictionary[Trace, tuple[ClockShift, ...]] = WeakKeyDictionary()


def clock_shifts(trace: Trace) -> tuple[ClockShift, ...]:
    """Find the GPUs whose clock is not that of the host; none where the capture cannot show it.

    Of a capture that `aligned` returned, these are the shifts that it was corrected by.
    """
    if trace not in _CHECKED:
        _CHECKED[trace] = _find_shifts(trace)
    return _CHECKED[trace]


def clocks_agree(trace: Trace) -> None:
    """Note that a capture made from one whose clocks agree need not be searched again."""
    _CHECKED[trace] = ()


def _find_shifts(trace: Trace) -> tuple[ClockShift, ...]:
    tables = tables_with_rows(trace, GPU_WORK)
    if not trace.has("api_calls") or not tables:
        return ()
    launched = _launched(trace, tables)
    if launched.is_empty():
        return ()
    slack = pl.concat(
        [
            launched.select("device", early=pl.col("start_ns") - pl.col("call_start"), late=None),
            _waited(trace, launched).select("device", early=None, late="slack"),
        ],
        how="vertical_relaxed",
    )
    shifts = (
        _shift(int(str(device)), own["early"].drop_nulls(), own["late"].drop_nulls())
        for (device,), own in slack.group_by("device", maintain_order=True)
    )
    return tuple(sorted(filter(None, shifts), key=lambda shift: shift.device))


def _shift(device: int, early: pl.Series, late: pl.Series) -> ClockShift | None:
    """Evaluate one GPU.

    `early` is the time from launch to start, `late` that from its end to the end of the wait:
    neither can be negative.
    """
    for slack, is_early in ((late, False), (early, True)):
        wrong = int((slack < -TOLERANCE_NS).sum())
        if not len(slack) or wrong < _MIN_WRONG_SHARE * len(slack):
            continue
        # A value that nearly all are above: the extremes may be single broken records.
        apart_ns = -int(slack.filter(slack < -TOLERANCE_NS).quantile(0.05, "lower") or 0)
        shift_ns = apart_ns if is_early else -apart_ns
        other = late if is_early else early
        others_wrong = int((other + (-shift_ns if is_early else shift_ns) < -TOLERANCE_NS).sum())
        if others_wrong >= max(1.0, _MIN_WRONG_SHARE * len(other)):
            shift_ns = 0
        return ClockShift(device, shift_ns, wrong, len(slack), is_early, apart_ns)
    return None


def _launched(trace: Trace, tables: Sequence[str]) -> pl.DataFrame:
    """List GPU activities with the times of the calls that launched them, by end of the call."""
    api = trace.table("api_calls", ["start_ns", "end_ns", "process", "correlation", "name"])
    index = KeyIndex(api["process"], api["correlation"])
    # Copies that return only when they are done.
    blocking = ["Memcpy" in n and _ASYNC.search(n) is None for n in names_of(api["name"])]
    parts = []
    for table in tables:
        work = trace.table(
            table, ["start_ns", "end_ns", "device", *_STREAM, "correlation"]
        ).with_columns(pl.lit(table == "copies").alias("copy"))
        if table == "copies":
            to_host = trace.table(table, ["kind"])["kind"].cast(pl.String).str.ends_with("to-Host")
            work = work.with_columns(copy=to_host.fill_null(value=False))
        call = optional(index.find(work["process"], work["correlation"]))
        names = api["name"].to_physical().gather(call)
        parts.append(
            work.with_columns(
                api["start_ns"].gather(call).alias("call_start"),
                api["end_ns"].gather(call).alias("call_end"),
                pl.Series("blocks", blocking, pl.Boolean).gather(names).alias("blocks"),
            )
        )
    every = pl.concat(parts)
    every = kept(every, every["call_start"].is_not_null() & every["device"].is_not_null())
    return every if every["call_end"].is_sorted() else every.sort("call_end")


def _waited(trace: Trace, launched: pl.DataFrame) -> pl.DataFrame:
    """Return how long after the end of the work that they waited for waits returned: `slack`."""
    copies = launched.filter(pl.col("blocks") & pl.col("copy")).select(
        "device", slack=pl.col("call_end") - pl.col("end_ns")
    )
    parts = [copies]
    for keys, waits in _waits(trace, launched):
        if waits.is_empty():
            continue
        done = launched.select(
            *keys, "device", "call_end", latest=pl.col("end_ns").cum_max().over(keys)
        ).drop_nulls(keys)
        met = waits.sort("start_ns").join_asof(
            done, left_on="start_ns", right_on="call_end", by=keys, check_sortedness=False
        )
        parts.append(
            met.drop_nulls("latest").select("device", slack=pl.col("end_ns") - pl.col("latest"))
        )
    return pl.concat(parts)


def _waits(trace: Trace, launched: pl.DataFrame) -> list[tuple[list[str], pl.DataFrame]]:
    """Return the calls that wait, with the keys of what they wait for.

    The function shows whether it waits for a stream or for all of them; the profiler's record of
    the wait shows which. The kind that this record names is wrong in some versions of nsys.
    """
    api = trace.table("api_calls", ["start_ns", "end_ns", "name", "process", "correlation"])
    names = names_of(api["name"])
    for_all, for_stream = (
        api.filter(
            pl.col("name")
            .to_physical()
            .is_in([code for code, name in enumerate(names) if pattern.search(name)])
        ).drop("name")
        for pattern in (_WAITS_FOR_ALL, _WAITS_FOR_STREAM)
    )
    # A call alone does not show which GPU it waits for: that is known where its process used one.
    gpus = launched.group_by("process").agg(pl.col("device").n_unique())
    single = gpus.filter(pl.col("device") == 1)
    waits = [(["process"], for_all.join(single, on="process", how="semi"))]
    if trace.has("syncs"):
        key = ["process", "correlation"]
        syncs = trace.table("syncs", [*key, "context", "stream"]).unique(key)
        several = for_all.join(single, on="process", how="anti")
        waits += [
            (_STREAM, for_stream.join(syncs, on=key)),
            (_CONTEXT, several.join(syncs, on=key)),
        ]
    return waits


def aligned(trace: Trace) -> Trace:
    """Return the capture with GPU times on the host's clock; itself where nothing is shifted."""
    shifts = clock_shifts(trace)
    by_device = {shift.device: shift.shift_ns for shift in shifts if shift.shift_ns}
    if not by_device or isinstance(trace, _AlignedTrace):
        return trace

    def move(table: str, columns: Sequence[str]) -> pl.DataFrame | None:
        if table not in _SHIFTED:
            return None
        device = trace.table(table, ["device"])["device"]
        shift = device.replace_strict(by_device, default=0, return_dtype=pl.Int64)
        return trace.table(table, columns).select(pl.all() + shift)

    corrected = _AlignedTrace(MovedSource(trace, move))
    _CHECKED[corrected] = shifts
    return corrected


class _AlignedTrace(Trace):
    """A capture whose GPU times were corrected."""
