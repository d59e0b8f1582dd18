"""Which part of a capture an analysis covers: a time window, a range, a device, a process."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.name_patterns import MAX_NAME_CHARS, matcher, near_matches
from gpusight.analysis.recording_advice import advice_for
from gpusight.errors import MissingDataError, UnknownProcessError, UsageError
from gpusight.trace.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.trace.intervals import Intervals
    from gpusight.trace.trace import Trace


GPU_WORK = ("kernels", "copies", "memsets", "graph_launches")
"""Tables of what GPUs executed."""

WINDOW_READS = {
    **dict.fromkeys(GPU_WORK, ("start_ns", "end_ns", "device", "process", "correlation")),
    "api_calls": ("start_ns", "end_ns", "name", "thread", "process", "correlation"),
    "ranges": ("start_ns", "end_ns", "name", "kind", "open", "thread", "process", "source"),
}
"""Columns in which the steps of a program are looked for."""

_HOST_WORK = ("api_calls", "ranges")
ACTIVITY = (*GPU_WORK, *_HOST_WORK, "cpu_ops")
"""Tables whose first and last rows bound the window of a whole capture."""

_SPAN = "_span"
_SPAN_END = "_span_end"


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A time window of a capture; `steps.step_window.with_window` resolves it."""

    start_ns: int
    end_ns: int
    launch_start_ns: int | None = None
    launch_end_ns: int | None = None
    """Of a window of steps, the start of the first and the end of the last step on the host. Such a
    window holds the GPU work launched between. Others hold the GPU work that starts in them."""

    @property
    def host_start_ns(self) -> int:
        """Host events of the window start at this or later."""
        return self.start_ns if self.launch_start_ns is None else self.launch_start_ns

    @property
    def host_end_ns(self) -> int:
        """Host events of the window start before this."""
        return self.end_ns if self.launch_end_ns is None else self.launch_end_ns


@dataclass(frozen=True, slots=True)
class Selection:
    """Which part of a capture to analyze; the default is everything."""

    within: str | None = None
    """Range name, glob (`step_*`) or regular expression (`/…/` or `regex:…`)."""
    device: int | None = None
    """Only this GPU's work."""
    process: str | None = None
    """A process by number or by name (glob)."""
    time: TimeWindow | None = None
    """Only what is launched or starts in this window."""
    rank: str = ""
    """Why the process was chosen, where nobody named it: `worst of 2`."""

    def __bool__(self) -> bool:
        """Return whether anything is left out."""
        return self != EVERYTHING

    @property
    def whole_time(self) -> Selection:
        """The same selection of the whole capture."""
        return self if self.time is None else replace(self, time=None)


EVERYTHING = Selection()


@dataclass(frozen=True, slots=True)
class SelectedWindow:
    """The time that shares refer to."""

    start_ns: int
    end_ns: int
    intervals: Intervals
    """More than one span when a range occurs several times."""

    @property
    def length_ns(self) -> int:
        """Total length of the spans."""
        return self.intervals.length_ns


class ResolvedSelection:
    """A selection resolved against one trace, which then returns the selected rows."""

    def __init__(self, trace: Trace, selection: Selection = EVERYTHING) -> None:
        self.trace = trace
        self.selection = selection
        self.processes = _match_processes(trace, selection.process)
        """Keys of the selected processes; None for all."""
        _check_device(trace, selection.device)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes that results of the selection should show."""
        ran = any(self.trace.has(table) for table in GPU_WORK)
        if self.selection.within is None or self.trace.has("api_calls") or not ran:
            return ()
        return ("no API calls in the capture: GPU work belongs to the range open when it started",)

    def prepare(self, *tables: str) -> None:
        """Let the reader prepare what the analysis and the selection will read."""
        ranges = () if self.selection.within is None else _HOST_WORK
        self.trace.prepare(*dict.fromkeys((*tables, *ranges)))

    def gpu(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Return these columns of the selected rows of a table of GPU work, in order."""
        device = self.selection.device
        extra = [] if device is None else ["device"]
        if self.selection.within is not None:
            extra += ["start_ns", "process", "correlation"]
        frame = self._load(table, columns, extra)
        if device is not None:
            frame = frame.filter(pl.col("device") == device)
        if self.selection.within is not None:
            frame = self._launched_inside(frame)
        return frame.select(columns)

    def host(
        self, table: str, columns: Sequence[str], row_index: str | None = None
    ) -> pl.DataFrame:
        """Return these columns of the selected rows of a table of host events, in order.

        `row_index` names a further column with the number of the row in the whole table.
        """
        when = TABLES[table].sort_column
        assert when is not None, f"{table} has no time"
        within = self.selection.within
        extra = [] if within is None else [when, "process"]
        frame = self._load(table, columns, extra, row_index)
        if within is not None:
            frame = self._started_inside(frame, when)
        return frame.select(columns if row_index is None else [*columns, row_index])

    @cached_property
    def window(self) -> SelectedWindow:
        """The time that shares refer to.

        With `within`, the union of the matching ranges, each extended to the end of the last GPU
        work launched inside it. Else the time window; without one, from the first to the last
        activity (GPU work, API calls, operators, closed ranges).
        """
        from gpusight.trace.intervals import Intervals

        time = self.selection.time
        if not self.selection:
            spans = self.trace.derive("extent-2", self._extent)
        elif self.selection.within is not None:
            spans = self._extended_spans()
        elif time is not None:
            spans = pl.DataFrame({"start_ns": [time.start_ns], "end_ns": [time.end_ns]})
        else:
            spans = self._extent()
        inside = Intervals.from_arrays(spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy())
        if len(inside) == 0:
            return SelectedWindow(0, 0, inside)
        return SelectedWindow(int(inside.starts[0]), int(inside.ends[-1]), inside)

    @cached_property
    def spans(self) -> pl.DataFrame:
        """The merged spans of the matching ranges: process, start_ns, end_ns, in order of start."""
        from gpusight.trace.intervals import Intervals

        merged = []
        for (process,), rows in self.matching_ranges.group_by("process", maintain_order=True):
            union = Intervals.from_arrays(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
            merged.append(
                pl.DataFrame({"start_ns": union.starts, "end_ns": union.ends}).select(
                    pl.lit(process, pl.Int64).alias("process"), "start_ns", "end_ns"
                )
            )
        return pl.concat(merged).sort("start_ns") if merged else self.matching_ranges

    @cached_property
    def matching_ranges(self) -> pl.DataFrame:
        """The ranges that `within` names: process, start_ns, end_ns."""
        within = self.selection.within
        assert within is not None, "nothing to match"
        if not self.trace.has("ranges"):
            advice = advice_for(self.trace.meta)
            raise MissingDataError(
                f"no range matches {within!r}",
                why=f"the capture has no {advice.ranges_name}",
                hint=advice.select,
            )
        frame = self._load("ranges", ["process", "start_ns", "end_ns", "name", "kind"], [])
        frame = frame.filter(pl.col("kind").cast(pl.String) != "mark")
        codes = _match_names(within, frame.get_column("name"))
        return frame.filter(pl.col("name").to_physical().is_in(codes)).select(
            "process", "start_ns", "end_ns"
        )

    def _load(
        self, table: str, columns: Sequence[str], extra: list[str], row_index: str | None = None
    ) -> pl.DataFrame:
        has_process = "process" in TABLES[table].column_names
        needed = [*columns, *extra]
        if self.processes is not None and has_process:
            needed.append("process")
        when = TABLES[table].sort_column
        in_time = self.selection.time is not None and when is not None
        if in_time and table not in GPU_WORK:
            assert when is not None
            needed.append(when)
        frame = self.trace.table(table, list(dict.fromkeys(needed)))
        if row_index is not None:
            frame = frame.with_row_index(row_index)
        if in_time:
            frame = frame.filter(self._in_window(table, frame, when))
        if self.processes is not None and has_process:
            frame = frame.filter(pl.col("process").is_in(self.processes))
        return frame

    def _in_window(self, table: str, frame: pl.DataFrame, when: str | None) -> pl.Series:
        """Return which rows belong to the time window: by launch, or by their own start."""
        time = self.selection.time
        assert time is not None, "no window"
        assert when is not None, "no time"
        if table not in GPU_WORK:
            times, start_ns, end_ns = frame[when], time.host_start_ns, time.host_end_ns
        elif time.launch_end_ns is None:
            times = self.trace.table(table, ["start_ns"])["start_ns"]
            start_ns, end_ns = time.start_ns, time.end_ns
        else:
            from gpusight.analysis.launch_index import launch_times

            times = launch_times(self.trace, table)
            start_ns, end_ns = time.host_start_ns, time.launch_end_ns
        return (times >= start_ns) & (times < end_ns)

    def _launched_inside(self, frame: pl.DataFrame, keep_span: bool = False) -> pl.DataFrame:
        """Keep GPU work whose launch started inside; or, out of order, with the span's number."""
        if not self.trace.has("api_calls"):
            return self._started_inside(frame, "start_ns")
        several = self.trace.table("api_calls", ["process"])["process"].n_unique() > 1
        # GPU work that names no process belongs to the only one, if the calls are of one process.
        on = ["process", "correlation"] if several or _has_process(frame) else ["correlation"]
        calls = self._calls_inside.select(*on, _SPAN)
        if keep_span:
            launched = frame.join(calls, on=on)
        else:
            launched = frame.join(calls, on=on, how="semi", maintain_order="left")
        unlaunched = frame.filter(pl.col("correlation").fill_null(0) == 0)
        if unlaunched.is_empty():
            return launched
        unlaunched = self._started_inside(unlaunched, "start_ns").select(launched.columns)
        return pl.concat([launched, unlaunched]).sort("start_ns", maintain_order=True)

    @cached_property
    def _calls_inside(self) -> pl.DataFrame:
        """The API calls that started inside, with the number of the span."""
        frame = self.trace.table("api_calls", ["start_ns", "process", "correlation"])
        return self._started_inside(
            frame.filter(pl.col("correlation").is_not_null()), "start_ns"
        ).select("process", "correlation", _SPAN)

    def _started_inside(self, frame: pl.DataFrame, when: str) -> pl.DataFrame:
        """Keep rows whose time lies in a span of their process; adds the number of the span."""
        spans = self.spans.with_row_index(_SPAN).rename({"end_ns": _SPAN_END, "start_ns": when})
        by = "process" if _has_process(frame) and _has_process(spans) else None
        if by is None:
            spans = spans.drop("process")
        return frame.join_asof(
            spans, on=when, by=by, strategy="backward", check_sortedness=False
        ).filter(pl.col(when) < pl.col(_SPAN_END))

    def _extent(self) -> pl.DataFrame:
        first, last = [], []
        for table in ACTIVITY:
            if not self.trace.has(table):
                continue
            if table in GPU_WORK:
                frame = self.gpu(table, ["start_ns", "end_ns"])
            elif table == "ranges" and self.trace.has("ranges", "open"):
                # A range never closed ends with the capture, long after the last activity.
                frame = self.host(table, ["start_ns", "end_ns", "open"])
                frame = frame.filter(~pl.col("open").fill_null(value=False))
            else:
                frame = self.host(table, ["start_ns", "end_ns"])
            if frame.height:
                first.append(int(frame["start_ns"][0]))
                last.append(int(frame["end_ns"].max()))  # type: ignore[arg-type]
        span = (min(first), max(last)) if first else (0, 0)
        return pl.DataFrame([span], schema=["start_ns", "end_ns"], orient="row")

    def _extended_spans(self) -> pl.DataFrame:
        spans = self.spans.with_row_index(_SPAN)
        ends = [spans.select(_SPAN, "end_ns")]
        device = self.selection.device
        columns = ["start_ns", "end_ns", "process", "correlation"]
        for table in GPU_WORK:
            if not self.trace.has(table):
                continue
            frame = self._load(table, columns, [] if device is None else ["device"])
            if device is not None:
                frame = frame.filter(pl.col("device") == device)
            launched = self._launched_inside(frame, keep_span=True)
            ends.append(launched.select(_SPAN, "end_ns"))
        last = pl.concat(ends).group_by(_SPAN).agg(pl.col("end_ns").max())
        return spans.drop("end_ns").join(last, on=_SPAN)


def _has_process(frame: pl.DataFrame) -> bool:
    """Return whether rows name their process: old captures, of one process, may not."""
    return frame["process"].null_count() < frame.height


def _check_device(trace: Trace, device: int | None) -> None:
    if device is None:
        return
    known = set(trace.table("devices", ["device"])["device"].to_list())
    for table in GPU_WORK if not known else ():
        if trace.has(table):
            known |= set(trace.table(table, ["device"])["device"].unique().to_list())
    if device not in known:
        names = ", ".join(str(d) for d in sorted(known)) or "none"
        raise UsageError(f"no GPU {device} in the capture", hint=f"GPUs are: {names}")


def _match_processes(trace: Trace, wanted: str | None) -> list[int] | None:
    """Find the keys of the processes that a number or a glob names; None means all."""
    if wanted is None:
        return None
    frame = trace.table("processes", ["process", "pid", "name"])
    rows = [(key, pid, name or "") for key, pid, name in frame.iter_rows()]
    matching = [
        key for key, pid, name in rows if wanted == str(pid) or fnmatch.fnmatchcase(name, wanted)
    ]
    if not matching:
        # nsys lists every process of the machine: name those that did something.
        tables = [t for t in ("kernels", "api_calls", "ranges", "cpu_ops") if trace.has(t)]
        active = {key for t in tables for key in trace.table(t, ["process"])["process"].unique()}
        known = ", ".join(
            f"{pid} ({name})" if name else str(pid) for key, pid, name in rows if key in active
        )
        hint = f"processes are: {known or 'not recorded'}"
        raise UnknownProcessError(f"no process {wanted!r} in the capture", hint=hint)
    return matching


def _match_names(pattern: str, names: pl.Series) -> list[int]:
    """Find the codes of the names that a pattern matches: exact, then glob, or as a regex."""
    known = names_of(names)
    occurring = names.to_physical().unique().sort()
    candidates = [(int(code), known[int(code)]) for code in occurring.to_list()]
    matching = [code for code, name in candidates if name == pattern]
    if not matching:
        matches = matcher(pattern)
        matching = [code for code, name in candidates if matches(name[:MAX_NAME_CHARS])]
    if not matching:
        raise UsageError(
            f"no range matches {pattern!r}",
            why="ranges are named like " + near_matches(pattern, [name for _, name in candidates]),
            hint="see: gpusight ranges FILE",
        )
    return matching
