"""What Nsight Compute measured of a kernel of a timeline."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.counters import quantities as q
from gpusight.analyses.counters.quantity import DURATION, measured
from gpusight.analyses.join.match import NEEDS, ORDER, cover, in_launch_order
from gpusight.analyses.launch_columns import SHAPE
from gpusight.analyses.roofline.points import points
from gpusight.analyses.statistics import names_of
from gpusight.analyses.timeline.details_excerpt import Excerpt, positions
from gpusight.result import Fact, Fmt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpusight.model.trace import Trace

_QUANTITIES = (
    (q.SM_SHARE, "SMs busy"),
    (q.MEMORY_SHARE, "Memory busy"),
    (q.DRAM_SHARE, "DRAM busy"),
    (q.OCCUPANCY, "Achieved occupancy"),
)
_STALL = re.compile(
    r"smsp__(?:average_warps_issue_stalled_(?P<of_warps>\w+)_per_issue_active\.ratio"
    r"|pcsamp_warps_issue_stalled_(?P<sampled>\w+?))"
)
_NO_STALLS = re.compile(r"(?:not_)?selected|\w+_not_issued")
"""Warps that issued or could have, and the samples of others counted again."""


def measured_facts(trace: Trace, row: int, report: Trace) -> list[Fact]:
    """Give what was measured of the launch that tells of a kernel; nothing where none does."""
    launch, exact = _launches(trace, report).row(row)
    if launch is None:
        return []
    part = _excerpt(report, launch)
    values = measured(part, [quantity for quantity, _ in _QUANTITIES]).row(0, named=True)
    under = points(part).select("roof_share", "bound").row(0, named=True)
    how = "found in the order of launches" if exact else "of the same name, grid and block"
    return [
        Fact("launch", "Measured launch", launch, Fmt.ID, f"Its number in the report; {how}"),
        Fact("measured_ns", "Duration measured", values[DURATION], Fmt.TIME, "Alone, caches cold"),
        *(Fact(f"measured_{one.key}", label, values[one.key], Fmt.SHARE, one.meaning)
          for one, label in _QUANTITIES),
        Fact("roof_share", "Of the roof", under["roof_share"], Fmt.SHARE, "1 is at the roof"),
        Fact("bound", "Bound by", under["bound"], Fmt.TEXT, "Compute, memory or latency"),
        *_top_stall(part),
    ]  # fmt: skip


def _launches(trace: Trace, report: Trace) -> pl.DataFrame:
    """Give for each kernel the measured launch that tells of it, and whether by sequence."""
    return trace.derive(f"measured-launches-1-{_identity(report)}", lambda: _match(trace, report))


def _match(trace: Trace, report: Trace) -> pl.DataFrame:
    columns = list(dict.fromkeys((*NEEDS, *ORDER)))
    kernels = in_launch_order(trace.table("kernels", columns).with_row_index("row"))
    profiles = report.table("profiles", ["launch", "kind", *NEEDS])
    profiles = profiles.filter(pl.col("kind").cast(pl.String) == "kernel")
    found = cover(kernels.select(NEEDS), profiles.select(NEEDS))
    told = pl.Series(found.right).set(pl.Series(found.right < 0), None)
    return (
        pl.DataFrame(
            {
                "row": kernels["row"],
                "launch": profiles["launch"].gather(told),
                "exact": found.in_sequence,
            }
        )
        .sort("row")
        .drop("row")
    )


def _identity(report: Trace) -> str:
    """Tell reports apart by what they measured: a path may hold another one tomorrow."""
    frame = report.table("profiles", [DURATION, "name", *SHAPE])
    digest = hashlib.blake2b(digest_size=12)
    for text in (report.meta.path, *names_of(frame["name"])):
        digest.update(text.encode("utf-8", "surrogateescape"))
    for column in frame.with_columns(pl.col("name").to_physical()).get_columns():
        digest.update(column.fill_null(-1).to_numpy().tobytes())
    return digest.hexdigest()


def _excerpt(report: Trace, launch: int) -> Trace:
    """Take one launch of a report with its counters."""
    mine = pl.col("launch") == launch
    rows = {
        table: positions(report.table(table, ["launch"]), mine)
        for table in ("profiles", "counters", "counter_instances")
        if report.has(table)
    }
    return Excerpt(report, rows).trace


def _top_stall(part: Trace) -> Iterator[Fact]:
    """Name what warps waited for most of the time that they were resident."""
    counted: dict[str, dict[str, float]] = {"of_warps": {}, "sampled": {}}
    for metric, value in part.table("counters", ["metric", "value"]).iter_rows():
        found = _STALL.fullmatch(metric)
        if found is not None and value:
            counted[str(found.lastgroup)][found[str(found.lastgroup)]] = value
    shares = counted["of_warps"] or counted["sampled"]
    waits = {reason: n for reason, n in shares.items() if not _NO_STALLS.fullmatch(reason)}
    if waits:
        yield from _stall_facts(*max(waits.items(), key=lambda one: one[1]), shares)


def _stall_facts(reason: str, value: float, shares: dict[str, Any]) -> Iterator[Fact]:
    every = sum(n for name, n in shares.items() if not name.endswith("_not_issued"))
    words = reason.replace("_", " ")
    yield Fact("stall", "Warps wait for", words, Fmt.TEXT, "Most frequent reason not to issue")
    yield Fact("stall_share", "Of their time", value / every, Fmt.SHARE, "Part of resident time")
