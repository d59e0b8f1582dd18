"""Two captures before and after, cut short to what a page shows beside their timelines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpusight.analyses.select import EVERYTHING
from gpusight.asking import digested
from gpusight.comparison.compare import compare
from gpusight.render.blocks import sentence
from gpusight.render.cells import safe_text
from gpusight.render.comparison.sections import sections
from gpusight.result import NotApplicable
from gpusight.web.judged import judged
from gpusight.web.told import FAILED, READY, CompareInfo, MetricInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.comparison.digest import Digest
    from gpusight.comparison.outcome import Comparison
    from gpusight.model.trace import Trace
    from gpusight.render.comparison.section import Cell
    from gpusight.web.judged import Judged

_METRICS = "metrics"


def compare_info(before: Trace, after: Trace) -> CompareInfo:
    """Compare two captures, as `gpusight compare` does."""
    parts = judged(before), judged(after)
    found = compare(_summed(before, parts[0]), _summed(after, parts[1]))
    if isinstance(found, NotApplicable):
        return CompareInfo(FAILED, safe_text(sentence(found)))
    notes = (*(part.note for part in parts if part.note), *found.notes)
    return CompareInfo(
        state=READY,
        message="",
        explanation=tuple(map(safe_text, found.explanation)),
        metrics=_metrics(found),
        notes=tuple(map(safe_text, notes)),
    )


def _summed(trace: Trace, part: Judged) -> list[Digest]:
    digests = digested(trace, EVERYTHING, steps=part.steps, window=part.window)
    # Steps that stand for all of them may be compared with any others that do.
    return [replace(digest, scope="") for digest in digests]


def _metrics(found: Comparison) -> tuple[MetricInfo, ...]:
    rows = next(section.rows for section in sections(found) if section.key == _METRICS)
    return tuple(_metric(row.cells) for row in rows)


def _metric(cells: Sequence[Cell]) -> MetricInfo:
    name, before, after, delta, ratio, _, verdict = map(str, cells)
    return MetricInfo(name, before, after, f"{delta} ({ratio})", verdict)
