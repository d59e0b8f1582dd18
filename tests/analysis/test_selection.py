"""Selecting by range, device and process, on traces small enough to check by eye."""

from __future__ import annotations

import pytest

from gpusight.analysis.selection import EVERYTHING, ResolvedSelection, Selection
from gpusight.errors import MissingDataError, UsageError
from gpusight.trace.trace import Trace
from tests.traces import build_source, build_trace

# Main thread 11 opens the ranges; autograd's thread 12 launches `grad` while `step_0` is open.
#
# time        0    10   20   30   40   50   60   70   80   90   100
# step_0      [--------------)                                        process 1
# step_1                     [--------------)                         process 1
# other                 [---------)                                   process 2
CALLS = [
    {"start_ns": 2, "end_ns": 4, "correlation": 1},
    {"start_ns": 12, "end_ns": 14, "correlation": 2, "thread": 12},
    {"start_ns": 30, "end_ns": 32, "correlation": 3},
    {"start_ns": 33, "end_ns": 35, "correlation": 1, "process": 2, "thread": 21},
    {"start_ns": 70, "end_ns": 72, "correlation": 4},
]
KERNELS = [
    {"start_ns": 5, "end_ns": 15, "name": "forward", "correlation": 1},
    {"start_ns": 50, "end_ns": 75, "name": "grad", "correlation": 2},
    {"start_ns": 76, "end_ns": 80, "name": "next", "correlation": 3, "device": 1},
    {"start_ns": 40, "end_ns": 45, "name": "foreign", "correlation": 1, "process": 2},
    {"start_ns": 90, "end_ns": 95, "name": "late", "correlation": 4},
]
RANGES = [
    {"start_ns": 0, "end_ns": 30, "name": "step_0"},
    {"start_ns": 30, "end_ns": 60, "name": "step_1"},
    {"start_ns": 20, "end_ns": 40, "name": "other", "process": 2, "thread": 21},
    {"start_ns": 10, "end_ns": 20, "name": "inner"},
    {"start_ns": 10, "name": "mark here", "kind": "mark"},
]
PROCESSES = [
    {"process": 1, "pid": 100, "name": "python3"},
    {"process": 2, "pid": 200, "name": "worker"},
]


@pytest.fixture
def trace() -> Trace:
    return build_trace(
        api_calls=CALLS,
        kernels=KERNELS,
        ranges=RANGES,
        processes=PROCESSES,
        devices=[{"device": 0}, {"device": 1}],
    )


def names(trace: Trace, **selection: object) -> list[str]:
    chosen = Selection(**selection)  # type: ignore[arg-type]
    return ResolvedSelection(trace, chosen).gpu("kernels", ["name"])["name"].cast(str).to_list()


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({}, ["forward", "foreign", "grad", "next", "late"]),
        ({"within": "step_0"}, ["forward", "grad"]),
        ({"within": "step_1"}, ["next"]),
        ({"within": "step_*"}, ["forward", "grad", "next"]),
        ({"within": "/^step_[01]$/"}, ["forward", "grad", "next"]),
        ({"within": "regex:0$"}, ["forward", "grad"]),
        ({"within": "inner"}, ["grad"]),
        ({"within": "other"}, ["foreign"]),
        ({"device": 1}, ["next"]),
        ({"device": 0, "within": "step_*"}, ["forward", "grad"]),
        ({"process": "200"}, ["foreign"]),
        ({"process": "py*"}, ["forward", "grad", "next", "late"]),
    ],
)
def test_which_kernels_are_selected(
    trace: Trace, selection: dict[str, object], expected: list[str]
) -> None:
    assert names(trace, **selection) == expected


def test_host_events_count_when_they_started_inside(trace: Trace) -> None:
    calls = ResolvedSelection(trace, Selection(within="step_0")).host("api_calls", ["correlation"])
    assert calls["correlation"].to_list() == [1, 2]
    ranges = ResolvedSelection(trace, Selection(within="step_0")).host("ranges", ["name"])
    assert ranges["name"].cast(str).to_list() == ["step_0", "inner", "mark here"]


def test_the_window_of_everything_runs_from_the_first_to_the_last_activity(trace: Trace) -> None:
    whole = ResolvedSelection(trace).window
    assert (whole.start_ns, whole.end_ns, whole.length_ns) == (0, 95, 95)


def test_the_window_of_a_range_reaches_to_the_end_of_the_work_it_launched(trace: Trace) -> None:
    step = ResolvedSelection(trace, Selection(within="step_0")).window
    assert (step.start_ns, step.end_ns) == (0, 75)
    on_device = ResolvedSelection(trace, Selection(within="step_0", device=1)).window
    assert (on_device.start_ns, on_device.end_ns) == (0, 30)


def test_the_window_of_repeated_ranges_leaves_the_time_between_them_out() -> None:
    trace = build_trace(
        ranges=[
            {"start_ns": 0, "end_ns": 10, "name": "a"},
            {"start_ns": 50, "end_ns": 60, "name": "a"},
        ]
    )
    repeated = ResolvedSelection(trace, Selection(within="a")).window
    assert (repeated.start_ns, repeated.end_ns, repeated.length_ns) == (0, 60, 20)


def test_a_range_never_closed_does_not_stretch_the_window() -> None:
    trace = build_trace(
        kernels=[{"start_ns": 5, "end_ns": 9, "name": "k"}],
        ranges=[{"start_ns": 1, "end_ns": 1000, "name": "open", "open": True}],
    )
    assert (ResolvedSelection(trace).window.start_ns, ResolvedSelection(trace).window.end_ns) == (
        5,
        9,
    )


def test_an_empty_trace_has_an_empty_window() -> None:
    assert ResolvedSelection(build_trace()).window.length_ns == 0


def test_without_api_calls_the_start_of_the_work_decides_and_is_said() -> None:
    trace = build_trace(kernels=KERNELS, ranges=RANGES)
    scope = ResolvedSelection(trace, Selection(within="step_0"))
    assert scope.gpu("kernels", ["name"])["name"].cast(str).to_list() == ["forward"]
    assert "no API calls" in scope.notes[0]


def test_a_capture_of_the_host_alone_needs_no_such_note() -> None:
    trace = build_trace(ranges=[{"end_ns": 9, "name": "a"}], cpu_ops=[{"name": "aten::mm"}])
    assert ResolvedSelection(trace, Selection(within="a")).notes == ()


def test_work_that_names_no_launch_counts_by_its_own_start() -> None:
    trace = build_trace(
        api_calls=CALLS,
        ranges=RANGES,
        copies=[
            {"start_ns": 3, "end_ns": 6, "correlation": 1, "bytes": 1},
            {"start_ns": 1, "end_ns": 2, "bytes": 2},
            {"start_ns": 65, "end_ns": 66, "bytes": 3},
        ],
    )
    rows = ResolvedSelection(trace, Selection(within="step_0")).gpu("copies", ["bytes"])
    assert rows["bytes"].to_list() == [2, 1]


def test_old_captures_do_not_tell_the_process_of_gpu_work() -> None:
    kernels = [{**row, "process": None} for row in KERNELS[:3]]
    trace = build_trace(api_calls=CALLS[:3], kernels=kernels, ranges=RANGES)
    assert names(trace, within="step_0") == ["forward", "grad"]
    assert ResolvedSelection(trace, Selection(within="step_0")).window.end_ns == 75


@pytest.mark.parametrize("wanted", ["Step 0", "step0", "stepp_0"])
def test_an_unknown_range_names_its_neighbours_and_the_next_command(
    trace: Trace, wanted: str
) -> None:
    with pytest.raises(UsageError) as caught:
        names(trace, within=wanted)
    assert "'step_0'" in str(caught.value)
    assert "gpusight ranges FILE" in str(caught.value)


def test_a_mark_is_not_something_to_be_within(trace: Trace) -> None:
    with pytest.raises(UsageError, match="no range matches 'mark here'"):
        names(trace, within="mark here")


def test_other_mistakes_name_what_there_is(trace: Trace) -> None:
    with pytest.raises(UsageError, match="GPUs are: 0, 1"):
        names(trace, device=5)
    with pytest.raises(UsageError, match=r"processes are: 100 \(python3\), 200 \(worker\)"):
        names(trace, process="300")
    with pytest.raises(UsageError, match="not a regular expression"):
        names(trace, within="/(/")
    with pytest.raises(MissingDataError, match="no NVTX ranges"):
        names(build_trace(kernels=KERNELS), within="step_0")


def test_brackets_in_an_exact_name_are_not_a_glob() -> None:
    trace = build_trace(
        ranges=[{"end_ns": 9, "name": "layer[0]"}, {"end_ns": 9, "name": "layer0"}],
        kernels=[{"start_ns": 1, "name": "k"}],
    )
    assert ResolvedSelection(trace, Selection(within="layer[0]")).matching_ranges.height == 1


def test_nothing_selected_reads_only_the_columns_asked_for() -> None:
    source = build_source(kernels=KERNELS, api_calls=CALLS)
    ResolvedSelection(Trace(source)).gpu("kernels", ["start_ns", "name"])
    assert set(source.loads) == {("kernels", "start_ns"), ("kernels", "name")}


def test_a_selection_is_true_when_it_leaves_something_out() -> None:
    assert not EVERYTHING
    assert Selection(device=0)


def test_a_name_that_looks_like_a_pattern_is_itself() -> None:
    trace = build_trace(
        api_calls=[{"start_ns": 1, "end_ns": 2, "correlation": 1}],
        kernels=[{"start_ns": 5, "end_ns": 6, "name": "k", "correlation": 1}],
        ranges=[{"start_ns": 0, "end_ns": 9, "name": "/re(/"}],
    )
    assert ResolvedSelection(trace, Selection(within="/re(/")).gpu("kernels", ["name"]).height == 1


def test_operators_are_activity_too() -> None:
    on_host = build_trace(cpu_ops=[{"start_ns": 5, "end_ns": 25, "name": "aten::mm"}])
    assert (
        ResolvedSelection(on_host).window.start_ns,
        ResolvedSelection(on_host).window.end_ns,
    ) == (5, 25)


def test_a_trace_of_pytorch_without_annotations_says_how_to_make_some() -> None:
    trace = build_trace({"source": "torch-chrome"}, cpu_ops=[{"name": "aten::mm"}])
    scope = ResolvedSelection(trace, Selection(within="step"))
    with pytest.raises(MissingDataError, match="the capture has no annotations") as caught:
        scope.gpu("kernels", ["name"])
    assert "record_function" in str(caught.value.hint)


def test_a_process_that_only_ran_operators_is_named() -> None:
    trace = build_trace(processes=PROCESSES, cpu_ops=[{"name": "aten::mm", "process": 2}])
    with pytest.raises(UsageError) as caught:
        ResolvedSelection(trace, Selection(process="7"))
    assert caught.value.hint == "processes are: 200 (worker)"
