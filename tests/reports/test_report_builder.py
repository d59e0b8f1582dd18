"""A report is the answers of the commands, gathered: none is another, and none is left out."""

from __future__ import annotations

import pytest

import gpusight as gs
from gpusight.analysis.kernel_summary import kernels
from gpusight.analysis.ledger.ledger_report import LedgerReport, ledger_report
from gpusight.analysis.selection import Selection
from gpusight.comparison.build_digest import make_digest
from gpusight.comparison.comparison_result import Comparison
from gpusight.comparison.digest import Digest
from gpusight.errors import UsageError
from gpusight.reports.range_tree import RangeTree
from gpusight.reports.report_builder import build_report
from gpusight.reports.report_contents import (
    Headline,
    HeadlineFix,
    ProgramReport,
    Report,
    ReportRequest,
)
from gpusight.results import NotApplicable, TableResult
from gpusight.rules.diagnosis import (
    JoinedDiagnosis,
    KernelReportDiagnosis,
    TimelineDiagnosis,
)
from gpusight.rules.timeline_diagnosis import diagnose_timeline
from tests.profiled_loops import profiled_loop, step_ns
from tests.reports.training_programs import training
from tests.shared import DATA, opened
from tests.traces import build_trace


def program(report: Report) -> ProgramReport:
    assert report.program is not None
    return report.program


def numbers(report: Report) -> dict[str, tuple[float | None, str]]:
    return {number.key: (number.value, number.detail) for number in report.headline.numbers}


def test_it_holds_what_the_commands_answer() -> None:
    trace = training()
    content = program(build_report([trace]))
    account, table, judged = ledger_report(trace), kernels(trace), diagnose_timeline(trace)
    assert isinstance(account, LedgerReport)
    assert isinstance(content.ledger, LedgerReport)
    assert content.ledger.document() == account.document()
    assert isinstance(table, TableResult)
    assert isinstance(content.kernels, TableResult)
    assert content.kernels.frame.equals(table.frame)
    assert isinstance(judged, TimelineDiagnosis)
    assert isinstance(content.diagnosis, TimelineDiagnosis)
    assert content.diagnosis.document() == judged.document()


def test_the_headline_has_four_numbers_and_says_how_sure_they_are() -> None:
    report = build_report([training(4)])
    headline = numbers(report)
    step, spread = headline["step_ns"]
    assert step == pytest.approx(3980e3 / 4)
    assert spread.startswith("4 steps, ")
    share, idle = headline["busy_share"]
    assert share == pytest.approx(4 * 350 / 3980)
    assert idle == "idle 64.8%, mostly input"
    assert headline["kernels_per_step"] == (2.0, "8 total, 2 kernel names")
    assert headline["peak_bytes"] == (1e9, "0.7% of GPU memory")


def test_what_a_capture_cannot_tell_is_a_number_without_a_value() -> None:
    report = build_report([opened(DATA / "memory_snapshot.pickle")])
    headline = numbers(report)
    assert headline["busy_share"] == (None, "the capture shows no GPU work")
    assert headline["peak_bytes"][0] is not None
    assert {part.part for part in report.limitations.absent} >= {"Findings", "Ledger", "Kernels"}


def test_the_step_after_the_fixes_is_less_by_what_they_save() -> None:
    given = ((50.0, 50.0), (8.0, 42.0))
    plan = tuple(HeadlineFix(n, "r", "t", *ns, "high") for n, ns in enumerate(given, 1))
    assert Headline((), plan, "step", 100.0).then_ns == 42
    assert Headline((), plan, "step", 50.0).then_ns == 0
    assert Headline(()).then_ns is None


def test_what_is_no_fix_is_not_in_the_plan() -> None:
    headline = build_report([opened(DATA / "jax_small.xplane.pb")]).headline
    assert "warmup-in-window" not in [fix.rule for fix in headline.plan]
    assert [fix.rank for fix in headline.plan] == list(range(1, len(headline.plan) + 1))


def test_steps_are_one_range_where_no_gpu_worked() -> None:
    steps = [
        {"start_ns": 10 * n, "end_ns": 10 * n + 8, "name": f"ProfilerStep#{n}"} for n in range(4)
    ]
    program = build_report([build_trace(ranges=steps)]).program
    assert program is not None
    assert isinstance(program.ranges, RangeTree)
    assert program.ranges.names == ("ProfilerStep##",)


def test_it_names_the_file_but_no_folder_machine_or_person() -> None:
    report = build_report([training()])
    assert report.title == "run.sqlite"
    assert report.captures[0].file == "run.sqlite"
    assert report.captures[0].gpus == ("NVIDIA H200",)
    assert build_report([training()], ReportRequest(title="Mine")).title == "Mine"


def test_time_and_selection_are_those_asked_for() -> None:
    trace = training(6)
    content = program(build_report([trace], ReportRequest(steps="1-3")))
    assert isinstance(content.ledger, LedgerReport)
    assert [step.number for step in content.ledger.focus.steps] == [1, 2, 3]
    selected = program(build_report([trace], ReportRequest(Selection(within="forward"))))
    assert isinstance(selected.kernels, TableResult)
    assert selected.kernels.frame.height == 1


def test_a_report_alone_and_beside_a_timeline() -> None:
    measured = opened(DATA / "thrice.ncu-rep.xz")
    alone = build_report([measured])
    assert alone.program is None
    assert isinstance(alone.measured[0].diagnosis, KernelReportDiagnosis)
    assert numbers(alone)["launches"][0] == 36
    assert alone.headline.whole == "GPU time"
    timeline = opened(DATA / "resnet18_infer.sqlite")
    for order in ([timeline, measured], [measured, timeline]):
        both = build_report(order)
        assert program(both).about.file == "resnet18_infer.sqlite"
        assert isinstance(both.measured[0].diagnosis, JoinedDiagnosis)
        assert both.headline.whole == "window"


def test_what_makes_no_report_is_refused() -> None:
    with pytest.raises(UsageError, match="2 timelines"):
        build_report([training(), training()])
    with pytest.raises(UsageError, match="no capture"):
        build_report([])
    with pytest.raises(UsageError, match="--steps does not apply"):
        build_report([opened(DATA / "thrice.ncu-rep.xz")], ReportRequest(steps="1"))


def test_before_and_after() -> None:
    base = make_digest(training(meta={"path": "base.sqlite"}))
    assert isinstance(base, Digest)
    report = build_report([training()], base=[base])
    assert isinstance(report.comparison, Comparison)
    assert report.comparison.before.labels == ("base.sqlite",)
    assert report.comparison.after.labels == ("run.sqlite",)
    measured = build_report([opened(DATA / "thrice.ncu-rep.xz")], base=[base])
    assert isinstance(measured.comparison, NotApplicable)


def test_every_note_is_said_once_with_the_parts_it_is_of() -> None:
    trace = build_trace(
        {"warnings": ("the file was cut off",)},
        kernels=[{"start_ns": 0, "end_ns": 10, "name": "k"}],
        devices=[{}],
    )
    report = build_report([trace])
    assert report.warnings == ("the file was cut off",)
    texts = [note.text for note in report.limitations.notes]
    assert len(texts) == len(set(texts))
    assert "no API calls in the window: the causes of idle time are unknown" in texts
    assert "the file was cut off" in report.notes
    assert report.limitations.missing[0].command == "missing"


def test_an_empty_capture_gives_a_report_that_says_so() -> None:
    report = build_report([build_trace()])
    assert [value for value, _ in numbers(report).values()] == [None] * 4
    assert report.headline.plan == ()
    assert len(report.limitations.absent) >= 7


def test_with_a_known_step_time_all_numbers_are_those_of_diagnose() -> None:
    trace = profiled_loop(overhead_us=5)
    trace.pace = step_ns(profiled_loop())
    view = gs.diagnose(trace).timeline
    assert view is not None
    assert view.correction is not None
    report = build_report([trace])
    content = program(report)
    assert isinstance(content.diagnosis, TimelineDiagnosis)
    assert content.diagnosis.document() == view.document()
    assert content.diagnosis.correction is not None
    (step, busy, *_) = report.headline.numbers
    assert step.value == view.step_ns < view.correction.recorded_ns
    assert report.headline.then_ns == pytest.approx(view.predicted_step_ns)
    assert busy.value == view.ledger.devices[0].busy_share
    ledger = gs.ledger(trace).answer.document()["devices"][0]["entries"]
    assert isinstance(content.ledger, LedgerReport)
    assert content.ledger.document()["devices"][0]["entries"] == ledger
