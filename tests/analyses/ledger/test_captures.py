"""The ledgers of real captures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpusight.analysis.ledger.ledger_report import DeviceLedgerReport, LedgerReport, ledger_report
from gpusight.readers.open import open_trace
from gpusight.results import NotApplicable
from tests.shared import DATA, EVERY_REPORT, EVERY_SQLITE, EVERY_TORCH_TRACE, SHARED, name
from tests.shared import needs_shared as needs_shared_captures

if TYPE_CHECKING:
    from pathlib import Path

EVERY = [*EVERY_SQLITE, *EVERY_REPORT, *EVERY_TORCH_TRACE, *sorted(DATA.glob("jax*"))]


def report(path: Path) -> LedgerReport | NotApplicable:
    with open_trace(path, cache=False) as trace:
        return ledger_report(trace)


def only_device(path: Path) -> DeviceLedgerReport:
    found = report(path)
    assert isinstance(found, LedgerReport), found
    (device,) = found.devices
    return device


@pytest.mark.parametrize("path", EVERY, ids=name)
def test_every_capture_is_accounted_for_to_the_nanosecond(path: Path) -> None:
    found = report(path)
    if isinstance(found, NotApplicable):
        assert "no GPU work" in found.reason or "no activity" in found.reason
        return
    start, end = found.ledger.start_ns, found.ledger.end_ns
    for device in found.devices:
        assert sum(entry.ns for entry in device.ledger.entries) == end - start
        assert all(entry.ns > 0 for entry in device.ledger.entries)
        lengths = [min(s.end_ns, end) - max(s.start_ns, start) for s in device.steps.steps]
        assert device.steps.ns.sum(axis=1).tolist() == lengths
        assert (device.steps.ns >= 0).all()
        for entry, contributors in device.contributors.items():
            for kind in {c.kind for c in contributors}:
                told = sum(c.ns for c in contributors if c.kind == kind)
                assert 0 < told <= device.ledger.ns(entry)


def test_a_starved_gpu_waits_for_input() -> None:
    device = only_device(DATA / "dataload.sqlite")
    assert device.steps.median_ns("idle/input") == pytest.approx(10.1e6, rel=0.02)
    largest = device.contributors["idle/input"][0]
    assert (largest.kind, largest.name) == ("range", "data")
    assert largest.count == len(device.steps.steps)


@needs_shared_captures
@pytest.mark.parametrize(
    "capture", ["nsys/gpt_small_train.sqlite", "torch/gpt_small_train.json.gz"]
)
def test_a_slow_host_is_the_framework_and_launching(capture: str) -> None:
    ledger = only_device(SHARED / capture).ledger
    host = ledger.ns("idle/framework") + ledger.ns("idle/launching")
    assert host > 0.7 * ledger.ns("idle")
    assert ledger.ns("idle/input") == 0


@needs_shared_captures
def test_workers_take_the_input_off_the_launching_thread() -> None:
    alone, helped = (
        only_device(next((SHARED / "public/torch").glob(f"kineto__tb_plugin*num_workers_{n}*")))
        for n in (0, 4)
    )
    assert alone.ledger.ns("idle/input") > 0.1 * alone.steps.ns.sum()
    assert helped.ledger.ns("idle/input") < 0.02 * helped.steps.ns.sum()


@needs_shared_captures
def test_a_shared_gpu_keeps_launched_work_waiting() -> None:
    alone, shared = (
        only_device(SHARED / f"nsys/gpt_tiny_train_{run}.sqlite").ledger for run in ("r1", "r2")
    )
    assert shared.ns("idle/queued") > 10 * alone.ns("idle/queued")


@needs_shared_captures
def test_a_healthy_program_is_hardly_idle() -> None:
    device = only_device(SHARED / "nsys/healthy.sqlite")
    assert device.ledger.ns("compute") > 0.95 * sum(e.ns for e in device.ledger.entries)
