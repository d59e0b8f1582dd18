"""Occupancy as a picture: what other block sizes, registers or shared memory would give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.errors import MissingDataError
from gpusight.render.pictures.figure import Axis, Dots, Figure, Line, Mark, Tone
from gpusight.result import Fmt, TableResult
from gpusight.units import format_bytes, format_share

if TYPE_CHECKING:
    import polars as pl

    from gpusight.result import Composite

_THEORETICAL = "theoretical"
_TOP = 1.08
"""A little over 100%, so that what lies there is not cut off."""
_UNITS = {"block": "threads", "registers": "registers"}
_SECTIONS = {
    "block": (
        "block_sizes",
        "block_threads",
        Axis("threads of a block", Fmt.COUNT, low=0, high=1056),
    ),
    "registers": ("registers", "registers", Axis("registers of a thread", Fmt.COUNT, low=0)),
    "shared-memory": (
        "shared_memory",
        "shared_bytes",
        Axis("shared memory of a block", Fmt.BYTES, low=0),
    ),
}


def occupancy_figure(result: Composite, over: str = "block") -> Figure:
    """Draw what an SM would hold if one thing were another; raises where that is not known."""
    name, key, axis = _SECTIONS[over]
    section = next((s for s in result.sections if s.command == name), None)
    if not isinstance(section, TableResult):
        raise MissingDataError("no kernel's shape is known well enough to draw")
    curve = _dots(section.frame, key) if over == "block" else _levels(section.frame, key)
    facts = {fact.key: fact.value for fact in result.facts}
    return Figure(
        _title(result, section),
        axis,
        Axis("", Fmt.SHARE, low=0, high=_TOP),
        (*curve, *_achieved(section, key)),
        subtitle=" · ".join(filter(None, (facts.get("gpu") or facts.get("gpus"), _limit(section)))),
        marks=_now(section, key, over),
    )


def _title(result: Composite, section: TableResult) -> str:
    _, _, kernel = section.title.partition(": ")
    return f"Occupancy of {kernel}" if kernel else result.title


def _limit(section: TableResult) -> str:
    """Say what limits the kernel as it is."""
    now = section.frame.filter(section.frame["current"])
    return _said(now["limiters"][0]) if now.height else ""


def _dots(frame: pl.DataFrame, key: str) -> tuple[Line | Dots, ...]:
    """Draw a dot for each block size, coloured by what limits it."""
    fits = frame.filter(frame["blocks"] > 0)
    line = Line("theoretical occupancy", *_points(fits, key), Tone.QUIET)
    groups = fits.group_by("limiters", maintain_order=True)
    return line, *(
        Dots(_said(str(limit)), *_points(rows, key), _labels(rows, key))
        for (limit,), rows in groups
    )


def _points(rows: pl.DataFrame, key: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(map(float, rows[key].to_list())), tuple(rows[_THEORETICAL].to_list())


def _labels(rows: pl.DataFrame, key: str) -> tuple[str, ...]:
    wanted = rows.select(key, _THEORETICAL, "blocks").iter_rows()
    return tuple(
        f"{threads} threads: {format_share(share)}, {blocks} blocks an SM"
        for threads, share, blocks in wanted
    )


def _said(limit: str) -> str:
    return "full" if limit == "none" else f"limited by {limit}"


def _levels(frame: pl.DataFrame, key: str) -> tuple[Line, ...]:
    """Draw stairs: a row holds for all values down to the next row's."""
    rows = frame.sort(key)
    tops = [float(value) for value in rows[key].to_list()]
    x = (0.0, *tops)
    shares = rows[_THEORETICAL].to_list()
    return (Line("theoretical occupancy", x, (*shares, shares[-1]), steps=True),)


def _now(section: TableResult, key: str, over: str) -> tuple[Mark, ...]:
    """Call out the kernel as it is."""
    now = section.frame.filter(section.frame["current"])
    if now.is_empty():
        return ()
    row = now.row(0, named=True)
    value = section.meta[key]  # a row of the stairs holds the largest value of its level
    shown = format_bytes(value) if over == "shared-memory" else f"{value} {_UNITS[over]}"
    detail = (("blocks an SM", str(row["blocks"])), ("limited by", row["limiters"]))
    label = f"{shown}: {format_share(row[_THEORETICAL])}"
    return (Mark(value, row[_THEORETICAL], label, detail),)


def _achieved(section: TableResult, key: str) -> tuple[Dots, ...]:
    achieved = section.meta.get("achieved")
    if achieved is None:
        return ()
    label = f"achieved {format_share(achieved)}"
    return (Dots("achieved", (float(section.meta[key]),), (achieved,), (label,)),)
