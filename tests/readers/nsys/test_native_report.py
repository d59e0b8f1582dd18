"""Native reports against what nsys itself says about them.

Every cell of every table is compared with nsys's own SQLite export of the same report: exports that
came with public reports, and exports made here when NVIDIA's nsys is installed.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import gpusight as gs
from gpusight.errors import DamagedCaptureError, UsageError
from gpusight.readers.nsys.native_info import system_env
from gpusight.readers.nsys.native_report import RepTables
from gpusight.readers.nsys.raw_tables import RowFilter
from gpusight.readers.open import open_trace
from gpusight.readers.protobuf_wire import parse
from gpusight.trace.schema import TABLES
from tests.shared import DATA, EVERY_REPORT, SHARED, name, tool

PUBLIC = SHARED / "public" / "nsys"

NOT_DECODED = {"META_DATA_EXPORT", "META_DATA_CAPTURE"}
"""Tables that are about the export, or hold command lines and environments."""

PROPERTIES = (13, 205, 605, 611)
"""Properties of the machine that are decoded; the others include its environment and name."""

ROUNDED_IN_EXPORTS = {"2020.4.1.126", "2025.3.2.474"}
"""Versions whose exports round ANALYSIS_DETAILS."""


def exported_rows(path: Path, table: str, columns: list[str]) -> list[tuple[Any, ...]]:
    where = "WHERE 1"
    if table == "TARGET_INFO_SYSTEM_ENV":
        where = f"WHERE nameEnum IN {PROPERTIES}"
    names = ", ".join(f'"{column}"' for column in columns)
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
        database.text_factory = lambda text: text.decode("utf-8", "replace")
        return database.execute(f'SELECT {names} FROM "{table}" {where} ORDER BY rowid').fetchall()


def exported_tables(path: Path) -> dict[str, list[str]]:
    """Name the tables with rows, and their columns."""
    tables = {}
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
        listed = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in listed:
            has_rows = database.execute(f'SELECT EXISTS (SELECT 1 FROM "{table}")').fetchone()[0]
            if has_rows and not table.startswith("ENUM_"):
                info = database.execute(f'PRAGMA table_info("{table}")').fetchall()
                tables[table] = [column[1] for column in info]
    return tables


def own_rows(tables: RepTables, table: str, columns: list[str]) -> list[tuple[Any, ...]]:
    return tables.read(table, columns).rows()


def assert_equal_to_export(report: Path, export: Path) -> int:
    """Compare all that both have; give the number of cells compared."""
    cells = 0
    theirs = exported_tables(export)
    with RepTables(report) as tables:
        rounded = tables.version.partition("-")[0] in ROUNDED_IN_EXPORTS
        tables.preload(tables.tables())
        assert theirs.keys() <= tables.tables() | NOT_DECODED
        for table, columns in theirs.items():
            if table in NOT_DECODED or (table == "ANALYSIS_DETAILS" and rounded):
                continue
            assert set(columns) <= tables.columns(table), table
            expected = exported_rows(export, table, columns)
            assert own_rows(tables, table, columns) == expected, table
            cells += len(expected) * len(columns)
    return cells


@pytest.mark.shared
@pytest.mark.parametrize("stem", ["2025.1.3.140__RTX-5060__9900ed6", "2025.3.2.474__GTX-1650"])
def test_equal_to_the_export_that_came_with_it(stem: str) -> None:
    reports = sorted(PUBLIC.glob(f"{stem}*.nsys-rep"))
    if not reports:
        pytest.skip("the shared captures are not here")
    exports = sorted(PUBLIC.glob(f"{reports[0].stem}.paired-*.sqlite"))
    assert assert_equal_to_export(reports[0], exports[0]) > 1000


def nsys() -> str:
    return tool("nsys", "nsys/target-linux-x64/nsys")


def export(report: Path, to: Path) -> None:
    command = [nsys(), "export", "--type", "sqlite", "--force-overwrite", "true", "-o", str(to)]
    subprocess.run([*command, str(report)], check=True, capture_output=True, timeout=120)


@pytest.mark.oracle
@pytest.mark.shared
@pytest.mark.parametrize("version", ["2020.4.1.126", "2022.4.2.1", "2023.2.3.1001"])
def test_equal_to_an_export_made_now(version: str, tmp_path: Path) -> None:
    reports = sorted(PUBLIC.glob(f"{version}__*rep"))
    if not reports:
        pytest.skip("the shared captures are not here")
    export(reports[0], tmp_path / "export.sqlite")
    assert assert_equal_to_export(reports[0], tmp_path / "export.sqlite") > 500


NVTX_PROGRAM = r"""
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static nvtxRangeId_t crossing;

static void *end_it(void *unused) {
    nvtxRangeEnd(crossing);
    nvtxRangePushA("left open");
    usleep(2000);
    return unused;
}

int main(void) {
    nvtxDomainHandle_t domain = nvtxDomainCreateA("my domain");
    nvtxEventAttributes_t a;
    memset(&a, 0, sizeof a);
    a.version = NVTX_VERSION;
    a.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    a.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    a.message.registered = nvtxDomainRegisterStringA(domain, "registered");
    nvtxDomainNameCategoryA(domain, 3, "third");
    a.category = 3;
    a.colorType = NVTX_COLOR_ARGB;
    a.color = 0xFF00FF00;
    a.payloadType = NVTX_PAYLOAD_TYPE_DOUBLE;
    a.payload.dValue = -3.25e100;
    nvtxDomainRangePushEx(domain, &a);
    a.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    a.payload.ullValue = 0xFFFFFFFFFFFFFFF0ull;
    nvtxDomainMarkEx(domain, &a);
    a.payloadType = NVTX_PAYLOAD_TYPE_FLOAT;
    a.payload.fValue = 0.1f;
    nvtxDomainRangeEnd(domain, nvtxDomainRangeStartEx(domain, &a));
    nvtxDomainRangePop(domain);
    nvtxMarkA("bad utf8 \xff\xc3 end\n\n");
    crossing = nvtxRangeStartA("crosses threads");
    for (int i = 0; i < 9000; i++) {
        char text[40];
        snprintf(text, sizeof text, "step %d", i % 50);
        nvtxRangePushA(text);
        nvtxRangePop();
    }
    pthread_t thread;
    pthread_create(&thread, NULL, end_it, NULL);
    pthread_join(thread, NULL);
    return 0;
}
"""


@pytest.mark.oracle
def test_equal_to_the_export_of_a_program_traced_now(tmp_path: Path) -> None:
    """Domains, categories, payloads, open and crossing ranges, OS calls with back traces."""
    headers = Path(nsys()).resolve().parent / "nvtx" / "include"
    compiler = shutil.which("cc")
    if compiler is None or not headers.is_dir():
        pytest.skip("a C compiler and the NVTX headers are needed")
    (tmp_path / "program.c").write_text(NVTX_PROGRAM)
    build = [compiler, "-w", f"-I{headers}", "program.c", "-o", "program", "-ldl", "-lpthread"]
    subprocess.run(build, cwd=tmp_path, check=True, timeout=60)
    options = ["-t", "nvtx,osrt", "-s", "none", "--osrt-backtrace-threshold=1000"]
    profile = [nsys(), "profile", *options, "-o", "traced", "./program"]
    done = subprocess.run(profile, cwd=tmp_path, check=False, capture_output=True, timeout=300)
    report = tmp_path / "traced.nsys-rep"
    if not report.exists():
        pytest.skip(f"nsys could not trace here: {done.stderr.decode(errors='replace')[-200:]}")
    export(report, tmp_path / "traced.sqlite")
    assert assert_equal_to_export(report, tmp_path / "traced.sqlite") > 9000 * 19


# --- reports of our own, with known contents ------------------------------------------------------


@pytest.mark.parametrize("stem", ["graph", "dataload"])
def test_as_many_rows_as_another_run_of_the_program(stem: str) -> None:
    counts = {}
    with RepTables(DATA / f"{stem}.nsys-rep") as tables:
        for table in exported_tables(DATA / f"{stem}.sqlite"):
            expected = len(exported_rows(DATA / f"{stem}.sqlite", table, ["rowid"]))
            counts[table] = (tables.row_count(table), expected)
    # The exports lack the machine's other processes and hold the strings of their thread names.
    for table in ("PROCESSES", "StringIds", "ThreadNames", *NOT_DECODED):
        counts.pop(table, None)
    counts.pop("TARGET_INFO_SYSTEM_ENV")
    counts.pop("TARGET_INFO_CUDA_STREAM", None)
    assert {t: own for t, (own, _) in counts.items()} == {t: n for t, (_, n) in counts.items()}


def test_a_graph_launch() -> None:
    with RepTables(DATA / "graph.nsys-rep") as tables:
        launches = tables.read(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            ["start", "end", "graphId", "graphExecId", "streamId", "correlationId"],
        )
        assert launches.height == 10
        assert launches.row(0) == (11693967, 11818414, 1, 2, 7, 185)
        ranges = tables.read("NVTX_EVENTS", ["eventType", "start", "end", "text", "domainId"])
        assert ranges.row(0) == (75, -261357441, None, "cuBLAS", 1)
        assert ranges.row(1) == (59, 11574352, 11846777, "step_0", 0)
        assert tables.read("TARGET_INFO_GPU", ["name", "smCount"]).rows() == [("NVIDIA H200", 132)]


def test_a_kernel_and_its_names() -> None:
    with RepTables(DATA / "dataload.nsys-rep") as tables:
        columns = ["start", "end", "gridX", "blockX", "registersPerThread", "shortName"]
        kernels = tables.read("CUPTI_ACTIVITY_KIND_KERNEL", columns)
        assert kernels.row(0) == (25361708, 25366924, 1056, 256, 44, 52)
        strings = dict(tables.read("StringIds", ["id", "value"]).rows())
        assert "elementwise" in strings[52]
        calls = tables.read(
            "CUPTI_ACTIVITY_KIND_RUNTIME", ["nameId"], RowFilter("eventClass", (0,))
        )
        assert {strings[number].startswith("cuda") for number in calls["nameId"]} == {True}


@pytest.mark.parametrize("path", EVERY_REPORT, ids=name)
def test_counts_before_and_after_decoding_agree(path: Path) -> None:
    with RepTables(path) as counting, RepTables(path) as decoding:
        present = counting.tables()
        decoding.preload(present)
        assert decoding.tables() == present
        for table in present:
            columns = sorted(decoding.columns(table))
            frame = decoding.read(table, columns)
            assert counting.row_count(table) == frame.height > 0, table
            assert not counting.is_empty(table)


def test_tables_and_columns_that_are_not_there() -> None:
    with RepTables(DATA / "graph.nsys-rep") as tables:
        assert "OSRT_API" not in tables.tables()
        assert tables.is_empty("OSRT_API")
        assert tables.is_empty("NO_SUCH_TABLE")
        assert tables.row_count("NO_SUCH_TABLE") == 0
        assert tables.columns("NO_SUCH_TABLE") == frozenset()
        with pytest.raises(UsageError, match="no column nonsense"):
            tables.read("NVTX_EVENTS", ["nonsense"])


def test_environments_and_command_lines_are_not_decoded() -> None:
    with RepTables(DATA / "dataload.nsys-rep") as tables:
        assert "META_DATA_CAPTURE" not in tables.tables()
        numbers = tables.read("TARGET_INFO_SYSTEM_ENV", ["nameEnum"])["nameEnum"]
        assert set(numbers) <= set(PROPERTIES)


def test_debug_settings_are_all_that_is_kept_of_an_environment() -> None:
    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    prop = b"\x08\xe2\x04" + field(2, b"TOKEN=secret;CUDA_LAUNCH_BLOCKING=1;HOME=/home/demo")
    rows = system_env(parse(field(1, field(2, field(1, prop)))))
    assert [(row["name"], row["value"]) for row in rows] == [
        ("DeviceEnvironment", "CUDA_LAUNCH_BLOCKING=1")
    ]


def test_a_report_cut_off_says_so(tmp_path: Path) -> None:
    whole = (DATA / "graph.nsys-rep").read_bytes()
    cut = tmp_path / "cut.nsys-rep"
    for size in range(100, len(whole), 997):
        cut.write_bytes(whole[:size])
        with pytest.raises(DamagedCaptureError, match=r"is cut off.*copy or record it again"):
            RepTables(cut)


def test_nothing_is_written_beside_the_report(tmp_path: Path) -> None:
    path = Path(shutil.copy(DATA / "graph.nsys-rep", tmp_path / "g.nsys-rep"))
    before = path.read_bytes()
    with RepTables(path) as tables:
        tables.preload(tables.tables())
    assert [entry.name for entry in tmp_path.iterdir()] == ["g.nsys-rep"]
    assert path.read_bytes() == before


# A native report gives the same model as nsys's own SQLite export of it, in every column.


PAIRS = [
    *((DATA / f"{stem}.nsys-rep", DATA / f"{stem}.sqlite") for stem in ("odd_node", "odd_cpu")),
    *(
        (report, export)
        for report in sorted(SHARED.glob("public/nsys/*.nsys-rep"))
        for export in report.parent.glob(f"{report.stem}.paired-*.sqlite")
    ),
]

# nsys 2025.3 and older have no table for these events of the report.
ONLY_IN_REPORTS = {"overheads": ("Runtime Triggered Module Loading", "Lazy Function Loading")}
# Columns that exports of that age lack, though the report has the values.
NEWER_COLUMNS = {"kernels": {"graph", "cluster_x", "cluster_y", "cluster_z"}}


@pytest.mark.parametrize(("report", "export"), PAIRS, ids=[name(report) for report, _ in PAIRS])
@pytest.mark.parametrize("table", TABLES)
def test_same_rows_in_every_column(report: Path, export: Path, table: str) -> None:
    ours, theirs = open_trace(report, cache=False), open_trace(export, cache=False)
    assert ours.has(table) == theirs.has(table)
    drop = NEWER_COLUMNS.get(table, set())
    columns = [c for c in TABLES[table].column_names if c not in drop]
    rows = ours.table(table, columns)
    if table in ONLY_IN_REPORTS:
        extra = pl.col("name").cast(pl.String).is_in(ONLY_IN_REPORTS[table])
        rows = rows.filter(~extra)
    assert rows.rows() == theirs.table(table, columns).rows()


@pytest.mark.parametrize(("report", "export"), PAIRS[:2], ids=["odd_node", "odd_cpu"])
def test_the_same_ledger_and_findings(report: Path, export: Path) -> None:
    """Loading of code has rows in the report that the export lacks: no answer depends on them."""
    answers = []
    for path in (report, export):
        with open_trace(path, cache=False) as trace:
            diagnosis = gs.diagnose(trace).to_dict()
            answers.append((gs.ledger(trace).to_dict(), diagnosis["findings"], diagnosis["ledger"]))
    (ledger, *result), (expected, *as_found) = answers
    assert result == as_found
    assert ledger["devices"] == expected["devices"]


OF_OTHERS = {
    "code_lines",
    "collectives",
    "counter_instances",
    "counters",
    "cpu_ops",
    "gpu_ranges",
    "memory_blocks",
    "op_totals",
    "process_groups",
    "profiles",
    "python_calls",
    "rule_results",
    "source_files",
    "stack_frames",
    "stack_samples",
}
"""Tables that no capture of nsys fills."""


def test_the_pairs_hold_one_of_everything() -> None:
    """What the two small captures were made for; a reader that lost a table would pass above."""
    held = {t for report, _ in PAIRS[:2] for t in TABLES if open_trace(report, cache=False).has(t)}
    assert set(TABLES) - held - OF_OTHERS == {"gpu_metrics"}
