"""The ledger as a picture: where the time of each GPU went, of all steps and of each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpusight.analyses.ledger.causes import IDLE, Cause
from gpusight.analyses.ledger.labels import COMMUNICATION, COMPUTE, COPY, GRAPH
from gpusight.analyses.ledger.tables import page as tables_of
from gpusight.render.diagnosis.page import text
from gpusight.render.report import markup, stacked, strip
from gpusight.result import NotApplicable, TableResult
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.analyses.ledger.ledger import DeviceLedger, Entry
    from gpusight.analyses.ledger.report import DeviceReport, LedgerReport, StepTimes

_GROUPS = (
    (COMPUTE, "Computing"),
    (COPY, "Moving data"),
    (COMMUNICATION, "Communicating"),
    (IDLE, "Idle"),
)
_MOST_BARS, _MOST_DEVICES = 64, 16
"""GPUs that have a bar, and those whose entries are listed."""
_IDLE_TABLE = "idle"
_MEANINGS = {
    Cause.QUEUED.entry: "launched, but another stream, an event or another program came first",
    Cause.SYNCHRONISING.entry: "the host waited for the GPU, or was just returning from that",
    Cause.ALLOCATING.entry: "the host took or gave back memory",
    Cause.LAUNCHING.entry: "the host was inside a launch, or the launch was on its way",
    Cause.INPUT.entry: "the host read, waited for or prepared data",
    Cause.FRAMEWORK.entry: "the host ran operators, or Python between launches",
    Cause.OTHER.entry: "the host loaded code, compiled or waited for another thread",
    Cause.PROFILER.entry: "the profiler itself was at work",
    Cause.UNKNOWN.entry: "the capture does not say why",
    GRAPH: "whole CUDA graphs, whose kernels the capture does not show",
    f"{COPY}/h2d": "from the host to the GPU",
    f"{COPY}/d2h": "from the GPU to the host",
    f"{COPY}/d2d": "within the GPU",
    f"{COPY}/p2p": "from one GPU to another",
    f"{COPY}/memset": "memory filled",
}
"""What entries mean that their names do not tell."""
_BEHIND = (
    "What the host was in while the GPU had nothing to do, and the work that came next. Shares are "
    "of the entry; an operator lies in a range and calls the API, so that kinds overlap."
)


def ledger_section(
    report: LedgerReport | NotApplicable, judged: int | None
) -> markup.Section | None:
    """Write the section; `judged` is the GPU that the findings are of. None where none worked."""
    if isinstance(report, NotApplicable):
        return None
    body = "\n".join(
        (markup.lead(_lead(report)), *_devices(report, judged), *_behind(report, judged))
    )
    return markup.Section("ledger", "Where the time went", body, "Ledger")


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
    bars = "".join(map(_thin, report.devices[:_MOST_BARS]))
    yield f'<ol class="thin gpus">{bars}</ol>'
    yield markup.more(len(report.devices) - _MOST_BARS, "GPUs")
    first, *others = _judged_first(report, judged)[:_MOST_DEVICES]
    yield f"<h3>{text(_called(first))}</h3>"
    yield from _device(report, first)
    for device in others:
        yield f'<details class="more"><summary>{text(_called(device))}</summary>'
        yield from _device(report, device)
        yield "</details>"


def _judged_first(report: LedgerReport, judged: int | None) -> list[DeviceReport]:
    return sorted(report.devices, key=lambda device: device.ledger.device != judged)


def _device(report: LedgerReport, device: DeviceReport) -> Iterator[str]:
    yield groups(device.ledger)
    yield bar(device.ledger)
    yield _legend(report, device)
    yield strip.steps_strip(_steps(device))


def _ordered(ledger: DeviceLedger) -> list[Entry]:
    """Put entries in the order of the groups, and within each the largest first."""
    groups = [group for group, _ in _GROUPS]
    return sorted(
        ledger.entries, key=lambda one: (groups.index(one.entry.partition("/")[0]), -one.ns)
    )


def _steps(device: DeviceReport) -> StepTimes:
    """Put the entries of each step in the order of the whole."""
    times = device.steps
    places = {entry: place for place, entry in enumerate(times.entries)}
    order = [places[one.entry] for one in _ordered(device.ledger) if one.entry in places]
    entries = tuple(times.entries[place] for place in order)
    return replace(times, entries=entries, ns=times.ns[:, order])


def _thin(device: DeviceReport) -> str:
    """Draw a GPU as one of many."""
    whole = sum(entry.ns for entry in device.ledger.entries) or 1
    busy = format_share(1 - device.ledger.ns(IDLE) / whole)
    name = f'<span class="of">GPU {device.ledger.device}</span>'
    return f"<li>{name}{bar(device.ledger)}<b>{text(busy)} busy</b></li>"


def _called(device: DeviceReport) -> str:
    name = f" · {device.name}" if device.name else ""
    return f"GPU {device.ledger.device}{name}"


def groups(ledger: DeviceLedger) -> str:
    """Say how much was computing, moving data, communicating and idle."""
    whole = sum(entry.ns for entry in ledger.entries) or 1
    parts = [(name, ledger.ns(group) / whole) for group, name in _GROUPS if ledger.ns(group)]
    told = "".join(
        f"<li><b>{text(format_share(share))}</b> {text(name)}</li>" for name, share in parts
    )
    return f'<ul class="groups">{told}</ul>'


def bar(ledger: DeviceLedger) -> str:
    """Draw the window as one bar."""
    pieces = [
        stacked.Piece(entry.entry, entry.entry, entry.share or 0.0, _told(entry))
        for entry in _ordered(ledger)
    ]
    return stacked.bar(pieces, "; ".join(piece.told for piece in pieces))


def _told(entry: Entry) -> str:
    return f"{entry.entry} {format_time(entry.ns)}, {format_share(entry.share)}"


def _legend(report: LedgerReport, device: DeviceReport) -> str:
    steps = len(report.focus.steps)
    each = '<th scope="col" class="n">Mean a step</th>' if steps else ""
    heads = (
        '<th scope="col">Entry</th><th scope="col" class="extra">What it is</th>'
        f'{each}<th scope="col" class="n bar">Share</th>'
        '<th scope="col" class="n extra">In all</th>'
    )
    largest = max((entry.share or 0.0 for entry in device.ledger.entries), default=0.0) or 1.0
    body = "".join(_line(entry, steps, largest) for entry in _ordered(device.ledger))
    return markup.grid(heads, body, caption=f"Ledger of {_called(device)}", kind="sortable ledger")


def _line(entry: Entry, steps: int, largest: float) -> str:
    share = entry.share or 0.0
    mean = entry.ns / max(1, steps)
    each = f'<td class="n" data-v="{mean!r}">{format_time(mean)}</td>' if steps else ""
    return markup.row(
        f"<td>{markup.swatch(entry.entry)}{text(entry.entry)}</td>"
        f'<td class="means extra">{text(_MEANINGS.get(entry.entry, ""))}</td>{each}'
        f'<td class="n bar"{markup.part_style(share / largest)} data-v="{share!r}">'
        f"{text(format_share(entry.share))}</td>"
        f'<td class="n extra" data-v="{entry.ns}">{text(format_time(entry.ns))}</td>',
        entry=entry.entry,
        ns=entry.ns,
    )


def _behind(report: LedgerReport, judged: int | None) -> Iterator[str]:
    """Show what idle time is made of, as the command does; of several GPUs, of the one judged."""
    first = _judged_first(report, judged)[0]
    alone = tables_of(replace(report, devices=(first,)))
    found = next((s for s in alone.sections if s.command == _IDLE_TABLE), None)
    if isinstance(found, TableResult) and found.frame.height:
        keys = ("entry", "kind", "name", "share", "ns", "count")
        columns = markup.columns_of(found, keys, bars=("share",), extra=("kind", "ns", "count"))
        of = f" of GPU {first.ledger.device}" if len(report.devices) > 1 else ""
        yield f"<h3>{text(found.title)}{of}</h3>"
        yield markup.lead(_BEHIND)
        yield markup.table(found, columns)
