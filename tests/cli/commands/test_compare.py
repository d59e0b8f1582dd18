"""`gpusight compare` through `main`: sides, forms, refusals, and the captures that it is for."""

from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpusight.cli.main import main
from tests.profiled_loops import profiled_loop, write_torch
from tests.shared import DATA, REPOSITORY, SHARED, needs_shared

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN = str(DATA / "dataload.sqlite")
OTHER = str(DATA / "healthy.json.gz")
"""As users have it: most tests see recorded times."""


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run it; gives what it wrote to standard output."""
    assert main(["compare", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def in_one_line(text: str) -> str:
    """Join commands that were broken with backslashes."""
    return text.replace(" \\\n  ", " ")


def test_a_capture_against_itself_is_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    out = output_of(capsys, RUN, RUN)
    assert max(map(len, out.splitlines())) <= 80
    *lines, last = in_one_line(out).splitlines()
    assert any(
        line.startswith("Step time is unchanged") or ": not significant" in line for line in lines
    )
    assert last == f"next: gpusight compare {RUN} {RUN} --details"
    *lines, last = output_of(capsys, RUN, RUN, "--details").splitlines()
    step = next(line for line in lines if line.startswith("Step time  "))
    assert "same" in step or "unclear" in step
    assert max(map(len, lines)) <= 80
    assert last == f"next: gpusight diagnose {RUN}"


def test_the_next_command_keeps_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    out = output_of(capsys, RUN, "--vs", RUN, "--steps", "1-2", "--device", "0")
    assert in_one_line(out).endswith(
        f"next: gpusight compare {RUN} --vs {RUN} --device=0 --steps=1-2 --details\n"
    )


def test_forms_tell_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(output_of(capsys, RUN, OTHER, "--format", "json"))
    rows = list(csv.DictReader(io.StringIO(output_of(capsys, RUN, OTHER, "--format", "csv"))))
    step = rows[0]
    assert step["name"] == "step_time"
    metric = next(item for item in document["metrics"] if item["metric"] == "step_time")
    assert float(step["before"]) == pytest.approx(metric["before"])
    assert float(step["after"]) == pytest.approx(metric["after"])
    ledger = [row for row in rows if row["section"] == "ledger"]
    assert sum(float(r["change"]) for r in ledger) == pytest.approx(float(step["change"]), rel=1e-6)
    kernels = [row for row in rows if row["section"] == "kernels"]
    assert len(kernels) == len(document["kernels"])


def test_every_key_of_the_document_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    page = (REPOSITORY / "docs" / "json.md").read_text(encoding="utf-8")
    described = next(line for line in page.splitlines() if line.startswith("`compare`: "))
    meant = {"command", "title", "step_time", "verdict"}  # of every document, and in a path
    keys = set(_keys(json.loads(output_of(capsys, RUN, OTHER, "--format", "json"))))
    assert {key for key in keys - meant if f"`{key}`" not in described} == set()


def _keys(value: Any) -> Iterator[str]:
    for key, item in value.items() if isinstance(value, dict) else ():
        yield key
        yield from _keys(item)
    for item in value if isinstance(value, list) else ():
        yield from _keys(item)


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("c.svg", b"<svg"),
        ("c.HTML", b"<!DOCTYPE html>"),
        ("c.htm", b"<!DOCTYPE html>"),
        ("c.png", b"\x89PNG"),
        ("c.pdf", b"%PDF"),
        ("c.json", b"{"),
        ("c.csv", b"section,name,unit,before"),
        ("c.md", b"## Not comparable: Step time"),
        ("c.txt", b"before  dataload.sqlite"),
    ],
)
def test_the_name_of_the_file_chooses_what_it_holds(
    name: str, start: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name.endswith(("png", "pdf")):
        pytest.importorskip("vl_convert")
    target = tmp_path / name
    assert output_of(capsys, RUN, OTHER, "--quiet", "-o", str(target)) == ""
    assert target.read_bytes().startswith(start)


def test_top_cuts_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(output_of(capsys, RUN, OTHER, "--format", "json", "--top", "1"))
    assert len(document["kernels"]) == len(document["ledger"]) == 1
    assert len(output_of(capsys, RUN, OTHER, "--format", "csv", "--top", "1").splitlines()) == 2


def test_several_captures_a_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second = str(DATA / "gpt_tiny_osrt.sqlite")
    named = {"r1.sqlite": RUN, "r2.sqlite": second, "r10.json.gz": OTHER}
    runs = [shutil.copy(run, tmp_path / name) for name, run in named.items()]
    document = json.loads(output_of(capsys, *map(str, runs), "--vs", RUN, "--format", "json"))
    assert document["meta"]["before"]["labels"] == list(named)
    assert "r1.sqlite is on both sides" in document["meta"]["notes"]
    by_glob = json.loads(output_of(capsys, str(tmp_path / "r*"), RUN, "--format", "json"))
    assert by_glob["metrics"] == document["metrics"]


@pytest.mark.usefixtures("recorded_times")
def test_options_reach_the_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--least-effect", "7%", "--confidence", "80%", "--format", "json")
    meta = json.loads(output_of(capsys, RUN, OTHER, *options))["meta"]
    assert (meta["least_effect"], meta["confidence"]) == (0.07, 0.8)
    again = str(DATA / "dataload.nsys-rep")
    out = output_of(capsys, RUN, again, "--confidence", "80%")
    assert "80% interval" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "two sides are needed; gpusight compare BEFORE AFTER"),
        ((RUN,), "two sides are needed"),
        (("--vs", RUN), "two sides are needed"),
        ((RUN, RUN, RUN), "put --vs between them"),
        ((RUN, "no_such.sqlite"), "no such file"),
        ((RUN, RUN, "--confidence", "0.95"), "not a percentage"),
        ((RUN, RUN, "--confidence", "100%"), "confidence"),
        ((RUN, RUN, "-o", RUN), "choose another name"),
        ((OTHER, RUN, "-o", RUN), "choose another name"),
        ((RUN, RUN, "-o", "picture.jpg"), "cannot write .jpg"),
        ((RUN, RUN, "--format", "png"), "png is written to a file only"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path(RUN).read_bytes()
    assert main(["compare", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert Path(RUN).read_bytes() == before


def test_a_report_of_kernels_is_no_timeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = str(next(DATA.glob("*.ncu-rep*")))
    target = tmp_path / "c.html"
    assert main(["compare", RUN, report, "-o", str(target)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert Path(report).name in err
    assert "a timeline is needed" in err
    assert not target.exists()
    assert main(["compare", RUN, report, "--format", "json"]) == 2
    assert json.loads(capsys.readouterr().out)["meta"]["not_applicable"]["reason"]


def test_a_baseline_is_a_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = str(tmp_path / "base.json")
    assert main(["baseline", "save", RUN, "-o", saved]) == 0
    capsys.readouterr()
    from_capture = json.loads(output_of(capsys, RUN, OTHER, "--format", "json"))
    from_baseline = json.loads(output_of(capsys, saved, OTHER, "--format", "json"))
    assert from_baseline["metrics"] == from_capture["metrics"]
    assert from_baseline["ledger"] == from_capture["ledger"]
    assert main(["compare", saved, OTHER, "-o", saved]) == 2


# The captures that it was made for ----------------------------------------------------------------


@needs_shared
@pytest.mark.usefixtures("recorded_times")
def test_faster_kernels_that_the_host_hides(capsys: pytest.CaptureFixture[str]) -> None:
    runs = (SHARED / "nsys" / f"gpt_small_train{end}.sqlite" for end in ("", "_bf16_fused"))
    out = output_of(capsys, *map(str, runs), "--details")
    assert max(map(len, out.splitlines()[:-1])) <= 80
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("compute/")}
    assert "-28.2" in lines["compute/matmul"]
    words = " ".join(out.split())
    assert "because the bottleneck is still the host" in words


@needs_shared
def test_noise_is_not_claimed(capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (str(SHARED / f"nsys/gpt_tiny_train{end}_r*.sqlite") for end in ("", "_tf32"))
    rows = csv.DictReader(io.StringIO(output_of(capsys, old, new, "--format", "csv")))
    verdicts = {row["name"]: row["verdict"] for row in rows if row["section"] == "metrics"}
    assert verdicts["step_time"] == "unclear"
    assert verdicts["kernel_time"] == "lower"


@needs_shared
def test_the_page_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (REPOSITORY / "docs" / "compare.md").read_text(encoding="utf-8")
    marker, _, rest = page.partition("<!-- compare ")[2].partition(" -->\n```text\n")
    shown = rest.partition("```")[0]
    monkeypatch.setenv("COLUMNS", "100")
    # Copies: answers about captures are kept, and other tests had those of recorded times.
    copies = [shutil.copy(SHARED / "nsys" / name, tmp_path) for name in marker.split()]
    out = output_of(capsys, *map(str, copies))
    assert shown
    assert out.startswith(shown), "paste what `COLUMNS=100 gpusight compare …` prints"


@pytest.mark.parametrize(("chosen", "lacking"), [("4242", "after"), ("77", "before")])
def test_a_process_of_one_side_only_is_said(
    chosen: str, lacking: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    text = gzip.decompress(write_torch(profiled_loop(), before).read_bytes()).decode()
    before.write_text(text)
    after.write_text(text.replace('"pid": 4242', '"pid": 77'))
    having, listed = ("before", "77") if lacking == "after" else ("after", "4242")
    assert main(["compare", str(before), str(after), "--process", chosen]) == 2
    err = capsys.readouterr().err
    assert f"{lacking}.json: no process '{chosen}' in the capture" in err
    assert f"only {having}.json has it" in err
    assert f"processes are: {listed};" in err
