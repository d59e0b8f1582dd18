"""What a reader of the memory in use must know first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.analyses.memory.history import Origin
from gpusight.result import NotApplicable, TableResult
from gpusight.units import format_bytes, format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.analyses.memory.places import Places
    from gpusight.analyses.memory.view import View

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
    places: Places,
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


def _missing(view: View, held: TableResult | NotApplicable) -> Iterator[str]:
    missing = held.meta["not_recorded_bytes"] if isinstance(held, TableResult) else 0
    if missing:
        share = format_share(abs(missing) / view.peak_bytes if view.peak_bytes else None)
        yield f"{format_bytes(missing)} ({share}) of the peak cannot be explained by the events"


def _origin(places: Places, device: int | None) -> Iterator[str]:
    """Say what the source of the events means for them."""
    history = places.view(device).history
    if history.origin is Origin.DRIVER:
        yield _SEGMENTS_ONLY
        if not len(history):
            yield _ALL_BEFORE
    elif places.events_of(device)["allocator"].null_count():
        yield _OWN_ONLY
    if history.origin is Origin.SNAPSHOT:
        yield _ASKED
    if not history.totals_known:
        yield _NO_TOTALS
