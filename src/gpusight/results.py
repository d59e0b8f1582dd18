"""What an analysis returns: rows with declared fields, or the reason why there are none."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from gpusight.errors import NotApplicableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl


class Fmt(enum.Enum):
    """How a field's base-unit value is shown to people; JSON and CSV keep the base unit."""

    TEXT = "text"
    NAME = "name"
    """Long text that may be shortened to fit the terminal."""
    ID = "id"
    """A whole number that names something; never grouped or scaled."""
    FLAG = "flag"
    COUNT = "count"
    TIME = "time"
    """Nanoseconds, shown as ns, µs, ms or s."""
    BYTES = "bytes"
    SHARE = "share"
    """A fraction from 0 to 1, shown as a percentage."""
    RATE = "rate"
    """Bytes per second."""
    REAL = "real"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a result row: its stable JSON key, its heading, its format and meaning."""

    key: str
    label: str
    fmt: Fmt
    meaning: str
    shown: bool = True
    """Part of the default table; every field is always in JSON and CSV."""
    indented_by: str = ""
    """Key of the depth by which tables indent it, where the rows are a tree."""


@dataclass(frozen=True)
class TableResult:
    """Rows of an analysis. `frame` has exactly the columns that `fields` declares, in order."""

    command: str
    title: str
    fields: tuple[Field, ...]
    frame: pl.DataFrame
    meta: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What a reader of the rows must know: incomplete data, what was left out, what was assumed."""
    window: str = ""
    """The time that the rows cover, in words; empty for a section of a page."""

    @property
    def heading(self) -> str:
        """The title, with the time that the rows cover."""
        return f"{self.title}: {self.window}" if self.window else self.title

    def __post_init__(self) -> None:
        """Hold the promise that fields and columns agree."""
        keys = [f.key for f in self.fields]
        if keys != self.frame.columns:
            raise ValueError(f"{self.command}: fields {keys} but columns {self.frame.columns}")

    def rows(self) -> list[dict[str, Any]]:
        """Give the rows as plain dictionaries."""
        return self.frame.to_dicts()


@dataclass(frozen=True)
class NotApplicable:
    """An analysis that could not be done, and why; never confused with an empty result."""

    command: str
    reason: str
    hint: str = ""
    """What to capture or type to get an answer."""

    def after_losses(self, losses: Sequence[str]) -> NotApplicable:
        """Put what a capture lost first: it may be why the data is not there."""
        if not losses:
            return self
        reason = f"{'; '.join(losses)}; {self.reason}"
        return NotApplicable(self.command, reason, "copy or record it again")

    def error(self) -> NotApplicableError:
        """Give the exception that the functions of `gpusight.api` raise for it."""
        return NotApplicableError(self.reason, hint=self.hint)


@dataclass(frozen=True, slots=True)
class Fact:
    """One labeled value about a whole capture or window."""

    key: str
    label: str
    value: Any
    fmt: Fmt
    meaning: str


@dataclass(frozen=True)
class Composite:
    """A one-screen answer: facts at the top, then sections that are results of their own."""

    command: str
    title: str
    facts: tuple[Fact, ...]
    sections: tuple[TableResult | NotApplicable, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    window: str = ""
    """The time that it covers, in words: `3 steps of 46.9 ms (2 warm-up steps excluded)`."""

    @property
    def heading(self) -> str:
        """The title, with the time that the page covers."""
        return f"{self.title}: {self.window}" if self.window else self.title


Answer: TypeAlias = "TableResult | Composite | NotApplicable"


def with_window_text(
    result: Answer, window: str, document: Mapping[str, Any] | None = None
) -> Answer:
    """Name the time that an answer covers in its headline, where it does not yet.

    `document` is the same as plain objects, for JSON.
    """
    if isinstance(result, NotApplicable) or result.window or not window:
        return result
    known = {} if document is None else {"headline": document}
    return replace(result, window=window, meta={**known, **result.meta})


def with_warnings(result: Answer, warnings: Sequence[str]) -> Answer:
    """Say at the top of an answer why it may be less than the whole truth."""
    if not warnings or isinstance(result, NotApplicable):  # after_losses has them
        return result
    return replace(result, notes=tuple(dict.fromkeys((*warnings, *result.notes))))


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number that a finding rests on."""

    metric: str
    """Short name of what was measured."""
    value: float
    unit: str
    """`share` (0 to 1), `byte`, `byte/s`, `ns`, `cycle`, `flop/s`, or empty for a plain number."""
    meaning: str
    """Explanation of the number."""

    def document(self) -> dict[str, Any]:
        """Return plain objects, for JSON."""
        return asdict(self)
