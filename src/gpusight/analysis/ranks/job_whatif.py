"""The step time of a job after changes: faster or balanced ranks, and cheaper collectives.

A job takes as long as the slowest rank of each segment, from collective to collective. A change
makes the work of ranks or the exposed transfer of collectives shorter; waits follow from that. Of
a trace of operations, the schedule of all workers is simulated instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.ranks.balance import expert_layers, expert_times, stages_of
from gpusight.analysis.ranks.job_ranks import ordered_ranks
from gpusight.analysis.ranks.job_slowdown import job_slowdown
from gpusight.analysis.ranks.match_collectives import match_collectives
from gpusight.analysis.ranks.rank_replay import CollectiveWaits, own_times
from gpusight.analysis.ranks.straggler_causes import find_stragglers
from gpusight.errors import UsageError
from gpusight.results import Field, Fmt, NotApplicable, TableResult
from gpusight.units import format_time, plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.analysis.ranks.job_ranks import UnreadRank
    from gpusight.analysis.ranks.job_slowdown import JobSlowdown
    from gpusight.analysis.ranks.match_collectives import MatchedCollectives
    from gpusight.analysis.ranks.rank_digest import RankDigest
    from gpusight.analysis.ranks.rank_replay import OwnTimes
    from gpusight.trace.intervals import Ints


COMMAND = "whatif"
AS_MEDIAN, GRADIENTS, BUCKET, OVERLAP, BALANCE = (
    "as-median",
    "gradients",
    "bucket",
    "overlap",
    "balance",
)
JOB_CHANGES = (AS_MEDIAN, GRADIENTS, BUCKET, OVERLAP, BALANCE)
"""What `gpusight whatif --ranks` can change."""
OF_GRADIENTS = ("all_reduce", "reduce_scatter")
"""Kinds of collectives that reduce gradients."""
_MIN_GRADIENT_BYTES = 64 * 1024
"""Smaller ones reduce a loss or a norm."""
_FORMATS = ("bf16", "fp16")
_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
FIELDS = (
    Field("change", "Change", Fmt.NAME, "What is different"),
    Field("alone_ns", "Saves alone", Fmt.TIME, "Saved per step by this change alone"),
    Field("saved_ns", "Incremental", Fmt.TIME, "Saved per step after the changes before it"),
    Field("step_ns", "Step then", Fmt.TIME, "Step time with this change and those before it"),
    Field("share", "% of step", Fmt.SHARE, "Incremental saving as a part of the step"),
)


@dataclass(frozen=True)
class _Model:
    """Segments (rows) by rank: work, and the exposed transfer of each collective."""

    digests: Sequence[RankDigest]
    matched: MatchedCollectives
    own: OwnTimes
    work_ns: Ints
    transfer_ns: Ints
    """Collectives (rows) by rank."""

    def own_ns(self) -> Ints:
        segments: Ints = self.work_ns.copy()
        inside = self.own.segment >= 0
        np.add.at(segments, self.own.segment[inside], self.transfer_ns[inside])
        return np.maximum(0, segments)

    def step_ns(self) -> float:
        return self.own.job_ns_of(self.own_ns())


Change = Callable[[_Model], _Model]


def ranks_whatif(
    digests: Sequence[RankDigest],
    changes: Sequence[tuple[str, str]] = (),
    unread: Sequence[UnreadRank] = (),
) -> TableResult | NotApplicable:
    """Simulate a job with changes, in order; without any, with each straggler as the median."""
    ordered, left_out = ordered_ranks(digests)
    unread = [*unread, *left_out]
    if len(ordered) < 2:
        return NotApplicable(COMMAND, "waits need captures of two ranks or more of one job")
    waits = CollectiveWaits(match_collectives(ordered))
    own = own_times(ordered, waits)
    if not len(own.steps):
        reason = "the captures do not show that the ranks wait for each other"
        return NotApplicable(COMMAND, reason, "see: gpusight ranks FILES")
    numbers = [digest.number for digest in ordered]
    notes = [f"not used: {rank.file}: {rank.reason}" for rank in unread]
    if not changes:
        late = find_stragglers(ordered, numbers, waits, own)
        changes = [(AS_MEDIAN, str(s.rank)) for s in late if s.recoverable_ns > 0]
        notes += [] if changes else ["no straggler: nothing to change; see gpusight whatif --help"]
    measured_ns = float(np.mean([s.length_ns for digest in ordered for s in digest.steps]))
    model = _model(ordered, waits, own)
    made = [_change(verb, text, model, numbers, notes) for verb, text in changes]
    names = [_name(verb, text) for verb, text in changes]
    # The simulation is off by some percent: what it saves is a part of the measured step.
    scale = measured_ns / model.step_ns()
    alone = [scale * (model.step_ns() - change(model).step_ns()) for change in made]
    after = []
    changed = model
    for change in made:
        changed = change(changed)
        after.append(scale * changed.step_ns())
    return _table(names, measured_ns, alone, after, notes, 1 / scale - 1, f"{len(ordered)} ranks")


def operations_whatif(operations: pl.DataFrame) -> TableResult | NotApplicable:
    """Simulate a job with its worst workers, its last stage, or an operation ideal."""
    slowdown = job_slowdown(operations)
    if isinstance(slowdown, NotApplicable):
        return slowdown
    step_ns = float(np.mean(slowdown.simulated_ns))
    changes = _of_operations(slowdown)
    alone = [step_ns - ns for ns in changes.values()]
    names = [*changes, "mean speed: all operations"]
    shape = f"{slowdown.stages} stages x {slowdown.dp_ranks} data-parallel ranks"
    notes = ["each change alone; the last one is all of them together"]
    launch_ns = float(np.mean(slowdown.measured_ns)) - step_ns
    notes.append(f"without launch delays of {format_time(launch_ns, digits=3)}/step")
    ideal_ns = slowdown.ideal_ns
    steps = [*changes.values(), ideal_ns]
    alone = [*alone, step_ns - ideal_ns]
    table = _table(names, step_ns, alone, steps, notes, None, shape)
    frame = table.frame.with_columns(
        saved_ns=pl.col("alone_ns"), share=pl.col("alone_ns") / step_ns
    )
    meta = {**table.meta, "slowdown": slowdown.document()}
    return TableResult(table.command, table.title, FIELDS, frame, meta, tuple(notes))


def _of_operations(slowdown: JobSlowdown) -> Mapping[str, float]:
    ranks = ", ".join(map(str, slowdown.worst_workers.ranks[:4]))
    more = ", …" if len(slowdown.worst_workers.ranks) > 4 else ""
    noun = plural("rank", len(slowdown.worst_workers.ranks))
    return {
        f"mean speed: {noun} {ranks}{more}": slowdown.worst_workers.fixed_ns,
        "mean speed: last stage": slowdown.last_stage.fixed_ns,
        "balanced stages (compute)": slowdown.balanced_stages_ns,
    }


def _table(
    names: Sequence[str],
    measured_ns: float,
    alone: Sequence[float],
    after: Sequence[float],
    notes: Sequence[str],
    error: float | None,
    of: str,
) -> TableResult:
    before = [measured_ns, *after[:-1]]
    saved = [b - a for b, a in zip(before, after, strict=False)]
    frame = pl.DataFrame(
        {
            "change": list(names),
            "alone_ns": list(alone),
            "saved_ns": saved,
            "step_ns": list(after),
            "share": [ns / measured_ns for ns in saved],
        },
        schema={
            "change": pl.String,
            **dict.fromkeys([f.key for f in FIELDS[1:]], pl.Float64),
        },
    )
    predicted_ns = after[-1] if len(after) else measured_ns
    now, then = (format_time(ns, digits=3) for ns in (measured_ns, predicted_ns))
    meta = {"step_ns": measured_ns, "predicted_ns": predicted_ns, "simulation_error": error}
    title = f"{of}: {now}/step -> {then}/step"
    return TableResult(COMMAND, title, FIELDS, frame, meta, tuple(dict.fromkeys(notes)))


def _model(digests: Sequence[RankDigest], waits: CollectiveWaits, own: OwnTimes) -> _Model:
    transfer = waits.exposed_transfer_ns.copy()
    inside = own.segment >= 0
    sums = np.zeros_like(own.own_ns)
    np.add.at(sums, own.segment[inside], transfer[inside])
    # Ranks that leave at different moments can transfer for longer than the segment lasts.
    share = np.minimum(1.0, own.own_ns / np.maximum(1, sums))
    transfer[inside] = (transfer[inside] * share[own.segment[inside]]).astype(np.int64)
    sums = np.zeros_like(own.own_ns)
    np.add.at(sums, own.segment[inside], transfer[inside])
    return _Model(digests, waits.matched, own, own.own_ns - sums, transfer)


# Changes ------------------------------------------------------------------------------------------


def _name(verb: str, text: str) -> str:
    return {
        AS_MEDIAN: f"rank {text} as fast as the median",
        GRADIENTS: f"gradients in {text}",
        BUCKET: f"gradient buckets of {text}",
        OVERLAP: "communication overlaps compute",
        BALANCE: f"balanced {text}",
    }.get(verb, verb)


def _change(
    verb: str, text: str, model: _Model, numbers: Sequence[int], notes: list[str]
) -> Change:
    if verb == AS_MEDIAN:
        if not text.isdecimal() or int(text) not in numbers:
            shown = ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
            raise UsageError(f"no rank {text}", hint=f"ranks are {shown}")
        return _as_median(numbers.index(int(text)))
    if verb == BALANCE:
        return _balance_change(text, model)
    if verb not in JOB_CHANGES:
        raise UsageError(
            f"--{verb} does not apply to all ranks of a job",
            hint=f"changes are {', '.join(f'--{name}' for name in JOB_CHANGES)}",
        )
    return _transfer_change(verb, text, model, notes)


def _transfer_change(verb: str, text: str, model: _Model, notes: list[str]) -> Change:
    if not len(model.matched):
        raise UsageError(
            f"--{verb} needs collectives, which the captures do not show",
            hint="record with torch.profiler, or with NCCL under nsys",
        )
    if verb == OVERLAP:
        if text != "communication":
            raise UsageError(f"cannot overlap {text} of ranks", hint="--overlap communication")
        notes.append("overlap: as much as there is compute; dependencies are not known")
        return _overlapped
    rows = _gradients(model.matched)
    if not len(rows):
        raise UsageError(
            f"--{verb} needs collectives of gradients with their bytes",
            hint="PyTorch records bytes of all_reduce and reduce_scatter (record_param_comms)",
        )
    latency_ns = _latency_ns(model, rows)
    if verb == GRADIENTS:
        if text not in _FORMATS:
            raise UsageError(f"no format {text}", hint=f"write one of {', '.join(_FORMATS)}")
        notes.append("gradients are assumed to be FP32 now")
        return lambda program: _rescaled(program, rows, 2.0, latency_ns)
    return _bucketed(rows, _bytes(text), latency_ns)


def _as_median(place: int) -> Change:
    def change(model: _Model) -> _Model:
        own = model.own_ns()
        usual = np.median(np.delete(own, place, axis=1), axis=1)
        later = np.maximum(0, own[:, place] - usual).astype(np.int64)
        work = model.work_ns.copy()
        work[:, place] -= later  # below 0 where it is the transfer that takes longer
        return _replaced(model, work_ns=work)

    return change


def _balance_change(text: str, model: _Model) -> Change:
    waits = CollectiveWaits(model.matched)
    if text == "ranks":
        return _balanced
    if text == "stages":
        stages = stages_of(model.digests, waits)
        if not stages:
            raise UsageError(
                "--balance stages needs sends and receives whose ranks are known",
                hint="PyTorch 2.6 or newer records them; a job trace has them too",
            )
        return lambda job: _stages_balanced(job, stages)
    if text == "experts":
        layers = expert_layers(waits)
        if not layers:
            raise UsageError(
                "--balance experts needs pairs of all-to-alls in each step",
                hint="see the collectives of: gpusight ranks FILES",
            )
        return lambda job: _experts_balanced(job, layers)
    raise UsageError(f"cannot balance {text}", hint="write --balance ranks, stages or experts")


def _stages_balanced(model: _Model, stages: Sequence[Sequence[int]]) -> _Model:
    """Give all stages the mean compute time: their ranks have as much more or less work."""
    compute = np.array([np.mean([s.compute_ns for s in d.steps]) for d in model.digests])
    mean_ns = float(np.mean([compute[list(ranks)].mean() for ranks in stages]))
    steps = max(1, len(model.own.steps))
    work = model.work_ns.astype(np.float64)
    for ranks in stages:
        own = list(ranks)
        total = np.maximum(1.0, work[:, own].sum(axis=0) / steps)
        change_ns = mean_ns - compute[own].mean()
        work[:, own] *= np.maximum(0.0, 1 + change_ns / total)
    return _replaced(model, work_ns=work.astype(np.int64))


def _experts_balanced(
    model: _Model, layers: Mapping[tuple[int, ...], Sequence[tuple[int, int]]]
) -> _Model:
    """Give the experts of each layer the mean time of their group."""
    work = model.work_ns.copy()
    waits = CollectiveWaits(model.matched)
    for members, own in layers.items():
        times = expert_times(waits, own)[:, list(members)]
        more = (times.mean(axis=1, keepdims=True) - times).astype(np.int64)
        segments = model.own.segment[[combine for _, combine in own]]
        inside = segments >= 0
        for column, rank in enumerate(members):
            np.add.at(work[:, rank], segments[inside], more[inside, column])
    return _replaced(model, work_ns=work)


def _balanced(model: _Model) -> _Model:
    mean = model.work_ns.mean(axis=1, keepdims=True).astype(np.int64)
    return _replaced(model, work_ns=np.broadcast_to(mean, model.work_ns.shape))


def _overlapped(model: _Model) -> _Model:
    """Hide exposed transfers behind the compute of their step that hides nothing yet."""
    transfer = model.transfer_ns.astype(np.float64)
    steps = np.array([-1 if step is None else step for step in model.matched.step], np.int64)
    for rank, digest in enumerate(model.digests):
        hidden = model.matched.duration_ns[:, rank] - model.matched.exposed_ns[:, rank]
        for step in digest.steps:
            own = steps == step.number
            exposed_ns = float(transfer[own, rank].sum())
            free_ns = max(0.0, step.compute_ns - float(hidden[own].sum()))
            if exposed_ns:
                transfer[own, rank] *= 1 - min(1.0, free_ns / exposed_ns)
    return _replaced(model, transfer_ns=transfer.astype(np.int64))


def _gradients(matched: MatchedCollectives) -> Ints:
    """Return the collectives that reduce gradients, where bytes are known."""
    return np.array(
        [
            at
            for at, key in enumerate(matched.keys)
            if key.kind in OF_GRADIENTS
            and (key.bytes or 0) >= _MIN_GRADIENT_BYTES
            and matched.step[at] is not None
        ],
        np.int64,
    )


def _latency_ns(model: _Model, rows: Ints) -> float:
    """Return the part of a transfer that does not depend on bytes, from those of several sizes."""
    sizes = np.array([model.matched.keys[at].bytes or 0 for at in rows], np.float64)
    times = CollectiveWaits(model.matched).transfer_ns[rows].astype(np.float64)
    distinct = np.unique(sizes)
    if len(distinct) < 2:
        return 0.0
    usual = np.array([np.median(times[sizes == size]) for size in distinct])
    slope, at_zero = np.polyfit(distinct, usual, 1)
    return float(min(max(0.0, at_zero), usual.min())) if slope > 0 else 0.0


def _rescaled(model: _Model, rows: Ints, fewer: float, latency_ns: float) -> _Model:
    """Divide the bytes of collectives; the latency stays."""
    times = np.maximum(1, CollectiveWaits(model.matched).transfer_ns[rows]).astype(np.float64)
    share = (np.minimum(latency_ns, times) + np.maximum(0, times - latency_ns) / fewer) / times
    transfer = model.transfer_ns.astype(np.float64)
    transfer[rows] *= share[:, None]
    return _replaced(model, transfer_ns=transfer.astype(np.int64))


def _bucketed(rows: Ints, max_bytes: int, latency_ns: float) -> Change:
    """Join collectives of a step in order, as long as a bucket holds them: latencies disappear."""
    if not latency_ns:
        raise UsageError(
            "--bucket needs collectives of several sizes, which show the latency",
            hint="gradients of all buckets have the same size, or time does not grow with bytes",
        )

    def change(model: _Model) -> _Model:
        transfer = model.transfer_ns.astype(np.float64)
        times = np.maximum(1, CollectiveWaits(model.matched).transfer_ns).astype(np.float64)
        filled: dict[tuple[object, ...], int] = {}
        for at in rows.tolist():
            key = model.matched.keys[at]
            bucket = (model.matched.step[at], key.kind, key.group, key.group_ranks)
            size = filled.get(bucket, 0) + (key.bytes or 0)
            joins = bucket in filled and size <= max_bytes
            filled[bucket] = size if joins else (key.bytes or 0)
            if joins:
                transfer[at] *= 1 - min(1.0, latency_ns / times[at])
        return _replaced(model, transfer_ns=transfer.astype(np.int64))

    return change


def _replaced(
    model: _Model, *, work_ns: Ints | None = None, transfer_ns: Ints | None = None
) -> _Model:
    return _Model(
        model.digests,
        model.matched,
        model.own,
        model.work_ns if work_ns is None else work_ns,
        model.transfer_ns if transfer_ns is None else transfer_ns,
    )


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(?i)(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", text)
    if match is None:
        raise UsageError(f"no size {text!r}", hint="write 100MB")
    return int(float(match[1]) * _SIZES[(match[2] or "").lower()])
