"""How much memory was in use over time, who held it at the peak, and whether it grows: `memory`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analysis.capture_info import device_names
from gpusight.analysis.memory.allocations import AllocationSource, reserved_parts, segments
from gpusight.analysis.memory.device_memory import DeviceMemories, allocated_at, growth, reserved_at
from gpusight.analysis.memory.memory_peak import (
    block_groups,
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

    from gpusight.analysis.memory.device_memory import MemoryView, StepGrowth
    from gpusight.trace.trace import Trace


FACT_FIELDS = (
    Field("peak_bytes", "Peak", Fmt.BYTES, "Peak memory in use"),
    Field("peak_ns", "Peak at", Fmt.TIME, "First time of the peak"),
    Field("peak_share", "% of GPU memory", Fmt.SHARE, "Peak as part of the GPU's memory"),
    Field("peak_step", "Peak in step", Fmt.ID, "Step with the peak"),
    Field("start_bytes", "At window start", Fmt.BYTES, "In use when the window begins"),
    Field("end_bytes", "At window end", Fmt.BYTES, "In use when the window ends"),
    Field(
        "reserved_at_peak_bytes",
        "Reserved at peak",
        Fmt.BYTES,
        "Reserved from the driver at the peak",
    ),
    Field("reserved_max_bytes", "Peak reserved", Fmt.BYTES, "Peak memory reserved from the driver"),
    Field(
        "fragmentation_at_peak",
        "Unallocated at peak",
        Fmt.SHARE,
        "Part of the reserved memory that is unallocated at the peak: fragmentation and cache",
    ),
    Field(
        "fragmentation_worst",
        "Max unallocated",
        Fmt.SHARE,
        "Largest unallocated part of the reserved memory",
    ),
    Field("fragmentation_worst_ns", "Max unallocated at", Fmt.TIME, "Time of that"),
    Field(
        "growth_per_step_bytes",
        "Growth/step",
        Fmt.BYTES,
        "Growth of memory in use per step, median over all pairs; null without steps",
    ),
    Field("allocations", "Allocations", Fmt.COUNT, "Allocations in the window"),
    Field(
        "allocations_per_step",
        "Allocations/step",
        Fmt.COUNT,
        "Median allocations per step; null without steps",
    ),
    Field(
        "allocated_total_bytes",
        "Total allocated",
        Fmt.BYTES,
        "Sum of the sizes of those allocations",
    ),
)
"""All facts; those that the capture does not show are left out, except growth."""


def _facts(
    trace: Trace, device: int | None, view: MemoryView, steps: StepGrowth
) -> tuple[Fact, ...]:
    """Return the facts about the memory of a GPU or the host."""
    values = {
        "peak_bytes": view.peak_bytes,
        "peak_ns": view.peak_ns,
        "start_bytes": view.history.allocated_after(int(view.points.events[0])),
        "end_bytes": view.end_bytes,
        **_reserved(view),
        "growth_per_step_bytes": steps.per_step,
        "allocations": len(view.takes),
        "allocations_per_step": steps.allocations,
        "allocated_total_bytes": int(view.takes.sum()),
    }
    devices = trace.table("devices", ["device", "memory_bytes"])
    sizes = devices.filter(pl.col("device").eq_missing(device))["memory_bytes"].drop_nulls()
    if len(sizes) and sizes[0] > 0:
        values["peak_share"] = view.peak_bytes / int(sizes[0])
    peak_step = steps.step_at(view.peak_ns)
    if peak_step is not None:
        values["peak_step"] = peak_step
    return tuple(
        Fact(f.key, f.label, values[f.key], f.fmt, f.meaning)
        for f in FACT_FIELDS
        if f.key in values
    )


def _reserved(view: MemoryView) -> dict[str, Any]:
    """Return the facts about reserved memory, where it was recorded."""
    reserved = reserved_at(view.history, view.points)
    if reserved is None:
        return {}
    allocated = allocated_at(view.history, view.points)
    unused = np.full(len(reserved), -np.inf)
    np.divide(reserved - allocated, reserved, out=unused, where=reserved > 0)
    facts = {
        "reserved_at_peak_bytes": int(reserved[view.peak]),
        "reserved_max_bytes": int(reserved.max()),
        "fragmentation_at_peak": float(unused[view.peak]) if reserved[view.peak] > 0 else None,
    }
    # Reserved memory compares with memory in use only once there is some, and not inside one
    # request, between the allocation of a segment and that of the block in it.
    history = view.history
    assert history.reserved is not None, "what is reserved is known"
    levels = np.append(history.start_allocated, history.allocated)
    grew = np.diff(history.reserved, prepend=history.start_reserved or 0) > 0
    compares = (np.maximum.accumulate(levels)[1:] > 0) & ~(grew & (np.diff(levels) == 0))
    at_points = np.append(compares, history.start_allocated > 0)[view.points.events]
    settled = np.where(at_points, unused, -np.inf)
    worst = int(np.argmax(settled))
    if not np.isneginf(settled[worst]):
        facts["fragmentation_worst"] = float(settled[worst])
        facts["fragmentation_worst_ns"] = int(view.points.times[worst])
    return facts


_MIN_KNOWN_SHARE = 0.9
"""Share of the time with memory events that other activity covers, below which the headline names
the time of the memory events instead."""
_SEGMENTS_ONLY = (
    "these are driver allocations; blocks inside a framework's segments need its own profiler "
    "(torch.profiler with profile_memory=True, or a memory snapshot)"
)
_ALL_BEFORE = "all memory was allocated before the capture, none during it"
_REQUESTED_SIZES = "sizes are as requested; the allocator rounds them up"
_NO_TOTALS = "the trace has no totals: levels are the least that its events allow"
_OWN_ONLY = "driver allocations outside the framework's allocator are excluded"


def _notes(
    places: DeviceMemories,
    device: int | None,
    failed: TableResult | None,
    held: TableResult | NotApplicable,
) -> Iterator[str]:
    """Yield the notes, the most serious first."""
    view = places.view(device)
    if failed is not None:
        first, count = failed.frame.row(0, named=True), failed.frame.height
        times = "once" if count == 1 else f"{count:,} times"
        requested, used, reserved = (
            format_bytes(first[key]) for key in ("bytes", "allocated_bytes", "reserved_bytes")
        )
        yield (
            f"the GPU ran out of memory {times}, first at {format_time(first['time_ns'])}: "
            f"{requested} requested with {used} in use of {reserved} reserved"
        )
    missing = held.meta["not_recorded_bytes"] if isinstance(held, TableResult) else 0
    if missing:
        share = format_share(abs(missing) / view.peak_bytes if view.peak_bytes else None)
        yield f"{format_bytes(missing)} ({share}) of the peak cannot be explained by the events"
    if len(places.gpus) > 1:
        yield f"GPU {device} is shown, which has the highest peak; --device N shows another"
    if device is None:
        yield "no GPU memory was recorded: this is memory of the host"
    history = view.history
    yield from _start_note(view)
    if history.origin is AllocationSource.DRIVER:
        yield _SEGMENTS_ONLY
        if not len(history):
            yield _ALL_BEFORE
    elif places.events_of(device)["allocator"].null_count():
        yield _OWN_ONLY
    if history.origin is AllocationSource.SNAPSHOT:
        yield _REQUESTED_SIZES
    if not history.totals_known:
        yield _NO_TOTALS
    yield from places.trace.meta.notes


def _start_note(view: MemoryView) -> Iterator[str]:
    """Show what was in use before the capture, where the window starts with another amount."""
    captured_bytes, first_event = view.history.start_allocated, int(view.points.events[0])
    window_bytes = view.history.allocated_after(first_event)
    if first_event >= 0 and captured_bytes > 0 and captured_bytes != window_bytes:
        yield (
            f"in use at the start of the capture: {format_bytes(captured_bytes)}; at the start of "
            f"the window: {format_bytes(window_bytes)}"
        )


DEVICE_FIELDS = (
    Field("device", "GPU", Fmt.ID, "The GPU's number in the capture"),
    Field("peak_bytes", "Peak in use", Fmt.BYTES, "Peak memory in use"),
    Field("peak_ns", "At", Fmt.TIME, "When"),
    Field("end_bytes", "At the end", Fmt.BYTES, "In use at the end"),
    Field("allocations", "Allocations", Fmt.COUNT, "Allocations"),
    Field("name", "Name", Fmt.NAME, "Marketing name"),
)
KIND_FIELDS = (
    Field("peak_bytes", "Peak", Fmt.BYTES, "Peak memory in use"),
    Field("end_bytes", "At the end", Fmt.BYTES, "In use at the end"),
    Field("allocations", "Allocations", Fmt.COUNT, "Allocations in the window"),
    Field("place", "Where", Fmt.TEXT, "`GPU` or `host`"),
    Field("memory_kind", "Kind", Fmt.TEXT, "Kind of memory, as the profiler calls it"),
)


def _by_device(trace: Trace, places: DeviceMemories) -> TableResult:
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
    return {
        "peak_bytes": view.peak_bytes,
        "peak_ns": view.peak_ns,
        "end_bytes": view.end_bytes,
        "allocations": len(view.takes),
    }


def _by_kind(places: DeviceMemories, device: int | None) -> list[TableResult]:
    """Split memory by kind, the host's included; no table where there is only one kind."""
    if places.is_snapshot:
        return []
    memories: list[tuple[str, int | None]] = [("host", None)]
    if device is not None:
        memories.insert(0, ("GPU", device))
    rows = []
    for place, memory_of in memories:
        events = places.events_of(memory_of)
        kinds = events["memory_kind"].unique(maintain_order=True).to_list()
        for kind in kinds:
            of_kind = events.filter(pl.col("memory_kind").eq_missing(kind))
            view = places.view(memory_of) if len(kinds) == 1 else places.view_of(of_kind)
            rows.append({**_levels(view), "place": place, "memory_kind": kind})
    if len(rows) < 2:
        return []
    frame = pl.DataFrame(rows, schema_overrides={"memory_kind": pl.String}).sort(
        "place", "peak_bytes", descending=[False, True]
    )
    fields = KIND_FIELDS
    return [TableResult("kinds", "Memory by kind", fields, frame.select(f.key for f in fields))]


_NO_ADDRESSES = NotApplicable(
    "peak",
    "the trace has no addresses: frees cannot be matched to allocations",
    "profile again with a newer PyTorch",
)


def memory(trace: Trace, selection: Selection = EVERYTHING) -> Composite | NotApplicable:
    """Report the memory in use over time, and who held it at the peak."""
    if not (trace.has("memory_events") or trace.has("memory_blocks")):
        return no_memory(trace)
    places = DeviceMemories(trace, selection)
    if places.spans is not None and not len(places.spans):
        return NotApplicable("memory", "the selected ranges have zero length")
    # The GPU with the highest peak; the host where no GPU's memory was recorded.
    device = max(places.gpus, key=lambda gpu: (places.view(gpu).peak_bytes, -gpu), default=None)
    if device is None and not places.events_of(None).height:
        return NotApplicable("memory", "no memory of the selected process was recorded")
    return _report(trace, places, device)


def no_memory(trace: Trace) -> NotApplicable:
    """Explain why a capture has no memory events."""
    advice = advice_for(trace.meta)
    option = next((w.how for w in advice.wanted if w.table == "memory_events"), None)
    elsewhere = _ELSEWHERE.get(trace.meta.source) or advice.elsewhere
    hint = f"capture again with: {option}" if option else elsewhere
    return NotApplicable("memory", "the capture has no memory events", hint)


_ELSEWHERE = {
    "jax-chrome": "the .xplane.pb of the same profile has them",
    "torch-key-averages": "printed totals have no times; pass the trace of the same run, "
    "recorded with profile_memory=True",
}
"""Where else they may be, by the form of the capture."""


def _report(trace: Trace, places: DeviceMemories, device: int | None) -> Composite:
    view, events = places.view(device), places.events_of(device)
    processes = events["process"].drop_nulls().mode()
    main_process = int(processes.min()) if len(processes) else None  # type: ignore[arg-type]
    steps = growth(trace, view, main_process)
    failed = failures(trace, view, events)
    held, groups, blocks, over_time = _holders(trace, view)
    sections: list[TableResult | NotApplicable] = []
    if len(places.gpus) > 1:
        sections.append(_by_device(trace, places))
    sections += [table for table in (failed, held, groups, blocks) if table is not None]
    sections.append(steps.table)
    if device is not None and (final := places.final_of(device)).height:
        sections += [reserved_parts(final), segments(final)]
    sections += [*_by_kind(places, device), over_time]
    within = f" in {places.selection.within}" if places.selection.within else ""
    name = device_names(trace).get(-1 if device is None else device) or "unknown"
    gpu = f"GPU {device}" + ("" if name.startswith("unknown") else f" ({name})")
    # A memory snapshot has a long history of allocations and few annotations: where memory was
    # recorded for longer than the rest, that time is the window.
    length_ns = view.end_ns - view.start_ns
    known_ns = 0 if places.extent is None else places.extent[1] - places.extent[0]
    window = ""
    if places.spans is None and (places.extent is None or known_ns < _MIN_KNOWN_SHARE * length_ns):
        no_steps = ", no steps found" if isinstance(steps.table, NotApplicable) else ""
        window = f"whole capture, {format_time(length_ns, digits=3)}{no_steps}"
    return Composite(
        "memory",
        f"Memory of {'the host' if device is None else gpu}{within}",
        _facts(trace, device, view, steps),
        tuple(sections),
        meta={"path": trace.meta.path, "device": device, **over_time.meta},
        notes=tuple(_notes(places, device, failed, held)),
        window=window,
    )


def _holders(
    trace: Trace, view: MemoryView
) -> tuple[TableResult | NotApplicable, TableResult | None, TableResult | None, TableResult]:
    """Return who held the peak, its blocks in groups, the largest blocks, and memory over time."""
    blocks = view.history.blocks
    if blocks is None:
        return _NO_ADDRESSES, None, None, memory_over_time(view, None, None)
    holders = find_holders(trace, blocks, view.history.origin)
    held = by_holder(view, holders)
    over_time = memory_over_time(view, holders["holder"], held)
    blocks_of_peak = largest_blocks(trace, view, holders)
    return held, block_groups(view, holders), blocks_of_peak, over_time
