"""Tables about the communication of a job: what is exposed and why, stages, experts, pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.results import Field, Fmt, TableResult
from gpusight.units import format_bytes, format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.analysis.ranks.communication import ExposedCollective
    from gpusight.analysis.ranks.job_ranks import JobRanks


EXPOSED_FIELDS = (
    Field("collective", "Collective", Fmt.NAME, "Kind, size, and which one of a step"),
    Field("per_step", "Per step", Fmt.REAL, "How often a rank runs it", shown=False),
    Field("duration_ns", "Duration", Fmt.TIME, "Per step"),
    Field("exposed_ns", "Exposed", Fmt.TIME, "Neither compute nor copies run, per step"),
    Field("wait_ns", "Wait", Fmt.TIME, "Of the exposed time, the wait for other ranks"),
    Field("hidden", "Overlapped", Fmt.SHARE, "Part overlapped by compute, copies or collectives"),
    Field("reason", "Exposed because of", Fmt.TEXT, "Why most of the exposed time is exposed"),
)
_STAGE_FIELDS = (
    Field("stage", "Stage", Fmt.ID, "From the first one"),
    Field("ranks", "Ranks", Fmt.TEXT, "Ranks of the stage"),
    Field("compute_ns", "Compute", Fmt.TIME, "Per step and rank"),
    Field("bubble_ns", "Bubble", Fmt.TIME, "Exposed waits for other stages, per step and rank"),
)
_EXPERT_FIELDS = (
    Field("rank", "Rank", Fmt.ID, "Which rank"),
    Field("expert_ns", "Experts", Fmt.TIME, "From dispatch to combine, all layers, per step"),
    Field("relative", "Of mean", Fmt.SHARE, "Compared with the mean of its group"),
)
_PAIR_FIELDS = (
    Field("source", "From", Fmt.ID, "Rank that sends"),
    Field("target", "To", Fmt.ID, "Rank that receives"),
    Field("per_step", "Per step", Fmt.REAL, "Sends per step"),
    Field("bytes", "Bytes", Fmt.BYTES, "Per step"),
    Field("transfer_ns", "Transfer", Fmt.TIME, "Mean time of one, without waits"),
    Field("source_wait_ns", "Sender waits", Fmt.TIME, "Exposed, per step"),
    Field("target_wait_ns", "Receiver waits", Fmt.TIME, "Exposed, per step"),
)
_MIN_EXPOSED_SHARE = 0.005
"""Part of the step that a collective must be exposed for to be listed."""
_TYPES = {Fmt.ID: pl.Int64, Fmt.TEXT: pl.String, Fmt.NAME: pl.String}


def communication_tables(job: JobRanks, most: int) -> Iterator[TableResult]:
    """Yield the tables that apply, each with at most so many rows."""
    yield from exposed_table(job, most)
    yield from _stage_table(job)
    yield from _expert_table(job, most)
    yield from _pair_table(job, most)


def _table(
    name: str, title: str, fields: Sequence[Field], rows: Sequence[tuple[object, ...]]
) -> TableResult:
    schema = {field.key: _TYPES.get(field.fmt, pl.Float64) for field in fields}
    frame = pl.DataFrame(rows, schema=schema, orient="row", strict=False)
    return TableResult(name, title, tuple(fields), frame)


def exposed_table(job: JobRanks, most: int) -> Iterator[TableResult]:
    """Yield the exposed collectives, those with most exposed time first."""
    if job.communication is None:
        return
    min_ns = _MIN_EXPOSED_SHARE * float(job.meta["step_ns"])
    every = job.communication.collectives
    listed = [entry for entry in every if entry.exposed_ns >= min_ns]
    several = {(entry.kind, entry.bytes) for entry in every if (entry.number or 0) > 1}
    rows = [
        (
            _name(entry, numbered=(entry.kind, entry.bytes) in several),
            entry.per_step,
            entry.duration_ns,
            entry.exposed_ns,
            entry.wait_ns,
            1 - min(1.0, entry.exposed_ns / entry.duration_ns) if entry.duration_ns else None,
            entry.reason,
        )
        for entry in listed[:most]
    ]
    if rows:
        more = f" ({len(rows)} of {len(listed)})" if len(listed) > len(rows) else ""
        yield _table("exposed", f"Exposed collectives, per step{more}", EXPOSED_FIELDS, rows)


def _name(entry: ExposedCollective, *, numbered: bool) -> str:
    text = entry.kind if entry.bytes is None else f"{entry.kind} {format_bytes(entry.bytes)}"
    return f"{text} #{entry.number}" if numbered and entry.number is not None else text


def overlap_text(job: JobRanks) -> str | None:
    """Return how much of the communication is hidden; None without any."""
    ranks = job.communication.ranks if job.communication else ()
    total_ns = sum(rank.communication_ns for rank in ranks)
    if not total_ns:
        return None
    exposed_ns = sum(rank.exposed_ns for rank in ranks)
    hidden = format_share(1 - exposed_ns / total_ns)
    mean = format_time(total_ns / len(ranks), digits=3)
    return f"{mean}/step, {hidden} of it hidden behind compute"


def _stage_table(job: JobRanks) -> Iterator[TableResult]:
    pipeline = job.balance.pipeline if job.balance else None
    if pipeline is None:
        return
    rows = [(s.stage, _listed(s.ranks), s.compute_ns, s.bubble_ns) for s in pipeline.stages]
    bubble, ideal = (format_share(x) for x in (pipeline.bubble_share, pipeline.ideal_bubble_share))
    count = f"{pipeline.microbatches:g} microbatch{'es' * (pipeline.microbatches != 1)}"
    slow = format_time(pipeline.imbalance_ns, digits=3)
    title = (
        f"Pipeline: {len(rows)} stages, {count}, bubble {bubble} of the step (ideal {ideal}), "
        f"slowest stage +{slow}"
    )
    yield _table("pipeline", title, _STAGE_FIELDS, rows)


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:4])) + (", …" if len(ranks) > 4 else "")


def _expert_table(job: JobRanks, most: int) -> Iterator[TableResult]:
    groups = job.balance.experts if job.balance else ()
    rows: list[tuple[object, ...]] = []
    for group in groups:
        mean = sum(group.expert_ns.values()) / len(group.expert_ns)
        rows += [(rank, ns, ns / mean if mean else None) for rank, ns in group.expert_ns.items()]
    if not rows:
        return
    cost = format_time(max(group.imbalance_ns for group in groups), digits=3)
    layers = f"{groups[0].layers:g} layer{'s' * (groups[0].layers != 1)}"
    rows.sort(key=lambda row: -float(str(row[1])))
    title = f"Between all-to-alls (experts): {layers}, imbalance costs {cost}/step"
    yield _table("experts", title, _EXPERT_FIELDS, rows[:most])


def _pair_table(job: JobRanks, most: int) -> Iterator[TableResult]:
    pairs = job.communication.pairs if job.communication else ()
    if not pairs:
        return
    keys = [field.key for field in _PAIR_FIELDS]
    ordered = sorted(pairs, key=lambda pair: -(pair.source_wait_ns + pair.target_wait_ns))
    rows = [tuple(getattr(pair, key) for key in keys) for pair in ordered[:most]]
    more = f" ({len(rows)} of {len(pairs)})" if len(pairs) > len(rows) else ""
    yield _table("pairs", f"Sends and receives{more}", _PAIR_FIELDS, rows)
