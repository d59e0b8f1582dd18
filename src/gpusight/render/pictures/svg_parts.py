"""The elements that SVG pictures are written with; every text in them is escaped here."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from gpusight.render.cells import safe_text

if TYPE_CHECKING:
    from collections.abc import Iterable

_DASHES = "6 4"


def moves_of(corners: Iterable[tuple[float, float]]) -> str:
    """Write corners as path commands, the shortest that say it."""
    out: list[str] = []
    at: tuple[float, float] | None = None
    for corner in corners:
        if corner == at:
            continue
        x, y = corner
        if at is None:
            out.append(f"M{x:g} {y:g}")
        elif x == at[0]:
            out.append(f"V{y:g}")
        elif y == at[1]:
            out.append(f"H{x:g}")
        else:
            out.append(f"L{x:g} {y:g}")
        at = corner
    return "".join(out)


def path_tag(moves: str, name: str, *, dashed: bool = False) -> str:
    """Write a path; `name` is its style."""
    dashes = f' stroke-dasharray="{_DASHES}"' if dashed else ""
    return f'<path class="{name}" d="{moves}"{dashes}/>'


def tag(kind: str, name: str, inner: str = "", **attributes: float | str) -> str:
    """Write any element; `inner` is markup already."""
    words = "".join(
        f' {key.replace("_", "-")}="{value if isinstance(value, str) else f"{value:.6g}"}"'
        for key, value in attributes.items()
    )
    return f'<{kind} class="{name}"{words}>{inner}</{kind}>'


def text_tag(text: str, x: float, y: float, name: str = "", anchor: str = "start") -> str:
    """Write a text on one line."""
    kind = f' class="{name}"' if name else ""
    place = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{kind}{place}>{escaped(text)}</text>'


def escaped(text: str) -> str:
    """Give a text that may stand in markup, with every character visible."""
    return escape(safe_text(text))
