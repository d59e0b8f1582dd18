"""Each step as a thin stack of what its time went into: bars of a few, columns of many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpusight.analyses.steps.step import called
from gpusight.render.diagnosis.page import text
from gpusight.render.report.markup import clipped, paint
from gpusight.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gpusight.analyses.ledger.report import StepTimes

    Ints = NDArray[np.int64]

MOST_STEPS = 200
_FEW = 12
"""Steps that have a bar with their name each."""
_HEIGHT = 100.0
_WIDTH = 0.85
"""Part of its place that a column takes."""
_STEP_NAME = 60


def steps_strip(times: StepTimes) -> str:
    """Draw the steps of one GPU; nothing where there are not several."""
    count = len(times.steps)
    if count < 2 or not times.ns.sum():
        return ""
    drawn = _bars(times) if count <= _FEW else _columns(times)
    took = times.ns.sum(1)
    longest, shortest = (format_time(int(end)) for end in (took.max(), took.min()))
    # What a thread's range marks is the host's part; the GPU may work on steps long after it.
    where = "" if times.steps[0].thread is None else " on the host"
    told = f"Step by step, from beginning to end{where}: {shortest} to {longest}."
    if count > MOST_STEPS:
        told += f" {MOST_STEPS} of {count:,} are drawn, evenly chosen."
    return f'<figure class="steps">{drawn}<figcaption>{text(told)}</figcaption></figure>'


def _bars(times: StepTimes) -> str:
    longest = int(times.ns.sum(1).max())
    rows = "".join(_bar(times, number, longest) for number in range(len(times.steps)))
    return f'<ol class="thin">{rows}</ol>'


def _bar(times: StepTimes, number: int, longest: int) -> str:
    pieces = "".join(
        f'<span style="width:{100 * ns / longest:.4f}%;background:{paint(entry)}" '
        f'title="{text(f"{entry} {format_time(ns)}")}"></span>'
        for entry, ns in zip(times.entries, times.ns[number].tolist(), strict=True)
        if ns
    )
    name = clipped(called(times.steps[number]), _STEP_NAME)
    took = text(format_time(int(times.ns[number].sum())))
    return f'<li><span class="of">{name}</span><div class="stack">{pieces}</div><b>{took}</b></li>'


def _columns(times: StepTimes) -> str:
    count = len(times.steps)
    places = np.linspace(0, count - 1, min(count, MOST_STEPS)).round().astype(np.int64)
    ns = times.ns[places]
    inside = "".join(_paths(times, ns))
    return (
        f'<svg viewBox="0 0 {len(places)} {_HEIGHT:g}" preserveAspectRatio="none" role="img" '
        f'aria-label="Each step as a column of what its time went into">{inside}</svg>'
    )


def _paths(times: StepTimes, ns: Ints) -> Iterator[str]:
    """Draw one path an entry, which has a rectangle in every step that holds some of it."""
    scale = _HEIGHT / ns.sum(1).max()
    tops = _HEIGHT - np.cumsum(ns, axis=1) * scale
    for number, entry in enumerate(times.entries):
        moves = "".join(
            f"M{x + (1 - _WIDTH) / 2:.5g} {tops[x, number]:.4g}h{_WIDTH}"
            f"v{ns[x, number] * scale:.4g}h-{_WIDTH}z"
            for x in np.flatnonzero(ns[:, number]).tolist()
        )
        if moves:
            title = f"<title>{text(entry)}</title>"
            yield f'<path style="fill:{paint(entry)}" d="{moves}">{title}</path>'
