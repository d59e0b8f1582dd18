"""How much memory was in use over time, who held it at the peak, and whether it grows: `memory`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analysis.capture_gpus import device_names
from gpusight.analysis.memory.allocations import AllocationSource, reserved_parts, segments
from gpusight.analysis.memory.device_memory import DeviceMemories, allocated_at, growth, reserved_at
from gpusight.analysis.memory.memory_peak import (
    by_holder,
    failures,
    find_holders,
    largest_blocks,
    memory_over_time,
)
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import EVERYTHING, Selection
from gpusight.results import Composite, Fact, Field, Fmt, NotApplicable, TableResult
from gpusight.units import format_bytes, format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gpusight.analysis.memory.allocations import Flags
    from gpusight.analysis.memory.device_memory import MemoryView, StepGrowth
    from gpusight.trace.trace import Trace

    Floats = NDArray[np.float64]


FACT_FIELDS = (
    Field("peak_bytes", "Peak", Fmt.BYTES, "The most in use at once"),
    Field("peak_ns", "Peak at", Fmt.TIME, "When that was first reached"),
    Field("peak_share", "Of GPU memory", Fmt.SHARE, "The peak's part of the GPU's memory"),
    Field("peak_step", "In step", Fmt.ID, "Number of the step that holds the peak"),
    Field("start_bytes", "At the start", Fmt.BYTES, "In use when the window begins"),
    Field("end_bytes", "At the end", Fmt.BYTES, "In use when the window ends"),
    Field("reserved_at_peak_bytes", "Reserved at peak", Fmt.BYTES, "Held from the driver then"),
    Field("reserved_max_bytes", "Most reserved", Fmt.BYTES, "The most held from the driver"),
    Field(
        "fragmentation_at_peak",
        "Unused at peak",
        Fmt.SHARE,
        "Part of what was reserved that was not in use at the peak: fragmentation, and cache",
    ),
    Field("fragmentation_worst", "Most unused", Fmt.SHARE, "The same when it was largest"),
    Field("fragmentation_worst_ns", "Most unused at", Fmt.TIME, "When that was"),
    Field(
        "growth_per_step_bytes",
        "Growth a step",
        Fmt.BYTES,
        "What stays in use from step to step, median over all pairs of steps; null without steps",
    ),
    Field("allocations", "Allocations", Fmt.COUNT, "Allocations in the window"),
    Field(
        "allocations_per_step",
        "Allocations a step",
        Fmt.COUNT,
        "Median allocations of a step; null without steps",
    ),
    Field(
        "allocated_total_bytes", "Allocated in all", Fmt.BYTES, "Sizes of those allocations, summed"
    ),
)
"""What may be said; what the capture cannot tell is left out, growth aside."""


def facts(view: MemoryView, steps: StepGrowth, memory_bytes: int | None) -> tuple[Fact, ...]:
    """Give the facts about one memory; `memory_bytes` is how much the GPU has."""
    start, end = (view.history.allocated_after(int(view.points.events[i])) for i in (0, -1))
    values = {
        "peak_bytes": view.peak_bytes,
        "peak_ns": view.peak_ns,
        **_known(
            peak_share=view.peak_bytes / memory_bytes if memory_bytes else None,
            peak_step=steps.step_at(view.peak_ns),
        ),
        "start_bytes": start,
        "end_bytes": end,
        **_reserved(view),
        "growth_per_step_bytes": steps.per_step,
        "allocations": len(view.takes),
        "allocations_per_step": steps.allocations,
        "allocated_total_bytes": int(view.takes.sum()),
    }
    return tuple(
        Fact(f.key, f.label, values[f.key], f.fmt, f.meaning)
        for f in FACT_FIELDS
        if f.key in values
    )


def _reserved(view: MemoryView) -> dict[str, Any]:
    """Give what was reserved, where the capture tells."""
    reserved = reserved_at(view.history, view.points)
    if reserved is None:
        return {}
    allocated = allocated_at(view.history, view.points)
    unused = np.full(len(reserved), -np.inf)
    np.divide(reserved - allocated, reserved, out=unused, where=reserved > 0)
    return {
        "reserved_at_peak_bytes": int(reserved[view.peak]),
        "reserved_max_bytes": int(reserved.max()),
        "fragmentation_at_peak": float(unused[view.peak]) if reserved[view.peak] > 0 else None,
        **_worst(view, np.where(_settled(view), unused, -np.inf)),
    }


def _worst(view: MemoryView, unused: Floats) -> dict[str, Any]:
    """Find when most of what was reserved was not in use; nothing where that cannot be said."""
    worst = int(np.argmax(unused))
    if np.isneginf(unused[worst]):
        return {}
    return {
        "fragmentation_worst": float(unused[worst]),
        "fragmentation_worst_ns": int(view.points.times[worst]),
    }


def _settled(view: MemoryView) -> Flags:
    """Tell at which points what is reserved can be compared with what is in use.

    Not before anything is in use; nor inside one request for memory, between the segment that is
    taken for it and the block that is handed out of that.
    """
    history = view.history
    assert history.reserved is not None, "what is reserved is not known"
    levels = np.append(history.start_allocated, history.allocated)
    taken = np.diff(history.reserved, prepend=history.start_reserved or 0) > 0
    settled = (np.maximum.accumulate(levels)[1:] > 0) & ~(taken & (np.diff(levels) == 0))
    found: Flags = np.append(settled, history.start_allocated > 0)[view.points.events]
    return found


def _known(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


_SEGMENTS_ONLY = (
    "these are allocations of the driver: a framework takes segments from it and hands out parts "
    "of them, which only its own profiler sees (torch.profiler with profile_memory=True, or a "
    "memory snapshot)"
)
_ALL_BEFORE = "all of it was taken before the capture began, and nothing during it"
_ASKED = "sizes are what the program asked for; the allocator rounds them up a little"
_NO_TOTALS = "the trace has no totals: levels are the least that its events allow"
_OWN_ONLY = "what the driver recorded beside the framework's allocator is left out"


def notes(
    places: DeviceMemories,
    device: int | None,
    failed: TableResult | None,
    held: TableResult | NotApplicable,
) -> Iterator[str]:
    """Say what a reader of the answer must know, the worst first."""
    if failed is not None:
        yield _failure(failed)
    yield from _missing(places.view(device), held)
    if len(places.gpus) > 1:
        yield f"GPU {device} is shown, which has the highest peak; --device N shows another"
    if device is None:
        yield "no GPU memory was recorded: this is memory of the host"
    yield from _origin(places, device)
    yield from places.trace.meta.notes


def _failure(failed: TableResult) -> str:
    first, count = failed.frame.row(0, named=True), failed.frame.height
    times = "once" if count == 1 else f"{count:,} times"
    asked, used, reserved = (
        format_bytes(first[key]) for key in ("bytes", "allocated_bytes", "reserved_bytes")
    )
    return (
        f"the GPU ran out of memory {times}, first at {format_time(first['time_ns'])}: {asked} "
        f"were asked for with {used} in use of {reserved} reserved"
    )


def _missing(view: MemoryView, held: TableResult | NotApplicable) -> Iterator[str]:
    missing = held.meta["not_recorded_bytes"] if isinstance(held, TableResult) else 0
    if missing:
        share = format_share(abs(missing) / view.peak_bytes if view.peak_bytes else None)
        yield f"{format_bytes(missing)} ({share}) of the peak cannot be explained by the events"


def _origin(places: DeviceMemories, device: int | None) -> Iterator[str]:
    """Say what the source of the events means for them."""
    history = places.view(device).history
    if history.origin is AllocationSource.DRIVER:
        yield _SEGMENTS_ONLY
        if not len(history):
            yield _ALL_BEFORE
    elif places.events_of(device)["allocator"].null_count():
        yield _OWN_ONLY
    if history.origin is AllocationSource.SNAPSHOT:
        yield _ASKED
    if not history.totals_known:
        yield _NO_TOTALS


DEVICE_FIELDS = (
    Field("device", "GPU", Fmt.ID, "The GPU's number in the capture"),
    Field("peak_bytes", "Peak in use", Fmt.BYTES, "The most in use at once"),
    Field("peak_ns", "At", Fmt.TIME, "When"),
    Field("end_bytes", "At the end", Fmt.BYTES, "In use at the end"),
    Field("allocations", "Allocations", Fmt.COUNT, "Allocations"),
    Field("name", "Name", Fmt.NAME, "Marketing name"),
)
KIND_FIELDS = (
    Field("peak_bytes", "Peak", Fmt.BYTES, "The most in use at once"),
    Field("end_bytes", "At the end", Fmt.BYTES, "In use at the end"),
    Field(
        "allocations", "Allocations", Fmt.COUNT, "Allocations, not counting what was held before"
    ),
    Field("place", "Where", Fmt.TEXT, "`GPU` or `host`"),
    Field("memory_kind", "Kind", Fmt.TEXT, "Kind of memory, as the profiler calls it"),
)


def by_device(trace: Trace, places: DeviceMemories) -> TableResult:
    """Compare the GPUs."""
    names = device_names(trace)
    rows = [
        {"device": gpu, **_levels(places.view(gpu)), "name": names.get(gpu)} for gpu in places.gpus
    ]
    frame = pl.DataFrame(rows, schema_overrides={"name": pl.String})
    return TableResult(
        "devices", "Memory by GPU", DEVICE_FIELDS, frame.select(f.key for f in DEVICE_FIELDS)
    )


def _levels(view: MemoryView) -> dict[str, int]:
    end = view.history.allocated_after(int(view.points.events[-1]))
    return {
        "peak_bytes": view.peak_bytes,
        "peak_ns": view.peak_ns,
        "end_bytes": end,
        "allocations": len(view.takes),
    }


def by_kind(places: DeviceMemories, device: int | None) -> list[TableResult]:
    """Split memory by kind, the host's included; nothing where there is only one kind."""
    if places.is_snapshot:
        return []
    where = [("host", None)] if device is None else [("GPU", device), ("host", None)]
    rows = [row for place, which in where for row in _rows_by_kind(places, place, which)]
    if len(rows) < 2:
        return []
    frame = pl.DataFrame(rows, schema_overrides={"memory_kind": pl.String}).sort(
        "place", "peak_bytes", descending=[False, True]
    )
    fields = KIND_FIELDS
    return [TableResult("kinds", "Memory by kind", fields, frame.select(f.key for f in fields))]


def _rows_by_kind(
    places: DeviceMemories, place: str, device: int | None
) -> Iterator[dict[str, Any]]:
    events = places.events_of(device)
    kinds = events["memory_kind"].unique(maintain_order=True).to_list()
    for kind in kinds:
        mine = events.filter(pl.col("memory_kind").eq_missing(kind))
        view = places.view(device) if len(kinds) == 1 else places.look_at(mine)
        yield {**_levels(view), "place": place, "memory_kind": kind}


_NO_ADDRESSES = NotApplicable(
    "peak",
    "the trace does not say which allocation each release ends (it has no addresses)",
    "profile again with a newer PyTorch",
)


def memory(trace: Trace, selection: Selection = EVERYTHING) -> Composite | NotApplicable:
    """Follow the memory in use, and say who held it at the peak."""
    if not (trace.has("memory_events") or trace.has("memory_blocks")):
        return no_memory(trace)
    places = DeviceMemories(trace, selection)
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


def _fullest(places: DeviceMemories) -> int | None:
    """Choose the GPU with the highest peak; the host where no GPU's memory was recorded."""
    return max(places.gpus, key=lambda gpu: (places.view(gpu).peak_bytes, -gpu), default=None)


def _report(trace: Trace, places: DeviceMemories, device: int | None) -> Composite:
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
    trace: Trace, view: MemoryView
) -> tuple[TableResult | NotApplicable, TableResult | None, TableResult]:
    """Give who held the peak, the largest blocks, and the timeline."""
    blocks = view.history.blocks
    if blocks is None:
        return _NO_ADDRESSES, None, memory_over_time(view, None, None)
    found = find_holders(trace, blocks, view.history.origin)
    held = by_holder(view, found)
    return held, largest_blocks(trace, view, found), memory_over_time(view, found["holder"], held)


def _state(places: DeviceMemories, device: int | None) -> list[TableResult]:
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
