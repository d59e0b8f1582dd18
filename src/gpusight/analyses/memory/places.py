"""Whose memory: each GPU of a capture, and the host, with the history of each."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.memory.history import (
    COLUMNS,
    ROW,
    from_events,
    from_snapshot,
    on_gpu,
)
from gpusight.analyses.memory.view import look
from gpusight.analyses.select import Scope
from gpusight.errors import DamagedCaptureError, UsageError
from gpusight.model.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analyses.memory.history import History
    from gpusight.analyses.memory.view import View
    from gpusight.analyses.select import Selection
    from gpusight.model.trace import Trace

_NO_SIZE = 1 << 58
_NO_SUM = 1 << 61
"""Sizes and sums of them that no machine reaches, far below where numbers wrap around."""
FINAL = (
    "device",
    "stream",
    "segment",
    "segment_bytes",
    "segment_kind",
    "expandable",
    "address",
    "bytes",
    "requested_bytes",
    "state",
)


class Places:
    """The memories that a capture tells about, as far as they are selected."""

    def __init__(self, trace: Trace, selection: Selection) -> None:
        self.trace = trace
        self.selection = selection
        # The device is checked here: a capture may know memory of a GPU that did no other work.
        self._whole = Scope(trace, replace(selection, device=None, within=None))
        self.events = self._whole.host("memory_events", COLUMNS, row_index=ROW)
        self.final = trace.table("memory_blocks", FINAL)
        self.is_snapshot = trace.has("memory_blocks") or "segment_allocation" in self._operations
        _check_sizes(self.events, ("bytes", "allocated_bytes", "reserved_bytes"))
        _check_sizes(self.final, ("bytes", "requested_bytes", "segment_bytes"))
        self._events: dict[int | None, pl.DataFrame] = {}
        self._views: dict[int | None, View] = {}

    @cached_property
    def _operations(self) -> set[str]:
        return set(self.events["operation"].cast(pl.String).unique().to_list())

    @cached_property
    def gpus(self) -> list[int]:
        """The GPUs whose memory was recorded; only the selected one where one is."""
        named = self.events.filter(on_gpu())["device"].unique().to_list()
        known = sorted({*named, *self.final["device"].unique().to_list()})
        wanted = self.selection.device
        if wanted is None:
            return known
        if wanted not in known:
            names = ", ".join(map(str, known)) or "none"
            raise UsageError(
                f"no memory of GPU {wanted} was recorded", hint=f"GPUs with memory: {names}"
            )
        return [wanted]

    @cached_property
    def spans(self) -> Intervals | None:
        """The selected time; None for all of it."""
        if self.selection.within is None:
            return None
        spans = Scope(self.trace, replace(self.selection, device=None)).spans
        return Intervals.from_arrays(spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy())

    @cached_property
    def extent(self) -> tuple[int, int] | None:
        """From the first to the last activity of the capture; None where only memory was seen."""
        window = self._whole.window
        return (window.start_ns, window.end_ns) if len(window.intervals) else None

    def events_of(self, device: int | None) -> pl.DataFrame:
        """Give the events about one GPU's memory, or about the host's (None)."""
        if device not in self._events:
            mine = ~on_gpu() if device is None else on_gpu() & (pl.col("device") == device)
            self._events[device] = self.events.filter(mine)
        return self._events[device]

    def final_of(self, device: int) -> pl.DataFrame:
        """Give the blocks that one GPU had at the end, with their rows as `row`."""
        return self.final.with_row_index(ROW).filter(pl.col("device") == device)

    def view(self, device: int | None) -> View:
        """Look at one memory."""
        if device not in self._views:
            self._views[device] = look(self._history(device), self.extent, self.spans)
        return self._views[device]

    def look_at(self, events: pl.DataFrame) -> View:
        """Look at some events only, such as those of one kind of memory."""
        return look(from_events(events), self.extent, self.spans)

    def _history(self, device: int | None) -> History:
        events = self.events_of(device)
        if device is None or not self.is_snapshot:
            return from_events(events)
        return from_snapshot(events, self.final_of(device))


def _check_sizes(frame: pl.DataFrame, columns: Sequence[str]) -> None:
    """Refuse sizes that no sum can hold: they are no sizes of memory."""
    sizes = frame.select(pl.col(columns).cast(pl.Float64).abs())
    largest = max((value for value in sizes.max().row(0) if value is not None), default=0)
    if largest > _NO_SIZE or sizes["bytes"].sum() > _NO_SUM:
        raise DamagedCaptureError(
            "the capture's record of memory cannot be right",
            why="its sizes add up to more than any machine has",
        )
