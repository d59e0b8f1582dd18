"""All ranks of a job in one answer: what each did, who waits for whom, and what it costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gpusight.analysis.ranks.balance import Balance, balance
from gpusight.analysis.ranks.communication import Communication, communication
from gpusight.analysis.ranks.job_slowdown import JobSlowdown, job_slowdown
from gpusight.analysis.ranks.match_collectives import match_collectives
from gpusight.analysis.ranks.one_job import MAX_APART_NS, format_apart, one_job, span_of
from gpusight.analysis.ranks.parallelism import parallelism
from gpusight.analysis.ranks.rank_clocks import RankClock, rank_clocks
from gpusight.analysis.ranks.rank_digest import WAITING
from gpusight.analysis.ranks.rank_identity import ORDER
from gpusight.analysis.ranks.rank_replay import CollectiveWaits, own_times, waits_of_host
from gpusight.analysis.ranks.rank_steps import StepTimeline, step_timeline, steps_by_rank
from gpusight.analysis.ranks.straggler_causes import find_stragglers, noise_ns
from gpusight.results import NotApplicable
from gpusight.units import format_share, natural_key, plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from gpusight.analysis.ranks.match_collectives import MatchedCollectives
    from gpusight.analysis.ranks.rank_digest import RankDigest
    from gpusight.analysis.ranks.rank_replay import OwnTimes
    from gpusight.analysis.ranks.straggler_causes import Straggler
    from gpusight.trace.intervals import Flags, Ints


COMMAND = "ranks"
ORDER_OF_FILES = "order of files"
_MAX_LISTED = 8
_HOST_WAITS = "waits of the host"
_MAX_SIMULATION_ERROR = 0.1
"""A simulation that is off by more is reported."""


@dataclass(frozen=True)
class UnreadRank:
    """A capture, or a rank of one, that is not part of the answer, and why."""

    file: str
    reason: str
    rank: int | None = None

    def document(self) -> dict[str, Any]:
        """Return plain objects, for JSON."""
        return {"file": self.file, "rank": self.rank, "reason": self.reason}


@dataclass(frozen=True)
class RankSummary:
    """One rank; times are per step. The parts of the step add up to it."""

    rank: int
    rank_from: str
    host: int | None
    device: int
    gpu: str | None
    file: str
    steps: int
    step_ns: float
    compute_ns: float
    copy_ns: float
    transfer_ns: float
    """Exposed time of collectives without the wait; with it, where the wait is not known."""
    wait_ns: float | None
    """None where no collective could be matched."""
    hidden_wait_ns: float | None
    idle_ns: float
    idle: Mapping[str, float]
    caused_wait_ns: float | None
    last: int | None
    """Collectives in which it arrives last; None where none are known."""
    collectives: int

    def document(self) -> dict[str, Any]:
        """Return plain objects, for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {
            "idle": dict(self.idle)
        }


@dataclass(frozen=True)
class JobStep:
    """One step of the job."""

    step: int
    step_ns: int
    """Simulated: the slowest rank of each segment decides."""
    slowest: int
    """The rank with the longest own time."""
    late_ns: int
    """How much longer than the median of the others that is."""


@dataclass(frozen=True)
class JobRanks:
    """The answer of `gpusight ranks`."""

    meta: Mapping[str, Any]
    ranks: tuple[RankSummary, ...]
    stragglers: tuple[Straggler, ...]
    steps: tuple[JobStep, ...]
    unread: tuple[UnreadRank, ...] = ()
    clocks: tuple[RankClock, ...] = ()
    """Each rank's clock against that of the first rank; empty where no collective matches."""
    slowdown: JobSlowdown | None = None
    """Slowdown by cause and worker, of a trace with the operations of all workers."""
    by_step: pl.DataFrame | None = None
    """A row per rank and step, of `steps_by_rank`; None for a trace of operations."""
    latest: StepTimeline | None = None
    """The step in which a rank was latest, all ranks on one clock; None where nothing aligns."""
    communication: Communication | None = None
    """Overlap, why collectives are exposed, sends and receives; None for a trace of operations."""
    balance: Balance | None = None
    """Stages of a pipeline and experts; None for a trace of operations."""
    digests: tuple[RankDigest, ...] = ()
    """What the answer was made of, in the order of `ranks`."""
    notes: tuple[str, ...] = ()
    title: str = "Ranks"

    def document(self) -> dict[str, Any]:
        """Return plain objects, for JSON."""
        return {
            "meta": {**self.meta, "notes": list(self.notes)},
            "ranks": [rank.document() for rank in self.ranks],
            "stragglers": [straggler.document() for straggler in self.stragglers],
            "steps": [asdict(step) for step in self.steps],
            "clocks": [clock.document() for clock in self.clocks],
            "slowdown": None if self.slowdown is None else self.slowdown.document(),
            "unread": [rank.document() for rank in self.unread],
            "communication": None if self.communication is None else self.communication.document(),
            **(self.balance or Balance(None, ())).document(),
        }


def job_ranks(
    digests: Sequence[RankDigest], unread: Sequence[UnreadRank] = ()
) -> JobRanks | NotApplicable:
    """Compare the ranks of a job; their order does not matter."""
    ordered, left_out = ordered_ranks(digests)
    unread = tuple(sorted((*unread, *left_out), key=lambda rank: (rank.file, rank.rank or 0)))
    if not ordered:
        reasons = _reasons(unread) or "no files"
        return NotApplicable(
            COMMAND, f"no rank could be read ({reasons})", "see: gpusight info FILE"
        )
    matched = match_collectives(ordered)
    waits = CollectiveWaits(matched)
    own = own_times(ordered, waits)
    numbers = [digest.number for digest in ordered]
    ranks = _summaries(ordered, waits, own)
    step_ns = float(np.mean([rank.step_ns for rank in ranks]))
    # What the simulation saves is given as a part of the measured step, the one that is shown.
    scale = step_ns / own.job_ns if len(own.steps) and own.job_ns else 1.0
    stragglers = tuple(
        replace(straggler, recoverable_ns=straggler.recoverable_ns * scale)
        for straggler in find_stragglers(ordered, numbers, waits, own)
    )
    meta = _meta(ordered, waits, own, step_ns, stragglers)
    clocks = _clocks(ordered, matched)
    return JobRanks(
        meta,
        ranks,
        stragglers,
        _steps(own, numbers),
        unread,
        clocks=clocks,
        by_step=steps_by_rank(ordered, numbers, waits, own),
        latest=step_timeline(ordered, numbers, waits, own, clocks),
        communication=communication(ordered, waits),
        balance=balance(ordered, waits),
        digests=tuple(ordered),
        notes=tuple(_notes(ordered, meta, unread, waits)),
    )


def ranks_of_operations(operations: pl.DataFrame, file: str) -> JobRanks | NotApplicable:
    """Give the slowdown of a job whose trace has the operations of all workers."""
    slowdown = job_slowdown(operations)
    if isinstance(slowdown, NotApplicable):
        return slowdown
    meta = {
        "command": COMMAND,
        "file": file,
        "ranks": slowdown.stages * slowdown.dp_ranks,
        "stages": slowdown.stages,
        "dp_ranks": slowdown.dp_ranks,
        "steps": len(slowdown.steps),
        "step_ns": float(np.mean(slowdown.measured_ns)),
        "simulated_step_ns": float(np.mean(slowdown.simulated_ns)),
        "balanced_step_ns": slowdown.ideal_ns,
    }
    return JobRanks(meta, (), (), (), slowdown=slowdown)


# Which ranks --------------------------------------------------------------------------------------


def ordered_ranks(
    digests: Sequence[RankDigest],
) -> tuple[list[RankDigest], list[UnreadRank]]:
    """Number and sort the ranks of one job; leave out those of others, and ranks given twice."""
    chosen, others = one_job(sorted(digests, key=lambda d: (natural_key(d.file), d.place)))
    left_out = [UnreadRank(digest.file, reason, digest.rank) for digest, reason in others]
    digests = sorted(chosen, key=lambda d: (natural_key(d.file), d.place))
    kept: dict[int, RankDigest] = {}
    for digest in _number_ranks(digests):
        rank = digest.number
        if rank in kept:
            reason = f"rank {rank} again, as in {PurePath(kept[rank].file).name}"
            left_out.append(UnreadRank(digest.file, reason, rank))
        else:
            kept[rank] = digest
    ordered = sorted(kept.values(), key=lambda digest: (digest.number, digest.file, digest.place))
    return ordered, left_out


def _number_ranks(digests: Sequence[RankDigest]) -> list[RankDigest]:
    """Give numbers to ranks that have none, in the order of files and processes."""
    files = {digest.file for digest in digests}
    by_order = [d for d in digests if d.rank is None or (d.rank_from == ORDER and len(files) > 1)]
    taken = {d.rank for d in digests if d not in by_order}
    free = (number for number in range(len(digests) + len(taken)) if number not in taken)
    numbers = {id(digest): number for digest, number in zip(by_order, free, strict=False)}
    return [
        msgspec.structs.replace(d, rank=numbers[id(d)], rank_from=ORDER_OF_FILES)
        if id(d) in numbers
        else d
        for d in digests
    ]


# What each rank did -------------------------------------------------------------------------------


def _summaries(
    digests: Sequence[RankDigest], waits: CollectiveWaits, own: OwnTimes
) -> tuple[RankSummary, ...]:
    matched = waits.matched
    inside = np.array([step is not None for step in matched.step], np.bool_)
    host_waits = _host_waits(digests) if waits_of_host(digests) else None
    for_missing = [int(found.wait_ns.sum()) for found in own.missing] or [0] * len(digests)
    exposed = waits.exposed_wait_ns[inside]
    if host_waits is None:
        caused = np.zeros(len(digests), np.int64)
        np.add.at(caused, waits.last[inside], exposed.sum(axis=1))
        wait_ns = exposed.sum(axis=0) + for_missing
    else:
        caused, wait_ns = host_waits.caused, host_waits.wait
    all_wait_ns = waits.wait_ns[inside].sum(axis=0) + for_missing
    steps = np.array([max(1, len(d.steps)) for d in digests])
    summaries = tuple(
        _summary(
            digest,
            rank,
            wait_ns=float(wait_ns[rank]),
            all_wait_ns=float(all_wait_ns[rank]),
            caused_ns=float(caused[rank]) / float(np.median(steps)),
            waits=waits,
            inside=inside,
            has_host_waits=host_waits is not None,
        )
        for rank, digest in enumerate(digests)
    )
    if inside.any() or host_waits is not None:
        return summaries
    return tuple(
        replace(rank, wait_ns=None, hidden_wait_ns=None, caused_wait_ns=None) for rank in summaries
    )


def _summary(
    digest: RankDigest,
    place: int,
    *,
    wait_ns: float,
    all_wait_ns: float,
    caused_ns: float,
    waits: CollectiveWaits,
    inside: Flags,
    has_host_waits: bool,
) -> RankSummary:
    count = max(1, len(digest.steps))
    took_part = waits.matched.present[inside, place]
    idle: dict[str, float] = {}
    for step in digest.steps:
        for cause, ns in step.idle.items():
            idle[cause] = idle.get(cause, 0.0) + ns / count
    host_wait_ns = sum(step.wait_ns for step in digest.steps) / count if has_host_waits else 0.0
    idle_ns = sum(idle.values()) - host_wait_ns
    collective_ns = sum(step.collective_ns for step in digest.steps) / count + host_wait_ns
    wait_ns = min(wait_ns / count, collective_ns)
    if host_wait_ns:
        idle.pop(WAITING, None)
    return RankSummary(
        rank=digest.number,
        rank_from=digest.rank_from,
        host=digest.host,
        device=digest.device,
        gpu=digest.gpu,
        file=digest.file,
        steps=len(digest.steps),
        step_ns=sum(step.length_ns for step in digest.steps) / count,
        compute_ns=sum(step.compute_ns for step in digest.steps) / count,
        copy_ns=sum(step.copy_ns for step in digest.steps) / count,
        transfer_ns=collective_ns - wait_ns,
        wait_ns=wait_ns,
        hidden_wait_ns=max(0.0, all_wait_ns / count - wait_ns) if not host_wait_ns else 0.0,
        idle_ns=idle_ns,
        idle=dict(sorted(idle.items(), key=lambda item: -item[1])),
        caused_wait_ns=caused_ns,
        last=int((waits.last[inside] == place)[took_part].sum()) if took_part.any() else None,
        collectives=int(took_part.sum()),
    )


@dataclass(frozen=True)
class _HostWaits:
    """Waits of the host, in place of collectives."""

    wait: Ints
    caused: Ints


def _host_waits(digests: Sequence[RankDigest]) -> _HostWaits:
    """The rank that waits least in a step is the one that the others wait for."""
    by_number = [{step.number: step.wait_ns for step in digest.steps} for digest in digests]
    common = sorted(set.intersection(*(set(known) for known in by_number)))
    waited = np.array([[known[n] for known in by_number] for n in common], np.int64)
    waited = waited.reshape(len(common), len(digests))
    caused = np.zeros(len(digests), np.int64)
    if len(common) and len(digests) > 1:
        waits = waited - waited.min(axis=1, keepdims=True)
        np.add.at(caused, waited.argmin(axis=1), waits.sum(axis=1))
    else:
        waits = np.zeros_like(waited)
    # Steps that only some ranks have count like the others.
    scale = np.array([len(d.steps) for d in digests]) / max(1, len(common))
    caused = (caused * np.median(scale)).astype(np.int64)
    return _HostWaits((waits.sum(axis=0) * scale).astype(np.int64), caused)


def _steps(own: OwnTimes, numbers: Sequence[int]) -> tuple[JobStep, ...]:
    steps = []
    for place, number in enumerate(own.steps.tolist()):
        segments = own.own_ns[own.step == number]
        slowest = int(segments.sum(axis=0).argmax())
        late_ns = int(own.late_ns[place, slowest])
        length_ns = int(segments.max(axis=1).sum())
        steps.append(JobStep(number, length_ns, numbers[slowest], late_ns))
    return tuple(steps)


def _clocks(digests: Sequence[RankDigest], matched: MatchedCollectives) -> tuple[RankClock, ...]:
    """Compare clocks where times of different files are of one origin: that of UTC."""
    starts = [digest.start_utc_ns for digest in digests]
    if len({digest.file for digest in digests}) == 1:
        starts = [0] * len(digests)
    known = [start for start in starts if start is not None]
    if not len(matched) or len(known) < len(starts):
        return ()
    origin = np.array(known, np.int64) - min(known)
    numbers = [digest.number for digest in digests]
    return tuple(
        rank_clocks(
            matched.start_ns + origin, matched.end_ns + origin, matched.present, ranks=numbers
        )
    )


# Meta and notes -----------------------------------------------------------------------------------


def _meta(
    digests: Sequence[RankDigest],
    waits: CollectiveWaits,
    own: OwnTimes,
    measured_ns: float,
    stragglers: Sequence[Straggler],
) -> dict[str, Any]:
    world = {d.world_size for d in digests if d.world_size is not None}
    size = max(world, default=None)
    present = {d.rank for d in digests}
    simulated_ns = own.job_ns if len(own.steps) else None
    matched = waits.matched
    fixed = [s.place for s in stragglers if s.recoverable_ns > 0]
    return {
        "command": COMMAND,
        "ranks": len(digests),
        "world_size": size,
        "missing_ranks": [] if size is None else sorted(set(range(size)) - present),
        "tools": sorted({d.tool for d in digests}),
        "backend": next((d.backend for d in digests if d.backend), None),
        "rank_from": sorted({d.rank_from for d in digests}),
        "steps": len(own.steps),
        "steps_found": sorted({d.steps_found for d in digests}),
        "step_ns": measured_ns,
        "simulated_step_ns": simulated_ns,
        "simulation_error": simulated_ns / measured_ns - 1
        if simulated_ns and measured_ns
        else None,
        "balanced_step_ns": own.simulate(fixed) / simulated_ns * measured_ns
        if simulated_ns
        else None,
        "noise_ns": noise_ns(own, stragglers) if len(digests) > 1 else None,
        "collectives": len(matched),
        "collectives_unmatched": matched.unmatched,
        "parallelism": [axis.document() for axis in parallelism(digests)],
        "matched_by": list(matched.how) or ([_HOST_WAITS] if waits_of_host(digests) else []),
    }


def _notes(
    digests: Sequence[RankDigest],
    meta: Mapping[str, Any],
    unread: Sequence[UnreadRank],
    waits: CollectiveWaits,
) -> list[str]:
    """Return what limits the answer."""
    notes = [f"not read: {_short_reason(rank)}" for rank in unread[:_MAX_LISTED]]
    if len(unread) > _MAX_LISTED:
        notes.append(f"not read: {len(unread) - _MAX_LISTED} more files")
    if len(digests) == 1:
        notes.append("only one rank: who waits for whom needs captures of the others too")
    missing = meta["missing_ranks"]
    if missing and len(digests) > 1:
        notes.append(
            f"{len(missing)} of {meta['world_size']} ranks "
            f"{'are' if len(missing) > 1 else 'is'} missing ({_number_ranges(missing)}): waits for "
            f"{'them' if len(missing) > 1 else 'it'} are known where equal collectives of other "
            "groups show the transfer; else they count as transfer, or for a rank that is here"
        )
    if meta["world_size"] is not None and len(digests) > meta["world_size"]:
        notes.append(
            f"{len(digests)} ranks are given, but the job has {meta['world_size']}: some are of "
            "another job, or one rank recorded twice"
        )
    notes += _time_notes(digests)
    if len(meta["tools"]) > 1:
        tools = " and ".join(meta["tools"])
        notes.append(f"ranks were recorded with {tools}, whose overheads differ")
    if len(digests) > 1:
        notes += _match_notes(digests, meta, waits)
        notes.append("times are as recorded, with the overhead of the profiler")
    return notes


def _reasons(unread: Sequence[UnreadRank]) -> str:
    """List why captures cannot be read, each reason once."""
    files: dict[str, list[str]] = {}
    for rank in unread:
        files.setdefault(_short_reason(rank).partition(": ")[2], []).append(rank.file)
    texts = [
        f"{own[0]}{f' and {len(own) - 1} more' if len(own) > 1 else ''}: {reason}"
        for reason, own in files.items()
    ]
    return "; ".join(texts[:_MAX_LISTED])


def _short_reason(rank: UnreadRank) -> str:
    """Name a file without its folder, and the reason without the file."""
    reason = rank.reason.replace(f"{rank.file} ", "").replace(f"{rank.file}: ", "")
    return f"{PurePath(rank.file).name}: {reason}"


def _match_notes(
    digests: Sequence[RankDigest], meta: Mapping[str, Any], waits: CollectiveWaits
) -> list[str]:
    notes = []
    with_collectives = sum(1 for d in digests if len(d.collectives))
    if not len(waits.matched):
        if with_collectives > 1:
            notes.append(
                "no collective of one rank is one of another: other groups, another job or time?"
            )
        elif meta["matched_by"]:
            notes.append(
                "the captures show no collectives: the host's waits for other processes stand in"
            )
        else:
            notes.append("the captures show no collectives: waits for other ranks are not known")
    most = max(len(d.steps) for d in digests)
    if meta["matched_by"] and not meta["steps"]:
        first, last = min(digests, key=_first_step), max(digests, key=_first_step)
        notes.append(
            f"no step is one of all ranks: rank {first.rank} has {_step_range(first)}, rank "
            f"{last.rank} has {_step_range(last)}; waits are not compared"
        )
    elif meta["matched_by"] and meta["steps"] < most:
        notes.append(f"{meta['steps']} of {most} steps are compared: not all ranks have the others")
    error = meta["simulation_error"]
    if error is not None and abs(error) > _MAX_SIMULATION_ERROR:
        notes.append(f"simulation error {format_share(abs(error))}: savings are uncertain")
    return notes


def _first_step(digest: RankDigest) -> int:
    return digest.steps[0].number


def _step_range(digest: RankDigest) -> str:
    return f"steps {_number_ranges([step.number for step in digest.steps])}"


def _time_notes(digests: Sequence[RankDigest]) -> list[str]:
    """Return which ranks were recorded at another time than most: of another run."""
    known = {digest.number: span_of(digest) for digest in digests}
    spans = {rank: span for rank, span in known.items() if span is not None}
    if len(spans) < 2:
        return []
    middle = float(np.median([begin for begin, _ in spans.values()]))
    usual = min(spans.values(), key=lambda span: abs(span[0] - middle))
    apart = {rank: max(usual[0] - end, begin - usual[1]) for rank, (begin, end) in spans.items()}
    others = [rank for rank, ns in apart.items() if ns > MAX_APART_NS]
    if not others:
        return []
    gap = format_apart(max(apart.values()))
    names = f"{plural('rank', len(others))} {_number_ranges(others)}"
    return [f"{names} recorded up to {gap} apart from the others: of another run?"]


def _number_ranges(numbers: Sequence[int]) -> str:
    """Write numbers as ranges: `2 to 7, 9`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in runs]
    return ", ".join(texts[:_MAX_LISTED]) + (", …" if len(texts) > _MAX_LISTED else "")
