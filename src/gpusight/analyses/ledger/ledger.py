"""Where the time of each GPU went: every nanosecond of a window in exactly one entry."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analyses.ledger.causes import Cause
from gpusight.analyses.ledger.labels import Labels, label
from gpusight.analyses.ledger.spans import Gaps, Spans, measured, spans_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusight.analyses.ledger.hosts import HostTime
    from gpusight.analyses.schedule.schedule import Ints, Schedule, Timing


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an entry: what its kernels compute in, or what kind of memory its copies met."""

    ns: int
    precision: str | None = None
    tensor_core: bool | None = None
    memory: str | None = None

    def document(self) -> dict[str, Any]:
        """Give it as plain objects; copies have no precision, kernels no memory."""
        if self.memory is not None:
            return {"memory": self.memory, "ns": self.ns}
        return {"precision": self.precision, "tensor_core": self.tensor_core, "ns": self.ns}


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger."""

    entry: str
    """Such as `compute/matmul`, `copy/h2d`, `communication`, `idle/input`."""
    ns: int
    share: float | None
    """Part of the window; None where that has no length."""
    parts: tuple[Part, ...] = ()

    def document(self) -> dict[str, Any]:
        """Give it as plain objects."""
        parts = {"parts": [part.document() for part in self.parts]} if self.parts else {}
        return {"entry": self.entry, "ns": self.ns, "share": self.share} | parts


@dataclass(frozen=True, slots=True)
class DeviceLedger:
    """The ledger of one GPU."""

    device: int
    entries: tuple[Entry, ...]
    """Those that hold any time, in the order of the ledger's priorities; they sum to the window."""

    def ns(self, prefix: str) -> int:
        """Sum the entries of a name, or of a group: `idle`, `compute`, `compute/matmul`."""
        return sum(e.ns for e in self.entries if f"{e.entry}/".startswith(f"{prefix}/"))

    def document(self) -> dict[str, Any]:
        """Give it as plain objects."""
        return {"device": self.device, "entries": [e.document() for e in self.entries]}


@dataclass(frozen=True)
class Ledger:
    """The ledgers of all GPUs that worked in a window."""

    start_ns: int
    end_ns: int
    devices: tuple[DeviceLedger, ...]

    def document(self) -> dict[str, Any]:
        """Give it as plain objects."""
        return {
            "window": {"start_ns": self.start_ns, "end_ns": self.end_ns},
            "devices": [device.document() for device in self.devices],
        }


def ledger(schedule: Schedule, hosts: HostTime, timing: Timing | None = None) -> Ledger:
    """Account for every nanosecond of a schedule, as measured or as a replay gives its times."""
    accounts = account(schedule, hosts, timing)
    times = timing or measured(schedule)
    return Ledger(times.start_ns, times.end_ns, tuple(one.ledger for one in accounts))


# Accounts -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Account:
    """The spans of one GPU with what they count for: what ledgers of any part are summed from."""

    device: int
    spans: Spans
    gaps: Gaps
    labels: Labels
    hosts: HostTime

    @cached_property
    def ledger(self) -> DeviceLedger:
        """The ledger of the whole window."""
        return DeviceLedger(self.device, self.entries())

    def entries(self) -> tuple[Entry, ...]:
        """Give the entries of the whole window."""
        whole = np.zeros(len(self.spans), np.int64)
        return self._entries(self._sums(self.spans, whole, 1)[0])

    @property
    def names(self) -> tuple[str, ...]:
        """Every entry that the GPU may have, in the order of the ledger's priorities."""
        known = sorted(self.labels.known, key=lambda label: label.rank)
        return (*dict.fromkeys(label.entry for label in known), *(cause.entry for cause in Cause))

    def between(self, starts: Ints, ends: Ints) -> Ints:
        """Give the ns of parts of the window (rows) by entry (columns, as `names`).

        Parts are in order of start and do not overlap.
        """
        spans = self.spans.cut(np.concatenate((starts, ends)))
        at = np.searchsorted(starts, spans.start_ns, side="right") - 1
        inside = (at >= 0) & (spans.start_ns < np.append(ends, 0)[at])
        sums = self._sums(spans, np.where(inside, at, len(starts)), len(starts) + 1)[:-1]
        numbers = {name: number for number, name in enumerate(self.names)}
        entries = [*(label.entry for label in self.labels.known), *(c.entry for c in Cause)]
        found = np.zeros((len(starts), len(numbers)), np.int64)
        for column, entry in enumerate(entries):
            found[:, numbers[entry]] += sums[:, column]
        return found

    def _sums(self, spans: Spans, part: Ints, parts: int) -> Ints:
        """Add spans up, by the part they belong to (rows) and what they count for (columns)."""
        columns = len(self.labels.known) + len(Cause)
        busy = np.flatnonzero(spans.gap < 0)
        key = part[busy] * columns + self.labels.of_op[spans.op[busy]]
        spent = self.gaps.spent(self.hosts, spans.idle)
        row, cause = np.nonzero(spent)
        idle_key = part[spans.gap >= 0][row] * columns + len(self.labels.known) + cause
        # Sums of whole numbers are exact in floating point up to 104 days of nanoseconds.
        sums = np.bincount(
            np.concatenate((key, idle_key)),
            np.concatenate((spans.length_ns[busy], spent[row, cause])),
            parts * columns,
        )
        return sums.astype(np.int64).reshape(parts, columns)

    def _entries(self, sums: Ints) -> tuple[Entry, ...]:
        """Make the entries of a row of sums."""
        total = int(sums.sum())
        known = self.labels.known
        groups: dict[str, list[Part]] = {}
        for at in sorted(np.flatnonzero(sums[: len(known)]), key=lambda at: known[at].rank):
            one = known[at]
            part = Part(int(sums[at]), one.precision, one.tensor_core, one.memory)
            groups.setdefault(one.entry, []).append(part)
        for cause in Cause:
            if spent := int(sums[len(known) + cause]):
                groups[cause.entry] = [Part(spent)]
        return tuple(_entry(name, parts, total) for name, parts in groups.items())


def account(schedule: Schedule, hosts: HostTime, timing: Timing | None = None) -> list[Account]:
    """Cut the window of every GPU that worked into spans, ready to be summed."""
    times = timing or measured(schedule)
    labels = label(schedule)
    accounts = []
    for device in pl.Series(schedule.ops.device).unique().sort():
        spans, gaps = spans_of(schedule, times, labels, int(device))
        accounts.append(Account(int(device), spans, gaps, labels, hosts))
    return accounts


def _entry(name: str, parts: Iterable[Part], total: int) -> Entry:
    """Make one entry; a part that says nothing more is left out."""
    every = sorted(parts, key=lambda part: -part.ns)
    ns = sum(part.ns for part in every)
    telling = any(part.precision or part.memory for part in every)
    return Entry(name, ns, ns / total if total else None, tuple(every) if telling else ())
