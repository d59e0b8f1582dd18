"""`gpusight stats`: the reports of nsys, one by one and for whole folders."""

from __future__ import annotations

import csv
import json
import shutil
from typing import TYPE_CHECKING

import pytest

from gpusight.cli.commands.stats import find_captures
from gpusight.cli.main import main
from tests.cli.captures import NAMED

if TYPE_CHECKING:
    from pathlib import Path

KERNELS = "cuda_gpu_kern_sum"
HEADER = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name"


def test_csv_is_that_of_nsys(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "-r", KERNELS, "--format", "csv", train]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == HEADER
    first = next(csv.reader(lines[1:2]))
    assert first[0].count(".") == 1
    assert first[1].isdigit()


def test_older_names_are_understood(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for name in (KERNELS, "gpukernsum"):
        assert main(["stats", "-r", name, "--format", "csv", train]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_default_reports_have_headings(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", train]) == 0
    out, err = capsys.readouterr()
    assert " ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):" in out
    assert " ** NVTX Range Summary (nvtx_sum):" in out
    assert "osrt_sum" in err
    assert max(map(len, out.splitlines())) <= 80


def test_column_is_the_layout_of_nsys(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "-r", KERNELS, "--format", "column", train]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith(" Time (%)  Total Time (ns)  Instances")
    assert lines[3].startswith(" --------  ---------------  ---------")
    assert lines[4].split()[1].count(",") == 2


@pytest.mark.parametrize("form", ["tsv", "markdown"])
def test_other_formats(form: str, train: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "-r", KERNELS, "--format", form, train]) == 0
    out = capsys.readouterr().out
    assert ("\t" if form == "tsv" else "| ---: |") in out


def test_json_holds_all_reports(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "-r", f"{KERNELS},osrt_sum", "--format", "json", train]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [r["status"] for r in document["meta"]["reports"]] == ["written", "no data"]
    assert {row["report"] for row in document["rows"]} == {KERNELS}
    assert document["rows"][0]["Total Time (ns)"] > 0


def test_a_report_without_data_is_said(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "-r", "osrt_sum", train]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "OS Runtime trace data" in err


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "--list"]) == 0
    assert KERNELS in capsys.readouterr().out


def test_prefix(train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prefix = str(tmp_path / "run")
    assert main(["stats", "-r", KERNELS, "--format", "csv", "-o", prefix, train]) == 0
    assert (tmp_path / f"run_{KERNELS}.csv").read_text().startswith(HEADER)
    assert "written" in capsys.readouterr().out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    captures = tmp_path / "captures"
    captures.mkdir()
    shutil.copy(NAMED["forward"], captures / "run.sqlite")
    shutil.copy(NAMED["graph"], captures / "graph.sqlite")
    (captures / "broken.nsys-rep").write_bytes(b"not a report")
    (captures / "notes.txt").write_text("not a capture")
    return captures


def test_a_folder_writes_everything_and_skips_nothing_silently(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "reports"
    assert main(["stats", str(folder), "-r", KERNELS, "--output", str(out)]) == 2
    written = {p.name for p in out.iterdir()}
    assert written == {f"run.{KERNELS}.csv", f"run.{KERNELS}.txt", "summary.csv", "summary.txt"}
    rows = list(csv.DictReader((out / "summary.csv").read_text().splitlines()))
    assert {row["capture"]: row["status"] for row in rows} == {
        "broken": "failed",
        "graph": "no data",
        "run": "written",
    }
    assert all(row["detail"] for row in rows if row["status"] != "written")
    assert "Reports: 1 written, 1 no data, 1 failed" in capsys.readouterr().out


def test_a_readable_folder_is_exit_code_0(folder: Path, tmp_path: Path) -> None:
    (folder / "broken.nsys-rep").unlink()
    assert main(["stats", str(folder), "-o", str(tmp_path / "r"), "--format", "json"]) == 0


def test_several_captures_on_the_screen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "-r", KERNELS, str(folder)]) == 2
    out, err = capsys.readouterr()
    assert out.count("Processing [") == 3
    assert "broken" in err
    assert "graph" in err


def test_captures_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = []
    for name in ("a/run.sqlite", "a/run.nsys-rep", "b/run.sqlite"):
        paths.append(tmp_path / name)
        paths[-1].parent.mkdir(exist_ok=True)
        paths[-1].touch()
    assert list(find_captures(paths[:2])) == ["run.sqlite", "run.nsys-rep"]
    assert list(find_captures(paths)) == ["a_run.sqlite", "a_run.nsys-rep", "b_run.sqlite"]
    assert len(find_captures([paths[0], paths[0]])) == 2


@pytest.mark.parametrize("output", ["", "/reports/", "/prefix"])
def test_nothing_is_written_into_a_capture_that_is_a_folder(
    output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = tmp_path / "export_parquetdir"
    capture.mkdir()
    (capture / "StringIds.parquet").touch()
    assert main(["stats", str(capture), "-o", f"{capture}{output}"]) == 2
    assert "is the capture itself" in capsys.readouterr().err
    assert [p.name for p in capture.iterdir()] == ["StringIds.parquet"]
