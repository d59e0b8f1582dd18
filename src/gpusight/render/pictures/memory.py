"""Memory over time as a picture: what was in use, by whom, and what was reserved."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from gpusight.render.pictures.figure import Axis, Band, Figure, Line, Mark, Part, Rule, Stack, Tone
from gpusight.result import Fmt, NotApplicable, TableResult
from gpusight.units import format_bytes, format_time

if TYPE_CHECKING:
    import polars as pl

    from gpusight.result import Composite

ALLOCATED = "in use"
RESERVED = "reserved"
_TALLEST = 3.0
"""What is reserved beyond this many times the peak would press what is in use to the floor."""
_NEAR_FULL = 0.5
_MOST_BANDS = 400
_DETAIL_ROWS = 6


def memory_figure(result: Composite) -> Figure:
    """Draw the answer of `gpusight memory`."""
    facts = {fact.key: fact.value for fact in result.facts}
    points = _section(result, "timeline")
    assert points is not None, "the answer has a timeline"
    times = tuple(points["time_ns"].to_list())
    peak, when = facts["peak_bytes"], facts["peak_ns"]
    reserved = facts.get("reserved_max_bytes")
    shown = reserved is not None and reserved <= _TALLEST * max(peak, 1)
    lines = [_reserved(times, points)] if shown else []
    label = f"peak {format_bytes(peak)} at {format_time(when)}"
    return Figure(
        result.title + " over time",
        Axis("time since the capture began", Fmt.TIME, low=times[0], high=times[-1]),
        Axis("", Fmt.BYTES, low=0),
        (_stack(times, points, result.meta.get("timeline_holders") or []), *lines),
        subtitle=_subtitle(result, facts, reserved_shown=shown),
        bands=_steps(result),
        rules=_limit(facts),
        marks=(Mark(when, peak, label, _holders(result)),),
    )


def _stack(times: tuple[float, ...], points: pl.DataFrame, names: list[str]) -> Stack:
    if len(names) < 2:
        part = Part(names[0] if names else ALLOCATED, tuple(points["allocated_bytes"].to_list()))
        return Stack(ALLOCATED, times, (part,), steps=True)
    columns = zip(*points["held_bytes"].to_list(), strict=True)
    parts = tuple(
        Part(name, tuple(max(v, 0) for v in values), _tone(name, position, len(names)))
        for position, (name, values) in enumerate(zip(names, columns, strict=True))
    )
    return Stack(ALLOCATED, times, parts, steps=True)


def _tone(name: str, position: int, count: int) -> Tone:
    from gpusight.analyses.memory.peak import HELD_BEFORE
    from gpusight.analyses.memory.timeline import REST

    if name == HELD_BEFORE and position == 0:
        return Tone.PALE
    return Tone.QUIET if name == REST and position == count - 1 else Tone.SERIES


def _reserved(times: tuple[float, ...], points: pl.DataFrame) -> Line:
    values = tuple(points["reserved_bytes"].to_list())
    return Line(RESERVED, times, values, Tone.STRONG, steps=True, dashed=True)


def _subtitle(result: Composite, facts: dict[str, Any], *, reserved_shown: bool) -> str:
    parts = [PurePath(str(result.meta.get("path", ""))).name]
    growth = facts.get("growth_per_step_bytes")
    if growth is not None:
        sign = "+" if growth > 0 else ""
        parts.append(f"growth a step {sign}{format_bytes(growth)}")
    if facts.get("reserved_max_bytes") is not None and not reserved_shown:
        parts.append(f"reserved {format_bytes(facts['reserved_max_bytes'])}, beyond the picture")
    return " · ".join(filter(None, parts))


def _steps(result: Composite) -> tuple[Band, ...]:
    steps = _section(result, "steps")
    if steps is None or steps.height > _MOST_BANDS:
        return ()
    rows = steps.select("start_ns", "duration_ns", "number").iter_rows()
    return tuple(Band(start, start + length, f"step {n}") for start, length, n in rows)


def _limit(facts: dict[str, Any]) -> tuple[Rule, ...]:
    """Draw how much memory the GPU has, where the program came near it."""
    share = facts.get("peak_share")
    if not share or share < _NEAR_FULL:
        return ()
    limit = facts["peak_bytes"] / share
    return (Rule(limit, f"memory of the GPU: {format_bytes(limit)}"),)


def _holders(result: Composite) -> tuple[tuple[str, str], ...]:
    peak = _section(result, "peak")
    if peak is None:
        return ()
    rows = [
        (holder, format_bytes(size))
        for holder, size in peak.select("holder", "bytes").head(_DETAIL_ROWS).iter_rows()
    ]
    if peak.height > _DETAIL_ROWS:
        rest = format_bytes(int(peak["bytes"][_DETAIL_ROWS:].sum()))
        rows.append((f"{peak.height - _DETAIL_ROWS:,} more", rest))
    return tuple(rows)


def _section(result: Composite, name: str) -> pl.DataFrame | None:
    for section in result.sections:
        if section.command == name and isinstance(section, TableResult):
            return section.frame
        if section.command == name and isinstance(section, NotApplicable):
            return None
    return None
