"""SQL over the model."""

from __future__ import annotations

import pytest

from gpusight.analysis.sql_query import query
from gpusight.errors import DamagedCaptureError, UsageError
from gpusight.results import Fmt
from gpusight.trace.trace import Trace
from tests.shared import DATA, opened
from tests.traces import FakeSource, Rows, build_source, build_trace

KERNELS: Rows = [
    {"start_ns": 0, "end_ns": 10, "name": "gemm", "correlation": 1},
    {"start_ns": 10, "end_ns": 40, "name": "softmax", "correlation": 2},
    {"start_ns": 50, "end_ns": 60, "name": "gemm", "correlation": 3},
]
SYNCS: Rows = [{"start_ns": 1, "correlation": 2}]


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT count(*) AS n FROM kernels", [{"n": 3}]),
        ("SELECT count(*) AS n FROM copies", [{"n": 0}]),
        ("SELECT end_ns FROM kernels WHERE name LIKE 'soft%'", [{"end_ns": 40}]),
        ("SELECT end_ns FROM kernels WHERE name = 'occurs nowhere'", []),
        (
            "SELECT name, sum(end_ns - start_ns) AS total_ns FROM kernels GROUP BY name ORDER BY 1",
            [{"name": "gemm", "total_ns": 20}, {"name": "softmax", "total_ns": 30}],
        ),
        (
            "WITH k AS (SELECT * FROM kernels) SELECT name FROM k JOIN syncs USING (correlation)",
            [{"name": "softmax"}],
        ),
    ],
)
def test_queries(sql: str, rows: list[dict[str, object]]) -> None:
    assert query(build_trace(kernels=KERNELS, syncs=SYNCS), sql).rows() == rows


def test_a_row_has_the_number_that_explain_takes() -> None:
    trace = opened(DATA / "dataload.sqlite")
    sql = "SELECT row, start_ns FROM kernels ORDER BY end_ns - start_ns DESC LIMIT 1"
    [longest] = query(trace, sql).rows()
    assert trace.kernels["start_ns"][longest["row"]] == longest["start_ns"]
    sql = "SELECT k.row AS k, s.row AS s FROM kernels k JOIN syncs s USING (correlation)"
    assert query(build_trace(kernels=KERNELS, syncs=SYNCS), sql).rows() == [{"k": 1, "s": 0}]
    assert query(build_trace(kernels=KERNELS), "SELECT * FROM kernels").frame.columns[-1] == "row"


def test_an_empty_table_says_so() -> None:
    trace = build_trace(kernels=KERNELS)
    assert query(trace, "SELECT count(*) FROM copies").notes == (
        "`copies` has no rows in this capture",
    )
    assert query(trace, "SELECT name FROM kernels WHERE name = 'x'").notes == ()


def test_only_the_columns_of_the_query_are_read() -> None:
    source = build_source(kernels=KERNELS, syncs=SYNCS)
    query(Trace(source), "SELECT name, max(end_ns) FROM kernels GROUP BY name")
    assert set(source.loads) == {("kernels", "name"), ("kernels", "end_ns")}


def test_fields_are_formatted_by_their_names() -> None:
    sql = "SELECT name, end_ns, grid_x, static_shared_bytes, end_ns / 2.0 AS half FROM kernels"
    fields = query(build_trace(kernels=KERNELS), sql).fields
    assert [f.fmt for f in fields] == [Fmt.NAME, Fmt.TIME, Fmt.COUNT, Fmt.BYTES, Fmt.REAL]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT nme FROM kernels", "columns of kernels are start_ns, end_ns"),
        ("SELECT * FROM kernel", "tables are kernels, copies"),
        ("SELECT * FROM kernels; DROP TABLE kernels", "failed"),
        ("SELECT name, name FROM kernels", "failed"),
        ("selec 1", "this is not a query"),
        ("DROP TABLE kernels", "starts with SELECT or WITH"),
        ("CREATE TABLE a AS SELECT 1", "starts with SELECT or WITH"),
        ("", "starts with SELECT or WITH"),
        ("SELECT * FROM read_csv('/etc/passwd')", "reads the capture only"),
        ("SELECT '--' AS x, * FROM read_csv('/etc/passwd')", "reads the capture only"),
        ("SELECT * FROM \"read_csv\"('/etc/passwd')", "reads the capture only"),
        ("SELECT * FROM `read_csv`('/etc/passwd')", "reads the capture only"),
        ("SELECT * FROM READ_PARQUET ('x')", "reads the capture only"),
        ("SELECT * FROM '/etc/passwd'", "failed"),
    ],
)
def test_mistakes_name_what_there_is(sql: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        query(build_trace(kernels=KERNELS), sql)


def test_a_damaged_capture_is_not_blamed_on_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise DamagedCaptureError("kernels are cut off")

    monkeypatch.setattr(FakeSource, "load", broken)
    with pytest.raises(DamagedCaptureError, match="cut off"):
        query(build_trace(kernels=KERNELS), "SELECT name FROM kernels")


def test_a_real_capture() -> None:
    trace = opened(DATA / "graph_node.sqlite")
    sql = "SELECT count(*) AS n FROM kernels WHERE graph_node IS NOT NULL"
    assert query(trace, sql).rows() == [{"n": 360}]
