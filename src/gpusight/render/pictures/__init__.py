"""Results as pictures: a `Figure` or a `Board` says what to show, `draw` gives a file's bytes.

SVG and HTML are written by this package itself; PNG and PDF need the extra `gpusight[pictures]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.errors import UsageError

if TYPE_CHECKING:
    from gpusight.render.pictures.board import Board
    from gpusight.render.pictures.figure import Figure
    from gpusight.result import Result

FORMATS = ("svg", "html", "png", "pdf")
"""What `draw` can make, which is also how the names of such files end."""


def draw(figure: Figure | Board, form: str, *, result: Result | None = None) -> bytes:
    """Draw a picture; an HTML page also shows the result it was made from, where that is given."""
    if form == "svg":
        from gpusight.render.pictures.svg import to_svg

        return to_svg(figure).encode()
    if form == "html":
        from gpusight.render.pictures.page import to_page

        return to_page(figure, result).encode()
    if form in FORMATS:
        from gpusight.render.pictures.raster import to_bytes

        return to_bytes(figure, form)
    raise UsageError(f"no picture format {form!r}", hint=f"formats are {', '.join(FORMATS)}")
