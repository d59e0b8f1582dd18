"""The kernel-info file from captures: what goes into it, and what became of every launch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analyses.orion.blocks import SM_NEEDED, Limits, with_sm_needed
from gpusight.analyses.orion.classes import CLASS_NAMES, PROFILE, with_profile
from gpusight.analyses.orion.files import kernel_info, table_texts
from gpusight.analyses.orion.launches import how_many, launch_notes, launch_table
from gpusight.analyses.orion.matching import (
    Matched,
    differences,
    disagreement_table,
    match_notes,
    match_timeline,
    timeline_launches,
)
from gpusight.analyses.orion.merged import disagreements, merge
from gpusight.analyses.orion.roles import MODEL_TYPES
from gpusight.analyses.orion.rows import NEXT, OWN, ROW_TYPES, Rows, group, row_values
from gpusight.analyses.orion.summary import summarise
from gpusight.analyses.select import EVERYTHING, Selection
from gpusight.errors import UsageError
from gpusight.result import NotApplicable, TableResult

if TYPE_CHECKING:
    from gpusight.model.trace import Trace
    from gpusight.result import Composite

COLUMNS = (5, 7)
DURATIONS = ("ncu", "nsys")
HELPERS = (NEXT, OWN)


@dataclass(frozen=True, slots=True)
class Options:
    """How the file is made."""

    model_type: str = "vision"
    columns: int = 5
    compat: bool = False
    """Use the formulas of the original scripts."""
    threshold: float | None = None
    """FLOP/byte above which a launch is compute-bound; by default the knee of its GPU."""
    limits: Limits = field(default_factory=Limits)
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
class Built:
    """A kernel-info file, with the tables on the way to it."""

    text: str
    """The file."""
    tables: dict[str, str]
    """The tables on the way, by the names of their files."""
    summary: Composite


@dataclass(frozen=True)
class Refused:
    """Captures that are not of one run; nothing is made from them."""

    why: str
    table: TableResult
    """What the two differ in."""


def build(
    ncu: Trace,
    options: Options,
    *,
    raw: Trace | None = None,
    nsys: Trace | None = None,
) -> Built | Refused | NotApplicable:
    """Make the file from a report, a second export of it, and a timeline of the same program."""
    if options.durations == "nsys" and nsys is None:
        raise UsageError("durations of nsys need a timeline", hint="add --nsys FILE")
    if options.selection and nsys is None:
        raise UsageError("a range or GPU is chosen of the timeline", hint="add --nsys FILE")
    told = told_of(ncu, raw, options)
    if isinstance(told, (Refused, NotApplicable)):
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
        return Refused("no launch of the report has its like in the timeline", unlike)
    return _built(_timed(frame, matched, options), options, notes, matched)


def told_of(
    ncu: Trace, raw: Trace | None, options: Options
) -> tuple[pl.DataFrame, tuple[str, ...]] | Refused | NotApplicable:
    """Give one row a launch with its SMs and its class, and notes, of a report in one file or two.

    That is the last table on the way to the scheduler's file.
    """
    report = _joined(ncu, raw)
    return report if isinstance(report, Refused) else _described(report, options)


def _joined(ncu: Trace, raw: Trace | None) -> Trace | Refused:
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
        return Refused(why, disagreement_table(unequal))
    return merge(ncu, raw)


def _described(
    trace: Trace, options: Options
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


def _timed(frame: pl.DataFrame, matched: Matched, options: Options) -> pl.DataFrame:
    """Take the durations from the timeline, where that is asked for and there is a partner."""
    if options.durations != "nsys":
        return frame
    return frame.with_columns(
        pl.coalesce(matched.durations_ns, pl.col("duration_ns")).alias("duration_ns")
    )


def _built(
    launches: pl.DataFrame, options: Options, notes: tuple[str, ...], matched: Matched | None
) -> Built:
    found = group(launches["name"].to_list(), options.model_type, options.helpers)
    values = launches.select(
        "launch", "duration_ns", "block", "grid", SM_NEEDED, PROFILE
    ).to_dicts()
    rows = pl.DataFrame([row_values(row, values) for row in found.rows], schema=ROW_TYPES)
    unlike = None if matched is None else differences(matched)
    fits = () if matched is None else match_notes(matched)
    summary = summarise(
        launches,
        rows,
        found,
        unlike,
        meta=_meta(options),
        notes=(*notes, *_row_notes(found, options), *fits, *_duration_notes(matched, options)),
    )
    return Built(kernel_info(rows, options.columns), table_texts(launches), summary)


def _meta(options: Options) -> dict[str, Any]:
    return {
        "action": "build",
        "model_type": options.model_type,
        "columns": options.columns,
        "compat": options.compat,
        "durations": options.durations,
        "classes": {name: profile for profile, name in CLASS_NAMES.items()},
    }


def _row_notes(found: Rows, options: Options) -> tuple[str, ...]:
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


def _duration_notes(matched: Matched | None, options: Options) -> tuple[str, ...]:
    if options.durations != "nsys" or matched is None:
        return ()
    lone = len(matched.found.left_only)
    if not lone:
        return ("durations are those of the timeline",)
    return (f"durations are those of the timeline, but the report's for {how_many(lone)}",)
