"""`gpusight orion` through `main`: files, exit codes, pictures."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import gpusight as gs
from gpusight.cli.main import main
from gpusight.errors import UsageError
from tests.shared import DATA, SHARED, needs_shared

pytestmark = pytest.mark.usefixtures("one_cache")
NSYS = str(DATA / "resnet18_infer.sqlite")
REPORT = str(SHARED / "ncu" / "resnet18.ncu-rep.xz")
HEADER = "Name,Profile,Memory_footprint,SM_usage,Duration"

DETAILS = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)
KERNELS = (
    "sm80_xmma_fprop_implicit_gemm_f32_nhwckrsc_nchw_tilesize128x64_kernel__5x_cudnn",
    "void at::vectorized_elementwise_kernel<4, at::f<float>, std::array<char *, 3>>(int, T2, T3)",
)
VALUES = (
    ("GPU Speed Of Light Throughput", "DRAM Throughput", "%", "71.5"),
    ("GPU Speed Of Light Throughput", "Duration", "usecond", "5.38"),
    ("GPU Speed Of Light Throughput", "Compute (SM) Throughput", "%", "12.25"),
    ("Launch Statistics", "Block Size", "", "256"),
    ("Launch Statistics", "Grid Size", "", "5,376"),
    ("Launch Statistics", "Registers Per Thread", "register/thread", "32"),
    ("Launch Statistics", "Static Shared Memory Per Block", "byte/block", "0"),
    ("Launch Statistics", "Dynamic Shared Memory Per Block", "byte/block", "0"),
)


def details(path: Path, kernels: tuple[str, ...] = KERNELS) -> str:
    """Write what `ncu --csv --set detailed … > file` prints, chatter included."""
    lines = ["==PROF== Connected to process 6290 (/usr/bin/python3)", DETAILS]
    for number, kernel in enumerate(kernels):
        start = f'"{number}","7","python3","127.0.0.1","{kernel}","1","7","(256, 1, 1)"'
        for section, metric, unit, value in VALUES:
            what = f'"(5376, 1, 1)","0","8.0","{section}","{metric}","{unit}","{value}"'
            lines.append(f"{start},{what}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def report(tmp_path: Path) -> str:
    return details(tmp_path / "output_ncu.csv")


def test_build_from_a_csv_with_chatter_units_and_grouped_digits(
    report: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "resnet"
    assert main(["orion", "build", "--ncu", report, "--model-type", "vision", "-o", str(out)]) == 0
    assert out.read_text(encoding="utf-8").splitlines() == [
        HEADER,
        "Conv,0,0,672,5380",
        "void at::vectorized_elementwise_kernel,0,0,672,5380",
    ]
    shown = capsys.readouterr().out
    assert '"num_kernels": 2' in shown
    assert max(map(len, shown.splitlines()[:-2])) <= 80
    assert main(["orion", "check", str(out), "--num-kernels", "2"]) == 0


def test_build_to_standard_output_and_tables_on_the_way(
    report: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model-type", "bert", "--columns", "7", "-o", "-"]
    folder = tmp_path / "new" / "tables"
    assert main(["orion", "build", "--ncu", report, *arguments, "--intermediate", str(folder)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"{HEADER},Block,Grid"
    assert out[1] == "Conv,0,0,672,5380,256,5376"
    assert sorted(path.name for path in folder.iterdir()) == [
        "output_ncu_processed.csv",
        "output_ncu_sms.csv",
        "output_ncu_sms_roofline.csv",
    ]
    with (folder / "output_ncu_sms.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[1]["Kernel_Name"] == KERNELS[1]
    assert rows[1]["Number_of_threads"] == str(256 * 5376)
    assert rows[1]["SM_needed"] == "672"


def test_build_as_json(report: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model-type", "vision", "-o", str(tmp_path / "x"), "--format", "json"]
    assert main(["orion", "build", "--ncu", report, *arguments]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["meta"]["rows"] == 2
    launches = [row for row in document["rows"] if row["section"] == "launches"]
    assert [row["row"] for row in launches] == [0, 1]


def test_files_that_disagree_show_a_diff_and_write_nothing(
    report: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = details(tmp_path / "raw_ncu.csv", (KERNELS[0], "void other<1>(int)"))
    out = tmp_path / "resnet"
    arguments = ["--ncu-raw", other, "--model-type", "vision", "-o", str(out)]
    assert main(["orion", "build", "--ncu", report, *arguments]) == 2
    shown = capsys.readouterr()
    assert "void other<1>(int)" in shown.out
    assert shown.err.count("\n") == 1
    assert not out.exists()


def test_captures_are_not_written_over(
    report: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path(report).read_bytes()
    assert main(["orion", "build", "--ncu", report, "--model-type", "bert", "-o", report]) == 2
    assert "is the capture itself" in capsys.readouterr().err
    named = ["orion", "build", "--ncu", report, "--model-type", "bert", "-o"]
    assert main([*named, str(tmp_path / "x.sqlite")]) == 2
    assert main([*named, str(tmp_path / "none" / "x")]) == 2
    assert capsys.readouterr().err.count("\n") == 2
    assert Path(report).read_bytes() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["orion"],
        ["orion", "make"],
        ["orion", "build", "--ncu", NSYS],
        ["orion", "build", "--ncu", NSYS, "--model-type", "cnn", "-o", "x"],
        ["orion", "build", "--ncu", NSYS, "--model-type", "bert", "-o", "x", "--threshold", "0"],
        ["orion", "build", "--ncu", NSYS, "--model-type", "bert", "-o", "-"],
        ["orion", "plot", "--ncu", NSYS, "--nsys", NSYS],
        ["orion", "check", NSYS],
        ["orion", "check", "nothing-here"],
    ],
)
def test_mistakes_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_check_is_a_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "info"
    broken = [f"f(int, int{' ' * n}),1,0,3,12" for n in range(25)]
    path.write_text("\n".join([HEADER, "g,0,0,1,5", *broken]) + "\n", encoding="utf-8")
    assert main(["orion", "check", str(path)]) == 1
    out = capsys.readouterr().out
    assert sum("comma in the name" in line for line in out.splitlines()) == 25
    assert main(["orion", "check", str(path), "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["meta"]["sound"] is False
    assert [row["line"] for row in document["rows"]] == list(range(3, 28))
    path.write_text(f"{HEADER}\ng,0,0,1,5\n", encoding="utf-8")
    assert main(["orion", "check", "--num-kernels", "2", str(path)]) == 1


def test_python(report: str, tmp_path: Path) -> None:
    out = tmp_path / "resnet"
    page = gs.orion_build(report, model_type="vision", out=out, gpu="sm_75", columns=7)
    assert page["rows"].frame["sm_needed"].to_list() == [1344, 1344], "4 blocks of 256 threads"
    assert gs.orion_check(out).meta["sound"] is True
    other = details(tmp_path / "raw.csv", ("a(int)", "b(int)"))
    with pytest.raises(UsageError, match="do not agree on 2 launches"):
        gs.orion_build(report, model_type="vision", raw=other)
    with pytest.raises(UsageError, match="do not agree on 2 launches"):
        gs.orion_plot(report, NSYS, raw=other)


@needs_shared
@pytest.mark.parametrize(
    ("name", "start"),
    [("u.svg", b"<svg"), ("u.html", b"<!DOCTYPE html>"), ("u.png", b"\x89PNG"), ("u.pdf", b"%PDF")],
)
def test_pictures(
    name: str, start: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name.endswith(("png", "pdf")):
        pytest.importorskip("vl_convert")
    target = tmp_path / name
    assert main(["orion", "plot", "--ncu", REPORT, "--nsys", NSYS, "-o", str(target)]) == 0
    assert target.read_bytes().startswith(start)
    shown = capsys.readouterr().out
    assert "the whole sequence of the report occurs once" in shown
    assert max(map(len, shown.splitlines())) <= 80


@needs_shared
def test_the_series(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["orion", "plot", "--ncu", REPORT, "--nsys", NSYS, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    meta, rows = document["meta"], document["rows"]
    assert (meta["kernels"], meta["measured"]) == (114, 114)
    window = sum(row["end_ns"] - row["start_ns"] for row in rows)
    busy = sum((row["end_ns"] - row["start_ns"]) * (row["kernels"] > 0) for row in rows)
    assert (window, busy) == (meta["window_ns"], meta["busy_ns"])
    assert all(0 <= row[key] <= 1 for row in rows for key in ("sm_share", "memory_share"))
    area = sum((row["end_ns"] - row["start_ns"]) * row["compute_share"] for row in rows)
    assert meta["compute_share_average"] == pytest.approx(area / window)
    page = gs.orion_plot(REPORT, NSYS)
    assert page.facts["compute_share_average"] == meta["compute_share_average"]
    assert page["series"].rows() == [{k: r[k] for k in page["series"].frame.columns} for r in rows]
