"""All ranks of a job as HTML: a page of its own, and sections of a report."""

from __future__ import annotations

from math import isfinite
from pathlib import PurePath
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.ranks.exposed_reasons import MEANINGS
from gpusight.render import ranks_view
from gpusight.render.charts.rank_charts import (
    aligned_step,
    known_quantities,
    most_waited_for,
    rank_bars,
    rank_heat_map,
)
from gpusight.render.communication_view import communication_tables
from gpusight.render.html.html_templates import HtmlColumn, ReportSection, render
from gpusight.render.html.report_charts import draw_chart
from gpusight.results import Field, Fmt, TableResult
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from markupsafe import Markup

    from gpusight.analysis.ranks.job_ranks import JobRanks


_MAX_ROWS = 128
"""Rows of a table of ranks."""
_MAX_CARDS = 4
_CLOCK_FIELDS = (
    Field("rank", "Rank", Fmt.ID, "Which rank"),
    Field("offset_ns", "Ahead by", Fmt.TIME, "Ahead of the clock of the first rank"),
    Field("error_ns", "Error (95%)", Fmt.TIME, "Half-width of the 95% interval of the offset"),
    Field("drift_ppm", "Drift, ppm", Fmt.REAL, "Gained per second, in microseconds"),
    Field("jumps", "Jumps", Fmt.COUNT, "How often the clock was set"),
    Field("collectives", "Collectives", Fmt.COUNT, "Collectives that the fit is based on"),
)


def ranks_to_page(job: JobRanks) -> str:
    """Write a page of its own."""
    from gpusight.render.html.report_page import write_page

    sections = [*ranks_sections(job), _notes_section(job)]
    return write_page("Ranks", ranks_header(job), [s for s in sections if s is not None])


def ranks_header(job: JobRanks) -> Markup:
    """Write the top of the page: the verdict, the numbers, what each straggler costs."""
    costly = [s for s in job.stragglers if s.recoverable_ns > 0]
    step_ns = float(job.meta["step_ns"])
    return render(
        "ranks_header.html",
        headline=ranks_view.headline(job),
        about=_about(job),
        numbers=_numbers(job),
        stragglers=[
            (s, format_time(step_ns, digits=3), format_time(step_ns - s.recoverable_ns, digits=3))
            for s in costly[:_MAX_CARDS]
        ],
        others=len(costly) - len(costly[:_MAX_CARDS]),
    )


def _about(job: JobRanks) -> list[str]:
    files = {PurePath(rank.file).name for rank in job.ranks}
    gpus = {rank.gpu for rank in job.ranks if rank.gpu}
    several = f"{len(files)} captures" if len(files) > 1 else next(iter(files), "")
    return [text for text in (several, ", ".join(sorted(gpus)), *job.meta.get("tools", ())) if text]


def _numbers(job: JobRanks) -> list[tuple[str, str, str]]:
    """Return label, value and detail of what stands at the top."""
    count = job.meta["steps"] or max((rank.steps for rank in job.ranks), default=0)
    numbers = [("Step time", format_time(float(job.meta["step_ns"]), digits=3), f"{count} steps")]
    balanced_ns = job.meta["balanced_step_ns"]
    if balanced_ns is not None:
        detail = "simulated" if job.stragglers or job.slowdown else "no straggler"
        numbers.append(("If all are equally fast", format_time(balanced_ns, digits=3), detail))
    waits = [rank.wait_ns for rank in job.ranks if rank.wait_ns is not None]
    if waits:
        mean = sum(waits) / len(waits)
        share = format_share(mean / float(job.meta["step_ns"]))
        numbers.append(("Wait for other ranks", share, f"{format_time(mean, digits=3)}/step, mean"))
    exposed = [rank.transfer_ns for rank in job.ranks]
    if exposed:
        mean = sum(exposed) / len(exposed)
        share = format_share(mean / float(job.meta["step_ns"]))
        numbers.append(("Exposed transfer", share, f"{format_time(mean, digits=3)}/step, mean"))
    return numbers


def _communication_sections(job: JobRanks) -> Iterator[ReportSection]:
    leads = {
        "exposed": "Collectives during which nothing else runs, and why: " + _reasons(job),
        "pipeline": "{}. A bubble is the time in which a stage waits for another one.",
        "experts": "{}. The slowest rank of each layer decides.",
        "pairs": "Who sends to whom, and who waits.",
    }
    names = {
        "exposed": "Exposed communication",
        "pipeline": "Pipeline",
        "experts": "Experts",
        "pairs": "Sends and receives",
    }
    for table in communication_tables(job, _MAX_ROWS):
        yield _section(
            table.command,
            names[table.command],
            leads[table.command].format(table.title),
            tables=[table],
        )


def _reasons(job: JobRanks) -> str:
    listed = job.communication.collectives if job.communication else ()
    known = dict.fromkeys(collective.reason for collective in listed if collective.reason)
    return "; ".join(f"{reason}: {MEANINGS[reason]}" for reason in known) + "."


def job_section(job: JobRanks) -> ReportSection:
    """Write the verdict about all ranks as a section of a report; the rest of it is of one."""
    body = render(
        "ranks_job.html",
        headline=ranks_view.headline(job),
        numbers=_numbers(job),
        alone="Findings, ledger and the sections after the ranks are of the process that "
        "diagnose puts first.",
    )
    return ReportSection("job", "All ranks", body)


def ranks_sections(job: JobRanks) -> Iterator[ReportSection]:
    """Give the sections about ranks, in the order in which they are read."""
    if job.slowdown is not None:
        table = ranks_view.ranks_table(job)
        yield _section("slowdown", "Slowdown", table.title, tables=[table])
        return
    maps = [
        (quantity.title, draw_chart(rank_heat_map(job, quantity)))
        for quantity in known_quantities(job)
    ]
    if maps:
        lead = "A row of strong color is a rank that is always late; a column, a slow step."
        yield ReportSection(
            "heat-map", "Ranks by step", render("ranks_heat_map.html", intro=lead, maps=maps)
        )
    if job.stragglers:
        lead = "Saved if each is as fast as the median of the others, and why it is late."
        yield _section(
            "stragglers", "Stragglers", lead, tables=[ranks_view.straggler_table(job.stragglers)]
        )
    if job.latest is not None:
        yield _latest_section(job)
    yield from _communication_sections(job)
    listed = most_waited_for(job, _MAX_ROWS)
    yield _section(
        "ranks",
        "Ranks",
        "Where the step of each rank goes; wait is for other ranks, transfer is exposed.",
        charts=[draw_chart(rank_bars(job))],
        tables=[ranks_view.rank_table(job, tuple(listed))],
    )
    clocks = _clock_table(job)
    if clocks is not None:
        lead = "Waits and stragglers do not depend on clocks; the aligned step above does."
        yield _section("clocks", "Clocks", lead, tables=[clocks])


def _latest_section(job: JobRanks) -> ReportSection:
    step = job.latest
    assert step is not None, "the caller has it"
    error = (
        "the ends of collectives are aligned, with unknown error"
        if step.error_ns is None
        else f"clocks are aligned within {format_time(step.error_ns, digits=2)}"
    )
    late = format_time(step.late_ns, digits=3)
    lead = f"The step with the latest rank: rank {step.rank}, {late} late; {error}."
    return _section("rank-timeline", "Latest step", lead, charts=[draw_chart(aligned_step(step))])


def _section(
    key: str, title: str, lead: str, *, charts: object = (), tables: list[TableResult] | None = None
) -> ReportSection:
    body = render(
        "ranks_section.html",
        intro=lead,
        charts=charts,
        tables=[(t, [HtmlColumn(f) for f in t.fields if f.shown]) for t in tables or []],
        rows=_MAX_ROWS,
    )
    return ReportSection(key, title, body)


def _clock_table(job: JobRanks) -> TableResult | None:
    known = [clock for clock in job.clocks if isfinite(clock.offset_ns)]
    if len(known) < 2:
        return None
    rows = [
        (c.rank, c.offset_ns, c.error_ns, c.drift_ppm, len(c.jumps), c.collectives) for c in known
    ]
    types = (pl.Int64, pl.Float64, pl.Float64, pl.Float64, pl.Int64, pl.Int64)
    keys = [field.key for field in _CLOCK_FIELDS]
    frame = pl.DataFrame(rows, schema=dict(zip(keys, types, strict=True)), orient="row")
    return TableResult("clocks", "Clocks against that of the first rank", _CLOCK_FIELDS, frame)


def _notes_section(job: JobRanks) -> ReportSection | None:
    if not job.notes:
        return None
    return ReportSection("limitations", "Limitations", render("ranks_notes.html", noted=job.notes))
