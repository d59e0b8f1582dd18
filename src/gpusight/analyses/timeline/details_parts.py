"""What the details of an event are made of: facts in sections, and links to other events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from gpusight.model.schema import TABLES
from gpusight.result import Fact, Fmt

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Link(NamedTuple):
    """An event that belongs to another one."""

    relation: str
    """What it is to that one: `launched by`, `in range`, `next on the stream`, …"""
    table: str
    row: int


@dataclass(frozen=True, slots=True)
class Section:
    """Facts that belong together; none of them is empty."""

    title: str
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """A column of a table that is shown as it is, and how."""

    column: str
    label: str
    fmt: Fmt


def section(title: str, facts: Iterable[Fact]) -> tuple[Section, ...]:
    """Make a section of the facts that are known; none where there is none."""
    known = tuple(fact for fact in facts if fact.value is not None)
    return (Section(title, known),) if known else ()


def facts_of(table: str, values: Mapping[str, Any], shown: Sequence[Shown]) -> list[Fact]:
    """Make facts of columns; the schema says what they mean."""
    return [
        Fact(one.column, one.label, values[one.column], one.fmt, _meaning(table, one.column))
        for one in shown
    ]


def _meaning(table: str, column: str) -> str:
    return TABLES[table].column(column).meaning.replace("`", "")
