"""Numbers that a capture holds only in the sentences of the profiler's own rules.

The printed details of Nsight Compute leave out the counters of memory accesses, but its rules state
the sums that they rest on: "29360128 excessive sectors (88% of the total 33554432 sectors)".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from gpusight.findings.kernels import quantities as q

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.model.trace import Trace

_EXCESS = re.compile(
    r"(\d{1,18}) excessive (sectors|wavefronts) \(\d+% of (?:the )?total (\d{1,18}) "
)
_LONGEST = 2_000
"""What of a message is looked at."""


def numbers_said(trace: Trace) -> dict[int, dict[str, float]]:
    """Give by launch the quantities that the profiler's rules state."""
    if not trace.has("rule_results"):
        return {}
    rows = trace.table("rule_results", ("launch", "rule", "message")).drop_nulls()
    told = rows.filter(pl.col("message").str.contains("excessive", literal=True))
    said: dict[int, dict[str, float]] = {}
    for launch, rule, message in told.iter_rows():
        said.setdefault(launch, {}).update(_numbers(str(rule), message[:_LONGEST]))
    return said


def _numbers(rule: str, message: str) -> Mapping[str, float]:
    found = _EXCESS.search(message)
    if found is None:
        return {}
    excess, whole = float(found[1]), float(found[3])
    if found[2] == "sectors" and "Global" in rule:
        return {q.SECTORS_MOVED.key: whole, q.SECTORS_NEEDED.key: max(0.0, whole - excess)}
    if found[2] == "wavefronts" and "Shared" in rule:
        return {q.SHARED_WAVEFRONTS.key: whole, q.SHARED_EXCESS.key: excess}
    return {}
