"""The ledger in a report: where the time of each GPU goes, overall, per step and by phase."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analysis.ledger.ledger_entries import COMMUNICATION, COMPUTE, COPY, GRAPH, IDLE
from gpusight.analysis.ledger.ledger_tables import IDLE_MEANINGS, ledger_page
from gpusight.analysis.steps.step_list import called
from gpusight.render.html.html_templates import ReportSection, columns_of, render
from gpusight.results import NotApplicable, TableResult
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.analysis.ledger.device_ledger import DeviceLedger, LedgerEntry
    from gpusight.analysis.ledger.ledger_report import DeviceLedgerReport, LedgerReport, StepTimes
    from gpusight.results import Composite
    from gpusight.trace.intervals import Ints


@dataclass(frozen=True, slots=True)
class StackedBarPart:
    """A part of the whole."""

    name: str
    color: str
    """Key of the palette."""
    share: float
    title: str
    """What shows when it is pointed at."""


# Steps of a GPU -----------------------------------------------------------------------------------

_MAX_STEPS = 200
_MAX_NAMED_STEPS = 12
"""Steps that have a bar with their name each."""
_STRIP_HEIGHT = 100.0
_STRIP_WIDTH = 0.85
"""Part of its place that a column takes."""


@dataclass(frozen=True, slots=True)
class _StepBar:
    """One of few steps."""

    name: str
    parts: list[StackedBarPart]
    ns: int


@dataclass(frozen=True, slots=True)
class _StepsStrip:
    """The steps of one GPU: bars with names, or columns of one drawing where there are many."""

    caption: str
    bars: list[_StepBar]
    columns: int
    height: float
    paths: list[tuple[str, str]]
    """Entries, and the rectangles of each as path commands."""


def _steps_strip(times: StepTimes) -> _StepsStrip | None:
    """Draw the steps of one GPU; nothing where there are not several."""
    count = len(times.steps)
    if count < 2 or not times.ns.sum():
        return None
    step_ns = times.ns.sum(1)
    longest, shortest = (format_time(int(ns)) for ns in (step_ns.max(), step_ns.min()))
    caption = f"Each step, until its GPU work is done: {shortest} to {longest}."
    if count > _MAX_STEPS:
        caption += f" {_MAX_STEPS} of {count:,} steps drawn, evenly spaced."
    if count <= _MAX_NAMED_STEPS:
        return _StepsStrip(caption, _step_bars(times), 0, _STRIP_HEIGHT, [])
    places = np.linspace(0, count - 1, min(count, _MAX_STEPS)).round().astype(np.int64)
    paths = list(_paths(times, times.ns[places]))
    return _StepsStrip(caption, [], len(places), _STRIP_HEIGHT, paths)


def _step_bars(times: StepTimes) -> list[_StepBar]:
    longest = int(times.ns.sum(1).max())
    return [
        _StepBar(
            called(step),
            [
                StackedBarPart(entry, entry, ns / longest, f"{entry} {format_time(ns)}")
                for entry, ns in zip(times.entries, row, strict=True)
            ],
            sum(row),
        )
        for step, row in zip(times.steps, times.ns.tolist(), strict=True)
    ]


def _paths(times: StepTimes, ns: Ints) -> Iterator[tuple[str, str]]:
    """Give one path an entry, which has a rectangle in every step that holds some of it."""
    scale = _STRIP_HEIGHT / ns.sum(1).max()
    tops = _STRIP_HEIGHT - np.cumsum(ns, axis=1) * scale
    for number, entry in enumerate(times.entries):
        moves = "".join(
            f"M{x + (1 - _STRIP_WIDTH) / 2:.5g} {tops[x, number]:.4g}h{_STRIP_WIDTH}"
            f"v{ns[x, number] * scale:.4g}h-{_STRIP_WIDTH}z"
            for x in np.flatnonzero(ns[:, number]).tolist()
        )
        if moves:
            yield entry, moves


# GPUs ---------------------------------------------------------------------------------------------

_GROUPS = (
    (COMPUTE, "Compute"),
    (COPY, "Copies"),
    (COMMUNICATION, "Communication"),
    (IDLE, "Idle"),
)
_MAX_BARS, _MAX_DEVICES = 64, 16
"""GPUs that have a bar, and those whose entries are listed."""
_IDLE_COLUMNS = ("entry", "kind", "name", "share", "ns", "count")
_IDLE_TABLE = "idle"
_MEANINGS = {
    **{cause.entry: meaning for cause, meaning in IDLE_MEANINGS.items()},
    GRAPH: "whole CUDA graphs (no per-node kernels in the capture)",
    f"{COPY}/h2d": "host to device",
    f"{COPY}/d2h": "device to host",
    f"{COPY}/d2d": "device to device",
    f"{COPY}/p2p": "peer to peer",
    f"{COPY}/memset": "memsets",
}
"""Meanings of entries whose names do not explain them."""
_IDLE_LEAD = (
    "What the host runs while the GPU is idle, and the GPU work that follows. Shares are of the "
    "entry. Ranges, operators and API calls nest, so their shares overlap."
)


@dataclass(frozen=True, slots=True)
class _LedgerDevice:
    """What a report shows of the ledger of one GPU."""

    number: int
    name: str
    busy: float
    groups: list[tuple[str, float]]
    """Compute, copies, communication and idle: name and share of those there are."""
    entries: list[LedgerEntry]
    parts: list[StackedBarPart]
    largest: float
    strip: _StepsStrip | None


def ledger_section(
    report: LedgerReport | NotApplicable, evaluated: int | None
) -> ReportSection | None:
    """Write the section; `evaluated` is the GPU of the findings. None without GPU work."""
    if isinstance(report, NotApplicable):
        return None
    devices = sorted(report.devices, key=lambda device: device.ledger.device != evaluated)
    idle = _idle_table(report, devices[0])
    extra = ("kind", "ns", "count")
    window = format_time(report.focus.length_ns)
    steps = len(report.focus.steps)
    of = f"{steps:,} step{'s' if steps > 1 else ''}, {window} total" if steps else window
    body = render(
        "report_ledger.html",
        intro=f"Each nanosecond of each GPU is counted exactly once ({of}). Overlapping work "
        "counts as compute before copies before communication. The rest is idle, by cause.",
        steps=len(report.focus.steps),
        meanings=_MEANINGS,
        bars=[_device(device) for device in report.devices[:_MAX_BARS]],
        more_gpus=len(report.devices) - _MAX_BARS,
        devices=[_device(device) for device in devices[:_MAX_DEVICES]],
        idle=idle,
        idle_columns=idle and columns_of(idle, _IDLE_COLUMNS, bars=("share",), extra=extra),
        idle_lead=_IDLE_LEAD,
    )
    return ReportSection("ledger", "Where the time goes", body, "Ledger")


def _device(device: DeviceLedgerReport) -> _LedgerDevice:
    ledger = device.ledger
    whole = sum(entry.ns for entry in ledger.entries) or 1
    entries = _ordered(ledger)
    return _LedgerDevice(
        ledger.device,
        f"GPU {ledger.device} · {device.name}" if device.name else f"GPU {ledger.device}",
        1 - ledger.ns(IDLE) / whole,
        [(name, ledger.ns(group) / whole) for group, name in _GROUPS if ledger.ns(group)],
        entries,
        [
            StackedBarPart(
                e.entry,
                e.entry,
                e.share or 0.0,
                f"{e.entry} {format_time(e.ns)}, {format_share(e.share)}",
            )
            for e in entries
        ],
        max((entry.share or 0.0 for entry in entries), default=0.0) or 1.0,
        _steps_strip(_steps(device)),
    )


def _ordered(ledger: DeviceLedger) -> list[LedgerEntry]:
    """Put entries in the order of the groups, and within each the largest first."""
    groups = [group for group, _ in _GROUPS]
    return sorted(
        ledger.entries, key=lambda entry: (groups.index(entry.entry.partition("/")[0]), -entry.ns)
    )


def _steps(device: DeviceLedgerReport) -> StepTimes:
    """Put the entries of each step in the order of the whole."""
    times = device.steps
    places = {entry: number for number, entry in enumerate(times.entries)}
    order = [places[entry.entry] for entry in _ordered(device.ledger) if entry.entry in places]
    entries = tuple(times.entries[number] for number in order)
    return replace(times, entries=entries, ns=times.ns[:, order])


def _idle_table(report: LedgerReport, device: DeviceLedgerReport) -> TableResult | None:
    """Give what idle time is made of, as the command does."""
    tables = ledger_page(replace(report, devices=(device,))).sections
    table = next((section for section in tables if section.command == _IDLE_TABLE), None)
    return table if isinstance(table, TableResult) and table.frame.height else None


# Phases -------------------------------------------------------------------------------------------

_PHASE_COLORS = {
    "forward": "compute/matmul",
    "backward": "compute/attention",
    "optimizer": "compute/optimizer",
    "data": "idle/input",
    "communication": "communication",
}
_OTHER_COLOR = "compute/other"
_PHASE_FIELDS = ("step_ns", "share", "gpu_ns", "gpu_ops")


def phases_section(steps: Composite | NotApplicable) -> ReportSection | None:
    """Write the section; None where the phases are unknown."""
    if isinstance(steps, NotApplicable):
        return None
    table = next((s for s in steps.sections if s.command == "phases"), None)
    if not isinstance(table, TableResult):
        return None
    columns = columns_of(table, _PHASE_FIELDS, bars=("share",))
    rows = table.frame.select("phase", "share", "gpu_ns").iter_rows()
    body = render(
        "report_phases.html",
        phases=table,
        parts=[
            StackedBarPart(
                phase,
                _PHASE_COLORS.get(phase, _OTHER_COLOR),
                share or 0.0,
                f"{phase} {format_time(ns)}, {format_share(share)}",
            )
            for phase, share, ns in rows
        ],
        columns=columns,
    )
    return ReportSection("phases", "Phases", body)
