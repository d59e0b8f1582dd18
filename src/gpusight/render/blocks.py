"""A result as the blocks of one screen, which the plain and the coloured writers share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gpusight.render.cells import safe_text, shorten_middle, show
from gpusight.render.layout import Layout, Look, lay_out
from gpusight.result import Composite, Fact, Fmt, NotApplicable, Result, TableResult

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Heading:
    """A title line."""

    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Labels with their values, one a line."""

    pairs: tuple[tuple[str, str], ...]
    shares: tuple[float | None, ...] = ()
    """The fraction behind each value that is a share, from which bars are drawn."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table cut to fit."""

    layout: Layout


@dataclass(frozen=True, slots=True)
class Note:
    """A line the reader must know; `label` says of what kind it is, or is empty for an aside."""

    text: str
    label: str = "note"

    @property
    def stands_alone(self) -> bool:
        """Takes the place of a whole section, rather than being said of the block above."""
        return self.label not in {"", "note"}


Block: TypeAlias = "Heading | Facts | Grid | Note"


def blocks_of(result: Result, look: Look) -> list[Block]:
    """Break a result into blocks, cut to the screen."""
    if isinstance(result, TableResult):
        return [*_table(result, look), *_notes(result.notes)]
    if isinstance(result, Composite):
        return _composite(result, look)
    return [_absent(result)]


def starts_section(block: Block) -> bool:
    """Tell whether an empty line goes before this block."""
    return isinstance(block, (Heading, Facts)) or (isinstance(block, Note) and block.stands_alone)


def sentence(absent: NotApplicable) -> str:
    """Give the reason and the remedy as one safe line."""
    reason = safe_text(absent.reason).rstrip(".")
    return f"{reason}; {safe_text(absent.hint)}" if absent.hint else reason


def _table(result: TableResult, look: Look) -> list[Block]:
    title = Heading(safe_text(result.title))
    layout = lay_out(result, look)
    if not layout.rows:
        return [title, Note("no rows", label="")]
    asides = _left_out(layout, look)
    return [title, Grid(layout), *(Note(a, label="") for a in asides)]


def _left_out(layout: Layout, look: Look) -> Iterable[str]:
    if layout.rows_left_out:
        rows = "row" if layout.rows_left_out == 1 else "rows"
        yield f"… and {layout.rows_left_out:,} more {rows} ({look.rows_advice})"
    if layout.columns_left_out:
        yield f"no room for: {', '.join(layout.columns_left_out)} ({look.columns_advice})"


def _composite(result: Composite, look: Look) -> list[Block]:
    # Notes come first: that data is incomplete must be read before the numbers, not after.
    blocks: list[Block] = [Heading(safe_text(result.title)), *_notes(result.notes)]
    if result.facts:
        pairs = tuple(_pair(f, look.width) for f in result.facts)
        blocks.append(Facts(pairs, tuple(_share(f) for f in result.facts)))
    for section in result.sections:
        blocks += blocks_of(section, look)
    return blocks


def _pair(fact: Fact, width: int | None) -> tuple[str, str]:
    value = show(fact.value, fact.fmt)
    if fact.fmt is Fmt.NAME and width is not None:
        value = shorten_middle(value, max(20, width - 24))
    return safe_text(fact.label), value


def _share(fact: Fact) -> float | None:
    numeric = fact.fmt is Fmt.SHARE and isinstance(fact.value, (int, float))
    return float(fact.value) if numeric else None


def _notes(notes: Iterable[str]) -> list[Block]:
    return [Note(safe_text(n)) for n in notes]


def _absent(absent: NotApplicable) -> Block:
    return Note(sentence(absent), label=absent.command)
