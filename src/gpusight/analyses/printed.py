"""What a profiler printed below its table: the time of everything, listed or not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gpusight.model.trace import Trace

_FOOTER = re.compile(
    r"Self (?P<device>\S{1,40}) time total: (?P<number>\d{1,12}(?:\.\d{1,9})?) ?(?P<unit>[num]?s)"
)
_UNITS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}
_CPU = "CPU"


class PrintedTotals(NamedTuple):
    """The time that percentages in a printed table refer to; None where it is not printed."""

    cpu_ns: int | None = None
    gpu_ns: int | None = None


def printed_totals(trace: Trace) -> PrintedTotals:
    """Read the totals below a table; the first device beside the CPU is the GPU."""
    said = trace.table("diagnostics", ["text"])["text"].to_list()
    found = [match for text in said if (match := _FOOTER.fullmatch(text.strip()))]
    cpu = [_nanoseconds(match) for match in found if match["device"] == _CPU]
    gpu = [_nanoseconds(match) for match in found if match["device"] != _CPU]
    # A total of nothing says no more than none at all.
    return PrintedTotals(next(iter(cpu), None) or None, next(iter(gpu), None) or None)


def _nanoseconds(match: re.Match[str]) -> int:
    return round(float(match["number"]) * _UNITS[match["unit"]])
