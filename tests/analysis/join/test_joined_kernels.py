"""A timeline and a report of one program: which launches belong together, and what that tells."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import polars as pl
import pytest

import gpusight as gs
from gpusight.analysis.join.joined_kernels import _sentence, join
from gpusight.analysis.join.launch_matching import (
    NEEDS,
    base_name,
    cover,
    in_launch_order,
    launch_keys,
    match,
)
from gpusight.analysis.orion.orion_matching import timeline_launches
from gpusight.analysis.selection import Selection
from gpusight.analysis.steps.step_window import step_window
from gpusight.analysis.steps.window_headline import StepWindow
from gpusight.naming.name_parts import normal_name
from gpusight.results import Composite, NotApplicable, TableResult
from gpusight.trace.trace import Trace
from tests.shared import DATA, SHARED, needs_shared, opened
from tests.traces import Rows, build_trace

# Names


def test_a_base_name_has_no_namespace_and_no_arguments() -> None:
    assert base_name(normal_name("void at::native::f<a::b<3>>(int)")) == "f"


# Launches


def frame(*launches: str | tuple[str, int], mangled: dict[str, str] | None = None) -> pl.DataFrame:
    """Make launches of a name, or of a name and a grid."""
    pairs = [(x, 1) if isinstance(x, str) else x for x in launches]
    rows = [
        {"name": name, "mangled_name": (mangled or {}).get(name), "grid_x": grid, "grid_y": 1,
         "grid_z": 1, "block_x": 32, "block_y": 1, "block_z": 1}
        for name, grid in pairs
    ]  # fmt: skip
    return build_trace(kernels=rows).table("kernels", NEEDS)


def test_equal_sequences_are_paired_one_by_one() -> None:
    sides = frame("a", "b", "a"), frame("a", "b", "a")
    assert match(*sides).pairs == [(0, 0), (1, 1), (2, 2)]


def test_a_missing_launch_shifts_nothing() -> None:
    matched = match(frame("a", "b", "a", "c", "a"), frame("a", "a", "c", "x", "a"))
    assert matched.pairs == [(0, 0), (2, 1), (3, 2), (4, 4)]
    assert matched.left_only.tolist() == [1]
    assert matched.right_only.tolist() == [3]
    assert (matched.left_reason, matched.right_reason) == (("name",), ("name",))
    assert matched.in_order


def test_a_capture_of_some_launches_is_found_within_one_of_all() -> None:
    chance = random.Random(1)
    names = [chance.choice("abcdefgh") for _ in range(400)]
    matched = match(frame(*names), frame(*names[1::3]))
    assert len(matched.right) == len(names[1::3])
    assert len(matched.right_only) == 0


def test_why_a_launch_has_no_partner() -> None:
    matched = match(frame(("a", 1), ("a", 2), "b", "b"), frame(("a", 3), "b"))
    assert matched.left_reason == ("shape", "shape", "place")
    assert matched.right_reason == ("shape",)


def test_long_sequences_that_differ_throughout_are_paired_by_order_within_a_kernel() -> None:
    left = frame("x", *["a", "b"] * 3_000)
    right = frame(*["b", "b", "a"] * 2_000, "y")
    matched = match(left, right)
    assert not matched.in_order
    keys = matched.keys
    assert (keys.left.gather(matched.left) == keys.right.gather(matched.right)).all()
    assert len(matched.left) == 5_000


def test_pairs_agree_and_add_up_whatever_is_lost() -> None:
    chance = random.Random(4)
    for _ in range(40):
        whole = [chance.choice("abcd") for _ in range(30)]
        sides = [[x for x in whole if chance.random() > 0.2] for _ in range(2)]
        left, right = (frame(*side) for side in sides)
        matched = match(left, right)
        assert all(sides[0][i] == sides[1][j] for i, j in matched.pairs)
        assert len(matched.left) + len(matched.left_only) == left.height
        assert len(matched.right) + len(matched.right_only) == right.height
        assert (np.diff(matched.left) > 0).all()
        assert (np.diff(matched.right) > 0).all()


def test_a_run_of_measured_launches_is_found_wherever_it_occurs() -> None:
    covered = cover(frame("x", "a", "b", "a", "x", "a", "b", "a", "b"), frame("a", "b", "a"))
    assert covered.occurrences == 2
    assert covered.right.tolist() == [-1, 0, 1, 2, -1, 0, 1, 2, 1]
    assert covered.in_sequence.tolist() == [False, True, True, True, False, True, True, True, False]
    assert covered.left_reason.to_list() == ["name", "", "", "", "name", "", "", "", ""]


def test_launches_that_are_no_run_go_by_order_within_a_kernel_and_around() -> None:
    covered = cover(frame("a", "b", "a", "a", "b", "a"), frame("b", "a", "a", "c"))
    assert covered.occurrences == 0
    assert covered.right.tolist() == [1, 0, 2, 1, 0, 2]
    assert covered.right_reason.to_list() == ["", "", "", "name"]


def test_another_grid_is_another_launch() -> None:
    covered = cover(frame(("a", 4), ("a", 5)), frame(("a", 4)))
    assert covered.right.tolist() == [0, -1]
    assert covered.left_reason.to_list() == ["", "shape"]


def test_runs_are_found_in_repetitive_sequences() -> None:
    covered = cover(frame(*["a"] * 1_000), frame(*["a"] * 7))
    assert covered.occurrences == 142
    assert (covered.right >= 0).all()


def test_names_are_compared_as_written_or_as_demangled() -> None:
    mangled = {"void f<(int)4>(T1)": "_Z1fILi4EEvPf"}
    keys = launch_keys(frame("void f<(int)4>(T1)", mangled=mangled), frame("_Z1fILi4EEvPf"))
    assert keys.left[0] == keys.right[0]
    odd = {"odd spelling": "_Z1fILi4EEvPf"}
    keys = launch_keys(frame("odd spelling", mangled=odd), frame("f<4>(float*)"))
    assert keys.left[0] == keys.right[0]
    assert keys.by_function == 0


def test_namespaces_that_one_side_leaves_out_do_not_matter() -> None:
    printed = "void at::v<4, at::Gelu(at::B &)::[lambda() (instance 2)]>(int)"
    whole = "void at::native::v<4, at::native::Gelu(at::B&)::{lambda()#2}>(int)"
    other = "void at::native::v<4, at::native::Tanh(at::B&)::{lambda()#2}>(int)"
    keys = launch_keys(frame(whole, other), frame(printed))
    assert keys.left[0] == keys.right[0] != keys.left[1]
    both = launch_keys(frame("a::f<1>", "b::f<1>"), frame("b::f<1>", "a::f<1>"))
    assert both.left.to_list() == both.right.to_list()[::-1]


def test_names_without_arguments_are_compared_by_function() -> None:
    keys = launch_keys(frame("n::f<4>(int)", "n::f<8>(int)", "g<1>"), frame("f", "g<1>"))
    assert keys.left[0] == keys.left[1] == keys.right[0]
    assert keys.by_function == 3
    apart = launch_keys(frame("n::f<4>(int)", "g<1>"), frame("n::f<8>(int)", "g<1>"))
    assert apart.left[0] != apart.right[0]
    assert apart.by_function == 0


def test_shapes_that_one_side_does_not_tell_are_not_compared() -> None:
    unshaped = frame("a").with_columns(pl.lit(None, pl.Int64).alias(c) for c in NEEDS[2:])
    keys = launch_keys(frame(("a", 7)), unshaped)
    assert keys.left[0] == keys.right[0]
    assert not keys.shapes


# The whole

SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
FLOPS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
OPERATIONS = ("fadd", "fmul", "ffma")
META = {"source": "ncu-report", "tool": "Nsight Compute"}
SHAPE = {"grid_x": 4, "grid_y": 1, "grid_z": 1, "block_x": 64, "block_y": 1, "block_z": 1}


def timeline(*kernels: tuple[str, int, int], **tables: Rows) -> Trace:
    """Make a timeline of kernels: name, start and end."""
    rows = [
        {"name": name, "start_ns": start, "end_ns": end, "correlation": n + 1, **SHAPE}
        for n, (name, start, end) in enumerate(kernels)
    ]
    return build_trace(None, kernels=rows, **tables)


def report(*launches: tuple[str, float, float, float], **shape: int) -> Trace:
    """Make a report of launches: name, duration, SM % and DRAM %."""
    profiles: Rows = [
        {"launch": n, "kind": "kernel", "name": name, "duration_ns": ns, **SHAPE, **shape}
        for n, (name, ns, *_) in enumerate(launches)
    ]
    counters: list[dict[str, Any]] = []
    for n, (_, ns, sm, dram) in enumerate(launches):
        counters += [
            {"launch": n, "metric": "gpu__time_duration.sum", "value": ns, "unit": "ns"},
            {"launch": n, "metric": SM, "value": sm, "unit": "%"},
            {"launch": n, "metric": DRAM, "value": dram, "unit": "%"},
            *({"launch": n, "metric": FLOPS.format(op), "value": 0.0} for op in OPERATIONS),
        ]
    return build_trace(META, profiles=profiles, counters=counters)


def joined(*arguments: Any) -> Composite:
    result = join(*arguments)
    assert isinstance(result, Composite), result
    return result


def section(page: Composite, name: str) -> TableResult:
    section = next(s for s in page.sections if s.command == name)
    assert isinstance(section, TableResult)
    return section


def facts(page: Composite) -> dict[str, Any]:
    return {fact.key: fact.value for fact in page.facts}


def test_measured_shares_are_weighed_by_the_time_of_the_timeline() -> None:
    page = joined(
        timeline(("a", 0, 300), ("b", 300, 400), ("c", 400, 1000)),
        report(("a", 600.0, 10.0, 20.0), ("b", 200.0, 50.0, 60.0)),
    )
    values = facts(page)
    assert (values["kernels"], values["covered"], values["launches"]) == (3, 2, 2)
    assert values["covered_share"] == pytest.approx(0.4)
    assert values["sm_share"] == pytest.approx((0.1 * 300 + 0.5 * 100) / 400)
    assert values["dram_share"] == pytest.approx((0.2 * 300 + 0.6 * 100) / 400)
    notes = " ".join(page.notes)
    assert "2.00x their time" in notes
    assert "1 kernel was not profiled: 1 with a name" in notes


def test_kernels_are_ranked_by_time_above_their_roof() -> None:
    page = joined(
        timeline(("near", 0, 500), ("far", 500, 900), ("far", 900, 1000)),
        report(("near", 500.0, 10.0, 95.0), ("far", 400.0, 10.0, 50.0)),
    )
    rows = section(page, "kernels").rows()
    keys = ("short_name", "share", "calls", "measured", "roof_share", "gap_ns", "ratio")
    assert [tuple(r[k] for k in keys) for r in rows] == [
        ("far", 0.5, 2, 1, pytest.approx(0.5), pytest.approx(250), pytest.approx(1.6)),
        ("near", 0.5, 1, 1, pytest.approx(0.95), pytest.approx(25), pytest.approx(1.0)),
    ]
    assert rows[0]["sentence"].startswith("far is 50% of the window and at 50% of the roof")
    assert facts(page)["first"] == rows[0]["sentence"]
    assert [row["limited_by"] for row in rows] == ["DRAM 50%", "DRAM 95%"]
    assert rows[1]["sentence"].endswith("(memory-bound: DRAM 95%)")
    assert page.notes[-1] == "bottlenecks and fixes: gpusight diagnose TIMELINE REPORT"
    assert facts(page)["roof_share"] == pytest.approx((0.95 * 500 + 0.5 * 500) / 1000)


@pytest.mark.parametrize(
    ("bound", "limit", "says"),
    [
        ("memory", "dram", "(memory-bound: DRAM 88%)"),
        ("memory", "l1", "(limited by L1 88%)"),
        ("memory", "l2", "(limited by L2 88%)"),
        ("compute", "fp32", "(compute-bound: fp32 88%)"),
        ("latency", None, "(latency-bound)"),
    ],
)
def test_only_what_dram_limits_is_memory_bound(bound: str, limit: str | None, says: str) -> None:
    row = {"short_name": "gemm", "share": 0.5, "roof_share": 0.6, "bound": bound, "limit": limit}
    name = {"dram": "DRAM", "l1": "L1", "l2": "L2"}.get(str(limit), limit)
    sentence = _sentence("the window", row, bound if limit is None else f"{name} 88%")
    assert sentence == f"gemm is 50% of the window and at 60% of the roofline {says}"


def test_what_has_no_partner_is_listed_on_both_sides_with_why() -> None:
    kernel = {"kind": "kernel", **SHAPE}
    page = joined(
        timeline(("a", 0, 10), ("b", 10, 20), ("c", 20, 30)),
        build_trace(
            META,
            profiles=[
                {**kernel, "launch": 0, "name": "a", "duration_ns": 10.0},
                {**kernel, "launch": 1, "name": "b", "duration_ns": 7.0, "grid_x": 9},
                {**kernel, "launch": 2, "name": "d", "duration_ns": 9.0},
            ],
            counters=[{"launch": 0, "metric": SM, "value": 50.0}],
        ),
    )
    keys = ("name", "why", "other")
    assert [tuple(r[k] for k in keys) for r in section(page, "unmeasured").rows()] == [
        ("b", "other grid or block", "9x1x1 of 64x1x1"),
        ("c", "not in the report", None),
    ]
    assert [tuple(r[k] for k in keys) for r in section(page, "unused").rows()] == [
        ("d", "not in the timeline", None),
        ("b", "other grid or block", "4x1x1 of 64x1x1"),
    ]
    assert any("SpeedOfLight_RooflineChart" in note for note in page.notes)


def test_a_report_of_whole_graphs_has_no_kernels_to_join() -> None:
    whole = {"kind": "graph", "launch": 0, "name": "(graph)", "duration_ns": 10.0}
    counters: Rows = [{"launch": 0, "metric": SM, "value": 50.0}]
    result = join(timeline(("a", 0, 10)), build_trace(META, profiles=[whole], counters=counters))
    assert isinstance(result, NotApplicable)
    assert "graphs as a whole" in result.reason


def test_a_range_selects_the_timeline() -> None:
    calls: Rows = [
        {"start_ns": 0, "end_ns": 1, "correlation": 1},
        {"start_ns": 50, "end_ns": 51, "correlation": 2},
    ]
    marked = timeline(
        ("a", 10, 20),
        ("a", 60, 100),
        api_calls=calls,
        ranges=[{"start_ns": 40, "end_ns": 90, "name": "step_1"}],
    )
    page = joined(marked, report(("a", 40.0, 30.0, 30.0)), Selection(within="step_1"))
    values = facts(page)
    assert (values["kernels"], values["window_ns"]) == (1, 60)
    assert "of step_1" in values["first"]


def test_the_window_is_that_of_every_command() -> None:
    """Three steps: the first is warm-up and runs a kernel that no other step runs."""
    steps = [("early", 0, 9_000), ("a", 10_000, 10_500), ("a", 11_000, 11_500)]
    calls: Rows = [
        {"start_ns": start, "end_ns": start + 1, "correlation": n + 1}
        for n, (_, start, _) in enumerate(steps)
    ]
    ranges: Rows = [
        {"start_ns": start, "end_ns": end, "name": f"{'warmup' if n == 0 else 'step'}_{n}"}
        for n, (_, start, end) in enumerate(steps)
    ]
    ranges = [{"start_ns": 0, "end_ns": 9_000, "name": "warmup"}, *ranges]
    trace = timeline(*steps, api_calls=calls, ranges=ranges)
    measured = report(("early", 9_000.0, 30.0, 30.0), ("a", 500.0, 30.0, 30.0))
    chosen = step_window(trace)
    assert isinstance(chosen, StepWindow)
    for given in ((trace, measured), (measured, trace)):
        page = gs.join(*given).answer
        assert isinstance(page, Composite)
        assert page.heading.startswith(f"Timeline and report: {chosen.text}, GPU busy ")
        assert (facts(page)["kernels"], facts(page)["window_ns"]) == (2, chosen.length_ns)
        assert section(page, "unused").frame["why"].to_list() == ["not in the window"]
    every = gs.join(trace, measured, window=(None, None)).answer
    assert isinstance(every, Composite)
    assert facts(every)["kernels"] == 3


def test_kernels_of_several_processes_are_told_one_process_after_the_other() -> None:
    rows = [(1, 5, 0), (0, 9, 10), (1, 4, 20), (0, 9, 30), (0, 2, 40)]
    frame = pl.DataFrame(rows, schema=["process", "correlation", "start_ns"], orient="row")
    ordered = [(0, 2, 40), (0, 9, 10), (0, 9, 30), (1, 4, 20), (1, 5, 0)]
    assert in_launch_order(frame).rows() == ordered
    unnumbered = frame.with_columns(pl.lit(None, pl.Int64).alias("correlation"))
    assert in_launch_order(unnumbered)["start_ns"].to_list() == [0, 10, 20, 30, 40]


def test_a_scheduler_sees_launches_in_the_same_order() -> None:
    rows = [(1, 5, 0), (0, 9, 10), (1, 4, 20)]
    kernels = [
        {"name": "a", "process": p, "correlation": c, "start_ns": s, "end_ns": s + 5, **SHAPE}
        for p, c, s in rows
    ]
    result = timeline_launches(build_trace(kernels=kernels), Selection())
    assert isinstance(result, pl.DataFrame)
    assert result["start_ns"].to_list() == [10, 20, 0]


def test_kernels_are_compared_in_order_of_launch_not_of_start() -> None:
    rows = [
        {"name": n, "start_ns": s, "end_ns": s + 5, "correlation": c, **SHAPE}
        for n, s, c in (("b", 0, 2), ("a", 1, 1))
    ]
    page = joined(build_trace(kernels=rows), report(("a", 5.0, 1.0, 1.0), ("b", 5.0, 1.0, 1.0)))
    assert [row["exact"] for row in section(page, "kernels").rows()] == [1, 1]


def test_the_two_may_come_in_either_order() -> None:
    one, other = timeline(("a", 0, 10)), report(("a", 10.0, 1.0, 1.0))
    assert facts(joined(one, other)) == facts(joined(other, one))


@pytest.mark.parametrize(
    ("left", "right", "reason"),
    [
        (timeline(("a", 0, 9)), timeline(("a", 0, 9)), "no hardware counters"),
        (report(("a", 9.0, 1.0, 1.0)), report(("a", 9.0, 1.0, 1.0)), "must be a timeline"),
        (build_trace(api_calls=[{}]), report(("a", 9.0, 1.0, 1.0)), "no kernels"),
        (timeline(("a", 0, 9)), report(("b", 9.0, 1.0, 1.0)), "by its names: .*'a'.*'b'"),
        (timeline(("a", 0, 9)), report(("a", 9.0, 1.0, 1.0), grid_x=5), "grids and blocks"),
    ],
)
def test_captures_that_cannot_be_joined_say_why(left: Trace, right: Trace, reason: str) -> None:
    absent = join(left, right)
    assert isinstance(absent, NotApplicable)
    assert pl.Series([absent.reason]).str.contains(reason).item(), absent.reason


def test_captures_of_different_gpus_are_said_to_be() -> None:
    left = timeline(("a", 0, 9), devices=[{"name": "NVIDIA A100-SXM4-40GB"}])
    right = build_trace(
        META,
        profiles=[{"launch": 0, "kind": "kernel", "name": "a", "duration_ns": 9.0, **SHAPE}],
        counters=[{"launch": 0, "metric": SM, "value": 50.0}],
        devices=[{"name": "NVIDIA H200"}],
    )
    assert any("A100" in note and "H200" in note for note in joined(left, right).notes)


# Real captures


def ncu(name: str) -> Trace:
    return opened(SHARED / "ncu" / f"{name}.ncu-rep.xz")


@needs_shared
def test_an_inference_of_which_everything_was_measured() -> None:
    page = joined(opened(DATA / "resnet18_infer.sqlite"), ncu("resnet18"))
    values = facts(page)
    assert (values["kernels"], values["covered"], values["launches"]) == (114, 114, 114)
    assert values["covered_share"] == 1
    assert sum(row["exact"] for row in section(page, "kernels").rows()) == 114
    assert [s.command for s in page.sections] == ["kernels"]


@needs_shared
@pytest.mark.parametrize("capture", ["gpt_small_forward.sqlite", "gpt_small_forward.json.gz"])
def test_two_blocks_of_a_model_tell_of_all_its_steps(capture: str) -> None:
    page = joined(opened(DATA / capture), ncu("gpt_fwd"))
    values = facts(page)
    assert (values["kernels"], values["covered"], values["launches"]) == (774, 771, 45)
    assert values["covered_share"] == pytest.approx(0.949, abs=0.002)
    missing = section(page, "unmeasured").rows()
    assert [(r["calls"], r["why"]) for r in missing] == [(3, "other grid or block")]
    # 100.8 M parameters, 2048 tokens, 3 steps: what is not measured is the last matrix product.
    assert 1.0 < values["tflop"] < 1.3


@needs_shared
def test_fp32_gemms_have_the_headroom_of_both_rooflines() -> None:
    folder = SHARED / "nsys", SHARED / "ncu"
    joined = gs.join(folder[0] / "gpt_small_forward.sqlite", folder[1] / "gpt_fwd.ncu-rep.xz")
    rows = joined["kernels"].frame.to_dicts()
    gemm = next(row for row in rows if "gemm f32" in row["short_name"])
    assert gemm["roof"] == "fp32"
    # `diagnose` estimates less than the roofline allows, and more than there is on CUDA cores.
    assert gemm["gap_ns"] < 0.85 * gemm["total_ns"] < gemm["tensor_gap_ns"] < gemm["total_ns"]
    others = [row for row in rows if "softmax" in row["short_name"]]
    assert all(row["roof"] == "DRAM" and row["tensor_gap_ns"] is None for row in others)
