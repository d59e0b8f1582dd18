"""What a reader of a comparison must know before believing it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpusight.analyses.ledger.labels import GRAPH
from gpusight.comparison.alike import content, differing
from gpusight.comparison.limit import HOST
from gpusight.comparison.outcome import Match
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.comparison.digest import Digest
    from gpusight.comparison.outcome import Comparison

_FEW_STEPS = 5
_RELATED = 0.5
"""Part of the kernel time that must match, else the programs are called different."""
_VERSION = re.compile(r"\s+v?\d[\w.+-]*$")
_PARTS = {
    "findings": "findings",
    "phases": "phases",
    "ranges": "ranges",
    "api": "API calls",
    "kernels": "kernels",
    "copies": "copies",
    "memsets": "memsets",
}


def notes(before: Sequence[Digest], after: Sequence[Digest], found: Comparison) -> tuple[str, ...]:
    """Give what limits a comparison, then what captures say of themselves."""
    every = (
        *(f"not the same on both sides: {one.text}" for one in found.differences),
        *_twice(before, after),
        *_how_many(before, after),
        *_differences(before, after),
        *_relation((*before, *after), found),
        *_overhead(found),
        *_absent(before, after),
        *_own(before, after),
    )
    return tuple(dict.fromkeys(every))


def _twice(before: Sequence[Digest], after: Sequence[Digest]) -> Iterator[str]:
    """Say that a capture is compared with itself."""
    known = {content(one) for one in after}
    same = [one for one in before if content(one) in known]
    if same:
        yield f"{_labels(same)} {'stand' if len(same) > 1 else 'stands'} on both sides"


def _how_many(before: Sequence[Digest], after: Sequence[Digest]) -> Iterator[str]:
    sides = {"before": before, "after": after}
    single = [name for name, side in sides.items() if len(side) == 1]
    steps = [sum(one.steps for one in side) for side in sides.values()]
    if not all(one.steps for one in (*before, *after)):
        yield (
            "no steps are known: whole windows are compared, which tells something only if they "
            "hold the same work"
        )
    if len(single) == 2:
        known = "the spread of steps only" if min(steps) > 1 else "nothing of the spread"
        yield (
            f"one capture a side: intervals cover {known}, and runs of the same program may differ "
            "by more; record 3 or more of each and name them all"
        )
    elif single:
        yield f"one capture {single[0]}: it is taken to vary as those of the other side do"
    if single and 0 < min(steps) < _FEW_STEPS:
        yield f"few steps: {steps[0]} before and {steps[1]} after"


def _differences(before: Sequence[Digest], after: Sequence[Digest]) -> Iterator[str]:
    tools = differing(before, after, lambda one: _VERSION.sub("", one.tool))
    versions = differing(before, after, lambda one: one.tool)
    if tools:
        yield (
            f"other tools ({tools}): each slows the host in its own way, so that host and idle "
            "times, and memory peaks, differ for that alone; kernel times can be compared"
        )
    elif versions:
        yield f"other versions of the tool ({versions})"
    if max(len(one.gpus) for one in (*before, *after)) > 1:
        yield "several GPUs: the ledger is their mean; kernels, phases and copies are summed"


def _relation(every: Sequence[Digest], found: Comparison) -> Iterator[str]:
    """Say that two programs have little in common: neither is made of what the other has too."""
    if any(GRAPH in one.ledger for one in every):  # what graphs run is not in the captures
        return
    matched = [row for row in found.kernels if row.match in (Match.NAME, Match.ROLE)]
    shares = []
    for side in ("before", "after"):
        total = sum(getattr(row.ns, side) or 0.0 for row in found.kernels)
        shares.append(
            sum(getattr(row.ns, side) or 0.0 for row in matched) / total if total else 1.0
        )
    if max(shares) < _RELATED:
        told = " and ".join(map(format_share, shares))
        yield f"these look like different programs: only {told} of their kernel time matches"


def _overhead(found: Comparison) -> Iterator[str]:
    """Warn where a profiler makes what is compared."""
    if HOST in (found.before.limit, found.after.limit):
        yield (
            "the host is the limit, and profilers slow the host down: time both without one too "
            "(docs/capture.md)"
        )


def _absent(before: Sequence[Digest], after: Sequence[Digest]) -> Iterator[str]:
    """Say which parts captures lack; in one line what all of them do."""
    every = (*before, *after)
    lacking = {part: [one for one in every if part in one.missing] for part in _PARTS}
    nowhere = [_PARTS[part] for part, mine in lacking.items() if len(mine) == len(every)]
    reasons = {one.missing.get("findings") for one in every}
    if len(reasons) == 1 and _PARTS["findings"] in nowhere:
        nowhere.remove(_PARTS["findings"])
        yield f"no findings: {reasons.pop()}"
    if nowhere:
        yield f"the captures do not tell: {', '.join(nowhere)}"
    for part, mine in lacking.items():
        if 0 < len(mine) < len(every):
            yield f"{_PARTS[part]} are not known of {_labels(mine)}: {mine[0].missing[part]}"


def _own(before: Sequence[Digest], after: Sequence[Digest]) -> Iterator[str]:
    """Repeat what captures say of themselves, each once."""
    every = (*before, *after)
    for note in dict.fromkeys(note for one in every for note in one.notes):
        having = [one for one in every if note in one.notes]
        yield note if len(having) == len(every) else f"{_labels(having)}: {note}"


def _labels(digests: Sequence[Digest]) -> str:
    more = f" and {len(digests) - 1} more" if len(digests) > 1 else ""
    return f"{digests[0].label}{more}"
