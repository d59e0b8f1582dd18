"""What must hold for every input, whatever its bytes are.

1. Only our own error class is raised.
2. Time and memory are bounded by the size of the input.
3. The input and its folder are unchanged.
4. Tables are what the schema says: types, order, no missing required value; a ledger sums to its
   window.
5. What comes from the cache equals what comes from the file.
6. Rows that are not loaded imply a warning.
7. Text for people has no control characters.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import shutil
import sqlite3
import time
import traceback
import zlib
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

from fuzz.mutate import protobuf as pb
from fuzz.mutate.raw import edit_bytes
from gpusight.cli.main import main
from gpusight.errors import DamagedCaptureError, GpusightError
from gpusight.readers import column_cache
from gpusight.readers.guarded_source import reading
from gpusight.readers.nsys.table_mapping import PARTS
from gpusight.readers.open import open_trace
from gpusight.trace.schema import TABLES
from gpusight.trace.trace import check_table

if TYPE_CHECKING:
    import polars as pl

    from fuzz.formats import Files, Format
    from gpusight.trace.trace import Trace

PARSE, READ, FULL = "parse", "read", "full"
LEVELS = (PARSE, READ, FULL)
"""The parser alone; every table; every table, the ledger, the cache and commands."""
_FREE_S, _S_PER_MB = 4.0, 20.0
"""Processor time that any input may take, and what each megabyte adds: far above the usual."""
_FREE_BYTES, _BYTES_PER_BYTE = 300 << 20, 100
_COMMANDS = (
    "info", "summary", "steps", "ledger", "utilization", "timeline", "kernels", "ops", "launches",
    "ranges", "api", "copies", "memory", "flops", "diagnose", "whatif", "questions", "counters",
    "roofline", "occupancy", "drill", "export", "share",
)  # fmt: skip
_COMMANDS_EACH = 3
_ALLOWED_CODES = (0, 1, 2)


class Outcome(NamedTuple):
    """How an input ended."""

    kind: str
    """`ok`, or the class of the error and what it says, without names and numbers."""
    cpu_s: float
    grown_bytes: int
    """Peak of resident memory, beyond what the process had before."""


class Violation(Exception):  # noqa: N818 - a result of a check, not an error of ours
    """An input for which something does not hold."""

    def __init__(self, invariant: str, location: str, detail: str) -> None:
        self.invariant = invariant
        self.location = location
        """Where: same location, same fault."""
        self.detail = detail
        super().__init__(f"{invariant} at {location}: {detail}")

    @property
    def signature(self) -> str:
        """Name the fault."""
        return f"{self.invariant} at {self.location}"


def examine(form: Format, files: Files, folder: Path, level: str) -> Outcome:
    """Read an input at a level; raises Violation. `folder` is emptied first."""
    path = _lay_out(form, files, folder / "input")
    size = sum(map(len, files.values()))
    before, peak, began = _listing(folder / "input"), _reset_peak(), time.process_time()
    shutil.rmtree(folder / "cache", ignore_errors=True)
    try:
        with mock.patch.dict(os.environ, GPUSIGHT_CACHE_DIR=str(folder / "cache")):
            kind = _read(form, path, level)
    except GpusightError as error:
        kind = _general(error, path)
    cpu_s, grown = time.process_time() - began, _peak_bytes() - peak
    if _listing(folder / "input") != before:
        raise Violation("input unchanged", form.name, "the input or its folder was written to")
    _check_bounds(form, size, cpu_s, grown)
    return Outcome(kind, cpu_s, grown)


def _read(form: Format, path: Path, level: str) -> str:
    try:
        if not form.capture:
            form.parse(path)
        elif level == PARSE:
            with reading(path):
                form.parse(path)
        else:
            _read_capture(path, full=level == FULL)
    except (GpusightError, Violation, KeyboardInterrupt):
        raise
    except BaseException as error:
        invariant = "memory" if isinstance(error, MemoryError) else "own errors only"
        raise Violation(
            invariant, _place(error), f"{type(error).__name__}: {error}"[:300]
        ) from error
    return "ok"


def _lay_out(form: Format, files: Files, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    target = folder if form.file else folder / "export"
    target.mkdir(parents=True)
    for name, content in files.items():
        (target / name).write_bytes(content)
    return target / form.file if form.file else target


def _listing(folder: Path) -> list[tuple[str, int, int, bytes]]:
    rows = []
    for file in sorted(folder.rglob("*")):
        status = file.lstat()
        content = file.read_bytes() if file.is_file() else b""
        rows.append((file.name, status.st_mtime_ns, status.st_mode, content))
    return rows


def _reset_peak() -> int:
    """Let the peak of resident memory begin anew, where the system can; gives where it begins."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak_bytes()


def _peak_bytes() -> int:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:  # no Linux: the peak of the whole process
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) * 1024


def _check_bounds(form: Format, size: int, cpu_s: float, grown: int) -> None:
    most_s = _FREE_S + _S_PER_MB * size / 1e6
    if cpu_s > most_s:
        raise Violation("time", form.name, f"{cpu_s:.1f} s for {size:,} bytes")
    if grown > _FREE_BYTES + _BYTES_PER_BYTE * size:
        raise Violation("memory", form.name, f"{grown:,} bytes for {size:,} bytes")


def _place(error: BaseException) -> str:
    """Name the innermost line of ours that an exception came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "gpusight" in f.filename and "/fuzz/" not in f.filename] or frames
    last = ours[-1]
    return f"{type(error).__name__} in {last.filename.rpartition('gpusight/')[2]}:{last.name}"


BOUNDARY = "caught at the boundary"
"""An exception that a reader did not expect: one line for the user, and a place to look at."""
_VARYING = re.compile(r"'[^']*'|\"[^\"]*\"|[\d,.:]+|\S*/\S*")


def _general(error: GpusightError, path: Path) -> str:
    cause = error.__cause__
    if cause is not None and "--debug" in error.hint:
        return f"{BOUNDARY}: {_place(cause)}"
    text = f"{error.what.replace(str(path), 'FILE')}: {error.why}"
    return f"{type(error).__name__}: {_VARYING.sub('#', text)[:90]}"


# Captures -----------------------------------------------------------------------------------------


def _read_capture(path: Path, *, full: bool) -> None:
    with open_trace(path, cache=False) as trace:
        tables = _tables(trace)
        warnings = trace.warnings
        _check_schema(tables)
        _check_rows(trace, tables, path)
        if full:
            _check_ledger(trace)
    if full:
        _check_cache(path, tables, warnings)
        _check_commands(path)


def _tables(trace: Trace) -> dict[str, pl.DataFrame]:
    return {name: trace.table(name) for name in TABLES if trace.has(name)}


def _check_schema(tables: dict[str, pl.DataFrame]) -> None:
    try:
        for name, table in tables.items():
            check_table(name, table)
    except DamagedCaptureError as error:
        raise Violation("schema", error.what, error.why) from error


def _warned(trace: Trace) -> bool:
    return bool(trace.warnings)


def _check_rows(trace: Trace, tables: dict[str, pl.DataFrame], path: Path) -> None:
    counted = {name: trace.row_count(name) for name in TABLES}
    for name, count in counted.items():
        height = tables[name].height if name in tables else 0
        if height != count and not _warned(trace):
            raise Violation("rows", f"row_count of {name}", f"{count} counted, {height} loaded")
    for name, count in rows_in_file(path).items():
        height = tables[name].height if name in tables else 0
        if height < count and not _warned(trace):
            raise Violation("rows", name, f"{count} rows in the file, {height} loaded, no warning")


def rows_in_file(path: Path) -> dict[str, int]:
    """Count rows by means of our own; nothing where that cannot be done."""
    if path.name == "capture.sqlite":
        return _rows_of_sqlite(path)
    if path.name == "capture.json":
        return _rows_of_json(path)
    return _rows_of_ncu(path) if path.name == "capture.ncu-rep" else {}


def _rows_of_sqlite(path: Path) -> dict[str, int]:
    counts: dict[str, int] = {}
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall()
        present = {name for (name,) in tables}
        for table, parts in PARTS.items():
            if all(part.only is None for part in parts):
                raw = [part.raw for part in parts if part.raw in present]
                # Rows are those of the table, whatever a damaged index or page header counts.
                queries = [f'SELECT total(1) FROM "{name}" NOT INDEXED' for name in raw]
                counts[table] = int(
                    sum(connection.execute(query).fetchone()[0] for query in queries)
                )
    except (sqlite3.Error, UnicodeDecodeError):
        return {}
    finally:
        connection.close()
    return counts


_CATEGORIES = {
    "kernel": "kernels",
    "gpu_memcpy": "copies",
    "gpu_memset": "memsets",
    "cuda_runtime": "api_calls",
}


def _rows_of_json(path: Path) -> dict[str, int]:
    try:
        trace = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return {}
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    counts = dict.fromkeys(_CATEGORIES.values(), 0)
    for event in events if isinstance(events, list) else []:
        if isinstance(event, dict) and event.get("ph") == "X" and isinstance(event.get("cat"), str):
            table = _CATEGORIES.get(event["cat"])
            if table:
                counts[table] += 1
    return counts


def _rows_of_ncu(path: Path) -> dict[str, int]:
    try:
        blocks = pb.read_ncu_report(path.read_bytes())[1]
    except (ValueError, AssertionError):
        return {}
    last = [{f.number: f.value for f in b.header if f.number in (2, 7, 8, 9)} for b in blocks]
    counts = [count for block in last for count in block.values()]
    numbers = [n for n in counts if isinstance(n, int) and n < 1000]
    return {"profiles": sum(numbers)} if len(numbers) == len(counts) else {}


def _check_ledger(trace: Trace) -> None:
    import gpusight as gs

    try:
        document = json.loads(gs.ledger(trace).to_json())
    except GpusightError:
        return
    window = document["window"]["end_ns"] - document["window"]["start_ns"]
    for device in document["devices"]:
        total = sum(entry["ns"] for entry in device["entries"])
        if total != window or any(entry["ns"] < 0 for entry in device["entries"]):
            raise Violation("ledger", "ledger", f"{total} ns in a window of {window} ns")


def _check_cache(path: Path, tables: dict[str, pl.DataFrame], warnings: tuple[str, ...]) -> None:
    """Read through an empty cache that keeps everything, from what it kept, and when that broke."""
    with mock.patch.object(column_cache, "_MIN_CACHED_ROWS", 0):
        for state in ("empty", "filled", "damaged"):
            if state == "damaged":
                _damage_cache(Random(_content_sum(path)))
            with open_trace(path) as trace:
                cached = _tables(trace)
                others = tuple(w for w in trace.warnings if not w.startswith("cache "))
            differing = [n for n in TABLES if not _same(cached.get(n), tables.get(n))]
            if differing:
                raise Violation("cache", f"{state} cache", f"other rows: {', '.join(differing)}")
            if others != warnings:
                raise Violation(
                    "cache", f"warnings of {state} cache", f"{warnings} became {others}"
                )


def _damage_cache(rng: Random) -> None:
    files = sorted(
        file for file in Path(os.environ["GPUSIGHT_CACHE_DIR"]).rglob("*") if file.is_file()
    )
    for file in rng.sample(files, min(len(files), rng.choice((1, 3, 30)))):
        file.write_bytes(edit_bytes(rng, file.read_bytes()))


def _same(one: pl.DataFrame | None, other: pl.DataFrame | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.schema == other.schema and one.equals(other, null_equal=True)


def _check_commands(path: Path) -> None:
    rng = Random(zlib.crc32(os.fsencode(path.name)) ^ _content_sum(path))
    for command in rng.sample(_COMMANDS, _COMMANDS_EACH):
        form = rng.choice((["--format", "json"], [], [], ["--format", "markdown"]))
        run_command(
            [
                command,
                str(path),
                *_extra(command, path),
                *(form if command not in ("share", "export") else []),
            ]
        )


def _extra(command: str, path: Path) -> list[str]:
    out = path.parents[1 if path.is_file() else 2] / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    if command in ("share", "export"):
        return ["-o", str(out / ("shared" if command == "share" else "timeline.json"))]
    return []


def _content_sum(path: Path) -> int:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return zlib.crc32(b"".join(file.read_bytes() for file in files))


def run_command(argv: list[str]) -> str:
    """Run a command in this process, and check its exit code and what it prints."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv)
    if code not in _ALLOWED_CODES:
        raise Violation("exit code", f"{argv[0]} {code}", err.getvalue()[-300:])
    text = out.getvalue() + err.getvalue()
    bad = next((c for c in text.replace("\n", "") if not c.isprintable()), None)
    if bad is not None:
        at = text.index(bad)
        raise Violation("control characters", argv[0], repr(text[max(0, at - 40) : at + 20]))
    return text
