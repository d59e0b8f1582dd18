"""What the accounts of a window are made of is worked out once, and only taken for that window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpusight.analysis.ledger.device_ledger import Accounting
from gpusight.analysis.ledger.ledger_report import LedgerReport, ledger_report
from gpusight.analysis.schedule_builder import build_schedule
from gpusight.reports.report_builder import build_report
from gpusight.rules.diagnosis_results import TimelineDiagnosis
from gpusight.rules.timeline_diagnosis import diagnose_timeline
from tests.reporting.programs import training

if TYPE_CHECKING:
    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.trace.trace import Trace


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Lists the windows that were laid out."""
    laid_out: list[tuple[int, int]] = []

    def watched(trace: Trace, start_ns: int, end_ns: int, **options: Any) -> GpuSchedule:
        laid_out.append((start_ns, end_ns))
        return build_schedule(trace, start_ns, end_ns, **options)

    monkeypatch.setattr("gpusight.analysis.ledger.device_ledger.build_schedule", watched)
    return laid_out


def test_a_report_lays_every_window_out_once(windows: list[tuple[int, int]]) -> None:
    build_report([training()])
    assert windows
    assert len(windows) == len(set(windows))


def test_what_is_handed_on_is_taken_for_its_own_window_alone(
    windows: list[tuple[int, int]],
) -> None:
    trace = training()
    known = Accounting(trace, 0, 1_000)
    assert Accounting(trace, 0, 1_000).or_known(known) is known
    for other in (
        Accounting(trace, 0, 999),
        Accounting(trace, 0, 1_000, process=1),
        Accounting(training(), 0, 1_000),
    ):
        assert other.or_known(known) is other
        assert other.or_known(None) is other
    assert windows == []


def test_the_ledger_of_a_diagnosis_is_that_of_the_ledger() -> None:
    trace = training()
    report, diagnosis = ledger_report(trace), diagnose_timeline(trace)
    assert isinstance(report, LedgerReport)
    assert isinstance(diagnosis, TimelineDiagnosis)
    assert diagnosis.ledger == report.ledger
