"""What things are coloured by, as codes: the ledger's entries, kinds of calls, names."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import polars as pl

from gpusight.analyses.ledger.causes import Cause
from gpusight.analyses.ledger.labels import COMMUNICATION, COMPUTE, COPY, GRAPH, label
from gpusight.analyses.schedule.kinds import kind_of
from gpusight.analyses.schedule.schedule import CallKind, Calls, OpKind, Ops, Schedule
from gpusight.analyses.statistics import names_of
from gpusight.model.kernel_names import CATEGORIES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.model.trace import Trace

    Codes: TypeAlias = NDArray[np.uint8]

HOST_COLOURS = 8
"""Ranges and operators are drawn in `host/0` to `host/7`, chosen by their names."""
FILL = f"{COPY}/memset"
OVERHEAD = "overhead"
SYNCHRONISE = "api/synchronise"
_DIRECTIONS = ("h2d", "d2h", "d2d", "p2p", "unified", "memset", "h2h", "other")
_CALLS = {
    CallKind.LAUNCH: "api/launch",
    CallKind.GRAPH: "api/launch",
    CallKind.SYNC: SYNCHRONISE,
    CallKind.ALLOCATE: "api/memory",
    CallKind.FREE: "api/memory",
    CallKind.COPY: "api/copy",
    CallKind.FILL: "api/copy",
}
_OTHER_CALL = "api/other"

COLOURS: tuple[str, ...] = (
    *(f"{COMPUTE}/{category}" for category in CATEGORIES if category != COMMUNICATION),
    GRAPH,
    COMMUNICATION,
    *(f"{COPY}/{direction}" for direction in _DIRECTIONS),
    *(cause.entry for cause in Cause),
    *dict.fromkeys((*_CALLS.values(), _OTHER_CALL)),
    *(f"host/{number}" for number in range(HOST_COLOURS)),
    OVERHEAD,
)
"""What the codes stand for: the same in every capture."""
CODES: dict[str, int] = {key: code for code, key in enumerate(COLOURS)}


def possible(names: pl.Series) -> pl.Series:
    """Give the texts that a column of names can hold, in the order of their codes."""
    assert isinstance(names.dtype, pl.Enum), "names are dictionary-encoded"
    return names.dtype.categories


def by_entry(trace: Trace, kind: OpKind, column: str) -> Codes:
    """Give the colour of each text that a column of GPU work can hold: its entry in the ledger."""
    names = trace.table(kind.table, [column])[column]
    codes = names.to_physical().to_numpy()
    rows = np.full(len(names_of(names)), -1, np.int64)
    rows[codes[::-1]] = np.arange(len(codes))[::-1]  # written backwards: the first row stays
    used = np.flatnonzero(rows >= 0)
    labels = label(_one_of_each(trace, kind, rows[used]))
    colours = np.zeros(len(rows), np.uint8)
    colours[used] = [CODES[labels.known[number].entry] for number in labels.of_op]
    return colours


def _one_of_each(trace: Trace, kind: OpKind, rows: NDArray[np.int64]) -> Schedule:
    """Lay out single rows of GPU work for the ledger to label; when they ran does not matter."""
    zeros, none = np.zeros_like(rows), np.empty(0, np.int64)
    ops = Ops(zeros, zeros, zeros, zeros, zeros, zeros + int(kind), rows, zeros > 0)
    return Schedule(trace, 0, 0, ops, Calls(none, none, none, none, none, none), ())


def by_call(names: pl.Series) -> Codes:
    """Give the colour of each API call that a column of names can hold."""
    keys = [_CALLS.get(kind_of(name), _OTHER_CALL) for name in names_of(names)]
    return np.array([CODES[key] for key in keys], np.uint8)


def by_name(names: pl.Series) -> Codes:
    """Give one of the host's colours to each name; names that differ in numbers look alike."""
    bare = possible(names).str.replace_all("[0-9]+", "")
    distinct = bare.unique()
    first = CODES["host/0"]
    codes = [first + zlib.crc32(text.encode()) % HOST_COLOURS for text in distinct]
    chosen = pl.DataFrame({"name": distinct, "code": pl.Series(codes, dtype=pl.UInt8)})
    found = bare.to_frame("name").join(chosen, on="name", how="left", maintain_order="left")
    colours: Codes = found["code"].to_numpy()
    return colours


def by_key(names: pl.Series, key: str) -> Codes:
    """Give the same colour to every name."""
    return np.full(len(names_of(names)), CODES[key], np.uint8)
