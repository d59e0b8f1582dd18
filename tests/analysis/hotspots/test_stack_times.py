"""Idle GPU time, GPU time and host time by line, on captures whose sums are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import gpusight as gs
from gpusight.analysis.capture_info import DEF_LINES
from gpusight.analysis.hotspots.stack_times import NO_RANGE, NO_STACK, Hotspots, TrackWork, hotspots
from gpusight.analysis.hotspots.stack_tree import without_interpreter
from gpusight.render.table_layout import TableOptions
from tests.analysis.hotspots.stack_traces import MS, STEP_NS, frame_rows, loader_trace, sample
from tests.shared import DATA, SHARED, needs_shared, opened
from tests.traces import THREAD, build_trace


def by_function(result: gs.Result) -> dict[str, dict[str, Any]]:
    return {row["function"]: row for row in result.answer.table().rows()}


def test_idle_time_goes_to_the_own_line_around_the_library() -> None:
    rows = by_function(gs.hotspots(loader_trace()))
    collate, forward = rows["collate"], rows["forward"]
    assert (collate["file"], collate["line"]) == ("/home/ada/train.py", 88)
    assert collate["idle_ns"] == 6 * 12 * MS
    assert collate["host_ns"] == 6 * 12 * MS
    assert (collate["samples"], forward["samples"]) == (6 * 6, 6 * 4)
    # A sample of the silence before a launch does not say what launched.
    assert (collate["gpu_ns"], forward["gpu_ns"]) == (0, 6 * (8 * MS - 10_000))
    assert forward["launches"] == 6


def test_all_frames_names_the_innermost_line() -> None:
    rows = by_function(gs.hotspots(loader_trace(), all_frames=True))
    assert rows["decode"]["idle_ns"] == 6 * 12 * MS
    assert "collate" not in rows


@pytest.mark.parametrize(
    ("by", "column", "first"),
    [("function", "function", "collate"), ("module", "module", "train")],
)
def test_groups(by: str, column: str, first: str) -> None:
    row = gs.hotspots(loader_trace(), by=by).answer.table().rows()[0]
    assert row[column] == first
    assert row["line"] is None
    assert row["idle_ns"] == 6 * 12 * MS


def test_packages_are_the_outermost_part_of_modules() -> None:
    table = gs.hotspots(loader_trace(), by="package", all_frames=True).answer.table()
    assert table.frame["location"].to_list() == ["json", "torch"]


def test_stacks_are_a_tree_whose_rows_hold_what_is_below_them() -> None:
    table = gs.hotspots(loader_trace(), by="stack").answer.table()
    rows = table.frame.select("function", "depth", "idle_ns").rows()
    total = 6 * (12 * MS + 10_000)
    assert rows == [("main", 0, total), ("collate", 1, 6 * 12 * MS), ("forward", 1, 60_000)]


def test_small_branches_are_left_out_where_few_rows_are_shown() -> None:
    rare = {"stack": 4, "depth": 0, "function": "rare", "file": "/home/ada/rare.py", "line": 1}
    frames = [*frame_rows(), {**rare, "kind": "python", "is_library": False}]
    samples = [sample(step * 20 * MS + 6 * MS, 1, 20 * MS) for step in range(300)]
    samples.insert(100, sample(99 * 20 * MS + 7 * MS, 4, MS))
    trace = loader_trace(300, stack_samples=samples, stack_frames=frames)
    result = gs.hotspots(trace, by="stack")
    assert "rare" in result.frame["function"].to_list()
    assert "rare" in [row["function"] for row in result.to_dict()["rows"]]
    look = TableOptions(100, 20)
    assert "rare" not in result.to_text(look)
    assert "rare" in result.to_text(replace(look, limit=0))


def test_a_range_has_what_runs_between_its_occurrences_too() -> None:
    result = gs.hotspots(loader_trace(), within="step_*")
    assert any("--by range sums up each range alone" in note for note in result.notes)
    assert not any("--by range" in note for note in gs.hotspots(loader_trace()).notes)


def test_ranges_take_the_place_of_stacks() -> None:
    table = gs.hotspots(loader_trace(stack_samples=[]), by="range").answer.table()
    assert table.frame["location"].to_list() == ["step_#"]
    assert table.frame["idle_ns"].sum() == 6 * (12 * MS + 10_000)


def test_time_outside_of_ranges_is_named_so() -> None:
    ranges = [{"start_ns": 0, "end_ns": STEP_NS, "name": "step_0"}]
    result = gs.hotspots(loader_trace(ranges=ranges), by="range", window=(0, 4 * STEP_NS))
    assert NO_RANGE in by_function(result)
    assert any("outside of all ranges" in note for note in result.notes)


def test_a_window_has_the_steps_that_are_chosen() -> None:
    result = gs.hotspots(loader_trace(), steps="2-3")
    assert by_function(result)["collate"]["idle_ns"] == 2 * 12 * MS
    assert result.meta["steps"] == 2


def test_a_gap_without_a_sample_has_the_nearest_one() -> None:
    # Every 200 ms a sample: of ten steps one in the gap, others near enough.
    trace = loader_trace(stack_samples=[sample(5 * MS, 1, 20 * MS), sample(45 * MS, 1, 20 * MS)])
    result = gs.hotspots(trace)
    rows = by_function(result)
    assert result.meta["idle_near_ns"] > 0
    assert (
        rows["collate"]["idle_ns"] + rows.get(NO_STACK, {"idle_ns": 0})["idle_ns"]
        == (result.meta["idle_ns"])
    )
    assert any("gaps without a sample" in note for note in result.notes)


def test_time_far_from_any_sample_has_no_stack() -> None:
    trace = loader_trace(40, stack_samples=[sample(5 * MS, 1, MS)])
    result = gs.hotspots(trace)
    lost = by_function(result)[NO_STACK]
    assert lost["idle_ns"] == result.meta["idle_without_stack_ns"] > 0.5 * result.meta["idle_ns"]
    assert any("no stack anywhere near" in note for note in result.notes)


def test_a_late_sample_stands_for_the_time_since_it_was_due() -> None:
    samples = [
        entry
        for step in range(6)
        for entry in (
            sample(step * 20 * MS - 1 * MS + 20 * MS, 2, 2 * MS),
            # Another thread held the interpreter: one sample, 9 ms late.
            sample(step * 20 * MS + 11 * MS, 1, 12 * MS, late_ns=9 * MS),
        )
    ]
    rows = by_function(gs.hotspots(loader_trace(stack_samples=samples)))
    assert rows["collate"]["idle_ns"] >= 5 * 12 * MS


def test_a_thread_without_stacks_has_those_of_the_main_thread() -> None:
    trace = loader_trace()
    calls = trace.table("api_calls").with_columns(pl.lit(12, pl.Int64).alias("thread")).to_dicts()
    threads = [
        {"thread": 11, "process": 1, "tid": 4242},
        {"thread": 12, "process": 1, "tid": 4300},
    ]
    result = gs.hotspots(loader_trace(api_calls=calls, threads=threads))
    assert by_function(result)["collate"]["idle_ns"] == 6 * 12 * MS


CAPTURES = sorted(
    path
    for path in DATA.iterdir()
    if path.name
    in {
        *("healthy.json.gz", "gpt_tiny_osrt.sqlite", "odd_cpu.sqlite", "odd_cpu.nsys-rep"),
        *("torch_checkpoint.json.gz", "odd_node.sqlite", "jax_graph.trace.json.gz"),
    }
)


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
@pytest.mark.parametrize("by", ["line", "range"])
def test_totals_are_those_of_the_ledger(path: Path, by: str) -> None:
    with gs.open(path) as trace:
        if by == "range" and not trace.has("ranges"):
            pytest.skip("no ranges")
        result = gs.hotspots(trace, by=by, all_frames=True)
        ledgers = [device.ledger for device in gs.ledger(trace).devices]
    idle_ns = sum(ledger.ns("idle") for ledger in ledgers)
    busy_ns = sum(entry.ns for ledger in ledgers for entry in ledger.entries) - idle_ns
    assert (result.meta["idle_ns"], result.meta["gpu_ns"]) == (idle_ns, busy_ns)
    if by == "line":
        rows = result.rows()
        assert sum(row["idle_ns"] for row in rows) == idle_ns
        assert sum(row["gpu_ns"] for row in rows) == busy_ns
        assert [row["idle_ns"] for row in rows] == sorted(
            (row["idle_ns"] for row in rows), reverse=True
        )


def test_without_stacks_one_sentence_says_how_to_record_them() -> None:
    with pytest.raises(gs.GpusightError, match="no stacks") as caught:
        gs.hotspots(loader_trace(stack_samples=[]))
    assert "gpusight record" in caught.value.hint


def test_host_time_alone() -> None:
    samples = [sample(at * MS, 1 + at % 2, MS) | {"source": "folded"} for at in range(10)]
    trace = build_trace(stack_samples=samples, stack_frames=frame_rows())
    result = gs.hotspots(trace)
    rows = by_function(result)
    assert {name: row["host_ns"] for name, row in rows.items()} == {
        "collate": 5 * MS,
        "forward": 5 * MS,
    }
    assert result.answer.of == "host"
    assert "GPU" not in repr(result).splitlines()[1]


def test_an_unknown_measure_is_refused() -> None:
    with pytest.raises(gs.GpusightError, match="cannot show 'nonsense'"):
        gs.hotspots(loader_trace(), of="nonsense")


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(gs.GpusightError, match="cannot sum by 'colour'"):
        gs.hotspots(loader_trace(), by="colour")


def test_lines_of_defs_are_named_as_such() -> None:
    assert DEF_LINES in gs.hotspots(opened(DATA / "torch_checkpoint.json.gz")).answer.notes
    assert DEF_LINES not in gs.hotspots(loader_trace()).answer.notes


def test_a_thread_and_a_stream_have_their_own_part() -> None:
    """Two threads launch into a stream each: their parts add up to all, nothing counts twice."""
    other = THREAD + 1
    one = loader_trace(4)
    tables: dict[str, Any] = {
        name: one.table(name).to_dicts()
        for name in ("api_calls", "kernels", "stack_samples", "stack_frames")
    }
    for row in tables["kernels"]:
        row["stream"] = 7 + row["correlation"] % 2
    for row in tables["api_calls"]:
        row["thread"] = other if row["start_ns"] // STEP_NS % 2 else THREAD
    for row in tables["stack_samples"]:
        row["thread"] = other if row["time_ns"] // STEP_NS % 2 else THREAD
    threads = [{"thread": t, "process": 1, "tid": t} for t in (THREAD, other)]
    trace = loader_trace(4, **tables, threads=threads)
    whole = hotspots(trace, window=(0, 4 * STEP_NS))
    assert isinstance(whole, Hotspots)

    def part(**keys: int) -> Hotspots:
        made = hotspots(trace, window=(0, 4 * STEP_NS), track=TrackWork(keys))
        assert isinstance(made, Hotspots)
        return made

    by_thread = [part(process=1, thread=thread) for thread in (THREAD, other)]
    by_stream = [part(device=0, stream=stream) for stream in (7, 8)]
    for measure in ("idle", "gpu", "launches"):
        expected = whole.times.by_node(measure).sum()
        for parts in (by_thread, by_stream):
            sums = [made.times.by_node(measure).sum() for made in parts]
            assert all(sums)
            assert sum(sums) == expected
    host = [made.times.host_ns.sum() for made in by_thread]
    assert sum(host) == whole.times.host_ns.sum()
    assert [made.times.host_ns.sum() for made in by_stream] == [0, 0]


@needs_shared
def test_memory_counts_for_what_allocates_not_for_the_allocator_and_the_interpreter() -> None:
    result = gs.hotspots(SHARED / "torch" / "memory_snapshot.pickle", by="stack", all_frames=True)
    frames = set(result.frame["function"])
    assert {"<module>", "_wrapped_call_impl", "torch::autograd::Engine::thread_main"} <= {
        name.partition("(")[0] for name in frames
    }
    dull = ("_PyEval_", "Py_RunMain", "_start", "torch::unwind::", "c10::cuda::CUDACachingAll")
    assert [name for name in frames if name.startswith(dull)] == []
    # The tree has all of it: nothing is lost with the frames.
    outermost = result.frame.filter(pl.col("depth") == 0)
    lines = gs.hotspots(SHARED / "torch" / "memory_snapshot.pickle")
    assert outermost["bytes"].sum() == lines.frame["bytes"].sum() > 0
    assert outermost["bytes"].is_sorted(descending=True)


def test_a_stack_of_nothing_but_the_interpreter_stays() -> None:
    frames = pl.DataFrame(
        {
            "stack": [1, 1, 2, 2, 2],
            "function": ["_PyEval_Vector", "Py_RunMain", "f", "PyObject_Call", "PyObject"],
            "kind": ["native", "native", "python", "native", "native"],
        }
    )
    assert without_interpreter(frames)["function"].to_list() == [
        *("_PyEval_Vector", "Py_RunMain", "f", "PyObject"),
    ]
