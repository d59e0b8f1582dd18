"""The window that the ledger, the findings and the replay look at."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpusight.analysis.selection import Selection
from gpusight.analysis.steps.step_list import TraceStep, parse_steps, parse_window
from gpusight.analysis.steps.step_window import step_spans, step_window
from gpusight.analysis.steps.window_headline import StepWindow
from gpusight.errors import UsageError
from gpusight.pace import BEFORE, MESSAGE, OPTIMIZER, Pace
from gpusight.results import NotApplicable
from gpusight.trace.schema import TABLES
from gpusight.trace.trace import Trace
from tests.analysis.steps.programs import made
from tests.shared import (
    EVERY_REPORT,
    EVERY_SQLITE,
    EVERY_TORCH_TRACE,
    SHARED,
    name,
    needs_shared,
    opened,
)
from tests.traces import build_trace

MS = 1_000_000


def program(
    lengths_ms: list[float], *, gpu_ms: float = 0.5, launches: list[int] | None = None, **more: Any
) -> Trace:
    """Run steps of these lengths, 0.1 ms apart, each launching kernels that end inside it."""
    ranges, calls, kernels, at, number = [], [], [], 0, 0
    for step, length in enumerate(lengths_ms):
        end = at + round(length * MS)
        ranges.append({"name": f"step_{step}", "start_ns": at, "end_ns": end})
        for n in range(launches[step] if launches else 2):
            number += 1
            start = at + (n + 1) * 10_000
            calls.append({"start_ns": start, "end_ns": start + 100, "correlation": number})
            busy = {"start_ns": start + 200, "end_ns": start + 200 + round(gpu_ms * MS / 2)}
            kernels.append({**busy, "name": "k", "correlation": number, "stream": n})
        at = end + MS // 10
    rows: dict[str, Any] = {"ranges": ranges, "api_calls": calls, "kernels": kernels}
    for table, extra in more.items():
        rows[table] = [*rows.get(table, []), *extra]
    return build_trace(**rows)


def chosen(trace: Trace, **options: Any) -> StepWindow:
    window = step_window(trace, **options)
    assert isinstance(window, StepWindow), window
    return window


def numbers(window: StepWindow) -> list[int]:
    return [step.number for step in window.steps]


def test_the_window_is_that_of_the_kept_steps() -> None:
    window = chosen(program([1, 1, 1, 1]))
    assert numbers(window) == [0, 1, 2, 3]
    assert (window.start_ns, window.end_ns) == (0, round(4.3 * MS))
    assert (window.left_out, window.notes) == ((), ())


@pytest.mark.parametrize(
    ("lengths", "kept"),
    [
        ([9, 1, 1, 1, 1, 1], [1, 2, 3, 4, 5]),
        ([9, 4, 1, 1, 1, 1], [2, 3, 4, 5]),
        ([1.2, 1, 1, 1, 1, 1], [0, 1, 2, 3, 4, 5]),  # not long enough
        ([2, 1, 3, 1, 2, 1], [0, 1, 2, 3, 4, 5]),  # the others vary as much
        ([1, 1, 9, 1, 1, 1], [0, 1, 2, 3, 4, 5]),  # not at the beginning
        ([9, 1, 1], [1, 2]),
        ([9, 8, 7, 6, 1, 1], [3, 4, 5]),  # never more than half
        ([9, 1], [0, 1]),  # too few to tell
    ],
)
def test_warm_up_is_left_out(lengths: list[float], kept: list[int]) -> None:
    window = chosen(program(lengths))
    assert numbers(window) == kept
    assert [s.number for s in window.left_out] == [n for n in range(len(lengths)) if n not in kept]
    if window.left_out:
        assert f"{len(window.left_out)} of {len(lengths)} steps excluded" in window.notes[0]
        assert "step_0" in window.notes[0]
    assert numbers(chosen(program(lengths), warmup=True)) == list(range(len(lengths)))


@pytest.mark.parametrize(
    ("name", "timed", "kept"),
    [
        ("step {}", 10, [23, 24, 25, 26, 27]),  # only the step in which the profiler starts
        ("batch_{}", 10, [25, 26, 27]),  # not the recorder's count
        ("step {}", 40, [25, 26, 27]),  # the timed steps are not before these
    ],
)
def test_the_recorder_has_warmed_up(name: str, timed: int, kept: list[int]) -> None:
    trace = program([9, 8, 7, 1, 1, 1])
    tables: dict[str, Any] = {
        table: trace.table(table).rows(named=True) for table in TABLES if trace.has(table)
    }
    for number, step in enumerate(tables["ranges"], 22):
        step["name"] = name.format(number)
    pace = Pace(timed, 1e6, 1e6, 0.0, BEFORE, OPTIMIZER)
    mark = {"name": f"{MESSAGE}{pace.to_text()}", "kind": "mark"}
    window = chosen(build_trace(**{**tables, "ranges": [mark, *tables["ranges"]]}))
    assert numbers(window) == kept


def test_a_step_that_loads_modules_is_warm_up_sooner() -> None:
    loads = [{"start_ns": 50_000, "end_ns": 60_000, "name": "cuModuleLoadData"}]
    assert numbers(chosen(program([1.2, 1, 1, 1, 1], api_calls=loads))) == [1, 2, 3, 4]


def test_a_range_called_warm_up_is_believed_even_of_two_steps() -> None:
    around = [{"name": "Warm-up", "start_ns": 0, "end_ns": MS, "thread": 12}]
    window = chosen(program([1, 1], ranges=around))
    assert numbers(window) == [1]
    assert "named so" in window.notes[0]


def test_a_step_that_the_capture_cut_off_is_left_out() -> None:
    window = chosen(program([1, 1, 1, 0.4], launches=[9, 9, 9, 3], gpu_ms=0.1))
    assert numbers(window) == [0, 1, 2]
    assert "cut off" in window.notes[0]


@pytest.mark.parametrize(
    ("launches", "kept", "partial"),
    [
        ([8, 8, 8, 8, 5, 0, 0], [0, 1, 2, 3], 3),  # lost from the middle of step 4 on
        ([0, 0, 6, 8, 8, 8, 8], [3, 4, 5, 6], 3),
        ([0, 8, 8, 8, 8, 8, 0], [1, 2, 3, 4, 5], 2),
        ([8, 0], [0], 1),
        ([8, 8, 8, 8, 3], [0, 1, 2, 3], 1),  # in as much time as the others
        ([8, 8, 0, 8, 8], [0, 1, 2, 3, 4], 0),  # nothing is cut off in the middle
        ([8, 8, 8, 7, 8, 6], [0, 1, 2, 3, 4, 5], 0),
        ([8, 0, 0, 0, 8, 0], [0, 1, 2, 3, 4, 5], 0),  # steps that often have no GPU work
    ],
)
def test_steps_whose_gpu_work_is_missing_at_either_end_are_partial(
    launches: list[int], kept: list[int], partial: int
) -> None:
    window = chosen(program([5.0] * len(launches), launches=launches))
    assert numbers(window) == kept
    assert window.partial == len(window.left_out) == partial
    assert any(note.startswith("excluded as partial") for note in window.notes) == bool(partial)


def test_a_long_first_step_without_gpu_work_is_warm_up() -> None:
    window = chosen(program([50.0, *[5.0] * 6], launches=[0, *[8] * 6]))
    assert numbers(window) == [1, 2, 3, 4, 5, 6]
    assert (window.partial, len(window.left_out)) == (0, 1)


def test_a_first_step_that_compiles_is_warm_up_not_the_measure_of_the_last() -> None:
    """It has launches of its own: the last of three steps is whole although it has a quarter."""
    window = chosen(program([150.0, 7.0, 5.0], launches=[60, 14, 14]))
    assert numbers(window) == [1, 2]
    assert window.partial == 0


def test_the_window_lasts_until_the_gpu_is_done_and_steps_are_as_long_as_it_takes() -> None:
    """Steps never wait here: the first is longer on the host, but not on the GPU."""
    names = ["step_0", "step_1", "step_2", "step_3"]
    starts = [0, 400_000, 500_000, 600_000]
    trace = build_trace(
        ranges=[
            {"name": n, "start_ns": s, "end_ns": e}
            for n, s, e in zip(names, starts, [*starts[1:], 700_000], strict=True)
        ],
        api_calls=[{"start_ns": s + 10, "correlation": n + 1} for n, s in enumerate(starts)],
        kernels=[
            {"start_ns": n * MS + 100_000, "end_ns": (n + 1) * MS + 100_000, "name": "k",
             "correlation": n + 1}
            for n in range(4)
        ],
    )  # fmt: skip
    window = chosen(trace)
    assert numbers(window) == [0, 1, 2, 3]
    assert window.end_ns == 4 * MS + 100_000


def test_without_steps_everything_is_looked_at() -> None:
    trace = build_trace(kernels=[{"start_ns": 5, "end_ns": 90, "name": "k"}])
    window = chosen(trace)
    assert (window.start_ns, window.end_ns, window.steps, window.how) == (5, 90, (), "")
    assert "no steps" in window.notes[0]
    assert isinstance(step_window(trace, steps="1"), NotApplicable)


def test_no_activity_at_all_is_no_window() -> None:
    assert isinstance(step_window(build_trace(devices=[{}])), NotApplicable)


def test_a_selection_without_activity_is_not_blamed_on_the_recording() -> None:
    processes = [{"process": 1, "pid": 10}, {"process": 2, "pid": 20}]
    answer = step_window(program([1, 1, 1], processes=processes), Selection(process="20"))
    assert isinstance(answer, NotApplicable)
    assert (answer.reason, "record" in answer.hint) == ("no activity in the selection", False)


@pytest.mark.parametrize("messages", [[], [{"text": "No CUDA events collected."}]])
def test_a_capture_without_activity_points_to_the_messages_of_the_profiler(
    messages: list[dict[str, str]],
) -> None:
    answer = step_window(build_trace(diagnostics=messages))
    assert isinstance(answer, NotApplicable)
    assert ("gpusight info" in answer.hint) == bool(messages)


# What the user asks for -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kept"),
    [("1", [1]), ("1-2", [1, 2]), ("2:", [2, 3]), (":1", [0, 1]), ("all", [0, 1, 2, 3])],
)
def test_steps_by_number_override_warm_up(text: str, kept: list[int]) -> None:
    assert numbers(chosen(program([9, 1, 1, 1]), steps=text)) == kept


@pytest.mark.parametrize("text", ["", "x", "3-1", "1,2", "-", "1.5"])
def test_steps_that_make_no_sense(text: str) -> None:
    with pytest.raises(UsageError, match="--steps"):
        parse_steps(text)


def test_steps_that_are_not_there_are_named() -> None:
    with pytest.raises(UsageError, match="0 to 2"):
        step_window(program([1, 1, 1]), steps="7-9")


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("1.2s-1.5s", (1_200_000_000, 1_500_000_000)),
        ("1.2-1.5s", (1_200_000_000, 1_500_000_000)),
        ("300ms-", (300_000_000, None)),
        ("-2us", (None, 2_000)),
        ("10 ns : 20 µs", (10, 20_000)),
        ("1e3ns-2e3ns", (1_000, 2_000)),
    ],
)
def test_windows_as_people_write_them(text: str, window: tuple[int | None, int | None]) -> None:
    assert parse_window(text) == window


@pytest.mark.parametrize("text", ["", "-", "1-2", "2s-1s", "1h-2h", "s-", "1s", "1e99s-"])
def test_windows_that_make_no_sense(text: str) -> None:
    with pytest.raises(UsageError, match="--window"):
        parse_window(text)


def test_a_window_holds_the_steps_wholly_inside() -> None:
    window = chosen(program([1, 1, 1]), window=(1 * MS, None))
    assert (window.start_ns, numbers(window)) == (1 * MS, [1, 2])
    with pytest.raises(UsageError, match="no activity"):
        step_window(program([1, 1, 1]), window=(50 * MS, None))
    with pytest.raises(UsageError, match="exclude each other"):
        step_window(program([1, 1, 1]), window=(0, None), steps="1")


def test_ranges_that_are_the_repetition_become_the_steps() -> None:
    inner = [
        {"name": "forward", "start_ns": n * 1_100_000 + 1_000, "end_ns": n * 1_100_000 + 500_000}
        for n in range(3)
    ]
    trace = program([1, 1, 1], ranges=inner)
    window = chosen(trace, selection=Selection(within="forward"))
    assert [s.name for s in window.steps] == ["forward"] * 3
    assert (window.start_ns, window.end_ns) == (1_000, 2_700_000)


def test_ranges_inside_steps_only_bound_the_window() -> None:
    inner = [
        {"name": "layer", "start_ns": at, "end_ns": at + 1_000}
        for step in range(3)
        for at in (step * 1_100_000 + 1_000, step * 1_100_000 + 700_000)
    ]
    window = chosen(program([1, 1, 1], ranges=inner), selection=Selection(within="layer"))
    assert (window.start_ns, window.end_ns) == (1_000, 2_901_000)
    assert numbers(window) == [1]


def test_one_range_around_all_gives_the_steps_inside() -> None:
    trace = program([1, 1, 1], ranges=[{"name": "start", "start_ns": 0, "end_ns": 2_200_000}])
    assert numbers(chosen(trace, selection=Selection(within="start"))) == [0, 1]


# Several processes ----------------------------------------------------------------------------


def test_the_process_with_most_gpu_work_is_looked_at() -> None:
    ranges, calls, kernels = [], [], []
    for process, count in ((1, 1), (2, 5)):
        for step in range(3):
            at = step * MS + process * 1_000
            place = {"process": process, "thread": 10 + process}
            ranges.append({"name": f"step_{step}", "start_ns": at, "end_ns": at + 900_000, **place})
            for n in range(count):
                key = {"correlation": step * 10 + n + 1}
                calls.append({"start_ns": at + n * 1_000, **key, **place})
                kernels.append({"start_ns": at + n * 1_000 + 500, "end_ns": at + n * 1_000 + 900,
                                "name": "k", "process": process, **key})  # fmt: skip
    processes = [{"process": p, "pid": 100 + p} for p in (1, 2)]
    trace = build_trace(ranges=ranges, api_calls=calls, kernels=kernels, processes=processes)
    window = chosen(trace)
    assert {step.process for step in window.steps} == {2}
    assert "process 102, the one of 2 with the most GPU work; --process" in window.notes[0]
    assert window.text.endswith(", those of process 102 (most GPU work of 2)")
    window = chosen(trace, selection=Selection(process="101"))
    assert {step.process for step in window.steps} == {1}
    assert not window.process
    assert not any("process" in note for note in window.notes)


# A host that runs ahead of the GPU ------------------------------------------------------------


def ahead(lengths: list[int], *, host: int = 10, beside: Any = ()) -> Trace:
    """Launch a kernel of these lengths per step of 10 ns; each starts when the one before ends."""
    ranges, calls, kernels, end = [], [], [], 0
    for step, length in enumerate(lengths):
        at = step * host
        ranges.append({"name": f"step_{step}", "start_ns": at, "end_ns": at + host - 1})
        calls.append({"start_ns": at + 1, "end_ns": at + 2, "correlation": step + 1})
        start = max(end, at + 3)
        end = start + length
        kernels.append({"start_ns": start, "end_ns": end, "name": "k", "correlation": step + 1})
    for number, (launch_ns, start_ns, end_ns) in enumerate(beside, start=100):
        key = {"correlation": number}
        calls.append({"start_ns": launch_ns, "end_ns": launch_ns, **key})
        kernels.append({"start_ns": start_ns, "end_ns": end_ns, "name": "b", "stream": 9, **key})
    return build_trace(ranges=ranges, api_calls=calls, kernels=kernels)


def test_the_window_starts_when_the_gpu_is_done_with_earlier_steps() -> None:
    """All steps are launched within 50 ns; the GPU is several steps behind."""
    window = chosen(ahead([100] * 5), steps="2-3")
    assert (window.start_ns, window.end_ns, window.step_ns) == (203, 403, 100)
    assert (window.host_start_ns, window.time.host_end_ns) == (20, 39)


def test_the_window_starts_with_the_host_where_the_gpu_waits_for_it() -> None:
    window = chosen(ahead([4] * 5), steps="2-3")
    assert (window.start_ns, window.end_ns) == (20, 39)


def test_work_of_other_streams_that_outlasts_the_first_step_delays_none() -> None:
    # One kernel of step 1 ends in the middle of step 2, another one after all steps.
    window = chosen(ahead([100] * 5, beside=[(15, 16, 250), (16, 17, 900)]), steps="2-3")
    assert (window.start_ns, window.end_ns) == (250, 403)
    begun, done = step_spans(ahead([100] * 5, beside=[(15, 16, 250)]), window.steps)
    assert (begun.tolist(), done.tolist()) == ([250, 303], [303, 403])


def test_steps_that_overlap_on_the_gpu_share_the_time_by_their_ends() -> None:
    """Work of each step runs 30 ns into the next one's, on another stream."""
    beside = [(step * 100 + 5, step * 100 + 5, step * 100 + 130) for step in range(5)]
    trace = ahead([50] * 5, host=100, beside=beside)
    window = chosen(trace, steps="1-3")
    assert (window.start_ns, window.end_ns, window.step_ns) == (130, 430, 100)


def test_a_capture_without_gpu_work_has_a_window_of_its_host_steps() -> None:
    bounds = [{"start_ns": n * 10, "end_ns": n * 10 + 8} for n in range(4)]
    ranges = [{"name": f"step_{n}", **step} for n, step in enumerate(bounds)]
    window = chosen(build_trace(ranges=ranges))
    assert (window.start_ns, window.end_ns) == (0, 38)


# Captures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*EVERY_SQLITE, *EVERY_REPORT, *EVERY_TORCH_TRACE], ids=name)
def test_every_capture_has_a_window_or_a_reason(path: Any) -> None:
    window = step_window(opened(path))
    if isinstance(window, NotApplicable):
        assert window.reason
        return
    assert window.start_ns < window.end_ns
    assert list(window.steps) == sorted(window.steps, key=lambda step: step.start_ns)
    assert all(window.host_start_ns <= s.start_ns < s.end_ns <= window.end_ns for s in window.steps)
    assert len(window.left_out) <= len(window.steps)
    assert bool(window.how) == bool(window.steps)
    if window.steps:
        begun, done = step_spans(opened(path), window.steps)
        took = done - begun
        assert (begun[0], done[-1]) == (window.start_ns, window.end_ns)
        assert (begun[1:] == done[:-1]).all()
        assert took.min() <= window.step_ns <= took.max()


@needs_shared
def test_steps_that_never_wait_for_the_gpu_are_all_kept() -> None:
    window = chosen(opened(SHARED / "nsys" / "healthy.sqlite"))
    assert len(window.steps) == 10
    assert window.end_ns - window.steps[-1].end_ns > 10 * MS


def test_a_window_is_cut_to_what_the_capture_saw() -> None:
    """Time before the first and after the last activity would count as idle."""
    window = chosen(program([1, 1, 1]), window=(0, 100_000 * MS))
    assert (window.start_ns, window.end_ns, numbers(window)) == (0, round(3.2 * MS), [0, 1, 2])
    assert window.notes == ("the window is cut to the activity in the capture: 0 ns to 3.200 ms",)
    assert chosen(program([1, 1, 1]), window=(0, 2 * MS)).notes == ()


def test_a_window_of_many_steps_does_not_compare_all_with_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 300
    hashed = 0
    of_step = TraceStep.__hash__

    def counting(step: TraceStep) -> int:
        nonlocal hashed
        hashed += 1
        return of_step(step)

    monkeypatch.setattr(TraceStep, "__hash__", counting)
    window = chosen(program([1] * count), window=(0, 100 * MS))
    assert len(window.steps) + len(window.left_out) == count
    assert hashed <= 2 * count


@pytest.mark.parametrize(("lost", "noted"), [((0, 5), True), ((5,), False)])
def test_kernels_whose_ends_are_lost_are_noted(lost: tuple[int, ...], noted: bool) -> None:
    kernels = [{"start_ns": n, "end_ns": n if n in lost else n + 2, "name": "k"} for n in (0, 5, 9)]
    window = chosen(build_trace(kernels=kernels))
    note = "2 of 3 kernels have zero duration: the capture lacks their end times"
    assert (note in window.notes) is noted


@pytest.mark.parametrize("text", ["9" * 5000, "1-" + "9" * 5000, "9" * 5000 + ":"])
def test_numbers_beyond_any_capture_are_one_short_line(text: str) -> None:
    with pytest.raises(UsageError, match="too large") as error:
        parse_steps(text)
    assert len(str(error.value)) < 200
    with pytest.raises(UsageError, match="beyond any capture") as error:
        parse_window(f"0-{'9' * 5000}s")
    assert len(str(error.value)) < 200


# Steps that nobody named ----------------------------------------------------------------------


def test_clocks_that_rise_are_no_warm_up() -> None:
    """The time falls little by little: a third of the steps would be excluded."""
    lengths = [1.6 - 0.04 * n for n in range(16)]
    assert len(chosen(program(lengths, gpu_ms=0.1)).steps) == 16
    assert numbers(chosen(program([9, *lengths], gpu_ms=0.1))) == list(range(1, 17))


def unnamed(pauses_us: list[int], kernels: str = "abcdef") -> Trace:
    """Launch these kernels after each pause, one every 10 us, and wait for the GPU."""
    calls: list[dict[str, Any]] = []
    work: list[dict[str, Any]] = []
    at = 0
    for pause in pauses_us:
        at += pause * 1000
        for letter in [*kernels, "."]:
            call = {"start_ns": at, "end_ns": at + 1000, "correlation": len(calls) + 1}
            calls.append({**call, "name": "cudaDeviceSynchronize"} if letter == "." else call)
            if letter != ".":
                busy = {"start_ns": at + 2000, "end_ns": at + 9000}
                work.append({**busy, "name": letter, "correlation": len(calls), "grid_x": 1})
            at += 10_000
    return build_trace(api_calls=calls, kernels=work)


def test_a_step_whose_end_was_not_seen_is_partial() -> None:
    """What the host does between two steps is part of a step; after the last it is unknown."""
    window = chosen(unnamed([0, 500, 500, 500, 500]))
    assert (len(window.steps), window.partial) == (4, 1)
    assert window.text.endswith("(1 partial step excluded)")


@pytest.mark.parametrize(
    ("took", "options"),
    [
        ([1, 1, 1, 30, 1, 1, 1, 1], "--steps 4-7"),
        ([1, 1, 1, 1, 30, 1, 1], "--steps 0-3"),
        ([1, 1, 1, 1, 30], "--steps 0-3"),
    ],
)
def test_a_mean_that_one_step_dominates_is_explained(took: list[float], options: str) -> None:
    trace = program(took)
    window = chosen(trace)
    slow = took.index(30)
    assert window.step_ns > 4 * MS
    (note,) = (note for note in window.notes if note.startswith("median step"))
    assert note == f"median step 1.10 ms; step_{slow} takes 30.1 ms; without it: {options}"
    without = chosen(trace, steps=options.removeprefix("--steps "))
    assert without.step_ns < 1.2 * MS
    assert not [note for note in without.notes if note.startswith("median")]
    assert chosen(program([1, 1, 1, 1, 1])).notes == ()


def test_several_slow_steps_are_counted() -> None:
    window = chosen(program([1, 1, 30, 1, 1, 30, 1, 30, 1, 1]))
    note = "median step 1.10 ms; 3 of 10 steps are over 20% off: gpusight steps FILE lists them"
    assert note in window.notes


def test_windows_are_suggested_where_there_are_no_steps() -> None:
    """The layers of a single pass: a window by time and, as steps, the layers."""
    trace = unnamed([0], "pqr" + "abcdefg" * 4 + "stuvwxyz")
    note = chosen(trace).notes[-1]
    match = re.search(r"--window (\S+) \(90% of the GPU time\), --steps 0-3 \(", note)
    assert match is not None, note
    window = parse_window(match[1])
    assert chosen(trace, window=window).length_ns > 0.8 * chosen(trace).length_ns
    assert numbers(chosen(trace, steps="0-3")) == [0, 1, 2, 3]


def test_a_window_keeps_the_inner_loop_of_its_steps() -> None:
    trace, _ = made("sampling_without_noise_at_the_end", 305)
    kept, every = chosen(trace), chosen(trace, warmup=True)
    assert kept.inner_loop is not None
    assert kept.inner_loop == every.inner_loop == chosen(trace, steps="0-1").inner_loop
    assert chosen(trace, window=(None, None)).inner_loop == kept.inner_loop
    assert chosen(program([1, 1, 1])).inner_loop is None


def test_longer_steps_with_more_to_do_are_no_warm_up_and_shorter_ones_not_partial() -> None:
    trace, starts = made("conjugate_gradients_in_time_steps", 306)
    window = chosen(trace)
    assert len(window.steps) >= len(starts) - 1
