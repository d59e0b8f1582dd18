"""What `ncu` printed, as a source of tables: CSV in all its layouts, and pages of text."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.errors import DamagedCaptureError, NotACaptureError
from gpusight.readers.frame_source import FrameSource
from gpusight.readers.name_columns import file_name
from gpusight.readers.ncu.counter_values import known_duration
from gpusight.readers.ncu.report_messages import device_row
from gpusight.readers.ncu.text_collected import CollectedTables, CollectedValues
from gpusight.readers.ncu.text_launches import process_keys, process_rows, profile_rows
from gpusight.readers.ncu.text_pages import PrintedFile
from gpusight.readers.ncu.text_rows import MAX_COLUMNS, PrintedText
from gpusight.trace.trace import Meta
from gpusight.units import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpusight.trace.trace import TraceSource


_INTEGER = re.compile(r"\d{1,18}")
_DURATION = "gpu__time_duration.sum"
_ATTRIBUTE = "device__attribute_"
_SM_COUNT = ("multiprocessor_count", "launch__sm_count")
_MAJOR, _MINOR = "compute_capability_major", "compute_capability_minor"
_OF_LAUNCH = {
    "duration_ns": _DURATION,
    "device": f"{_ATTRIBUTE}device_index",
    "compute_major": f"{_ATTRIBUTE}{_MAJOR}",
    "compute_minor": f"{_ATTRIBUTE}{_MINOR}",
}
"""Columns of `profiles` that counters fill where the launch's own lines do not."""


def with_counters(profiles: pl.DataFrame, counters: pl.DataFrame) -> pl.DataFrame:
    """Fill in what only the counters say of launches: duration, GPU and compute capability."""
    profiles = profiles.with_columns(duration_ns=pl.lit(None, pl.Float64))
    for column, metric in _OF_LAUNCH.items():
        said = _chosen(counters, metric.__eq__).select("launch", said="value")
        rows = profiles.join(said, on="launch", how="left", maintain_order="left")
        own = rows.get_column(column)
        filled = pl.coalesce(column, pl.col("said").cast(own.dtype, strict=False)).alias(column)
        profiles = rows.with_columns(filled).drop("said")
    return profiles.with_columns(known_duration(pl.col("duration_ns")))


def device_rows(
    profiles: pl.DataFrame, counters: pl.DataFrame, into: CollectedValues
) -> pl.DataFrame:
    """Describe the GPUs by what the file says of them: attributes, or only the capability."""
    facts: dict[int, dict[str, Any]] = {n: _numbered(a) for n, a in into.devices.items()}
    known = profiles.with_columns(pl.col("device").fill_null(0)).with_row_index("row")
    first = known.unique("device", keep="first", maintain_order=True)
    columns = ("device", "row", "launch", "compute_major", "compute_minor")
    for device, row, launch, major, minor in first.select(columns).iter_rows():
        own = facts.setdefault(device, {})
        own |= {_MAJOR: major, _MINOR: minor} if major is not None else {}
        own |= _attributes(counters.filter(pl.col("launch") == launch))
        own.setdefault("display_name", into.launches.rows[row].get("device_name"))
    rows = [device_row(n, own) for n, own in sorted(facts.items()) if any(own.values())]
    return pl.DataFrame(rows, infer_schema_length=None)


def _numbered(attributes: dict[str, str]) -> dict[str, Any]:
    return {k: int(text) if _INTEGER.fullmatch(text) else text for k, text in attributes.items()}


def _attributes(counters: pl.DataFrame) -> dict[str, Any]:
    rows = _chosen(counters, lambda metric: metric.startswith(_ATTRIBUTE))
    found = {
        metric.removeprefix(_ATTRIBUTE): text if value is None else value
        for metric, value, text in rows.select("metric", "value", "text").iter_rows()
    }
    attribute, metric = _SM_COUNT
    sms = _chosen(counters, metric.__eq__).get_column("value")
    return found if attribute in found or sms.is_empty() else {**found, attribute: sms.item(0)}


def _chosen(counters: pl.DataFrame, is_wanted: Callable[[str], bool]) -> pl.DataFrame:
    """Give the rows of some metrics."""
    metrics = counters.get_column("metric")
    assert isinstance(metrics.dtype, pl.Enum)
    names = [name for name in metrics.dtype.categories if is_wanted(name)]
    return counters.filter(metrics.is_in(names))


_NO_KERNELS = "No kernels were profiled"
_NO_PERMISSION = "ERR_NVGPUCTRPERM"
_PATHS = re.compile(r"(?:[A-Za-z]:)?(?:[/\\][^\s/\\'\"()]+){2,}")
_HINT = "print it again with: ncu --import REPORT.ncu-rep --csv --page raw"
_MAX_TOLD, _MAX_CHARS = 3, 60
_TOO_WIDE = f"it has a line of more than {format_count(MAX_COLUMNS)} cells"


def ncu_csv_source(path: Path) -> TraceSource:
    """Open what ncu printed; it is read when the first question is asked."""
    return FrameSource(partial(_read, path))


def _read(path: Path) -> tuple[Meta, dict[str, pl.DataFrame]]:
    text, into = PrintedText(path), CollectedValues()
    walk = PrintedFile(into)
    for piece in text:
        walk.read(piece)
    walk.finish()
    if not into.launches.rows and not into.devices and not into.sources:
        problem = text.problem or (_TOO_WIDE if walk.is_too_wide else None)
        raise _nothing_in(path, into, problem, has_heading=walk.headings > 0)
    tables = CollectedTables(into)
    frames = _frames(into, tables)
    meta = Meta(
        path=str(path),
        source="ncu-csv",
        tool="Nsight Compute",
        tool_version=(into.session.get("nsight compute target") or "").split(" ")[0] or None,
        cuda_version=into.session.get("cuda version"),
        driver_version=into.session.get("display driver version"),
        notes=tuple(_notes(into, tables)),
        warnings=tuple(_warnings(into, text.problem)),
    )
    return meta, frames


def _frames(into: CollectedValues, tables: CollectedTables) -> dict[str, pl.DataFrame]:
    profiles = profile_rows(into.launches, process_keys(into.launches))
    profiles = with_counters(profiles, tables.counters)
    return {
        "profiles": profiles,
        "counters": tables.counters,
        "counter_instances": tables.counter_instances,
        "rule_results": tables.rule_results,
        "source_files": _source_files(into),
        "devices": device_rows(profiles, tables.counters, into),
        "processes": _processes(into),
        "diagnostics": _diagnostics(into),
    }


def _processes(into: CollectedValues) -> pl.DataFrame:
    rows = process_rows(into.launches)
    if rows.height or not into.processes:
        return rows
    listed = enumerate(into.processes.items())
    return pl.DataFrame(
        [{"process": at, "pid": p, "host": 0, "name": file_name(n)} for at, (p, n) in listed]
    )


def _source_files(into: CollectedValues) -> pl.DataFrame:
    rows = [{"binary": 0, "path": p, "content": "\n".join(t)} for p, t in into.sources.items()]
    return pl.DataFrame(rows, schema={"binary": pl.Int64, "path": pl.String, "content": pl.String})


def _diagnostics(into: CollectedValues) -> pl.DataFrame:
    texts = [_without_paths(text) for text in into.messages]
    return pl.DataFrame(
        {"severity": list(into.messages.values()), "text": texts},
        schema={"severity": pl.String, "text": pl.String},
    )


def _without_paths(text: str) -> str:
    """Leave folders out of a message: they hold names of people and machines."""
    return _PATHS.sub(lambda match: re.split(r"[/\\]", match.group())[-1], text)


# What is said of the file ------------------------------------------------------------------------


def _notes(into: CollectedValues, tables: CollectedTables) -> Iterator[str]:
    yield "numbers are as precise as they were printed"
    yield from into.notes
    if tables.notation.note:
        yield tables.notation.note
    if into.averaged:
        yield f"values are averages of {format_count(into.averaged)} launches, by kernel"
    if into.without_id:
        yield "the file numbers no launches: the next value of a metric is taken as the next launch"
    if into.launches.keys()[1]:
        yield "several processes number their launches alike: they are numbered anew"
    yield from _value_notes(tables)


def _value_notes(tables: CollectedTables) -> Iterator[str]:
    labels = tables.meanings.filter(~pl.col("is_known")).get_column("metric")
    unknown = labels.cast(pl.String).unique(maintain_order=True)
    if len(unknown):
        told = ", ".join(" ".join(label.split())[:_MAX_CHARS] for label in unknown.head(_MAX_TOLD))
        more = ", …" if len(unknown) > _MAX_TOLD else ""
        yield f"labels that stand for no known metric: {format_count(len(unknown))} ({told}{more})"
    if tables.nothing:
        yield f"values that were not measured (n/a, nan or empty): {format_count(tables.nothing)}"
    if tables.conflicts:
        count = format_count(tables.conflicts)
        yield f"values given twice that differ, of which the first is used: {count}"


def _warnings(into: CollectedValues, problem: str | None) -> Iterator[str]:
    if problem:
        yield f"the file is damaged: {problem}"
    if into.unreadable:
        yield f"rows that are cut off or broken, and left out: {format_count(into.unreadable)}"


def _nothing_in(
    path: Path, into: CollectedValues, problem: str | None, *, has_heading: bool
) -> DamagedCaptureError | NotACaptureError:
    """Say why there is nothing in the file, as ncu said it where it did."""
    said = " ".join(into.messages)
    if _NO_PERMISSION in said:
        return DamagedCaptureError(
            f"{path} holds no launches",
            why="ncu had no permission to read the GPU's counters",
            hint="run ncu as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0",
        )
    if _NO_KERNELS in said:
        return DamagedCaptureError(
            f"{path} holds no launches",
            why="ncu profiled no kernels",
            hint="check its filters (-k, --launch-skip, --nvtx-include) and what the program runs",
        )
    if into.notes:
        return NotACaptureError(
            f"{path} holds code, but nothing that was measured",
            hint="print that with: ncu --import REPORT.ncu-rep --csv --page raw",
        )
    if problem or into.unreadable:
        why = problem or "its rows are cut off or broken"
        return DamagedCaptureError(f"{path} cannot be read", why=why, hint=_HINT)
    if has_heading:
        return DamagedCaptureError(
            f"{path} holds no launches", why="its table has no rows", hint=_HINT
        )
    return NotACaptureError(f"{path} holds no table of Nsight Compute", hint=_HINT)
