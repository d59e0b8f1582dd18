"""What a page shows of all ranks of a job: the heat map, stragglers, and links of collectives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.ranks.aligned_ranks import AlignedRanksSource, RankLinks
from gpusight.render.cell_text import safe_text
from gpusight.render.charts.rank_charts import (
    HeatLevels,
    cell_title,
    heat_columns,
    heat_ranks,
    known_quantities,
)
from gpusight.render.explanation import evidence_value
from gpusight.render.ranks_view import headline
from gpusight.units import format_share, format_time
from gpusight.web.payloads import (
    CaptureInfo,
    EventDetails,
    HeatCell,
    HeatQuantityInfo,
    HeatRow,
    LinkedEvent,
    MarkedStep,
    RanksInfo,
    ShownEvidence,
    StragglerInfo,
    TimeRange,
    safe,
)

if TYPE_CHECKING:
    from gpusight.open_job import OpenedJob
    from gpusight.trace.trace import Trace
    from gpusight.viewer.timeline_view import ViewerTimeline
    from gpusight.viewer.track_data import EventPosition


MAX_ROWS = 64
"""Ranks of the heat map."""
MAX_TIMELINES = 16
"""Ranks of the timeline: each is a whole capture in memory."""
_AROUND = 0.1
"""Share of the latest step that is shown on either side of it at first."""


class ServedJob:
    """A job as a page sees it; made of a trace that several threads may use."""

    def __init__(self, opened: OpenedJob, trace: Trace) -> None:
        self._answer = opened.answer
        self._left_out = opened.left_out
        self._source: AlignedRanksSource = opened.trace.source
        self._links = RankLinks.of(self._source, trace)
        self.info = self._ranks_info()

    def capture_info(self, info: CaptureInfo) -> CaptureInfo:
        """Give the steps of the job in place of those of one process, and its notes."""
        steps = self._steps()
        latest = self._answer.latest
        first = [s for s in steps if latest is not None and s.number == latest.step] or steps[:1]
        view = None
        if first:
            around = int(_AROUND * (first[0].end_ns - first[0].start_ns))
            view = TimeRange(first[0].start_ns - around, first[0].end_ns + around)
        # What limits the steps of one process is not about the job.
        notes = [*self._answer.notes, *self._source.meta.notes, *self._source.warnings()]
        if self._left_out:
            shown = len(self._answer.ranks) - len(self._left_out)
            every = len(self._answer.ranks)
            notes.insert(0, f"the timeline has {shown} of {every} ranks: the late ones first")
        notes = list(dict.fromkeys(map(safe_text, notes)))
        return replace(info, steps=steps, first_view=view, notes=tuple(notes), job=True)

    def with_links(self, details: EventDetails, timeline: ViewerTimeline) -> EventDetails:
        """Add the same collective on other ranks to what belongs to an event."""
        others = self._links.others(details.spot.table, details.spot.row)
        places = [(event.rank, timeline.spot(event.table, event.row)) for event in others]
        linked = [
            LinkedEvent(f"same collective, rank {rank}", safe(place))
            for rank, place in places
            if place is not None
        ]
        return replace(details, links=(*details.links, *linked)) if linked else details

    def collective(
        self, timeline: ViewerTimeline, rank: int, start_ns: int, end_ns: int
    ) -> EventPosition | None:
        """Give the longest collective of a rank in a time; None where none is on the timeline."""
        inside: list[EventPosition] = []
        for events in self._links.members.values():
            for event in events:
                place = timeline.spot(event.table, event.row) if event.rank == rank else None
                if place is not None and start_ns <= place.start_ns < end_ns:
                    inside.append(place)
        return max(inside, key=lambda place: place.end_ns - place.start_ns, default=None)

    def _steps(self) -> tuple[MarkedStep, ...]:
        """Give the steps of the first rank on the common clock."""
        place = self._source.parts[0].places[0]
        return tuple(
            MarkedStep(
                step.number,
                safe_text(step.name),
                *self._moved(place, step.start_ns, step.end_ns),
                warmup=False,
            )
            for step in self._answer.digests[place].steps
        )

    def _moved(self, place: int, start_ns: int, end_ns: int) -> tuple[int, int]:
        start, end = self._source.clocks.times(place, [start_ns, end_ns]).tolist()
        return start, end

    def _ranks_info(self) -> RanksInfo:
        answer = self._answer
        assert answer.by_step is not None, "a job with captures has steps"
        quantities = known_quantities(answer)
        levels = [HeatLevels.of(answer.by_step.drop_nulls(q.column), q) for q in quantities]
        first, columns = heat_columns(answer.by_step)
        on_timeline = set(self._source.ranks)
        spans = {
            (digest_rank.rank, step.number): (place, step.start_ns, step.end_ns)
            for place, (digest_rank, digest) in enumerate(
                zip(answer.ranks, answer.digests, strict=True)
            )
            for step in digest.steps
        }
        rows = []
        for rank in heat_ranks(answer, answer.by_step, quantities[0], MAX_ROWS):
            cells: list[HeatCell | None] = [None] * len(first)
            own = answer.by_step.filter(pl.col("rank") == rank)
            worst = own.sort(quantities[0].column, descending=True, nulls_last=True)
            for row in worst.iter_rows(named=True):
                column = columns[row["step"]]
                if cells[column] is None:
                    start, end = self._moved(*spans[rank, row["step"]])
                    values = [row[q.column] for q in quantities]
                    of = [
                        -1 if value is None else level.level(value)
                        for value, level in zip(values, levels, strict=True)
                    ]
                    cells[column] = HeatCell(row["step"], start, end, of, cell_title(row))
            rows.append(HeatRow(rank, rank in on_timeline, cells))
        return RanksInfo(
            headline=safe_text(headline(answer)),
            alignment=self._source.alignment,
            steps=first,
            quantities=[
                HeatQuantityInfo(q.title, level.legend)
                for q, level in zip(quantities, levels, strict=True)
            ],
            rows=rows,
            stragglers=self._stragglers(),
            notes=tuple(map(safe_text, answer.notes)),
        )

    def _stragglers(self) -> list[StragglerInfo]:
        return [
            StragglerInfo(
                straggler.rank,
                straggler.cause,
                f"{format_time(straggler.recoverable_ns, digits=3)}/step",
                format_share(straggler.share),
                straggler.pattern,
                [
                    ShownEvidence(evidence_value(e), safe_text(e.meaning))
                    for e in straggler.evidence
                ],
            )
            for straggler in self._answer.stragglers
        ]
