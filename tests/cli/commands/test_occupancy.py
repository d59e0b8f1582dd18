"""`gpusight occupancy` through `main`: tables, documents, pictures and mistakes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gpusight.cli.main import main
from gpusight.render.charts.figure import DotSeries, LineSeries
from gpusight.render.charts.kernel_charts import occupancy_figure
from tests.cli.captures import NAMED
from tests.shared import SHARED, needs_shared

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("one_cache")
CALCULATOR = ["occupancy", "--gpu", "A100", "--block", "256", "--regs", "64", "--shmem", "16384"]
TIMELINE = str(NAMED["forward"])


@pytest.mark.parametrize(
    "arguments", [CALCULATOR, ["occupancy", TIMELINE], ["occupancy", TIMELINE, "--kernel", "gemm"]]
)
def test_tables_fit_eighty_columns(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "Theoretical occupancy" in out
    assert max(map(len, out.splitlines())) <= 80


def test_the_calculator_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CALCULATOR, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["meta"]["theoretical"] == 0.5
    assert document["meta"]["limited_by"] == "registers"
    sizes = [r["block_threads"] for r in document["rows"] if r["section"] == "block_sizes"]
    assert sizes == list(range(32, 1025, 32))


def test_people_see_the_usual_block_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    odd = ["occupancy", "--gpu", "A100", "--block", "352"]
    for arguments, is_shown in ((CALCULATOR, False), (odd, True), ([*CALCULATOR, "--wide"], True)):
        assert main([*arguments, "--top", "0"]) == 0
        table = capsys.readouterr().out.partition("Other block sizes")[2].partition("\n\n")[0]
        assert any(line.split()[:1] == ["352"] for line in table.splitlines()) is is_shown


def test_kilobytes_are_those_of_cuda(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["occupancy", "--gpu", "sm_80", "--shmem", "48K", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["meta"]["shared_bytes"] == 49152


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "needs a capture or a GPU"),
        (["--block", "256"], "needs a capture or a GPU"),
        (["--gpu", "A100", "--block", "many"], "--block: 'many' is not a whole number from 0"),
        (["--gpu", "A100", "--block", "-5"], "--block: '-5' is not a whole number from 0"),
        (["--gpu", "A100", "--shmem", "1.5"], "such as 16384 or 16K"),
        (["--gpu", "A100", "--over", "time"], "--over: invalid choice"),
        (["--gpu", "A100", "--block", "0"], "a block cannot have 0 threads"),
        (["--gpu", "A100", "--block", "2000"], "pass a number from 1 to 1024"),
        (["--gpu", "A100", "--regs", "300"], "pass a number from 1 to 255"),
        (["--gpu", "A100", "--shmem", "200000"], "(max. 166912)"),
        (["--gpu", "RTX 4091"], "did you mean RTX 4090"),
        (["--gpu", "A100", "--kernel", "k"], "--kernel chooses from a capture"),
        (["--gpu", "A100", "--in", "step"], "--in chooses from a capture"),
        ([TIMELINE, "--regs", "3"], "--regs describes a kernel without a capture"),
        ([TIMELINE, "--kernel", "nope"], "no kernel matches 'nope'"),
        ([TIMELINE, "--gpu", "nope"], "no GPU named 'nope'"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["occupancy", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_a_capture_without_kernels(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["occupancy", graph]) == 2
    assert "no kernels" in capsys.readouterr().err


@pytest.mark.parametrize("over", ["block", "registers", "shared-memory"])
@pytest.mark.parametrize(
    ("name", "start"),
    [("o.svg", b"<svg"), ("o.html", b"<!DOCTYPE html>"), ("o.png", b"\x89PNG"), ("o.pdf", b"%PDF")],
)
def test_pictures(name: str, start: bytes, over: str, tmp_path: Path) -> None:
    path = tmp_path / name
    assert main([*CALCULATOR, "--over", over, "-o", str(path)]) == 0
    assert path.read_bytes().startswith(start)


def test_a_picture_of_the_longest_kernel(tmp_path: Path) -> None:
    path = tmp_path / "o.svg"
    assert main(["occupancy", TIMELINE, "--kernel", "gemm", "-o", str(path)]) == 0
    assert "Occupancy of gemm" in path.read_text(encoding="utf-8")


def test_a_capture_with_nothing_to_draw_leaves_no_picture(
    graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "o.png"
    assert main(["occupancy", graph, "-o", str(path)]) == 2
    assert not path.exists()
    assert "no kernels" in capsys.readouterr().err


def test_what_the_picture_shows() -> None:
    from gpusight.analysis.occupancy.block_occupancy import occupancy_of

    result = occupancy_of("A100", 256, 64, 16384)
    blocks = occupancy_figure(result)
    dots = [series for series in blocks.series if isinstance(series, DotSeries)]
    assert [series.name for series in dots] == ["limited by shared memory", "limited by registers"]
    assert sum(len(series.x) for series in dots) == 32
    (mark,) = blocks.marks
    assert (mark.x, mark.y, mark.label) == (256, 0.5, "256 threads: 50.0%")
    (stairs,) = occupancy_figure(result, "registers").series
    assert isinstance(stairs, LineSeries)
    assert (stairs.x[0], stairs.y[0]) == (0, 1.0)  # none needed, all warps fit
    assert stairs.x[-1] == 255
    at_64 = stairs.y[stairs.x.index(48)]  # from 49 to 64 registers
    assert at_64 == 0.5


@pytest.mark.shared
@needs_shared
def test_the_planted_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(SHARED / "ncu" / "kernels_full.ncu-rep.xz")
    assert main(["occupancy", path, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    kernels = {row["name"]: row for row in document["rows"] if row["section"] == "kernels"}
    limited = {name.partition("(")[0]: row["limiters"] for name, row in kernels.items()}
    assert {name for name, limit in limited.items() if limit == "registers"} == {
        "low_occupancy_regs"
    }
    assert {name for name, limit in limited.items() if limit == "shared memory"} == {
        "low_occupancy_smem"
    }
    assert all(row["theoretical"] == row["reported"] for row in kernels.values())
    assert document["meta"]["launches"] == 24
    # The nearest change, and the one that `explain` estimates with: its code has both.
    advice = [row["advice"] for row in document["rows"] if row["section"] == "advice"]
    assert [text for text in advice if text.startswith("registers")] == [
        "registers 249 -> 168",
        "registers 249 -> 64",
    ]
    assert [text for text in advice if text.startswith("shared")] == [
        "shared 163,840 -> 115,712 B",
        "shared 163,840 -> 28,160 B",
    ]
