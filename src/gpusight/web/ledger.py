"""Where the time of each GPU went, as the page shows it beside the timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpusight.analyses.advice import advice_for
from gpusight.analyses.devices import device_names
from gpusight.analyses.ledger.causes import IDLE
from gpusight.analyses.steps import focus as find_focus
from gpusight.analyses.timeline.colours import COLOURS
from gpusight.analyses.timeline.ledger_track import ledger_lines
from gpusight.render.blocks import sentence
from gpusight.render.cells import safe_text
from gpusight.result import NotApplicable
from gpusight.web.told import FAILED, READY, DeviceInfo, EntryInfo, LedgerInfo

if TYPE_CHECKING:
    from gpusight.analyses.steps import Focus
    from gpusight.analyses.timeline.ledger_track import LedgerLine
    from gpusight.model.trace import Trace


def ledger_info(trace: Trace) -> LedgerInfo:
    """Sum up the judged steps of the ledger's tracks: what `gpusight ledger` says of them."""
    focus, lines = find_focus(trace), ledger_lines(trace)
    if isinstance(focus, NotApplicable):
        return LedgerInfo(FAILED, safe_text(sentence(focus)))
    names = device_names(trace)
    entries = {device: _entries(line, focus) for device, line in lines.items()}
    devices = tuple(
        DeviceInfo(device, safe_text(names.get(device) or ""), told)
        for device, told in entries.items()
        if any(not entry.entry.startswith(f"{IDLE}/") for entry in told)
    )
    if not devices:
        nothing = NotApplicable("ledger", "no GPU work ran", advice_for(trace.meta).gpu)
        return LedgerInfo(FAILED, safe_text(sentence(nothing)))
    return LedgerInfo(READY, "", len(focus.steps), devices)


def _entries(line: LedgerLine, focus: Focus) -> tuple[EntryInfo, ...]:
    inside = np.minimum(line.end_ns, focus.end_ns) - np.maximum(line.start_ns, focus.start_ns)
    # Sums of whole numbers are exact in floating point up to 104 days of nanoseconds.
    ns = np.bincount(line.colour, np.maximum(inside, 0), len(COLOURS)).astype(np.int64)
    return tuple(
        EntryInfo(COLOURS[code], int(ns[code]), float(ns[code] / focus.length_ns))
        for code in np.flatnonzero(ns)
    )
