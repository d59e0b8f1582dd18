"""Which operation of a job waits for which: pipeline schedule, transfers, collectives.

Each worker runs forward and backward passes in the order that was recorded. A pass waits for the
transfer from the neighboring stage; a transfer waits for the pass that it sends, for the transfers
before it, and for the pass that used its buffer before. A collective starts when the last worker of
its group arrives. Time between operations that nothing explains is launch delay, and left out.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterable

    import polars as pl

Floats: TypeAlias = npt.NDArray[np.float64]
Indexes: TypeAlias = npt.NDArray[np.intp]
Worker: TypeAlias = tuple[int, int]
"""Data-parallel rank and stage."""
OperationKey: TypeAlias = tuple[int, int, str, int]
"""Data-parallel rank, stage, type and sequence number."""

FORWARD, BACKWARD = "forward-compute", "backward-compute"
PARAMS, GRADS = "params-all-gather", "grads-reduce-scatter"
_SENDS = {"forward-send": FORWARD, "backward-send": BACKWARD}
_RECEIVES = {"forward-recv": FORWARD, "backward-recv": BACKWARD}
TRANSFERS = {"forward-recv": "forward-pp-comm", "backward-recv": "backward-pp-comm"}
"""A transfer between stages is one operation, that of the receiver."""
_OF_PIPELINE = "embedding-grads-all-reduce"
_OF_JOB = "optimizer-clip-main-grad"
_ALONE = "layernorm-grads-all-reduce"
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast")


class ScheduleError(Exception):
    """The operations do not form a schedule; the text has the reason."""


class _Operation(NamedTuple):
    dp_rank: int
    stage: int
    kind: str
    sequence: int
    chunk: int
    microbatch: int
    row: int

    @property
    def worker(self) -> Worker:
        return self.dp_rank, self.stage


def is_communication(kind: str) -> bool:
    """Return whether an operation of this type waits for others: its idle part is no work."""
    return kind in (*_SENDS, *_RECEIVES, _OF_JOB) or kind.endswith(_COLLECTIVES)


@dataclass(frozen=True, slots=True)
class JobSchedule:
    """What waits for what, in levels: all operations of a level can be computed at once."""

    operations: tuple[tuple[OperationKey, int], ...]
    """Those that are simulated, and their row in the arrays of times."""
    peers: tuple[tuple[int, Indexes], ...]
    """Number of a simulated operation, and rows of all that must have arrived before it starts."""
    levels: tuple[tuple[Indexes, Indexes, Indexes, Indexes], ...]
    """Predecessors, where those of each gate begin, operations, and the gate of each."""

    def simulate(self, durations_ns: Floats) -> Floats:
        """Return the time of each step for durations of `[operation, step]`."""
        ends = np.zeros((len(self.operations) + 1, durations_ns.shape[1]))  # the last row is 0
        for before, begins, operations, gate in self.levels:
            ready = np.maximum.reduceat(ends[before], begins, axis=0)
            ends[operations] = ready[gate] + durations_ns[operations]
        step_ns: Floats = ends.max(axis=0)
        return step_ns


def build_schedule(rows: pl.DataFrame) -> JobSchedule:
    """Build the schedule from the operations of one step, in recorded order of each worker.

    `rows` has dp_rank, stage, operation, sequence, chunk and microbatch (-1 where it has none).
    """
    columns = ("dp_rank", "stage", "operation", "sequence", "chunk", "microbatch")
    operations = [
        _Operation._make((*row, index))
        for index, row in enumerate(rows.select(columns).iter_rows())
    ]
    by_worker: dict[Worker, list[_Operation]] = defaultdict(list)
    for operation in operations:
        by_worker[operation.worker].append(operation)
    before: dict[int, list[int]] = {operation.row: [] for operation in operations}
    for own in by_worker.values():
        _order_of_worker(own, before)
    sent = _transfers(by_worker, 1 + max(operation.stage for operation in operations), before)
    kept = [operation for operation in operations if operation.kind not in _SENDS]
    return _schedule(kept, before, _groups(kept), sent)


def _order_of_worker(own: list[_Operation], before: dict[int, list[int]]) -> None:
    """Put passes and the rest in order; gradients and parameters move on a stream of their own."""
    last: int | None = None
    moving: list[int] = []
    gathered = {max(each.chunk, 0): each.row for each in own if each.kind == PARAMS}
    for each in own:
        if each.kind in _SENDS or each.kind in _RECEIVES:
            continue
        waits = before[each.row]
        if each.kind in (PARAMS, GRADS):
            waits += moving[-1:]
            if each.kind == GRADS and last is not None:
                waits.append(last)
            moving.append(each.row)
            continue
        if last is not None:
            waits.append(last)
        if each.kind == FORWARD:
            waits += [gathered[max(each.chunk, 0)]] if max(each.chunk, 0) in gathered else []
        elif each.kind != BACKWARD:
            waits += moving
        last = each.row


def _transfers(
    by_worker: dict[Worker, list[_Operation]], stages: int, before: dict[int, list[int]]
) -> dict[int, int]:
    """Connect passes through transfers; return the sending row of each receiving row."""
    chunks = stages * (1 + max(max(each.chunk, 0) for own in by_worker.values() for each in own))
    senders: dict[tuple[int, int, int, str], _Operation] = {}
    passes: dict[int, _Operation] = {}
    for own in by_worker.values():
        for kind, compute in _SENDS.items():
            edge = chunks - 1 if compute == FORWARD else 0
            for send, of in _paired(own, kind, compute, stages, edge):
                senders[of.dp_rank, _global_chunk(of, stages), of.microbatch, compute] = send
                passes[send.row] = of
    sent = {}
    for own in by_worker.values():
        for kind, compute in _RECEIVES.items():
            edge, step = (0, -1) if compute == FORWARD else (chunks - 1, 1)
            computes = [each for each in own if each.kind == compute]
            place = {each.row: index for index, each in enumerate(computes)}
            received: int | None = None
            for receive, of in _paired(own, kind, compute, stages, edge):
                source = (of.dp_rank, _global_chunk(of, stages) + step, of.microbatch, compute)
                if source not in senders:
                    raise ScheduleError(_unmatched(receive))
                sent[receive.row] = senders[source].row
                before[of.row].append(receive.row)
                before[receive.row].append(passes[senders[source].row].row)
                if received is not None:
                    before[receive.row].append(received)
                if place[of.row]:
                    before[receive.row].append(computes[place[of.row] - 1].row)
                received = receive.row
    _order_of_sends(by_worker, sent, before)
    return sent


def _order_of_sends(
    by_worker: dict[Worker, list[_Operation]],
    sent: dict[int, int],
    before: dict[int, list[int]],
) -> None:
    """Let transfers of one sender and direction follow one another."""
    receive_of = {send: receive for receive, send in sent.items()}
    for own in by_worker.values():
        for kind in _SENDS:
            rows = [receive_of[e.row] for e in own if e.kind == kind and e.row in receive_of]
            for earlier, later in pairwise(rows):
                before[later].append(earlier)


def _global_chunk(operation: _Operation, stages: int) -> int:
    return max(operation.chunk, 0) * stages + operation.stage


def _paired(
    own: list[_Operation], kind: str, compute: str, stages: int, edge: int
) -> list[tuple[_Operation, _Operation]]:
    """Pair the transfers of a worker with its passes, in order; those at the edge have none."""
    transfers = sorted((e for e in own if e.kind == kind), key=lambda e: e.sequence)
    passes = [e for e in own if e.kind == compute and _global_chunk(e, stages) != edge]
    if len(transfers) != len(passes):
        example = (transfers or passes)[0]
        raise ScheduleError(
            f"stage {example.stage} of data-parallel rank {example.dp_rank} has {len(transfers)} "
            f"{kind} for {len(passes)} {compute}"
        )
    return list(zip(transfers, passes, strict=True))


def _unmatched(receive: _Operation) -> str:
    return (
        f"{receive.kind} {receive.sequence} of stage {receive.stage} and data-parallel rank "
        f"{receive.dp_rank} has no sender"
    )


def _groups(kept: Iterable[_Operation]) -> list[list[_Operation]]:
    """Group operations that start together: the members of a collective; all others are alone."""
    groups: dict[tuple[object, ...], list[_Operation]] = defaultdict(list)
    for each in kept:
        key: tuple[object, ...]
        if each.kind == _OF_JOB:
            key = (each.kind, each.sequence)
        elif each.kind == _OF_PIPELINE:
            key = (each.kind, each.sequence, each.dp_rank)
        elif each.kind.endswith(_COLLECTIVES) and each.kind != _ALONE:
            key = (each.kind, each.sequence, "stage", each.stage)
        else:
            key = ("alone", each.row)
        groups[key].append(each)
    return list(groups.values())


def _schedule(
    kept: list[_Operation],
    before: dict[int, list[int]],
    groups: list[list[_Operation]],
    sent: dict[int, int],
) -> JobSchedule:
    number = {each.row: index for index, each in enumerate(kept)}
    gate_of = {each.row: gate for gate, members in enumerate(groups) for each in members}
    waits = [sorted({row for each in members for row in before[each.row]}) for members in groups]
    level = _levels([{gate_of[row] for row in rows} for rows in waits])
    levels = []
    for depth in range(1 + max(level)):
        gates = [gate for gate, at in enumerate(level) if at == depth]
        # A gate that waits for nothing waits for the row of zeros behind the last operation.
        predecessors = [[number[row] for row in waits[gate]] or [len(kept)] for gate in gates]
        sizes = [len(each) for each in predecessors]
        members = [[number[each.row] for each in groups[gate]] for gate in gates]
        levels.append(
            (
                np.array([n for each in predecessors for n in each], np.intp),
                np.cumsum([0, *sizes[:-1]]).astype(np.intp),
                np.array([n for each in members for n in each], np.intp),
                np.repeat(np.arange(len(gates)), [len(each) for each in members]),
            )
        )
    peers = []
    for members_of in groups:
        rows = [each.row for each in members_of]
        rows += [sent[row] for row in rows if row in sent]
        if is_communication(members_of[0].kind):
            peers += [(number[each.row], np.array(rows, np.intp)) for each in members_of]
    keys = tuple(((e.dp_rank, e.stage, e.kind, e.sequence), e.row) for e in kept)
    return JobSchedule(keys, tuple(peers), tuple(levels))


def _levels(waits: list[set[int]]) -> list[int]:
    """Return for each gate the length of the longest chain before it."""
    after: dict[int, list[int]] = defaultdict(list)
    left = [len(gates) for gates in waits]
    for gate, gates in enumerate(waits):
        for earlier in gates:
            after[earlier].append(gate)
    level = [0] * len(waits)
    ready = [gate for gate, count in enumerate(left) if not count]
    for gate in ready:
        for later in after[gate]:
            level[later] = max(level[later], level[gate] + 1)
            left[later] -= 1
            if not left[later]:
                ready.append(later)
    if len(ready) < len(waits):
        raise ScheduleError("operations wait for each other in a circle")
    return level
