"""The occupancy calculator against NVIDIA's own numbers: its header's and its profiler's."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from gpusight.analysis.occupancy.launch_occupancy import LIMIT_QUANTITIES
from gpusight.analysis.occupancy.launch_occupancy import limits_of as limits_with
from gpusight.hardware.sm_limits import (
    LIMITS,
    SM_LIMITS,
    BlockShape,
    SmLimits,
    occupancy,
    whole_carve_out,
)
from gpusight.readers.open import open_trace
from tests.shared import SHARED, needs_shared
from tests.shared import name as capture_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpusight.trace.trace import Trace


def limits_of(major: int, minor: int) -> SmLimits:
    result = SM_LIMITS.get((major, minor))
    assert result is not None
    return result


# What CUDA 13's cuda_occupancy.h gives: compute capability, threads, registers, shared bytes,
# barriers, blocks. Drawn at random so that every GPU is limited in four different ways; all
# 756,000 combinations of a grid over block sizes, registers, shared memory and barriers agree.
# fmt: off
HEADER = [
    ((6, 0), 128, 96, 1024, 1, 5), ((6, 0), 768, 168, 101376, 1, 0),
    ((6, 0), 48, 168, 166912, 1, 0), ((6, 0), 192, 24, 12672, 1, 5),
    ((6, 0), 320, 169, 0, 1, 0), ((6, 0), 256, 169, 0, 1, 1),
    ((6, 1), 384, 128, 24576, 1, 1), ((6, 1), 128, 56, 24576, 1, 4),
    ((6, 1), 512, 128, 65536, 1, 0), ((6, 1), 384, 255, 49152, 1, 0),
    ((7, 0), 96, 72, 1024, 1, 9), ((7, 0), 256, 72, 101376, 1, 0),
    ((7, 0), 192, 56, 49152, 1, 2), ((7, 0), 1024, 72, 1024, 1, 0),
    ((7, 2), 224, 56, 24576, 1, 4), ((7, 2), 320, 24, 0, 1, 6),
    ((7, 2), 768, 128, 0, 1, 0), ((7, 2), 224, 96, 49152, 1, 2),
    ((7, 5), 96, 168, 232448, 1, 0), ((7, 5), 640, 40, 24576, 1, 1),
    ((7, 5), 192, 56, 24576, 1, 2), ((7, 5), 48, 255, 4224, 1, 4),
    ((8, 0), 224, 128, 24576, 1, 2), ((8, 0), 512, 40, 101376, 1, 1),
    ((8, 0), 64, 24, 0, 1, 32), ((8, 0), 48, 56, 232448, 1, 0),
    ((8, 6), 640, 56, 232448, 1, 0), ((8, 6), 128, 128, 0, 1, 4),
    ((8, 6), 64, 96, 65536, 1, 1), ((8, 6), 1024, 168, 12672, 1, 0),
    ((8, 7), 384, 24, 12672, 1, 4), ((8, 7), 96, 128, 166912, 1, 1),
    ((8, 7), 1024, 255, 166912, 1, 0), ((8, 7), 384, 96, 232448, 1, 0),
    ((8, 9), 1024, 56, 0, 1, 1), ((8, 9), 224, 40, 166912, 1, 0),
    ((8, 9), 48, 96, 49152, 1, 2), ((8, 9), 320, 168, 12672, 1, 1),
    ((9, 0), 1024, 96, 65536, 1, 0), ((9, 0), 64, 40, 232448, 1, 1),
    ((9, 0), 384, 168, 65536, 16, 1), ((9, 0), 256, 24, 24576, 1, 8),
    ((10, 0), 384, 255, 166912, 16, 0), ((10, 0), 224, 168, 65536, 16, 1),
    ((10, 0), 48, 56, 166912, 1, 1), ((10, 0), 96, 24, 4224, 1, 21),
    ((10, 3), 1024, 96, 0, 16, 0), ((10, 3), 128, 56, 1024, 1, 9),
    ((10, 3), 192, 24, 24576, 16, 4), ((10, 3), 224, 24, 166912, 1, 1),
    ((11, 0), 384, 168, 4224, 1, 1), ((11, 0), 256, 24, 65536, 1, 3),
    ((11, 0), 192, 24, 24576, 1, 8), ((11, 0), 64, 56, 1024, 16, 1),
    ((12, 0), 48, 72, 12672, 16, 1), ((12, 0), 48, 255, 166912, 1, 0),
    ((12, 0), 320, 168, 49152, 1, 1), ((12, 0), 256, 24, 12672, 1, 6),
    ((12, 1), 512, 96, 101376, 16, 1), ((12, 1), 224, 40, 12672, 1, 6),
    ((12, 1), 64, 24, 232448, 1, 0), ((12, 1), 384, 255, 49152, 1, 0),
]
# What Nsight Compute printed for launches: compute capability; threads, registers, static and
# dynamic shared memory, barriers, carve-out; limits by warps, blocks, registers, shared memory and
# barriers; theoretical occupancy.
REPORTED = [
    ((9, 0), (192, 32, 0, 0, 0, 32768), (10, 32, 10, 32, 32), 93.75),
    ((9, 0), (128, 39, 0, 24, 1, 32768), (16, 32, 12, 28, 32), 75.0),
    ((9, 0), (256, 202, 0, 49152, 1, 65536), (8, 32, 1, 1, 32), 12.5),
    ((9, 0), (128, 249, 0, 0, 0, 32768), (16, 32, 2, 32, 32), 12.5),
    ((9, 0), (128, 32, 0, 163840, 1, 167936), (16, 32, 16, 1, 32), 6.25),
    ((9, 0), (384, 168, 0, 231424, 16, 233472), (5, 32, 1, 1, 4), 18.75),
    ((9, 0), (64, 92, 0, 6528, 1, 135168), (32, 32, 10, 17, 32), 31.25),
    ((9, 0), (1024, 16, 4224, 0, 1, 16384), (2, 32, 4, 3, 32), 100.0),
    ((8, 0), (10, 16, 0, 0, None, None), (64, 32, 128, 164, None), 50.0),
    ((8, 0), (256, 128, 24576, 0, None, None), (8, 32, 2, 6, None), 25.0),
    ((8, 6), (512, 20, 16, 0, None, 8192), (3, 16, 5, 7, None), 100.0),
    ((8, 6), (256, 134, 0, 0, 0, 8192), (6, 16, 1, 8, None), 100 / 6),
    ((8, 9), (512, 16, 2176, 0, None, 32768), (3, 24, 8, 10, None), 100.0),
    ((7, 5), (1024, 53, 8320, 0, None, None), (1, 16, 1, 7, None), 100.0),
    ((7, 5), (64, 16, 0, 0, None, 32768), (16, 16, 64, 16, None), 100.0),
    ((10, 0), (256, 48, 0, 2600, 1, 233472), (8, 32, 5, 62, 32), 62.5),
    ((10, 0), (384, 168, 0, 232448, 8, 233472), (5, 32, 1, 1, 8), 18.75),
    ((12, 0), (1024, 16, 4224, 0, 1, 8192), (1, 24, 4, 1, 24), 200 / 3),
    ((12, 0), (1024, 45, 0, 0, 0, 8192), (1, 24, 1, 8, 24), 200 / 3),
]
# fmt: on


@pytest.mark.parametrize(("cc", "threads", "registers", "shared", "barriers", "blocks"), HEADER)
def test_the_rules_are_those_of_cuda(
    cc: tuple[int, int], threads: int, registers: int, shared: int, barriers: int, blocks: int
) -> None:
    result = occupancy(limits_of(*cc), BlockShape(threads, registers, 0, shared, barriers))
    assert result.blocks == blocks
    assert bool(result.refusals) == (blocks == 0)


@pytest.mark.parametrize(("cc", "shape", "limits", "percent"), REPORTED)
def test_the_limits_are_those_of_nsight_compute(
    cc: tuple[int, int], shape: tuple[Any, ...], limits: tuple[int | None, ...], percent: float
) -> None:
    result = occupancy(limits_of(*cc), BlockShape(*shape))
    assert tuple(result.by_limit.get(name) for name in LIMITS) == limits
    assert result.share * 100 == pytest.approx(percent)
    assert result.warps == result.blocks * result.warps_per_block


@pytest.mark.parametrize(
    ("shape", "limiters"),
    [
        # Registers hold the second block off; the driver's small carve-out only follows.
        (BlockShape(256, 202, 0, 49152, 1, 65536), ("registers",)),
        (BlockShape(384, 168, 0, 231424, 16, 233472), ("registers", "shared_memory")),
        (BlockShape(128, 32, 0, 163840), ("shared_memory",)),
        (BlockShape(32, 16), ("blocks",)),
        (BlockShape(96, 16), ("warps",)),
        (BlockShape(64, 16, barriers=16), ("barriers",)),
        # No shared memory, but a carve-out that was set to too little.
        (BlockShape(64, 16, shared_config_bytes=8192), ("shared_memory",)),
        (BlockShape(64, 16, shared_config_bytes=32768, barriers=0), ("warps", "blocks")),
    ],
)
def test_limiters_are_what_has_to_give_way(shape: BlockShape, limiters: tuple[str, ...]) -> None:
    assert occupancy(limits_of(9, 0), shape).limiters == limiters


def test_barriers_limit_only_where_the_gpu_counts_them() -> None:
    assert "barriers" not in occupancy(limits_of(8, 0), BlockShape(64, 16, barriers=16)).by_limit
    assert occupancy(limits_of(12, 0), BlockShape(64, 16, barriers=16)).by_limit["barriers"] == 1


@pytest.mark.parametrize(
    ("cc", "shape", "limiter", "why"),
    [
        ((9, 0), BlockShape(1025, 16), "warps", "1025 threads per block (max. 1024)"),
        ((9, 0), BlockShape(64, 300), "registers", "300 registers per thread (max. 255)"),
        ((9, 0), BlockShape(1024, 72), "registers", "73728 registers per block (max. 65536)"),
        ((9, 0), BlockShape(64, 16, 0, 232449), "shared_memory", "(max. 232448)"),
        ((7, 5), BlockShape(64, 16, 65537), "shared_memory", "(max. 65536)"),
        ((8, 0), BlockShape(320, 169), "registers", "67584 registers per block"),
        ((8, 0), BlockShape(352, 168), None, ""),
    ],
)
def test_what_cannot_be_launched(
    cc: tuple[int, int], shape: BlockShape, limiter: str | None, why: str
) -> None:
    result = occupancy(limits_of(*cc), shape)
    if limiter is None:
        assert result.blocks == 1
        return
    assert (result.blocks, result.warps, result.share) == (0, 0, 0)
    assert result.by_limit[limiter] == 0
    assert result.limiters == (limiter,)
    assert why in result.refusals[0]


def test_what_is_given_is_rounded_up() -> None:
    result = occupancy(limits_of(8, 0), BlockShape(100, 39, 16, 1))
    assert result.registers_allocated == 40
    assert result.shared_allocated_bytes == 1152
    assert result.warps_per_block == 4


def test_the_carve_out_is_the_smallest_that_holds_the_blocks() -> None:
    gpu = limits_of(9, 0)
    assert occupancy(gpu, BlockShape(1024, 16)).carve_out_bytes == 8 * 1024
    assert occupancy(gpu, BlockShape(128, 32, 0, 16384)).carve_out_bytes == 228 * 1024
    given = BlockShape(128, 32, 0, 16384, shared_config_bytes=102400)
    assert occupancy(gpu, given).carve_out_bytes == 102400
    assert occupancy(gpu, given).by_limit["shared_memory"] == 5
    assert occupancy(gpu, whole_carve_out(given)).by_limit["shared_memory"] == 13


def test_a_block_that_outgrows_the_carve_out_gets_a_larger_one() -> None:
    result = occupancy(limits_of(8, 0), BlockShape(128, 32, 0, 60000, shared_config_bytes=32768))
    assert result.by_limit["shared_memory"] == 1


def test_registers_that_are_not_known_are_no_limit() -> None:
    result = occupancy(limits_of(9, 0), BlockShape(256))
    assert "registers" not in result.by_limit
    assert result.is_full


@pytest.mark.parametrize("limits", SM_LIMITS.values(), ids=lambda sm: f"{sm.major}.{sm.minor}")
def test_carve_outs_reach_from_little_to_all(limits: SmLimits) -> None:
    assert limits.carve_outs_bytes == tuple(sorted(set(limits.carve_outs_bytes)))
    assert limits.carve_outs_bytes[-1] == limits.shared_per_sm_bytes
    assert (limits.barriers_per_sm is not None) == (limits.compute_capability >= (9, 0))


# Every launch of every report

REPORTS = [*sorted(SHARED.glob("ncu/*.ncu-rep.xz")), *sorted(SHARED.glob("public/ncu/*"))]
_METRICS = {
    "threads": "launch__block_size",
    "registers": "launch__registers_per_thread",
    "static": "launch__shared_mem_per_block_static",
    "dynamic": "launch__shared_mem_per_block_dynamic",
    "barriers": "launch__barrier_count",
    "carve_out": "launch__shared_mem_config_size",
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
    "by_registers": "launch__occupancy_limit_registers",
    "shared_memory": "launch__occupancy_limit_shared_mem",
    "by_barriers": "launch__occupancy_limit_barriers",
    "percent": "sm__maximum_warps_per_active_cycle_pct",
    "waves": "launch__waves_per_multiprocessor",
    "grid": "launch__grid_size",
    "sms": "device__attribute_multiprocessor_count",
    "major": "device__attribute_compute_capability_major",
    "minor": "device__attribute_compute_capability_minor",
}
_WITHOUT_LAUNCH_METRICS = {"2025.2.1.0__RTX-5060-Ti__bf1d76d": 1}
"""Launches that were measured without the section LaunchStats, by report."""
_NEEDED = ("threads", "registers", "static", "dynamic", "percent")


def launches_of(trace: Trace) -> list[dict[str, Any]]:
    """Give what the report says of each launch; None for what it does not say."""
    rows = trace.table("counters", ["launch", "metric", "value"]).with_columns(
        pl.col("metric").cast(pl.String), pl.col("value").fill_nan(None)
    )
    wide = rows.filter(pl.col("metric").is_in(list(_METRICS.values()))).pivot(
        on="metric", index="launch", values="value"
    )
    given = {row["launch"]: row for row in wide.iter_rows(named=True)}
    keys = trace.table("profiles", ["launch"])["launch"].to_list()
    return [
        {
            "launch": launch,
            **{key: given.get(launch, {}).get(metric) for key, metric in _METRICS.items()},
        }
        for launch in keys
    ]


def shape_of(row: dict[str, Any], trace: Trace) -> BlockShape:
    """Count shared memory as the profiler did: of all that an SM has, before 2022."""
    year = (trace.meta.tool_version or "2018").split(".")[0]
    carve_out = row["carve_out"] if int(year) >= 2022 else None
    return BlockShape(
        int(row["threads"]),
        int(row["registers"]),
        int(row["static"]),
        int(row["dynamic"]),
        None if row["barriers"] is None else int(row["barriers"]),
        None if carve_out is None else int(carve_out),
    )


def disagreements(row: dict[str, Any], shape: BlockShape, limits: SmLimits) -> Iterator[str]:
    result = occupancy(limits, shape)
    for name in LIMITS:
        reported = row[name if name not in ("registers", "barriers") else f"by_{name}"]
        if reported is not None and result.by_limit.get(name) != reported:
            yield f"{name}: {result.by_limit.get(name)}, reported {reported}"
    if abs(result.share * 100 - row["percent"]) > 0.01:
        yield f"occupancy: {result.share:.2%}, reported {row['percent']}"
    if row["waves"] is not None and row["sms"]:
        waves = row["grid"] / (result.blocks * row["sms"])
        if abs(waves - row["waves"]) > 0.01:
            yield f"waves: {waves}, reported {row['waves']}"


@pytest.mark.shared
@needs_shared
def test_every_launch_of_every_report_agrees() -> None:
    checked: Counter[str] = Counter()
    without: Counter[str] = Counter()
    wrong = []
    for path in REPORTS:
        trace = open_trace(path, cache=False)
        for row in launches_of(trace):
            if any(row[key] is None for key in _NEEDED):
                without[path.stem] += 1
                continue
            limits = limits_of(int(row["major"]), int(row["minor"]))
            result = list(disagreements(row, shape_of(row, trace), limits))
            checked[path.stem] += 1
            wrong += [f"{path.stem} launch {row['launch']}: {text}" for text in result]
    assert not wrong
    assert without == _WITHOUT_LAUNCH_METRICS
    assert checked.total() >= 284


@pytest.mark.shared
@needs_shared
@pytest.mark.parametrize("path", REPORTS, ids=capture_name)
def test_the_curves_of_the_report_agree(path: Path) -> None:
    """The profiler also says what other block sizes, registers, … of each launch would give."""
    trace = open_trace(path, cache=False)
    rows = trace.table("counter_instances", ["launch", "metric", "instance", "value"])
    curves = rows.filter(pl.col("metric").cast(pl.String).str.contains("^launch__occupancy_per_"))
    one_each = {
        shape_of(row, trace): row for row in launches_of(trace) if row["threads"] is not None
    }
    known = {row["launch"]: (row, shape) for shape, row in one_each.items()}
    points = 0
    chosen = curves.filter(pl.col("launch").is_in(list(known)))
    for launch, metric, instance, warps in chosen.iter_rows():
        row, requested = known[launch]
        limits = limits_of(int(row["major"]), int(row["minor"]))
        shape = _varied(requested, limits, metric, instance)
        if shape is not None:
            points += 1
            assert occupancy(limits, shape).warps == warps, (launch, metric, instance)
    assert points > 100 * len(known)


def _varied(shape: BlockShape, limits: SmLimits, metric: str, value: int) -> BlockShape | None:
    """Give the shape at one point of a curve; None for those drawn by other rules."""
    what = metric.removeprefix("launch__occupancy_per_")
    if what == "block_size":
        return replace(shape, block_threads=value)
    if what == "register_count":
        return replace(shape, registers=value)
    if what == "barrier_count":
        return replace(shape, barriers=value)
    if what != "shared_mem_size":
        return None
    # This curve counts the driver's part as asked for by the program. Versions differ in whether it
    # ends where a kernel must opt in.
    requested = value - limits.shared_reserved_per_block_bytes
    if requested < 0 or value > limits.shared_per_block_bytes:
        return None
    return replace(shape, static_shared_bytes=0, dynamic_shared_bytes=requested)


@pytest.mark.shared
@needs_shared
@pytest.mark.parametrize("path", REPORTS, ids=capture_name)
def test_the_table_agrees_with_the_device_attributes(path: Path) -> None:
    trace = open_trace(path, cache=False)
    rows = trace.table("counters", ["metric", "value"]).unique("metric")
    attributes = dict(rows.with_columns(pl.col("metric").cast(pl.String)).iter_rows())
    major, minor = trace.table("profiles", ["compute_major", "compute_minor"]).row(0)
    limits = limits_of(major, minor)
    stated = {q.key: attributes.get(q.formulas[0].metrics[0]) for q in LIMIT_QUANTITIES}
    assert limits_with(major, minor, stated) == limits
    assert sum(value is not None for value in stated.values()) >= 8
    schedulers = attributes.get("device__attribute_num_schedulers_per_multiprocessor")
    assert schedulers in (None, limits.warp_allocation_granularity)
