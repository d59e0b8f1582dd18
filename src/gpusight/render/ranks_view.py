"""Renderer of all ranks of a job."""

from __future__ import annotations

from math import isfinite
from statistics import median
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.ranks.job_ranks import JobRanks
from gpusight.analysis.ranks.job_slowdown import slowdown_table
from gpusight.analysis.ranks.straggler_causes import ADVICE
from gpusight.errors import UsageError
from gpusight.render.communication_view import communication_tables, overlap_text
from gpusight.render.renderer import Renderer
from gpusight.render.table_layout import TableOptions
from gpusight.results import Composite, Evidence, Fact, Field, Fmt, TableResult
from gpusight.units import format_share, format_time, in_one_unit

if TYPE_CHECKING:
    from gpusight.analysis.ranks.job_ranks import RankSummary
    from gpusight.analysis.ranks.straggler_causes import Straggler
    from gpusight.render.charts.figure import StripChart


RANK_FIELDS = (
    Field("rank", "Rank", Fmt.ID, "Number in the job"),
    Field("rank_from", "From", Fmt.TEXT, "Where the number comes from", shown=False),
    Field("host", "Host", Fmt.ID, "Machine of the capture; null if not recorded", shown=False),
    Field("device", "GPU", Fmt.ID, "Its GPU"),
    Field("gpu", "Name", Fmt.NAME, "Name of that GPU", shown=False),
    Field("step_ns", "Step", Fmt.TIME, "Step time, the mean of its steps"),
    Field("compute_ns", "Compute", Fmt.TIME, "Kernels run, per step"),
    Field("copy_ns", "Copy", Fmt.TIME, "Only copies and memsets run, per step"),
    Field("transfer_ns", "Transfer", Fmt.TIME, "Exposed transfer of collectives, per step"),
    Field("wait_ns", "Wait", Fmt.TIME, "Exposed wait for other ranks in collectives, per step"),
    Field("hidden_wait_ns", "Hidden wait", Fmt.TIME, "Wait that other work hides", shown=False),
    Field("idle_ns", "Idle", Fmt.TIME, "Idle outside collectives, per step"),
    Field("mostly", "Mostly idle", Fmt.TEXT, "Largest cause of that idle time", shown=False),
    Field("caused_wait_ns", "Caused", Fmt.TIME, "Waits of all other ranks for this one, per step"),
    Field("last", "Last", Fmt.COUNT, "Collectives of all steps in which it arrives last"),
    Field("collectives", "Of", Fmt.COUNT, "Collectives it takes part in", shown=False),
    Field("steps", "Steps", Fmt.COUNT, "Steps of its capture", shown=False),
    Field("file", "File", Fmt.NAME, "Capture", shown=False),
)
_STRAGGLER_FIELDS = (
    Field("rank", "Rank", Fmt.ID, "Which rank"),
    Field("cause", "Cause", Fmt.TEXT, "`host`, `input`, `more-work`, `slow-kernels`, …"),
    Field("recoverable_ns", "Costs/step", Fmt.TIME, "Saved if it is as fast as the median rank"),
    Field("share", "% of step", Fmt.SHARE, "Part of the job's step time"),
    Field("late_ns", "Late/step", Fmt.TIME, "Later than the median of the others, per step"),
    Field("pattern", "Steps", Fmt.TEXT, "In which steps"),
    Field("mostly", "Evidence", Fmt.NAME, "Largest difference from the median rank"),
)
RANK_ID = "rank:"
"""How the id of a rank begins, as `gpusight explain` takes it."""
_IDLE_FIELDS = (
    Field("cause", "Idle", Fmt.TEXT, "Entry of the ledger"),
    Field("idle_ns", "Time", Fmt.TIME, "Per step"),
    Field("median_ns", "Median", Fmt.TIME, "Of all ranks"),
)
_STEP_FIELDS = (
    Field("step", "Step", Fmt.ID, "Number of the step"),
    Field("late_ns", "Late", Fmt.TIME, "Later than the median of the others"),
    Field("step_ns", "Step time", Fmt.TIME, "From its start to its end"),
    Field("compute_ns", "Compute", Fmt.TIME, "Kernels run"),
    Field("wait_ns", "Wait", Fmt.TIME, "Exposed wait for other ranks"),
    Field("idle_ns", "Idle", Fmt.TIME, "Idle outside collectives"),
)
_LOOK = TableOptions(80, 8, rows_advice="all are in .frame", columns_advice="all are in .frame")
_SCREEN_RANKS = 8
_SCREEN_COLLECTIVES = 3


def ranks_table(job: JobRanks) -> TableResult:
    """Return one row per rank; of a trace of operations, what slows the job down."""
    if job.slowdown is not None:
        return slowdown_table(job.slowdown)
    return rank_table(job, job.ranks)


def rank_table(job: JobRanks, ranks: tuple[RankSummary, ...]) -> TableResult:
    """Return a row for each of these ranks."""
    rows = [{**rank.document(), "mostly": next(iter(rank.idle), None)} for rank in ranks]
    keys = [field.key for field in RANK_FIELDS]
    kinds = {Fmt.TIME: pl.Float64, Fmt.ID: pl.Int64, Fmt.COUNT: pl.Int64}
    schema = {field.key: kinds.get(field.fmt, pl.String) for field in RANK_FIELDS}
    frame = pl.DataFrame([{key: row[key] for key in keys} for row in rows], schema=schema)
    return TableResult("ranks", "By rank, per step", RANK_FIELDS, frame, meta=job.meta)


def straggler_table(stragglers: tuple[Straggler, ...]) -> TableResult:
    """Return a row for each straggler."""
    rows = [
        (s.rank, s.cause, s.recoverable_ns, s.share, s.late_ns, s.pattern, _mostly(s.evidence))
        for s in stragglers
    ]
    types = (pl.Int64, pl.String, pl.Float64, pl.Float64, pl.Float64, pl.String, pl.String)
    keys = [field.key for field in _STRAGGLER_FIELDS]
    frame = pl.DataFrame(rows, schema=dict(zip(keys, types, strict=True)), orient="row")
    return TableResult("stragglers", "Stragglers", _STRAGGLER_FIELDS, frame)


def _mostly(evidence: tuple[Evidence, ...]) -> str | None:
    timed = [item for item in evidence if item.unit == "ns"]
    if not timed:
        return None
    return f"{timed[0].metric.removeprefix('more ')} +{format_time(timed[0].value, digits=3)}"


def ranks_page(job: JobRanks) -> Composite:
    """Lay the answer out for a screen: the verdict, stragglers, ranks."""
    sections: list[TableResult] = []
    if job.stragglers:
        sections.append(straggler_table(job.stragglers))
    if job.slowdown is None:
        sections += communication_tables(job, _SCREEN_COLLECTIVES)
        sections.append(rank_table(job, _shown(job)))
    else:
        sections.append(slowdown_table(job.slowdown))
    return Composite(
        "ranks", headline(job), _predictions(job), tuple(sections), job.meta, job.notes
    )


def rank_page(job: JobRanks, which: str) -> Composite:
    """Explain a rank (`rank:2`), or the straggler of a number, for a screen."""
    known = {f"{RANK_ID}{rank.rank}": rank for rank in job.ranks}
    by_number = {str(n): f"{RANK_ID}{s.rank}" for n, s in enumerate(job.stragglers, 1)}
    rank = known.get(by_number.get(which, which))
    if rank is None:
        stragglers = f"stragglers: {', '.join(by_number.values()) or 'none'}"
        names = list(known)
        raise UsageError(
            f"no rank or straggler {which!r} in these captures",
            hint=f"{stragglers}; ranks: {names[0]} to {names[-1]}" if names else stragglers,
        )
    late = next((s for s in job.stragglers if s.rank == rank.rank), None)
    facts = _late_facts(late) if late else []
    facts.append(Fact("file", "capture", rank.file, Fmt.NAME, "Diagnose it to see its code"))
    idle = pl.DataFrame(
        [
            (cause, ns, median([other.idle.get(cause, 0.0) for other in job.ranks]))
            for cause, ns in sorted(rank.idle.items(), key=lambda item: -item[1])
        ],
        schema={field.key: pl.Float64 for field in _IDLE_FIELDS} | {"cause": pl.String},
        orient="row",
    )
    sections = [rank_table(job, (rank,)), TableResult("idle", "Idle, per step", _IDLE_FIELDS, idle)]
    if job.by_step is not None:
        mine = job.by_step.filter(pl.col("rank") == rank.rank, pl.col("late_ns").is_not_null())
        latest = mine.sort("late_ns", descending=True, maintain_order=True)
        latest = latest.select(field.key for field in _STEP_FIELDS)
        sections.append(TableResult("steps", "Latest steps", _STEP_FIELDS, latest))
    title = f"rank {rank.rank} of {len(job.ranks)}"
    title += f": late ({late.cause}), {late.pattern}" if late else ": no straggler"
    return Composite("explain", title, tuple(facts), tuple(sections), notes=job.notes)


def _late_facts(late: Straggler) -> list[Fact]:
    why, fix = ADVICE[late.cause]
    change = f"{format_time(late.recoverable_ns, digits=3)}/step, {format_share(late.share)}"
    return [
        Fact("cause", "cause", late.cause, Fmt.TEXT, "What differs from the median rank"),
        Fact("costs", "costs", change, Fmt.TEXT, "Saved if it is as fast as the median rank"),
        Fact("late_ns", "late per step", late.late_ns, Fmt.TIME, "Later than the median rank"),
        Fact("why", "why", why, Fmt.TEXT, "What the cause means"),
        Fact("fix", "fix", fix, Fmt.TEXT, "What to do"),
        *(
            Fact(e.metric.replace(" ", "_"), e.metric, *_shown_value(e), e.meaning)
            for e in late.evidence
        ),
    ]


def _shown_value(evidence: Evidence) -> tuple[float, Fmt]:
    if evidence.unit or not evidence.value.is_integer():
        formats = {"ns": Fmt.TIME, "share": Fmt.SHARE, "byte": Fmt.BYTES}
        return evidence.value, formats.get(evidence.unit, Fmt.REAL)
    return int(evidence.value), Fmt.COUNT


def _shown(job: JobRanks) -> tuple[RankSummary, ...]:
    """Return all ranks where a screen holds them, else those that others wait for most."""
    if len(job.ranks) <= _SCREEN_RANKS:
        return job.ranks
    return tuple(sorted(job.ranks, key=lambda rank: (-(rank.caused_wait_ns or 0), rank.rank)))


def headline(job: JobRanks) -> str:
    """Give the verdict in a line."""
    if job.slowdown is not None:
        step, ideal = (format_time(job.meta[k], digits=3) for k in ("step_ns", "balanced_step_ns"))
        shape = f"{job.meta['stages']} stages x {job.meta['dp_ranks']} data-parallel ranks"
        return f"{shape}, {job.meta['steps']} steps of {step}: {ideal} if all were equally fast"
    ranks = f"{len(job.ranks)} ranks" if len(job.ranks) != 1 else f"rank {job.ranks[0].rank}"
    step = format_time(float(job.meta["step_ns"]), digits=3)
    count = job.meta["steps"] or max(rank.steps for rank in job.ranks)
    window = f"{ranks}, {count} {'step' if count == 1 else 'steps'} of {step}"
    costly = [s for s in job.stragglers if s.recoverable_ns > 0]
    if costly:
        first = costly[0]
        cost = f"{format_time(first.recoverable_ns, digits=3)}/step, {format_share(first.share)}"
        return f"{window}: rank {first.rank} is late ({first.cause}), costs {cost}"
    if len(job.ranks) == 1:
        return window
    among = " among those that are here" if job.meta["missing_ranks"] else ""
    return f"{window}: {f'no straggler{among}' if job.meta['steps'] else 'waits unknown'}"


def _predictions(job: JobRanks) -> tuple[Fact, ...]:
    """Return what the job gains from each straggler, and from all of them."""
    if job.slowdown is not None:
        return ()
    now_ns = job.meta["step_ns"]
    costly = [s for s in job.stragglers if s.recoverable_ns > 0]
    facts = [
        Fact(
            f"rank_{s.rank}",
            f"rank {s.rank} as fast as the median",
            _change(now_ns, now_ns - s.recoverable_ns),
            Fmt.TEXT,
            "Simulated step time of the job, before and after",
        )
        for s in costly[:3]
    ]
    if len(costly) > 1:
        change = _change(now_ns, job.meta["balanced_step_ns"])
        label = f"all {len(costly)} as fast as the median"
        facts.append(Fact("balanced", label, change, Fmt.TEXT, "All stragglers together"))
    dimensions = [f"{row['kind']} {row['size'] or ''}".strip() for row in job.meta["parallelism"]]
    if dimensions:
        text = " x ".join(dimensions)
        facts.append(Fact("parallelism", "parallel by", text, Fmt.TEXT, "By process groups"))
    overlap = overlap_text(job)
    if overlap:
        meaning = "Time with a collective, the mean of all ranks"
        facts.append(Fact("communication", "communication", overlap, Fmt.TEXT, meaning))
    noise_ns = job.meta["noise_ns"]
    if not costly and noise_ns and job.meta["steps"]:
        text = f"{format_time(noise_ns, digits=3)}/step"
        facts.append(Fact("noise", "late by chance up to", text, Fmt.TEXT, "Spread of arrivals"))
    clocks = [clock for clock in job.clocks if isfinite(clock.offset_ns)]
    if len(clocks) > 1:
        offsets = [clock.offset_ns for clock in clocks]
        apart = format_time(max(offsets) - min(offsets), digits=3)
        error = format_time(max(clock.error_ns for clock in clocks), digits=2)
        meaning = (
            "Largest difference of two ranks' clocks, and the 95% error; no wait depends on it"
        )
        facts.append(Fact("clocks", "clocks apart", f"{apart} (± {error})", Fmt.TEXT, meaning))
    return tuple(facts)


def _change(before_ns: float, after_ns: float) -> str:
    before, after = (format_time(ns, digits=3) for ns in (before_ns, after_ns))
    return f"{in_one_unit(before, after, ' -> ')}/step"


def _page(job: JobRanks, *, limit: int | None) -> str:
    """Write an HTML page with all ranks."""
    from gpusight.render.html.ranks_page import ranks_to_page

    del limit  # a page has everything
    return ranks_to_page(job)


def _figure(job: JobRanks) -> StripChart:
    from gpusight.render.charts.rank_charts import rank_heat_map

    return rank_heat_map(job)


def _draw(job: JobRanks, form: str) -> bytes:
    """Draw the heat map."""
    from gpusight.render.charts.draw_chart import draw

    return draw(_figure(job), form)


RANKS_RENDERER = Renderer(
    tables=ranks_page,
    rows=ranks_table,
    document=JobRanks.document,
    page=_page,
    figure=_figure,
    draw=_draw,
    look=_LOOK,
)
