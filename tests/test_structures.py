"""Captures built from nothing, of any structure: gpusight answers or says what is wrong."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.check import READ, examine
from fuzz.formats import FORMATS
from fuzz.mutate.protobuf import Field, write
from tests.readers.jax import xspaces
from tests.readers.ncu import ncu_reports

ANY = settings(max_examples=20, derandomize=True)
INTEGERS = st.one_of(
    st.integers(0, 100),
    st.sampled_from([-1, 2**31, 2**53 + 1, 2**61, 2**62, 2**63 - 1, -(2**63)]),
    st.integers(-(2**63), 2**63 - 1),
)
TEXTS = st.one_of(st.sampled_from(["", "k", "step_1", "\x1b[2J", "\u202e"]), st.text(max_size=8))

# SQLite -------------------------------------------------------------------------------------------

COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid",
        "demangledName", "shortName", "gridX", "blockX", "registersPerThread", "graphNodeId",
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid",
        "bytes", "copyKind", "srcKind", "dstKind",
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue",
    ),
    "NVTX_EVENTS": (
        "start", "end", "eventType", "rangeId", "category", "text", "globalTid", "endGlobalTid",
        "textId", "domainId",
    ),
    "StringIds": ("id", "value"),
    "OSRT_API": ("start", "end", "globalTid", "nameId", "returnValue"),
    "TARGET_INFO_GPU": ("id", "name", "smCount", "computeMajor", "computeMinor"),
    "PROCESSES": ("globalPid", "pid", "name"),
    "ThreadNames": ("nameId", "priority", "globalTid"),
}  # fmt: skip
"""Tables as nsys writes them: text in `text`, `value` and `name`, whole numbers elsewhere."""
KINDS = st.sampled_from(["INTEGER", "INTEGER", "INTEGER", "TEXT", "REAL", ""])
TEXTUAL = ("text", "value", "name")


@st.composite
def exports(draw: st.DrawFn) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """Tables with columns missing, of other types, without row ids, as views; rows of anything."""
    statements: list[tuple[str, list[tuple[Any, ...]]]] = []
    for table in draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, unique=True)):
        dropped = draw(st.sets(st.sampled_from(COLUMNS[table]), max_size=2))
        columns = [c for c in COLUMNS[table] if c not in dropped] or ["other"]
        odd = draw(st.booleans())
        kinds = [draw(KINDS) if odd else "TEXT" if c in TEXTUAL else "INTEGER" for c in columns]
        declared = ", ".join(f'"{c}" {k}' for c, k in zip(columns, kinds, strict=True))
        form = draw(st.sampled_from(["TABLE", "TABLE", "TABLE", "KEYED", "VIEW"]))
        keyed = f', PRIMARY KEY ("{columns[0]}")) WITHOUT ROWID' if form == "KEYED" else ")"
        name = f"{table}_hidden" if form == "VIEW" else table
        statements.append((f'CREATE TABLE "{name}" ({declared}{keyed}', []))
        cells = [_cells(column, odd=odd) for column in columns]
        rows = draw(st.lists(st.tuples(*cells), max_size=4))
        marks = ", ".join("?" * len(columns))
        statements.append((f'INSERT OR IGNORE INTO "{name}" VALUES ({marks})', rows))
        if form == "VIEW":
            statements.append((f'CREATE VIEW "{table}" AS SELECT * FROM "{name}"', []))
    return statements


def _cells(column: str, *, odd: bool) -> st.SearchStrategy[Any]:
    usual: st.SearchStrategy[Any] = TEXTS if column in TEXTUAL else INTEGERS
    anything = st.one_of(usual, st.none(), TEXTS, INTEGERS, st.floats(), st.binary(max_size=4))
    return anything if odd else usual


@ANY
@given(exports())
def test_nsys_exports(tmp_path: Path, statements: list[tuple[str, list[tuple[Any, ...]]]]) -> None:
    path = tmp_path / "made.sqlite"
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA page_size = 512")
    for statement, rows in statements:
        if statement.startswith("INSERT"):
            safe = [tuple(_encodable(value) for value in row) for row in rows]
            connection.executemany(statement, safe)
        else:
            connection.execute(statement)
    connection.commit()
    connection.close()
    examine(FORMATS["nsys-sqlite"], {"capture.sqlite": path.read_bytes()}, tmp_path, READ)


def _encodable(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


# JSON ---------------------------------------------------------------------------------------------

LEAVES = st.one_of(
    st.none(), st.booleans(), INTEGERS, st.floats(allow_nan=False, allow_infinity=False), TEXTS
)
ARGUMENTS = st.dictionaries(
    st.sampled_from(["device", "stream", "correlation", "External id", "grid", "Input Dims"]),
    st.one_of(LEAVES, st.lists(LEAVES, max_size=3)),
)
EVENTS = st.fixed_dictionaries(
    {},
    optional={
        "ph": st.one_of(st.sampled_from(["X", "X", "X", "M", "i", "s", "f", "B", "E", ""]), LEAVES),
        "cat": st.one_of(
            st.sampled_from(["kernel", "gpu_memcpy", "cuda_runtime", "cpu_op", "ac2g"]), LEAVES
        ),
        "name": LEAVES,
        "pid": LEAVES,
        "tid": LEAVES,
        "ts": LEAVES,
        "dur": LEAVES,
        "args": st.one_of(ARGUMENTS, LEAVES),
    },
)


@ANY
@given(st.lists(EVENTS, max_size=6), st.booleans(), st.booleans())
def test_chrome_traces(tmp_path: Path, events: list[dict[str, Any]], bare: bool, jax: bool) -> None:
    trace: Any = events if bare else {"schemaVersion": 1, "traceEvents": events}
    name = "jax-json" if jax else "torch-json"
    files = {FORMATS[name].file or "": json.dumps(trace).encode("utf-8", "surrogatepass")}
    examine(FORMATS[name], files, tmp_path, READ)


# Protobuf -----------------------------------------------------------------------------------------

FIELDS = st.recursive(
    st.builds(Field, st.integers(1, 40), st.just(0), st.integers(0, 2**64 - 1))
    | st.builds(Field, st.integers(1, 40), st.just(2), st.binary(max_size=6))
    | st.builds(Field, st.integers(1, 40), st.just(1), st.binary(min_size=8, max_size=8))
    | st.builds(Field, st.integers(1, 40), st.just(5), st.binary(min_size=4, max_size=4)),
    lambda inner: st.builds(Field, st.integers(1, 40), st.just(2), st.lists(inner, max_size=5)),
    max_leaves=12,
)
MESSAGES = st.lists(FIELDS, max_size=8).map(write)


@ANY
@given(st.lists(MESSAGES, max_size=3), st.lists(MESSAGES, max_size=3), INTEGERS, INTEGERS)
def test_profiles_of_jax(
    tmp_path: Path, events: list[bytes], planes: list[bytes], offset_ns: int, duration_ns: int
) -> None:
    usual = xspaces.event("gemm", offset_ns, duration_ns, correlation_id=3)
    line = xspaces.line("Stream #7", usual, *events, timestamp_ns=abs(offset_ns))
    data = xspaces.space(
        xspaces.plane("/device:GPU:0", line), *(xspaces.block(1, plane) for plane in planes)
    )
    examine(FORMATS["xplane"], {"capture.xplane.pb": data}, tmp_path, READ)


@ANY
@given(st.lists(MESSAGES, max_size=3), MESSAGES, st.dictionaries(TEXTS, INTEGERS, max_size=4))
def test_reports_of_nsight_compute(
    tmp_path: Path, extras: list[bytes], session: bytes, metrics: dict[str, int]
) -> None:
    known = {key.encode("utf-8", "replace").decode(): value for key, value in metrics.items()}
    launches = [ncu_reports.launch("gemm", known, extra=extra) for extra in extras]
    data = ncu_reports.report(*launches, session=session)
    examine(FORMATS["ncu-rep"], {"capture.ncu-rep": data}, tmp_path, READ)
