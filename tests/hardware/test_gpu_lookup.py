"""The GPU table against itself, against vendors' figures and against real captures."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields
from typing import Any

import pytest

from gpusight.analysis.occupancy.block_occupancy import named_limits
from gpusight.analysis.orion.orion_launches import OrionSmLimits
from gpusight.errors import UsageError
from gpusight.hardware.gpu_lookup import (
    PRECISIONS,
    find_gpu,
    named_gpu,
    peak_flops,
    with_measured,
)
from gpusight.hardware.gpu_table import GPUS, Gpu
from gpusight.hardware.sm_limits import SM_LIMITS, SmLimits
from tests.shared import SHARED

GIB = 1 << 30
# FP32 cores of one compute unit, which AMD's documents give per architecture.
AMD_LANES = {"gfx908": 64, "gfx90a": 64, "gfx942": 128, "gfx950": 128} | {
    "gfx1100": 128,
    "gfx1101": 128,
    "gfx1201": 128,
}

needs_captures = pytest.mark.skipif(
    not SHARED.is_dir(), reason="set GPUSIGHT_SHARED to the folder of shared captures"
)
every_gpu = pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)


def row(name: str) -> Gpu:
    return next(gpu for gpu in GPUS if gpu.name == name)


# The table is consistent


def test_names_are_unique() -> None:
    names = [gpu.name for gpu in GPUS]
    assert len(set(names)) == len(names)


@every_gpu
def test_a_gpu_is_found_by_its_own_name(gpu: Gpu) -> None:
    assert find_gpu(gpu.name) is gpu
    assert find_gpu(f"NVIDIA {gpu.name.upper()}") is gpu


@every_gpu
def test_an_alias_leads_to_its_row_when_hardware_is_known(gpu: Gpu) -> None:
    for alias in gpu.aliases:
        result = find_gpu(alias, sm_count=gpu.sm_count, memory_bytes=gpu.memory_bytes)
        # Two 8 GB Orin modules with 8 SMs differ only in clocks, which no name tells.
        assert result is gpu or (alias == "Orin" and gpu.name == "Jetson Orin Nano 8GB")


@every_gpu
def test_rows_are_complete(gpu: Gpu) -> None:
    assert gpu.source
    assert gpu.architecture
    assert gpu.vendor in ("NVIDIA", "AMD")
    assert (gpu.gfx is None) == (gpu.vendor == "NVIDIA")
    assert gpu.compute_capability in SM_LIMITS or gpu.vendor == "AMD"
    assert gpu.memory_bytes is not None
    assert gpu.memory_bytes > 0
    assert gpu.memory_bandwidth_bytes_s is not None
    assert gpu.memory_bandwidth_bytes_s > 0
    assert gpu.vector.fp32 is not None or "rates are not published" in gpu.source


@every_gpu
def test_fp32_peak_is_lanes_times_clock(gpu: Gpu) -> None:
    if gpu.sm_count is None or gpu.boost_clock_mhz is None:
        pytest.skip("SM count or clock not published")
    cores = (
        SM_LIMITS[gpu.compute_capability].fp32_cores
        if gpu.compute_capability
        else AMD_LANES[str(gpu.gfx)]
    )
    computed = 2 * cores * gpu.sm_count * gpu.boost_clock_mhz / 1e6
    assert gpu.vector.fp32 == pytest.approx(computed, rel=0.03)


@every_gpu
def test_fp64_peak_is_lanes_times_clock(gpu: Gpu) -> None:
    limits = SM_LIMITS.get(gpu.compute_capability or (0, 0))
    capped = gpu.name.startswith(("H800", "H20")) and gpu.name not in ("H200", "H200 NVL")
    if limits is None or limits.fp64_cores is None or gpu.vector.fp32 is None or capped:
        pytest.skip("no FP64 cores published, or capped for export")
    computed = gpu.vector.fp32 * limits.fp64_cores / limits.fp32_cores
    if gpu.vector.fp64 is not None:
        assert gpu.vector.fp64 == pytest.approx(computed, rel=0.12)


@every_gpu
def test_rates_and_clocks_are_ordered(gpu: Gpu) -> None:
    for peaks in (gpu.vector, gpu.tensor):
        assert all(getattr(peaks, name) is None or getattr(peaks, name) > 0 for name in PRECISIONS)
    tensor = gpu.tensor
    narrowing = [rate for rate in (tensor.tf32, tensor.fp16, tensor.fp8, tensor.fp4) if rate]
    assert narrowing == sorted(narrowing)
    if gpu.base_clock_mhz and gpu.boost_clock_mhz:
        assert gpu.base_clock_mhz < gpu.boost_clock_mhz


# The table says what the vendors say


@pytest.mark.parametrize(
    ("name", "unit", "published"),
    [
        ("P100 SXM2 16GB", "vector", {"fp64": 5.3, "fp32": 10.6, "fp16": 21.2}),
        ("V100 SXM2 32GB", "vector", {"fp64": 7.8, "fp32": 15.7, "fp16": 31.4}),
        ("V100 SXM2 32GB", "tensor", {"fp16": 125, "bf16": None, "int8": None}),
        ("V100 PCIe 16GB", "tensor", {"fp16": 112}),
        ("T4", "vector", {"fp32": 8.1}),
        ("T4", "tensor", {"fp16": 65, "int8": 130, "tf32": None}),
        ("RTX 2080 Ti", "tensor", {"fp16": 53.8, "int8": 215.2}),
        ("Quadro RTX 6000", "tensor", {"fp16": 130.5, "int8": 261}),
        ("GTX 1660 Ti", "tensor", {"fp16": None}),
        ("A100 SXM4 80GB", "vector", {"fp64": 9.7, "fp32": 19.5, "bf16": 39, "fp16": 78}),
        ("A100 PCIe 40GB", "tensor", {"fp64": 19.5, "tf32": 156, "bf16": 312, "int8": 624}),
        ("A30", "tensor", {"fp64": 10.3, "tf32": 82, "fp16": 165, "int8": 330}),
        ("A2", "tensor", {"tf32": 9, "bf16": 18, "int8": 36}),
        ("A10", "tensor", {"tf32": 62.5, "fp16": 125, "int8": 250}),
        ("A16", "tensor", {"fp16": 18, "int8": 36}),
        ("A40", "tensor", {"tf32": 74.8, "fp16": 149.7, "int8": 299.3}),
        ("RTX A2000", "vector", {"fp32": 8.0}),
        ("RTX A4000", "vector", {"fp32": 19.2}),
        ("RTX A6000", "tensor", {"tf32": 77.4, "fp16": 154.8, "int8": 309.7}),
        ("RTX 3090", "vector", {"fp32": 35.6, "bf16": 35.6, "fp16": 35.6}),
        ("RTX 3090", "tensor", {"tf32": 35.6, "bf16": 71, "fp16": 71, "int8": 284, "fp8": None}),
        ("RTX 3080", "tensor", {"tf32": 29.8, "fp16": 59.5, "int8": 238}),
        ("Jetson AGX Orin 64GB", "vector", {"fp32": 5.3}),
        ("Jetson AGX Orin 64GB", "tensor", {"int8": 85}),
        ("L4", "tensor", {"tf32": 60, "fp16": 121, "fp8": 242.5, "int8": 242.5}),
        ("L40", "tensor", {"tf32": 90.5, "fp16": 181, "fp8": 362, "int8": 362}),
        ("L40S", "tensor", {"tf32": 183, "fp16": 366, "fp8": 733, "int8": 733}),
        ("RTX 6000 Ada", "vector", {"fp32": 91.1}),
        ("RTX 4090", "vector", {"fp32": 82.6, "fp64": 1.29}),
        ("RTX 4090", "tensor", {"tf32": 82.6, "fp16": 165.2, "fp8": 330.3, "int8": 660.6}),
        ("H100 SXM5", "vector", {"fp64": 33.5, "fp32": 66.9, "bf16": 133.8, "fp16": 133.8}),
        ("H100 SXM5", "tensor", {"fp64": 66.9, "tf32": 494.7, "bf16": 989.4, "fp8": 1978.9}),
        ("H100 PCIe", "tensor", {"fp64": 51.2, "tf32": 378, "fp16": 756, "int8": 1513}),
        ("H100 NVL", "tensor", {"fp64": 60, "tf32": 417.5, "fp16": 835, "fp8": 1670.5}),
        ("H200", "tensor", {"fp64": 66.9, "fp16": 989.5, "fp8": 1979, "fp4": None}),
        ("H20", "tensor", {"tf32": 74, "bf16": 148, "fp8": 296, "int8": 296}),
        ("B200", "vector", {"fp64": 37, "fp32": 75}),
        ("B200", "tensor", {"bf16": 2250, "fp8": 4500, "fp4": 9000}),
        ("GB200", "vector", {"fp64": 40, "fp32": 80}),
        ("RTX 5090", "tensor", {"tf32": 104.8, "fp16": 209.5, "fp8": 419, "fp4": 1676}),
        ("RTX 5080", "tensor", {"fp16": 112.6, "fp8": 225.1, "fp4": 900.4, "int8": 450.2}),
        ("MI100", "vector", {"fp64": 11.5, "fp32": 23.1}),
        ("MI100", "tensor", {"fp32": 46.1, "fp16": 184.6, "bf16": 92.3, "fp64": None}),
        ("MI210", "tensor", {"fp64": 45.3, "fp32": 45.3, "fp16": 181, "int8": 181}),
        ("MI250X", "vector", {"fp64": 47.9, "fp32": 47.9}),
        ("MI250X", "tensor", {"fp64": 95.7, "bf16": 383, "fp16": 383}),
        ("MI300X", "vector", {"fp64": 81.7, "fp32": 163.4}),
        ("MI300X", "tensor", {"fp64": 163.4, "tf32": 653.7, "fp16": 1307.4, "fp8": 2614.9}),
        ("MI300X", "tensor", {"fp32": 163.4, "bf16": 1307.4, "int8": 2614.9, "fp4": None}),
        ("MI300A", "vector", {"fp64": 61.3, "fp32": 122.6}),
        ("MI300A", "tensor", {"fp64": 122.6, "fp32": 122.6, "fp16": 980.6, "int8": 1961}),
        ("MI308X", "tensor", {"bf16": None, "fp8": None}),
        ("MI325X", "tensor", {"bf16": 1307.4, "fp8": 2614.9}),
        ("MI350X", "tensor", {"fp64": 72.1, "bf16": 2306.9, "fp8": 4613.7, "fp4": 9227.5}),
        ("MI355X", "vector", {"fp64": 78.6, "fp32": 157.3}),
        ("MI355X", "tensor", {"fp64": 78.6, "bf16": 2516.6, "fp8": 5033.2, "tf32": None}),
        ("Radeon RX 7900 XTX", "vector", {"fp32": 61.4, "fp16": 122.8}),
        ("Radeon RX 7900 XTX", "tensor", {"fp16": 122.8, "bf16": 122.8, "fp8": None}),
        ("Radeon PRO W7900", "vector", {"fp32": 61.3}),
        ("Radeon PRO W7800", "vector", {"fp32": 45.2}),
        ("Radeon RX 9070 XT", "vector", {"fp32": 48.7, "fp16": 97.3}),
        ("Radeon RX 9070 XT", "tensor", {"fp16": 195, "fp8": 389, "int8": 389}),
        ("Radeon AI PRO R9700", "tensor", {"fp16": 191, "int8": 383}),
    ],
)
def test_published_peaks(name: str, unit: str, published: dict[str, float | None]) -> None:
    for precision, tera in published.items():
        peak = peak_flops(row(name), precision, tensor=unit == "tensor")
        if tera is None:
            assert peak is None
        else:
            assert peak == pytest.approx(tera * 1e12, rel=0.012)


# Names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "A100 SXM4 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("NVIDIA A100-PG509-200", "A100 SXM4 40GB"),
        ("NVIDIA A800-SXM4-80GB", "A800 SXM4 80GB"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2 32GB"),
        ("Tesla V100-PCIE-16GB", "V100 PCIe 16GB"),
        ("Tesla V100-DGXS-32GB", "V100 DGXS 32GB"),
        ("Tesla V100S-PCIE-32GB", "V100S PCIe 32GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 3060", "RTX 3060"),
        ("NVIDIA GeForce RTX 3060 Ti", "RTX 3060 Ti"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", "RTX 3060 Laptop GPU"),
        ("rtx3060ti", "RTX 3060 Ti"),
        ("RTX 4070TiSUPER", "RTX 4070 Ti SUPER"),
        ("NVIDIA GeForce RTX 4070 SUPER", "RTX 4070 SUPER"),
        ("GeForce GTX 1060 with Max-Q Design", "GTX 1060 with Max-Q Design"),
        ("NVIDIA GeForce GTX 1650", "GTX 1650"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("a6000", "RTX A6000"),
        ("NVIDIA TITAN RTX", "TITAN RTX"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",) * 2,
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition",) * 2,
        ("h200", "H200"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("H100 SXM", "H100 SXM5"),
        ("NVIDIA H800", "H800 SXM5"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200 144GB"),
        ("NVIDIA B200", "B200"),
        ("GB200", "GB200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA Thor", "Jetson Thor"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("AMD Instinct MI210", "MI210"),
        ("AMD Instinct MI308X", "MI308X"),
        ("AMD Radeon RX 7900 XTX", "Radeon RX 7900 XTX"),
        ("Radeon RX 7900 XT", "Radeon RX 7900 XT"),
        ("AMD Radeon PRO W7900", "Radeon PRO W7900"),
        ("w7900", "Radeon PRO W7900"),
        ("AMD Radeon AI PRO R9700", "Radeon AI PRO R9700"),
    ],
)
def test_find_gpu(name: str, expected: str) -> None:
    result = find_gpu(name)
    assert result is not None
    assert result.name == expected.removeprefix("NVIDIA ")


@pytest.mark.parametrize(
    ("name", "sm_count", "memory_bytes", "expected"),
    [
        ("NVIDIA A100", None, 42_297_524_224, "A100 SXM4 40GB"),
        ("NVIDIA H100", 114, None, "H100 PCIe"),
        ("NVIDIA H100", 132, 100_000_000_000, "H100 NVL"),
        # More memory than any H100 sold on its own: the model still is an H100 with 132 SMs.
        ("NVIDIA H100", 132, 102_085_492_736, "H100 SXM5"),
        ("NVIDIA GeForce GTX 1650", 16, None, "GTX 1650 Laptop GPU"),
        ("NVIDIA GeForce GTX 1050", 6, 3_149_266_944, "GTX 1050 3GB"),
        ("NVIDIA GeForce RTX 3060", 28, 8 * GIB, "RTX 3060 8GB"),
        ("NVIDIA GeForce RTX 3080", 70, None, "RTX 3080 12GB"),
        ("Orin", 16, 61 * GIB, "Jetson AGX Orin 64GB"),
        ("Orin", 8, 15 * GIB, "Jetson Orin NX 16GB"),
        ("AMD Instinct MI250X", 110, 64 * GIB, "MI250X GCD"),
        ("AMD Instinct MI250X", 220, None, "MI250X"),
        ("AMD Instinct MI250X / MI250", 110, 64 * GIB, "MI250X GCD"),
        ("AMD Instinct MI250X / MI250", 104, 64 * GIB, "MI250 GCD"),
        # ROCm counts pairs of compute units on RDNA.
        ("AMD Radeon RX 7900 XTX", 48, 24 * GIB, "Radeon RX 7900 XTX"),
        ("Radeon RX 7900 XT/7900 XTX/7900 GRE", 42, 20 * GIB, "Radeon RX 7900 XT"),
    ],
)
def test_hardware_tells_variants_apart(
    name: str, sm_count: int | None, memory_bytes: int | None, expected: str
) -> None:
    result = find_gpu(name, sm_count=sm_count, memory_bytes=memory_bytes)
    assert result is row(expected)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "NVIDIA",
        "GeForce GTX TITAN",
        "Quadro 6000",
        "RTX 6000",
        "NVIDIA RTX A5000 Laptop GPU",
        "NVIDIA GeForce RTX 3050 6GB Laptop GPU",
        "A100-SXM4-64GB",
        "Tesla V100-SXM3-32GB",
        "Intel(R) HD Graphics 630",
        "Microsoft Basic Render Driver",
        "RTX 9090",
        "A1000",
        "L4S",
        "AMD Instinct MI250X / MI250",
        "AMD Radeon RX 7900M",
        "Radeon",
        "/",
    ],
)
def test_unknown_names_find_nothing(name: str) -> None:
    assert find_gpu(name) is None


@pytest.mark.parametrize(
    ("compute", "sm_count", "memory_bytes", "expected"),
    [
        ((9, 4), 304, 206_141_652_992, "MI300X"),
        ((9, 4), 304, 256 * GIB, "MI325X"),
        # An MI210 and one die of an MI250 look the same; so do an H100 and an H800.
        ((9, 0), 104, 68_702_699_520, None),
        ((9, 0), 132, 85_018_279_936, None),
        ((9, 4), 304, None, None),
        ((9, 4), None, 206_141_652_992, None),
        (None, 304, 206_141_652_992, None),
        ((8, 0), 304, 206_141_652_992, None),
    ],
)
def test_a_gpu_without_a_name_is_found_only_where_nothing_else_fits(
    compute: tuple[int, int] | None,
    sm_count: int | None,
    memory_bytes: int | None,
    expected: str | None,
) -> None:
    result = find_gpu("", sm_count=sm_count, memory_bytes=memory_bytes, compute=compute)
    assert result is (None if expected is None else row(expected))


def test_a_model_never_matches_its_siblings() -> None:
    for name in ("RTX 3060", "RTX 4070", "GTX 1660", "RTX 2070", "RTX 5070", "L40", "MI250"):
        result = find_gpu(name)
        assert result is not None
        assert result.name == name


# Rates and limits


def test_peak_flops_is_in_flops() -> None:
    gpu = row("H200")
    assert peak_flops(gpu, "fp32", tensor=False) == pytest.approx(66.9e12, rel=0.001)
    assert peak_flops(gpu, "bf16", tensor=True) == pytest.approx(989.4e12, rel=0.001)
    assert peak_flops(gpu, "fp32", tensor=True) is None
    assert peak_flops(gpu, "tf32", tensor=False) is None
    assert peak_flops(gpu, "fp4", tensor=True) is None


def test_peak_flops_names_the_precisions_it_knows() -> None:
    with pytest.raises(UsageError, match="fp64, fp32, tf32, bf16, fp16, fp8, fp4, int8"):
        peak_flops(row("H200"), "half", tensor=True)


def test_sm_limits() -> None:
    hopper = SM_LIMITS.get((9, 0))
    assert hopper is not None
    assert (hopper.max_threads, hopper.max_warps, hopper.max_blocks) == (2048, 64, 32)
    assert SM_LIMITS.get((3, 5)) is None


@pytest.mark.parametrize("limits", SM_LIMITS.values(), ids=lambda sm: f"{sm.major}.{sm.minor}")
def test_sm_limits_are_consistent(limits: SmLimits) -> None:
    modern = limits.compute_capability >= (8, 0)
    assert limits.shared_reserved_per_block_bytes == (1024 if modern else 0)
    assert limits.shared_allocation_unit_bytes == (128 if modern else 256)
    assert limits.shared_per_block_bytes <= limits.shared_per_block_optin_bytes
    assert (
        limits.shared_per_block_optin_bytes + limits.shared_reserved_per_block_bytes
        <= limits.shared_per_sm_bytes
    )
    assert limits.max_threads % limits.max_threads_per_block in (0, 512)
    assert limits.source
    assert any(gpu.compute_capability == limits.compute_capability for gpu in GPUS) or (
        limits.compute_capability == (7, 2)
    )


# What a capture says wins


def test_with_measured_replaces_the_tables_values() -> None:
    listed = row("RTX 2070")
    measured = with_measured(
        listed,
        name="GeForce RTX 2070",
        compute_major=7,
        compute_minor=5,
        sm_count=36,
        clock_hz=1_440_000_000,
        memory_bandwidth_bytes_s=384e9,
        memory_bytes=8_370_061_312,
        l2_bytes=4_194_304,
    )
    assert (measured.name, measured.sm_count) == ("GeForce RTX 2070", 36)
    assert measured.boost_clock_mhz == 1440
    assert measured.memory_bandwidth_bytes_s == 384e9
    assert measured.memory_bytes == 8_370_061_312
    assert measured.source.endswith("; the capture")
    for precision in PRECISIONS:
        for tensor in (False, True):
            before = peak_flops(listed, precision, tensor=tensor)
            after = peak_flops(measured, precision, tensor=tensor)
            assert after == (None if before is None else pytest.approx(before * 1440 / 1620))


def test_with_measured_keeps_what_the_capture_leaves_out() -> None:
    listed = row("H200")
    measured = with_measured(listed, name="", sm_count=0, clock_hz=0, memory_bytes=None)
    for field in fields(Gpu):
        if field.name != "source":
            assert getattr(measured, field.name) == getattr(listed, field.name)


def test_a_slice_of_a_gpu_has_a_slice_of_its_peaks() -> None:
    sliced = with_measured(row("A100 SXM4 40GB"), sm_count=54)
    assert sliced.tensor.bf16 == pytest.approx(312 / 2, rel=0.01)


def test_pairs_of_compute_units_do_not_halve_a_radeon() -> None:
    listed = row("Radeon RX 7900 XTX")
    assert with_measured(listed, sm_count=48).vector == listed.vector
    assert with_measured(listed, sm_count=48).sm_count == 96


def test_an_unlisted_gpu_gets_its_fp32_peak_from_its_lanes() -> None:
    gpu = with_measured(
        None,
        name="NVIDIA Mystery",
        compute_major=8,
        compute_minor=9,
        sm_count=100,
        clock_hz=2e9,
        memory_bandwidth_bytes_s=5e11,
        memory_bytes=GIB,
        l2_bytes=1024,
    )
    assert (gpu.vendor, gpu.architecture, gpu.source) == ("NVIDIA", "Ada Lovelace", "the capture")
    assert peak_flops(gpu, "fp32", tensor=False) == pytest.approx(2 * 128 * 100 * 2e9)
    assert peak_flops(gpu, "fp16", tensor=True) is None
    assert peak_flops(gpu, "fp64", tensor=False) is None


@pytest.mark.parametrize(
    ("name", "major", "minor"), [("", 9, 4), ("AMD Radeon PRO W7900", 9, 0), ("", None, None)]
)
def test_amd_versions_are_not_taken_for_compute_capabilities(
    name: str, major: int | None, minor: int | None
) -> None:
    gpu = with_measured(
        None, name=name, compute_major=major, compute_minor=minor, sm_count=304, clock_hz=2.1e9
    )
    assert gpu.vector.fp32 is None
    assert gpu.vendor in ("", "AMD")
    listed = with_measured(row("MI210"), compute_major=9, compute_minor=0)
    assert listed.compute_capability is None


# The documentation is the table


# Real captures


def captured_gpus() -> dict[str, dict[str, Any]]:
    """Read each distinct GPU that the shared nsys exports describe with its hardware values."""
    gpus = {}
    for path in sorted(SHARED.glob("**/*.sqlite")):
        with closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            try:
                rows = connection.execute("SELECT * FROM TARGET_INFO_GPU").fetchall()
            except sqlite3.DatabaseError:
                continue
        for result in map(dict, rows):
            if result.get("smCount"):
                gpus[f"{result['name']} {result['smCount']} {result['clockRate']}"] = result
    return gpus


CAPTURED = captured_gpus()


@pytest.mark.shared
@needs_captures
@pytest.mark.parametrize("result", CAPTURED.values(), ids=CAPTURED.keys())
def test_the_table_agrees_with_captures(result: dict[str, Any]) -> None:
    gpu = find_gpu(result["name"], sm_count=result["smCount"], memory_bytes=result["totalMemory"])
    assert gpu is not None
    assert gpu.sm_count == result["smCount"]
    assert gpu.compute_capability == (result["computeMajor"], result["computeMinor"])
    assert gpu.memory_bandwidth_bytes_s == pytest.approx(result["memoryBandwidth"], rel=0.03)
    assert gpu.memory_bytes == pytest.approx(result["totalMemory"], rel=0.1)
    assert gpu.l2_bytes == result["l2CacheSize"]
    # Laptop makers choose the clock: only with_measured can tell it.
    if not {"Laptop", "Max-Q"} & set(gpu.name.split()):
        assert gpu.boost_clock_mhz == pytest.approx(result["clockRate"] / 1e6, rel=0.06)


@pytest.mark.shared
@needs_captures
@pytest.mark.parametrize("result", CAPTURED.values(), ids=CAPTURED.keys())
def test_the_sm_limits_agree_with_captures(result: dict[str, Any]) -> None:
    limits = SM_LIMITS.get((result["computeMajor"], result["computeMinor"]))
    assert limits is not None
    assert limits.max_warps == result["maxWarpsPerSm"]
    assert limits.max_blocks == (result["maxBlocksPerSm"] or limits.max_blocks)
    assert limits.shared_per_sm_bytes == result["maxShmemPerSm"]
    assert limits.shared_per_block_bytes == result["maxShmemPerBlock"]
    assert limits.shared_per_block_optin_bytes == result["maxShmemPerBlockOptin"]
    assert limits.registers_per_sm == result["maxRegistersPerSm"]
    assert limits.max_registers_per_block == result["maxRegistersPerBlock"]
    assert limits.max_threads_per_block == result["maxThreadsPerBlock"]
    assert limits.warp_size == result["threadsPerWarp"]


def number(text: str) -> float:
    return float(text.replace(",", ""))


@pytest.mark.shared
@needs_captures
def test_the_table_agrees_with_nsight_compute() -> None:
    path = SHARED / "ncu" / "kernels_full.raw.csv.xz"
    if not path.is_file():
        pytest.skip("no such capture in the shared folder")
    with lzma.open(path, "rt", encoding="utf-8", newline="") as stream:
        header, _units, first, *_ = csv.reader(stream)
    metric = dict(zip(header, first, strict=True))
    gpu = find_gpu(metric["device__attribute_display_name"])
    limits = SM_LIMITS.get((9, 0))
    assert gpu is not None
    assert limits is not None
    assert gpu.sm_count == number(metric["device__attribute_multiprocessor_count"])
    assert limits.shared_reserved_per_block_bytes == number(
        metric["device__attribute_reserved_shared_memory_per_block"]
    )
    assert limits.max_registers_per_thread == number(
        metric["device__attribute_max_registers_per_thread"]
    )
    for instruction, cores in (("ffma", limits.fp32_cores), ("dfma", limits.fp64_cores)):
        per_clock = f"sm__sass_thread_inst_executed_op_{instruction}_pred_on.sum.peak_sustained"
        assert number(metric[per_clock]) == (cores or 0) * gpu.sm_count
    # NVIDIA publishes Hopper's tensor rates at 1830 MHz, below the boost clock.
    dense = number(metric["sm__ops_path_tensor_src_fp8_sparsity_off.sum.peak_sustained"])
    assert gpu.tensor.fp8 == pytest.approx(dense * 1830 / 1e6, rel=0.001)


def traced_gpus() -> dict[str, dict[str, Any]]:
    """Read each distinct GPU that the shared traces of PyTorch describe."""
    gpus = {}
    for path in sorted(SHARED.glob("**/torch/*.json*")):
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        _, key, rest = text.partition('"deviceProperties":')  # the whole would take seconds
        for result in json.JSONDecoder().raw_decode(rest.lstrip())[0] if key else ():
            gpus[f"{result['name']} {result['numSms']} {result['totalGlobalMem']}"] = result
    return gpus


@pytest.mark.shared
@needs_captures
def test_every_gpu_of_the_traces_of_pytorch_is_found() -> None:
    for result in traced_gpus().values():
        gpu = find_gpu(
            result["name"],
            sm_count=result["numSms"],
            memory_bytes=result["totalGlobalMem"],
            compute=(result["computeMajor"], result["computeMinor"]),
        )
        assert gpu is not None
        assert gpu.sm_count == result["numSms"]


@pytest.mark.parametrize(
    "ask",
    [named_gpu, named_limits, lambda gpu: OrionSmLimits(gpu=gpu).named()],
    ids=["roofline", "occupancy", "orion"],
)
@pytest.mark.parametrize(
    ("name", "near"), [("A10O", "A100"), ("", "H100"), ("RTX 409", "RTX 4090")]
)
def test_a_gpu_that_is_not_known_is_refused_in_one_way(
    ask: Callable[[str], object], name: str, near: str
) -> None:
    with pytest.raises(UsageError, match=f"no GPU named '{name}'.*did you mean.*{near}"):
        ask(name)


def test_architectures_are_offered_where_they_will_do() -> None:
    with pytest.raises(UsageError, match="sm_80"):
        named_limits("sm_8x")
    with pytest.raises(UsageError) as refused:
        named_gpu("sm_8x")
    assert "sm_80" not in str(refused.value)
