"""Counters of measured launches: listed, summed up by kernel, by source line."""

from __future__ import annotations

from functools import partial
from typing import Any

import polars as pl
import pytest

from gpusight.analysis.api_summary import api_calls
from gpusight.analysis.capture_info import info
from gpusight.analysis.capture_summary import summary
from gpusight.analysis.copy_summary import copies
from gpusight.analysis.counters.counter_selection import chosen_metrics, range_names
from gpusight.analysis.counters.counter_tables import FORMS, brief_counters, counters
from gpusight.analysis.counters.launch_quantities import (
    LaunchQuantity,
    QuantityFormula,
    measured,
    metric,
)
from gpusight.analysis.kernel_summary import kernel_launches, kernels
from gpusight.analysis.launch_list import list_launches
from gpusight.analysis.range_summary import ranges
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import Selection
from gpusight.errors import MissingDataError, UsageError
from gpusight.results import NotApplicable, TableResult
from gpusight.trace.trace import Trace
from tests.shared import SHARED, needs_shared, opened
from tests.traces import Rows, build_trace

wide_counters = partial(counters, form="wide")
metric_list = partial(counters, form="list")
instances = partial(counters, form="instances")
source_lines = partial(counters, form="source")


SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
TIME = "gpu__time_duration.sum"
REGISTERS = "launch__registers_per_thread"
SHARED_STATIC = "launch__shared_mem_per_block_static"
SHARED_DYNAMIC = "launch__shared_mem_per_block_dynamic"
CACHE = "launch__func_cache_config"
META = {"source": "ncu-report", "tool": "Nsight Compute"}
PROFILES: Rows = [
    {
        "launch": n,
        "kind": "kernel",
        "name": name,
        "mangled_name": mangled,
        "duration_ns": ns,
        "grid_x": grid,
        "grid_y": 1,
        "grid_z": 1,
        "block_x": 64,
        "block_y": 2,
        "block_z": 1,
        "ranges": inside,
        "binary": 0,
        "address": 0x7000,
    }
    for n, name, mangled, ns, grid, inside in (
        (0, "scale<(int)4>(float *)", "_Z5scaleILi4EEvPf", 100.0, 8, "step_0/forward"),
        (1, "reduce(int)", "_Z6reducei", 50.0, 8, "step_0/loss; nccl:all"),
        (2, "scale<(int)4>(float *)", "_Z5scaleILi4EEvPf", 300.0, 8, "step_1/forward"),
        (3, "scale<(int)4>(float *)", "_Z5scaleILi4EEvPf", 50.0, 9, None),
    )
]
COUNTERS: Rows = [
    {"launch": 0, "metric": TIME, "value": 100.0, "unit": "ns"},
    {"launch": 0, "metric": SM, "value": 10.0, "unit": "%"},
    {"launch": 0, "metric": REGISTERS, "value": 32.0, "unit": "register/thread"},
    {"launch": 0, "metric": SHARED_STATIC, "value": 1000.0, "unit": "byte/block"},
    {"launch": 0, "metric": SHARED_DYNAMIC, "value": 24.0, "unit": "byte/block"},
    {"launch": 0, "metric": CACHE, "text": "CachePreferNone"},
    {"launch": 1, "metric": TIME, "value": 50.0, "unit": "ns"},
    {"launch": 1, "metric": SM, "value": 80.0, "unit": "%"},
    {"launch": 2, "metric": TIME, "value": 300.0, "unit": "ns"},
    {"launch": 2, "metric": SM, "value": 50.0, "unit": "%"},
    {"launch": 2, "metric": REGISTERS, "value": 32.0, "unit": "register/thread"},
    {"launch": 2, "metric": SHARED_STATIC, "value": 1000.0, "unit": "byte/block"},
    {"launch": 2, "metric": SHARED_DYNAMIC, "value": 24.0, "unit": "byte/block"},
]


def trace(**tables: Rows) -> Trace:
    whole: dict[str, Rows] = {"profiles": PROFILES, "counters": COUNTERS, **tables}
    return build_trace(META, **whole)


def table(result: object) -> TableResult:
    assert isinstance(result, TableResult), result
    return result


def rows(result: object, *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(row[key] for key in keys) for row in table(result).rows()]


# Choosing


def test_a_formula_that_comes_to_no_number_gives_way_to_the_next() -> None:
    quotient = QuantityFormula(("a", "b"), lambda values: values[0] / values[1])
    quantity = LaunchQuantity("q", "", "A quotient", (quotient, metric("c")), "Section")
    rows = [(0, "a", 1.0), (0, "b", 0.0), (0, "c", 7.0), (1, "a", 0.0), (1, "b", 0.0)]
    rows += [(2, "a", 6.0), (2, "b", 2.0), (2, "c", 7.0)]
    counted = [{"launch": n, "metric": m, "value": v} for n, m, v in rows]
    times = (1.0, float("inf"), float("nan"))
    bare = {"kind": "kernel", "name": "k"}
    launched = [{"launch": n, "duration_ns": t, **bare} for n, t in enumerate(times)]
    frame = measured(build_trace(profiles=launched, counters=counted), [quantity])
    assert frame["q"].to_list() == [7.0, None, 3.0]
    assert frame["duration_ns"].to_list() == [1.0, None, None]


def test_ranges_are_found_by_each_name_and_by_paths_with_or_without_domain() -> None:
    names = set(range_names("a/b/c; lib:d/e"))
    assert {"a", "b", "c", "a/b", "b/c", "a/b/c", "d", "e", "d/e", "lib:d", "lib:d/e"} <= names
    assert "a/c" not in names
    assert sum(map(len, range_names("/" * 50_000))) < 1e8


@pytest.mark.parametrize(
    ("within", "expected"),
    [("step_0", {0, 1}), ("step_*", {0, 1, 2}), ("forward", {0, 2}), ("/all|loss/", {1})],
)
def test_launches_are_selected_by_the_ranges_they_were_made_in(
    within: str, expected: set[int]
) -> None:
    result = table(counters(trace(), Selection(within=within), metrics=[TIME]))
    assert set(result.frame["launch"]) == expected


def test_what_matches_nothing_is_said_with_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"no range matches 'stepp'.*'step_0'"):
        counters(trace(), Selection(within="stepp"))
    with pytest.raises(UsageError, match=r"no metric matches 'dram'.*--list"):
        counters(trace(), metrics=["dram"])
    with pytest.raises(UsageError, match=r"no kernel matches 'gemm'.*scale"):
        counters(trace(), kernel="gemm")
    with pytest.raises(UsageError, match=r"no launch 9.*0 to 3"):
        counters(trace(), launches=[1, 9])
    unmarked = [{**row, "ranges": None} for row in PROFILES]
    with pytest.raises(MissingDataError, match=r"ncu --nvtx"):
        counters(trace(profiles=unmarked), Selection(within="step_0"))


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        ("registers_per_tread", "the nearest are 'launch__registers_per_thread';"),
        ("lts__t_sector_hit_rat.pct", "the nearest are 'lts__t_sector_hit_rate.pct', 'l1tex"),
        ("l1_hit_rate", "the nearest are 'l1tex__t_sector_hit_rate.pct', 'lts"),
        ("achieved_occupancy", "the nearest are 'sm__warps_active.avg.pct_of_peak"),
        ("nonsense", "the capture has 5 others;"),
    ],
)
def test_the_nearest_metrics_are_suggested(typed: str, suggested: str) -> None:
    known = [
        "a__first.sum",
        "l1tex__t_sector_hit_rate.pct",
        "launch__registers_per_thread",
        "lts__t_sector_hit_rate.pct",
        "sm__warps_active.avg.pct_of_peak_sustained_active",
    ]
    with pytest.raises(UsageError, match="no metric matches") as refused:
        chosen_metrics(known, [typed])
    assert suggested in str(refused.value)


def test_metrics_are_found_by_former_names_and_by_what_pages_call_them() -> None:
    assert set(rows(counters(trace(), metrics=["sm__sol_pct"]), "metric")) == {(SM,)}
    assert set(rows(counters(trace(), metrics=["Duration"]), "metric")) == {(TIME,)}


def test_metrics_may_be_given_between_commas() -> None:
    assert set(rows(counters(trace(), metrics=[f"{SM}, {TIME},"]), "metric")) == {(SM,), (TIME,)}
    with pytest.raises(UsageError, match="no metric matches 'nope'"):
        counters(trace(), metrics=[f"{SM},nope"])
    odd = [{"launch": 0, "metric": "a,b", "value": 1.0}]
    assert rows(counters(trace(counters=odd), metrics=["a,b"]), "metric") == [("a,b",)]


# Listing


def test_tidy_rows_begin_with_launch_kernel_metric_value_unit() -> None:
    result = table(counters(trace(), kernel="scale", launches=[0], metrics=[SM, CACHE]))
    assert result.frame.columns[:5] == ["launch", "kernel", "metric", "value", "unit"]
    assert rows(result, "launch", "kernel", "metric", "value", "unit", "text") == [
        (0, "scale<(int)4>(float *)", SM, 10.0, "%", None),
        (0, "scale<(int)4>(float *)", CACHE, None, None, "CachePreferNone"),
    ]
    assert result.meta == {"launches": 1, "metrics": 2}


def test_all_rows_come_without_a_choice() -> None:
    assert table(counters(trace())).frame.height == len(COUNTERS)


def test_the_wide_form_has_a_row_a_launch_and_headings_with_units() -> None:
    result = table(wide_counters(trace(), metrics=[SM, CACHE]))
    assert result.frame.columns == ["launch", "kernel", f"{SM} [%]", CACHE]
    assert result.frame.rows() == [
        (0, "scale<(int)4>(float *)", 10.0, "CachePreferNone"),
        (1, "reduce(int)", 80.0, None),
        (2, "scale<(int)4>(float *)", 50.0, None),
    ]


def test_the_list_counts_launches_and_shows_extremes() -> None:
    listed = rows(metric_list(trace()), "metric", "unit", "launches", "min", "max")
    assert (SM, "%", 3, 10.0, 80.0) in listed
    assert [name for name, *_ in listed] == sorted(name for name, *_ in listed)


def test_people_see_the_metrics_that_tell_most_and_how_many_there_are() -> None:
    many = [*COUNTERS, *({"launch": 0, "metric": f"other_{n}", "value": 1.0} for n in range(9))]
    result = table(brief_counters(trace(counters=many), launches=[0]))
    assert [m for (m,) in rows(result, "metric")] == [
        TIME, SM, REGISTERS, SHARED_STATIC, SHARED_DYNAMIC,
    ]  # fmt: skip
    assert "5 of 15 metrics are shown" in result.notes[0]
    wide = table(brief_counters(trace(counters=many), as_wide=True))
    assert wide.frame.columns[2] == f"{TIME} [ns]"


def test_parts_of_metrics_are_listed_with_their_unit() -> None:
    parts: Rows = [
        {"launch": 0, "metric": SM, "instance": 3, "value": 1.5},
        {"launch": 0, "metric": SM, "instance": 4, "value": 2.5},
        {"launch": 1, "metric": TIME, "key": "HMMA", "value": 7.0},
    ]
    result = instances(trace(counter_instances=parts), metrics=[SM])
    assert rows(result, "launch", "metric", "instance", "value", "unit") == [
        (0, SM, 3, 1.5, "%"),
        (0, SM, 4, 2.5, "%"),
    ]
    absent = instances(trace())
    assert isinstance(absent, NotApplicable)
    assert "SourceCounters" in absent.hint


@pytest.mark.parametrize("form", FORMS)
def test_a_timeline_has_no_counters_in_any_form(form: str) -> None:
    absent = counters(build_trace(kernels=[{"name": "k"}]), form=form)
    assert isinstance(absent, NotApplicable)
    assert "ncu" in absent.hint


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(UsageError, match=r"forms are tidy, wide"):
        counters(trace(), form="narrow")


# By source line

SAMPLES = "smsp__pcsamp_sample_count"
STALLED = "smsp__pcsamp_warps_issue_stalled_"
LINES: dict[str, Rows] = {
    "code_lines": [
        {"binary": 0, "function": "_Z5scaleILi4EEvPf", "offset": 0, "path": "src/a.cu", "line": 2},
        {"binary": 0, "function": "_Z5scaleILi4EEvPf", "offset": 32, "path": "src/a.cu", "line": 3},
    ],
    "source_files": [{"binary": 0, "path": "src/a.cu", "content": "one\n  two;\nthree\n"}],
}


def part(launch: int, metric: str, offset: int, value: float) -> dict[str, Any]:
    return {"launch": launch, "metric": metric, "instance": 0x7000 + offset, "value": value}


def test_samples_are_summed_by_line_and_share_out_the_time() -> None:
    parts = [
        part(0, SAMPLES, 0, 10.0),
        part(0, SAMPLES, 16, 20.0),  # no entry of its own: still line 2
        part(0, SAMPLES, 48, 70.0),
        part(0, "inst_executed", 16, 5.0),
        part(0, f"{STALLED}long_scoreboard", 48, 60.0),
        part(0, f"{STALLED}selected", 48, 900.0),  # issued: nothing that it waits for
        part(0, f"{STALLED}wait_not_issued", 48, 800.0),  # the same samples, counted again
        part(2, SAMPLES, 32, 1.0),
    ]
    result = source_lines(trace(counter_instances=parts, **LINES))
    keys = ("place", "text", "samples", "executed", "time_ns", "stall")
    assert rows(result, *keys) == [
        ("a.cu:3", "three", 71.0, 0.0, pytest.approx(370.0), "long scoreboard"),
        ("a.cu:2", "two;", 30.0, 5.0, pytest.approx(30.0), None),
    ]
    assert sum(share for (share,) in rows(result, "share")) == pytest.approx(1)
    assert not table(result).notes


def test_instructions_without_lines_are_given_by_their_place_in_the_kernel() -> None:
    parts = [part(0, "inst_executed", 16, 30.0), part(0, "inst_executed", 32, 10.0)]
    moment = {"launch": 0, "metric": "inst_executed", "instance": 1 << 60, "value": 9.0}
    result = source_lines(trace(counter_instances=[*parts, moment]))
    keys = ("place", "share", "executed", "time_ns", "samples")
    assert rows(result, *keys) == [
        ("+0x10", 0.75, 30.0, None, None),
        ("+0x20", 0.25, 10.0, None, None),
    ]
    notes = " ".join(table(result).notes)
    assert "-lineinfo" in notes
    assert "not of time" in notes


def test_any_metric_of_instructions_can_be_summed_by_line() -> None:
    parts = [part(0, "memory_x", 0, 1.0), part(2, "memory_x", 40, 3.0), part(2, SAMPLES, 0, 9.0)]
    result = source_lines(trace(counter_instances=parts, **LINES), metrics=["memory_x"])
    assert rows(result, "metric", "place", "value", "share") == [
        ("memory_x", "a.cu:3", 3.0, 0.75),
        ("memory_x", "a.cu:2", 1.0, 0.25),
    ]


def test_reports_without_counters_of_instructions_say_how_to_have_them() -> None:
    absent = source_lines(trace())
    assert isinstance(absent, NotApplicable)
    assert "--section SourceCounters" in absent.hint


def test_metrics_that_were_not_counted_by_instruction_are_said_to_be_so() -> None:
    parts: Rows = [{"launch": 0, "metric": SM, "instance": 5, "value": 1.0}]
    absent = source_lines(trace(counter_instances=parts, **LINES), metrics=[SM])
    assert isinstance(absent, NotApplicable)
    assert "not per instruction" in absent.reason


# Kernels, launches, summary, info


def test_kernels_are_grouped_by_name_and_shape_and_averaged_by_time() -> None:
    result = table(kernels(trace()))
    keys = ("name", "blocks", "block_threads", "calls", "total_ns", "share", "sm_share")
    assert rows(result, *keys) == [
        ("scale<(int)4>(float *)", 8, 128, 2, 400.0, 0.8, pytest.approx(0.4)),
        ("reduce(int)", 8, 128, 1, 50.0, 0.1, pytest.approx(0.8)),
        ("scale<(int)4>(float *)", 9, 128, 1, 50.0, 0.1, None),
    ]
    assert rows(result, "registers", "shared_bytes", "grid", "block")[0] == (
        32.0, 1024.0, "8x1x1", "64x2x1",
    )  # fmt: skip
    assert result.meta["kernels"] == 4
    assert result.meta["total_ns"] == 500


def test_columns_that_the_report_cannot_fill_are_not_shown_but_kept() -> None:
    result = table(kernels(trace()))
    shown = {f.key for f in result.fields if f.shown}
    assert {"sm_share", "registers", "blocks"} <= shown
    assert not shown & {"occupancy", "dram_share", "waves"}
    assert result.frame["occupancy"].null_count() == result.frame.height


def test_launches_of_one_kernel_with_other_dynamic_shared_memory_are_apart() -> None:
    other = [r for r in COUNTERS if (r["launch"], r["metric"]) != (2, SHARED_DYNAMIC)]
    other.append({"launch": 2, "metric": SHARED_DYNAMIC, "value": 48.0})
    assert [c for (c,) in rows(kernels(trace(counters=other)), "calls")] == [1, 1, 1, 1]


def test_a_failed_measurement_does_not_spread() -> None:
    failed = [{**r, "duration_ns": float("nan")} if r["launch"] == 1 else r for r in PROFILES]
    result = table(kernels(trace(profiles=failed)))
    assert rows(result, "name", "total_ns", "share")[-1] == ("reduce(int)", None, None)
    assert result.meta["total_ns"] == 450
    assert "1 launch has no duration" in result.notes[0]


def test_without_durations_kernels_come_in_order_and_a_note_says_why() -> None:
    untimed = [{**r, "duration_ns": None} for r in PROFILES]
    result = table(kernels(trace(profiles=untimed)))
    assert [n for (n,) in rows(result, "name")][:2] == ["scale<(int)4>(float *)", "reduce(int)"]
    assert rows(result, "sm_share")[0] == (pytest.approx(0.3),)
    assert result.meta["total_ns"] is None
    assert "gpu__time_duration.sum" in result.notes[0]


def test_launches_come_in_order_and_by_time() -> None:
    assert rows(list_launches(trace()), "launch", "duration_ns", "ranges")[1] == (
        1, 50.0, "step_0/loss; nccl:all",
    )  # fmt: skip
    assert [n for (n,) in rows(list_launches(trace(), kernel="reduce"), "launch")] == [1]
    assert [n for (n,) in rows(kernel_launches(trace()), "launch")] == [2, 0, 1, 3]
    absent = kernel_launches(build_trace(kernels=[{"name": "k"}]))
    assert isinstance(absent, NotApplicable)
    assert "gpusight launches" in absent.hint


def test_ranges_and_graphs_that_were_measured_as_wholes_are_said() -> None:
    whole = [{**r, "kind": "graph"} if r["launch"] == 1 else r for r in PROFILES]
    assert "1 of these is a range or graph" in table(kernels(trace(profiles=whole))).notes[0]


def test_a_summary_is_one_screen_about_the_kernels() -> None:
    page = summary(trace())
    facts = {f.key: f.value for f in page.facts}
    assert (facts["kernels"], facts["kernel_names"], facts["kernel_ns"]) == (4, 2, 500.0)
    assert [s.command for s in page.sections] == ["kernels"]
    assert "sm_share" not in facts  # one launch has none: the average would be of the others
    assert any("gpusight diagnose" in note for note in page.notes)
    assert summary(trace(), Selection(within="step_1")).title == "Summary of step_1"


def test_info_counts_what_was_measured_and_says_what_is_missing() -> None:
    rules: Rows = [
        {"launch": 0, "rule": "SOL", "title": "Bottleneck", "section": "S", "kind": "warning"},
        {"launch": 1, "rule": "SOL", "title": "Bottleneck", "section": "S", "kind": "ok"},
    ]
    page = info(trace(rule_results=rules, processes=[{"process": 1}]))
    facts = {f.key: f.value for f in page.facts}
    assert (facts["launches"], facts["metrics"], facts["total_ns"]) == (4, 6, 500.0)
    sections = {s.command: s for s in page.sections}
    assert rows(sections["rules"], "section", "title", "launches", "advised") == [
        ("S", "Bottleneck", 2, 1)
    ]
    assert rows(sections["processes"], "profiles") == [(4,)]
    missing = {option for (option,) in rows(sections["missing"], "option")}
    assert {"--section MemoryWorkloadAnalysis", "--section Occupancy"} <= missing
    assert "--import-source yes" in missing
    assert not missing & {"--section SpeedOfLight", "--section LaunchStats", "--nvtx"}


@pytest.mark.parametrize("analysis", [api_calls, copies, ranges])
def test_questions_about_a_timeline_are_answered_by_what_there_is_instead(analysis: Any) -> None:
    absent = analysis(trace())
    assert isinstance(absent, NotApplicable)
    assert "kernels one by one" in absent.hint
    assert "gpusight kernels" in absent.hint


def test_the_advice_for_reports_is_of_ncu() -> None:
    advice = advice_for(trace().meta)
    assert advice.option_label == "Option of ncu"
    assert all(w.option.startswith("--") for w in advice.wanted)


# Real reports


@pytest.fixture(scope="module")
def planted() -> Trace:
    return opened(SHARED / "ncu" / "kernels_full.ncu-rep.xz")


@needs_shared
def test_every_row_of_a_report_is_listed_once(planted: Trace) -> None:
    tidy = table(counters(planted))
    assert tidy.frame.height == planted.row_count("counters")
    wide = table(wide_counters(planted))
    assert wide.frame.height == planted.row_count("profiles")
    assert wide.frame.width == 2 + tidy.frame["metric"].n_unique()


@needs_shared
def test_a_report_of_planted_kernels_shows_their_character(planted: Trace) -> None:
    result = table(kernels(planted))
    by_name = {row["short_name"]: row for row in result.rows()}
    assert len(by_name) == 12
    assert all(row["calls"] == 2 for row in by_name.values())
    assert by_name["copy_coalesced"]["dram_share"] > 0.8
    assert by_name["fma_heavy"]["sm_share"] > 0.9
    assert by_name["low_occupancy_regs"]["registers"] > 200
    assert by_name["low_occupancy_smem"]["theoretical_occupancy"] < 0.1
    assert sum(row["share"] for row in by_name.values()) == pytest.approx(1)


@needs_shared
def test_a_report_with_source_shows_its_hot_lines(planted: Trace) -> None:
    result = table(source_lines(planted, kernel="fma_heavy"))
    first = result.rows()[0]
    assert first["place"] == "kernels.cu:9"
    assert first["share"] > 0.8
    assert first["text"].startswith("for(")
    assert result.frame.select(pl.col("share").sum()).item() == pytest.approx(1)
