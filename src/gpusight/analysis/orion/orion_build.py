"""Builds Orion's kernel-info file from captures, and says what became of every launch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.orion.orion_launches import (
    CLASS_NAMES,
    COMMAND,
    INTENSITY,
    PROFILE,
    SM_NEEDED,
    OrionSmLimits,
    how_many,
    launch_notes,
    launch_table,
    with_profile,
    with_sm_needed,
)
from gpusight.analysis.orion.orion_matching import (
    OrionMatch,
    differences,
    disagreement_table,
    disagreements,
    match_notes,
    match_timeline,
    merge,
    timeline_launches,
)
from gpusight.analysis.orion.orion_rows import (
    MODEL_TYPES,
    NEXT,
    OWN,
    ROW_TYPES,
    OrionRows,
    group,
    kernel_info,
    row_values,
    table_texts,
)
from gpusight.analysis.selection import EVERYTHING, Selection
from gpusight.errors import UsageError
from gpusight.naming.kernel_names import classify
from gpusight.results import Composite, Fact, Field, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.trace.trace import Trace


_TIME = Field("duration_ns", "Time", Fmt.TIME, "Time on the GPU")
_KERNEL = Field("kernel", "Kernel", Fmt.NAME, "Readable label made from the name")
_NAME = Field("name", "Full name", Fmt.NAME, "Name with template arguments", shown=False)
_PROFILE = Field(PROFILE, "Profile", Fmt.ID, "1 compute, 0 memory, -1 neither")

CLASS_FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of the time in the file"),
    _TIME,
    Field("rows", "Rows", Fmt.COUNT, "Rows of this class"),
    _PROFILE,
    Field("class", "Bound by", Fmt.TEXT, "What the profile stands for"),
)
LEFT_OUT_FIELDS = (
    _TIME,
    Field("launch", "Launch", Fmt.ID, "Number of the launch in the report"),
    Field("why", "Why", Fmt.TEXT, "What it is"),
    _KERNEL,
    _NAME,
)
ROW_FIELDS = (
    Field("name", "Name", Fmt.NAME, "Name in the file"),
    _PROFILE,
    Field("memory_footprint", "Memory", Fmt.COUNT, "Always 0: the scheduler does not use it"),
    Field(SM_NEEDED, "SMs", Fmt.COUNT, "SMs that hold all blocks at once, also beyond the GPU's"),
    _TIME,
    Field("block", "Block", Fmt.COUNT, "Threads of a block of the launch that names the row"),
    Field("grid", "Grid", Fmt.COUNT, "Blocks of that launch"),
    Field("launches", "Launches", Fmt.COUNT, "Launches merged into the row"),
    Field("first_launch", "From", Fmt.ID, "Number of the first of them"),
)
LAUNCH_FIELDS = (
    Field("launch", "Launch", Fmt.ID, "Number of the launch in the report"),
    Field("row", "Row", Fmt.ID, "Row of the file that it is part of, from 0; null for none"),
    Field(PROFILE, "Profile", Fmt.ID, "Its own class: 1 compute, 0 memory, -1 neither"),
    Field(INTENSITY, "FLOP/B", Fmt.REAL, "FLOPs for each byte of DRAM; null when not known"),
    Field(SM_NEEDED, "SMs", Fmt.COUNT, "SMs that hold all of its blocks at once"),
    _TIME,
    _KERNEL,
    _NAME,
)


def summarize(
    launches: pl.DataFrame,
    rows: pl.DataFrame,
    found: OrionRows,
    differences: TableResult | None,
    *,
    meta: Mapping[str, Any],
    notes: tuple[str, ...],
) -> Composite:
    """Say what the file holds; rows and launches are for programs rather than for people."""
    left_out = _left_out(launches, found)
    sections = [_classes(rows), left_out, differences, _rows(rows), _launches(launches, found)]
    return Composite(
        COMMAND,
        "Kernel-info file for the Orion scheduler",
        _facts(launches, rows, found),
        tuple(section for section in sections if section is not None),
        meta=meta,
        notes=notes,
    )


def _facts(launches: pl.DataFrame, rows: pl.DataFrame, found: OrionRows) -> tuple[Fact, ...]:
    kept = sum(len(row.launches) for row in found.rows)
    time, everything = _time(rows), _time(launches)
    return (
        Fact("rows", "Rows", rows.height, Fmt.COUNT, "Rows of the file: the job's `num_kernels`"),
        Fact("launches", "Launches", launches.height, Fmt.COUNT, "Launches in the report"),
        Fact(
            "merged",
            "Merged",
            kept - rows.height,
            Fmt.COUNT,
            "Launches that were added to the row of another",
        ),
        Fact("left_out", "Left out", len(found.left_out), Fmt.COUNT, "Launches in no row"),
        Fact("total_ns", "Time", time, Fmt.TIME, "Sum of the durations in the file"),
        Fact(
            "left_out_ns",
            "Time left out",
            max(0.0, everything - time),
            Fmt.TIME,
            "Durations of launches in no row",
        ),
    )


def _classes(rows: pl.DataFrame) -> TableResult:
    total = _time(rows)
    entries = []
    for profile, name in CLASS_NAMES.items():
        own = rows.filter(pl.col(PROFILE) == profile)
        time = _time(own)
        share = time / total if total else None
        entries.append((share, time, own.height, profile, name))
    keys = [f.key for f in CLASS_FIELDS]
    frame = pl.DataFrame(entries, schema=keys, orient="row")
    return TableResult("classes", "What the rows are bound by", CLASS_FIELDS, frame)


def _left_out(launches: pl.DataFrame, found: OrionRows) -> TableResult | None:
    if not found.left_out:
        return None
    chosen = launches[sorted(found.left_out)]
    frame = _labelled(chosen).with_columns(
        pl.Series("why", [found.left_out[at] for at in sorted(found.left_out)])
    )
    columns = [f.key for f in LEFT_OUT_FIELDS]
    return TableResult("left_out", "Left out", LEFT_OUT_FIELDS, frame.select(columns))


def _rows(rows: pl.DataFrame) -> TableResult:
    frame = rows.select([f.key for f in ROW_FIELDS])
    return TableResult("rows", "Rows of the file", ROW_FIELDS, frame)


def _launches(launches: pl.DataFrame, found: OrionRows) -> TableResult:
    owner = {at: number for number, row in enumerate(found.rows) for at in row.launches}
    row = pl.Series("row", [owner.get(at) for at in range(launches.height)], pl.Int64)
    frame = _labelled(launches).with_columns(row).select([f.key for f in LAUNCH_FIELDS])
    return TableResult("launches", "Launches", LAUNCH_FIELDS, frame)


def _time(frame: pl.DataFrame) -> float:
    return float(frame["duration_ns"].sum())


def _labelled(launches: pl.DataFrame) -> pl.DataFrame:
    shorts = [classify(name).short for name in launches["name"]]
    return launches.with_columns(pl.Series("kernel", shorts, pl.String))


COLUMNS = (5, 7)
DURATIONS = ("ncu", "nsys")
HELPERS = (NEXT, OWN)


@dataclass(frozen=True, slots=True)
class OrionOptions:
    """How the file is made."""

    model_type: str = "vision"
    columns: int = 5
    compat: bool = False
    """Use the formulas of the original scripts."""
    threshold: float | None = None
    """FLOP/byte above which a launch is compute-bound; by default the knee of its GPU."""
    limits: OrionSmLimits = field(default_factory=OrionSmLimits)
    durations: str = "ncu"
    """Which capture's durations the file has."""
    helpers: str = NEXT
    """Whose row a helper that ran after its convolution is counted to."""
    selection: Selection = EVERYTHING
    """Which part of the timeline is matched."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense, also from Python."""
        for name, value, known in (
            ("model type", self.model_type, MODEL_TYPES),
            ("number of columns", self.columns, COLUMNS),
            ("source of durations", self.durations, DURATIONS),
            ("way with helpers", self.helpers, HELPERS),
        ):
            if value not in known:
                hint = f"one of {', '.join(map(str, known))}"
                raise UsageError(f"no {name} {value!r}", hint=hint)


@dataclass(frozen=True)
class OrionFile:
    """A kernel-info file, with the tables on the way to it."""

    text: str
    """The file."""
    tables: dict[str, str]
    """The tables on the way, by the names of their files."""
    summary: Composite


@dataclass(frozen=True)
class OrionRefusal:
    """Captures that are not of one run; nothing is made from them."""

    why: str
    table: TableResult
    """What the two differ in."""


def build(
    ncu: Trace,
    options: OrionOptions,
    *,
    raw: Trace | None = None,
    nsys: Trace | None = None,
) -> OrionFile | OrionRefusal | NotApplicable:
    """Make the file from a report, a second export of it, and a timeline of the same program."""
    if options.durations == "nsys" and nsys is None:
        raise UsageError("durations of nsys need a timeline", hint="add --nsys FILE")
    if options.selection and nsys is None:
        raise UsageError("a range or GPU is chosen of the timeline", hint="add --nsys FILE")
    told = describe_launches(ncu, raw, options)
    if isinstance(told, (OrionRefusal, NotApplicable)):
        return told
    frame, notes = told
    if nsys is None:
        return _built(frame, options, notes, None)
    timeline = timeline_launches(nsys, options.selection)
    if isinstance(timeline, NotApplicable):
        return timeline
    matched = match_timeline(frame, timeline)
    unlike = differences(matched)
    if not len(matched.found.left) and unlike is not None:
        return OrionRefusal("no launch of the report has its like in the timeline", unlike)
    return _built(_timed(frame, matched, options), options, notes, matched)


def describe_launches(
    ncu: Trace, raw: Trace | None, options: OrionOptions
) -> tuple[pl.DataFrame, tuple[str, ...]] | OrionRefusal | NotApplicable:
    """Give one row a launch with its SMs and its class, and notes, of a report in one file or two.

    That is the last table on the way to the scheduler's file.
    """
    report = _joined(ncu, raw)
    return report if isinstance(report, OrionRefusal) else _described(report, options)


def _joined(ncu: Trace, raw: Trace | None) -> Trace | OrionRefusal:
    """Make one capture of a report and a second export of it, if they agree on the launches."""
    if raw is not None and not raw.has("profiles"):
        raise UsageError(
            f"no launch was measured in {raw.meta.path}, the file of --ncu-raw",
            hint="print the raw page of the report: ncu --import FILE --page raw --csv",
        )
    if raw is None or not ncu.has("profiles"):
        return ncu
    unequal = disagreements(ncu, raw)
    if unequal:
        why = f"--ncu and --ncu-raw do not agree on {how_many(len(unequal))}"
        return OrionRefusal(why, disagreement_table(unequal))
    return merge(ncu, raw)


def _described(
    trace: Trace, options: OrionOptions
) -> tuple[pl.DataFrame, tuple[str, ...]] | NotApplicable:
    launches = launch_table(trace)
    if isinstance(launches, NotApplicable):
        return launches
    notes = launch_notes(trace, launches)
    sized = with_sm_needed(trace, launches, options.limits, compat=options.compat)
    if isinstance(sized, NotApplicable):
        return sized
    frame, size_notes = sized
    frame, class_notes = with_profile(
        trace, frame, options.threshold, gpu=options.limits.gpu, compat=options.compat
    )
    return frame, (*notes, *size_notes, *class_notes)


def _timed(frame: pl.DataFrame, matched: OrionMatch, options: OrionOptions) -> pl.DataFrame:
    """Take the durations from the timeline, where that is asked for and there is a partner."""
    if options.durations != "nsys":
        return frame
    return frame.with_columns(
        pl.coalesce(matched.durations_ns, pl.col("duration_ns")).alias("duration_ns")
    )


def _built(
    launches: pl.DataFrame,
    options: OrionOptions,
    notes: tuple[str, ...],
    matched: OrionMatch | None,
) -> OrionFile:
    found = group(launches["name"].to_list(), options.model_type, options.helpers)
    values = launches.select(
        "launch", "duration_ns", "block", "grid", SM_NEEDED, PROFILE
    ).to_dicts()
    rows = pl.DataFrame([row_values(row, values) for row in found.rows], schema=ROW_TYPES)
    unlike = None if matched is None else differences(matched)
    fits = () if matched is None else match_notes(matched)
    summary = summarize(
        launches,
        rows,
        found,
        unlike,
        meta=_meta(options),
        notes=(*notes, *_row_notes(found, options), *fits, *_duration_notes(matched, options)),
    )
    return OrionFile(kernel_info(rows, options.columns), table_texts(launches), summary)


def _meta(options: OrionOptions) -> dict[str, Any]:
    return {
        "action": "build",
        "model_type": options.model_type,
        "columns": options.columns,
        "compat": options.compat,
        "durations": options.durations,
        "classes": {name: profile for profile, name in CLASS_NAMES.items()},
    }


def _row_notes(found: OrionRows, options: OrionOptions) -> tuple[str, ...]:
    notes = []
    if options.compat:
        notes.append("SMs and classes are those of the original formulas (--compat)")
    if found.late:
        notes.append(
            f"{how_many(len(found.late))} that finish a convolution count to the next one, as "
            f"in the scheduler's own files; --helpers {OWN} counts them to theirs"
        )
    if found.alone:
        notes.append(
            f"{how_many(len(found.alone))} for a convolution, with none after them, keep rows of "
            "their own; the scheduler may count fewer"
        )
    return tuple(notes)


def _duration_notes(matched: OrionMatch | None, options: OrionOptions) -> tuple[str, ...]:
    if options.durations != "nsys" or matched is None:
        return ()
    lone = len(matched.found.left_only)
    if not lone:
        return ("durations are those of the timeline",)
    return (f"durations are those of the timeline, but the report's for {how_many(lone)}",)
