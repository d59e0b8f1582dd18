"""Ledgers of hand-built traces, in microseconds."""

from __future__ import annotations

from typing import Any

from gpusight.analysis.gpu_schedule import build_schedule
from gpusight.analysis.ledger.device_ledger import DeviceAccount, account
from gpusight.analysis.ledger.idle_causes import host_time
from tests.traces import build_trace

US = 1_000
MAIN, AUTOGRAD = 11, 12


def us(start: float, end: float, **columns: Any) -> dict[str, Any]:
    """Give a row of these times, in microseconds."""
    return {"start_ns": round(start * US), "end_ns": round(end * US), **columns}


def launch(start: float, end: float, correlation: int, **columns: Any) -> dict[str, Any]:
    """Give the row of a call that launches."""
    return us(start, end, correlation=correlation, **columns)


def kernel(
    start: float, end: float, correlation: int | None = None, **columns: Any
) -> dict[str, Any]:
    """Give the row of a kernel."""
    return us(start, end, correlation=correlation, **{"name": "gemm"} | columns)


def accounts(start: float, end: float, **tables: Any) -> list[DeviceAccount]:
    """Account for the window of a trace of these rows."""
    trace = build_trace(**tables)
    schedule = build_schedule(trace, round(start * US), round(end * US))
    return account(schedule, host_time(trace, schedule))


def entries(start: float, end: float, **tables: Any) -> dict[str, float]:
    """Give the entries of the only GPU of such a trace, in microseconds."""
    (account,) = accounts(start, end, **tables)
    return {entry.entry: entry.ns / US for entry in account.ledger.entries}
