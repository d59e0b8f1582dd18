"""Every command covers the same time window, and names it, its step time and GPU busy alike."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import pytest

import gpusight as gs
from gpusight.analysis.gpu_time import gpu_time
from gpusight.analysis.ledger.ledger_tables import ledger_page
from gpusight.analysis.profiler_correction import without_profiler
from gpusight.analysis.selection import EVERYTHING, ResolvedSelection, Selection, TimeWindow
from gpusight.analysis.steps.step_window import step_window, with_window
from gpusight.analysis.steps.window_headline import StepWindow
from gpusight.errors import GpusightError, NotApplicableError, UsageError
from gpusight.results import TableResult
from tests.analysis.steps.test_step_window import MS, program
from tests.shared import DATA, EVERY_REPORT, EVERY_SQLITE, EVERY_TORCH_TRACE, name, opened
from tests.traces import build_trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpusight.render.result_view import Result
    from gpusight.results import Composite
    from gpusight.trace.trace import Trace

TIMELINES = [
    *sorted(DATA.glob("*.sqlite")),
    *sorted(DATA.glob("*.nsys-rep")),
    *sorted(DATA.glob("*.json.gz")),
    *sorted(DATA.glob("*.xplane.pb")),
]


def whatif(trace: Trace) -> Result:
    return gs.whatif(trace, graph=True)


COMMANDS: tuple[Callable[..., Result], ...] = (
    gs.diagnose, gs.summary, gs.kernels, gs.ops, gs.launches, gs.ranges, gs.api_calls, gs.copies,
    gs.memory, gs.flops, gs.steps, gs.ledger, gs.hotspots, gs.utilization, gs.timeline,
    gs.occupancy, gs.questions, gs.drill, whatif,
)  # fmt: skip
BUSY = ("busy_share", "gpu_busy_share", "gpu_share")
EVERY_TIMELINE = [
    *EVERY_SQLITE, *EVERY_REPORT, *EVERY_TORCH_TRACE,
    *sorted(DATA.glob("jax*.json.gz")), *sorted(DATA.glob("*.xplane.pb")),
]  # fmt: skip
MICROSECOND = 1_000


def facts(page: Composite) -> dict[str, Any]:
    return {fact.key: fact.value for fact in page.facts}


def window_of(trace: Trace) -> StepWindow:
    window = step_window(trace)
    assert isinstance(window, StepWindow)
    return window


def headline_in(command: str, document: dict[str, Any]) -> dict[str, Any]:
    named = document["meta"]["headline"]
    assert isinstance(named, dict), command
    return named


@pytest.mark.parametrize("path", EVERY_TIMELINE, ids=name)
def test_every_command_names_the_same_window_step_time_and_busy_share(path: Path) -> None:
    """Whatever a command shows, its headline is that of `diagnose`, in text and JSON."""
    trace = opened(path)
    results: dict[str, Result] = {}
    for command in COMMANDS:
        with contextlib.suppress(NotApplicableError):
            results[command.__name__] = command(trace)
    if "diagnose" not in results:
        pytest.skip("nothing to diagnose")
    documents = {name: result.to_dict() for name, result in results.items()}
    known = {name: headline_in(name, document) for name, document in documents.items()}
    diagnosed = known["diagnose"]
    diagnosis = gs.diagnose(trace).timeline
    assert diagnosis is not None
    window = diagnosis.focus
    assert diagnosed["text"].startswith(window.text.partition(", those of")[0])
    assert diagnosed["steps"] == len(window.steps)
    if window.steps:
        assert diagnosed["step_ns"] == window.step_ns
        assert diagnosed["recorded_step_ns"] == (window.recorded_step_ns or window.step_ns)
    for shown_by, named in known.items():
        shown = " ".join(results[shown_by].to_text().split())
        assert named["text"] in shown, shown_by
        # With several processes, `diagnose` names the one that it shows before its window.
        text = re.sub(r", those of process [^)]*\)", "", named["text"])
        if len(diagnosis.ledger.devices) > 1:  # and the GPU before the others
            text, diagnosed = f"{text}, ".partition(", ")[0], dict(diagnosed)
            diagnosed["text"] = diagnosed["text"].partition(", ")[0]
        alike = {**named, "text": text, "gpu_busy_share": 0}
        assert alike == diagnosed | {"gpu_busy_share": 0}, shown_by
        assert named["gpu_busy_share"] == pytest.approx(diagnosed["gpu_busy_share"]), shown_by
    # What is said of the step time and the busy share below a headline is the same.
    steps_ns = {meta["step_ns"] for d in documents.values() if "step_ns" in (meta := d["meta"])}
    assert steps_ns - {None} == ({window.step_ns} if window.steps else set())
    busy = [d["meta"][key] for d in documents.values() for key in BUSY if key in d["meta"]]
    assert busy == [pytest.approx(diagnosed["gpu_busy_share"])] * len(busy)
    assert {page["window_ns"] for page in lengths(documents)} == {window.length_ns}


def lengths(documents: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the pages that say how long the window is."""
    pages = [documents[name]["meta"] for name in ("summary", "utilization", "steps", "flops")
             if name in documents]  # fmt: skip
    return [page for page in pages if "window_ns" in page]


@pytest.mark.parametrize("path", TIMELINES, ids=name)
def test_steps_and_diagnosis_agree_on_the_steps(path: Path) -> None:
    trace = without_profiler(opened(path))
    window = window_of(trace)
    ledger = facts(ledger_page(gs.ledger(trace).answer))
    assert ledger["window_ns"] == window.length_ns
    diagnosis = gs.diagnose(trace, rules=["launch-bound"]).timeline
    assert diagnosis is not None
    if not window.steps:
        with pytest.raises(NotApplicableError):
            gs.steps(trace)
        assert "no steps found" in window.text
    else:
        steps = facts(gs.steps(trace).answer)
        assert steps["min_ns"] <= window.step_ns <= steps["max_ns"]
        assert diagnosis.steps == steps["kept"] == len(window.steps)
    assert 0 <= (diagnosis.headline.busy_share or 0) <= 1


def test_long_captures_name_no_step_time_that_was_not_worked_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gpusight.analysis import gpu_time

    trace = warm_up()
    monkeypatch.setattr(gpu_time, "MAX_CORRECTED", 3)
    kernels = gs.kernels(trace)
    assert kernels.answer.window == "4 steps (2 warm-up steps excluded)"
    assert kernels.to_dict()["meta"]["headline"]["step_ns"] is None
    gs.steps(trace)
    named = "4 steps of 1.07 ms (2 warm-up steps excluded), GPU busy "
    assert gs.kernels(trace).answer.window.startswith(named), "it is known by now"


@pytest.mark.parametrize("path", TIMELINES, ids=name)
def test_kernels_of_the_window_are_those_of_its_steps(path: Path) -> None:
    trace = without_profiler(opened(path))
    window = window_of(trace)
    if not window.steps or not trace.has("kernels"):
        pytest.skip("no kernels of steps")
    table = gs.steps(trace)["steps"].frame
    launched = int(table.filter("kept")["kernels"].sum())
    processes = trace.table("kernels", ["process"])["process"].n_unique()
    kernels = gs.kernels(trace)
    if processes == 1:
        assert kernels.meta["kernels"] >= launched  # and those launched between two steps
    whole = gs.kernels(trace, window=(None, None))
    assert whole.answer.window.startswith("whole capture, ")
    assert whole.meta["kernels"] == trace.table("kernels", ["start_ns"]).height


def warm_up() -> Trace:
    """Two steps of warm-up, then four of 1 ms, 0.1 ms apart, two kernels each."""
    return program([9, 5, 1, 1, 1, 1])


def window_named(trace: Trace, **options: Any) -> str:
    """Return the window in the headline of `kernels`, without the GPU's busy share."""
    text, _, busy = gs.kernels(trace, **options).answer.window.rpartition(", GPU busy ")
    assert busy.endswith("%")
    return text


def test_warm_up_is_left_out_unless_it_is_included() -> None:
    trace = warm_up()
    assert gs.kernels(trace).meta["kernels"] == 8
    assert window_named(trace) == "4 steps of 1.07 ms (2 warm-up steps excluded)"
    assert gs.kernels(trace, warmup=True).meta["kernels"] == 12
    assert window_named(trace, warmup=True) == "6 steps of 3.08 ms"
    assert gs.kernels(trace, steps="3-4").meta["kernels"] == 4
    assert window_named(trace, steps="3-4") == "2 steps of 1.05 ms"
    everything = gs.kernels(trace, window=(None, None))
    assert everything.meta["kernels"] == 12
    assert window_named(trace, window=(None, None)) == "whole capture, 18.5 ms, 6 steps"


def test_a_window_of_time_holds_what_starts_in_it() -> None:
    trace, window = warm_up(), (0, 9 * MS)
    assert gs.kernels(trace, window=window).meta["kernels"] == 2
    assert window_named(trace, window=window) == "window of 9.00 ms, 1 step"


def test_a_range_covers_its_occurrences_after_the_warm_up_unless_steps_are_chosen() -> None:
    trace = warm_up()
    result = gs.kernels(trace, within="step_*")
    named = "in ranges 'step_*' (2 in warm-up excluded)"
    assert (result.meta["kernels"], result.answer.window) == (8, named)
    everything = gs.kernels(trace, within="step_*", warmup=True)
    assert (everything.meta["kernels"], everything.answer.window) == (12, "in ranges 'step_*'")
    early = gs.kernels(trace, within="step_1")
    assert (early.meta["kernels"], early.answer.window) == (2, "in ranges 'step_1', all in warm-up")
    late = gs.kernels(trace, within="step_4")
    assert (late.meta["kernels"], late.answer.window) == (2, "in ranges 'step_4'")
    window = step_window(trace, Selection(within="step_*"))
    assert isinstance(window, StepWindow)
    assert (window.start_ns, len(window.steps)) == (window_of(trace).start_ns, 4)
    assert window.notes[-1].startswith("2 occurrences of the range in warm-up are excluded")
    assert gs.kernels(trace, within="step_*", steps="4").meta["kernels"] == 2


def test_host_events_of_the_window_start_in_its_steps() -> None:
    trace = warm_up()
    assert gs.ranges(trace).frame["name"].to_list() == [f"step_{n}" for n in range(2, 6)]
    assert gs.api_calls(trace).meta["calls"] == 8


def test_gpu_work_launched_before_the_window_keeps_the_gpu_busy() -> None:
    """A kernel of the warm-up runs into the first step, which launches one after it."""
    kernels = [
        {"start_ns": 10 * MICROSECOND, "end_ns": 60 * MICROSECOND, "correlation": 1},
        {"start_ns": 60 * MICROSECOND, "end_ns": 80 * MICROSECOND, "correlation": 2},
    ]
    calls = [
        {"start_ns": at * MICROSECOND, "end_ns": (at + 1) * MICROSECOND, "correlation": number}
        for number, at in ((1, 5), (2, 45))
    ]
    trace = build_trace(kernels=[{**k, "name": "k"} for k in kernels], api_calls=calls)
    host = (40 * MICROSECOND, 50 * MICROSECOND)
    time = TimeWindow(40 * MICROSECOND, 80 * MICROSECOND, *host)
    scope = ResolvedSelection(trace, Selection(time=time))
    assert scope.gpu("kernels", ["correlation"])["correlation"].to_list() == [2]
    assert scope.window.length_ns == 40 * MICROSECOND
    times = gpu_time(trace, Selection(time=time))
    assert isinstance(times, TableResult)
    assert times.frame["busy_share"].to_list() == [1.0]


def test_a_capture_without_steps_is_covered_whole() -> None:
    trace = build_trace(kernels=[{"start_ns": 0, "end_ns": MS, "name": "k"}])
    assert with_window(trace) == (EVERYTHING, "whole capture, 1.00 ms, no steps found")
    window = window_of(trace)
    assert window.no_steps
    assert f"no steps found: {window.no_steps}{window.suggestions}" in window.notes
    with pytest.raises(GpusightError):
        gs.kernels(trace, steps="1")
    with pytest.raises(UsageError):
        gs.kernels(trace, steps="1", window=(0, None))


def test_without_steps_every_command_leaves_out_the_start_of_the_program() -> None:
    calls = [{"start_ns": 0, "end_ns": 6 * MS, "name": "cuModuleLoadData"}]
    calls += [
        {
            "start_ns": at * MS,
            "end_ns": at * MS + 5_000,
            "name": "cudaLaunchKernel",
            "correlation": at,
        }
        for at in (7, 9)
    ]
    kernels = [
        {"start_ns": at * MS + 9_000, "end_ns": at * MS + MS, "name": f"k{at}", "correlation": at}
        for at in (7, 9)
    ]
    trace = build_trace(kernels=kernels, api_calls=calls, devices=[{"device": 0}])
    text = "3.00 ms, no steps found (program start excluded: 7.00 ms)"
    assert gs.summary(trace).answer.window == f"{text}, GPU busy 66.1%"
    assert window_named(trace) == text
    assert gs.diagnose(trace).timeline.focus.text == text  # type: ignore[union-attr]
    assert gs.api_calls(trace).frame["name"].to_list() == ["cudaLaunchKernel"]
    whole = gs.api_calls(trace, warmup=True)
    assert whole.answer.window.startswith("whole capture, 10.0 ms, no steps found, GPU busy ")
    assert whole.frame["name"].to_list() == ["cuModuleLoadData", "cudaLaunchKernel"]
