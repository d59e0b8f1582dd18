"""What a report could not tell, or not fully, and why: said at its end, all in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpusight.result import NotApplicable, TableResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpusight.result import Composite

_MISSING, _MESSAGES = "missing", "messages"


@dataclass(frozen=True, slots=True)
class Absent:
    """A part of the report that the capture could not fill."""

    part: str
    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class Note:
    """What a reader of some parts must know."""

    parts: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Untold:
    """Everything that limits what a report says."""

    absent: tuple[Absent, ...]
    notes: tuple[Note, ...]
    missing: tuple[TableResult, ...]
    """What to capture next time, for each capture that lacks something."""
    messages: int
    """Warnings and errors of the profilers themselves, which may name files of the machine."""


def untold(parts: Iterable[tuple[str, Any]], about: Sequence[Composite]) -> Untold:
    """Collect what parts lack; `about` is what `info` says of each capture."""
    named = list(parts)
    return Untold(
        absent=tuple(_absent(named)),
        notes=tuple(_notes(named, about)),
        missing=_tables(about, _MISSING),
        messages=sum(table.frame.height for table in _tables(about, _MESSAGES)),
    )


def _absent(parts: Iterable[tuple[str, Any]]) -> Iterator[Absent]:
    """Give the parts without an answer, and the sections of answers that have none."""
    for name, answer in parts:
        if isinstance(answer, NotApplicable):
            yield Absent(name, answer.reason, answer.hint)
        for section in getattr(answer, "sections", ()):
            if isinstance(section, NotApplicable):
                yield Absent(f"{name}: {section.command}", section.reason, section.hint)


def _notes(parts: Iterable[tuple[str, Any]], about: Sequence[Composite]) -> Iterator[Note]:
    """Give every note once, with the parts that it was said of."""
    said: dict[str, list[str]] = {}
    of_captures = (("Capture", one) for one in about)
    for name, answer in (*of_captures, *parts):
        for note in getattr(answer, "notes", ()):
            said.setdefault(note, []).append(name)
    return (_note(text, names) for text, names in said.items())


def _note(text: str, parts: Sequence[str]) -> Note:
    return Note(tuple(dict.fromkeys(parts)), text)


def _tables(about: Sequence[Composite], name: str) -> tuple[TableResult, ...]:
    found = (section for one in about for section in one.sections if section.command == name)
    return tuple(s for s in found if isinstance(s, TableResult) and s.frame.height)


def facts_of(result: Composite) -> Mapping[str, Any]:
    """Give the facts of an answer by their keys."""
    return {fact.key: fact.value for fact in result.facts}
