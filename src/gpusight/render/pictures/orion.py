"""SMs, compute and memory in use over time as a picture, with their averages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.errors import MissingDataError
from gpusight.render.pictures.figure import Axis, Figure, Line, Part, Rule, Stack, Tone
from gpusight.result import Fmt, TableResult
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from gpusight.render.pictures.figure import Numbers
    from gpusight.result import Composite

_LABELS = {"sm_share": "SMs in use", "compute_share": "compute", "memory_share": "memory (DRAM)"}
_MOST_POINTS = 400
"""More stretches are averaged over so many equal steps of time, or the lines would be a blur."""


def orion_figure(result: Composite, *, only: str | None = None) -> Figure:
    """Draw the answer of `gpusight orion plot`; `only` names the one series to show."""
    facts = {fact.key: fact.value for fact in result.facts}
    points = next(
        s.frame for s in result.sections if isinstance(s, TableResult) and s.command == "series"
    )
    keys = _drawn(points, only)
    x, values = _steps(points, keys)
    origin = x[0]
    times = tuple(t - origin for t in x)
    averages = {key: facts[f"{key}_average"] for key in keys}
    return Figure(
        result.title,
        Axis("time since the first kernel", Fmt.TIME, low=0, high=times[-1]),
        Axis("", Fmt.SHARE, low=0, high=1.0),
        _series(times, values, averages),
        subtitle=_subtitle(facts, averaged=points.height > _MOST_POINTS),
        # Labels at the levels would stand on the data; the legend names them.
        rules=tuple(Rule(average, "") for average in averages.values() if average is not None),
    )


def _drawn(points: pl.DataFrame, only: str | None) -> list[str]:
    """Choose the series; one of which nothing is known would be a line at zero."""
    known = {key for key in _LABELS if points.filter(pl.col("kernels") > 0)[key].count()}
    if only is not None and only not in known:
        raise MissingDataError(
            f"the report does not say how much {_LABELS[only]} was in use",
            hint="collect it: ncu --section SpeedOfLight …",
        )
    return [key for key in _LABELS if key in known and only in (None, key)]


def _series(
    times: Numbers, values: dict[str, Numbers], averages: dict[str, float | None]
) -> tuple[Stack | Line, ...]:
    """Fill the first behind the lines of the others; the legend has the averages."""
    named = {key: f"{_LABELS[key]}, {_level(averages[key])}" for key in values}
    (name, y), *rest = [(named[key], y) for key, y in values.items()]
    tone = Tone.PALE if rest else Tone.SERIES
    area = Stack(name, times, (Part(name, y, tone),), steps=True)
    return (area, *(Line(name, times, y, steps=True) for name, y in rest))


def _level(average: float | None) -> str:
    if average is None:
        return "unknown for some kernels, drawn as zero"
    return f"on average {format_share(average)}"


def _subtitle(facts: dict[str, float], *, averaged: bool) -> str:
    window, busy = facts["window_ns"], facts["busy_ns"]
    share = format_share(busy / window if window else None)
    text = f"{format_time(window)}, GPU busy {share}; dotted: averages, idle time counted as idle"
    if averaged:
        text += f"; each step is the average of {format_time(window / _MOST_POINTS)}"
    if facts["unmeasured_ns"]:
        text += f"; {format_time(facts['unmeasured_ns'])} of kernels not measured"
    return text


def _steps(points: pl.DataFrame, keys: list[str]) -> tuple[Numbers, dict[str, Numbers]]:
    """Give where each stretch begins, with its values; the last point ends the last stretch."""
    points = points.with_columns(pl.col(keys).fill_null(0.0))
    frame = points if points.height <= _MOST_POINTS else _averaged(points, keys)
    x = (*frame["start_ns"].to_list(), frame["end_ns"][-1])
    return x, {key: (*frame[key].to_list(), frame[key][-1]) for key in keys}


def _averaged(points: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Average over equal steps of time, by the area under each line up to every edge."""
    import numpy as np

    start, end = points["start_ns"].to_numpy(), points["end_ns"].to_numpy()
    knots = np.append(start, end[-1]).astype(np.float64)
    edges = np.linspace(knots[0], knots[-1], _MOST_POINTS + 1)
    step = edges[1] - edges[0]
    columns = {}
    for key in keys:
        area = np.concatenate([[0.0], np.cumsum(points[key].to_numpy() * (end - start))])
        columns[key] = np.clip(np.diff(np.interp(edges, knots, area)) / step, 0, 1)
    return pl.DataFrame({"start_ns": edges[:-1], "end_ns": edges[1:], **columns})
