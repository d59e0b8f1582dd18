"""What `ncu` printed, as a source of tables: CSV in all its layouts, and pages of text."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import polars as pl

from gpusight.errors import DamagedCaptureError, NotACaptureError
from gpusight.model.trace import Meta
from gpusight.readers.frames import FrameSource
from gpusight.readers.ncu.printed.collected import Collected, Tables
from gpusight.readers.ncu.printed.devices import device_rows, with_counters
from gpusight.readers.ncu.printed.headings import MAX_COLUMNS
from gpusight.readers.ncu.printed.launches import (
    process_keys,
    process_rows,
    profile_rows,
)
from gpusight.readers.ncu.printed.text import Text
from gpusight.readers.ncu.printed.walk import Walk
from gpusight.readers.paths import file_name
from gpusight.units import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpusight.model.trace import TraceSource

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
    text, into = Text(path), Collected()
    walk = Walk(into)
    for piece in text:
        walk.read(piece)
    walk.finish()
    if not into.launches.rows and not into.devices and not into.sources:
        problem = text.problem or (_TOO_WIDE if walk.is_too_wide else None)
        raise _nothing_in(path, into, problem, has_heading=walk.headings > 0)
    tables = Tables(into)
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


def _frames(into: Collected, tables: Tables) -> dict[str, pl.DataFrame]:
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


def _processes(into: Collected) -> pl.DataFrame:
    rows = process_rows(into.launches)
    if rows.height or not into.processes:
        return rows
    listed = enumerate(into.processes.items())
    return pl.DataFrame(
        [{"process": at, "pid": p, "host": 0, "name": file_name(n)} for at, (p, n) in listed]
    )


def _source_files(into: Collected) -> pl.DataFrame:
    rows = [{"binary": 0, "path": p, "content": "\n".join(t)} for p, t in into.sources.items()]
    return pl.DataFrame(rows, schema={"binary": pl.Int64, "path": pl.String, "content": pl.String})


def _diagnostics(into: Collected) -> pl.DataFrame:
    texts = [_without_paths(text) for text in into.messages]
    return pl.DataFrame(
        {"severity": list(into.messages.values()), "text": texts},
        schema={"severity": pl.String, "text": pl.String},
    )


def _without_paths(text: str) -> str:
    """Leave folders out of a message: they hold names of people and machines."""
    return _PATHS.sub(lambda match: re.split(r"[/\\]", match.group())[-1], text)


# What is said of the file ------------------------------------------------------------------------


def _notes(into: Collected, tables: Tables) -> Iterator[str]:
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


def _value_notes(tables: Tables) -> Iterator[str]:
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


def _warnings(into: Collected, problem: str | None) -> Iterator[str]:
    if problem:
        yield f"the file is damaged: {problem}"
    if into.unreadable:
        yield f"rows that are cut off or broken, and left out: {format_count(into.unreadable)}"


def _nothing_in(
    path: Path, into: Collected, problem: str | None, *, has_heading: bool
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
