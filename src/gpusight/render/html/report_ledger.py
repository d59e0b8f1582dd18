"""The ledger in a report: where the time of each GPU went, of all steps, of each step, by phase."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analysis.ledger.ledger_entries import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    GRAPH,
    IDLE,
    IdleCause,
)
from gpusight.analysis.ledger.ledger_tables import ledger_page as tables_of
from gpusight.analysis.steps.step_list import called
from gpusight.render.html import html_parts
from gpusight.render.html.html_parts import clipped_text, css_color, html_text
from gpusight.results import NotApplicable, TableResult
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gpusight.analysis.ledger.device_ledger import DeviceLedger, LedgerEntry
    from gpusight.analysis.ledger.ledger_report import DeviceLedgerReport, LedgerReport, StepTimes
    from gpusight.results import Composite

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StackedBarPart:
    """A part of the whole."""

    name: str
    colour: str
    """Key of the palette."""
    share: float
    told: str
    """What shows when it is pointed at."""


def stacked_bar(pieces: Sequence[StackedBarPart], label: str) -> str:
    """Draw the parts end to end; `label` says the same in words."""
    inside = "".join(
        f'<span style="width:{100 * piece.share:.4f}%;background:{css_color(piece.colour)}" '
        f'title="{html_text(piece.told)}"></span>'
        for piece in pieces
        if piece.share > 0
    )
    return f'<div class="stack" role="img" aria-label="{html_text(label)}">{inside}</div>'


MAX_STEPS = 200
_MAX_NAMED_STEPS = 12
"""Steps that have a bar with their name each."""
_STRIP_HEIGHT = 100.0
_STRIP_WIDTH = 0.85
"""Part of its place that a column takes."""
_STEP_NAME = 60


def steps_strip(times: StepTimes) -> str:
    """Draw the steps of one GPU; nothing where there are not several."""
    count = len(times.steps)
    if count < 2 or not times.ns.sum():
        return ""
    drawn = _bars(times) if count <= _MAX_NAMED_STEPS else _columns(times)
    took = times.ns.sum(1)
    longest, shortest = (format_time(int(end)) for end in (took.max(), took.min()))
    # What a thread's range marks is the host's part; the GPU may work on steps long after it.
    where = "" if times.steps[0].thread is None else " on the host"
    told = f"Step by step, from beginning to end{where}: {shortest} to {longest}."
    if count > MAX_STEPS:
        told += f" {MAX_STEPS} of {count:,} are drawn, evenly chosen."
    return f'<figure class="steps">{drawn}<figcaption>{html_text(told)}</figcaption></figure>'


def _bars(times: StepTimes) -> str:
    longest = int(times.ns.sum(1).max())
    rows = "".join(_bar(times, number, longest) for number in range(len(times.steps)))
    return f'<ol class="thin">{rows}</ol>'


def _bar(times: StepTimes, number: int, longest: int) -> str:
    pieces = "".join(
        f'<span style="width:{100 * ns / longest:.4f}%;background:{css_color(entry)}" '
        f'title="{html_text(f"{entry} {format_time(ns)}")}"></span>'
        for entry, ns in zip(times.entries, times.ns[number].tolist(), strict=True)
        if ns
    )
    name = clipped_text(called(times.steps[number]), _STEP_NAME)
    took = html_text(format_time(int(times.ns[number].sum())))
    return f'<li><span class="of">{name}</span><div class="stack">{pieces}</div><b>{took}</b></li>'


def _columns(times: StepTimes) -> str:
    count = len(times.steps)
    places = np.linspace(0, count - 1, min(count, MAX_STEPS)).round().astype(np.int64)
    ns = times.ns[places]
    inside = "".join(_paths(times, ns))
    return (
        f'<svg viewBox="0 0 {len(places)} {_STRIP_HEIGHT:g}" preserveAspectRatio="none" role="img" '
        f'aria-label="Each step as a column of what its time went into">{inside}</svg>'
    )


def _paths(times: StepTimes, ns: Ints) -> Iterator[str]:
    """Draw one path an entry, which has a rectangle in every step that holds some of it."""
    scale = _STRIP_HEIGHT / ns.sum(1).max()
    tops = _STRIP_HEIGHT - np.cumsum(ns, axis=1) * scale
    for number, entry in enumerate(times.entries):
        moves = "".join(
            f"M{x + (1 - _STRIP_WIDTH) / 2:.5g} {tops[x, number]:.4g}h{_STRIP_WIDTH}"
            f"v{ns[x, number] * scale:.4g}h-{_STRIP_WIDTH}z"
            for x in np.flatnonzero(ns[:, number]).tolist()
        )
        if moves:
            title = f"<title>{html_text(entry)}</title>"
            yield f'<path style="fill:{css_color(entry)}" d="{moves}">{title}</path>'


_GROUPS = (
    (COMPUTE, "Computing"),
    (COPY, "Moving data"),
    (COMMUNICATION, "Communicating"),
    (IDLE, "Idle"),
)
_MAX_BARS, _MAX_DEVICES = 64, 16
"""GPUs that have a bar, and those whose entries are listed."""
_IDLE_TABLE = "idle"
_MEANINGS = {
    IdleCause.QUEUED.entry: "launched, but another stream, an event or another program came first",
    IdleCause.SYNCHRONISING.entry: "the host waited for the GPU, or was just returning from that",
    IdleCause.ALLOCATING.entry: "the host took or gave back memory",
    IdleCause.LAUNCHING.entry: "the host was inside a launch, or the launch was on its way",
    IdleCause.INPUT.entry: "the host read, waited for or prepared data",
    IdleCause.FRAMEWORK.entry: "the host ran operators, or Python between launches",
    IdleCause.OTHER.entry: "the host loaded code, compiled or waited for another thread",
    IdleCause.PROFILER.entry: "the profiler itself was at work",
    IdleCause.UNKNOWN.entry: "the capture does not say why",
    GRAPH: "whole CUDA graphs, whose kernels the capture does not show",
    f"{COPY}/h2d": "from the host to the GPU",
    f"{COPY}/d2h": "from the GPU to the host",
    f"{COPY}/d2d": "within the GPU",
    f"{COPY}/p2p": "from one GPU to another",
    f"{COPY}/memset": "memory filled",
}
"""What entries mean that their names do not tell."""
_IDLE_LEAD = (
    "What the host was in while the GPU had nothing to do, and the work that came next. Shares are "
    "of the entry; an operator lies in a range and calls the API, so that kinds overlap."
)


def ledger_section(
    report: LedgerReport | NotApplicable, judged: int | None
) -> html_parts.ReportSection | None:
    """Write the section; `judged` is the GPU that the findings are of. None where none worked."""
    if isinstance(report, NotApplicable):
        return None
    body = "\n".join(
        (html_parts.lead(_lead(report)), *_devices(report, judged), *_idle_section(report, judged))
    )
    return html_parts.ReportSection("ledger", "Where the time went", body, "Ledger")


def _lead(report: LedgerReport) -> str:
    window = format_time(report.focus.length_ns)
    steps = len(report.focus.steps)
    of = f"{steps:,} step{'s' if steps > 1 else ''}, {window} in all" if steps else window
    return (
        f"Every nanosecond of each GPU stands in exactly one entry ({of}). Work counts first for "
        "computing, then for moving data, then for communicating; the rest is idle, by its cause."
    )


def _devices(report: LedgerReport, judged: int | None) -> Iterator[str]:
    """Draw every GPU; of several, list first the entries of the one that was judged."""
    if len(report.devices) == 1:
        yield from _device(report, report.devices[0])
        return
    bars = "".join(map(_thin, report.devices[:_MAX_BARS]))
    yield f'<ol class="thin gpus">{bars}</ol>'
    yield html_parts.more_rows(len(report.devices) - _MAX_BARS, "GPUs")
    first, *others = _evaluated_first(report, judged)[:_MAX_DEVICES]
    yield f"<h3>{html_text(_called(first))}</h3>"
    yield from _device(report, first)
    for device in others:
        yield f'<details class="more"><summary>{html_text(_called(device))}</summary>'
        yield from _device(report, device)
        yield "</details>"


def _evaluated_first(report: LedgerReport, judged: int | None) -> list[DeviceLedgerReport]:
    return sorted(report.devices, key=lambda device: device.ledger.device != judged)


def _device(report: LedgerReport, device: DeviceLedgerReport) -> Iterator[str]:
    yield group_shares(device.ledger)
    yield ledger_bar(device.ledger)
    yield _legend(report, device)
    yield steps_strip(_steps(device))


def _ordered(ledger: DeviceLedger) -> list[LedgerEntry]:
    """Put entries in the order of the groups, and within each the largest first."""
    groups = [group for group, _ in _GROUPS]
    return sorted(
        ledger.entries, key=lambda one: (groups.index(one.entry.partition("/")[0]), -one.ns)
    )


def _steps(device: DeviceLedgerReport) -> StepTimes:
    """Put the entries of each step in the order of the whole."""
    times = device.steps
    places = {entry: place for place, entry in enumerate(times.entries)}
    order = [places[one.entry] for one in _ordered(device.ledger) if one.entry in places]
    entries = tuple(times.entries[place] for place in order)
    return replace(times, entries=entries, ns=times.ns[:, order])


def _thin(device: DeviceLedgerReport) -> str:
    """Draw a GPU as one of many."""
    whole = sum(entry.ns for entry in device.ledger.entries) or 1
    busy = format_share(1 - device.ledger.ns(IDLE) / whole)
    name = f'<span class="of">GPU {device.ledger.device}</span>'
    return f"<li>{name}{ledger_bar(device.ledger)}<b>{html_text(busy)} busy</b></li>"


def _called(device: DeviceLedgerReport) -> str:
    name = f" · {device.name}" if device.name else ""
    return f"GPU {device.ledger.device}{name}"


def group_shares(ledger: DeviceLedger) -> str:
    """Say how much was computing, moving data, communicating and idle."""
    whole = sum(entry.ns for entry in ledger.entries) or 1
    parts = [(name, ledger.ns(group) / whole) for group, name in _GROUPS if ledger.ns(group)]
    told = "".join(
        f"<li><b>{html_text(format_share(share))}</b> {html_text(name)}</li>"
        for name, share in parts
    )
    return f'<ul class="groups">{told}</ul>'


def ledger_bar(ledger: DeviceLedger) -> str:
    """Draw the window as one bar."""
    pieces = [
        StackedBarPart(entry.entry, entry.entry, entry.share or 0.0, _entry_title(entry))
        for entry in _ordered(ledger)
    ]
    return stacked_bar(pieces, "; ".join(piece.told for piece in pieces))


def _entry_title(entry: LedgerEntry) -> str:
    return f"{entry.entry} {format_time(entry.ns)}, {format_share(entry.share)}"


def _legend(report: LedgerReport, device: DeviceLedgerReport) -> str:
    steps = len(report.focus.steps)
    each = '<th scope="col" class="n">Mean a step</th>' if steps else ""
    heads = (
        '<th scope="col">Entry</th><th scope="col" class="extra">What it is</th>'
        f'{each}<th scope="col" class="n bar">Share</th>'
        '<th scope="col" class="n extra">In all</th>'
    )
    largest = max((entry.share or 0.0 for entry in device.ledger.entries), default=0.0) or 1.0
    body = "".join(_line(entry, steps, largest) for entry in _ordered(device.ledger))
    return html_parts.html_grid(
        heads, body, caption=f"Ledger of {_called(device)}", kind="sortable ledger"
    )


def _line(entry: LedgerEntry, steps: int, largest: float) -> str:
    share = entry.share or 0.0
    mean = entry.ns / max(1, steps)
    each = f'<td class="n" data-v="{mean!r}">{format_time(mean)}</td>' if steps else ""
    return html_parts.table_row(
        f"<td>{html_parts.swatch(entry.entry)}{html_text(entry.entry)}</td>"
        f'<td class="means extra">{html_text(_MEANINGS.get(entry.entry, ""))}</td>{each}'
        f'<td class="n bar"{html_parts.part_style(share / largest)} data-v="{share!r}">'
        f"{html_text(format_share(entry.share))}</td>"
        f'<td class="n extra" data-v="{entry.ns}">{html_text(format_time(entry.ns))}</td>',
        entry=entry.entry,
        ns=entry.ns,
    )


def _idle_section(report: LedgerReport, judged: int | None) -> Iterator[str]:
    """Show what idle time is made of, as the command does; of several GPUs, of the one judged."""
    first = _evaluated_first(report, judged)[0]
    alone = tables_of(replace(report, devices=(first,)))
    found = next((s for s in alone.sections if s.command == _IDLE_TABLE), None)
    if isinstance(found, TableResult) and found.frame.height:
        keys = ("entry", "kind", "name", "share", "ns", "count")
        columns = html_parts.columns_of(found, keys, bars=("share",), extra=("kind", "ns", "count"))
        of = f" of GPU {first.ledger.device}" if len(report.devices) > 1 else ""
        yield f"<h3>{html_text(found.title)}{of}</h3>"
        yield html_parts.lead(_IDLE_LEAD)
        yield html_parts.html_table(found, columns)


_PHASE_COLORS = {
    "forward": "compute/matmul",
    "backward": "compute/attention",
    "optimizer": "compute/optimizer",
    "data": "idle/input",
    "communication": "communication",
}
_OTHER_COLOR = "compute/other"
_PHASE_FIELDS = ("step_ns", "share", "gpu_ns", "gpu_ops")


def phases_section(steps: Composite | NotApplicable) -> html_parts.ReportSection | None:
    """Write the section; None where nothing tells the phases."""
    if isinstance(steps, NotApplicable):
        return None
    table = next((s for s in steps.sections if s.command == "phases"), None)
    if not isinstance(table, TableResult):
        return None
    pieces = _phase_parts(table)
    body = (
        html_parts.lead(
            "Which part of a step launched the work of the GPU, in the steps that count."
        )
        + stacked_bar(pieces, "; ".join(piece.told for piece in pieces))
        + _phase_table(table, pieces)
    )
    return html_parts.ReportSection("phases", "Phases", body)


def _phase_parts(table: TableResult) -> list[StackedBarPart]:
    rows = table.frame.select("phase", "share", "gpu_ns").iter_rows()
    return [
        StackedBarPart(
            phase,
            _PHASE_COLORS.get(phase, _OTHER_COLOR),
            share or 0.0,
            f"{phase} {format_time(ns)}, {format_share(share)}",
        )
        for phase, share, ns in rows
    ]


def _phase_table(table: TableResult, pieces: list[StackedBarPart]) -> str:
    columns = html_parts.columns_of(table, _PHASE_FIELDS, bars=("share",))
    rows = zip(pieces, table.frame.iter_rows(named=True), strict=True)
    body = "".join(
        html_parts.table_row(
            f"<td>{html_parts.swatch(p.colour)}{html_text(p.name)}</td>"
            f"{html_parts.table_cells(row, columns)}"
        )
        for p, row in rows
    )
    heads = f'<th scope="col">Phase</th>{html_parts.table_head(columns)}'
    return html_parts.html_grid(heads, body, caption=table.title)
