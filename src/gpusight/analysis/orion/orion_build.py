"""Builds Orion's kernel-info file from captures, and reports the row of every launch."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from gpusight.analysis.aggregates import schema_of
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
    MergedReports,
    OrionMatch,
    differences,
    disagreements,
    match_notes,
    match_timeline,
    timeline_launches,
)
from gpusight.analysis.orion.orion_rows import (
    MODEL_TYPES,
    NEXT,
    OWN,
    OrionRows,
    group,
    kernel_info,
    row_values,
    table_texts,
)
from gpusight.analysis.selection import EVERYTHING, Selection
from gpusight.errors import UsageError
from gpusight.naming.kernel_names import unique_short_names
from gpusight.results import Composite, Fact, Field, Fmt, NotApplicable, TableResult
from gpusight.trace.trace import Trace

_TIME = Field("duration_ns", "Time", Fmt.TIME, "Time on the GPU")
_KERNEL = Field("kernel", "Kernel", Fmt.NAME, "Short name")
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
    Field(
        SM_NEEDED, "SMs", Fmt.COUNT, "SMs needed to hold all blocks at once, also beyond the GPU's"
    ),
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
    Field(SM_NEEDED, "SMs", Fmt.COUNT, "SMs needed to hold all of its blocks at once"),
    _TIME,
    _KERNEL,
    _NAME,
)


def _classes(rows: pl.DataFrame) -> TableResult:
    total_ns = _total_ns(rows)
    entries = []
    for profile, name in CLASS_NAMES.items():
        own = rows.filter(pl.col(PROFILE) == profile)
        time_ns = _total_ns(own)
        share = time_ns / total_ns if total_ns else None
        entries.append((share, time_ns, own.height, profile, name))
    frame = pl.DataFrame(entries, schema=[f.key for f in CLASS_FIELDS], orient="row")
    return TableResult("classes", "What the rows are bound by", CLASS_FIELDS, frame)


def _launch_tables(launches: pl.DataFrame, grouped: OrionRows) -> list[TableResult]:
    """List the launches that are in no row, if any, and all of them with their rows."""
    names = launches["name"].cast(pl.String)
    short = unique_short_names(names.unique(maintain_order=True))
    owner = {at: number for number, row in enumerate(grouped.rows) for at in row.launches}
    frame = launches.with_columns(
        pl.Series("kernel", [short[name] for name in names], pl.String),
        pl.Series("row", [owner.get(at) for at in range(launches.height)], pl.Int64),
    )
    tables = []
    if grouped.left_out:
        positions = sorted(grouped.left_out)
        why = pl.Series("why", [grouped.left_out[at] for at in positions])
        rows = frame[positions].with_columns(why).select([f.key for f in LEFT_OUT_FIELDS])
        tables.append(TableResult("left_out", "Left out", LEFT_OUT_FIELDS, rows))
    table = frame.select([f.key for f in LAUNCH_FIELDS])
    return [*tables, TableResult("launches", "Launches", LAUNCH_FIELDS, table)]


def _total_ns(frame: pl.DataFrame) -> float:
    return float(frame["duration_ns"].sum())


COLUMNS = (5, 7)
DURATIONS = ("ncu", "nsys")
HELPERS = (NEXT, OWN)


@dataclass(frozen=True, slots=True)
class OrionOptions:
    """How the file is built."""

    model_type: str = "vision"
    columns: int = 5
    compat: bool = False
    """Use the formulas of the original scripts."""
    threshold: float | None = None
    """FLOP/byte above which a launch is compute-bound; by default the ridge point of its GPU."""
    limits: OrionSmLimits = field(default_factory=OrionSmLimits)
    durations: str = "ncu"
    """Which capture's durations the file has."""
    helpers: str = NEXT
    """Whose row a helper that ran after its convolution is counted to."""
    selection: Selection = EVERYTHING
    """Which part of the timeline is matched."""

    def __post_init__(self) -> None:
        """Check the values, which may come from Python."""
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
    """A kernel-info file, with its intermediate tables."""

    text: str
    """The file."""
    tables: dict[str, str]
    """The intermediate tables, by file name."""
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
    """Build the file from a report, a second export of it, and a timeline of the same program."""
    if options.durations == "nsys" and nsys is None:
        raise UsageError("durations of nsys need a timeline", hint="add --nsys FILE")
    if options.selection and nsys is None:
        raise UsageError("a range or GPU is chosen of the timeline", hint="add --nsys FILE")
    described = describe_launches(ncu, raw, options)
    if isinstance(described, (OrionRefusal, NotApplicable)):
        return described
    frame, notes = described
    if nsys is None:
        return _built(frame, options, notes, None)
    timeline = timeline_launches(nsys, options.selection)
    if isinstance(timeline, NotApplicable):
        return timeline
    matched = match_timeline(frame, timeline)
    unlike = differences(matched)
    if not len(matched.pairs.left) and unlike is not None:
        return OrionRefusal("no launch of the report matches the timeline", unlike)
    if options.durations == "nsys":
        measured_ns = pl.coalesce(matched.durations_ns, pl.col("duration_ns"))
        frame = frame.with_columns(measured_ns.alias("duration_ns"))
    return _built(frame, options, notes, matched)


def describe_launches(
    ncu: Trace, raw: Trace | None, options: OrionOptions
) -> tuple[pl.DataFrame, tuple[str, ...]] | OrionRefusal | NotApplicable:
    """Return launches with their SMs and class, and notes, of a report in one file or two.

    The second file, `raw`, is another export of the same report: both must have the same launches.
    """
    if raw is not None and not raw.has("profiles"):
        raise UsageError(
            f"no launch was measured in {raw.meta.path}, the file of --ncu-raw",
            hint="print the raw page of the report: ncu --import FILE --page raw --csv",
        )
    trace = ncu
    if raw is not None and ncu.has("profiles"):
        unequal = disagreements(ncu, raw)
        if unequal.frame.height:
            why = f"--ncu and --ncu-raw do not agree on {how_many(unequal.frame.height)}"
            return OrionRefusal(why, unequal)
        trace = Trace(MergedReports(ncu, raw))
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


def _built(
    launches: pl.DataFrame,
    options: OrionOptions,
    notes: tuple[str, ...],
    matched: OrionMatch | None,
) -> OrionFile:
    grouped = group(launches["name"].to_list(), options.model_type, options.helpers)
    values = launches.select(
        "launch", "duration_ns", "block", "grid", SM_NEEDED, PROFILE
    ).to_dicts()
    rows = pl.DataFrame(
        [row_values(row, values) for row in grouped.rows],
        schema={**schema_of(ROW_FIELDS), "duration_ns": pl.Float64()},
    )
    all_notes = [*notes, *_row_notes(grouped, options)]
    *left_out, all_launches = _launch_tables(launches, grouped)
    sections = [_classes(rows), *left_out]
    if matched is not None:
        unlike = differences(matched)
        sections += [unlike] if unlike is not None else []
        all_notes += match_notes(matched)
        if options.durations == "nsys":
            lone = len(matched.pairs.left_only)
            but = f", but the report's for {how_many(lone)}" if lone else ""
            all_notes.append(f"durations are those of the timeline{but}")
    merged = sum(len(row.launches) for row in grouped.rows) - rows.height
    time_ns = _total_ns(rows)
    left_out_ns = max(0.0, _total_ns(launches) - time_ns)
    summary = Composite(
        COMMAND,
        "Kernel-info file for the Orion scheduler",
        (
            Fact(
                "rows", "Rows", rows.height, Fmt.COUNT, "Rows of the file: the job's `num_kernels`"
            ),
            Fact("launches", "Launches", launches.height, Fmt.COUNT, "Launches in the report"),
            Fact(
                "merged",
                "Merged",
                merged,
                Fmt.COUNT,
                "Launches that were added to the row of another",
            ),
            Fact("left_out", "Left out", len(grouped.left_out), Fmt.COUNT, "Launches in no row"),
            Fact("total_ns", "Time", time_ns, Fmt.TIME, "Sum of the durations in the file"),
            Fact(
                "left_out_ns",
                "Time left out",
                left_out_ns,
                Fmt.TIME,
                "Durations of launches in no row",
            ),
        ),
        (*sections, TableResult("rows", "Rows of the file", ROW_FIELDS, rows), all_launches),
        meta={
            "action": "build",
            "model_type": options.model_type,
            "columns": options.columns,
            "compat": options.compat,
            "durations": options.durations,
            "classes": {name: profile for profile, name in CLASS_NAMES.items()},
        },
        notes=tuple(all_notes),
    )
    return OrionFile(kernel_info(rows, options.columns), table_texts(launches), summary)


def _row_notes(grouped: OrionRows, options: OrionOptions) -> list[str]:
    notes = []
    if options.compat:
        notes.append("SMs and classes are those of the original formulas (--compat)")
    if grouped.counted_to_next:
        notes.append(
            f"{how_many(len(grouped.counted_to_next))} that finish a convolution count to the "
            f"next one, as in the scheduler's own files; --helpers {OWN} counts them to theirs"
        )
    if grouped.without_convolution:
        notes.append(
            f"{how_many(len(grouped.without_convolution))} for a convolution, with none after "
            "them, keep rows of their own; the scheduler may count fewer"
        )
    return notes
