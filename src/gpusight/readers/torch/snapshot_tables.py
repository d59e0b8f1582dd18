"""How the model's tables are made of the parts of a memory snapshot."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.readers.torch.plain import MisfitError, check_total, integers, rows_of, texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.readers.torch.chains import Chains
    from gpusight.readers.torch.plain import Row

_OPERATIONS = {
    "alloc": "allocation",
    "free": "deallocation",
    "free_completed": "deallocation",
    "segment_alloc": "segment_allocation",
    "segment_free": "segment_deallocation",
    "oom": "out_of_memory",
    "workspace_snapshot": "snapshot",
}
"""Actions that the model calls otherwise; the others keep their names."""
_STATES = {
    "active_allocated": "active",
    "active_pending_free": "pending_free",
    "active_awaiting_free": "pending_free",
}
_LATEST_US = 1 << 52
"""A century and more from now; what lies beyond is no time."""


def events_of(traces: Sequence[Sequence[Row]], chains: Chains) -> pl.DataFrame:
    """Make `memory_events` of the history of each device; `time_us` is still as recorded."""
    return pl.concat([_device_events(device, rows, chains) for device, rows in enumerate(traces)])


def _device_events(device: int, rows: Sequence[Row], chains: Chains) -> pl.DataFrame:
    stacks = (row.get("frames") for row in rows)
    return pl.DataFrame(
        {
            "time_us": times(rows),
            "operation": texts(rows, "action", required=True).replace(_OPERATIONS),
            "stream": integers(rows, "stream"),
            "address": integers(rows, "addr"),
            "bytes": integers(rows, "size", required=True),
            "callchain": chains.numbers("memory_events", stacks),
        }
    ).with_columns(
        device=pl.lit(device, dtype=pl.Int64),
        allocator=pl.lit("framework"),
        memory_kind=pl.lit("Device"),
    )


def times(rows: Sequence[Row]) -> pl.Series:
    """Give when each entry was recorded, in µs; one without a time takes that of its neighbour."""
    column = integers(rows, "time_us")
    if column.is_between(-_LATEST_US, _LATEST_US).not_().any():
        raise MisfitError("'time_us' is no time")
    return column.fill_null(strategy="forward").fill_null(strategy="backward")


def blocks_of(segments: Sequence[Row], chains: Chains, limit: int) -> pl.DataFrame:
    """Make `memory_blocks` of all segments, refusing more than `limit` of them."""
    check_total((segment.get("blocks") for segment in segments), limit, "the blocks of segments")
    parts = [rows_of(segment.get("blocks"), "blocks") for segment in segments]
    counts = pl.Series([len(part) for part in parts], dtype=pl.Int64)
    blocks = [block for part in parts for block in part]
    older = [_latest(block) for block in blocks]
    owner = pl.int_range(counts.len(), eager=True).repeat_by(counts).explode().drop_nulls()
    stacks = (b.get("frames", o.get("frames")) for b, o in zip(blocks, older, strict=True))
    requested = integers(blocks, "requested_size")
    own = pl.DataFrame(
        {
            "owner": owner,
            "address": integers(blocks, "address"),
            "bytes": integers(blocks, "size", required=True),
            "requested_bytes": requested.zip_with(
                requested.is_not_null(), integers(older, "real_size")
            ),
            "state": texts(blocks, "state", required=True).replace(_STATES),
            "callchain": chains.numbers("memory_blocks", stacks),
        }
    )
    return _with_segments(own, _segment_columns(segments).select(pl.all().gather(owner)))


def _latest(block: Row) -> Row:
    """Give the newest entry of a history that blocks kept in PyTorch 1.12 and 1.13."""
    history = block.get("history")
    if type(history) is not list or not history:
        return {}
    return rows_of(history[:1], "histories")[0]


def _segment_columns(segments: Sequence[Row]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "device": integers(segments, "device", required=True),
            "stream": integers(segments, "stream"),
            "segment": integers(segments, "address", required=True),
            "segment_bytes": integers(segments, "total_size", required=True),
            "segment_kind": texts(segments, "segment_type"),
            "expandable": _flags(segments, "is_expandable"),
        }
    )


def _flags(rows: Sequence[Row], key: str) -> pl.Series:
    values = [value if type(value := row.get(key)) is bool else None for row in rows]
    return pl.Series(key, values, dtype=pl.Boolean)


def _with_segments(blocks: pl.DataFrame, segments: pl.DataFrame) -> pl.DataFrame:
    """Add what blocks have from their segment; older versions leave the address to be counted."""
    before = pl.col("bytes").cum_sum().over("owner") - pl.col("bytes")
    idle = pl.col("state") == "inactive"
    return (
        blocks.hstack(segments)
        .with_columns(
            address=pl.col("address").fill_null(pl.col("segment") + before),
            # What the block was last used for says nothing about it now.
            requested_bytes=pl.when(~idle).then("requested_bytes"),
        )
        .drop("owner")
    )


def ranges_of(annotations: Sequence[Row]) -> tuple[pl.DataFrame, int]:
    """Pair the starts and ends of annotations on each device; count those that have no partner.

    An annotation never closed has no end yet.
    """
    stages = texts(annotations, "stage").to_list()
    names = texts(annotations, "name").to_list()
    devices = integers(annotations, "device").to_list()
    when = times(annotations).to_list()
    ends: list[int | None] = [None] * len(annotations)
    opened: defaultdict[tuple[Any, Any], list[int]] = defaultdict(list)
    starts: list[int] = []
    strays = 0
    for at, stage in enumerate(stages):
        key = devices[at], names[at]
        if stage == "START":
            opened[key].append(at)
            starts.append(at)
        elif stage == "END" and opened[key]:
            first = opened[key].pop()
            ends[first] = max(when[at] or 0, when[first] or 0)
        else:
            strays += 1
    frame = pl.DataFrame(
        {
            "start_us": pl.Series([when[at] for at in starts], dtype=pl.Int64),
            "end_us": pl.Series([ends[at] for at in starts], dtype=pl.Int64),
            "name": pl.Series([names[at] or "" for at in starts], dtype=pl.String),
            "record": pl.Series([at + 1 for at in starts], dtype=pl.Int64),
            # They nest on each device, as NVTX ranges do in each domain.
            "domain_key": pl.Series([devices[at] for at in starts], dtype=pl.Int64),
        }
    )
    return frame, strays
