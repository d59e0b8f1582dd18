"""What `ncu` printed, as a source of tables: CSV in all its layouts, and pages of text."""

from __future__ import annotations

import codecs
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.errors import DamagedCaptureError, NotACaptureError
from gpusight.readers.file_blocks import FileBlocks
from gpusight.readers.ncu.counter_values import plausible_duration
from gpusight.readers.ncu.report_messages import device_row
from gpusight.readers.ncu.text_launches import process_rows, profile_rows
from gpusight.readers.ncu.text_metrics import CollectedTables, CollectedValues
from gpusight.readers.ncu.text_pages import PrintedFile
from gpusight.readers.ncu.text_rows import MAX_COLUMNS
from gpusight.readers.tables import FrameSource, file_name
from gpusight.trace.trace import Meta
from gpusight.units import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from gpusight.trace.trace import TraceSource


_CHUNK_BYTES = 8 << 20
_MAX_LINE_BYTES = 64 << 20
"""A longer line is no line: the widest tables known have rows of a few hundred kilobytes."""
_SAMPLE_BYTES = 512
_BLANK_LINES = re.compile(rb"\n{8,}")
_UTF_16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


class PrintedText:
    """Chunks of a file's text; `problem` is, at the end, why there are no more than these."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.problem: str | None = None

    def __iter__(self) -> Iterator[bytes]:
        """Yield chunks of complete lines; only the last may lack its line feed."""
        blocks = FileBlocks(self._path)
        pending: list[bytes] = []
        size = 0
        for block in self._until_zero(_unix_lines(_utf8(blocks))):
            pending.append(block)
            size += len(block)
            if size < _CHUNK_BYTES:
                continue
            lines, _, rest = b"".join(pending).rpartition(b"\n")
            if lines:
                yield lines + b"\n"
            elif size > _MAX_LINE_BYTES:
                raise DamagedCaptureError(
                    f"{self._path} cannot be read",
                    why=f"it has a line of more than {_MAX_LINE_BYTES >> 20} MB",
                    hint="export it again with: ncu --import FILE --csv",
                )
            pending, size = [rest], len(rest)
        self.problem = self.problem or blocks.problem
        if size:
            yield b"".join(pending)

    def _until_zero(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Stop at a zero byte: no text has one, but files that were not completely written do."""
        for block in blocks:
            before, zero, _ = block.partition(b"\0")
            yield before
            if zero:
                self.problem = "it contains zero bytes; data after the first one was skipped"
                return


def _utf8(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Convert UTF-16, which PowerShell writes, to UTF-8; drop the byte order mark."""
    decoder: codecs.IncrementalDecoder | None = None
    for number, block in enumerate(blocks):
        text = block
        if number == 0:
            code = _wide_code(block)
            decoder = codecs.getincrementaldecoder(code)("replace") if code else None
            text = block if decoder else block.removeprefix(codecs.BOM_UTF8)
        if decoder is None:
            yield text
        else:
            yield decoder.decode(text).removeprefix("\ufeff").encode()


def _wide_code(head: bytes) -> str | None:
    """Recognize UTF-16 by its mark, or by the zeros in every other byte of plain letters."""
    marked = next((code for mark, code in _UTF_16.items() if head.startswith(mark)), None)
    sample = head[:_SAMPLE_BYTES]
    if marked or len(sample) < 2:
        return marked
    if not any(sample[::2]):
        return "utf-16-be"
    return None if any(sample[1::2]) else "utf-16-le"


def _unix_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """End lines by a line feed alone; a carriage return, as progress bars write, ends one too."""
    carry = b""
    for block in blocks:
        text = carry + block
        carry = b"\r" if text.endswith(b"\r") else b""
        text = text[: len(text) - len(carry)]
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in text else text
        # A blank line costs time too, and one is as good as many.
        yield _BLANK_LINES.sub(b"\n\n", text) if b"\n" * 8 in text else text
    if carry:
        yield b"\n"


_INTEGER = re.compile(r"\d{1,18}")
_ATTRIBUTE = "device__attribute_"
_SM_COUNT = ("multiprocessor_count", "launch__sm_count")
_MAJOR, _MINOR = "compute_capability_major", "compute_capability_minor"
_OF_LAUNCH = {
    "duration_ns": "gpu__time_duration.sum",
    "device": f"{_ATTRIBUTE}device_index",
    "compute_major": f"{_ATTRIBUTE}{_MAJOR}",
    "compute_minor": f"{_ATTRIBUTE}{_MINOR}",
}
"""Columns of `profiles` that counters fill where the launch's own lines do not."""
_NO_KERNELS = "No kernels were profiled"
_NO_PERMISSION = "ERR_NVGPUCTRPERM"
_PATHS = re.compile(r"(?:[A-Za-z]:)?(?:[/\\][^\s/\\'\"()]+){2,}")
_HINT = "export it again with: ncu --import REPORT.ncu-rep --csv --page raw"
_MAX_LABELS, _MAX_LABEL_CHARS = 3, 60
_TOO_WIDE = f"it has a line of more than {format_count(MAX_COLUMNS)} cells"


def ncu_csv_source(path: Path) -> TraceSource:
    """Open what ncu printed; it is read when the first table is needed."""
    return FrameSource(partial(_read, path))


def _read(path: Path) -> tuple[Meta, dict[str, pl.DataFrame]]:
    text, collected = PrintedText(path), CollectedValues()
    printed = PrintedFile(collected)
    for chunk in text:
        printed.read(chunk)
    printed.finish()
    if not collected.launches.rows and not collected.devices and not collected.sources:
        problem = text.problem or (_TOO_WIDE if printed.is_too_wide else None)
        raise _nothing_in(path, collected, problem, has_heading=printed.headings > 0)
    tables = CollectedTables(collected)
    frames = _frames(collected, tables)
    session = collected.session
    warnings = [f"the file is damaged: {text.problem}"] if text.problem else []
    if collected.unreadable:
        unreadable = format_count(collected.unreadable)
        warnings.append(f"truncated or broken rows, skipped: {unreadable}")
    meta = Meta(
        path=str(path),
        source="ncu-csv",
        tool="Nsight Compute",
        tool_version=(session.get("nsight compute target") or "").split(" ")[0] or None,
        cuda_version=session.get("cuda version"),
        driver_version=session.get("display driver version"),
        notes=tuple(_notes(collected, tables)),
        warnings=tuple(warnings),
    )
    return meta, frames


def _frames(collected: CollectedValues, tables: CollectedTables) -> dict[str, pl.DataFrame]:
    profiles = _with_counters(profile_rows(collected.launches), tables.counters)
    processes = process_rows(collected.launches) or [
        {"process": number, "pid": pid, "host": 0, "name": file_name(name)}
        for number, (pid, name) in enumerate(collected.processes.items())
    ]
    # Folders in messages hold names of people and machines.
    messages = [
        {
            "severity": severity,
            "text": _PATHS.sub(lambda path: re.split(r"[/\\]", path.group())[-1], text),
        }
        for text, severity in collected.messages.items()
    ]
    sources = [
        {"binary": 0, "path": path, "content": "\n".join(lines)}
        for path, lines in collected.sources.items()
    ]
    return {
        "profiles": profiles,
        "counters": tables.counters,
        "counter_instances": tables.counter_instances,
        "rule_results": tables.rule_results,
        "source_files": pl.DataFrame(sources),
        "devices": _devices(profiles, tables.counters, collected),
        "processes": pl.DataFrame(processes, infer_schema_length=None),
        "diagnostics": pl.DataFrame(messages),
    }


def _with_counters(profiles: pl.DataFrame, counters: pl.DataFrame) -> pl.DataFrame:
    """Fill in what only the counters say of launches: duration, GPU and compute capability."""
    profiles = profiles.with_columns(duration_ns=pl.lit(None, pl.Float64))
    for column, metric in _OF_LAUNCH.items():
        values = _of_metrics(counters, metric.__eq__).select("launch", counter="value")
        rows = profiles.join(values, on="launch", how="left", maintain_order="left")
        counter = pl.col("counter").cast(rows.schema[column], strict=False)
        profiles = rows.with_columns(pl.coalesce(column, counter).alias(column)).drop("counter")
    return profiles.with_columns(plausible_duration(pl.col("duration_ns")))


def _devices(
    profiles: pl.DataFrame, counters: pl.DataFrame, collected: CollectedValues
) -> pl.DataFrame:
    """Describe the GPUs by their attributes, or only by the compute capability."""
    devices: dict[int, dict[str, Any]] = {
        number: {k: int(v) if _INTEGER.fullmatch(v) else v for k, v in attributes.items()}
        for number, attributes in collected.devices.items()
    }
    launches = profiles.with_columns(pl.col("device").fill_null(0)).with_row_index("row")
    first = launches.unique("device", keep="first", maintain_order=True)
    columns = ("device", "row", "launch", "compute_major", "compute_minor")
    for device, row, launch, major, minor in first.select(columns).iter_rows():
        attributes = devices.setdefault(device, {})
        attributes |= {_MAJOR: major, _MINOR: minor} if major is not None else {}
        attributes |= _attributes(counters.filter(pl.col("launch") == launch))
        attributes.setdefault("display_name", collected.launches.rows[row].get("device_name"))
    rows = [device_row(n, own) for n, own in sorted(devices.items()) if any(own.values())]
    return pl.DataFrame(rows, infer_schema_length=None)


def _attributes(counters: pl.DataFrame) -> dict[str, Any]:
    rows = _of_metrics(counters, lambda metric: metric.startswith(_ATTRIBUTE))
    attributes = {
        metric.removeprefix(_ATTRIBUTE): text if value is None else value
        for metric, value, text in rows.select("metric", "value", "text").iter_rows()
    }
    attribute, metric = _SM_COUNT
    sms = _of_metrics(counters, metric.__eq__).get_column("value")
    return attributes if sms.is_empty() else {attribute: sms.item(0), **attributes}


def _of_metrics(counters: pl.DataFrame, is_wanted: Callable[[str], bool]) -> pl.DataFrame:
    """Return the rows of some metrics."""
    metrics = counters.get_column("metric")
    assert isinstance(metrics.dtype, pl.Enum)
    names = [name for name in metrics.dtype.categories if is_wanted(name)]
    return counters.filter(metrics.is_in(names))


# Notes and errors --------------------------------------------------------------------------------


def _notes(collected: CollectedValues, tables: CollectedTables) -> Iterator[str]:
    yield "numbers have the precision of the printed text"
    yield from collected.notes
    if tables.notation.note:
        yield tables.notation.note
    if collected.averaged:
        yield f"values are averages of {format_count(collected.averaged)} launches, by kernel"
    if collected.without_id:
        yield "launches are not numbered: the next value of a metric counts as the next launch"
    if collected.launches.keys()[1]:
        yield "several processes use the same launch numbers: launches are renumbered"
    labels = tables.meanings.filter(~pl.col("is_known")).get_column("metric")
    unknown = labels.cast(pl.String).unique(maintain_order=True)
    if len(unknown):
        first = [" ".join(label.split())[:_MAX_LABEL_CHARS] for label in unknown.head(_MAX_LABELS)]
        listed = ", ".join(first) + (", …" if len(unknown) > _MAX_LABELS else "")
        yield f"labels of unknown metrics: {format_count(len(unknown))} ({listed})"
    if tables.missing:
        yield f"missing values (n/a, nan or empty): {format_count(tables.missing)}"
    if tables.conflicts:
        count = format_count(tables.conflicts)
        yield f"values given twice that differ (the first is used): {count}"


def _nothing_in(
    path: Path, collected: CollectedValues, problem: str | None, *, has_heading: bool
) -> DamagedCaptureError | NotACaptureError:
    """Return an error with the reason why there is nothing in the file, as ncu did where it did."""
    messages, what = " ".join(collected.messages), f"{path} has no launches"
    if _NO_PERMISSION in messages:
        why = "ncu had no permission to read GPU performance counters"
        hint = "run ncu as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0"
        return DamagedCaptureError(what, why=why, hint=hint)
    if _NO_KERNELS in messages:
        filters = "-k, --launch-skip, --nvtx-include"
        hint = f"check its filters ({filters}) and that the program launches kernels"
        return DamagedCaptureError(what, why="ncu profiled no kernels", hint=hint)
    if collected.notes:
        hint = "export metrics with: ncu --import REPORT.ncu-rep --csv --page raw"
        return NotACaptureError(f"{path} has source code, but no metrics", hint=hint)
    if problem or collected.unreadable:
        why = problem or "its rows are truncated or broken"
        return DamagedCaptureError(f"{path} cannot be read", why=why, hint=_HINT)
    if has_heading:
        return DamagedCaptureError(what, why="its table has no rows", hint=_HINT)
    return NotACaptureError(f"{path} has no Nsight Compute table", hint=_HINT)
