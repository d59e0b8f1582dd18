"""Where findings happen: the stretches that a reader is taken to."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import gpusight as gs
from gpusight.analysis.selection import Selection
from gpusight.rules.diagnosis import TimelineDiagnosis
from gpusight.rules.finding import TimelineFinding
from gpusight.rules.rule import FindingLocation
from gpusight.rules.timeline_diagnosis import (
    FindingLocator,
    TimelineLocation,
    diagnose_timeline,
    locations_of_kernels,
)
from gpusight.trace.intervals import Intervals, coverage
from gpusight.trace.trace import Trace
from tests.rules.timeline.rule_captures import US, Capture, diagnosed_file
from tests.rules.timeline.test_dependency_stall import steps as held_up
from tests.rules.timeline.test_launch_bound import loop as launching
from tests.shared import DATA, SHARED, needs_shared, opened
from tests.traces import build_trace

CAPTURES = sorted(
    path
    for path in (*DATA.glob("*.sqlite"), *DATA.glob("*.json.gz"), *DATA.glob("*.xplane.pb"))
    if "small_forward" not in path.name
)


def built(capture: Capture) -> Trace:
    tables = {"devices": [{"device": 0}], **capture.tables}
    return build_trace({"source": capture.source}, **tables)


def diagnosed(trace: Trace) -> TimelineDiagnosis:
    locations = diagnose_timeline(trace)
    assert isinstance(locations, TimelineDiagnosis)
    return locations


@cache
def dataload() -> tuple[Trace, TimelineDiagnosis]:
    """Diagnose a capture at its recorded times, which are those of the locations."""
    trace = gs.open(DATA / "dataload.sqlite", pace="off")
    return trace, diagnosed(trace)


def of(trace: Trace, rule: str, *, most: int = 8) -> tuple[TimelineLocation, ...]:
    diagnosis = diagnosed(trace)
    finding = next(finding for finding in diagnosis.findings if finding.rule == rule)
    return FindingLocator(trace, diagnosis).of(finding, most)


def named(diagnosis: TimelineDiagnosis, *where: FindingLocation) -> TimelineFinding:
    """A finding of a rule that only names places."""
    return replace(diagnosis.findings[0], rule="a-rule-of-a-user", where=where)


def _spans(locations: tuple[TimelineLocation, ...]) -> list[tuple[int, int]]:
    return [(place.start_ns, place.end_ns) for place in locations]


def spans_in_step_us(locations: tuple[TimelineLocation, ...]) -> set[tuple[float, float]]:
    """Give when places begin and end, from the start of their step of a millisecond."""
    return {(start / US % 1_000, end / US % 1_000) for start, end in _spans(locations)}


# Idle time ----------------------------------------------------------------------------------------


def test_input_is_shown_by_the_hole_that_it_leaves() -> None:
    trace, diagnosis = dataload()
    first = diagnosis.findings[0]
    assert first.rule == "input-starved"
    ranges = trace.table("ranges", ["start_ns", "end_ns", "name"])
    for place in FindingLocator(trace, diagnosis).of(first):
        assert place.table == "ranges"
        start, end, name = ranges.row(place.row)
        assert name == "data"
        assert place.start_ns < end
        assert start < place.end_ns
        step = next(s for s in diagnosis.focus.steps if s.start_ns <= start < s.end_ns)
        assert place.label.startswith(f"{step.name}: data 10.")


def test_nothing_runs_on_the_gpu_where_input_is_shown() -> None:
    trace, diagnosis = dataload()
    work = [trace.table(t, ["start_ns", "end_ns"]) for t in ("kernels", "copies", "memsets")]
    times = pl.concat(work)
    busy = Intervals.from_arrays(times["start_ns"].to_numpy(), times["end_ns"].to_numpy())
    locations = FindingLocator(trace, diagnosis).of(diagnosis.findings[0])
    starts, ends = (np.array(times) for times in zip(*_spans(locations), strict=True))
    assert len(locations) == 8
    assert coverage(busy, starts, ends).tolist() == [0] * 8
    assert (ends - starts).min() > 9_000 * US


def test_places_are_of_different_steps_the_longest_first() -> None:
    trace, diagnosis = dataload()
    locations = FindingLocator(trace, diagnosis).of(diagnosis.findings[0], most=5)
    steps = [place.label.split(":")[0] for place in locations]
    assert len(locations) == 5
    assert len(set(steps)) == 5
    longest = FindingLocator(trace, diagnosis).of(diagnosis.findings[0], most=1)
    assert longest == locations[:1]


def waiting_steps() -> Capture:
    """A step of 1 ms that waits for a value in its middle: the GPU is idle until it goes on."""
    capture = Capture()
    for n in range(6):
        at = n * 1_000
        capture.range(f"step_{n}", at, at + 1_000)
        for k in range(4):
            begin = at + 5 + 10 * k
            capture.launch((begin, begin + 5), (at + 50 + 60 * k, at + 110 + 60 * k))
        capture.copy((at + 50, at + 60), (at + 290, at + 292))
        capture.call("cudaStreamSynchronize", at + 60, at + 300)
        for k in range(4):
            begin = at + 500 + 10 * k
            capture.launch((begin, begin + 5), (at + 520 + 60 * k, at + 580 + 60 * k))
    return capture


def test_a_wait_is_shown_with_the_hole_after_it() -> None:
    trace = built(waiting_steps())
    locations = of(trace, "host-sync")
    calls = trace.table("api_calls", ["start_ns", "end_ns", "name"])
    for place in locations:
        assert place.table == "api_calls"
        start, end, name = calls.row(place.row)
        assert name in ("cudaMemcpyAsync", "cudaStreamSynchronize")
        assert place.start_ns == start
        at = place.start_ns // (1_000 * US) * 1_000 * US
        assert place.end_ns == at + 520 * US > end


def test_work_that_is_held_up_is_shown_by_the_hole_before_it() -> None:
    trace = built(held_up())
    locations = of(trace, "dependency-stall")
    names = trace.table("kernels", ["name"])["name"]
    assert spans_in_step_us(locations) == {(120, 320)}
    assert all(names[place.row] == "consume" for place in locations if place.row is not None)


# Work ---------------------------------------------------------------------------------------------


def test_copies_are_shown_themselves() -> None:
    capture = Capture()
    for n in range(4):
        at = n * 1_000
        capture.range(f"step_{n}", at, at + 990)
        capture.range("fetch", at + 1, at + 500)
        capture.copy((at + 10, at + 480), (at + 20, at + 470), size=64_000_000, name="cudaMemcpy")
        capture.launch((at + 500, at + 505), (at + 510, at + 900))
    locations = of(built(capture), "pageable-copy")
    assert spans_in_step_us(locations) == {(20, 470)}
    assert all(place.table == "copies" for place in locations)


@needs_shared
@pytest.mark.usefixtures("recorded_times")
def test_kernels_of_an_optimizer_are_shown_as_one_stretch_of_each_step() -> None:
    trace = opened(SHARED / "nsys" / "gpt_small_train.sqlite")
    diagnosis = diagnosed(trace)
    locations = FindingLocator(trace, diagnosis).of(diagnosis.findings[0])
    ranges = trace.table("ranges", ["start_ns", "name"])
    begun = ranges.filter(pl.col("name") == "optimizer")["start_ns"].to_list()
    assert diagnosis.findings[0].rule == "unfused-optimizer"
    assert len(locations) == len(diagnosis.focus.steps) == 3
    for place, start in zip(sorted(locations, key=lambda p: p.start_ns), begun, strict=True):
        assert start < place.start_ns
        assert "more" in place.label
        assert place.row is None


# What findings name -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "first"),
    [
        (FindingLocation("range", "backward"), ("ranges", "backward")),
        (FindingLocation("call", "cudaLaunchKernel"), ("api_calls", "cudaLaunchKernel")),
        (FindingLocation("kernel", "gemm f32 tn 64x64"), ("kernels", "gemm f32 tn 64x64")),
    ],
)
def test_findings_of_any_rule_are_shown_by_what_they_name(
    where: FindingLocation, first: tuple[str, str]
) -> None:
    trace, diagnosis = dataload()
    place = FindingLocator(trace, diagnosis).of(named(diagnosis, where))[0]
    assert place.table in (first[0], None)
    assert first[1] in place.label
    assert diagnosis.focus.start_ns <= place.start_ns < place.end_ns <= diagnosis.focus.end_ns


def test_names_that_differ_by_numbers_are_found() -> None:
    trace, diagnosis = dataload()
    locations = FindingLocator(trace, diagnosis).of(
        named(diagnosis, FindingLocation("range", "step_#"))
    )
    assert len({place.start_ns for place in locations}) == 8


def test_a_step_is_found_by_its_name() -> None:
    trace, diagnosis = dataload()
    step = diagnosis.focus.steps[2]
    locations = FindingLocator(trace, diagnosis).of(
        named(diagnosis, FindingLocation("step", step.name))
    )
    assert [(p.start_ns, p.end_ns) for p in locations] == [(step.start_ns, step.end_ns)]
    assert locations[0].label.startswith(f"{step.name} ")


def test_memory_that_grows_is_shown_over_all_steps() -> None:
    trace, diagnosis = dataload()
    finding = replace(named(diagnosis), rule="memory-growth")
    (place,) = FindingLocator(trace, diagnosis).of(finding)
    assert (place.start_ns, place.end_ns) == (diagnosis.focus.start_ns, diagnosis.focus.end_ns)


@pytest.mark.parametrize("where", [(), (FindingLocation("range", "nothing is called so"),)])
def test_the_middle_step_is_shown_where_nothing_is_named(
    where: tuple[FindingLocation, ...],
) -> None:
    trace, diagnosis = dataload()
    finding = named(diagnosis, *where)
    middle = diagnosis.focus.steps[len(diagnosis.focus.steps) // 2]
    (place,) = FindingLocator(trace, diagnosis).of(replace(finding, rule="capture-incomplete"))
    assert (place.start_ns, place.end_ns) == (middle.start_ns, middle.end_ns)


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_every_finding_has_a_place_in_the_capture(path: Path) -> None:
    trace = opened(path)
    diagnosis = diagnosed_file(path)
    if not isinstance(diagnosis, TimelineDiagnosis):
        return
    locations = FindingLocator(trace, diagnosis)
    for finding in diagnosis.findings:
        shown = locations.of(finding)
        assert 1 <= len(shown) <= 8
        for place in shown:
            assert place.start_ns < place.end_ns
            assert place.label
            assert (place.table is None) == (place.row is None)


# Kernels ------------------------------------------------------------------------------------------


def test_launches_of_a_measured_kernel_are_found_however_it_is_spelled() -> None:
    rows = [
        {"start_ns": n * 100, "end_ns": n * 100 + 10 + n, "name": "void gemm<float, (int)4>(T1 *)"}
        for n in range(3)
    ]
    trace = build_trace(kernels=[*rows, {"start_ns": 500, "end_ns": 900, "name": "other"}])
    locations = locations_of_kernels(trace, "gemm<float, 4>(float*)")
    assert [(p.row, p.end_ns - p.start_ns) for p in locations] == [(2, 12), (1, 11), (0, 10)]
    assert locations_of_kernels(trace, "not_there") == ()


def test_launches_of_a_kernel_are_those_of_the_window() -> None:
    trace, diagnosis = dataload()
    names = trace.table("kernels", ["name"])["name"].cast(str)
    locations = locations_of_kernels(trace, names[0], diagnosis.focus, most=3)
    assert len({place.label.split(":")[0] for place in locations}) == 3
    assert all(diagnosis.focus.start_ns <= place.start_ns for place in locations)


def test_places_are_those_of_the_selected_gpu() -> None:
    """GPU 0 is busy longer, GPU 1 waits longer for launches."""
    alone, both = launching(), launching()
    for step in range(4):
        both.event("kernels", "busy", step * 1_005, step * 1_005 + 300, device=0)
    for capture in (alone, both):
        for kernel in capture.tables["kernels"]:
            kernel.setdefault("device", 1)
    devices = [{"device": 0}, {"device": 1}]
    locations = []
    for capture in (alone, both):
        trace = build_trace({"source": "nsys-sqlite"}, **{**capture.tables, "devices": devices})
        diagnosis = diagnose_timeline(trace, Selection(device=1), rules=["launch-bound"])
        assert isinstance(diagnosis, TimelineDiagnosis)
        locations.append(FindingLocator(trace, diagnosis).of(diagnosis.findings[0]))
    assert locations[0] == locations[1]
