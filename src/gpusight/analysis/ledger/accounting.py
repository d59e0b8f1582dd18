"""The account of a window of a capture: at once, or of a long one stretch by stretch.

Then memory does not grow with the window. What is next to a stretch is looked at with it, so that
its ends do not show; medians, such as the usual latency of a launch, are those of the stretch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from gpusight.analysis.gpu_schedule import build_schedule
from gpusight.analysis.launch_index import launched
from gpusight.analysis.ledger.device_ledger import Ledger, account, ledger_of
from gpusight.analysis.ledger.idle_causes import host_time
from gpusight.analysis.selection import GPU_WORK
from gpusight.trace.part_of_trace import part_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.analysis.ledger.device_ledger import DeviceAccount
    from gpusight.analysis.ledger.host_threads import HostTime
    from gpusight.analysis.ledger.ledger_entries import EntryLabel, IdleCause
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


MAX_AT_ONCE = 1_500_000
"""GPU activities that are accounted for in one go; more are cut into stretches."""
IN_A_STRETCH = 500_000
MARGIN = 20_000
"""GPU activities around a stretch that are looked at with it."""


class Reach(NamedTuple):
    """A stretch of time, and the time that is looked at for it."""

    start_ns: int
    end_ns: int
    from_ns: int
    to_ns: int


def cut_time(work: Ints, span: tuple[int, int], reach: tuple[int, int]) -> Iterator[Reach]:
    """Cut a span so that no stretch holds too much; `reach` is how far beyond it one may look.

    `work` is when GPU activities begin, in order.
    """
    first, after = np.searchsorted(work, span).tolist()
    cuts = [*span]
    if after - first > MAX_AT_ONCE:
        inner = np.unique(work[first + IN_A_STRETCH : after : IN_A_STRETCH])
        cuts[1:1] = inner[inner > span[0]].tolist()
    for start, end in pairwise(cuts):
        if start < end:
            inside, behind = np.searchsorted(work, (start, end)).tolist()
            low = int(work[inside - MARGIN]) if inside >= MARGIN else reach[0]
            high = int(work[behind + MARGIN]) if behind + MARGIN < len(work) else reach[1]
            yield Reach(start, end, max(low, reach[0]), min(high, reach[1]))


def work_starts(trace: Trace) -> Ints:
    """Return when the GPU activities of a capture begin, in order."""
    starts = [trace.table(t, ["start_ns"])["start_ns"].to_numpy() for t in GPU_WORK if trace.has(t)]
    joined = starts[0] if len(starts) == 1 else np.concatenate([np.empty(0, np.int64), *starts])
    return joined if len(starts) == 1 else np.sort(joined)


@dataclass(frozen=True)
class AccountedStretch:
    """A stretch of the window with what its ledger is made of."""

    start_ns: int
    end_ns: int
    schedule: GpuSchedule
    """Of the stretch and what is next to it."""
    hosts: HostTime
    accounts: tuple[DeviceAccount, ...]
    """Of the stretch alone."""


@dataclass(frozen=True)
class Accounting:
    """A window of a capture, and its ledger, which is computed when it is first needed."""

    trace: Trace
    start_ns: int
    end_ns: int
    process: int | None = None
    """The only one that counts; None for all."""

    def or_known(self, known: Accounting | None) -> Accounting:
        """Return what is known already, where it is of the same window."""
        return known if known is not None and known == self else self

    @cached_property
    def schedule(self) -> GpuSchedule:
        """The GPU activities and the API calls of the window."""
        return build_schedule(self.trace, self.start_ns, self.end_ns, process=self.process)

    @cached_property
    def hosts(self) -> HostTime:
        """What each host thread did at every instant."""
        return host_time(self.trace, self.schedule)

    @cached_property
    def accounts(self) -> tuple[DeviceAccount, ...]:
        """The spans of every GPU that worked."""
        return tuple(account(self.schedule, self.hosts))

    @cached_property
    def ledger(self) -> Ledger:
        """Where the time of every GPU went."""
        if not self._totals:
            for _ in self.stretches():
                pass
        devices = (ledger_of(device, self._totals[device]) for device in sorted(self._totals))
        return Ledger(self.start_ns, self.end_ns, tuple(devices))

    @cached_property
    def _totals(self) -> dict[int, Counter[EntryLabel | IdleCause]]:
        """The ns of labels and causes of each GPU, once all stretches were accounted for."""
        return {}

    def stretches(self) -> Iterator[AccountedStretch]:
        """Account for one stretch after the other; most windows are a single one."""
        totals: dict[int, Counter[EntryLabel | IdleCause]] = {}
        for stretch in self._stretches():
            for of_device in stretch.accounts:
                totals.setdefault(of_device.device, Counter()).update(of_device.totals)
            yield stretch
        self._totals.update(totals)

    def _stretches(self) -> Iterator[AccountedStretch]:
        span = self.start_ns, self.end_ns
        cuts = list(cut_time(work_starts(self.trace), span, span))
        if len(cuts) < 2:
            yield AccountedStretch(*span, self.schedule, self.hosts, self.accounts)
            return
        devices = self._devices()
        for cut in cuts:
            yield self._stretch(cut, devices)

    def _stretch(self, cut: Reach, devices: list[int]) -> AccountedStretch:
        near, issued = (cut.from_ns, cut.to_ns), self._launch_span(cut)
        part = part_of(self.trace, near, issued)
        first_ns = max(min(near[0], issued[0]), self.start_ns)
        schedule = build_schedule(part, first_ns, near[1], process=self.process)
        hosts = host_time(part, schedule)
        accounts = (
            of_device.inside(cut.start_ns, cut.end_ns)
            for of_device in account(schedule, hosts, devices=devices)
        )
        return AccountedStretch(cut.start_ns, cut.end_ns, schedule, hosts, tuple(accounts))

    def _launch_span(self, cut: Reach) -> tuple[int, int]:
        """Return when the work of a stretch was launched: the host may be far ahead of the GPU."""
        starts, launches = self._launches
        first, after = np.searchsorted(starts, (cut.start_ns, cut.end_ns)).tolist()
        own = launches[first:after]
        return (int(own.min()), int(own.max()) + 1) if len(own) else (cut.from_ns, cut.to_ns)

    @cached_property
    def _launches(self) -> tuple[Ints, Ints]:
        """When GPU activities begin, in order, and when each was launched."""
        work = launched(self.trace).select("start_ns", "launch_ns")
        work = work if work["start_ns"].is_sorted() else work.sort("start_ns")
        return work["start_ns"].to_numpy(), work["launch_ns"].to_numpy()

    def _devices(self) -> list[int]:
        """Return the GPUs that work in the window: in a stretch, one may have nothing to do."""
        devices: set[int] = set()
        part = part_of(self.trace, (self.start_ns, self.end_ns))
        for table in GPU_WORK:
            work = part.table(table, ["device", "process"])
            if self.process is not None:
                own = pl.col("process").is_null() | (pl.col("process") == self.process)
                work = work.filter(own)
            devices |= set(work["device"].drop_nulls().unique().to_list())
        return sorted(devices)
