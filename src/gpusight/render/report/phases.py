"""Which part of a step the GPU worked for: forward, backward, optimizer, data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.render.diagnosis.page import text
from gpusight.render.report import markup, stacked
from gpusight.result import NotApplicable, TableResult
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from gpusight.result import Composite

_COLOURS = {
    "forward": "compute/matmul",
    "backward": "compute/attention",
    "optimizer": "compute/optimizer",
    "data": "idle/input",
    "communication": "communication",
}
_OTHERS = "compute/other"
_FIELDS = ("step_ns", "share", "gpu_ns", "gpu_ops")


def phases_section(steps: Composite | NotApplicable) -> markup.Section | None:
    """Write the section; None where nothing tells the phases."""
    if isinstance(steps, NotApplicable):
        return None
    table = next((s for s in steps.sections if s.command == "phases"), None)
    if not isinstance(table, TableResult):
        return None
    pieces = _pieces(table)
    body = (
        markup.lead("Which part of a step launched the work of the GPU, in the steps that count.")
        + stacked.bar(pieces, "; ".join(piece.told for piece in pieces))
        + _numbers(table, pieces)
    )
    return markup.Section("phases", "Phases", body)


def _pieces(table: TableResult) -> list[stacked.Piece]:
    rows = table.frame.select("phase", "share", "gpu_ns").iter_rows()
    return [
        stacked.Piece(
            phase,
            _COLOURS.get(phase, _OTHERS),
            share or 0.0,
            f"{phase} {format_time(ns)}, {format_share(share)}",
        )
        for phase, share, ns in rows
    ]


def _numbers(table: TableResult, pieces: list[stacked.Piece]) -> str:
    columns = markup.columns_of(table, _FIELDS, bars=("share",))
    rows = zip(pieces, table.frame.iter_rows(named=True), strict=True)
    body = "".join(
        markup.row(f"<td>{markup.swatch(p.colour)}{text(p.name)}</td>{markup.cells(row, columns)}")
        for p, row in rows
    )
    heads = f'<th scope="col">Phase</th>{markup.head(columns)}'
    return markup.grid(heads, body, caption=table.title)
