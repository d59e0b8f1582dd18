"""What the analysis of a job needs of one rank: kilobytes, whatever the size of its capture.

A digest has the ledger of each step (compute, copies, collectives, idle by cause), every
collective, and the kernels that took most time. It is written and read as JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.capture_info import device_names
from gpusight.analysis.clock_alignment import aligned
from gpusight.analysis.launch_index import launched
from gpusight.analysis.ledger.accounting import Accounting
from gpusight.analysis.ledger.ledger_entries import COMMUNICATION, COMPUTE, COPY, IdleCause
from gpusight.analysis.ranks.collective_table import collectives
from gpusight.analysis.ranks.exposed_reasons import REASONS, CollectivePieces, exposed_reasons
from gpusight.analysis.ranks.rank_identity import RankUnit, rank_units
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import EVERYTHING, Selection
from gpusight.analysis.steps.step_window import step_spans, step_window
from gpusight.naming.host_names import is_sleeping
from gpusight.naming.kernel_names import classify
from gpusight.results import NotApplicable
from gpusight.trace.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analysis.ledger.device_ledger import DeviceAccount
    from gpusight.analysis.steps.window_headline import StepWindow
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


FORMAT = "gpusight-rank-digest"
VERSION = 1
MAX_KERNELS = 40
"""Kernels of a digest, those with most time."""
WAITING = IdleCause.WAITING.name.lower()
SLEEPING = "sleeping"
"""Idle time in which the thread that launches slept: it waited for nothing but time."""
_MIN_SLEEP_NS = 20_000


class CollectiveKey(msgspec.Struct, frozen=True, array_like=True):
    """What collectives of one kind have in common."""

    kind: str
    bytes: int | None
    group: str | None
    group_ranks: str | None
    source: str


class RankCollectives(msgspec.Struct, frozen=True):
    """The collectives of a rank in the order in which they were launched; a column each."""

    keys: tuple[CollectiveKey, ...] = ()
    key: tuple[int, ...] = ()
    """Position in `keys`."""
    sequence: tuple[int | None, ...] = ()
    operation: tuple[int | None, ...] = ()
    launch_ns: tuple[int | None, ...] = ()
    start_ns: tuple[int, ...] = ()
    end_ns: tuple[int, ...] = ()
    exposed_ns: tuple[int, ...] = ()
    """Time in which nothing else ran on the GPU, each nanosecond counted for one collective."""
    step: tuple[int | None, ...] = ()
    """Number of the step that launched it; None for one outside the window."""
    peer: tuple[int | None, ...] = ()
    """The rank that a send or receive is with; empty where none is known."""
    reasons: dict[str, tuple[int, ...]] = {}
    """Exposed time by why it was not hidden; reasons that occur."""

    def __len__(self) -> int:
        """Count them."""
        return len(self.key)


class StepDigest(msgspec.Struct, frozen=True):
    """One step of a rank: the parts add up to its time."""

    number: int
    name: str
    start_ns: int
    end_ns: int
    compute_ns: int
    copy_ns: int
    collective_ns: int
    """Exposed time of collectives: with other ranks, and without compute or copies."""
    idle: dict[str, int]
    """Idle time outside collectives, by cause."""
    kernels: int
    """Kernels launched, without communication."""
    wait_ns: int = 0
    """Of `idle`, the time in which the host waited for other threads and processes: stands in for
    collectives where the capture shows none."""

    @property
    def length_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns

    @property
    def idle_ns(self) -> int:
        """Idle time outside collectives."""
        return sum(self.idle.values())


class KernelTotal(msgspec.Struct, frozen=True, array_like=True):
    """The launches of a kernel in all steps."""

    name: str
    count: int
    ns: int
    blocks: int
    """Thread blocks of all launches; 0 where the capture does not have them."""


class RankDigest(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of a job."""

    format: str = FORMAT
    version: int = VERSION
    file: str
    tool: str
    rank: int | None
    rank_from: str
    place: int
    """Position among the ranks of its file."""
    world_size: int | None
    backend: str | None
    host: int | None
    device: int
    gpu: str | None
    pid: int | None
    start_utc_ns: int | None = None
    """When its times begin, by the clock of its machine; None where the capture lacks it."""
    steps_found: str
    """How steps were found; empty where there are none and the window counts as one."""
    steps_left_out: int
    steps: tuple[StepDigest, ...]
    collectives: RankCollectives
    kernels: tuple[KernelTotal, ...]
    notes: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        """Its rank; `ordered_ranks` numbers those whose captures name none."""
        assert self.rank is not None
        return self.rank


def rank_digests(
    trace: Trace,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
) -> tuple[RankDigest, ...] | NotApplicable:
    """Summarize each rank of a capture; the keywords choose steps as everywhere."""
    units = rank_units(trace)
    if not units:
        hint = advice_for(trace.meta).gpu
        return NotApplicable("ranks", "the capture shows no GPU work", hint)
    corrected = aligned(trace)
    table = collectives(corrected)
    digests: list[RankDigest] = []
    for place, unit in enumerate(units):
        selection = _selection(unit, len(units))
        chosen = step_window(corrected, selection, steps=steps, window=window, warmup=warmup)
        if isinstance(chosen, NotApplicable):
            return chosen
        process = unit.process if len(units) > 1 else None
        accounting = Accounting(corrected, chosen.start_ns, chosen.end_ns, process)
        digests.append(_digest(corrected, table, unit, place, chosen, accounting))
    return tuple(digests)


def _selection(unit: RankUnit, units: int) -> Selection:
    if units == 1 or unit.pid is None:
        return EVERYTHING
    return Selection(process=str(unit.pid))


def _digest(
    trace: Trace,
    table: pl.DataFrame,
    unit: RankUnit,
    place: int,
    chosen: StepWindow,
    accounting: Accounting,
) -> RankDigest:
    meta = trace.meta
    account = next((a for a in accounting.accounts if a.device == unit.device), None)
    own = _own(table, unit)
    bounds = _bounds(trace, chosen)
    numbers = [s.number for s in chosen.steps] or [0]
    names = [s.name for s in chosen.steps] or ["window"]
    parts = _exposed(accounting, account, own, bounds)
    kernels = _kernels(trace, unit, chosen)
    waits = _host_waits(trace, unit, account, bounds) if own.is_empty() else None
    return RankDigest(
        file=meta.path,
        tool=meta.tool,
        rank=unit.rank,
        rank_from=unit.rank_from,
        place=place,
        world_size=meta.world_size,
        backend=meta.backend,
        host=unit.host,
        device=unit.device,
        gpu=device_names(trace).get(unit.device),
        pid=unit.pid,
        start_utc_ns=meta.start_utc_ns,
        steps_found=chosen.how,
        steps_left_out=len(chosen.left_out),
        steps=_steps(account, bounds, numbers, names, parts, kernels, waits),
        collectives=_collectives(own, chosen, parts),
        kernels=_totals(kernels),
        notes=tuple(dict.fromkeys((*chosen.notes, *trace.losses))),
    )


def _own(table: pl.DataFrame, unit: RankUnit) -> pl.DataFrame:
    """Return the collectives of a rank, in the order in which they were launched."""
    own = table
    if unit.process is not None:
        own = own.filter(pl.col("process").is_null() | (pl.col("process") == unit.process))
    if unit.by_device:
        own = own.filter(pl.col("device").is_null() | (pl.col("device") == unit.device))
    issued = pl.coalesce("launch_ns", "start_ns")
    return own.sort(issued, "start_ns", maintain_order=True)


def _bounds(trace: Trace, chosen: StepWindow) -> tuple[Ints, Ints]:
    if chosen.steps:
        return step_spans(trace, chosen.steps)
    return np.array([chosen.start_ns]), np.array([chosen.end_ns])


# Collectives --------------------------------------------------------------------------------------


class _ExposedParts(msgspec.Struct, frozen=True):
    """Exposed time in collectives: by collective, and by step the idle time in them by cause."""

    by_collective: Ints
    by_step: Ints
    """Exposed time of each step."""
    idle: Ints
    """Steps (rows) by cause of idle time (columns)."""
    reasons: Ints
    """Collectives (rows) by why they are exposed (columns)."""


def _exposed(
    accounting: Accounting,
    account: DeviceAccount | None,
    own: pl.DataFrame,
    bounds: tuple[Ints, Ints],
) -> _ExposedParts:
    """Measure when collectives ran and nothing else did; overlapping ones share no time."""
    steps = len(bounds[0])
    by_collective = np.zeros(own.height, np.int64)
    by_step, idle = np.zeros(steps, np.int64), np.zeros((steps, len(IdleCause)), np.int64)
    if account is None or own.is_empty():
        reasons = np.zeros((own.height, len(REASONS)), np.int64)
        return _ExposedParts(by_collective, by_step, idle, reasons)
    start, end = (own[c].to_numpy() for c in ("start_ns", "end_ns"))
    order = np.argsort(start, kind="stable")
    reach = np.maximum.accumulate(end[order])
    start, end = start[order].copy(), end[order]
    start[1:] = np.maximum(start[1:], reach[:-1])
    kept = start < end
    row, start, end = order[kept], start[kept], end[kept]
    # Cut at the ends of steps, so that each part lies in one step or outside of all.
    cuts = np.unique(np.concatenate((start, end, *bounds)))
    at = np.searchsorted(start, cuts[:-1], side="right") - 1
    inside = (at >= 0) & (cuts[:-1] < end[at])
    starts, ends, row = cuts[:-1][inside], cuts[1:][inside], row[at[inside]]
    spent = account.between(starts, ends)
    columns = {name: column for column, name in enumerate(account.names)}
    causes = spent[:, [columns[cause.entry] for cause in IdleCause]]
    communication = columns.get(COMMUNICATION)
    exposed = causes.sum(axis=1) + (0 if communication is None else spent[:, communication])
    np.add.at(by_collective, row, exposed)
    step = np.searchsorted(bounds[0], starts, side="right") - 1
    held = (step >= 0) & (starts < bounds[1][step])
    np.add.at(by_step, step[held], exposed[held])
    np.add.at(idle, step[held], causes[held])
    reasons = exposed_reasons(accounting, account, own, CollectivePieces(row, starts, ends))
    return _ExposedParts(by_collective, by_step, idle, reasons)


def _collectives(own: pl.DataFrame, chosen: StepWindow, parts: _ExposedParts) -> RankCollectives:
    fields = list(CollectiveKey.__struct_fields__)
    keys = own.select(fields).unique(maintain_order=True).with_row_index("key")
    key = own.join(keys, on=fields, nulls_equal=True, how="left", maintain_order="left")["key"]
    issued = own.select(pl.coalesce("launch_ns", "start_ns")).to_series().to_numpy()
    return RankCollectives(
        keys=tuple(CollectiveKey(*row) for row in keys.select(fields).iter_rows()),
        key=tuple(key.to_list()),
        sequence=tuple(own["sequence"].to_list()),
        operation=tuple(own["operation"].to_list()),
        launch_ns=tuple(own["launch_ns"].to_list()),
        start_ns=tuple(own["start_ns"].to_list()),
        end_ns=tuple(own["end_ns"].to_list()),
        exposed_ns=tuple(parts.by_collective.tolist()),
        step=_step_numbers(issued, chosen),
        peer=tuple(own["peer"].to_list()) if own["peer"].count() else (),
        reasons={
            reason: tuple(parts.reasons[:, at].tolist())
            for at, reason in enumerate(REASONS)
            if parts.reasons[:, at].any()
        },
    )


def _step_numbers(issued: Ints, chosen: StepWindow) -> tuple[int | None, ...]:
    """Return the step in which each collective was launched."""
    if not chosen.steps:
        inside = (issued >= chosen.start_ns) & (issued < chosen.end_ns)
        return tuple(0 if within else None for within in inside)
    starts = np.array([s.start_ns for s in chosen.steps], np.int64)
    ends = np.append(starts[1:], chosen.steps[-1].end_ns)  # time between steps is of the earlier
    at = np.searchsorted(starts, issued, side="right") - 1
    inside = (at >= 0) & (issued < ends[at])
    return tuple(
        chosen.steps[place].number if within else None
        for place, within in zip(at, inside, strict=True)
    )


# Steps --------------------------------------------------------------------------------------------


def _steps(
    account: DeviceAccount | None,
    bounds: tuple[Ints, Ints],
    numbers: Sequence[int],
    names: Sequence[str],
    parts: _ExposedParts,
    kernels: pl.DataFrame,
    waits: tuple[Ints, Ints] | None,
) -> tuple[StepDigest, ...]:
    starts, ends = bounds
    entries = () if account is None else account.names
    spent = np.zeros((len(starts), 0), np.int64) if account is None else account.between(*bounds)
    group = [name.partition("/")[0] for name in entries]
    launched_in = dict(kernels.group_by("step").agg(pl.col("count").sum()).iter_rows())

    def total(word: str) -> Ints:
        columns = [column for column, name in enumerate(group) if name == word]
        sums: Ints = spent[:, columns].sum(axis=1)
        return sums

    compute, copy = total(COMPUTE), total(COPY)
    digests = []
    for place, (number, name) in enumerate(zip(numbers, names, strict=True)):
        idle = {}
        for cause in IdleCause if entries else ():
            ns = int(spent[place, entries.index(cause.entry)] - parts.idle[place, cause])
            if ns > 0:
                idle[cause.name.lower()] = ns
        wait_ns = 0
        if waits is not None:
            wait_ns, slept_ns = int(waits[0][place]), int(waits[1][place])
            idle |= {WAITING: wait_ns, SLEEPING: slept_ns}
            idle = {cause: ns for cause, ns in idle.items() if ns > 0}
        digests.append(
            StepDigest(
                number,
                name,
                int(starts[place]),
                int(ends[place]),
                int(compute[place]),
                int(copy[place]),
                int(parts.by_step[place]),
                idle,
                launched_in.get(place, 0),
                wait_ns,
            )
        )
    return tuple(digests)


def _host_waits(
    trace: Trace, unit: RankUnit, account: DeviceAccount | None, bounds: tuple[Ints, Ints]
) -> tuple[Ints, Ints]:
    """Return the idle time of each step in which the host waited for others, and in which it slept.

    A thread that sleeps waits for time, and not for another rank.
    """
    steps = len(bounds[0])
    if account is None:
        return np.zeros(steps, np.int64), np.zeros(steps, np.int64)
    column = account.names.index(IdleCause.WAITING.entry)
    waiting = account.between(*bounds)[:, column]
    slept = np.zeros(steps, np.int64)
    spans = _sleeps(trace, unit)
    if len(spans):
        cuts = np.unique(np.concatenate((spans.starts, spans.ends, *bounds)))
        at = np.searchsorted(spans.starts, cuts[:-1], side="right") - 1
        inside = (at >= 0) & (cuts[:-1] < spans.ends[at])
        starts, ends = cuts[:-1][inside], cuts[1:][inside]
        asleep = account.between(starts, ends)[:, column]
        step = np.searchsorted(bounds[0], starts, side="right") - 1
        held = (step >= 0) & (starts < bounds[1][step])
        np.add.at(slept, step[held], asleep[held])
    return waiting - slept, slept


def _sleeps(trace: Trace, unit: RankUnit) -> Intervals:
    """Return when threads that launch GPU work slept; others, such as monitors, always do."""
    if not trace.has("os_calls"):
        return Intervals.empty()
    work = launched(trace).drop_nulls("thread")
    if unit.process is not None:
        work = work.filter(pl.col("process") == unit.process)
    threads = work["thread"].unique().to_list()
    calls = trace.table("os_calls", ["start_ns", "end_ns", "name", "thread"])
    codes = [code for code, name in enumerate(names_of(calls["name"])) if is_sleeping(name)]
    slept = calls.filter(
        pl.col("name").to_physical().is_in(codes),
        pl.col("thread").is_in(threads),
        pl.col("end_ns") - pl.col("start_ns") >= _MIN_SLEEP_NS,
    )
    return Intervals.from_arrays(slept["start_ns"].to_numpy(), slept["end_ns"].to_numpy())


# Kernels ------------------------------------------------------------------------------------------


def _kernels(trace: Trace, unit: RankUnit, chosen: StepWindow) -> pl.DataFrame:
    """Sum the kernels of the window by step (its place) and name, without communication."""
    schema = {"step": pl.Int64, "name": pl.String, "count": pl.Int64, "ns": pl.Int64}
    if not trace.has("kernels"):
        return pl.DataFrame(schema={**schema, "blocks": pl.Int64})
    grid = ["grid_x", "grid_y", "grid_z"]
    columns = ["start_ns", "end_ns", "name", "process", "device", *grid]
    own = trace.table("kernels", columns)
    starts = np.array([s.start_ns for s in chosen.steps] or [chosen.start_ns], np.int64)
    last = max((s.end_ns for s in chosen.steps), default=chosen.end_ns)
    times = launched(trace).filter(pl.col("table") == 0).sort("row")["launch_ns"]
    own = own.with_columns(
        pl.Series("step", np.searchsorted(starts, times.to_numpy(), side="right") - 1, pl.Int64),
        times.alias("launch_ns"),
    )
    wanted = (pl.col("step") >= 0) & (pl.col("launch_ns") < last)
    wanted &= pl.col("device") == unit.device
    if unit.process is not None:
        wanted &= pl.col("process").is_null() | (pl.col("process") == unit.process)
    codes = [
        code
        for code, name in enumerate(names_of(own["name"]))
        if classify(name).category == COMMUNICATION
    ]
    own = own.filter(wanted, ~pl.col("name").to_physical().is_in(codes))
    return own.group_by("step", "name", maintain_order=True).agg(
        count=pl.len().cast(pl.Int64),
        ns=(pl.col("end_ns") - pl.col("start_ns")).sum(),
        blocks=pl.reduce(lambda a, b: a * b, [pl.col(c) for c in grid]).sum(),
    )


def _totals(kernels: pl.DataFrame) -> tuple[KernelTotal, ...]:
    sums = (
        kernels.with_columns(pl.col("name").cast(pl.String))
        .group_by("name")
        .agg(pl.col("count", "ns", "blocks").sum())
    )
    longest = sums.sort("ns", "name", descending=[True, False]).head(MAX_KERNELS)
    return tuple(KernelTotal(*row) for row in longest.iter_rows())


# Files --------------------------------------------------------------------------------------------


def encode_digests(digests: Sequence[RankDigest]) -> bytes:
    """Write digests as JSON, one a line; the same digests are the same bytes."""
    return b"".join(msgspec.json.encode(digest) + b"\n" for digest in digests)


def decode_digests(data: bytes) -> tuple[RankDigest, ...]:
    """Read digests; raises `ValueError` where it is something else, or of another version."""
    try:
        digests = tuple(
            msgspec.json.decode(line, type=RankDigest) for line in data.splitlines() if line
        )
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    for digest in digests:
        if digest.format != FORMAT or digest.version != VERSION:
            raise ValueError(f"{digest.format} version {digest.version} is not {VERSION}")
    return digests
