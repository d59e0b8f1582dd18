"""What the functions of `gpusight.api` give: results that show themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusight.asking import given
from gpusight.render.result_view import REPR_ROWS, TablesView

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from gpusight.render.charts.figure import Figure, StripChart
    from gpusight.render.table_layout import TableOptions
    from gpusight.results import Composite, TableResult

REPR_WIDTH = 100


class _Tabular(TablesView):
    """What tables and pages have in common."""

    def __init__(self, result: TableResult | Composite) -> None:
        self.result = result

    def to_text(self) -> str:
        """Give the first rows as plain text, as printing does."""
        from gpusight.render.terminal_tables import to_plain

        return to_plain(self.result, _look())


class View(_Tabular):
    """A table: `frame` is the Polars frame, printing it shows the first rows."""

    result: TableResult

    @property
    def frame(self) -> pl.DataFrame:
        """All rows and fields, in base units (nanoseconds, bytes, fractions of 1)."""
        return self.result.frame

    def rows(self) -> list[dict[str, Any]]:
        """Give all rows as plain dictionaries."""
        return self.result.rows()

    def __len__(self) -> int:
        """Count the rows."""
        return self.result.frame.height


class Page(_Tabular):
    """A one-screen answer: facts, and tables by name: `page["kernels"]`."""

    result: Composite

    @property
    def facts(self) -> dict[str, Any]:
        """The facts at the top, in base units."""
        return {fact.key: fact.value for fact in self.result.facts}

    @property
    def figure(self) -> Figure | StripChart:
        """The picture, for answers that have one: memory, roofline, utilisation, timeline, …"""
        from gpusight.render.charts.draw_chart import figure_of

        return figure_of(self.result)

    def _drawn(self, form: str) -> bytes:
        from gpusight.render.charts.draw_chart import draw_result

        return draw_result(self.result, form)

    def __iter__(self) -> Iterator[str]:
        """Give the names of the sections."""
        return (section.command for section in self.result.sections)

    def __getitem__(self, name: str) -> View:
        """Give a section; raises MissingDataError when the capture could not fill it."""
        for section in self.result.sections:
            if section.command == name:
                return View(given(section))
        raise KeyError(name)


def _look() -> TableOptions:
    from gpusight.render.table_layout import TableOptions as Look

    advice = "all are in .frame"
    return Look(REPR_WIDTH, REPR_ROWS, rows_advice=advice, columns_advice=advice)
