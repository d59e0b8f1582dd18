"""Which table a line begins: what the headings of printed tables say.

Layouts differ by version and by page, but all name their columns. A heading is known by its words,
never by its place, so columns may be missing, added or in another order.
"""

from __future__ import annotations

import csv
import enum
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SEPARATORS = (",", ";", "\t")
_MAX_HEADING_CHARS = 8 << 20
_MAX_NAME_CHARS = 1000
MAX_COLUMNS = 20_000
"""No table is wider; the widest known has some three thousand."""


class Form(enum.Enum):
    """How a table is laid out."""

    LONG = "a row for each metric of each launch"
    SUMMARY = "a row for each metric of each kernel, over its launches"
    WIDE = "a row for each launch, a column for each metric"
    TURNED = "a row for each metric, a column for each launch"
    SOURCE = "a row for each instruction or line of source"
    SESSION = "a row for each attribute of the session or of the GPUs"


ROW_FORMS = (Form.LONG, Form.SUMMARY, Form.WIDE)
"""Tables whose rows stand for themselves, so that they may come in pieces."""
_ROLES = {
    "id": "id",
    "process id": "pid",
    "process name": "process",
    "process": "process",
    "demangled name": "kernel",
    "kernel name": "kernel",
    "function name": "function",
    "mangled name": "mangled",
    "context": "context",
    "stream": "stream",
    "block size": "block",
    "grid size": "grid",
    "device": "device",
    "device name": "device_name",
    "cc": "cc",
    "invocations": "invocations",
    "section name": "section",
    "body item label": "body",
    "metric name": "metric",
    "metric unit": "unit",
    "metric value": "value",
    "average": "value",
    "rule name": "rule",
    "rule type": "rule_kind",
    "rule description": "message",
    "estimated speedup type": "speedup_kind",
    "estimated speedup": "speedup",
    "domain": "domain",
    "host name": "host",
    "kernel time": "time",
    "minimum": "minimum",
    "maximum": "maximum",
}
"""Columns that are no metrics, by their headings. `Kernel Time` is the date of the launch."""
_BEGINNINGS = {
    "thread domain:push/pop": "push_pop",
    "id:domain:start/stop": "start_stop",
    "range:pl_type": "range",
}
_NAMED = ("kernel", "function")
_KEYS = frozenset({"id", "kernel", "function", "file"})
_WITH_UNIT = re.compile(r"(?P<name>.*\S)\s*\[(?P<unit>[^\[\]]*)\]", re.DOTALL)
FILES = ("file name", "file path")
METRICS = ("metric name", "metric")
UNITS = ("metric unit", "unit")
_SESSION = re.compile(r"(?:session|launch|device) attribute|process id")
_NUMBER = re.compile(r"\d{1,18}")
_TOKENS = re.compile(r"(?i)Name|Path|Metric|Source|Attribute|\bID\b")


@dataclass(frozen=True, slots=True)
class Heading:
    """A line of headings: the form of what follows, and where each column lies."""

    form: Form
    separator: str
    cells: tuple[str, ...]
    roles: Mapping[str, int] = field(default_factory=dict)
    metrics: tuple[int, ...] = ()
    """Columns of metrics, in tables that have a column for each."""

    @property
    def is_numbered(self) -> bool:
        """Tell whether rows begin with a number: of the launch, or else of the process."""
        return 0 in (self.roles.get("id"), self.roles.get("pid"))


def split(line: str, separator: str) -> list[str]:
    """Cut a line into its cells."""
    return next(csv.reader([line], delimiter=separator), [])


def with_unit(text: str) -> tuple[str, str]:
    """Take `name [unit]` apart; the unit is empty where there is none."""
    match = _WITH_UNIT.fullmatch(text.strip()) if len(text) <= _MAX_NAME_CHARS else None
    return (match["name"], match["unit"].strip()) if match else (text.strip(), "")


def is_metric_name(text: str) -> bool:
    """Tell a metric's name from a label: only names have two underscores in a row."""
    return "__" in text and " " not in text.strip()


def role_of(cell: str) -> str | None:
    """Tell which column a heading stands for; none where it is a metric or not known."""
    name = with_unit(cell)[0].casefold()
    known = _ROLES.get(name)
    return known or next((r for b, r in _BEGINNINGS.items() if name.startswith(b)), None)


def heading_of(line: str) -> Heading | None:
    """Read a line as headings; none where it is something else."""
    if len(line) > _MAX_HEADING_CHARS or not _TOKENS.search(line):
        return None
    text = line.strip()
    for separator in SEPARATORS:
        if separator in text:
            try:
                cells = tuple(cell.strip() for cell in split(text, separator))
            except csv.Error:
                continue
            found = _heading(cells, separator) if len(cells) <= MAX_COLUMNS else None
            if found is not None:
                return found
    return None


def _heading(cells: tuple[str, ...], separator: str) -> Heading | None:
    names = [cell.casefold() for cell in cells]
    roles = _roles(cells)
    if "metric" in roles and "value" in roles:
        form = Form.SUMMARY if "average" in names else Form.LONG
        return Heading(form, separator, cells, roles)
    if "source" in names and ("address" in names or "line no" in names):
        return Heading(Form.SOURCE, separator, cells)
    if _SESSION.fullmatch(names[0]) and _is_session(names):
        return Heading(Form.SESSION, separator, cells)
    if any(role in roles for role in _NAMED):
        metrics = _metric_columns(cells, roles)
        if metrics:
            return Heading(Form.WIDE, separator, cells, roles, metrics)
    return Heading(Form.TURNED, separator, cells) if _is_turned(names) else None


def _roles(cells: Sequence[str]) -> dict[str, int]:
    roles: dict[str, int] = {}
    for at, cell in enumerate(cells):
        role = role_of(cell)
        if role is not None:
            roles.setdefault(role, at)
    return roles


def _metric_columns(cells: Sequence[str], roles: Mapping[str, int]) -> tuple[int, ...]:
    """Give the columns of metrics; none unless one of them cannot be anything else."""
    taken = set(roles.values())
    others = [at for at, cell in enumerate(cells) if at not in taken and cell]
    sure = any(is_metric_name(with_unit(cells[at])[0]) or with_unit(cells[at])[1] for at in others)
    return tuple(at for at in others if role_of(cells[at]) is None) if sure else ()


def _is_session(names: Sequence[str]) -> bool:
    return names[1:2] in (["value"], ["process name"]) or names[1].startswith("device ")


def _is_turned(names: Sequence[str]) -> bool:
    """Tell whether a line is the first of a table whose rows are metrics."""
    first, others = names[0], [name for name in names[1:] if name]
    if not others:
        return False
    if first == "id":
        return all(_NUMBER.fullmatch(other) for other in others)
    if first in METRICS:
        return any(other not in UNITS for other in others)
    return first in FILES or role_of(first) in _KEYS
