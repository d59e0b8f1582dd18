"""The ledger of a GPU as a track: what each instant counts for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analyses.timeline.colours import COLOURS
from gpusight.analyses.timeline.line import Line

if TYPE_CHECKING:
    from gpusight.analyses.timeline.colours import Codes
    from gpusight.analyses.timeline.window import Ints

TABLE = "ledger"
"""What stands for a table in its tracks: rows are spans of the ledger, which no table holds."""


@dataclass(frozen=True, eq=False)
class LedgerSpans:
    """Spans of time that count for one entry each."""

    start_ns: Ints
    end_ns: Ints
    colour: Codes

    def line(self, number: int) -> Line:
        """Build what answers about the only line."""
        assert number == 0, "a ledger has one line"
        return Line.of(self.start_ns, self.end_ns, self.colour)

    def where(self, number: int, positions: Ints) -> tuple[Ints, Ints]:
        """Give the numbers of spans as rows."""
        assert number == 0, "a ledger has one line"
        return np.zeros_like(positions), positions

    def times(self, number: int, positions: Ints) -> tuple[Ints, Ints]:
        """Give when spans begin and end."""
        assert number == 0, "a ledger has one line"
        return self.start_ns[positions], self.end_ns[positions]

    def labels(self, number: int, positions: Ints) -> tuple[Ints, list[str]]:
        """Name the entries: `idle: input`."""
        assert number == 0, "a ledger has one line"
        used, which = np.unique(self.colour[positions], return_inverse=True)
        return which, [COLOURS[code].replace("/", ": ") for code in used]
