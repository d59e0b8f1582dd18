"""Long windows are accounted for stretch by stretch, with the result of the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpusight.analysis import profiler_correction
from gpusight.analysis.corrected_trace import correction_of
from gpusight.analysis.ledger import accounting
from gpusight.analysis.ledger.accounting import Accounting
from gpusight.analysis.ledger.ledger_report import LedgerReport, ledger_report
from gpusight.analysis.profiler_correction import without_profiler
from gpusight.analysis.steps.step_window import step_window
from gpusight.analysis.steps.window_headline import StepWindow
from gpusight.readers.open import open_trace
from tests.profiled_loops import profiled_loop
from tests.shared import DATA

if TYPE_CHECKING:
    from gpusight.trace.trace import Trace

MAX_APART = 0.001
"""Share of the window: medians are those of each stretch."""


def reported(trace: Trace) -> LedgerReport:
    report = ledger_report(trace)
    assert isinstance(report, LedgerReport), report
    return report


def cut_small(monkeypatch: pytest.MonkeyPatch, ops: int, margin: int) -> None:
    monkeypatch.setattr(accounting, "MAX_AT_ONCE", ops)
    monkeypatch.setattr(accounting, "IN_A_STRETCH", ops // 2)
    monkeypatch.setattr(accounting, "MARGIN", margin)


@pytest.mark.parametrize("name", ["dataload.sqlite", "gpt_small_forward.sqlite", "healthy.json.gz"])
def test_stretches_add_up_to_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_trace(DATA / name, cache=False) as trace:
        whole = reported(trace)
        cut_small(monkeypatch, ops=40, margin=20)
        parts = reported(trace)
        focus = step_window(trace)
    assert isinstance(focus, StepWindow)
    assert len(list(Accounting(trace, focus.start_ns, focus.end_ns).stretches())) > 1
    for one, other in zip(whole.devices, parts.devices, strict=True):
        assert one.overlap == other.overlap
        window = sum(entry.ns for entry in one.ledger.entries)
        assert sum(entry.ns for entry in other.ledger.entries) == window
        for entry in one.ledger.entries:
            assert abs(other.ledger.ns(entry.entry) - entry.ns) <= MAX_APART * window, entry
        assert other.steps.ns.sum() == one.steps.ns.sum()
        assert other.steps.steps == one.steps.steps
        assert other.contributors.keys() == one.contributors.keys()


def test_work_launched_long_before_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is further ahead of the GPU than what is looked at next to a stretch."""
    trace = profiled_loop(kernel_us=60, overhead_us=0)
    whole = reported(trace).ledger
    cut_small(monkeypatch, ops=8, margin=2)
    assert reported(trace).ledger.devices[0].ns("idle/queued") == whole.devices[0].ns("idle/queued")


@pytest.mark.parametrize("kernel_us", [5, 60])
def test_steps_that_are_corrected_group_by_group(
    kernel_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def corrected() -> tuple[Trace, float]:
        trace = profiled_loop(kernel_us=kernel_us)
        trace.pace = "0.2ms"
        moved = without_profiler(trace)
        correction = correction_of(moved)
        assert correction is not None
        return moved, correction.step_ns

    whole, whole_ns = corrected()
    monkeypatch.setattr(profiler_correction, "MAX_AT_ONCE", 40)
    monkeypatch.setattr(profiler_correction, "IN_A_GROUP", 20)
    parts, parts_ns = corrected()
    assert parts_ns == pytest.approx(whole_ns, rel=0.02)
    for table in ("kernels", "api_calls", "ranges"):
        starts, others = (t.table(table)["start_ns"].to_numpy() for t in (whole, parts))
        assert np.all(np.diff(others) >= 0)
        assert np.abs(starts - others).max() <= 0.05 * (starts[-1] - starts[0])
