"""Names, labels and units of Nsight Compute's metrics, against tables and against its own pages."""

from __future__ import annotations

import csv
import io
import lzma
import re
from typing import TYPE_CHECKING

import pytest

from gpusight.naming.metric_label_table import LABELS, SECTION_NAMES
from gpusight.naming.metric_labels import VARIANTS, is_recent, metric_for, section_of
from gpusight.naming.metric_names import canonical, scale_of, unit_of
from tests.shared import SHARED, needs_shared

if TYPE_CHECKING:
    from pathlib import Path

OF_PEAK = "pct_of_peak_sustained_elapsed"
ACTIVE = "pct_of_peak_sustained_active"


# Units that are printed


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (4.2, "Kbyte", (4200.0, "byte")),
        (233.47, "Kbyte/block", (233470.0, "byte/block")),
        (1.5, "Mbyte", (1.5e6, "byte")),
        (3.35, "Tbyte/s", (3.35e12, "byte/s")),
        (3.35, "Tbyte/second", (3.35e12, "byte/s")),
        (2.0, "GB/s", (2e9, "byte/s")),
        (2.0, "KiB", (2048.0, "byte")),
        (1.0, "Kbyte/cycle", (1000.0, "byte/cycle")),
        (8992.0, "nsecond", (8992.0, "ns")),
        (2.5, "us", (2500.0, "ns")),
        (2.5, "usecond", (2500.0, "ns")),
        (2.5, "µs", (2500.0, "ns")),
        (2.86, "msecond", (2.86e6, "ns")),
        (2.0, "ms", (2e6, "ns")),
        (2.0, "second", (2e9, "ns")),
        (2.0, "s", (2e9, "ns")),
        (1.97, "Ghz", (1.97e9, "hz")),
        (1.97, "GHz", (1.97e9, "hz")),
        (900.0, "Mhz", (9e8, "hz")),
        (1.5, "cycle/nsecond", (1.5e9, "hz")),
        (585.0, "cycle/usecond", (585e6, "hz")),
        (7.0, "cycle/second", (7.0, "hz")),
        (3.0, "sector/ns", (3e9, "sector/s")),
        (3.0, "sector/us", (3e6, "sector/s")),
        (3.0, "sector/msecond", (3e3, "sector/s")),
        (3.0, "sectors", (3.0, "sector")),
        (3.0, "branches", (3.0, "branch")),
        (60.0, "warp/cycle", (60.0, "warp")),
        (20.0, "register/thread", (20.0, "register/thread")),
        (3.35, "%/Kbyte", (3350.0, "%/byte")),
        (5.0, "%/", (5.0, "%")),
        (5.0, "%", (5.0, "%")),
        (5.0, "[Ghz]", (5e9, "hz")),
        (5.0, " Kbyte ", (5000.0, "byte")),
        (5.0, "SM", (5.0, "SM")),
        (5.0, "Minst", (5e6, "inst")),
        (5.0, "", (5.0, "")),
        (5.0, "furlong", (5.0, "furlong")),
        (5.0, "furlong/s", (5.0, "furlong/s")),
    ],
)
def test_a_printed_value_comes_to_base_units(
    value: float, unit: str, expected: tuple[float, str]
) -> None:
    scale, base = scale_of(unit)
    number = value * scale
    assert number == pytest.approx(expected[0], rel=1e-12)
    assert base == expected[1]


# Units that names imply


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        ("dram__bytes.sum", "byte"),
        ("dram__bytes.sum.per_second", "byte/s"),
        ("dram__bytes.sum.peak_sustained", "byte/cycle"),
        (f"dram__bytes_read.sum.{OF_PEAK}", "%"),
        ("gpu__time_duration.sum", "ns"),
        ("sm__cycles_elapsed.avg", "cycle"),
        ("sm__cycles_elapsed.avg.per_second", "hz"),
        ("l1tex__lsu_writeback_active_mem_lgds.sum", "cycle"),
        ("l1tex__lsu_writeback_active_mem_lgds.sum.per_second", "hz"),
        ("lts__lts2xbar_cycles_active.sum.peak_sustained", ""),
        ("smsp__issue_active.avg.per_cycle_active", ""),
        ("sm__inst_executed.avg.per_cycle_active", "inst/cycle"),
        ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "inst"),
        ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum.per_second", "inst/s"),
        ("sm__warps_active.avg.per_cycle_active", "warp"),
        ("smsp__warps_active.avg.peak_sustained", "warp"),
        ("smsp__threads_launched.sum", "thread"),
        ("sm__ctas_launched.sum", "block"),
        ("lts__t_sectors_op_read.sum", "sector"),
        ("lts__t_sectors_op_read.sum.per_second", "sector/s"),
        ("lts__t_sectors.avg.per_cycle_elapsed", "sector/cycle"),
        ("lts__t_requests_srcunit_tex.sum", "request"),
        ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", "request"),
        ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", ""),
        ("l1tex__t_sector_hit_rate.pct", "%"),
        ("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio", "sector/request"),
        ("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio", "byte/sector"),
        ("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.max_rate", "byte/sector"),
        ("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct", "%"),
        ("smsp__average_inst_executed_per_warp.ratio", "inst/warp"),
        ("smsp__average_warp_latency_per_inst_issued.ratio", "cycle"),
        ("smsp__average_warps_issue_stalled_wait_per_issue_active.ratio", "cycle"),
        ("smsp__thread_inst_executed_per_inst_executed.ratio", ""),
        ("smsp__sass_branch_targets_threads_divergent.avg", "branch"),
        ("smsp__pcsamp_warps_issue_stalled_membar_not_issued", "warp"),
        ("smsp__pcsamp_buffer_size_bytes", "byte"),
        ("smsp__pcsamp_interval_cycles", "cycle"),
        ("profiler__pmsampler_interval_time", "ns"),
        ("profiler__replayer_passes", "pass"),
        ("sm__maximum_warps_avg_per_active_cycle", "warp"),
        ("sm__maximum_warps_per_active_cycle_pct", "%"),
        ("launch__occupancy_limit_warps", "block"),
        ("launch__registers_per_thread", "register/thread"),
        ("launch__shared_mem_per_block_static", "byte/block"),
        ("launch__shared_mem_config_size", "byte"),
        ("launch__waves_per_multiprocessor", ""),
        ("launch__occupancy_cluster_pct", "%"),
        ("device__attribute_max_warps_per_multiprocessor", ""),
        ("derived__smsp__inst_executed_op_branch_pct", "%"),
        ("derived__lts__lts2xbar_bytes.sum.per_second", "byte/s"),
        ("TPC.TriageCompute.sm__cycles_active.avg", "cycle"),
        ("pmsampling:sm__inst_executed_realtime.avg.per_cycle_active", "inst/cycle"),
        (f"breakdown:gpu__compute_memory_throughput.avg.{OF_PEAK}", "%"),
        ("group:smsp__pcsamp_warp_stall_reasons", ""),
        ("inst_executed", "inst"),
        ("dram__read_bytes_per_sec", "byte/s"),
        ("gpc__elapsed_cycles_max", "cycle"),
        ("dram__frequency", "hz"),
        ("newunit__novel_bytes_op_x.max.per_second", "byte/s"),
        ("newunit__novel_thing.sum", ""),
    ],
)
def test_a_name_implies_a_unit(metric: str, unit: str) -> None:
    assert unit_of(metric) == unit


# Names of other versions


@pytest.mark.parametrize(
    ("old", "today"),
    [
        ("sm__inst_executed_avg_per_elapsed_cycle", "sm__inst_executed.avg.per_cycle_elapsed"),
        ("sm__active_warps_avg_per_active_cycle", "sm__warps_active.avg.per_cycle_active"),
        ("sm__active_warps_avg_per_active_cycle_pct", f"sm__warps_active.avg.{ACTIVE}"),
        ("sm__inst_issued_per_active_cycle_sol_pct", f"sm__inst_issued.avg.{ACTIVE}"),
        ("smsp__inst_executed_sum", "smsp__inst_executed.sum"),
        ("gpc__elapsed_cycles_max", "gpc__cycles_elapsed.max"),
        ("sm__sol_pct", f"sm__throughput.avg.{OF_PEAK}"),
        ("fbpa__sol_pct", f"gpu__dram_throughput.avg.{OF_PEAK}"),
        ("gpu__time_duration", "gpu__time_duration.sum"),
        ("dram__read_bytes", "dram__bytes_read.sum"),
        ("dram__bytes_per_sec", "dram__bytes.sum.per_second"),
        ("dram__bytes_op_read.sum.per_second", "dram__bytes_read.sum.per_second"),
        ("dram__sectors_op_write.sum", "dram__sectors_write.sum"),
        (
            "smsp__warp_cycles_per_issue_stall_long_scoreboard",
            "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
        ),
        ("smsp__pcsamp_warp_stall_barrier", "smsp__pcsamp_warps_issue_stalled_barrier"),
        (
            "smsp__thread_inst_executed_per_inst_executed",
            "smsp__thread_inst_executed_per_inst_executed.ratio",
        ),
        ("sm__maximum_warps_avg_per_active_cycle", "sm__maximum_warps_avg_per_active_cycle"),
        ("sm__maximum_warps_per_active_cycle_pct", "sm__maximum_warps_per_active_cycle_pct"),
        ("smsp__maximum_warps_avg_per_active_cycle", "smsp__maximum_warps_avg_per_active_cycle"),
        ("launch__occupancy_limit_warps", "launch__occupancy_limit_warps"),
        ("lts__t_sectors_op_read.sum", "lts__t_sectors_op_read.sum"),
        ("fbpa__dram_read_bytes.sum", "fbpa__dram_read_bytes.sum"),
        ("no such metric", "no such metric"),
    ],
)
def test_a_name_of_any_version_has_one_spelling(old: str, today: str) -> None:
    assert canonical(old) == today
    assert canonical(today) == today


# Labels

DRAM_RATE = "dram__bytes.sum.per_second"
MEMORY_SHARE = f"gpu__compute_memory_throughput.avg.{OF_PEAK}"
SM_SHARE = f"sm__throughput.avg.{OF_PEAK}"


@pytest.mark.parametrize(
    ("section", "label", "unit", "metric"),
    [
        ("GPU Speed Of Light Throughput", "Memory Throughput", "%", MEMORY_SHARE),
        ("Memory Workload Analysis", "Memory Throughput", "Gbyte/s", DRAM_RATE),
        ("", "Memory Throughput", "%", MEMORY_SHARE),
        ("", "Memory Throughput", "Gbyte/second", DRAM_RATE),
        ("Some Section Of Mine", "Memory Throughput", "byte/s", DRAM_RATE),
        ("", "Memory Throughput", "furlong", None),
        ("SpeedOfLight", "Compute (SM) Throughput", "%", SM_SHARE),
        ("speedoflight", "compute (sm)  throughput", "%", SM_SHARE),
        ("GPU Speed Of Light", "SOL SM", "%", SM_SHARE),
        ("GPU Speed Of Light", "SM [%]", "%", SM_SHARE),
        ("GPU Speed Of Light Throughput", "Compute (SM) [%]", "%", SM_SHARE),
        ("GPU Speed Of Light", "Memory [%]", "%", MEMORY_SHARE),
        ("GPU Speed Of Light", "SOL FB", "%", f"gpu__dram_throughput.avg.{OF_PEAK}"),
        ("", "Duration [us]", "us", "gpu__time_duration.sum"),
        ("", "Duration", "usecond", "gpu__time_duration.sum"),
        ("Launch Statistics", "# SMs", "SM", "launch__sm_count"),
        ("PM Sampling", "Maximum Sampling Interval", "us", "profiler__pmsampler_interval_time"),
        (
            "PM Sampling",
            "Maximum Sampling Interval",
            "cycle",
            "profiler__pmsampler_interval_cycles",
        ),
        ("SpeedOfLight", "L1: Data Bank Reads", "%", f"l1tex__data_bank_reads.avg.{OF_PEAK}"),
        ("SpeedOfLight", "SOL L2: T Sectors", "%", f"lts__t_sectors.avg.{OF_PEAK}"),
        ("SpeedOfLight", "DRAM: Dram Sectors", "%", f"fbpa__dram_sectors.avg.{OF_PEAK}"),
        ("SpeedOfLight", "Remark: Of Somebody", "%", None),
        (
            "Warp State Statistics",
            "Stall Long Scoreboard",
            "inst",
            "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
        ),
        (
            "Source Counters",
            "stall_long_sb (Not Issued)",
            "warp",
            "smsp__pcsamp_warps_issue_stalled_long_scoreboard_not_issued",
        ),
        (
            "GPU Speed Of Light Roofline Chart",
            "Theoretical Predicated-On DFMA Operations",
            "inst",
            "derived__sm__sass_thread_inst_executed_op_dfma_pred_on_x2",
        ),
        (
            "Compute Workload Analysis",
            f"SM Busy (sm__instruction_throughput.avg.{OF_PEAK})",
            "%",
            f"sm__instruction_throughput.avg.{OF_PEAK}",
        ),
        (
            "Command line profiler metrics",
            "dram__bytes_op_read.sum",
            "byte",
            "dram__bytes_read.sum",
        ),
        ("Command line profiler metrics", "branch_inst_executed", "", "branch_inst_executed"),
        ("Occupancy", "A Label Nobody Knows", "%", None),
        ("", "", "", None),
    ],
)
def test_a_label_stands_for_a_metric(
    section: str, label: str, unit: str, metric: str | None
) -> None:
    assert metric_for(section, label, unit) == metric


BY_CYCLES = "Pipe Utilization (% of active cycles)"
BY_INSTRUCTIONS = "Pipe Utilization (% of peak instructions executed)"


@pytest.mark.parametrize(
    ("label", "item", "compute", "recent", "metric"),
    [
        ("SM Busy", "", (9, 0), False, f"sm__instruction_throughput.avg.{ACTIVE}"),
        ("SM Busy", "", (9, 0), True, f"sm__instruction_throughput.avg.{OF_PEAK}"),
        ("ALU", BY_CYCLES, (8, 9), False, f"sm__pipe_alu_cycles_active.avg.{ACTIVE}"),
        ("ALU", BY_INSTRUCTIONS, (8, 9), False, f"sm__inst_executed_pipe_alu.avg.{ACTIVE}"),
        ("ALU", "Pipe Utilization", (7, 5), False, f"sm__pipe_alu_cycles_active.avg.{ACTIVE}"),
        ("LSU", "", None, False, f"sm__inst_executed_pipe_lsu.avg.{ACTIVE}"),
        ("ALU", "", None, False, None),
        (
            "Tensor (FP)",
            BY_CYCLES,
            (9, 0),
            False,
            f"sm__pipe_tensor_op_hmma_cycles_active.avg.{ACTIVE}",
        ),
        (
            "Tensor (FP)",
            "Pipe Utilization (% of elapsed cycles)",
            (10, 0),
            True,
            f"sm__pipe_tensor_subpipe_hmma_cycles_active.avg.{OF_PEAK}",
        ),
        (
            "Tensor (FP)",
            BY_CYCLES,
            (8, 9),
            True,
            f"sm__pipe_tensor_op_hmma_cycles_active_v2.avg.{ACTIVE}",
        ),
    ],
)
def test_a_label_depends_on_its_chart_the_gpu_and_the_year(
    label: str, item: str, compute: tuple[int, int] | None, recent: bool, metric: str | None
) -> None:
    section = "Compute Workload Analysis"
    assert metric_for(section, label, "%", item=item, compute=compute, recent=recent) == metric


def test_rows_of_one_label_are_average_largest_smallest_and_sum() -> None:
    result = [
        metric_for("WorkloadDistribution", "L2 Active Cycles", "cycle", nth=nth) for nth in range(4)
    ]
    assert result == [f"lts__cycles_active.{rollup}" for rollup in ("avg", "max", "min", "sum")]


@pytest.mark.parametrize(
    ("name", "identifier"),
    [
        ("GPU Speed Of Light Throughput", "SpeedOfLight"),
        ("gpu speed of light", "SpeedOfLight"),
        ("SpeedOfLight", "SpeedOfLight"),
        ("PM Sampling: Warp States", "PmSampling_WarpStates"),
        ("Launch Statistics", "LaunchStats"),
        ("Command line profiler metrics", None),
        ("", None),
    ],
)
def test_a_section_has_one_identifier(name: str, identifier: str | None) -> None:
    assert section_of(name) == identifier


def test_the_tables_of_labels_hold_together() -> None:
    assert set(LABELS) <= set(SECTION_NAMES)
    for (section, label), variants in VARIANTS.items():
        assert label in LABELS[section]
        assert all(canonical(v.metric) == v.metric for v in variants)
    for section, labels in LABELS.items():
        for label, metric in labels.items():
            assert canonical(metric) == metric
            assert metric_for(section, label) == metric


# Against pages that Nsight Compute printed

STATED_WRONGLY = {
    r"derived__lts__lts2xbar_bytes\.sum\.\w+": "byte",
    r"derived__memory_l2_theoretical_sectors_global_excessive": "byte",
    r"derived__pct_occupancy_per_register_count": "%/register",
    r"derived__pct_occupancy_per_shared_mem_size": "%/byte",
    r"derived__\w+_x[24]": "thread",
    r"launch__block_dim_[xyz]": "block",
    r"memory_l1_(tag_requests_global|wavefronts_shared\w*)": "sector",
    r"sass__inst_executed_register_spilling_mem_\w+": "byte",
    r"smp?s?p?__i[cm]c_requests\.sum": "cycle",
    r"smsp__average_warps_issue_stalled_\w+_per_issue_active\.ratio": "inst",
    r"smsp__pcsamp_warps_issue_stalled_branch_resolving\w*": "branch",
    r"smsp__pcsamp_warps_issue_stalled_no_instructions\w*": "inst",
}
NOT_STATED = (
    r"GPC_B\.TriageCompute\.gpc__cgas_\w+\.\w+",
    r"derived__l1tex__lsu_writeback_bytes_mem_lgds\.sum\.\w+",
    r"derived__local_spilling_requests",
    r"derived__pct_occupancy_per_barrier_count",
    r"gcc__xbar2gcc_sectors\.sum",
    r"idc__requests\.sum",
    r"(l1tex__|sm__sass_l1tex_)t_requests_\w+\.sum",
    r"sass__(thread_)?inst_executed_(true_)?per_opcode\w*",
)
OWN = ("kernels_full", "gpt_fwd", "resnet18")
RAW_PAGES = [
    *(SHARED / "ncu" / f"{name}.raw.csv.xz" for name in OWN),
    *sorted(SHARED.glob("public/ncu_csv/Roofline-Analysis*")),
]


def _page(path: Path) -> list[list[str]]:
    content = path.read_bytes()
    text = (lzma.decompress(content) if path.suffix == ".xz" else content).decode()
    return list(csv.reader(io.StringIO(text[text.index('"ID"') :])))


def _differs_rightly(metric: str, printed: str) -> bool:
    if not printed:
        return any(re.fullmatch(pattern, metric) for pattern in NOT_STATED)
    return any(re.fullmatch(p, metric) for p, unit in STATED_WRONGLY.items() if unit == printed)


@needs_shared
@pytest.mark.parametrize("path", RAW_PAGES, ids=lambda path: path.name[:40])
def test_units_are_those_that_a_raw_page_states(path: Path) -> None:
    names, units = _page(path)[:2]
    stated = {m: scale_of(u)[1] for m, u in zip(names, units, strict=True) if " " not in m}
    wrong = {
        metric: (unit_of(metric), unit)
        for metric, unit in stated.items()
        if unit_of(metric) != unit and not _differs_rightly(metric, unit)
    }
    assert len(stated) > 200
    assert wrong == {}


@needs_shared
@pytest.mark.parametrize("name", OWN)
def test_labels_give_the_values_of_the_raw_page(name: str) -> None:
    names, units, *launches = _page(SHARED / "ncu" / f"{name}.raw.csv.xz")
    raw = {
        (row[0], metric): (value, unit)
        for row in launches
        for metric, unit, value in zip(names, units, row, strict=True)
    }
    header, *rows = _page(SHARED / "ncu" / f"{name}.details.csv.xz")
    columns = [header.index(f"{c}") for c in ("ID", "CC", "Section Name", "Metric Name")]
    rows = [row for row in rows if row[columns[-1]]]
    assert len(rows) > 2000
    recent = is_recent(row[columns[-1]] for row in rows)
    for row in rows:
        launch, gpu, section, label = (row[column] for column in columns)
        unit, value = row[columns[-1] + 1 : columns[-1] + 3]
        major, minor = map(int, gpu.split("."))
        metric = metric_for(section, label, unit, compute=(major, minor), recent=recent)
        assert metric is not None, (section, label)
        assert _agree((value, unit), raw[launch, metric]), (section, label, metric)


def _agree(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Tell whether two printed values may be one number, by the digits of both."""
    try:
        (a, a_step), (b, b_step) = _number(*one), _number(*other)
    except ValueError:
        return one[0] == other[0]
    return abs(a - b) <= 0.501 * (a_step + b_step)


def _number(text: str, unit: str) -> tuple[float, float]:
    """Give a printed number in base units, and what its last digit stands for."""
    scale = scale_of(unit)[0]
    return float(text.replace(",", "")) * scale, scale * 10.0 ** -len(text.partition(".")[2])
