"""What a digest tells of copies, phases and memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.memory.places import Places
from gpusight.analyses.memory.report import no_memory
from gpusight.analyses.select import GPU_WORK
from gpusight.analyses.steps.phases import NO_PHASES, UNKNOWN, phases_of_work
from gpusight.comparison.blocks import ranked, rounded
from gpusight.comparison.digest import Copies
from gpusight.comparison.naming import plain
from gpusight.errors import DamagedCaptureError
from gpusight.model.ordering import number
from gpusight.result import NotApplicable

if TYPE_CHECKING:
    from gpusight.analyses.select import Selection
    from gpusight.comparison.blocks import Blocks
    from gpusight.comparison.digest import Series
    from gpusight.model.trace import Trace

MOST_COPIES = 100
_NO_TEXT = pl.lit(None, pl.String)
_KINDS = {
    "copies": (pl.col("kind"), pl.col("src_kind"), pl.col("dst_kind")),
    "memsets": (pl.lit("Memset"), _NO_TEXT, pl.col("memory_kind")),
}
"""Operation, and kinds of memory read and written, of each table of copies and fills."""
_KEYS = ("operation", "src_kind", "dst_kind")


def copy_rows(trace: Trace, blocks: Blocks, work: pl.DataFrame) -> tuple[Copies, ...]:
    """Sum copies and fills up by direction and kinds of memory, the most expensive first."""
    rows = pl.concat([_copies(trace, work, table) for table in _KINDS])
    if rows.is_empty():
        return ()
    kinds = rows.select(_KEYS).unique().sort(_KEYS).with_row_index("code")
    found = rows.join(kinds, on=_KEYS, how="left", nulls_equal=True, maintain_order="left")
    code = found["code"].cast(pl.Int64).to_numpy()
    groups = ranked(code, found["ns"].to_numpy(), MOST_COPIES)
    times, moved, calls = (
        blocks.sums(found, groups.code, column, groups.count) for column in ("ns", "bytes", None)
    )
    called = [*kinds.select(_KEYS)[groups.groups].iter_rows(), ("", None, None)]
    return tuple(
        Copies(
            operation=plain(called[at][0] or ""),
            src_kind=called[at][1],
            dst_kind=called[at][2],
            calls=rounded(calls[at], 3),
            ns=rounded(times[at]),
            bytes=rounded(moved[at]),
        )
        for at in range(groups.count)
    )


def _copies(trace: Trace, work: pl.DataFrame, table: str) -> pl.DataFrame:
    own = work.filter(pl.col("table") == GPU_WORK.index(table))
    kinds = ["kind", "src_kind", "dst_kind"] if table == "copies" else ["memory_kind"]
    told = trace.table(table, ["bytes", *kinds])[own["row"]]
    keys = [e.cast(pl.String).alias(key) for key, e in zip(_KEYS, _KINDS[table], strict=True)]
    size = pl.col("bytes").fill_null(0)
    return told.select(*keys, size).hstack(own.select("ns", "block", "after"))


def phase_series(
    trace: Trace, blocks: Blocks, work: pl.DataFrame
) -> dict[str, Series] | NotApplicable:
    """Sum GPU work up by phase, the most expensive first."""
    phases = phases_of_work(trace, work)
    known = phases.unique().sort()
    if known.to_list() == [UNKNOWN]:
        return NO_PHASES
    sums = blocks.sums(work, number(phases), "ns", len(known))
    order = np.argsort(-sums.sum(axis=1), kind="stable")
    return {known[int(at)]: rounded(sums[at]) for at in order}


def memory_peak(trace: Trace, selection: Selection) -> dict[str, int] | NotApplicable:
    """Find the largest number of bytes in use at once on each GPU, in all of the capture."""
    if not trace.has("memory_events"):
        return no_memory(trace)
    try:
        places = Places(trace, replace(selection, device=None))
    except DamagedCaptureError as error:
        return NotApplicable("memory", str(error))
    if places.spans is not None and not len(places.spans):
        return NotApplicable("memory", "the selected ranges take no time")
    gpus = [gpu for gpu in places.gpus if selection.device in (None, gpu)]
    if not gpus:
        return NotApplicable("memory", "no memory of the GPUs was recorded")
    return {str(gpu): places.view(gpu).peak_bytes for gpu in gpus}
