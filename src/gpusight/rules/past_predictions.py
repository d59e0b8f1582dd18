"""How far predictions of fixes were off, on programs that were measured before and after the fix.

The table is generated from our own collection (`docs/accuracy.md`), and a test keeps it in step.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "data" / "past_predictions.json"


@dataclass(frozen=True, slots=True)
class PastPredictions:
    """Errors of the step time predicted for fixes of one rule, or of rules like it."""

    of: str
    """The rule itself; `host time`, `copies`, `GPU time` or `several processes`, what the fixes of
    similar rules change; or `all rules`."""
    pairs: int
    """Captures of a program as found whose repaired form was timed."""
    programs: int
    median_error: float
    worst_error: float

    def text(self, rule: str) -> str:
        """Say how far such predictions were off: `Similar fixes: within 7% …`."""
        group = "" if self.of == rule else f" ({self.of})"
        programs = f"{self.programs} program{'' if self.programs == 1 else 's'}"
        return (
            f"Similar fixes{group}: within {self.median_error:.0%} of the measured time "
            f"(median of {self.pairs} captures, {programs}; worst {self.worst_error:.0%})"
        )

    def document(self) -> dict[str, Any]:
        """Return plain objects, for JSON."""
        return asdict(self)


@cache
def past_predictions() -> dict[str, PastPredictions]:
    """Return the table by rule; your own rules are not in it."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    return {rule: PastPredictions(**past) for rule, past in table.items()}
