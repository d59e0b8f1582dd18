"""Runs a golden case in this process, the same way on every machine."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import sqlite3
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from tests.goldens.cases import ROOT, captures
from tests.goldens.serving import served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GOLDENS = Path(__file__).with_name("goldens.json")
MEASURED = Path(__file__).with_name("measured.csv")
"""What `ncu --csv` would print of four kernels of the ResNet capture; the values are made up."""
_PROGRAMS = {
    "bin/nsys": "NVIDIA Nsight Systems version 2025.3.1.0",
    "bin/ncu": "Version 2025.3.1.0",
    "captures/solver": "",
}
"""Programs that print a version, and nothing else."""


_FULL_FLOAT = re.compile(r"(?<![\w.])(?=[\d.]{14})\d+\.\d+(?:[eE][+-]?\d+)?(?![\w.])")
"""A float with 13 digits or more, as `repr` writes one."""


class Outcome(NamedTuple):
    """What a case gave."""

    code: str
    """The exit code."""
    text: str
    """Standard output, standard error and every file that was written."""

    @property
    def digest(self) -> str:
        """What the fixture keeps: the exit code and a hash of the text."""
        return f"{self.code} {hashlib.sha256(self.text.encode()).hexdigest()[:16]}"


class Workplace(NamedTuple):
    """Where cases are run."""

    folder: Path
    """Has copies of the captures, fake profilers and an empty home."""
    cache: Path


@contextlib.contextmanager
def workplace(cache: Path | None = None) -> Iterator[Workplace]:
    """Make a folder to run cases in; it is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="goldens-") as name:
        folder = Path(name).resolve()
        for part in ("captures", "bin", "home"):
            (folder / part).mkdir()
        for file in (*captures(), MEASURED):
            shutil.copyfile(file, folder / "captures" / file.name)
        for place, version in _PROGRAMS.items():
            script = folder / place
            script.write_text(f'#!/bin/sh\n[ "$*" = --version ] && echo "{version}"\n')
            script.chmod(0o755)
        yield Workplace(folder, cache or folder / "cache")


def run(case: str, place: Workplace) -> Outcome:
    """Run a case."""
    here = place.folder / "captures"
    out = here / "out"
    before = _listing(here)
    out.mkdir()
    try:
        with _surroundings(place):
            code, texts = (_line if case.startswith("gpusight ") else _call)(case)
        files = [_content(file, out) for file in sorted(out.rglob("*")) if file.is_file()]
    finally:
        shutil.rmtree(out)
    assert _listing(here) == before, f"{case} changed the folder of the captures"
    return Outcome(code, stable_text("\n--\n".join([*texts, *files]), place.folder))


@contextlib.contextmanager
def _surroundings(place: Workplace) -> Iterator[None]:
    """Fix what outputs may depend on: the environment, the current folder, the time zone."""
    environment = {
        "PATH": str(place.folder / "bin"),
        "HOME": str(place.folder / "home"),
        "GPUSIGHT_CACHE_DIR": str(place.cache),
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "TZ": "UTC",
        "LC_ALL": "C.UTF-8",
    }
    before = Path.cwd()
    with mock.patch.dict(os.environ, environment, clear=True), warnings.catch_warnings():
        warnings.simplefilter("error")
        time.tzset()
        os.chdir(place.folder / "captures")
        try:
            yield
        finally:
            os.chdir(before)
    time.tzset()


def _line(case: str) -> tuple[str, list[str]]:
    from gpusight.cli.main import main

    codes, texts = [], []
    for line in case.removeprefix("gpusight ").split(" && "):
        streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2)]
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            codes.append(_exit_code(main, shlex.split(line)))
        texts += [_written(stream) for stream in streams]
    return "+".join(codes), texts


def _exit_code(main: Callable[[list[str]], int], words: list[str]) -> str:
    try:
        return str(main(words))
    except SystemExit as end:
        return str(end.code)


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return _text(stream.buffer.getvalue())


def _call(case: str) -> tuple[str, list[str]]:
    import gpusight as gs

    try:
        return "0", _parts(eval(case, {"gs": gs, "served": served}))
    except gs.GpusightError as error:
        return str(error.exit_code), [str(error)]
    except Exception as error:  # noqa: BLE001 - what the command line calls an internal error
        return "70", [repr(error)]


def _parts(result: Any) -> list[str]:
    """Write a result of the Python API as JSON, as text and as a notebook shows it."""
    if isinstance(result, (list, tuple)):
        return [part for item in result for part in _parts(item)]
    parts = []
    is_page = type(result).__name__ == "ReportView"
    if hasattr(result, "to_json") and not is_page:
        document = json.loads(result.to_json())
        parts.append(json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False))
    if hasattr(result, "_repr_html_"):
        parts.append(result._repr_html_())
    if is_page:
        parts.append(result.to_html())
    return [*parts, str(result)]


def _content(file: Path, out: Path) -> str:
    """Write out a file: a database as SQL, a table as rows, anything else as its bytes.

    Of a PDF, page and fonts: vl-convert numbers its objects in any order.
    """
    name, data = str(file.relative_to(out)), file.read_bytes()
    if data.startswith(b"SQLite"):
        with contextlib.closing(sqlite3.connect(file)) as database:
            return f"{name}\n" + "\n".join(database.iterdump())
    if data.startswith(b"PAR1"):
        import polars as pl

        frame = pl.read_parquet(file)
        return f"{name}\n{frame.schema}\n{frame.write_ndjson()}"
    if data.startswith(b"%PDF"):
        data = b"\n".join(sorted(re.findall(rb"stream\n.*?endstream", data, re.DOTALL)))
    return f"{name}\n{_text(data)}"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _listing(folder: Path) -> list[tuple[str, int, int]]:
    states = ((file.name, file.stat()) for file in folder.iterdir())
    return sorted((name, state.st_size, state.st_mtime_ns) for name, state in states)


def stable_text(text: str, folder: Path) -> str:
    """Replace what differs between machines and versions; nothing else is ever replaced.

    These are the folders of the run, of the checkout and of the Python installation, the version
    of gpusight, and the last bits of floats: processors sum in different orders.
    """
    import gpusight

    places = {str(folder): "WORK", str(ROOT): "ROOT", sys.prefix: "PREFIX"}
    for place, word in places.items():
        text = text.replace(place, word)
    version = rf"(?<![\d.]){re.escape(gpusight.__version__)}(?!\.?\d)"
    text = re.sub(version, "VERSION", text)
    return _FULL_FLOAT.sub(lambda number: f"{float(number[0]):.10g}", text)
