from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import polars as pl
import pytest

import gpusight as gs
from gpusight.cli.main import main
from tests.cli.captures import NAMED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

READ: dict[str, Callable[[Path], pl.DataFrame]] = {
    "csv": pl.read_csv,
    "parquet": pl.read_parquet,
    "arrow": pl.read_ipc,
    "json": lambda path: pl.DataFrame(json.loads(path.read_text())["rows"]),
}


@pytest.mark.parametrize("form", sorted(READ))
def test_one_table_as_a_file(form: str, train: str, tmp_path: Path) -> None:
    out = tmp_path / f"kernels.{form}"
    assert main(["export", train, "--to", form, "--tables", "kernels", "-o", str(out)]) == 0
    frame = READ[form](out)
    assert frame.height > 1000
    assert frame["start_ns"].is_sorted()
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == [out.name]


def test_the_extension_gives_the_format(train: str, tmp_path: Path) -> None:
    out = tmp_path / "kernels.csv"
    assert main(["export", train, "--tables", "kernels", "-o", str(out)]) == 0
    assert pl.read_csv(out).height > 1000


def test_every_table_into_a_folder(
    train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tables"
    assert main(["export", train, "--to", "parquet", "-o", str(out)]) == 0
    assert {"kernels.parquet", "ranges.parquet"} <= {p.name for p in out.iterdir()}
    assert "kernels.parquet" in capsys.readouterr().out
    assert main(["export", train, "--to", "parquet", "-o", str(out)]) == 2
    assert "add --force to replace it" in capsys.readouterr().err
    assert main(["export", train, "--to", "parquet", "-o", str(out), "--force"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "csv", "-o", "many.csv"], "names one file"),
        (["-o", "many.csv"], "names one file"),
        (["-o", "folder"], "add --to csv|parquet|json|arrow|chrome"),
        (["-o", "run.json"], "add --to csv|parquet|json|arrow|chrome"),
        (["--to", "csv", "-o", "x", "--tables", "nope"], "no table 'nope'"),
        (["--to", "csv", "-o", "x", "--in", "forward"], "only a timeline"),
        (["--to", "chrome", "-o", "x.json", "--tables", "kernels"], "has no tables to choose"),
        (["--to", "chrome", "-o", "x.sqlite"], "named like a capture"),
        (["--to", "chrome", "-o", "."], "is a folder"),
    ],
)
def test_refusals(
    arguments: list[str], message: str, train: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", train, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_chrome_plain_and_compressed(train: str, tmp_path: Path) -> None:
    plain, packed = tmp_path / "t.json", tmp_path / "t.json.gz"
    assert main(["export", train, "--to", "chrome", "-o", str(plain)]) == 0
    assert main(["export", train, "--to", "chrome", "-o", str(packed)]) == 0
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert json.loads(plain.read_bytes())["traceEvents"]


@pytest.fixture
def formulas(tmp_path: Path) -> str:
    """A capture whose names are formulas."""
    path = tmp_path / "run.sqlite"
    shutil.copyfile(NAMED["forward"], path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE StringIds SET value = '=cmd|''/C calc''!A' || id")
        db.execute("UPDATE NVTX_EVENTS SET text = '@SUM(1)' WHERE text IS NOT NULL")
        db.commit()
    return str(path)


@pytest.mark.parametrize("command", ["kernels", "export", "save", "diagnose"])
def test_files_hold_no_formulas(formulas: str, tmp_path: Path, command: str) -> None:
    def written(*more: str) -> str:
        out = tmp_path / "out.csv"
        if command == "save":
            return gs.kernels(formulas).save(out).read_text(encoding="utf-8")
        chosen = ["--to", "csv", "--tables", "kernels", "--force"] if command == "export" else []
        assert main([command, formulas, *chosen, "-o", str(out), *more]) == 0
        return out.read_text(encoding="utf-8")

    cells = [cell for row in csv.reader(io.StringIO(written())) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "@", "+"))]
    if command != "diagnose":  # which names no kernel here
        assert any(cell.startswith("'=cmd|") for cell in cells)
    if command in ("kernels", "export"):
        assert ",=cmd|" in written("--csv-raw")


def test_standard_output_and_stats_are_left_as_they_are(
    formulas: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kernels", formulas, "--format", "csv"]) == 0
    assert ",=cmd|" in capsys.readouterr().out
    prefix = str(tmp_path / "x")
    stats = ["stats", formulas, "-r", "cuda_gpu_kern_sum", "--format", "csv", "-o", prefix]
    assert main(stats) == 0
    assert ",=cmd|" in (tmp_path / "x_cuda_gpu_kern_sum.csv").read_text(encoding="utf-8")
