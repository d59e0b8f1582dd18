"""The corpus of the fuzzer: seeds are sound, inputs repeat, and what once failed stays fixed."""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl
import pytest

from fuzz import seeds
from fuzz.check import FULL, PARSE, READ, Violation, examine, rows_in_file, run_command
from fuzz.formats import FORMATS, Files
from fuzz.run import level_of, made
from gpusight.analysis.ledger.device_ledger import LedgerEntry
from gpusight.readers.column_cache import CachedSource
from gpusight.trace.schema import TABLES
from gpusight.trace.trace import Trace

SEEDS = [
    pytest.param(name, at, marks=[pytest.mark.wide] if at else [])
    for name in FORMATS
    for at in range(len(seeds.load(name)))
]
FAILURES = sorted(p for p in seeds.FAILURES.glob("*-*") if p.suffix != ".txt")


def named(name: str, files: Files) -> Files:
    """Give a file the name that inputs of its format have."""
    file = FORMATS[name].file
    return {file: next(iter(files.values()))} if file else files


@pytest.mark.parametrize(("name", "at"), SEEDS)
def test_every_seed_is_read_without_an_error(name: str, at: int, tmp_path: Path) -> None:
    files = named(name, seeds.load(name)[at])
    assert examine(FORMATS[name], files, tmp_path, FULL).kind == "ok"


@pytest.mark.parametrize("path", FAILURES, ids=lambda p: p.name)
def test_inputs_that_once_failed(path: Path, tmp_path: Path) -> None:
    name = next(n for n in sorted(FORMATS, key=len, reverse=True) if path.name.startswith(f"{n}-"))
    for level in (PARSE, READ, FULL):
        examine(FORMATS[name], named(name, seeds.files_of(path)), tmp_path, level)


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_name_makes_the_same_input(name: str) -> None:
    corpus = seeds.load(name)
    assert [made(name, f"7-{n}", corpus) for n in range(5)] == [
        made(name, f"7-{n}", corpus) for n in range(5)
    ]
    assert any(made(name, f"7-{n}", corpus) not in corpus for n in range(5))


def test_every_level_has_its_inputs() -> None:
    levels = [level_of("torch-json", number) for number in range(240)]
    assert {*levels} == {PARSE, READ, FULL}
    assert {level_of("config", number) for number in range(240)} == {PARSE}


def fails(invariant: str, folder: Path, parse: object) -> None:
    form = FORMATS["names"]._replace(parse=parse)  # type: ignore[arg-type]
    with pytest.raises(Violation) as error:
        examine(form, {"name.txt": b"x"}, folder, PARSE)
    assert error.value.invariant == invariant


def test_what_a_check_finds(tmp_path: Path) -> None:
    """Each check fails where what it checks does not hold."""
    fails("own errors only", tmp_path, lambda path: {}[path])
    fails("memory", tmp_path, lambda _: (_ for _ in ()).throw(MemoryError))
    fails("input unchanged", tmp_path, lambda path: path.write_bytes(b"y"))
    fails("input unchanged", tmp_path, lambda path: path.with_suffix(".wal").write_bytes(b""))


def test_time_beyond_the_bound_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.check._FREE_S", -1.0)
    fails("time", tmp_path, lambda path: path)


def test_memory_beyond_the_bound_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.check._FREE_BYTES", 50 << 20)
    fails("memory", tmp_path, lambda _: bytes(range(256)) * (400_000))


def test_control_characters_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.check.main", lambda _: sys.stdout.write("a\x1bb") and 0)
    with pytest.raises(Violation, match="control characters"):
        run_command(["info"])


HEALTHY = {"capture.json": (seeds.CORPUS / "torch-json" / "healthy.json").read_bytes()}


def violated(folder: Path, level: str) -> str:
    with pytest.raises(Violation) as error:
        examine(FORMATS["torch-json"], HEALTHY, folder, level)
    return error.value.invariant


def test_a_cache_that_gives_other_rows_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = CachedSource.load
    monkeypatch.setattr(CachedSource, "load", lambda *arguments: load(*arguments).reverse())
    assert violated(tmp_path, FULL) == "cache"


def test_rows_without_a_warning_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def few(trace: Trace) -> dict[str, pl.DataFrame]:
        return {name: trace.table(name).head(1) for name in TABLES if trace.has(name)}

    monkeypatch.setattr("fuzz.check._tables", few)
    assert violated(tmp_path, READ) == "rows"


def test_rows_are_counted_without_the_reader(tmp_path: Path) -> None:
    lost = HEALTHY["capture.json"].replace(b'"cat":"kernel"', b'"cat":"kernel","ph":"X"')
    assert lost != HEALTHY["capture.json"]
    path = tmp_path / "capture.json"
    path.write_bytes(lost)
    assert rows_in_file(path)["kernels"] == lost.count(b'"cat":"kernel"')


def test_a_ledger_that_does_not_sum_up_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = LedgerEntry.document
    monkeypatch.setattr(
        LedgerEntry,
        "document",
        lambda self: {**entry(self), "ns": self.ns + 1},
    )
    assert violated(tmp_path, FULL) == "ledger"
