"""The entries of the ledger: labels of GPU work and causes of idle time."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.gpu_schedule import OpKind
from gpusight.analysis.kernel_behavior import kinds_of

if TYPE_CHECKING:
    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


IDLE = "idle"


class IdleCause(enum.IntEnum):
    """Why the next GPU activity did not start earlier: the GPU itself, or the host."""

    QUEUED = 0
    """It had been launched: another stream, an event or another program came first."""
    SYNCHRONIZING = 1
    """The host waited for the GPU, or was just returning from that."""
    ALLOCATING = 2
    """The host allocated or freed memory."""
    LAUNCHING = 3
    """The host was inside a call that launches, or the launch was on its way to the GPU."""
    SETUP = 4
    """The host created or destroyed contexts, streams and handles, loaded or compiled code, or
    built a graph."""
    INPUT = 5
    """The host read, waited for or prepared data."""
    WAITING = 6
    """The host waited for another thread or process: a lock, a sleep, a collective on the CPU."""
    FRAMEWORK = 7
    """The host ran operators, or Python between launches."""
    HOST = 8
    """The host ran its own code for long, without a CUDA call, an operator or a range for it."""
    PROFILER = 9
    """The profiler itself was at work."""
    UNKNOWN = 10
    """The capture does not show which thread launched the next activity."""

    @property
    def entry(self) -> str:
        """Name of its entry in the ledger."""
        return f"{IDLE}/{self.name.lower()}"


COMPUTE, COPY, COMMUNICATION = "compute", "copy", "communication"
GRAPH = f"{COMPUTE}/graph"
"""A whole CUDA graph whose kernels the capture does not show."""
_DIRECTIONS = {
    "Host-to-Device": "h2d",
    "Host-to-Array": "h2d",
    "Device-to-Host": "d2h",
    "Array-to-Host": "d2h",
    "Device-to-Device": "d2d",
    "Array-to-Array": "d2d",
    "Array-to-Device": "d2d",
    "Device-to-Array": "d2d",
    "Peer-to-Peer": "p2p",
    "Host-to-Host": "h2h",
}
_HOST_MEMORY = {"Pageable": "pageable", "Pinned": "pinned"}


class ActivityPriority(enum.IntEnum):
    """What counts where several things run at an instant: the first of these."""

    COMPUTE = 0
    COPY = 1
    COMMUNICATION = 2


@dataclass(frozen=True, slots=True)
class EntryLabel:
    """An entry, and what it is split by."""

    entry: str
    priority: ActivityPriority
    precision: str | None = None
    tensor_core: bool | None = None
    memory: str | None = None
    """Of copies to or from the host: `pageable` or `pinned`."""


@dataclass(frozen=True)
class EntryLabels:
    """The labels of the work of a schedule."""

    known: tuple[EntryLabel, ...]
    of_op: Ints
    """Position in `known` of each GPU activity."""

    @property
    def priorities(self) -> Ints:
        """The priority of each GPU activity."""
        priorities = np.array([label.priority for label in self.known], np.int64)
        return priorities[self.of_op] if len(self.of_op) else self.of_op

    @property
    def order(self) -> Ints:
        """The place of each GPU activity when labels are ordered by their text."""
        texts = [str(label) for label in self.known]
        places = {text: place for place, text in enumerate(sorted(texts))}
        return np.array([places[text] for text in texts], np.int64)[self.of_op]


_MEMSET = EntryLabel(f"{COPY}/memset", ActivityPriority.COPY)
_GRAPH = EntryLabel(GRAPH, ActivityPriority.COMPUTE)


def label_work(schedule: GpuSchedule) -> EntryLabels:
    """Find the entry that each GPU activity of a schedule counts for."""
    numbers: dict[EntryLabel, int] = {}
    of_op = np.zeros(len(schedule.ops), np.int64)
    for kind in OpKind:
        at = np.flatnonzero(schedule.ops.kind == kind)
        if not len(at):
            continue
        if kind is OpKind.KERNEL:
            codes, labels = _kernel_labels(schedule.trace, schedule.ops.row[at])
        elif kind is OpKind.COPY:
            codes, labels = _copy_labels(schedule.trace, schedule.ops.row[at])
        else:
            codes = np.zeros(len(at), np.int64)
            labels = [_MEMSET if kind is OpKind.MEMSET else _GRAPH]
        known = [numbers.setdefault(label, len(numbers)) for label in labels]
        of_op[at] = np.array(known)[codes]
    return EntryLabels(tuple(numbers), of_op)


def _kernel_labels(trace: Trace, rows: Ints) -> tuple[Ints, list[EntryLabel]]:
    names = trace.table(OpKind.KERNEL.table, ["name"])["name"]
    codes = names.to_physical().to_numpy()[rows].astype(np.int64)
    used = np.flatnonzero(np.bincount(codes))
    texts, labels = names_of(names), []
    for kernel in kinds_of(trace, [texts[code] for code in used]):
        if kernel.category == COMMUNICATION:
            label = EntryLabel(COMMUNICATION, ActivityPriority.COMMUNICATION)
        else:
            entry, uses = f"{COMPUTE}/{kernel.category}", (kernel.precision, kernel.tensor_core)
            label = EntryLabel(entry, ActivityPriority.COMPUTE, *uses)
        labels.append(label)
    return np.searchsorted(used, codes), labels


def _copy_labels(trace: Trace, rows: Ints) -> tuple[Ints, list[EntryLabel]]:
    columns = ["kind", "src_kind", "dst_kind"]
    frame = trace.table(OpKind.COPY.table, columns)
    distinct = frame.unique(maintain_order=True).with_row_index("code")
    codes = frame.join(distinct, on=columns, nulls_equal=True, maintain_order="left")["code"]
    labels = []
    for kind, src_kind, dst_kind in distinct.select(columns).iter_rows():
        unified = kind.startswith("Unified")
        direction = "unified" if unified else _DIRECTIONS.get(kind, "other")
        host_kind = {"h2d": src_kind, "d2h": dst_kind}.get(direction)
        memory = _HOST_MEMORY.get(host_kind or "")
        labels.append(EntryLabel(f"{COPY}/{direction}", ActivityPriority.COPY, memory=memory))
    return codes.to_numpy()[rows].astype(np.int64), labels
