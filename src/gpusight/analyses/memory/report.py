"""How much memory was in use over time, who held it at the peak, and whether it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.advice import advice_for
from gpusight.analyses.devices import device_names
from gpusight.analyses.memory.facts import facts
from gpusight.analyses.memory.failures import failures
from gpusight.analyses.memory.growth import growth
from gpusight.analyses.memory.notes import notes
from gpusight.analyses.memory.overview import by_device, by_kind
from gpusight.analyses.memory.peak import by_holder, find_holders, largest_blocks
from gpusight.analyses.memory.places import Places
from gpusight.analyses.memory.segments import reserved_parts, segments
from gpusight.analyses.memory.timeline import timeline
from gpusight.analyses.select import EVERYTHING, Selection
from gpusight.result import Composite, NotApplicable, TableResult

if TYPE_CHECKING:
    from gpusight.analyses.memory.view import View
    from gpusight.model.trace import Trace

_NO_ADDRESSES = NotApplicable(
    "peak",
    "the trace does not say which allocation each release ends (it has no addresses)",
    "profile again with a newer PyTorch",
)


def memory(trace: Trace, selection: Selection = EVERYTHING) -> Composite | NotApplicable:
    """Follow the memory in use, and say who held it at the peak."""
    if not (trace.has("memory_events") or trace.has("memory_blocks")):
        return no_memory(trace)
    places = Places(trace, selection)
    if places.spans is not None and not len(places.spans):
        return NotApplicable("memory", "the selected ranges take no time")
    device = _fullest(places)
    if device is None and not places.events_of(None).height:
        return NotApplicable("memory", "no memory of the selected process was recorded")
    return _report(trace, places, device)


def no_memory(trace: Trace) -> NotApplicable:
    """Say why a capture tells nothing about memory."""
    wanted = advice_for(trace.meta).wanted
    option = next((w.how for w in wanted if w.table == "memory_events"), None)
    elsewhere = _ELSEWHERE.get(trace.meta.source) or advice_for(trace.meta).elsewhere
    hint = f"capture again with: {option}" if option else elsewhere
    return NotApplicable("memory", "the capture has no memory events", hint)


_ELSEWHERE = {
    "jax-chrome": "the .xplane.pb beside this trace has them",
    "torch-key-averages": "printed totals have no times; pass the trace of the same run, "
    "recorded with profile_memory=True",
}
"""Where else they may be, by the form of the capture."""


def _fullest(places: Places) -> int | None:
    """Choose the GPU with the highest peak; the host where no GPU's memory was recorded."""
    return max(places.gpus, key=lambda gpu: (places.view(gpu).peak_bytes, -gpu), default=None)


def _report(trace: Trace, places: Places, device: int | None) -> Composite:
    view = places.view(device)
    steps = growth(trace, view, _main_process(places.events_of(device)))
    failed = failures(trace, view, places.events_of(device))
    held, blocks, over_time = _who(trace, view)
    sections = [
        *([by_device(trace, places)] if len(places.gpus) > 1 else []),
        *([failed] if failed else []),
        *([held, blocks] if blocks else [held]),
        steps.table,
        *_state(places, device),
        *by_kind(places, device),
        over_time,
    ]
    place = _place(trace, device)
    within = f" in {places.selection.within}" if places.selection.within else ""
    return Composite(
        "memory",
        f"Memory of {place}{within}",
        facts(view, steps, _memory_bytes(trace, device)),
        tuple(sections),
        meta={"path": trace.meta.path, "device": device, **over_time.meta},
        notes=tuple(notes(places, device, failed, held)),
    )


def _who(
    trace: Trace, view: View
) -> tuple[TableResult | NotApplicable, TableResult | None, TableResult]:
    """Give who held the peak, the largest blocks, and the timeline."""
    blocks = view.history.blocks
    if blocks is None:
        return _NO_ADDRESSES, None, timeline(view, None, None)
    found = find_holders(trace, blocks, view.history.origin)
    held = by_holder(view, found)
    return held, largest_blocks(trace, view, found), timeline(view, found["holder"], held)


def _state(places: Places, device: int | None) -> list[TableResult]:
    """Give what a snapshot shows of the memory at its end."""
    if device is None or not places.final_of(device).height:
        return []
    final = places.final_of(device)
    return [reserved_parts(final), segments(final)]


def _main_process(events: pl.DataFrame) -> int | None:
    """Find the process that most events are of."""
    modes = events["process"].drop_nulls().mode()
    return int(modes.min()) if len(modes) else None  # type: ignore[arg-type]


def _place(trace: Trace, device: int | None) -> str:
    if device is None:
        return "the host"
    name = device_names(trace).get(device)
    unknown = name is None or name.startswith("unknown")
    return f"GPU {device}" if unknown else f"GPU {device} ({name})"


def _memory_bytes(trace: Trace, device: int | None) -> int | None:
    known = trace.table("devices", ["device", "memory_bytes"])
    found = known.filter(pl.col("device").eq_missing(device))["memory_bytes"].drop_nulls()
    return int(found[0]) if len(found) and found[0] > 0 else None
