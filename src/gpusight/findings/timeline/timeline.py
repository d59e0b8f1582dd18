"""What rules look at: the judged part of a capture, as frames, with its ledger and its replay."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.completeness import MEMSETS, issued
from gpusight.analyses.devices import listed_gpu
from gpusight.analyses.ledger.hosts import host_time
from gpusight.analyses.ledger.ledger import ledger
from gpusight.analyses.replay.replay import Replay
from gpusight.analyses.steps.phases import phases
from gpusight.findings.timeline.frames import calls_frame, ops_frame
from gpusight.units import format_time

if TYPE_CHECKING:
    from gpusight.analyses.completeness import Issued
    from gpusight.analyses.ledger.hosts import HostTime
    from gpusight.analyses.ledger.ledger import Ledger
    from gpusight.analyses.schedule.schedule import CallKind, Schedule
    from gpusight.analyses.steps.focus import Focus
    from gpusight.model.hardware import Gpu
    from gpusight.model.trace import Trace


class Timeline:
    """The judged part of a capture: whole steps of one process, as many as can be replayed fast."""

    def __init__(
        self, focus: Focus, schedule: Schedule, steps: int, *, device: int | None = None
    ) -> None:
        self.focus = focus
        """All of the time that was asked for; the judged part may be less of it."""
        self.schedule = schedule
        """The judged part: GPU work and calls as arrays, to which frames and changes refer."""
        self.steps = steps
        """Steps in the judged part; 0 where none are known."""
        self._device = device

    @property
    def trace(self) -> Trace:
        """The capture."""
        return self.schedule.trace

    @property
    def length_ns(self) -> int:
        """Length of the judged part."""
        return self.schedule.length_ns

    @property
    def part(self) -> str:
        """Name the judged part, where it is not all of the window; else empty."""
        if self.length_ns >= self.focus.length_ns:
            return ""
        if self.steps:
            return f"{self.steps} of {len(self.focus.steps)} steps"
        return format_time(self.length_ns)

    @property
    def per_step(self) -> int:
        """What to divide by for the time of a step: 1 where no steps are known."""
        return max(1, self.steps)

    @cached_property
    def issued(self) -> dict[str, Issued]:
        """Calls of the window that issue kernels or copies, and those whose work is not recorded.

        Memsets are left out: some tools record none, and no rule needs them.
        """
        every = issued(self.trace, [(self.focus.start_ns, self.focus.end_ns)])
        return {source: one for source, one in every.items() if source != MEMSETS}

    @cached_property
    def hosts(self) -> HostTime:
        """What the host did at every instant."""
        return host_time(self.trace, self.schedule)

    @cached_property
    def ledger(self) -> Ledger:
        """Where the time of the judged part went."""
        return ledger(self.schedule, self.hosts)

    @cached_property
    def replay(self) -> Replay:
        """Says how long the judged part would take if something were different."""
        return Replay(self.schedule, self.hosts)

    @cached_property
    def ops(self) -> pl.DataFrame:
        """GPU work, a row each in the order of `schedule.ops`.

        Columns: `op` (position in `schedule.ops`), `kind` (kernel, copy, memset, graph),
        `start_ns`, `end_ns`, `duration_ns`, `device`, `queue`, `call` (position in
        `schedule.calls`, null for none), `step` (number within the part, null outside), `name`,
        `label` (short), `category`, `precision`, `tensor_core`, `blocks`, `threads` (a block),
        `in_graph`, `bytes`, `direction`, `src_kind`, `dst_kind`, `range` (innermost), `operator`,
        `forward_operator`, `shapes` (of the operator), `module`, `site` (line of Python), `phase`.
        """
        frame = ops_frame(self.schedule)
        return frame.with_columns(phases(self.trace, self.schedule).alias("phase"))

    @cached_property
    def kernels(self) -> pl.DataFrame:
        """The rows of `ops` that are kernels."""
        return self.ops.filter(pl.col("kind") == "kernel")

    @cached_property
    def calls(self) -> pl.DataFrame:
        """API calls, a row each in the order of `schedule.calls`, without marks.

        Columns: `call` (position), `kind` (of `CallKind`, lower case), `name`, `start_ns`,
        `end_ns`, `duration_ns`, `lane`, `process`, `thread`, `step`, `range`, `operator`, `site`,
        `waits` (it waits for the GPU), `waited_ns` (how long it really did).
        """
        return calls_frame(self.schedule, self.replay.program)

    @cached_property
    def gpu(self) -> Gpu | None:
        """The GPU that did most, where it is known what it can do."""
        device = self.device
        rows = self.trace.table("devices").filter(pl.col("device") == device)
        return listed_gpu(rows.row(0, named=True)) if rows.height else None

    @cached_property
    def device(self) -> int:
        """Number of the GPU that was chosen, or that worked longest."""
        if self._device is not None:
            return self._device
        by_device = self.ops.group_by("device", maintain_order=True).agg(
            pl.col("duration_ns").sum()
        )
        return int(by_device.sort("duration_ns", descending=True)["device"][0])

    def calls_of(self, *kinds: CallKind) -> pl.DataFrame:
        """Give the calls of some kinds."""
        return self.calls.filter(pl.col("kind").is_in([kind.name.lower() for kind in kinds]))
