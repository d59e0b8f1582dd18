"""A timeline's diagnosis in every form: what is said, that it fits, that names are only shown."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from gpusight.analysis.ledger.device_ledger import DeviceLedger, Ledger, LedgerEntry
from gpusight.analysis.steps.step_list import TraceStep
from gpusight.analysis.steps.window_headline import StepWindow
from gpusight.render import diagnosis_view
from gpusight.render.csv_json import to_csv
from gpusight.render.diagnosis_screen import MAX_LINES, _fitted, _fitted_kernel, screen_lines
from gpusight.render.diagnosis_summary import language, timeline_gain
from gpusight.render.html import diagnosis_page
from gpusight.render.result_view import DiagnosisView
from gpusight.render.table_layout import TableOptions
from gpusight.rules.diagnosis import ReplayFacts, TimelineDiagnosis
from gpusight.rules.finding import Confidence, Evidence, TimelineFinding
from gpusight.rules.process_sections import DiagnosisSection, GpuOwner
from gpusight.rules.registry import timeline_rules
from gpusight.rules.rule import FindingLocation, Framework, TimelineRule
from tests.render.hostile import HOSTILE

MS = 1e6
STEPS = tuple(TraceStep(f"step_{n}", n, n * 10_000_000, (n + 1) * 10_000_000) for n in range(12))


def finding(rule: str, ms: float | None, **changed: Any) -> TimelineFinding:
    """Give a finding that saves so many ms of a window of 100."""
    ns = None if ms is None else ms * MS
    made = TimelineFinding(
        rule=rule,
        title=f"`data` holds the launching thread, says {rule}",
        recoverable_ns=ns,
        share=None if ms is None else ms / 100,
        step_ns=None if ns is None else ns / 10,
        saved_ns=ns,
        confidence=Confidence.HIGH,
        confidence_reason="all was measured",
        estimate="Replay without it.",
        evidence=(
            Evidence("waited", 8.0 * MS, "ns", "Time in `data` per step"),
            Evidence("rate", 1.5e9, "byte/s", "Rate of it"),
        ),
        why="It costs.",
        fix="Move `data` off the thread.",
        code="loader = DataLoader(dataset)\nnext(loader)",
        effort="one line",
        verify="Look again.",
        caveats="Never.",
        where=(
            FindingLocation("range", "data", 80.0 * MS, 10),
            FindingLocation("call", "cudaFree", None, 5),
        ),
    )
    return replace(made, **changed)


def entries(**shares: float) -> tuple[LedgerEntry, ...]:
    named = {key.replace("__", "/"): share for key, share in shares.items()}
    return tuple(LedgerEntry(name, round(share * 1e8), share) for name, share in named.items())


STARVED = entries(compute__matmul=0.15, compute__softmax=0.04, copy__h2d=0.004, idle__input=0.806)
BUSY = entries(compute__matmul=0.92, compute__softmax=0.05, idle__queued=0.03)


def diagnosis(
    *findings: TimelineFinding,
    ledger: tuple[LedgerEntry, ...] = STARVED,
    **changed: Any,
) -> TimelineDiagnosis:
    made = TimelineDiagnosis(
        focus=StepWindow(20_000_000, 120_000_000, STEPS[2:], STEPS[:2], "numbered ranges"),
        findings=findings,
        clean=("host-sync", "alloc-churn"),
        not_applicable={"memory-growth": "no memory was recorded", "exposed-copy": "no copies"},
        ledger=Ledger(20_000_000, 120_000_000, (DeviceLedger(0, ledger),)),
        replay=ReplayFacts(0.004, 10, 100_000_000),
        meta={"path": "runs/train.nsys-rep", "tool": "Nsight", "gpu": "NVIDIA H200", "device": 0},
        notes=("2 of 12 steps left out as warm-up: step_0, step_1",),
    )
    return replace(made, **changed)


def text(
    result: TimelineDiagnosis,
    *,
    details: bool = True,
    width: int | None = 80,
    limit: int | None = None,
) -> str:
    look = TableOptions(width, limit)
    return DiagnosisView(result).to_text(look, details=details)


def test_the_first_screen_is_the_plan() -> None:
    result = diagnosis(
        finding("input-starved", 80.0, title="Data loading stalls the GPU"),
        finding("launch-bound", 6.0, saved_ns=2.0 * MS, robust=False),
    )
    assert text(result, details=False, width=100).splitlines() == [
        (
            "train.nsys-rep: NVIDIA H200, 10 steps of 10.0 ms (2 warm-up steps excluded), "
            "GPU busy 19.4%"
        ),
        "idle 80.6% (input 80.6%) · compute 19.0% (matmul 15.0%)",
        "note: 2 of 12 steps left out as warm-up: step_0, step_1",
        "",
        f"    {'Fix':52}  Saves/step  So far  Confidence  Effort",
        f" 1. {'Data loading stalls the GPU':52}     8.00 ms    5.0x  high        one line",
        (
            " 2. `data` holds the launching thread, says launch-bound"
            "      200 µs    5.6x  high        one line"
        ),
        "both fixes: 10.0 -> 1.80 ms/step (5.6x)",
        "savings are after the fixes above; alone, fix 2 saves 600 µs",
        "next: gpusight explain runs/train.nsys-rep 1",
    ]


def test_what_rests_on_an_upper_bound_says_up_to() -> None:
    result = diagnosis(
        finding("host-sync", 20.0, saved_ns=20.0 * MS),
        finding("host-bound", 70.0, saved_ns=70.0 * MS, confidence=Confidence.LOW),
        finding("launch-bound", 5.0, saved_ns=5.0 * MS),
    )
    lines = text(result, details=False, width=120).splitlines()
    rows = [line for line in lines if re.match(r" \d\. ", line)]
    assert [re.findall(r"(?:up to )?[\d.]+x", row) for row in rows] == [
        ["1.25x"],
        ["up to 10x"],
        ["up to 20x"],
    ]
    total = "all 3 fixes: 10.0 ms -> at best 500 µs/step (up to 20x)"
    assert any(line.startswith(total) for line in lines)
    markdown = diagnosis_view.diagnosis_to_markdown(result)
    assert total.replace(">", r"\>") in markdown
    assert result.document()["plan"]["upper_bound"] is True


def test_the_first_screen_has_fifteen_lines_at_most() -> None:
    many = [finding(f"rule-{number}", 5.0, saved_ns=1.0 * MS) for number in range(30)]
    result = diagnosis(*many, notes=tuple("abc" * 50 for _ in range(9)))
    for width in (60, 80, 100):
        for bars in (False, True):
            lines = screen_lines(result, TableOptions(width, bars=bars))
            assert len(lines) <= MAX_LINES
            assert max(len(line.text) for line in lines) <= width
    assert any("more: --details" in line.text for line in lines)
    assert "all 30 fixes: 10.0 -> 7.00 ms/step (1.43x)" in [line.text for line in lines]


@pytest.mark.parametrize("fixes", [1, 2, 9])
@pytest.mark.parametrize("others", [1, 3, 9])
def test_fixes_come_before_other_processes(fixes: int, others: int) -> None:
    titled = finding("other", 80.0, title="Host waits (`gloo:all_reduce`): GPU idle 40 ms/step")
    sections = tuple(
        DiagnosisSection(
            f"process {pid} (python), GPU 0",
            f"--process {pid}",
            GpuOwner(pid, "python", (0,), 9),
            0.025,
            diagnosis(titled),
        )
        for pid in range(700, 700 + others)
    )
    plan = [finding(f"rule-{n}", 5.0 - n / 2, saved_ns=(5 - n / 2) * MS) for n in range(fixes)]
    aside = finding("profiler-overhead", 5.0, is_fix=False, saved_ns=None)
    long = "3 of 15 steps excluded as warm-up: " + "; a reason that is long " * 4
    answer = diagnosis(*plan, aside, sections=sections, notes=(long, "another"))
    lines = [line.text for line in screen_lines(answer, TableOptions(100))]
    assert len(lines) <= MAX_LINES
    assert sum(bool(re.match(r" \d\. ", line)) for line in lines) >= min(fixes, 3)
    processes = [line for line in lines if line.startswith("process 7")]
    rest = [
        line
        for line in lines
        if re.fullmatch(r"… \d more processes: --details; all ranks: gpusight ranks", line)
    ]
    assert len(processes) + sum(int(line.split()[1]) for line in rest) == others
    for line in processes:
        assert line.endswith(f"busy 2.5%; Host waits (--process {line.split()[1]})")


def test_details_have_everything_else() -> None:
    result = diagnosis(
        finding("input-starved", 80.0),
        finding("launch-bound", 6.0, saved_ns=2.0 * MS, robust=False),
    )
    lines = text(result).splitlines()
    for expected in (
        "   gain    saves 8.00 ms/step (80.0%)",
        "           Replay without it (high confidence: all was measured)",
        "   data      8.000 ms  Time in `data` per step",
        "           1.500 GB/s  Rate of it",
        "   where   time by range and call (the same time, seen 2 ways):",
        "           8.000 ms  range data, 1 per step",
        "                     call cudaFree, 5 in 10 steps",
        "   fix     Move `data` off the thread.",
        "           loader = DataLoader(dataset)",
        "   verify  Look again.",
        "   caveat  Never.",
        "   gain    alone saves 600 µs/step (6.0%); after fix 1 saves 200 µs/step (2.0%):",
        "           other fixes save the rest",
        "Savings are simulated on 10 steps; simulation error 0.4%.",
        "2 rules passed: host-sync, alloc-churn",
        "not evaluated: memory-growth: no memory was recorded",
    ):
        assert expected in lines
    assert "The order changes without the profiler's overhead per launch." in lines


def test_a_next_command_that_is_too_wide_is_broken_between_words() -> None:
    long = "runs/" + "a-long-name-" * 4 + ".nsys-rep"
    typed = ["--steps", "10-20", "--device", "1"]

    def following(path: str, width: int) -> list[str]:
        result = diagnosis(meta={"path": path, "gpu": "H200", "device": 0})
        shown = DiagnosisView(result).to_text(TableOptions(width), typed=typed)
        return shown[shown.index("next: ") :].splitlines()

    whole = f"next: gpusight ledger {long} --steps 10-20 --device 1"
    assert following(long, 120) == [whole]
    broken = following(long, 80)
    assert len(broken) == 3
    assert all(line.endswith(" \\") for line in broken[:-1])
    assert max(map(len, broken)) <= 80
    assert " ".join(line.removesuffix("\\").strip() for line in broken) == whole
    # A path that no line has room for stays where it is.
    assert following(long * 3, 80)[0].startswith(f"next: gpusight ledger {long}")


def test_a_healthy_program_gets_what_the_gpu_does() -> None:
    shown = text(diagnosis(ledger=BUSY), details=False)
    assert (
        "No fix found that saves 0.5% of the time or more: the GPU is busy 97.0% of it\n"
        "(matmul 92.0%, softmax 5.0%)." in shown
    )
    assert "next: gpusight drill runs/train.nsys-rep" in shown
    with_shapes = text(diagnosis(ledger=BUSY, has_shapes=True), details=False)
    assert "next: gpusight flops runs/train.nsys-rep" in with_shapes
    assert "next: gpusight ledger runs/train.nsys-rep" in text(diagnosis(), details=False)
    small = diagnosis_view.diagnosis_to_markdown(
        diagnosis(finding("between-steps", 2.1), ledger=BUSY)
    )
    assert "No fix saves more than 2.1% of the time: the GPU is busy 97.0%" in small
    assert "between-steps" in small


def test_nothing_found_on_an_idle_gpu_does_not_sound_like_praise() -> None:
    assert "though the GPU is idle: idle/input 80.6%" in text(diagnosis(), width=None)
    unjudged = diagnosis(clean=(), not_applicable={"launch-bound": "no API calls"})
    assert "No rule could be evaluated on this capture." in text(unjudged)


def test_what_another_finding_covers_is_not_called_unjudged() -> None:
    result = diagnosis(
        finding("input-starved", 80.0),
        not_applicable={"host-sync": "the same cause as it", "exposed-copy": "no copies"},
        covered={"host-sync": "input-starved"},
    )
    shown = text(result)
    assert "\ncovered by input-starved: host-sync\n" in shown
    assert "not evaluated: exposed-copy: no copies" in shown
    assert "same cause" not in shown
    markdown = diagnosis_view.diagnosis_to_markdown(result, limit=0, details=True)
    assert "\nCovered by `input-starved`: host-sync.\n" in markdown
    assert "same cause" not in markdown
    page = diagnosis_page.diagnosis_to_page(result, limit=0, details=0)
    assert "Covered by input-starved: host-sync" in page
    assert "1 rule not evaluated" in page
    assert [row["rule"] for row in result.document()["not_applicable"]] == [
        "host-sync",
        "exposed-copy",
    ]


def test_what_is_no_matter_of_time() -> None:
    result = diagnosis(finding("capture-incomplete", None))
    assert "no time estimate" in text(result)
    assert result.fixes == ()
    assert result.document()["findings"][0]["recoverable_ns"] is None


def test_the_overhead_of_the_profiler_has_one_number() -> None:
    ledger = entries(compute__matmul=0.1, idle__launching=0.8, idle__profiler=0.1)
    note = finding("profiler-overhead", 30.0, title="Profiler overhead: about 3 ms", is_fix=False)
    screen = text(diagnosis(finding("launch-bound", 60.0), note, ledger=ledger), details=False)
    assert screen.count("profiler ") == 0
    assert "Profiler overhead: about 3 ms" in screen
    assert "profiler 10.0%" in text(diagnosis(ledger=ledger), details=False)


@pytest.mark.parametrize(
    ("ms", "total"),
    [
        ((60.0, 20.0), "both fixes: 10.0 -> 2.00 ms/step (5.0x)"),
        ((60.0, None), "fix 1: 10.0 -> 4.00 ms/step (2.5x)"),
        ((60.0, 20.0, None), "fixes 1-2: 10.0 -> 2.00 ms/step (5.0x)"),
        ((None, 60.0, 20.0), "fixes 2-3: 10.0 -> 2.00 ms/step (5.0x)"),
        ((60.0, None, 20.0), "fixes 1 and 3: 10.0 -> 2.00 ms/step (5.0x)"),
    ],
)
def test_the_total_names_the_rows_with_a_time_estimate(
    ms: tuple[float | None, ...], total: str
) -> None:
    result = diagnosis(*(finding(f"rule-{n}", value) for n, value in enumerate(ms)))
    assert any(line.startswith(total) for line in text(result, details=False).splitlines())


def uncovering() -> TimelineDiagnosis:
    """Four fixes: the third and the fourth save more after those above them than alone."""
    return diagnosis(
        finding("unfused-optimizer", 14.0, title="Unfused optimizer"),
        finding("fp32-no-tensor-cores", 12.0, saved_ns=12.05 * MS, title="FP32 GEMMs"),
        finding("launch-bound", 10.0, saved_ns=38.0 * MS, title="GPU idle"),
        finding("host-sync", 0.0, saved_ns=4.0 * MS, title="12 blocking syncs"),
    )


def test_a_fix_that_gives_nothing_by_itself() -> None:
    shown = text(uncovering(), width=100)
    assert "alone saves nothing; after fixes 1-3 saves 400 µs/step (4.0%)" in shown


@pytest.mark.parametrize("width", [80, 140])
def test_what_fixes_save_alone_is_listed_where_it_differs(width: int) -> None:
    lines = text(uncovering(), details=False, width=width).splitlines()
    assert all(len(line) <= width for line in lines)
    note = "savings are after the fixes above; alone, fix 3 saves 1.00 ms, fix 4 nothing"
    assert sum(note in line for line in lines) == 1
    total = next(number for number, line in enumerate(lines) if line.startswith("all 4 fixes"))
    # Beside the total where there is room, else below it.
    assert note in lines[total if width == 140 else total + 1]
    rows = diagnosis_view.diagnosis_to_markdown(uncovering()).splitlines()
    alone = [re.split(r" *\| *", row)[6] for row in rows if re.match(r"\| +\d", row)]
    assert alone[2:] == ["1.00 ms", "nothing"]
    assert ">nothing</td>" in diagnosis_page.diagnosis_to_page(uncovering())


def test_nothing_is_listed_where_fixes_save_the_same_alone() -> None:
    assert "alone, " not in text(diagnosis(finding("input-starved", 80.0)), details=False)


def test_a_fix_that_needs_another_says_so() -> None:
    first = finding("launch-bound", 60.0, needs=("host-sync", "absent"))
    result = diagnosis(first, finding("host-sync", 5.0))
    assert "apply fix 2 (host-sync) before fix 1" in text(result, details=False).splitlines()
    assert "saves 6.00 ms/step (60.0%); apply it after fix 2 (host-sync)" in text(result, width=100)
    assert "apply fix 2 (host-sync) before fix 1" in diagnosis_view.diagnosis_to_markdown(result)
    assert "apply fix 2 (host-sync) before fix 1" in diagnosis_page.diagnosis_to_page(result)
    assert result.document()["findings"][0]["needs"] == ["host-sync", "absent"]


def test_a_plan_in_the_order_to_apply_needs_no_note() -> None:
    answer = diagnosis(
        finding("host-sync", 5.0), finding("launch-bound", 60.0, needs=("host-sync",))
    )
    assert "apply fix" not in text(answer, details=False)
    assert "apply it after fix 1 (host-sync)" in text(answer, width=100)


def test_what_is_not_in_the_plan_follows_it() -> None:
    twin = finding("host-sync", 70.0, title="Twin", saved_ns=None, instead_of="input-starved")
    small = finding("fp32-no-tensor-cores", 0.1, title="Small", saved_ns=None)
    note = finding("profiler-overhead", 5.0, title="Overhead", saved_ns=None, is_fix=False)
    result = diagnosis(finding("input-starved", 80.0), twin, small, note)
    assert [f.rule for f in result.plan] == ["input-starved"]
    lines = text(result, details=False, width=100).splitlines()
    assert lines[-5:-1] == [
        "this fix: 10.0 -> 2.00 ms/step (5.0x)",
        "or, instead of fix 1: Twin, saves 7.00 ms",
        "also: Small, saves under 0.5%",
        "note: Overhead (explain profiler-overhead)",
    ]
    details = text(result, width=100)
    assert "saves 7.00 ms/step (70.0%) instead of fix 1 (input-starved)" in details
    assert "note: profiler-overhead: Overhead\n   gain    not a fix: 500 µs/step (5.0%)" in details
    assert "or, instead of fix 1: Twin" in diagnosis_view.diagnosis_to_markdown(result)
    assert "or, instead of fix 1: Twin" in diagnosis_page.diagnosis_to_page(result)
    many = diagnosis(*[finding(f"rule-{n}", 4.0) for n in range(9)], twin, small, note)
    many = replace(many, findings=tuple(replace(f, instead_of="") for f in many.findings))
    lines = text(many, details=False, width=100).splitlines()
    assert "below the plan: 3 more notes (--details)" in lines
    assert len(lines) <= MAX_LINES


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_note_is_never_cut_in_the_middle_of_a_sentence(width: int) -> None:
    short = "no steps found: the capture has no ranges"
    reason = "and GPU work does not repeat itself in any way that would show where a step begins"
    first, *_ = note_of(diagnosis(notes=(short,)), width)
    assert first == f"note: {short}"
    whole = note_of(diagnosis(notes=(f"{short}, {reason}",)), width)
    assert " ".join(line.strip() for line in whole) in {
        f"note: {short}, {reason}",
        "note: no steps found (more: --details)",
    }
    several = note_of(diagnosis(notes=(f"{short}, {reason}, {reason}, {reason}", "b", "c")), width)
    assert several == ["note: no steps found (more, +2 notes: --details)"]
    assert note_of(diagnosis(notes=("abc " * 99, "b")), width) == ["notes: 2 (--details)"]
    command = f"kernels are not traced; capture again with: gpusight record {'--option ' * 30}"
    assert note_of(diagnosis(notes=(command,)), width) == [
        "note: kernels are not traced (more: --details)"
    ]


def note_of(result: TimelineDiagnosis, width: int) -> list[str]:
    lines = [line.text for line in screen_lines(result, TableOptions(width))]
    first = next(number for number, line in enumerate(lines) if line.startswith("note"))
    return lines[first : lines.index("")]


def test_times_of_locations_that_are_not_saved_say_what_they_are() -> None:
    where = (FindingLocation("range", "data", 80.0 * MS, 10),)
    timed = finding("launch-bound", 6.0, where_time="host time of launches", where=where)
    result = diagnosis(timed)
    assert "   where   host time of launches:\n           8.000 ms  range data" in text(result)
    markdown = diagnosis_view.diagnosis_to_markdown(result, details=True)
    assert "\nWhere (host time of launches):\n\n- range" in markdown
    assert "<caption>Host time of launches</caption>" in diagnosis_page.diagnosis_to_page(result)
    assert result.document()["findings"][0]["where_time"] == "host time of launches"


HIDDEN = "the time that it saves is hidden behind other work now"


@pytest.mark.parametrize(
    ("findings", "rule", "why"),
    [
        (("a", "b"), "b", f"after fix 1 saves 219 µs/step (2.2%): {HIDDEN}"),
        (("a", "c", "b"), "b", f"after fixes 1-2 saves 219 µs/step (2.2%): {HIDDEN}"),
        (("b", "a"), "b", f"in the plan saves 219 µs/step (2.2%): {HIDDEN}"),
    ],
)
def test_a_fix_that_saves_more_than_alone_says_why(
    findings: tuple[str, ...], rule: str, why: str
) -> None:
    made = [
        finding(name, 2.0, saved_ns=2.19 * MS) if name == rule else finding(name, 4.0)
        for name in findings
    ]
    gain = timeline_gain(diagnosis(*made), made[findings.index(rule)])
    assert gain == f"alone saves 200 µs/step (2.0%); {why}"


def test_a_fix_that_saves_more_than_it_takes_names_whose_time_it_is() -> None:
    """Both fixes are needed for that time: the first alone saves none of it."""
    second = replace(finding("b", 2.0, saved_ns=2.9 * MS), measured_ns=2.0 * MS)
    gain = timeline_gain(diagnosis(finding("a", 4.0), second), second)
    assert gain == (
        "alone saves 200 µs/step (2.0%); after fix 1 saves 290 µs/step (2.9%): its own 200 "
        "µs/step, the rest is time of fix 1 that saves nothing before this one"
    )


def test_notes_start_with_what_matters_most() -> None:
    lost, suspected = "3 kernels were lost", "CUDA profiling might have not been started correctly."
    made = diagnosis(incomplete=(suspected, lost), notes=("graphs are opaque", "a sample"))
    warned = made.with_warnings(("a row was left out",))
    assert warned.notes == (lost, "a row was left out", "graphs are opaque", "a sample", suspected)
    assert warned.with_warnings(("later",)).notes[:2] == (lost, "later")


@pytest.mark.parametrize(("count", "shown"), [(1, "range data, once"), (2, "range data, 2 times")])
def test_how_often_a_location_occurs_without_steps(count: int, shown: str) -> None:
    where = (FindingLocation("range", "data", 80.0 * MS, count),)
    window = StepWindow(20_000_000, 120_000_000, (), (), "no steps")
    answer = diagnosis(finding("input-starved", 80.0, where=where), focus=window)
    assert f"80.00 ms  {shown}" in text(answer)


def test_a_finding_without_locations_says_how_to_get_them() -> None:
    result = diagnosis(finding("launch-bound", 6.0, where_time="host time of launches", where=()))
    shown_text = " ".join(text(result).split())
    assert (
        "where host time of launches: the capture has no ranges or operators there (gpusight "
        "record adds NVTX ranges; with --with torch, operators) why" in shown_text
    )
    page = diagnosis_page.diagnosis_to_page(result)
    assert "no ranges or operators there" in page


def test_without_steps_times_are_of_the_window() -> None:
    whole = StepWindow(20_000_000, 120_000_000)
    result = diagnosis(finding("input-starved", 80.0), focus=whole)
    result = replace(result, replay=ReplayFacts(0.004, 0, 100_000_000))
    shown = text(result)
    assert "no steps found" in shown
    assert "this fix: 100 -> 20.0 ms (5.0x)" in shown
    assert "step" not in shown.replace("Time in `data` per step", "").replace(
        "no steps", ""
    ).replace("left out as warm-up: step_0, step_1", "").replace("2 of 12 steps", "")
    assert "simulated on 100.0 ms" in shown


def test_a_replay_that_misses_is_not_praised() -> None:
    rough = diagnosis(finding("input-starved", 80.0), replay=ReplayFacts(0.08, 10, 100_000_000))
    assert "simulation error" not in text(rough)  # a note of the diagnosis says it, at the top
    none = diagnosis(finding("input-starved", 80.0), replay=None)
    assert "Nothing could be simulated" in text(none)


def test_several_gpus() -> None:
    ledger = Ledger(0, 100_000_000, (DeviceLedger(0, BUSY), DeviceLedger(3, STARVED)))
    result = diagnosis(finding("input-starved", 80.0), ledger=BUSY)
    result = replace(result, ledger=ledger, meta={**result.meta, "device": 3})
    shown = text(result)
    assert "GPU 3 busy 19.4% (all 2: 19.4% to 97.0%)" in shown.replace("\n", " ")
    assert "idle 80.6% (input 80.6%) · compute 19.0% (matmul 15.0%)" in shown
    page = diagnosis_page.diagnosis_to_page(result)
    assert page.count('class="bar"') == 2
    assert "GPU 0: compute 97.0%" in diagnosis_view.diagnosis_to_markdown(
        result, limit=0, details=True
    )


def test_the_bar_is_as_wide_as_the_screen() -> None:
    lines = screen_lines(diagnosis(), TableOptions(60, bars=True))
    bar, legend = (line for line in lines if line.parts)
    assert [(len(piece), style) for piece, style in bar.parts] == [(48, "yellow"), (12, "green")]
    assert legend.text == "idle 80.6% (input 80.6%) · compute 19.0% (matmul 15.0%)"
    assert legend.parts[0] == ("idle 80.6% (input 80.6%)", "yellow")


def test_markdown() -> None:
    result = diagnosis(finding("input-starved", 80.0, code="```\nx = `1`"))
    shown = diagnosis_view.diagnosis_to_markdown(result, limit=0, details=True)
    assert "> 2 of 12 steps left out as warm-up: step\\_0, step\\_1" in shown
    assert "| 1 | `data` holds the launching thread, says input-starved | `input-starved`" in shown
    assert "### 1. input-starved: `data` holds" in shown
    assert "\n````python\n```\nx = `1`\n````\n" in shown
    assert "- range `data`: 8.000 ms, 1 per step" in shown
    assert "Passed: `host-sync`, `alloc-churn`." in shown
    assert "- memory-growth: no memory was recorded" in shown
    cuda = diagnosis(finding("input-starved", 80.0, code="cudaFree(x);\n"))
    assert "```cuda\n" in diagnosis_view.diagnosis_to_markdown(cuda, limit=0, details=True)


def test_the_page_needs_nothing_else() -> None:
    page = diagnosis_page.diagnosis_to_page(
        diagnosis(finding("input-starved", 80.0), finding("launch-bound", 6.0))
    )
    assert page.startswith("<!DOCTYPE html>")
    assert "default-src 'none'" in page
    assert page.count('<section class="kernel">') == 2
    widths = [float(w) for w in re.findall(r"height:22px;width:([\d.]+)%", page)]
    assert widths == [80.6, 19.0, 0.4]
    assert "<script" not in page
    assert not re.search(r'(?:src|href)="', page)


def test_csv_and_json() -> None:
    result = diagnosis(finding("input-starved", 80.0), finding("launch-bound", 6.0))
    rows = list(csv.DictReader(io.StringIO(to_csv(diagnosis_view.diagnosis_table(result)))))
    assert [row["rule"] for row in rows] == ["input-starved", "launch-bound"]
    assert (rows[0]["rank"], float(rows[0]["recoverable_ns"])) == ("1", 80e6)
    document = json.loads(json.dumps(DiagnosisView(result).to_dict(limit=1)))
    assert [one["rule"] for one in document["findings"]] == ["input-starved"]
    assert set(document) >= {"findings", "clean", "not_applicable", "ledger", "window", "meta"}
    assert set(document["findings"][0]) >= {
        "rule",
        "title",
        "recoverable_ns",
        "share",
        "confidence",
        "evidence",
        "fix",
        "where",
    }
    assert document["not_applicable"][0] == {
        "rule": "memory-growth",
        "reason": "no memory was recorded",
    }


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_others_are_only_shown(name: str) -> None:
    hostile = finding(
        "input-starved",
        80.0,
        title=f"`{name}` waits",
        fix=f"Move `{name}` away.",
        code=f"# {name}\nx()",
        evidence=(Evidence("e", 1.0, "ns", f"Time in `{name}`"),),
        where=(FindingLocation("range", name, 1.0, 1),),
    )
    meta = {"path": f"/tmp/{name}", "gpu": name, "device": 0}
    result = diagnosis(hostile, notes=(name,), not_applicable={"x": name}, meta=meta)
    page = diagnosis_page.diagnosis_to_page(result)
    shown = [
        text(result),
        page,
        diagnosis_view.diagnosis_to_markdown(result, limit=0, details=True),
    ]
    shown.append(diagnosis_page.diagnosis_to_fragment(result, limit=0, details=0))
    for row in shown:
        assert not {"\x1b", "\x9b", "\u202e", "\r", "\t"} & set(row)
    assert "</script>" not in page
    assert "<b>bold" not in page
    pasted = ("# ", "next: ")
    wrapped = [line for line in shown[0].splitlines() if not line.strip().startswith(pasted)]
    assert max(map(len, wrapped)) <= 80  # but for lines to paste, which are not cut


def test_the_view_shows_itself() -> None:
    view = DiagnosisView(diagnosis(finding("input-starved", 80.0)))
    assert "input-starved" in repr(view)
    assert "<table>" in view._repr_html_()
    assert [f.rule for f in view.findings] == ["input-starved"]
    assert view.saved_ns == 80e6
    assert view.kernels == ()
    assert view.notes[0].startswith("2 of 12")
    assert view.title == "Diagnosis"
    assert view.meta["gpu"] == "NVIDIA H200"
    assert view.ledger is not None
    assert json.loads(view.to_json())["findings"][0]["rule"] == "input-starved"
    assert "| `input-starved` |" in view.to_markdown()
    assert "### 1." in view.to_markdown(details=True)
    assert view.to_html().startswith("<!DOCTYPE html>")
    assert len(view.to_csv().splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "width", "fitted"),
    [
        ("Unfused optimizer: 1,000 kernels/step", 40, "Unfused optimizer: 1,000 kernels/step"),
        ("Unfused optimizer: 1,000 kernels/step", 36, "Unfused optimizer"),
        ("FP32 GEMMs not on Tensor Cores (79% of all)", 36, "FP32 GEMMs not on Tensor Cores"),
        ("Kernel launch overhead: GPU idle 4 ms", 35, "Kernel launch overhead"),
        ("Other host code (no CUDA calls): GPU idle 4 ms", 31, "Other host code (no CUDA calls)"),
        ("Other host code (no CUDA calls): GPU idle 4 ms", 30, "Other host code"),
        ("Data loading (`next`) stalls the GPU 4 ms", 33, "Data loading (`next`)"),
        ("GPU idle waiting for other streams: 4 ms", 33, "GPU idle waiting for other…"),
        ("my_kernel: Uncoalesced loads and stores", 30, "my_kernel: Uncoalesced loads…"),
        ("Warm-up: first step 5.01 s, later 103 ms", 36, "Warm-up: first step 5.01 s"),
        ("Stall Long Scoreboard 86% (of all)", 24, "Stall Long Scoreboard"),
        ("Latency-bound: no unit above 15%", 31, "Latency-bound"),
        ("name_without_any_space", 12, "name_withou…"),
    ],
)  # fmt: skip
def test_titles_lose_their_numbers_or_whole_words(text: str, width: int, fitted: str) -> None:
    assert _fitted(text, width) == fitted


@pytest.mark.parametrize(
    ("label", "title", "width", "fitted"),
    [
        ("gemm", "Small grid: 32 blocks on 132 SMs", 40, "gemm: Small grid: 32 blocks on 132 SMs"),
        ("gemm", "Small grid: 32 blocks on 132 SMs", 30, "gemm: Small grid"),
        ("gemm", "Tail effect: 1.5 waves, 2 needed", 32, "gemm: Tail effect: 1.5 waves"),
        ("batch_norm inference", "Stall Wait 86%", 32, "batch_norm inference: Stall Wait"),
        ("batch_norm inference", "Stall Wait 86%", 24, "batch_…rence: Stall Wait"),
        ("batch_norm inference", "Atomics keep L2 busy", 30, "batch_norm inference: Atomics…"),
    ],
)  # fmt: skip
def test_a_kernel_keeps_the_phrase_of_its_finding(
    label: str, title: str, width: int, fitted: str
) -> None:
    assert _fitted_kernel(label, title, width) == fitted


def test_a_group_of_the_ledger_does_not_repeat_its_name() -> None:
    ledger = entries(compute__matmul=0.9, communication=0.06, idle__queued=0.04)
    shown = text(diagnosis(ledger=ledger), details=False).splitlines()
    assert "compute 90.0% (matmul 90.0%) · communication 6.0% · idle 4.0% (queued 4.0%)" in shown


@pytest.mark.parametrize("rule", timeline_rules().values(), ids=lambda rule: rule.id)
def test_lines_to_paste_that_are_called_python_are_python(rule: TimelineRule) -> None:
    for framework in (Framework.TORCH, Framework.JAX, Framework.CUDA):
        code = rule.snippet(framework)
        if language(code) == "python":
            ast.parse(code)


@pytest.mark.parametrize("width", [60, 70, 80, 100])
def test_the_facts_of_a_headline_are_never_cut(width: int) -> None:
    result = diagnosis(finding("input-starved", 80.0))
    path = "runs/" + "a_model_with_many_words_" * 6 + ".nsys-rep"
    result = replace(result, meta={**result.meta, "path": path})
    head = text(result, details=False, width=width).partition("\nidle ")[0]
    assert "10 steps of 10.0 ms (2 warm-up steps excluded), GPU busy 19.4%" in head.replace(
        "\n", " "
    )
    assert max(map(len, head.splitlines())) <= width


def test_places_that_are_not_known_are_told_in_a_sentence() -> None:
    made = diagnosis(finding("launch-bound", 30.0, where=(), where_time="Host time"))
    page = DiagnosisView(made)._repr_html_()
    assert '<p class="sub">Host time: the capture has no ranges or operators there' in page
    assert "<table></table>" not in page
    assert "<table><caption>" not in page
