"""A timeline joined with an ncu report of the same program: time and roofline of each kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import average, share_of, weighed_mean, whole_sum
from gpusight.analysis.capture_info import device_names
from gpusight.analysis.counters import launch_quantities as q
from gpusight.analysis.counters.counter_selection import no_counters
from gpusight.analysis.counters.kernel_limiter import prevailing_limits
from gpusight.analysis.counters.launch_quantities import DURATION, measured
from gpusight.analysis.join.launch_matching import (
    NEEDS,
    NO_NAME,
    NO_SHAPE,
    ORDER,
    LaunchCover,
    cover,
    in_launch_order,
)
from gpusight.analysis.kernel_summary import (
    SHAPE,
    graph_notes,
    no_kernels,
    shape_texts,
    short_names_by_shape,
)
from gpusight.analysis.roofline.arithmetic_counters import FP32, ArithmeticKind
from gpusight.analysis.roofline.roofline_points import roofline_points
from gpusight.analysis.selection import EVERYTHING, ResolvedSelection, Selection
from gpusight.naming.kernel_names import classify
from gpusight.results import Composite, Fact, Field, Fmt, NotApplicable, TableResult
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from gpusight.trace.trace import Trace


_QUANTITIES = (q.SM_SHARE, q.MEMORY_SHARE, q.DRAM_SHARE, q.OCCUPANCY)
_POINTS = (
    "launch", "flops", "dram_bytes", "roof_share", "bound", "limit", "limit_share", "arithmetic",
    "compute_share",
)  # fmt: skip
_REACHED_DRAM, _TENSOR_PEAK = "reached_dram", "tensor_peak"
_TENSOR_KINDS = ("tf32", "fp16")
"""Formats that FP32 GEMMs can use on Tensor Cores: TF32, and on GPUs without it FP16."""
_GEMM_CATEGORIES = ("matmul", "convolution", "attention")


@dataclass(frozen=True, slots=True)
class JoinedLaunches:
    """A timeline and a report, launch by launch."""

    timeline: pl.DataFrame
    """Kernels in launch order: `NEEDS`, `time_ns`, `key` and `kernel` (of `KernelKeys`), `why`
    none was measured, and of the measured launch that represents each: `launch`, whether it was
    found in sequence (`exact`), `measured_ns`, the quantities and the roofline points."""
    report: pl.DataFrame
    """Measured launches in order: `NEEDS`, `launch`, `duration_ns`, `key`, `kernel`, `why`."""
    cover: LaunchCover

    @property
    def covered(self) -> pl.DataFrame:
        """The kernels of the timeline for which a launch was measured."""
        return self.timeline.filter(pl.col("launch").is_not_null())

    @property
    def unmeasured(self) -> pl.DataFrame:
        """The kernels of the timeline for which no launch was measured."""
        return self.timeline.filter(pl.col("launch").is_null())

    @property
    def unused(self) -> pl.DataFrame:
        """The measured launches that represent no kernel of the timeline."""
        return self.report.filter(pl.col("why") != "")


def _join_launches(scope: ResolvedSelection, report: Trace) -> JoinedLaunches:
    """Find the measured launch for every kernel of the selected timeline."""
    kernels = in_launch_order(scope.gpu("kernels", [*NEEDS, "end_ns", *ORDER]))
    profiled = measured(report, _QUANTITIES, ("kind", *NEEDS))
    # Not ranges and graphs that were measured as a whole.
    profiled = profiled.filter(pl.col("kind").cast(pl.String) == "kernel").drop("kind")
    points = roofline_points(report).select(
        *_POINTS,
        pl.col("memory_share").alias(_REACHED_DRAM),
        pl.coalesce(
            f"peak_{ArithmeticKind(precision, tensor=True).key}" for precision in _TENSOR_KINDS
        ).alias(_TENSOR_PEAK),
    )
    profiled = profiled.join(points, on="launch", how="left", maintain_order="left")
    matched = cover(kernels.select(NEEDS), profiled.select(NEEDS))
    left = kernels.select(
        *NEEDS,
        (pl.col("end_ns") - pl.col("start_ns")).alias("time_ns"),
        matched.keys.left.alias("key"),
        matched.keys.left_name.alias("kernel"),
        matched.left_reason.alias("why"),
        pl.Series("exact", matched.in_sequence),
        pl.Series("row", matched.right),
    )
    details = profiled.drop(NEEDS).rename({DURATION: "measured_ns"})
    details = details.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    right = profiled.select(
        *NEEDS,
        "launch",
        DURATION,
        matched.keys.right.alias("key"),
        matched.keys.right_name.alias("kernel"),
        matched.right_reason.alias("why"),
    )
    timeline = left.join(details, on="row", how="left", maintain_order="left").drop("row")
    return JoinedLaunches(timeline, right, matched)


_TIME = "time_ns"
_NAMES = (
    Field("short_name", "Kernel", Fmt.NAME, "Short kernel name"),
    Field("name", "Full name", Fmt.NAME, "Name with template arguments", shown=False),
)
_SHAPE = (
    Field("grid", "Grid", Fmt.TEXT, "Blocks in x, y and z", shown=False),
    Field("block", "Block", Fmt.TEXT, "Threads per block in x, y and z", shown=False),
)
KERNEL_FIELDS = (
    Field("share", "% window", Fmt.SHARE, "Share of the window, in the timeline"),
    Field("total_ns", "Total", Fmt.TIME, "Sum of durations in the timeline"),
    Field("calls", "Calls", Fmt.COUNT, "Launches in the timeline", shown=False),
    Field("roof_share", "Roofline", Fmt.SHARE, "Achieved share of its compute or DRAM roofline"),
    Field("roof", "Of", Fmt.TEXT, "The roofline: that of DRAM, or the peak of its arithmetic"),
    Field("gap_ns", "Headroom", Fmt.TIME, "Time that it would save at that roofline; sorts"),
    Field(
        "tensor_gap_ns",
        "Tensor Cores",
        Fmt.TIME,
        "Of a GEMM in FP32: headroom to the roofline with TF32 (or FP16) on Tensor Cores; sorts",
    ),
    Field("limited_by", "Limited by", Fmt.TEXT, "`latency`, or the limiting unit with its share"),
    Field("bound", "Bound by", Fmt.TEXT, "`compute`, `memory` or `latency`", shown=False),
    Field("limit", "Limiter", Fmt.TEXT, "The limiting unit, as in `roofline`", shown=False),
    Field("limit_share", "% limiter", Fmt.SHARE, "Utilization of that unit", shown=False),
    Field("sm_share", "SM", Fmt.SHARE, "SM throughput"),
    Field("memory_share", "Memory", Fmt.SHARE, "Memory throughput, as Nsight Compute shows it"),
    Field("dram_share", "DRAM", Fmt.SHARE, "DRAM throughput", shown=False),
    Field("occupancy", "Occup.", Fmt.SHARE, "Achieved occupancy", shown=False),
    Field("mean_ns", "Mean", Fmt.TIME, "Average duration in the timeline"),
    Field("measured_ns", "Profiled", Fmt.TIME, "Average duration in the report"),
    Field("ratio", "Ratio", Fmt.REAL, "Profiled over mean: other clocks, cold caches"),
    Field("measured", "Launches", Fmt.COUNT, "Profiled launches that represent it", shown=False),
    Field("exact", "In order", Fmt.COUNT, "Calls matched in sequence", False),
    Field("tflop", "TFLOP", Fmt.REAL, "TFLOP of all its calls", shown=False),
    Field("dram_bytes", "DRAM bytes", Fmt.BYTES, "Memory traffic of all its calls", shown=False),
    Field("kernel_share", "% kernels", Fmt.SHARE, "Share of all kernel time", shown=False),
    *_SHAPE,
    Field("sentence", "In words", Fmt.NAME, "The row in words", shown=False),
    *_NAMES,
)
UNMEASURED_FIELDS = (
    Field("share", "% window", Fmt.SHARE, "Share of the window"),
    Field("total_ns", "Total", Fmt.TIME, "Sum of durations in the timeline"),
    Field("calls", "Calls", Fmt.COUNT, "Launches in the timeline"),
    Field("why", "Why", Fmt.TEXT, "`not in the report`, or profiled with another grid or block"),
    Field("other", "Profiled with", Fmt.TEXT, "Grid and block in the report", False),
    *_SHAPE,
    *_NAMES,
)
UNUSED_FIELDS = (
    Field("total_ns", "Total", Fmt.TIME, "Sum of durations in the report"),
    Field("calls", "Launches", Fmt.COUNT, "Profiled launches"),
    Field(
        "why",
        "Why",
        Fmt.TEXT,
        "`not in the timeline` or window, or with another grid or block",
    ),
    Field("other", "In timeline", Fmt.TEXT, "Grid and block in the timeline", False),
    *_SHAPE,
    *_NAMES,
)
_AVERAGED = ("sm_share", "memory_share", "dram_share", "occupancy", "roof_share", "limit_share")


_UNITS = {"dram": "DRAM", "l2": "L2", "l1": "L1", "sm": "SM"}


def _kernel_rows(joined: JoinedLaunches, window_ns: int, window: str) -> TableResult:
    """Sum measured kernels by name and shape, the most headroom to the roofline first."""
    all_kernels_ns = int(joined.timeline[_TIME].sum())
    time = pl.col(_TIME)
    frame = (
        prevailing_limits(joined.covered.with_columns(_at_tensor_roof()), ["key"], _TIME)
        .group_by("key", maintain_order=True)
        .agg(
            *(pl.col(c).first() for c in ("name", "bound", "limit", "arithmetic", *SHAPE)),
            time.sum().alias("total_ns"),
            pl.len().cast(pl.Int64).alias("calls"),
            time.mean().alias("mean_ns"),
            pl.col("measured_ns").mean(),
            pl.col("launch").n_unique().cast(pl.Int64).alias("measured"),
            pl.col("exact").sum().cast(pl.Int64),
            *(weighed_mean(c, _TIME) for c in _AVERAGED),
            *(weighed_mean(c, _TIME) for c in ("compute_share", _REACHED_DRAM, "at_tensor_roof")),
            *(whole_sum(c) for c in ("flops", "dram_bytes")),
        )
        .with_columns(
            share_of(pl.col("total_ns"), window_ns).alias("share"),
            share_of(pl.col("total_ns"), all_kernels_ns).alias("kernel_share"),
            share_of(pl.col("measured_ns"), pl.col("mean_ns")).alias("ratio"),
            (pl.col("total_ns") * (1 - pl.col("roof_share")).clip(0)).alias("gap_ns"),
            (pl.col("flops") / 1e12).alias("tflop"),
            pl.when(pl.col("roof_share").is_not_null())
            .then(
                pl.when(pl.col(_REACHED_DRAM) >= pl.col("compute_share"))
                .then(pl.lit("DRAM"))
                .otherwise(pl.col("arithmetic"))
            )
            .alias("roof"),
            (pl.col("total_ns") * (1 - pl.col("at_tensor_roof")).clip(0)).alias("tensor_gap_ns"),
        )
        .with_columns(pl.max_horizontal("gap_ns", "tensor_gap_ns").alias("sort_ns"))
        .sort(["sort_ns", "total_ns"], descending=True, nulls_last=True, maintain_order=True)
    )
    frame = _with_names(frame)
    limited_by: list[str | None] = []
    sentences: list[str] = []
    for row in frame.iter_rows(named=True):
        # As `diagnose` writes it: `L2 87%`, `fp32 72%`, `latency`.
        unit, share = _UNITS.get(row["limit"], row["limit"]), row["limit_share"]
        limited_by.append(
            row["bound"] if unit is None else unit if share is None else f"{unit} {share:.0%}"
        )
        sentences.append(_sentence(window, row, limited_by[-1]))
    frame = frame.with_columns(
        pl.Series("limited_by", limited_by, pl.String), pl.Series("sentence", sentences, pl.String)
    )
    ranked = frame["gap_ns"].null_count() < frame.height
    title = "Kernels by headroom to the roofline" if ranked else "Kernels by time"
    has_gemms = frame["tensor_gap_ns"].null_count() < frame.height
    fields = [
        field if has_gemms or field.key != "tensor_gap_ns" else replace(field, shown=False)
        for field in KERNEL_FIELDS
    ]
    return _table("kernels", title, fields, frame)


def _at_tensor_roof() -> pl.Expr:
    """Return the share of its time that a GEMM in FP32 would take at the Tensor Cores' roofline."""
    is_gemm = (
        pl.col("name")
        .cast(pl.String)
        .map_elements(lambda name: classify(name).category in _GEMM_CATEGORIES, pl.Boolean)
    )
    at_peak = pl.col("flops") / pl.col(_TENSOR_PEAK) / (pl.col("measured_ns") * 1e-9)
    return (
        pl.when(is_gemm & (pl.col("arithmetic") == FP32.text))
        .then(pl.max_horizontal(at_peak, _REACHED_DRAM))
        .alias("at_tensor_roof")
    )


def _sentence(window: str, row: Mapping[str, Any], limited_by: str | None) -> str:
    share, roof, bound = row["share"], row["roof_share"], row["bound"]
    of_time = "runs" if share is None else f"is {_percent(share)} of {window}"
    if roof is None:
        return f"{row['short_name']} {of_time}; its roofline was not measured"
    unit = f": {limited_by}" if limited_by != bound else ""
    limit = f" ({bound}-bound{unit})" if bound else ""
    if bound == "memory" and row["limit"] in {"l1", "l2"}:  # its roofline is that of DRAM
        limit = f" (limited by {limited_by})"
    text = f"{row['short_name']} {of_time} and at {_percent(roof)} of the roofline{limit}"
    if row.get("tensor_gap_ns") is None:
        return text
    possible = format_time(row["total_ns"] - row["tensor_gap_ns"], digits=3)
    now = format_time(row["total_ns"], digits=3)
    return f"{text}; on Tensor Cores {now} could be {possible}"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 or share == 0 else format_share(share)


def _partner_tables(joined: JoinedLaunches, window_ns: int, part: str) -> list[TableResult]:
    """List what has no partner, of the timeline and of the report; no table where all have.

    `part` is what was joined of the timeline: all of the `timeline`, or a `window`.
    """
    tables = []
    if joined.unmeasured.height:
        frame = _without_partner(joined.unmeasured, joined.report, _TIME, "report")
        frame = frame.with_columns(share_of(pl.col("total_ns"), window_ns).alias("share"))
        title = "In the timeline, not profiled"
        tables.append(_table("unmeasured", title, UNMEASURED_FIELDS, frame))
    if joined.unused.height:
        frame = _without_partner(joined.unused, joined.timeline, DURATION, part)
        title = f"Profiled, not in the {part}"
        tables.append(_table("unused", title, UNUSED_FIELDS, frame))
    return tables


def _without_partner(
    rows: pl.DataFrame, others: pl.DataFrame, time: str, side: str
) -> pl.DataFrame:
    """Sum launches by kernel, the longest first, with the shape that the other side has."""
    frame = (
        rows.group_by("key", maintain_order=True)
        .agg(
            *(pl.col(c).first() for c in ("name", "why", "kernel", *SHAPE)),
            pl.col(time).sum().alias("total_ns"),
            pl.len().cast(pl.Int64).alias("calls"),
        )
        .sort("total_ns", descending=True, maintain_order=True)
    )
    why = {NO_NAME: f"not in the {side}", NO_SHAPE: "other grid or block"}
    other = others.select(
        "kernel", pl.concat_str(shape_texts(), separator=" of ").alias("other")
    ).unique("kernel", keep="first")
    frame = frame.join(other, on="kernel", how="left", maintain_order="left")
    return _with_names(frame.with_columns(pl.col("why").replace(why)))


def _with_names(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(
        pl.col("name").cast(pl.String), short_names_by_shape(frame), *shape_texts()
    )


def _table(command: str, title: str, fields: Sequence[Field], frame: pl.DataFrame) -> TableResult:
    return TableResult(command, title, tuple(fields), frame.select([f.key for f in fields]))


COMMAND = "join"
_MIN_SPEED_DIFFERENCE = 0.05
"""Durations closer than this are not worth a note."""
_MAX_SPEED_RATIO = 3.0
"""From here on, other clocks and cold caches do not explain the difference."""

_NEXT = "bottlenecks and fixes: gpusight diagnose TIMELINE REPORT"

JOIN_FACTS = (
    Fact("first", "Most headroom", None, Fmt.TEXT, "The kernel with most headroom to the roofline"),
    Fact("window_ns", "Window", None, Fmt.TIME, "Time that shares refer to"),
    Fact("kernel_ns", "Kernel time", None, Fmt.TIME, "Sum of kernel durations in the timeline"),
    Fact("covered_share", "Profiled", None, Fmt.SHARE, "Share of it that the report covers"),
    Fact("kernels", "Kernels", None, Fmt.COUNT, "Kernels run in the timeline"),
    Fact("covered", "Covered", None, Fmt.COUNT, "Kernels that the report covers"),
    Fact("launches", "Profiled launches", None, Fmt.COUNT, "Profiled launches that represent them"),
    Fact("sm_share", "SMs busy", None, Fmt.SHARE, "SM throughput of the profiled kernels, by time"),
    Fact("memory_share", "Memory busy", None, Fmt.SHARE, "Memory throughput of the same"),
    Fact("dram_share", "DRAM busy", None, Fmt.SHARE, "DRAM throughput of the same"),
    Fact("tflop", "TFLOP", None, Fmt.REAL, "TFLOP of the profiled kernels"),
    Fact("dram_bytes", "DRAM traffic", None, Fmt.BYTES, "DRAM bytes of the profiled kernels"),
    Fact("intensity", "FLOP/byte", None, Fmt.REAL, "FLOPs per DRAM byte"),
    Fact("busy_tflop_per_s", "TFLOP/s, busy", None, Fmt.REAL, "Over their time"),
    Fact("window_tflop_per_s", "TFLOP/s, window", None, Fmt.REAL, "Over the window"),
    Fact(
        "window_dram_bytes_per_s", "DRAM, window", None, Fmt.RATE, "DRAM bandwidth over the window"
    ),
    Fact(
        "busy_roof_share",
        "Roofline, busy",
        None,
        Fmt.SHARE,
        "Share of the roofline over their time",
    ),
    Fact(
        "roof_share", "Roofline, window", None, Fmt.SHARE, "Share of the roofline over the window"
    ),
)
"""Every fact, without its value."""


def join(
    timeline: Trace, report: Trace, selection: Selection = EVERYTHING
) -> Composite | NotApplicable:
    """Join the kernels of a timeline with what a report measured of them.

    `selection` is of the timeline. The two may be given in either order.
    """
    if timeline.has("profiles") and report.has("kernels"):
        timeline, report = report, timeline
    if not report.has("profiles"):
        return no_counters(COMMAND)
    if not timeline.has("kernels"):
        if not timeline.has("profiles"):
            return no_kernels(timeline, COMMAND)
        reason = "both captures are ncu reports: one must be a timeline"
        return NotApplicable(COMMAND, reason, "capture one with: gpusight record …")
    scope = ResolvedSelection(timeline, selection)
    joined = _join_launches(scope, report)
    if joined.timeline.is_empty():
        return NotApplicable(COMMAND, "no kernel was launched in the selection")
    if joined.covered.is_empty():
        return _nothing_common(joined)
    window_ns = scope.window.length_ns
    window = "the window" if selection.within is None else selection.within
    kernels = _kernel_rows(joined, window_ns, window)
    return Composite(
        COMMAND,
        "Timeline and report",
        _facts(joined, kernels, window_ns),
        (kernels, *_partner_tables(joined, window_ns, "window" if selection.time else "timeline")),
        meta={"timeline": timeline.meta.path, "report": report.meta.path},
        notes=(
            *scope.notes,
            *graph_notes(timeline),
            *_matching_notes(joined),
            *_partner_notes(joined),
            *_speed_notes(joined, locked=report.meta.clocks_locked),
            *_gpu_notes(timeline, report),
            *_limiter_note(kernels.frame),
            *_tensor_note(kernels.frame),
            _NEXT,
        ),
    )


_MIN_OTHER_SHARE = 0.05
"""By how much the SM share may be above that of the arithmetic without a word."""


def _limiter_note(kernels: pl.DataFrame) -> list[str]:
    """Say why a kernel is limited by arithmetic that is less busy than its SMs."""
    limit, share = pl.col("limit"), pl.col("limit_share")
    of_memory = limit.is_in([*_UNITS]) | limit.is_null()
    if kernels.filter(~of_memory, pl.col("sm_share") > share + _MIN_OTHER_SHARE).is_empty():
        return []
    note = "limited by fp32, fp16, …: achieved FLOP/s of the peak"
    return [f"{note}; SM is the busiest of its units, issue slots included"]


def _tensor_note(kernels: pl.DataFrame) -> list[str]:
    """Name the two rooflines of GEMMs in FP32: `diagnose` is about the higher one."""
    if kernels["tensor_gap_ns"].null_count() == kernels.height:
        return []
    note = "FP32 GEMMs have two rooflines: Headroom is to the FP32 peak of CUDA cores, Tensor Cores"
    return [f"{note} to the peak with TF32, an upper bound of what diagnose estimates"]


def _nothing_common(joined: JoinedLaunches) -> NotApplicable:
    """Explain that no launch matches, with the kernels that take most time on each side."""
    timeline, report = _longest(joined.timeline, _TIME), _longest(joined.report, DURATION)
    if not report:
        reason = "the report profiled ranges or graphs as a whole, not single kernels"
        return NotApplicable(COMMAND, reason, "measure with: ncu --replay-mode kernel …")
    what = "grids and blocks" if (joined.timeline["why"] == NO_SHAPE).any() else "names"
    return NotApplicable(
        COMMAND,
        f"no profiled launch matches a kernel of the timeline by its {what}: the timeline has "
        f"{timeline}, the report {report}",
        "profile the same program on the same input: ncu --set full -o report PROGRAM",
    )


def _longest(frame: pl.DataFrame, time: str) -> str:
    totals = frame.group_by("name", maintain_order=True).agg(pl.col(time).sum())
    names = totals.sort(time, descending=True, nulls_last=True)["name"].head(2).cast(pl.String)
    return " and ".join(repr(classify(name).short) for name in names)


def _facts(joined: JoinedLaunches, kernels: TableResult, window_ns: int) -> tuple[Fact, ...]:
    rows, covered = joined.timeline, joined.covered
    kernel_ns, covered_ns = (float(frame[_TIME].sum()) for frame in (rows, covered))
    # Totals only where they are known for every launch.
    flops, dram_bytes = (
        None if covered[column].null_count() else float(covered[column].sum())
        for column in ("flops", "dram_bytes")
    )
    roof = average(covered, "roof_share", _TIME)
    values = {
        "first": kernels.frame["sentence"][0],
        "window_ns": window_ns or None,
        "kernel_ns": kernel_ns,
        "covered_share": covered_ns / kernel_ns if kernel_ns else None,
        "kernels": rows.height,
        "covered": covered.height,
        "launches": covered["launch"].n_unique(),
        **{c: average(covered, c, _TIME) for c in ("sm_share", "memory_share", "dram_share")},
        "tflop": _ratio(flops, 1e12),
        "dram_bytes": dram_bytes,
        "intensity": _ratio(flops, dram_bytes),
        "busy_tflop_per_s": _ratio(flops, covered_ns * 1e3),
        "window_tflop_per_s": _ratio(flops, window_ns * 1e3),
        "window_dram_bytes_per_s": _ratio(dram_bytes, window_ns / 1e9),
        "busy_roof_share": roof,
        "roof_share": None if roof is None else _ratio(roof * covered_ns, float(window_ns)),
    }
    facts = (Fact(f.key, f.label, values[f.key], f.fmt, f.meaning) for f in JOIN_FACTS)
    return tuple(fact for fact in facts if fact.value is not None)


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None


def _matching_notes(joined: JoinedLaunches) -> list[str]:
    covered, keys = joined.covered, joined.cover.keys
    not_in_sequence = covered.height - int(covered["exact"].sum())
    notes = []
    if not_in_sequence:
        notes.append(
            f"{covered['launch'].n_unique():,} profiled launches represent {covered.height:,} "
            f"kernels: {not_in_sequence:,} by the same name, grid and block, not as part of the "
            "measured sequence"
        )
    if not keys.shapes:
        notes.append("a capture has no grids and blocks: matched by name only")
    if keys.by_function:
        notes.append(
            f"{keys.by_function:,} names differ in how template arguments are written: "
            "matched by function"
        )
    if covered.height < joined.timeline.height:
        notes.append("FLOPs, bytes and roofline are lower bounds: only profiled kernels count")
    if any(covered[column].null_count() for column in ("roof_share", "flops", "sm_share")):
        notes.append(
            "counters for the roofline are missing for some launches: "
            "measure with --section SpeedOfLight --section SpeedOfLight_RooflineChart"
        )
    return notes


def _partner_notes(joined: JoinedLaunches) -> list[str]:
    """Count what has no partner, on both sides."""
    notes = []
    for frame, singular, plural, rest, other_side in (
        (joined.unmeasured, "kernel was", "kernels were", "not profiled", "the report"),
        (
            joined.unused,
            "profiled launch matches",
            "profiled launches match",
            "nothing",
            "the timeline",
        ),
    ):
        other_shape = int((frame["why"] == NO_SHAPE).sum())
        other_name = frame.height - other_shape
        reasons = [f"{other_name:,} with a name that {other_side} lacks"] if other_name else []
        reasons += [f"{other_shape:,} with another grid or block"] if other_shape else []
        if reasons:
            what = singular if frame.height == 1 else plural
            notes.append(f"{frame.height:,} {what} {rest}: {', '.join(reasons)}")
    return notes


_CLOCKS = {
    None: " and at base clock",
    True: "; clocks were locked",
    False: "; clocks were not locked",
}
"""What a report shows of the clocks while profiling."""


def _speed_notes(joined: JoinedLaunches, *, locked: bool | None) -> list[str]:
    """Explain why durations in the report differ from those of the timeline."""
    timed = joined.timeline.filter(pl.col("measured_ns").is_not_null())
    timeline_ns, report_ns = float(timed[_TIME].sum()), float(timed["measured_ns"].sum())
    if not timeline_ns or not report_ns:
        return []
    ratio = report_ns / timeline_ns
    if abs(ratio - 1) < _MIN_SPEED_DIFFERENCE:
        return []
    why = f"ncu runs each kernel alone, by default with cold caches{_CLOCKS[locked]}"
    if not 1 / _MAX_SPEED_RATIO < ratio < _MAX_SPEED_RATIO:
        why = "too different for the same work on the same GPU"
    slower = f"profiled kernels take {ratio:.2f}x their time in the timeline"
    return [f"{slower}: {why}"]


def _gpu_notes(timeline: Trace, report: Trace) -> list[str]:
    ours, theirs = (
        {name for name in device_names(trace).values() if name} for trace in (timeline, report)
    )
    if not ours or not theirs or ours & theirs:
        return []
    gpus = (
        f"the timeline is of {', '.join(sorted(ours))}, the report of {', '.join(sorted(theirs))}"
    )
    return [f"{gpus}: metrics may differ"]
