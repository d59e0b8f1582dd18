"""A report that shows itself in short, and as the page that it is."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.render.cells import safe_text, show
from gpusight.render.diagnosis.page import prose, text
from gpusight.render.shown import Shown
from gpusight.units import format_time

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from gpusight.reporting.report import Report


class ReportView(Shown):
    """Everything about a capture: `save` writes the page; printing shows its beginning."""

    result: Report

    def __init__(self, result: Report, captures: tuple[str, ...] = ()) -> None:
        self.result = result
        self._captures = captures
        """Where the captures lie, which `save` never writes to."""

    @cached_property
    def html(self) -> str:
        """The page, which needs nothing else."""
        from gpusight.render.report.page import to_page

        return to_page(self.result)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, which is replaced; gives where it is."""
        from gpusight.evidence import refuse_capture
        from gpusight.output_files import write_file

        target = Path(path)
        for capture in self._captures or (None,):
            refuse_capture(target, capture)
        write_file(target, self.html.encode("utf-8", "backslashreplace"))
        return target

    def to_text(self) -> str:
        """Give the beginning as plain text, as printing does."""
        return "\n".join((safe_text(self.title), *map(safe_text, self._lines()))) + "\n"

    def _repr_html_(self) -> str:
        """Show the beginning: the page itself has styles and a script of its own."""
        lines = "".join(f"<li>{prose(line)}</li>" for line in self._lines())
        return f"<p><b>{text(self.title)}</b></p><ul>{lines}</ul>"

    def _lines(self) -> Iterator[str]:
        told = self.result.headline
        for number in told.numbers:
            detail = f" ({number.detail})" if number.detail else ""
            yield f"{number.label}: {show(number.value, number.fmt)}{detail}"
        for rank, gain in enumerate(told.gains, 1):
            yield f"{rank}. {gain.title}: {format_time(gain.worth_ns)}"
        yield "the page: .save('report.html')"
