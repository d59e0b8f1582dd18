"""What the server tells about a capture, as frontend/src/timeline/types.ts declares it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpusight._version import __version__
from gpusight.render.cells import safe_text
from gpusight.render.palette import COLOURS, HOST, colour_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusight.analyses.timeline.window import Spot, Track
    from gpusight.render.palette import Colour


LONGEST_NAME = 4_000
"""Characters of a name among others; those of templates have hundreds."""
LONGEST_TEXT = 50_000
"""Characters of what is told of one event alone."""


@dataclass(frozen=True, slots=True)
class CaptureState:
    """How far a capture is."""

    id: int
    name: str
    state: str
    """`reading`, `ready` or `failed`."""
    message: str


@dataclass(frozen=True, slots=True)
class Overview:
    """Every capture, and the colours of what their timelines show."""

    captures: Sequence[CaptureState]
    palette: dict[str, dict[str, str]]
    version: str


@dataclass(frozen=True, slots=True)
class MarkedStep:
    """A step, as the ruler of the timeline marks it."""

    number: int
    name: str
    start_ns: int
    end_ns: int
    warmup: bool
    """Not judged: warm-up, or cut off by the capture."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A stretch of time."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class CaptureInfo:
    """What a page must know of a capture before it asks for any of its events."""

    id: int
    name: str
    tool: str
    gpus: Sequence[str]
    start_ns: int
    end_ns: int
    tracks: Sequence[Track]
    colours: Sequence[str]
    steps: Sequence[MarkedStep]
    notes: Sequence[str]
    first_view: TimeRange | None


@dataclass(frozen=True, slots=True)
class ShownFact:
    """One labelled value, as people read it."""

    name: str
    value: str
    meaning: str


@dataclass(frozen=True, slots=True)
class ShownSection:
    """Facts that belong together."""

    title: str
    rows: Sequence[ShownFact]


@dataclass(frozen=True, slots=True)
class Link:
    """An event that belongs to another, and how."""

    relation: str
    spot: Spot


@dataclass(frozen=True, slots=True)
class EventDetails:
    """Everything that is known about one event."""

    spot: Spot
    kind: str
    title: str
    sections: Sequence[ShownSection]
    links: Sequence[Link]


def shown(text: str, most: int = LONGEST_NAME) -> str:
    """Give a text out of a capture that can be shown, cut off where it is longer than anyone reads.

    A name may have a million characters, and a thousand of them stand in one answer.
    """
    return safe_text(text if len(text) <= most else f"{text[: most - 1]}…")


def safe(spot: Spot) -> Spot:
    """Give a place whose name can be shown."""
    return replace(spot, name=safe_text(spot.name))


def overview(captures: Sequence[CaptureState], colours: Iterable[str]) -> Overview:
    """Say how far the captures are; `colours` are those that their timelines use."""
    keys = (*COLOURS, *(f"host/{number}" for number in range(len(HOST))), *colours)
    return Overview(captures, {key: _colour(colour_of(key)) for key in keys}, __version__)


def _colour(colour: Colour) -> dict[str, str]:
    return {"light": colour.light, "dark": colour.dark}
