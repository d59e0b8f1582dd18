"""`occupancy`: what kernels of a capture could have on an SM and had, and what would raise it."""

from __future__ import annotations

import lzma
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

import gpusight as gs
from gpusight.analysis.counters.launch_quantities import LaunchQuantity, measured, metric
from gpusight.analysis.occupancy.block_occupancy import (
    block_sizes,
    changes,
    gpu_limits,
    occupancy_of,
    register_steps,
    shared_steps,
)
from gpusight.analysis.occupancy.kernel_occupancy import occupancy
from gpusight.analysis.occupancy.launch_occupancy import (
    limits_of,
    profiled_launches,
    timeline_launches,
    with_answers,
)
from gpusight.analysis.selection import EVERYTHING, Selection
from gpusight.errors import MissingDataError, UsageError
from gpusight.hardware.sm_limits import LIMITS, SM_LIMITS, BlockShape, SmLimits
from gpusight.hardware.sm_limits import occupancy as work_out
from gpusight.readers.open import open_trace
from gpusight.results import Composite, NotApplicable, TableResult
from tests.shared import EVERY_TORCH_TRACE, SHARED, needs_shared, opened
from tests.traces import build_trace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpusight.trace.trace import Trace

H200 = {"name": "NVIDIA H200", "compute_major": 9, "compute_minor": 0, "sm_count": 132}
ACHIEVED = "sm__warps_active.avg.pct_of_peak_sustained_active"
REPORTED = "sm__maximum_warps_per_active_cycle_pct"
SM_BUSY = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
LAUNCH_STATS = (
    "registers_per_thread",
    "shared_mem_per_block_static",
    "shared_mem_per_block_dynamic",
)


def launch(
    name: str = "k",
    *,
    block: int = 128,
    grid: int = 4096,
    duration_ns: float | None = 1000.0,
    cc: tuple[int, int] | None = (9, 0),
    achieved: float | None = None,
    reported: float | None = None,
    busy: float | None = None,
    **metrics: float | None,
) -> dict[str, Any]:
    """Describe one measured launch; `metrics` are those of LaunchStats without their prefix."""
    known = dict(zip(LAUNCH_STATS, (32, 0, 0), strict=True)) | metrics
    known |= {ACHIEVED: achieved, REPORTED: reported, SM_BUSY: busy}
    return {
        "profile": {
            "kind": "kernel",
            "name": name,
            "grid_x": grid,
            "grid_y": 1,
            "grid_z": 1,
            "block_x": block,
            "block_y": 1,
            "block_z": 1,
            "duration_ns": duration_ns,
            "compute_major": cc[0] if cc else None,
            "compute_minor": cc[1] if cc else None,
        },
        "metrics": {
            key if "__" in key else f"launch__{key}": value
            for key, value in known.items()
            if value is not None
        },
    }


def without_launch_stats(name: str = "k") -> dict[str, Any]:
    bare = launch(name)
    return {**bare, "metrics": {}}


def report(*launches: dict[str, Any], devices: Any = (H200,)) -> Trace:
    """Make a report of these launches."""
    return build_trace(
        profiles=[{"launch": n, **each["profile"]} for n, each in enumerate(launches)],
        counters=[
            {"launch": n, "metric": metric, "value": float(value)}
            for n, each in enumerate(launches)
            for metric, value in each["metrics"].items()
        ],
        devices=list(devices),
    )


def timeline(**columns: Any) -> Trace:
    shape = {"block_x": 128, "block_y": 1, "block_z": 1, "grid_x": 4096, "grid_y": 1, "grid_z": 1}
    shape |= {"registers_per_thread": 249, "static_shared_bytes": 0, "dynamic_shared_bytes": 0}
    kernel = {"start_ns": 0, "end_ns": 1000, "name": "k", **shape, **columns}
    return build_trace(kernels=[kernel], devices=[H200])


def table_page(trace: Trace, **options: Any) -> Composite:
    result = occupancy(trace, **options)
    assert isinstance(result, Composite)
    return result


def rows(result: Composite, section: str = "kernels") -> list[dict[str, Any]]:
    table = next(s for s in result.sections if s.command == section)
    assert isinstance(table, TableResult)
    return table.rows()


def facts(result: Composite) -> Mapping[str, Any]:
    return {fact.key: fact.value for fact in result.facts}


# A report


def test_a_kernel_limited_by_registers() -> None:
    result = table_page(report(launch(registers_per_thread=249, achieved=12.4)))
    (row,) = rows(result)
    assert (row["theoretical"], row["achieved"]) == (0.125, pytest.approx(0.124))
    assert (row["blocks"], row["warps"], row["limiters"]) == (2, 8, "registers")
    limits = [row[f"limit_{name}"] for name in ("warps", "blocks", "registers", "shared_memory")]
    assert limits == [16, 32, 2, 228]
    assert row["waves"] == pytest.approx(4096 / (2 * 132))
    assert (row["change"], row["change_theoretical"]) == ("registers 249 -> 168", 0.1875)
    assert row["registers_for_more"] == 168
    assert any("spill" in note for note in result.notes)


def test_a_full_kernel_needs_no_change() -> None:
    result = table_page(report(launch(achieved=97.0)))
    (row,) = rows(result)
    assert (row["theoretical"], row["limiters"], row["change"]) == (1.0, "none", None)
    assert rows(result, "advice") == []


def test_launches_of_one_shape_are_averaged_by_time() -> None:
    trace = report(
        launch(duration_ns=3000.0, achieved=90.0),
        launch(duration_ns=1000.0, achieved=50.0),
    )
    (row,) = rows(table_page(trace))
    assert (row["calls"], row["total_ns"]) == (2, 4000)
    assert row["achieved"] == pytest.approx(0.8)


def test_launches_without_a_duration_are_averaged_plainly() -> None:
    profiled = launch(duration_ns=None, achieved=90.0)
    two = launch(duration_ns=None, achieved=50.0)
    result = table_page(report(profiled, two))
    (row,) = rows(result)
    assert (row["total_ns"], row["share"]) == (None, None)
    assert row["achieved"] == pytest.approx(0.7)
    assert facts(result)["achieved"] == pytest.approx(0.7)


def test_each_shape_of_a_kernel_has_its_row_and_time_is_summed_by_limit() -> None:
    trace = report(
        launch(duration_ns=6000.0),
        launch(duration_ns=3000.0, registers_per_thread=249),
        launch(duration_ns=1000.0, shared_mem_per_block_dynamic=163840),
    )
    result = table_page(trace)
    assert [row["limiters"] for row in rows(result)] == ["none", "registers", "shared memory"]
    assert [row["share"] for row in rows(result, "limiters")] == [0.6, 0.3, 0.1]
    assert facts(result)["theoretical"] == pytest.approx(0.6 + 0.3 * 0.125 + 0.1 * 0.0625)


def test_each_grid_of_a_kernel_has_its_row() -> None:
    full, partial = launch(grid=132 * 16 * 2), launch(grid=132 * 8)
    result = table_page(report(full, full, partial))
    listed = [(row["short_name"], row["calls"], row["grid"], row["waves"]) for row in rows(result)]
    assert listed == [("k grid 4224", 2, "4224x1x1", 2.0), ("k grid 1056", 1, "1056x1x1", 0.5)]
    remarks = {row["short_name"]: row["advice"] for row in rows(result, "advice")}
    assert "50.0% of a wave" in remarks["k grid 1056"]


@pytest.mark.parametrize(
    ("grid", "achieved", "remark"),
    [
        (4096, 97.0, None),
        (132, 6.2, "small grid: 6.2% of a wave"),
        (2112 + 200, 60.0, "tail: 1.09 waves"),
        (2112 * 8, 60.0, "short or imbalanced blocks"),
    ],
)
def test_why_less_was_achieved(grid: int, achieved: float, remark: str | None) -> None:
    (row,) = rows(table_page(report(launch(grid=grid, achieved=achieved))))
    assert row["remark"] == remark


def test_a_low_theoretical_occupancy_may_be_missed_too() -> None:
    for achieved, remark in ((12.0, None), (6.0, "short or imbalanced blocks")):
        (row,) = rows(table_page(report(launch(registers_per_thread=249, achieved=achieved))))
        assert row["remark"] == remark


def test_a_kernel_at_its_roof_gains_little() -> None:
    busy = launch(registers_per_thread=249, achieved=12.5, busy=93.0)
    (row,) = rows(table_page(report(busy)))
    assert row["remark"] == "SMs already 93.0% busy"


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("scale_rows(float*)", True),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nt_align1>(Params)", False),
        ("ampere_sgemm_128x64_tn", False),
        ("void at::native::vectorized_elementwise_kernel<4>(int)", False),
    ],
)
def test_kernels_of_libraries_get_no_advice_to_change_them(name: str, own: bool) -> None:
    result = table_page(report(launch(name=name, registers_per_thread=249, achieved=12.4)))
    changes = [row for row in rows(result, "advice") if row["kind"] == "change"]
    assert bool(changes) is own
    notes = " ".join(result.notes)
    assert ("spills" in notes) is own
    assert ("libraries and frameworks" in notes) is not own


@pytest.mark.parametrize("registers", [32, 128])
def test_a_busy_kernel_is_not_blamed_for_its_blocks(registers: int) -> None:
    grid = 132 * 16 * 8
    for busy, remark in ((93.5, "SMs already 93.5% busy"), (40.0, "short or imbalanced blocks")):
        profiled = launch(grid=grid, busy=busy, registers_per_thread=registers, achieved=15.0)
        (row,) = rows(table_page(report(profiled)))
        assert row["remark"] == remark


def test_clusters_that_leave_places_empty_are_named() -> None:
    clustered = launch(registers_per_thread=128, cluster_size=8, cluster_max_active=60)
    (row,) = rows(table_page(report(clustered)))
    assert "clusters of 8 fill 90.9%" in row["remark"]


def test_what_limits_together_is_changed_together() -> None:
    both = launch(block=384, registers_per_thread=168, shared_mem_per_block_dynamic=231424)
    result = table_page(report(both))
    (row,) = rows(result)
    assert row["limiters"] == "registers, shared memory"
    (advice,) = [r for r in rows(result, "advice") if r["kind"] == "change"]
    assert (advice["advice"], advice["after"]) == ("registers 80, shared 115712 B", 0.375)


def test_a_launch_that_cannot_run_says_why() -> None:
    (row,) = rows(table_page(report(launch(block=1024, registers_per_thread=72))))
    assert row["theoretical"] == 0
    assert "73728 registers per block (max. 65536)" in row["remark"]


def test_a_closer_look_at_one_kernel() -> None:
    trace = report(launch("gemm", registers_per_thread=249), launch("copy"))
    result = table_page(trace, kernel="ge*")
    assert [row["name"] for row in rows(result)] == ["gemm"]
    limiting = {row["limit"]: row["limiting"] for row in rows(result, "limits")}
    assert limiting["registers"]
    assert not limiting["block size"]
    assert [r["block_threads"] for r in rows(result, "block_sizes") if r["current"]] == [128]
    assert [r["registers"] for r in rows(result, "registers") if r["current"]] == [255]
    assert [r["shared_bytes"] for r in rows(result, "shared_memory") if r["current"]] == [115712]
    with pytest.raises(UsageError, match="no kernel matches 'nope'"):
        occupancy(trace, kernel="nope")


# What the report itself says


def test_the_carve_out_counts_as_the_report_counts_it() -> None:
    shape: dict[str, Any] = {"shared_mem_per_block_static": 24576, "shared_mem_config_size": 102400}
    by_config = launch(occupancy_limit_shared_mem=4, **shape)
    by_whole = launch(occupancy_limit_shared_mem=9, **shape)
    unsaid = launch(**shape)
    result = [rows(table_page(report(each)))[0] for each in (by_config, by_whole, unsaid)]
    assert [row["limit_shared_memory"] for row in result] == [4, 9, 4]


def test_sizes_that_a_printed_report_rounded_are_restored() -> None:
    printed = launch(block=1024, shared_mem_per_block_dynamic=13060, shared_mem_config_size=65540)
    exact = launch(block=1024, shared_mem_per_block_dynamic=13056, shared_mem_config_size=65536)
    a, b = (rows(table_page(report(each)))[0]["limit_shared_memory"] for each in (printed, exact))
    assert (a, b) == (4, 4)
    tiny = launch(cc=(8, 6), shared_mem_config_size=8190)
    assert rows(table_page(report(tiny)))[0]["limit_shared_memory"] == 8


def test_a_report_that_says_otherwise_is_named() -> None:
    result = table_page(report(launch(reported=50.0)))
    assert any("the report has 50.0%, computed 100.0%" in note for note in result.notes)
    agreeing = table_page(report(launch(reported=100.0)))
    assert not any("these rules" in note for note in agreeing.notes)


def test_without_registers_the_reports_own_number_stands() -> None:
    result = table_page(report(launch(registers_per_thread=None, reported=75.0)))
    (row,) = rows(result)
    assert (row["theoretical"], row["limiters"], row["change"]) == (0.75, None, None)


def test_a_launch_without_metrics_is_counted_and_named() -> None:
    bare = without_launch_stats("bare")
    result = table_page(report(launch(), bare))
    assert rows(result)[1]["theoretical"] is None
    assert any("1 of 2 launches without recorded block resources" in note for note in result.notes)


def test_a_report_without_the_section_says_which_to_collect() -> None:
    bare = without_launch_stats()
    result = occupancy(report(bare))
    assert isinstance(result, NotApplicable)
    assert "no register counts" in result.reason
    assert "--section LaunchStats" in result.hint


@pytest.mark.parametrize(
    "nonsense",
    [
        {"registers_per_thread": -1.0},
        {"registers_per_thread": float("nan")},
        {"registers_per_thread": float("inf")},
        {"shared_mem_per_block_static": -4.0},
    ],
)
def test_nonsense_in_a_report_is_not_known(nonsense: dict[str, Any]) -> None:
    result = table_page(report(launch(), launch("broken", **nonsense)))
    assert [row["theoretical"] for row in rows(result)] == [1.0, None]


@pytest.mark.parametrize("block", [0, -32, 10**9])
def test_nonsense_blocks(block: int) -> None:
    result = table_page(report(launch(), launch("broken", block=block)))
    assert [row["theoretical"] for row in rows(result)] == [1.0, 0.0 if block > 0 else None]


def test_achieved_occupancy_alone_is_shown() -> None:
    bare = without_launch_stats()
    result = table_page(report({**bare, "metrics": {ACHIEVED: 40.0}}))
    (row,) = rows(result)
    assert (row["theoretical"], row["achieved"]) == (None, pytest.approx(0.4))
    assert any("no launch has its block resources recorded" in note for note in result.notes)


def test_a_gpu_that_nobody_knows() -> None:
    result = occupancy(report(launch(cc=None), devices=[{"name": "Unheard Of 1"}]))
    assert isinstance(result, NotApplicable)
    assert "Unheard Of 1" in result.reason
    assert "--gpu" in result.hint
    (row,) = rows(table_page(report(launch(cc=None), devices=[{"name": "x"}]), gpu="sm_90"))
    assert row["theoretical"] == 1.0


# Another GPU


def test_another_gpu_hides_what_was_measured_on_this_one() -> None:
    trace = report(launch(block=1024, achieved=90.0))
    here, there = table_page(trace, gpu="H100"), table_page(trace, gpu="RTX 4090")
    assert (rows(here)[0]["theoretical"], rows(here)[0]["achieved"]) == (1.0, 0.9)
    assert rows(there)[0]["theoretical"] == pytest.approx(2 / 3)
    assert rows(there)[0]["achieved"] is None
    assert "achieved" not in facts(there)
    assert any("RTX 4090" in note for note in there.notes)


# A timeline


def test_a_timeline_gives_the_theoretical_part() -> None:
    result = table_page(timeline())
    (row,) = rows(result)
    assert (row["theoretical"], row["achieved"]) == (0.125, None)
    assert any("a timeline has no achieved occupancy" in note for note in result.notes)
    assert "achieved" not in facts(result)


def test_shared_memory_of_a_timeline_may_be_given_as_one_number() -> None:
    profiled = {"static_shared_bytes": None, "dynamic_shared_bytes": None, "shared_bytes": 163840}
    (row,) = rows(table_page(timeline(registers_per_thread=32, **profiled)))
    assert (row["theoretical"], row["shared_bytes"]) == (0.0625, 163840)


def test_a_timeline_without_registers_cannot_tell() -> None:
    result = occupancy(timeline(registers_per_thread=None))
    assert isinstance(result, NotApplicable)


def test_no_kernels_no_answer() -> None:
    assert isinstance(occupancy(build_trace(devices=[H200])), NotApplicable)
    result = occupancy(timeline(), Selection(device=0), kernel="k")
    assert isinstance(result, Composite)


def test_kernels_of_other_vendors_cannot_be_told() -> None:
    kernel = {"start_ns": 0, "end_ns": 9, "name": "k", "block_x": 64, "block_y": 1, "block_z": 1}
    result = occupancy(build_trace(kernels=[kernel], devices=[{"name": "AMD Instinct MI300X"}]))
    assert isinstance(result, NotApplicable)
    assert "MI300X" in result.reason


# Limits


def test_what_the_capture_says_of_its_gpu_wins() -> None:
    limits = limits_of(9, 0, {"max_blocks": 16, "shared_per_sm_bytes": 102400, "max_warps": 0})
    assert limits is not None
    assert (limits.max_blocks, limits.max_warps) == (16, 64)
    assert limits.carve_outs_bytes[-2:] == (65536, 102400)


def test_a_later_gpu_is_known_when_the_capture_states_its_limits() -> None:
    stated = {"max_warps": 48, "max_blocks": 24, "registers_per_sm": 65536}
    assert limits_of(13, 0, stated) is None
    limits = limits_of(13, 0, {**stated, "shared_per_sm_bytes": 102400})
    assert limits is not None
    assert limits.compute_capability == (13, 0)
    assert work_out(limits, BlockShape(1024, 16)).share == pytest.approx(2 / 3)
    assert limits_of(None, None, {}) is None


@pytest.mark.parametrize(
    ("name", "cc"),
    [
        ("A100", (8, 0)),
        ("NVIDIA GeForce RTX 4090", (8, 9)),
        ("sm_90", (9, 0)),
        ("SM90a", (9, 0)),
        ("sm_120", (12, 0)),
        ("10.3", (10, 3)),
        ("7.5", (7, 5)),
        ("1080", (6, 1)),
    ],
)
def test_gpus_are_found_by_name_and_by_architecture(name: str, cc: tuple[int, int]) -> None:
    assert gpu_limits(name) == SM_LIMITS[cc]


# What would raise it


def limits_for(major: int, minor: int) -> SmLimits:
    return SM_LIMITS[major, minor]


@pytest.mark.parametrize(
    ("cc", "shape", "texts"),
    [
        ((8, 6), BlockShape(256, 134), ["registers 134 -> 128", "block 256 -> 128"]),
        ((12, 0), BlockShape(1024, 16, 4224), ["block 1,024 -> 512"]),
        ((9, 0), BlockShape(192, 32), ["block 192 -> 256"]),
        ((9, 0), BlockShape(32, 16), ["block 32 -> 64"]),
        (
            (9, 0),
            BlockShape(128, 32, 0, 163840),
            ["shared 163,840 -> 115,712 B", "block 128 -> 256"],
        ),
        ((9, 0), BlockShape(256, 16), []),
    ],
)
def test_changes(cc: tuple[int, int], shape: BlockShape, texts: list[str]) -> None:
    assert [change.text for change in changes(limits_for(*cc), shape)] == texts


@pytest.mark.parametrize("limits", SM_LIMITS.values(), ids=lambda sm: f"{sm.major}.{sm.minor}")
def test_changes_keep_their_promise(limits: SmLimits) -> None:
    for shape in (BlockShape(256, 96, 8192), BlockShape(96, 200), BlockShape(640, 40, 0, 30000)):
        now = work_out(limits, shape).share
        for change in changes(limits, shape):
            values = {resource: new for resource, _, new in change.requests}
            moved = BlockShape(
                values.get("block", shape.block_threads),
                values.get("registers", shape.registers or 0),
                0,
                values.get("shared", shape.shared_bytes),
            )
            assert work_out(limits, moved).share == change.share > now
            if len(change.requests) == 1 and "block" not in values:  # a little more does not do
                more = BlockShape(
                    moved.block_threads,
                    (moved.registers or 0) + ("registers" in values),
                    0,
                    moved.shared_bytes + ("shared" in values),
                )
                assert work_out(limits, more).share == now


def test_steps_cover_every_value() -> None:
    limits, shape = limits_for(8, 0), BlockShape(256, 64, 0, 16384)
    assert [s.value for s in block_sizes(limits, shape)] == list(range(32, 1025, 32))
    by_step = {s.value: s.occupancy.blocks for s in register_steps(limits, shape)}
    for registers in range(1, 256):
        step = min(value for value in by_step if value >= registers)
        assert work_out(limits, BlockShape(256, registers, 0, 16384)).blocks == by_step[step]
    by_step = {s.value: s.occupancy.blocks for s in shared_steps(limits, shape)}
    for size in range(0, 166913, 512):
        step = min((value for value in by_step if value >= size), default=0)
        assert work_out(limits, BlockShape(256, 64, 0, size)).blocks == by_step[step]


# The calculator


def test_the_calculator() -> None:
    page = gs.occupancy_of(gpu="A100", block=256, registers=64, shared_bytes=16384)
    assert page.facts["theoretical"] == 0.5
    assert page.facts["limited_by"] == "registers"
    assert page.facts["change"] == "registers 64 -> 48: 62.5%"
    assert list(page) == ["limits", "block_sizes", "registers", "shared_memory"]
    assert [row["blocks"] for row in page["limits"].rows()] == [8, 32, 4, 9]
    assert page["registers"].frame["registers"].to_list() == [255, 128, 80, 64, 48, 40, 32]
    assert len(page["block_sizes"]) == 32
    assert page.notes == ()


def test_the_calculator_explains_what_a_block_size_wastes() -> None:
    (partial,) = gs.occupancy_of(gpu="A100", block=100, registers=32).notes
    assert partial.startswith(
        "100 is not a multiple of 32: the last warp has 4 threads, and 21.9% of the block's warps"
    )
    (empty,) = gs.occupancy_of(gpu="A100", block=640, registers=32).notes
    assert empty.startswith("3 blocks of 20 warps leave 4 of 64 warp slots empty")
    full = gs.occupancy_of(gpu="A100", block=512, registers=32)
    assert full.notes == ()
    assert full.facts["limited_by"] == "none"
    assert not any(row["limiting"] for row in full["limits"].rows())


def test_a_partial_warp_is_remarked() -> None:
    (row,) = rows(table_page(report(launch(block=100, grid=132 * 16, achieved=99.0))))
    assert row["remark"] == "last warp: 4 of 32 threads"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("A100", 0, 32), "a block cannot have 0 threads; pass a number from 1 to 1024"),
        (("A100", 2000, 32), "cannot have 2000 threads"),
        (("A100", 256, 300), "a thread cannot have 300 registers"),
        (("A100", 256, 32, -1), "-1 bytes of shared memory"),
        (("A100", 256, 32, 200000), "max. 166912"),
        (("A100", 1024, 128), "131072 registers per block"),
        (("A10O", 256, 32), "did you mean A10, A100"),
        (("", 256, 32), "no GPU named ''"),
        (("MI300X", 256, 32), "AMD MI300X are unknown"),
    ],
)
def test_the_calculator_refuses_nonsense(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        occupancy_of(*arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_api_asks_files_and_traces() -> None:
    page = gs.occupancy(report(launch()))
    assert page.facts["theoretical"] == 1.0
    with pytest.raises(MissingDataError):
        gs.occupancy(build_trace(devices=[H200]))


# Other people's numbers


PRINTED = [
    *sorted(SHARED.glob("ncu/*.csv.xz")),
    *sorted(SHARED.glob("ncu/*.txt.xz")),
    *sorted(SHARED.glob("public/ncu_csv/*")),
]


@pytest.mark.shared
@needs_shared
def test_every_launch_of_every_printed_report_agrees(tmp_path: Path) -> None:
    """Reports printed as text say less, and round sizes."""
    checked = 0
    for path in PRINTED:
        trace = open_trace(_unpacked(path, tmp_path), cache=False)
        launches = profiled_launches(trace, EVERYTHING, None)
        result = with_answers(launches).with_columns(_limits_printed(trace))
        known = result.filter(pl.col("computed").is_not_null() & pl.col("reported").is_not_null())
        assert ((known["computed"] - known["reported"]).abs() < 1e-4).all(), path.name
        for name in LIMITS:
            both = known.select(f"limit_{name}", f"printed_{name}").drop_nulls()
            assert (both[f"limit_{name}"] == both[f"printed_{name}"]).all(), (path.name, name)
            if name not in ("barriers", "blocks"):
                assert both.height == known.height
        checked += known.height
    assert checked >= 33 + 2 * 183  # public ones, and ours as raw pages and as details


def _unpacked(path: Path, folder: Path) -> Path:
    if path.suffix != ".xz":
        return path
    out = folder / path.stem
    out.write_bytes(lzma.decompress(path.read_bytes()))
    return out


def _limits_printed(trace: Trace) -> list[pl.Series]:
    quantities = [
        LaunchQuantity(f"printed_{name}", "", "", (metric(f"launch__occupancy_limit_{key}"),), "")
        for name, key in zip(LIMITS, ("warps", "blocks", *_THREE), strict=True)
    ]
    return measured(trace, quantities).drop("launch", "duration_ns").get_columns()


_THREE = ("registers", "shared_mem", "barriers")


@pytest.mark.shared
@needs_shared
def test_torch_estimates_the_same() -> None:
    """Kineto runs CUDA's own calculator for every kernel, and writes what it gives with the grid.

    It does not let a kernel opt in to more than 48 KiB of shared memory, and then says 0 of kernels
    that ran. These are the only exceptions.
    """
    checked, refused = 0, 0
    for path in EVERY_TORCH_TRACE:
        if not path.is_relative_to(SHARED):
            continue
        trace = opened(path)
        if not trace.has("kernels", "occupancy") or not trace.has("kernels", "blocks_per_sm"):
            continue
        result = _estimates(trace)
        ran = (pl.col("estimated") == 0) & (pl.col("shared") > 48 * 1024)
        wrong = result.filter(~ran & ((pl.col("here") - pl.col("estimated")).abs() > 0.0051))
        assert wrong.is_empty(), (path.name, wrong)
        checked += result.filter(~ran).height
        refused += result.filter(ran).height
    assert checked > 20_000
    assert refused < checked / 5


def _estimates(trace: Trace) -> pl.DataFrame:
    launches = timeline_launches(trace, EVERYTHING, None)
    most = {key: limits.max_threads for key, limits in launches.limits.items()}
    if not most:
        return pl.DataFrame(
            schema={"here": pl.Float64, "estimated": pl.Float64, "shared": pl.Int64}
        )
    (threads,) = set(most.values())
    extra = trace.table("kernels", ["occupancy", "blocks_per_sm"])
    blocks = pl.min_horizontal("blocks", "blocks_per_sm")
    return (
        with_answers(launches)
        .hstack(extra.get_columns())
        .filter(pl.col("occupancy").is_not_null() & pl.col("blocks").is_not_null())
        .select(
            (blocks * pl.col("block_threads") / threads).alias("here"),
            pl.col("occupancy").alias("estimated"),
            (pl.col("static_shared_bytes") + pl.col("dynamic_shared_bytes")).alias("shared"),
        )
    )
