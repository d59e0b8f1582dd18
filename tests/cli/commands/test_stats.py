"""`gpusight stats`: the reports of nsys, one by one and for whole folders."""

from __future__ import annotations

import csv
import io
import json
import shutil
from typing import TYPE_CHECKING

import pytest

import gpusight as gs
from gpusight.analysis.nsys_stats.stats_reports import StatsReport, run_report
from gpusight.cli.capture_input import open_capture
from gpusight.cli.main import main
from gpusight.cli.stats_answers import find_captures
from gpusight.render.stats_tables import stats_as_printed
from tests.cli.captures import NAMED
from tests.readers.nsys.test_export_folder import raw_tables, write_folder

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from gpusight.trace.trace import Trace

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


def test_json_in_the_shape_of_nsys(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["stats", "-q", "-r", "cuda_gpu_kern_sum", train, "-f"]
    assert main([*words, "nsys-json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert main([*words, "csv"]) == 0
    headings, first, *others = csv.reader(io.StringIO(capsys.readouterr().out))
    assert list(rows[0]) == headings
    assert [str(value) for value in rows[0].values()] == first
    assert isinstance(rows[0]["Instances"], int)
    assert len(rows) == 1 + len(others)


def test_a_filter_of_time_names_what_has_one(
    train: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stats", "--filter-time", "1s/2s", train]) == 2
    assert "take --window 1s-2s" in capsys.readouterr().err


def test_json_holds_all_reports(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "-r", f"{KERNELS},osrt_sum", "--format", "json", train]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [r["status"] for r in document["meta"]["reports"]] == ["written", "no data"]
    assert {row["report"] for row in document["rows"]} == {KERNELS}
    assert document["rows"][0]["Total Time (ns)"] > 0


def test_kernels_of_the_table_have_the_names_of_the_command_kernels(
    train: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with gs.open(train) as trace:
        frame = gs.kernels(trace, window=(None, None)).frame
        expected = dict(frame.select("name", "short_name").iter_rows())
        assert len(set(expected.values())) == len(expected)
        for name in (KERNELS, "cuda_gpu_sum", "cuda_gpu_trace"):
            report = run_report(trace, name)
            assert isinstance(report, StatsReport)
            rows = stats_as_printed(report).frame.select("name", "short_name").rows()
            assert {n: short for n, short in rows if n in expected} == expected
            assert all(n == short for n, short in rows if n not in expected)
    assert main(["stats", "-r", KERNELS, train]) == 0
    assert frame["name"][0] not in capsys.readouterr().out
    assert main(["stats", "-r", KERNELS, "--full-names", train]) == 0
    assert frame["name"][0] in capsys.readouterr().out


def test_names_that_were_asked_for_are_not_shortened(
    train: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = []
    for report in (KERNELS, f"{KERNELS}:mangled"):
        assert main(["stats", "-r", report, "--wide", train]) == 0
        outputs.append(capsys.readouterr().out)
    assert "_Z" in outputs[1]
    assert "_Z" not in outputs[0]


@pytest.mark.parametrize(
    ("words", "unit", "decimals"),
    [
        (("us", "usec", "micro"), "us", 3),
        (("ms", "milliseconds"), "ms", 4),
        (("s", "sec"), "s", 5),
    ],
)
def test_time_units(
    words: tuple[str, ...],
    unit: str,
    decimals: int,
    train: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["stats", "-r", KERNELS, "-f", "csv", train]) == 0
    in_ns = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    scale = {"us": 1e3, "ms": 1e6, "s": 1e9}[unit]
    for word in words:
        assert main(["stats", "-r", KERNELS, "-f", "csv", "--timeunit", word, train]) == 0
        out = capsys.readouterr().out
        assert out.splitlines()[0] == HEADER.replace("(ns)", f"({unit})")
        for row, ns in zip(csv.DictReader(out.splitlines()), in_ns, strict=True):
            assert row["Instances"] == ns["Instances"]
            for name in ("Total Time", "Avg", "Max"):
                value = f"{float(ns[f'{name} (ns)']) / scale:.{decimals}f}"
                assert row[f"{name} ({unit})"] == value


@pytest.mark.parametrize("word", ["m", "", "minutes"])
def test_units_that_are_none_or_several(word: str, train: str) -> None:
    assert main(["stats", "--timeunit", word, train]) == 2


def test_reports_formats_and_outputs_are_paired(
    train: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capture = tmp_path / "captures" / "run.sqlite"
    capture.parent.mkdir()
    shutil.copy(train, capture)
    monkeypatch.chdir(tmp_path)
    reports = f"cuda_gpu_trace,{KERNELS},cuda_api_sum"
    words = ["-r", reports, "-f", "csv", "-f", "column", "-o", ".,-"]
    assert main(["stats", *words, str(capture)]) == 0
    assert (tmp_path / "run_cuda_gpu_trace.csv").read_text().startswith("Start (ns),")
    assert list(capture.parent.iterdir()) == [capture]
    out = capsys.readouterr().out
    assert out.count(" ** ") == 2
    assert KERNELS in out
    assert " --------  ---------------  ---------" in out
    prefix = tmp_path / "a"
    assert (
        main(["stats", "-r", f"{KERNELS},{KERNELS}", "-f", ".,json", "-o", str(prefix), train]) == 0
    )
    assert (tmp_path / f"a_{KERNELS}.csv").read_text().startswith(HEADER)
    assert json.loads((tmp_path / f"a_{KERNELS}.json").read_text())["rows"]


def test_a_report_is_piped_into_a_command(
    train: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy.csv"
    words = ["-r", KERNELS, "-o", f"@tee {copy}"]
    assert main(["stats", *words, train]) == 0
    assert capfd.readouterr().out.startswith(HEADER)
    assert copy.read_text().startswith(HEADER)


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("@no-such-command", "no-such-command cannot be run"),
        ("@false", "false failed: exit code 1"),
        ("@", "no command follows @"),
    ],
)
def test_a_command_that_fails(
    output: str, problem: str, train: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stats", "-r", KERNELS, "-o", output, train]) == 2
    assert problem in capsys.readouterr().err


def test_a_folder_is_the_only_output(
    train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stats", train, "-o", f"{tmp_path}/,-"]) == 2
    assert "must be the only output" in capsys.readouterr().err
    assert main(["stats", train, train, "-o", f"{tmp_path / 'a'},-"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_the_cache_is_not_used_on_request(train: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    def opened(path: str, args: argparse.Namespace) -> Trace:
        used.append(not args.no_cache)
        return open_capture(path, args)

    monkeypatch.setattr("gpusight.cli.stats_answers.open_capture", opened)
    for value in ("true", "false"):
        assert main(["stats", "-r", KERNELS, "--force-export", value, train]) == 0
    assert used == [False, True]


def test_json_has_times_in_the_unit_too(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {}
    for unit in ("ns", "ms"):
        assert main(["stats", "-r", KERNELS, "-f", "json", "--timeunit", unit, train]) == 0
        rows[unit] = json.loads(capsys.readouterr().out)["rows"][0]
    expected = rows["ns"]["Total Time (ns)"] / 1e6
    assert rows["ms"]["Total Time (ms)"] == pytest.approx(expected)


def test_help_on_reports_and_formats(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "--help-reports"]) == 0
    assert KERNELS in capsys.readouterr().out
    assert main(["stats", "--help-reports", "gpukernsum"]) == 0
    described = capsys.readouterr().out
    assert described.startswith(f"{KERNELS}[:nvtx-name]")
    assert HEADER.replace(",", ", ") in described
    assert main(["stats", "--help-reports", "ALL"]) == 0
    assert described in capsys.readouterr().out
    assert main(["stats", "--help-formats"]) == 0
    assert ".md" in capsys.readouterr().out
    assert main(["stats", "--help-formats", "tsv"]) == 0
    assert capsys.readouterr().out.startswith("tsv\n")
    assert main(["stats", "--help-formats", "nothing"]) == 2


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


def test_a_capture_that_is_a_folder_is_one_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An output is a prefix for it as well, and dots in its name are no suffix."""
    capture = tmp_path / "run.2025.3_parquetdir"
    write_folder(raw_tables(NAMED["forward"]), capture, "parquet")
    prefix = str(tmp_path / "own")
    assert main(["stats", "-r", KERNELS, "--format", "csv", "-o", prefix, str(capture)]) == 0
    assert (tmp_path / f"own_{KERNELS}.csv").read_text().startswith(HEADER)
    assert list(find_captures([capture])) == [capture.name]
    capsys.readouterr()


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
