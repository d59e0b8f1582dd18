"""What an answer is: a sentence, the numbers in it, and tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.result import TableResult


@dataclass(frozen=True)
class Answer:
    """The answer to one question."""

    sentence: str
    numbers: Mapping[str, Any]
    """In base units, as the JSON document gives them."""
    tables: tuple[TableResult, ...]
    notes: tuple[str, ...] = field(default=())


def listed(parts: list[str]) -> str:
    """Join parts as people do: `a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1]))) if parts else ""


def times(count: float) -> str:
    """Say how often something happens: `12 times`, `1.5 times`, `once`."""
    whole = f"{count:,.0f}" if float(count).is_integer() else f"{count:,.1f}"
    return "once" if whole == "1" else f"{whole} times"
