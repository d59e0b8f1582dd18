"""What a board is drawn with: a few kinds of marks, in pixels from the top left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gpusight.render.pictures.frame import Size

    Points = tuple[tuple[float, float], ...]

FINE = 11.0
"""Size of letters inside cells."""


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle, with what shows when it is pointed at."""

    left: float
    top: float
    width: float
    height: float
    slot: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Boxes:
    """Many rectangles of one colour, of which nothing is told one by one."""

    slot: str
    boxes: tuple[tuple[float, float, float, float], ...]
    """Left, top, width and height of each."""


@dataclass(frozen=True, slots=True)
class Shade:
    """A lightly shaded rectangle behind everything."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Area:
    """A filled outline."""

    corners: Points
    slot: str


@dataclass(frozen=True, slots=True)
class Stroke:
    """A line through points."""

    points: Points
    slot: str = ""
    """Its colour; that of the grid by default."""
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    """A text on one line."""

    text: str
    x: float
    y: float
    look: str = ""
    """`title`, `strong`, `muted` or `fine`; empty for plain."""
    anchor: str = "start"
    """`start`, `middle` or `end`: which part of the text stands at `x`."""
    on: str = ""
    """Slot of the cell that it stands in: its letters are white or near black then."""


Ink: TypeAlias = "Box | Boxes | Shade | Area | Stroke | Words"


@dataclass(frozen=True, slots=True)
class Painting:
    """A board laid out at one width."""

    size: Size
    ink: tuple[Ink, ...]
    """What lies behind comes first."""
    left: float
    right: float
    top: float
    bottom: float
    """Where its rows lie."""
    low: float
    high: float
    """Values at `left` and `right`."""
