"""Whatever a reader raises reaches the user as one line that names the capture."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gpusight.cli.main import main
from gpusight.errors import CaptureError, DamagedCaptureError, MissingDataError
from gpusight.readers.guarded_source import GuardedSource, reading
from gpusight.readers.nsys.nsys_source import NsysSource
from gpusight.readers.open import open_trace
from gpusight.trace.trace import TraceSource
from tests.shared import DATA

CAPTURE = DATA / "gpt_small_forward.sqlite"
NOT_UTF8 = b"k\xff\xfe\x80"


class Broken:
    """A source of which everything fails."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("error", "kind", "expected"),
    [
        (KeyError("start"), DamagedCaptureError, r"KeyError: 'start'"),
        (OverflowError("too big\nsecond line"), DamagedCaptureError, "too big; copy or capture"),
        (RecursionError(), DamagedCaptureError, "RecursionError; copy"),
        (pl.exceptions.PanicException("index out of bounds"), DamagedCaptureError, "out of bounds"),
        (MemoryError(), CaptureError, "not enough memory; close other programs"),
        (OSError(5, "Input/output error"), CaptureError, "Input/output error; check the disk"),
        (PermissionError(13, "Permission denied"), CaptureError, "permission denied"),
        (MissingDataError("no steps"), MissingDataError, "no steps"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_any_exception_names_the_file(
    error: BaseException, kind: type[BaseException], expected: str
) -> None:
    with pytest.raises(kind, match=expected) as raised, reading(Path("run.sqlite"), "kernels"):
        raise error
    if isinstance(raised.value, CaptureError):
        assert str(raised.value).startswith("run.sqlite cannot be read: ")
        assert raised.value.__cause__ is error
        assert "\n" not in str(raised.value)


def test_who_stops_the_program_is_obeyed() -> None:
    for error in (KeyboardInterrupt, SystemExit):
        with pytest.raises(error), reading(Path("run.sqlite")):
            raise error


def test_every_method_of_a_source_is_guarded() -> None:
    source: TraceSource = GuardedSource(Broken(ZeroDivisionError()), Path("run.sqlite"), ())
    calls = {
        "meta": lambda: source.meta,
        "outline": source.outline,
        "has": lambda: source.has("kernels"),
        "has_column": lambda: source.has_column("kernels", "name"),
        "row_count": lambda: source.row_count("kernels"),
        "load": lambda: source.load("kernels", ["name"]),
        "prepare": lambda: source.prepare(["kernels"]),
        "warnings": source.warnings,
        "close": source.close,
    }
    assert {name for name in vars(TraceSource) if not name.startswith("_")} == set(calls)
    for name, call in calls.items():
        table = "table kernels: " if name in ("has", "has_column", "row_count", "load") else ""
        with pytest.raises(DamagedCaptureError, match=f"cannot be read: {table}ZeroDivisionError"):
            call()


@pytest.mark.parametrize("cache", [True, False])
def test_an_opened_capture_is_guarded(monkeypatch: pytest.MonkeyPatch, *, cache: bool) -> None:
    def broken(*_: object) -> None:
        raise TypeError("unheard of")

    trace = open_trace(CAPTURE, cache=cache)
    monkeypatch.setattr(NsysSource, "load", broken)
    with pytest.raises(DamagedCaptureError, match="table kernels: TypeError: unheard of"):
        trace.table("kernels", ["start_ns"])


def test_debug_shows_the_traceback_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise TypeError("unheard of")

    monkeypatch.setattr(NsysSource, "load", broken)
    monkeypatch.setenv("GPUSIGHT_DEBUG", "0")
    command = ["kernels", str(CAPTURE), "--no-cache"]
    assert main(command) == 2
    plain = capsys.readouterr().err
    assert plain.count("\n") == 1
    assert "--debug shows where" in plain
    assert main([*command, "--debug"]) == 2
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "TypeError: unheard of" in shown
    assert shown.endswith(plain)


def _edited(path: Path, *statements: tuple[str, tuple[object, ...]] | str) -> Path:
    shutil.copyfile(CAPTURE, path)
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(*((statement,) if isinstance(statement, str) else statement))
        db.commit()
    return path


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("TARGET_INFO_GPU", ["name"]),
        ("TARGET_INFO_GPU", ["id", "vmId", "smCount"]),
        ("TARGET_INFO_CUDA_STREAM", ["priority", "flag"]),
        ("TARGET_INFO_CUDA_STREAM", ["processId"]),
        ("PROCESSES", ["name"]),
        ("ThreadNames", ["nameId", "priority"]),
        ("TARGET_INFO_SYSTEM_ENV", ["value"]),
    ],
)
def test_a_column_missing_from_what_describes_the_machine(
    tmp_path: Path, table: str, columns: list[str]
) -> None:
    drops = [f"ALTER TABLE {table} DROP COLUMN {column}" for column in columns]
    trace = open_trace(_edited(tmp_path / "run.sqlite", *drops), cache=False)
    trace.validate()
    assert trace.meta.tool == "Nsight Systems"
    if "name" in columns and table == "TARGET_INFO_GPU":
        assert trace.devices["name"].to_list() == ["unknown GPU"]
        assert (
            trace.devices["sm_count"].to_list() == open_trace(CAPTURE).devices["sm_count"].to_list()
        )


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("StringIds", "value"),
        ("TARGET_INFO_GPU", "name"),
        ("TARGET_INFO_GPU", "smCount"),
        ("PROCESSES", "name"),
        ("NVTX_EVENTS", "text"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "registersPerThread"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "staticSharedMemory"),
    ],
)
def test_text_that_is_not_utf8(tmp_path: Path, table: str, column: str) -> None:
    """In a column of numbers, such text once ended the process from within Polars."""
    edit = (f"UPDATE {table} SET {column} = CAST(? AS TEXT) WHERE rowid % 2 = 1", (NOT_UTF8,))
    path = _edited(tmp_path / "run.sqlite", edit)
    trace = open_trace(path, cache=False)
    for name in ("kernels", "copies", "ranges", "devices", "processes"):
        trace.table(name)
    for command in ("info", "share"):
        more = ["-o", str(tmp_path / "copy.sqlite")] if command == "share" else []
        assert main([command, str(path), *more]) == 0


def test_names_of_tables_and_columns_that_are_not_utf8(tmp_path: Path) -> None:
    path = _edited(
        tmp_path / "run.sqlite",
        "CREATE TABLE ZZTABLEZZ (ZZCOLZZ INTEGER)",
        "INSERT INTO ZZTABLEZZ VALUES (1)",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN YYCOLYY TEXT",
    )
    data = path.read_bytes()
    for plain, odd in (
        (b"ZZTABLEZZ", b"\xffZTABLEZZ"),
        (b"COLZZ", b"C\xffLZZ"),
        (b"YYCOL", b"\xc3YCOL"),
    ):
        data = data.replace(plain, odd)
    path.write_bytes(data)
    open_trace(path, cache=False).validate()
    assert main(["info", str(path)]) == 0
    assert main(["share", str(path), "--check"]) == 0


def test_more_gpus_than_any_machine_has(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    shutil.copyfile(CAPTURE, path)
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = rowid")
        database.commit()
    with pytest.raises(DamagedCaptureError, match="names more than 256 GPUs"):
        open_trace(path, cache=False).table("kernels", ["device"])
