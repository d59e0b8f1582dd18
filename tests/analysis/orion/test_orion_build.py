"""The kernel-info file: SMs, classes, tables on the way, two files, a timeline."""

from __future__ import annotations

import csv
import io
import lzma
import math
from pathlib import Path
from typing import Any

import pytest

from gpusight.analysis.orion.orion_build import OrionFile, OrionOptions, OrionRefusal, build
from gpusight.analysis.orion.orion_launches import OrionSmLimits
from gpusight.analysis.orion.orion_rows import check, problems
from gpusight.analysis.selection import Selection
from gpusight.errors import UsageError
from gpusight.readers.open import open_trace
from gpusight.results import NotApplicable
from gpusight.trace.trace import Trace
from tests.analysis.orion.orion_reports import (
    BN,
    CONV,
    DRAM,
    GEMM,
    PER_CYCLE,
    RELU,
    SM,
    SMSP,
    TO_NHWC,
    built,
    launch,
    lines,
    operations,
    report,
    section,
    timeline,
)
from tests.shared import SHARED, needs_shared, opened
from tests.traces import build_trace


def original_sms(block: int, grid: int, registers: int, static: float) -> int:
    """State the original formulas once more, as the document does."""
    by_threads = math.ceil(2048 / block)
    by_shared = math.ceil(65536 / static) if static else by_threads
    per_warp = math.ceil(32 * registers / 256) * 256
    warps = math.floor((65536 / per_warp) / 4) * 4
    return math.ceil(grid / min(by_threads, by_shared, int(warps / math.ceil(block / 32))))


SHAPES = [(768, 1000, 32, 0), (96, 5000, 40, 4224), (1024, 10, 32, 33000), (33, 999, 255, 100)]


@pytest.mark.parametrize(("block", "grid", "registers", "static"), SHAPES)
def test_compatible_sms(block: int, grid: int, registers: int, static: int) -> None:
    counters = {
        "launch__registers_per_thread": registers,
        "launch__shared_mem_per_block_static": static,
        "launch__occupancy_limit_registers": 1,
        "launch__occupancy_limit_warps": 1,
    }
    result = built(launch(counters=counters, block=block, grid=grid), compat=True)
    assert int(lines(result)[0][3]) == original_sms(block, grid, registers, static)


def test_compatible_sms_survive_a_block_that_does_not_fit() -> None:
    result = built(
        launch(counters={"launch__registers_per_thread": 80}, block=1024, grid=7), compat=True
    )
    assert lines(result)[0][3] == "7"
    assert any("one block exceeds an SM" in note for note in result.summary.notes)


def sms(counters: dict[str, float] | None = None, limits: OrionSmLimits | None = None) -> int:
    result = built(launch(counters=counters, block=768), limits=limits or OrionSmLimits())
    return int(lines(result)[0][3])


def test_sms_are_those_of_the_real_occupancy() -> None:
    assert sms() == 500, "2 blocks of 768 threads, not 3"
    assert sms({"launch__shared_mem_per_block_dynamic": 50_000}) == 1000, "96 KiB hold one"
    assert sms({"launch__registers_per_thread": 80}) == 1000


def test_the_profilers_own_numbers_count_before_the_calculator() -> None:
    reported = {f"launch__occupancy_limit_{k}": 8.0 for k in ("warps", "blocks", "shared_mem")}
    reported["launch__occupancy_limit_registers"] = 5.0
    assert sms(reported) == 200
    assert sms(reported, OrionSmLimits(max_threads=768)) == 1000


def test_limits_may_be_given() -> None:
    assert sms(limits=OrionSmLimits(gpu="sm_75")) == 1000, "1024 threads an SM"
    assert sms(limits=OrionSmLimits(max_blocks=1)) == 1000
    with pytest.raises(UsageError, match="no GPU named 'Foo'"):
        sms(limits=OrionSmLimits(gpu="Foo"))


def test_a_gpu_that_is_not_known_must_be_named() -> None:
    unknown = report(launch(), compute_major=None, compute_minor=None)
    answer = build(unknown, OrionOptions())
    assert isinstance(answer, NotApplicable)
    assert "--gpu" in answer.hint
    assert isinstance(build(unknown, OrionOptions(limits=OrionSmLimits(gpu="A100"))), OrionFile)
    given = build(unknown, OrionOptions(limits=OrionSmLimits(max_threads=512)))
    assert isinstance(given, OrionFile)
    assert lines(given)[0][3] == "500"
    assert any("those of a V100" in note for note in given.summary.notes)


# Classes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counters", "options", "profile"),
    [
        (operations(2, 3, 100, 20e9), {}, 1),  # 205 operations a cycle over 20 bytes: 10.25
        (operations(2, 3, 100, 22e9), {}, 0),  # 9.32
        (operations(2, 3, 100, 22e9), {"threshold": 9.2}, 1),
        (operations(0, 0, 0, 20e9) | {SM: 60.0}, {}, 1),
        (operations(0, 0, 0, 20e9) | {SM: 59.9, DRAM: 60.0}, {}, 0),
        (operations(0, 0, 0, 20e9) | {SM: 59.9, DRAM: 59.9}, {}, -1),
        ({}, {}, -1),
        (operations(1, 0, 0, 0), {}, 1),
    ],
)
def test_compatible_classes(
    counters: dict[str, float], options: dict[str, Any], profile: int
) -> None:
    result = built(launch(counters=counters), compat=True, **options)
    assert int(lines(result)[0][1]) == profile


def test_what_is_not_a_number_has_no_say() -> None:
    result = built(launch(counters={SM: math.nan, DRAM: math.nan}), compat=True)
    assert lines(result)[0][1] == "-1"


def test_a_class_told_by_less_is_said() -> None:
    notes = " ".join(built(launch(counters={SM: 80.0, DRAM: 10.0})).summary.notes)
    assert "no operations are counted of one launch" in notes
    assert "--section SpeedOfLight_RooflineChart" in notes


# The tables on the way --------------------------------------------------------------------------

PROCESSED = [
    "Kernel_Name",
    "DRAM_Throughput(%)",
    "Duration(ns)",
    "Compute(SM)(%)",
    "Block",
    "Grid",
    "Registers_Per_Thread",
    "Static_shmem_per_block",
    "Number_of_threads",
    "Number_of_registers",
]


def test_tables_on_the_way() -> None:
    counters = {SM: 41.5, DRAM: 12.25, "launch__shared_mem_per_block_static": 4224}
    result = built(launch(TO_NHWC, counters), launch(CONV), compat=True)
    tables = {n: list(csv.DictReader(io.StringIO(text))) for n, text in result.tables.items()}
    assert list(tables) == [
        "output_ncu_processed.csv",
        "output_ncu_sms.csv",
        "output_ncu_sms_roofline.csv",
    ]
    first = tables["output_ncu_sms_roofline.csv"][0]
    assert list(first) == [*PROCESSED, "SM_needed", "AI(flops/bytes)", "Roofline_prof"]
    assert list(tables["output_ncu_processed.csv"][0]) == PROCESSED
    assert first["Kernel_Name"] == TO_NHWC
    assert float(first["DRAM_Throughput(%)"]) == 12.25
    assert float(first["Compute(SM)(%)"]) == 41.5
    assert (first["Number_of_threads"], first["Number_of_registers"]) == ("256000", "8192000")
    assert first["Static_shmem_per_block"] == "4224"
    assert len(tables["output_ncu_sms.csv"]) == 2, "launches are not merged here"


# Two files, and a timeline ----------------------------------------------------------------------


def test_two_exports_are_joined_by_number() -> None:
    details = report(launch(CONV, duration=31230), launch(RELU, duration=5))
    rows = [{"launch": n, "kind": "kernel", "name": name} for n, name in ((1, RELU), (0, CONV))]
    exact = [
        {"launch": n, "metric": m, "value": v}
        for n, flops in ((1, 0.0), (0, 100.0))
        for m, v in operations(0, 0, flops, 1e9).items()
    ]
    raw = build_trace(profiles=rows, counters=exact)
    result = build(details, OrionOptions(compat=True), raw=raw)
    assert isinstance(result, OrionFile)
    assert [line[1] for line in lines(result)] == ["1", "-1"]


def test_the_raw_page_has_more_digits() -> None:
    details = report(launch(counters={DRAM: 60.1}, duration=31230))
    raw = report(launch(counters={DRAM: 59.96}, duration=31232))
    result = build(details, OrionOptions(compat=True), raw=raw)
    assert isinstance(result, OrionFile)
    assert lines(result)[0][1::3] == ["-1", "31232"]


def test_exports_of_other_reports_are_refused() -> None:
    result = build(report(launch(CONV), launch(RELU)), OrionOptions(), raw=report(launch(CONV)))
    assert isinstance(result, OrionRefusal)
    assert result.table.rows() == [{"launch": 1, "first": RELU, "second": None}]
    other = build(report(launch(CONV)), OrionOptions(), raw=report(launch(BN)))
    assert isinstance(other, OrionRefusal)
    assert other.table.rows()[0]["second"] == BN


def test_a_raw_page_without_launches_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no launch was measured.*--page raw"):
        build(report(launch(CONV)), OrionOptions(), raw=timeline((CONV, 0, 1)))
    swapped = build(timeline((CONV, 0, 1)), OrionOptions(), raw=report(launch(CONV)))
    assert isinstance(swapped, NotApplicable)
    assert "no launches that were measured" in swapped.reason


def test_durations_of_the_timeline() -> None:
    nsys = timeline((RELU, 0, 3), (CONV, 10, 17), (BN, 20, 24), (RELU, 30, 32))
    kernels = (launch(CONV), launch(BN), launch(RELU))
    assert [line[4] for line in lines(built(*kernels, nsys=nsys))] == ["10", "10", "10"]
    result = built(*kernels, nsys=nsys, durations="nsys")
    assert [line[4] for line in lines(result)] == ["7", "4", "2"]
    assert any("one launch before and 0 after" in note for note in result.summary.notes)


def test_what_the_captures_lack_is_listed_and_nothing_shifts() -> None:
    nsys = timeline((CONV, 0, 7), ("extra", 10, 11), (BN, 20, 24), (GEMM, 30, 35))
    kernels = (launch(CONV), launch(BN), launch("lost"), launch(GEMM))
    result = built(*kernels, nsys=nsys, durations="nsys")
    rows = section(result.summary, "differences").rows(named=True)
    assert [(r["side"], r["position"], r["name"]) for r in rows] == [
        ("nsys", 1, "extra"),
        ("ncu", 2, "lost"),
    ]
    assert {r["why"] for r in rows} == {"no such kernel"}
    assert [line[4] for line in lines(result)] == ["7", "4", "10", "5"]
    assert any("the report's for one launch" in note for note in result.summary.notes)


def test_captures_of_two_programs_are_refused() -> None:
    result = build(report(launch(CONV)), OrionOptions(), nsys=timeline(("other", 0, 1)))
    assert isinstance(result, OrionRefusal)


def test_durations_of_the_timeline_need_one() -> None:
    with pytest.raises(UsageError, match="--nsys"):
        built(launch(), durations="nsys")
    with pytest.raises(UsageError, match="--nsys"):
        built(launch(), selection=Selection(within="start"))


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (timeline((RELU, 0, 1)), "no launches"),
        (report(launch(), kind="range"), "ranges or graphs"),
        (
            report(launch(counters={"launch__registers_per_thread": math.nan})),
            "no registers per thread",
        ),
        (report(launch(duration=math.nan), launch()), "no duration of launch 0"),
        (
            report(launch(duration=math.nan, counters={"launch__registers_per_thread": math.nan})),
            "no duration and registers per thread of any launch",
        ),
    ],
)
def test_what_cannot_be_built_says_why(trace: Trace, words: str) -> None:
    answer = build(trace, OrionOptions())
    assert isinstance(answer, NotApplicable)
    assert words in answer.reason
    assert answer.hint


def test_options_are_checked() -> None:
    with pytest.raises(UsageError, match="vision, bert, transformer"):
        OrionOptions(model_type="cnn")


# The captures of one inference ------------------------------------------------------------------

RESNET = SHARED / "ncu" / "resnet18.ncu-rep.xz"
EXPECTED_ROWS = {"Conv": 20, "BatchNorm": 20}


@needs_shared
@pytest.mark.parametrize("compat", [False, True])
def test_a_whole_inference(compat: bool) -> None:
    ncu = open_trace(RESNET, cache=False)
    nsys = opened(SHARED / "nsys" / "resnet18_infer.sqlite")
    result = build(ncu, OrionOptions(compat=compat), nsys=nsys)
    assert isinstance(result, OrionFile)
    rows = lines(result)
    names = [row[0] for row in rows]
    assert {name: names.count(name) for name in EXPECTED_ROWS} == EXPECTED_ROWS
    assert len(rows) == 68
    assert sum(float(row[4]) for row in rows) == ncu.table("profiles")["duration_ns"].sum()
    assert problems(check(result.text, "x", 68)) == 0
    assert any("114 of 114 launches" in note for note in result.summary.notes)
    assert all(s.command != "differences" for s in result.summary.sections)


@needs_shared
@pytest.mark.parametrize("name", ["resnet18", "gpt_fwd", "kernels_full"])
def test_compatible_values_are_those_of_the_formulas(name: str) -> None:
    """Compare with the formulas applied to ncu's own raw page, which is read here independently."""
    result = build(opened(SHARED / "ncu" / f"{name}.ncu-rep.xz"), OrionOptions(compat=True))
    assert isinstance(result, OrionFile)
    got = list(csv.DictReader(io.StringIO(result.tables["output_ncu_sms_roofline.csv"])))
    with lzma.open(SHARED / "ncu" / f"{name}.raw.csv.xz", "rt", encoding="utf-8") as file:
        units, *expected = csv.DictReader(file)
    assert len(got) == len(expected)
    kilo = 1e3 if units["launch__shared_mem_per_block_static"].startswith("K") else 1.0
    for ours, raw in zip(got, expected, strict=True):
        value = {
            key: float(raw[key].replace(",", ""))
            for key in raw
            if key in (SM, DRAM) or key.startswith(("launch__", SMSP, "dram__bytes.sum.per"))
            if raw[key].replace(",", "").replace(".", "").isdigit()
        }
        static = value["launch__shared_mem_per_block_static"] * kilo
        block, grid = (int(value[f"launch__{what}_size"]) for what in ("block", "grid"))
        needed = original_sms(block, grid, int(value["launch__registers_per_thread"]), static)
        assert int(ours["SM_needed"]) == needed
        fp32 = [value[f"{SMSP}{op}{PER_CYCLE}"] for op in ("fadd", "fmul", "ffma")]
        if not any(fp32):
            busy = 1 if value[SM] >= 60 else 0 if value[DRAM] >= 60 else -1
            assert int(ours["Roofline_prof"]) == busy
        else:
            assert int(ours["Roofline_prof"]) == (float(ours["AI(flops/bytes)"]) > 9.72)


@needs_shared
@pytest.mark.parametrize("name", ["resnet18", "gpt_fwd"])
def test_the_csv_pages_tell_the_same_sms_and_durations(name: str, tmp_path: Path) -> None:
    folder = SHARED / "ncu"
    pages = [tmp_path / f"{name}.{page}.csv" for page in ("details", "raw")]
    for page in pages:
        page.write_bytes(lzma.decompress((folder / f"{page.name}.xz").read_bytes()))
    details, raw = (open_trace(page, cache=False) for page in pages)
    from_csv = build(details, OrionOptions(), raw=raw)
    native = build(open_trace(folder / f"{name}.ncu-rep.xz", cache=False), OrionOptions())
    assert isinstance(from_csv, OrionFile)
    assert isinstance(native, OrionFile)
    assert [line[3:] for line in lines(from_csv)] == [line[3:] for line in lines(native)]
