"""Reports written here, byte by byte: every field, every odd value, every kind of damage."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lz4.block
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusight.errors import CaptureError, DamagedCaptureError, NotACaptureError
from gpusight.readers.nsys.native_report import RepTables
from gpusight.readers.open import open_trace
from gpusight.trace.schema import TABLES

PID = 1 << 48 | 77 << 24
TID = PID | 78
PER_TEST = settings(max_examples=30)


# --- a writer of reports ------------------------------------------------------------------------


def varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def message(*fields: tuple[int, Any]) -> bytes:
    """Encode fields in the order given: numbers, floats (as doubles), texts, bytes, messages."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, float):
            out += varint(number << 3 | 1) + struct.pack("<d", value)
            continue
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
            continue
        data = value.encode() if isinstance(value, str) else bytes(value)
        out += varint(number << 3 | 2) + varint(len(data)) + data
    return bytes(out)


def with_length(data: bytes) -> bytes:
    return varint(len(data)) + data


def block(data: bytes) -> bytes:
    data = with_length(data)
    packed: bytes = lz4.block.compress(data, store_size=False)
    return varint(len(packed)) + varint(len(data)) + packed


def event(kind: int, payload: int, *fields: tuple[int, Any]) -> bytes:
    return message((1, message((1, kind), (payload, message(*fields)))))


def report(
    blocks: Sequence[bytes],
    *,
    strings: Sequence[str] = (),
    events: int = 0,
    header: Sequence[tuple[int, Any]] = (),
    system: bytes = b"",
    target: bytes = b"",
    schemas: bytes | None = None,
    version: str = "2025.3.2.474-abc",
) -> bytes:
    """Lay out a whole file around these event blocks."""
    before = with_length(system)
    before += with_length(message((1, events), (3, len(strings)), (5, 1), (9, "lz4"), *header))
    before += b"".join(block(data) for data in blocks)
    after = block(message(*((1, text) for text in strings)))
    after += with_length(message((1, message((2, 0), (3, 20), (4, TID)))))
    after += with_length(target)
    after += block(schemas) if schemas is not None else b""
    sections = {
        "Raw Sampling Data": b"QDTEXT00" + before + after,
        "Sampling Data Offsets": message((1, "lz4"), (2, len(before))),
        "UI Data": message((6, version)),
    }
    out = bytearray(b"NVIDIA Tegra Profiler Report 1.")
    directory = []
    for name, data in sections.items():
        directory.append((1, message((1, name), (2, len(out)), (3, len(data)))))
        out += data
    at = len(out)
    out += message(*directory) + struct.pack("<Q", at) + b"U3w[END]"
    return bytes(out)


def save(folder: Path, data: bytes) -> Path:
    path = folder / "made.nsys-rep"
    path.write_bytes(data)
    return path


def rows(path: Path, table: str) -> list[dict[str, Any]]:
    """Read a table, leaving out NULLs, so that a test shows only what it is about."""
    with RepTables(path) as tables:
        frame = tables.read(table, sorted(tables.columns(table)))
        assert tables.row_count(table) == frame.height
    return [
        {name: value for name, value in row.items() if value is not None}
        for row in frame.to_dicts()
    ]


# --- fields -> columns --------------------------------------------------------------------------


def test_every_field_of_a_kernel_has_its_column(tmp_path: Path) -> None:
    inner = [(number, 1000 + number) for number in (1, 2, 3, 8, *range(10, 37))]
    common = [(1, 10), (2, 20), (3, 30), (4, 4), (5, 5), (6, 6), (7, 3), (8, PID), (9, 9)]
    data = event(79, 107, *common, (101, message(*inner)))
    path = save(tmp_path, report([data], events=1))
    assert rows(path, "CUPTI_ACTIVITY_KIND_KERNEL") == [
        {
            "start": 10,
            "end": 20,
            "correlationId": 30,
            "deviceId": 4,
            "contextId": 5,
            "streamId": 6,
            "globalPid": PID,
            "greenContextId": 9,
            "demangledName": 1001,
            "shortName": 1002,
            "mangledName": 1003,
            "gridX": 1010,
            "gridY": 1011,
            "gridZ": 1012,
            "blockX": 1013,
            "blockY": 1014,
            "blockZ": 1015,
            "staticSharedMemory": 1016,
            "dynamicSharedMemory": 1017,
            "localMemoryPerThread": 1018,
            "localMemoryTotal": 1019,
            "gridId": 1020,
            "registersPerThread": 1021,
            "sharedMemoryExecuted": 1022,
            "cacheConfig": 1023,
            "launchType": 1024,
            "graphNodeId": 1027,
            "sharedMemoryLimitConfig": 1028,
            "graphId": 1029,
            "clusterX": 1031,
            "clusterY": 1032,
            "clusterZ": 1033,
            "clusterSchedulingPolicy": 1034,
            "maxPotentialClusterSize": 1035,
            "maxActiveClusters": 1036,
        }
    ]


def gpu(kind: int, number: int, *inner: tuple[int, Any]) -> bytes:
    return event(80, 107, (1, 1), (2, 2), (7, kind), (number, message(*inner)))


@pytest.mark.parametrize(
    ("table", "data", "expected"),
    [
        (
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            gpu(1, 102, (1, 4096), (2, 1), (4, 0), (5, 2), (10, 3), (12, 99), (16, 1)),
            {
                "bytes": 4096,
                "copyKind": 1,
                "srcKind": 0,
                "dstKind": 2,
                "migrationCause": 3,
                "virtualAddress": 99,
                "copyCount": 1,
            },
        ),
        (
            "CUPTI_ACTIVITY_KIND_MEMSET",
            gpu(2, 103, (1, 64), (2, 255), (3, 7), (4, 2)),
            {"bytes": 64, "value": 255, "graphNodeId": 7, "memKind": 2},
        ),
        (
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            gpu(5, 105, (1, 11), (2, 1), (3, 33), (4, 4)),
            {"eventId": 11, "eventSyncId": 33, "syncType": 4},
        ),
        (
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            gpu(5, 105, (1, 11), (2, 1)),
            {"eventId": 11, "syncType": 1},
        ),
        (
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            gpu(7, 107, (1, 5), (2, 6)),
            {"graphId": 5, "graphExecId": 6},
        ),
    ],
)
def test_fields_of_gpu_work(
    tmp_path: Path, table: str, data: bytes, expected: dict[str, int]
) -> None:
    path = save(tmp_path, report([data], events=1))
    assert rows(path, table) == [{"start": 1, "end": 2} | expected]


def call(event_class: int, *fields: tuple[int, Any], start: int = 1) -> bytes:
    return event(48, 108, (1, start), (2, start + 1), (6, event_class), (7, 8), (13, TID), *fields)


def test_trace_events_are_routed_by_class(tmp_path: Path) -> None:
    node, execution = message((1, 21), (2, 22)), message((1, 31), (2, 32))
    classes = [0, 1, 27, 28, 29, 3, 103, 6]
    events = [call(number) for number in classes]
    events += [call(77, (33, node)), call(94, (37, execution)), call(95, (38, message((1, 41))))]
    events.append(call(555))
    path = save(tmp_path, report([b"".join(events)], events=len(events)))
    tables = RepTables(path)
    count = {name: tables.row_count(name) for name in tables.tables() if "CAPTURE" not in name}
    common = {"globalTid": TID, "nameId": 8, "start": 1, "end": 2}
    assert count["CUPTI_ACTIVITY_KIND_RUNTIME"] == 2
    assert count["OSRT_API"] == count["CUDNN_EVENTS"] == count["CUBLAS_EVENTS"] == 1
    assert rows(path, "CUPTI_ACTIVITY_KIND_OVERHEAD") == [
        common | {"eventClass": 103, "overheadType": 8}
    ]
    assert rows(path, "CUDA_GRAPH_NODE_EVENTS") == [
        common | {"eventClass": 77, "graphNodeId": 21, "originalGraphNodeId": 22}
    ]
    assert rows(path, "CUDA_GRAPH_EVENTS") == [
        common | {"eventClass": 94, "graphId": 31, "graphExecId": 32},
        common | {"eventClass": 95, "graphId": 41},
    ]
    assert tables.notes() == ["1 trace events of unknown class 555 are not decoded"]


def test_calls_of_other_libraries_have_the_fields_that_all_calls_have(tmp_path: Path) -> None:
    events = [call(78), call(53, start=3), call(79)]
    path = save(tmp_path, report([b"".join(events)], events=3))
    common = {"globalTid": TID, "nameId": 8}
    assert rows(path, "OPENMP_EVENTS") == [common | {"start": 1, "end": 2, "eventClass": 78}]
    assert rows(path, "VULKAN_API") == [common | {"start": 3, "end": 4, "eventClass": 53}]
    assert RepTables(path).notes() == []  # 79 says that tracing began


def test_calls_of_mpi_are_no_ranges_of_nvtx(tmp_path: Path) -> None:
    def ranged(start: int, domain: int, *, name: int) -> bytes:
        fields = ((1, 59), (2, start), (9, TID), (10, start + 1), (12, name), (13, domain))
        return event(59, 102, *fields)

    create = event(75, 102, (1, 75), (2, 1), (7, "MPI"), (9, TID), (13, 1))
    events = [create, ranged(2, 1, name=0), ranged(4, 0, name=1), ranged(6, 1, name=2)]
    events.append(ranged(8, 0, name=0))
    strings = ["MPI_Allreduce", "step", "MPI_Waitall"]
    path = save(tmp_path, report([b"".join(events)], strings=strings, events=len(events)))
    frame = open_trace(path, cache=False).table("ranges", ["name", "source", "category", "record"])
    assert frame.rows() == [
        ("MPI_Allreduce", "MPI", "collectives", None),
        ("step", None, None, 2),  # as numbered in the export, where MPI has its own tables
        ("MPI_Waitall", "MPI", "start-wait", None),
        ("MPI_Allreduce", None, None, 3),  # a range that the program itself calls so
    ]


EXPORTED_LIBRARIES = f"""
CREATE TABLE StringIds (id INTEGER, value TEXT);
INSERT INTO StringIds VALUES (0, 'MPI_Allreduce'), (1, 'step'), (2, 'MPI_Wait'), (3, 'ucp_put_nbx'),
  (4, 'Parallel region'), (5, 'Compute Construct'), (6, 'vkQueueSubmit'), (7, 'main'),
  (8, 'MPI_Isend'), (9, 'MPI_Init');
CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, globalTid INT,
  textId INT, domainId INT, category INT, endGlobalTid INT, rangeId INT, color INT);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, textId, domainId) VALUES
  (1, NULL, 75, 'MPI', {TID}, NULL, 1), (1, NULL, 75, 'UCX', {TID}, NULL, 2),
  (10, 90, 59, NULL, {TID}, 1, 0);
CREATE TABLE MPI_COLLECTIVES_EVENTS (start INT, end INT, globalTid INT, textId INT);
INSERT INTO MPI_COLLECTIVES_EVENTS VALUES (20, 30, {TID}, 0);
CREATE TABLE MPI_START_WAIT_EVENTS (start INT, end INT, globalTid INT, textId INT, handle INT);
INSERT INTO MPI_START_WAIT_EVENTS VALUES (32, 34, {TID}, 2, 100);
CREATE TABLE MPI_P2P_EVENTS (start INT, end INT, globalTid INT, textId INT);
INSERT INTO MPI_P2P_EVENTS VALUES (35, 36, {TID}, 8);
CREATE TABLE MPI_OTHER_EVENTS (start INT, end INT, globalTid INT, textId INT);
INSERT INTO MPI_OTHER_EVENTS VALUES (2, 4, {TID}, 9);
CREATE TABLE UCP_SUBMIT_EVENTS (start INT, end INT, globalTid INT, textId INT);
INSERT INTO UCP_SUBMIT_EVENTS VALUES (22, 28, {TID}, 3);
CREATE TABLE OPENMP_EVENT_KIND_PARALLEL (start INT, end INT, eventClass INT, globalTid INT,
  nameId INT);
INSERT INTO OPENMP_EVENT_KIND_PARALLEL VALUES (40, 41, 78, {TID}, 4);
CREATE TABLE CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH (start INT, end INT, eventClass INT, globalTid INT,
  nameId INT);
INSERT INTO CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH VALUES (50, 51, 48, {TID}, 5);
CREATE TABLE VULKAN_API (start INT, end INT, eventClass INT, globalTid INT, nameId INT);
INSERT INTO VULKAN_API VALUES (60, 61, 53, {TID}, 6);
"""


def test_libraries_give_the_same_ranges_as_in_an_export(tmp_path: Path) -> None:
    """MPI and UCX are NVTX ranges in a report, the others trace events; an export has tables."""
    export = tmp_path / "made.sqlite"
    with sqlite3.connect(export) as db:
        db.executescript(EXPORTED_LIBRARIES)
        strings = [text for (text,) in db.execute("SELECT value FROM StringIds ORDER BY id")]

    def ranged(start: int, end: int, name: int, domain: int) -> bytes:
        fields = ((1, 59), (2, start), (9, TID), (10, end), (12, name), (13, domain))
        return event(59, 102, *fields)

    def traced(event_class: int, start: int, name: int) -> bytes:
        fields = ((1, start), (2, start + 1), (6, event_class), (7, name), (13, TID))
        return event(48, 108, *fields)

    domains = {1: "MPI", 2: "UCX"}
    events = [
        event(75, 102, (1, 75), (2, 1), (7, n), (9, TID), (13, d)) for d, n in domains.items()
    ]
    events += [ranged(2, 4, 9, 1), ranged(10, 90, 1, 0), ranged(20, 30, 0, 1), ranged(22, 28, 3, 2)]
    events += [ranged(32, 34, 2, 1), ranged(35, 36, 8, 1)]
    events += [traced(78, 40, 4), traced(48, 50, 5), traced(53, 60, 6)]
    native = save(tmp_path, report([b"".join(events)], strings=strings, events=len(events)))
    # A domain's number is NVTX's own in a report; an export has none for these libraries.
    columns = [name for name in TABLES["ranges"].column_names if name != "domain_key"]
    ranges = [open_trace(path, cache=False).table("ranges", columns) for path in (native, export)]
    assert ranges[0].to_dicts() == ranges[1].to_dicts()
    assert ranges[0]["source"].to_list() == [
        *("MPI", None, "MPI", "UCX", "MPI", "MPI", "OpenMP", "OpenACC", "Vulkan")
    ]


@pytest.mark.parametrize("offset", ["n/a", "", "1.5"])
def test_a_clock_offset_that_is_no_number_is_no_start_time(tmp_path: Path, offset: str) -> None:
    pairs = [(7, 1, "5"), (1, 3, offset), (3, 9, "7")]
    clocks = message(*((1, message((1, a), (2, b), (5, text))) for a, b, text in pairs))
    path = save(tmp_path, report([call(0)], events=1, system=message((16, clocks))))
    trace = open_trace(path, cache=False)
    assert trace.meta.start_utc_ns is None
    assert trace.row_count("api_calls") == 1


@pytest.mark.parametrize(
    ("version", "column"), [("2025.5.1.121-x", "returnValue"), ("2025.5.2.266-x", "overheadType")]
)
def test_overhead_column_follows_the_version(tmp_path: Path, version: str, column: str) -> None:
    path = save(tmp_path, report([call(3, start=5)], events=1, version=version))
    assert column not in rows(path, "PROFILER_OVERHEAD")[0]
    data = event(48, 108, (1, 1), (2, 2), (6, 3), (7, 8), (8, 12), (13, TID))
    path = save(tmp_path, report([data], events=1, version=version))
    assert rows(path, "PROFILER_OVERHEAD")[0][column] == 12


def test_call_chains_are_numbered_through_the_file(tmp_path: Path) -> None:
    def frames(*symbols: int) -> list[tuple[int, bytes]]:
        return [(15, message((1, symbol), (2, 9), (6, 1), (8, 1 << 47))) for symbol in symbols]

    first = [call(27), call(27, *frames(1, 2)), call(0, *frames(3))]
    second = [call(31, *frames(4)), call(32), call(27, *frames(5, 6, 7))]
    blocks = [b"".join(first), b"".join(second)]
    path = save(tmp_path, report(blocks, events=6))
    osrt = rows(path, "OSRT_API")
    assert [row["callchainId"] for row in osrt] == [0, 1, 2, 0, 3]
    chains = rows(path, "OSRT_CALLCHAINS")
    assert [(row["id"], row["stackDepth"], row["symbol"]) for row in chains] == [
        (1, 0, 1),
        (1, 1, 2),
        (2, 0, 4),
        (3, 0, 5),
        (3, 1, 6),
        (3, 2, 7),
    ]
    assert chains[0] == {
        "id": 1,
        "stackDepth": 0,
        "symbol": 1,
        "module": 9,
        "unresolved": 1,
        "originalIP": 1 << 47,
    }
    assert [row["symbol"] for row in rows(path, "CUDA_CALLCHAINS")] == [3]


def test_cpu_samples_and_their_chains(tmp_path: Path) -> None:
    frame = message((1, 5), (2, 6), (4, 1), (8, 77), (9, 2))
    cycles = message((1, 1), (2, 123456))
    with_chain = [(1, 10), (3, 2), (4, frame), (4, frame), (5, cycles), (6, 1), (11, TID)]
    without = [(1, 20), (3, 1), (5, cycles), (11, TID)]
    data = event(31, 104, *without) + event(31, 104, *with_chain)
    path = save(tmp_path, report([data, data], events=4))
    samples = rows(path, "COMPOSITE_EVENTS")
    assert [row["id"] for row in samples] == [1, 2, 3, 4]
    assert samples[1] == {
        "id": 2,
        "start": 10,
        "cpu": 2,
        "cpuCycles": 123456,
        "threadState": 1,
        "globalTid": TID,
    }
    chains = rows(path, "SAMPLING_CALLCHAINS")
    assert [(row["id"], row["stackDepth"]) for row in chains] == [(2, 0), (2, 1), (4, 0), (4, 1)]
    assert chains[0]["kernelMode"] == 1
    assert chains[0]["unwindMethod"] == 2


def test_nvtx_payloads_of_every_type(tmp_path: Path) -> None:
    single = varint(6 << 3 | 5) + struct.pack("<f", 0.5)
    payloads = {
        "uint64Value": (message((1, 0xFFFFFFFFFFFFFFF0)), -16),
        "int64Value": (message((2, -1234567890123)), -1234567890123),
        "doubleValue": (message((3, -3.25e100)), -3.25e100),
        "uint32Value": (message((4, 4000000000)), 4000000000),
        "int32Value": (message((5, -42)), -42),
        "floatValue": (single, 0.5),
    }
    events = [
        event(34, 102, (1, 34), (2, 5), (7, "m"), (8, payload), (9, TID), (13, 1), (14, 1))
        for payload, _ in payloads.values()
    ]
    path = save(tmp_path, report([b"".join(events)], events=6))
    common = {"eventType": 34, "start": 5, "text": "m", "globalTid": TID, "domainId": 1}
    expected = [common | {column: value} for column, (_, value) in payloads.items()]
    assert rows(path, "NVTX_EVENTS") == expected


def test_the_other_event_tables(tmp_path: Path) -> None:
    blocks = [
        event(41, 106, (1, 1), (3, 2), (4, 1), (5, 4), (6, TID)),
        event(49, 110, (1, message((1, 5), (2, 1))), (2, 3), (3, 4), (4, "said"), (5, PID)),
        event(27, 113, (1, 1), (2, PID), (5, "command"), (6, "name")),
        event(27, 113, (1, 1), (2, PID + (1 << 24)), (5, "command")),
        event(27, 113, (1, 1), (2, PID)),
        event(117, 123, (1, 9), (3, 0), (4, 1), (5, PID), (6, 64), (8, 512), (9, 2), (10, 1)),
        event(28, 109, (1, 1)),
    ]
    path = save(tmp_path, report([b"".join(blocks)], events=7))
    assert rows(path, "SCHED_EVENTS") == [
        {"start": 1, "cpu": 2, "isSchedIn": 1, "threadState": 4, "globalTid": TID}
    ]
    assert rows(path, "DIAGNOSTIC_EVENT") == [
        {
            "timestamp": 5,
            "timestampType": 1,
            "source": 3,
            "severity": 4,
            "text": "said",
            "globalPid": PID,
        }
    ]
    assert rows(path, "PROCESSES") == [
        {"globalPid": PID, "pid": 77, "name": "name"},
        {"globalPid": PID + (1 << 24), "pid": 78, "name": "command"},
    ]
    assert rows(path, "CUDA_GPU_MEMORY_USAGE_EVENTS") == [
        {
            "start": 9,
            "deviceId": 0,
            "contextId": 1,
            "globalPid": PID,
            "address": 64,
            "bytes": 512,
            "memKind": 2,
            "memoryOperationType": 1,
        }
    ]
    assert RepTables(path).notes() == ["1 mapped modules are not decoded"]


def test_gpu_metrics(tmp_path: Path) -> None:
    source, other = 1 << 48, (1 << 48) + 0x300
    fields = [message((1, 1), (2, 0), (3, 4), (8, 1)), message((1, 2), (2, 4), (3, 1), (8, 1))]
    header = [
        (13, message((1, source), (2, 3), (3, 0))),
        (14, message((1, source), (2, 0), (3, fields[0]), (3, fields[1]))),
        (14, message((1, other), (2, 0))),
        (15, 3),
    ]
    samples = [
        message((2, message((1, source), (2, -75), (3, struct.pack("<IB", 4_000_000_000, 200))))),
        message((2, message((1, other), (2, 0), (3, b"xx")))),
        message((2, message((1, source), (2, 25), (3, struct.pack("<IB", 7, 8))))),
    ]
    strings = ["GPU", "SM clock", "SM active"]
    path = save(tmp_path, report([b"".join(samples)], events=3, header=header, strings=strings))
    values = [(r["timestamp"], r["metricId"], r["value"]) for r in rows(path, "GPU_METRICS")]
    assert values == [(-75, 0, 4_000_000_000), (-75, 1, 200), (25, 0, 7), (25, 1, 8)]
    assert [r["metricName"] for r in rows(path, "TARGET_INFO_GPU_METRICS")] == strings[1:]
    assert RepTables(path).notes() == ["1 generic events that are not GPU metrics are not decoded"]


def test_payload_schemas(tmp_path: Path) -> None:
    entry = message((1, 7), (3, 8), (7, "ratio"))
    schema = message((1, 16), (2, 1), (4, entry), (5, "mine"), (6, 24), (9, 2))
    path = save(tmp_path, report([], schemas=message((3, message((1, PID), (2, schema))))))
    assert rows(path, "NVTX_PAYLOAD_SCHEMAS") == [
        {
            "domainId": 2,
            "schemaId": 16,
            "name": "mine",
            "type": 1,
            "numEntries": 1,
            "payloadSize": 24,
        }
    ]
    assert rows(path, "NVTX_PAYLOAD_SCHEMA_ENTRIES") == [
        {"domainId": 2, "schemaId": 16, "idx": 0, "type": 7, "name": "ratio", "offset": 8}
    ]


def test_unknown_fields_of_every_wire_type_are_skipped(tmp_path: Path) -> None:
    fixed32 = varint(300 << 3 | 5) + b"\xff\xff\xff\xff"
    odd = message((1, 59), (2, 1), (3, 1.5), (7, "a"), (8, 3), (9, TID), (10, 2), (13, 0))
    unknown_tail = odd + fixed32 + message((2500, b"\xff" * 20))
    strange = message((1, message((1, 59), (102, unknown_tail))))
    plain = event(59, 102, (1, 59), (2, 3), (7, "b"), (9, TID), (10, 4), (13, 0))
    path = save(tmp_path, report([strange + plain], events=2))
    common = {"eventType": 59, "globalTid": TID, "domainId": 0}
    assert rows(path, "NVTX_EVENTS") == [
        common | {"start": 1, "end": 2, "text": "a"},
        common | {"start": 3, "end": 4, "text": "b"},
    ]


# --- values -------------------------------------------------------------------------------------

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
SOME_TEXT = st.one_of(
    st.sampled_from(["forward", "step\n\n\x08\x0a", "", "\n中文字符中文字符中文字符", "a\0b"]),
    st.text(max_size=30),
    st.text(alphabet="xy", min_size=4090, max_size=4100),
)


@PER_TEST
@given(
    ranges=st.lists(st.tuples(INT64, INT64, st.none() | SOME_TEXT, st.none() | INT64), max_size=90),
    per_block=st.integers(1, 90),
    copies=st.sampled_from([1, 3]),
)
def test_any_range_comes_back_as_written(
    tmp_path: Path,
    ranges: list[tuple[int, int, str | None, int | None]],
    per_block: int,
    copies: int,
) -> None:
    ranges = ranges * copies
    events = []
    for start, end, text, category in ranges:
        fields: list[tuple[int, Any]] = [(1, 59), (2, start)]
        fields += [(5, category)] if category is not None else []
        fields += [(7, text)] if text is not None else []
        events.append(event(59, 102, *fields, (10, end)))
    blocks = [b"".join(events[at : at + per_block]) for at in range(0, len(events), per_block)]
    with RepTables(save(tmp_path, report(blocks, events=len(events)))) as tables:
        assert tables.row_count("NVTX_EVENTS") == len(ranges)
        frame = tables.read("NVTX_EVENTS", ["start", "end", "text", "category"])
    assert frame.rows() == ranges


def test_many_blocks_keep_their_order(tmp_path: Path) -> None:
    events = [
        event(59, 102, (1, 59), (2, i), (7, f"step {i % 700}"), (10, i + 1)) for i in range(70_000)
    ]
    blocks = [b"".join(events[at : at + 7000]) for at in range(0, len(events), 7000)]
    with RepTables(save(tmp_path, report(blocks, events=len(events)))) as tables:
        frame = tables.read("NVTX_EVENTS", ["start", "text"])
    assert frame["start"].to_list() == list(range(70_000))
    assert frame["text"].to_list() == [f"step {i % 700}" for i in range(70_000)]


def test_events_that_do_not_start_with_their_type_are_still_found(tmp_path: Path) -> None:
    late = message((1, message((102, message((2, 5))))))
    plain = event(59, 102, (2, 6))
    path = save(tmp_path, report([plain + late], events=2))
    assert [row["start"] for row in rows(path, "NVTX_EVENTS")] == [6, 5]


# --- damage -------------------------------------------------------------------------------------


def sample_blocks() -> list[bytes]:
    """Every kind of event that the reader knows, in two blocks."""
    frame = message((1, 1), (2, 2), (8, 3))
    kernel = message((1, 0), (2, 0), (10, 1), (13, 32))
    first = [
        event(79, 107, (1, 10), (2, 20), (7, 3), (8, PID), (101, kernel)),
        gpu(1, 102, (1, 4096), (2, 1)),
        call(0, (15, frame)),
        call(27, (15, frame), (15, frame)),
        event(31, 104, (1, 10), (4, frame), (5, message((1, 1), (2, 3))), (11, TID)),
    ]
    second = [
        event(59, 102, (1, 59), (2, 1), (7, "text"), (8, message((3, 1.5))), (9, TID), (10, 2)),
        event(49, 110, (1, message((1, 5))), (4, "said"), (5, PID)),
        event(27, 113, (2, PID), (6, "name")),
        event(117, 123, (1, 9), (5, PID), (8, 512), (11, "variable")),
    ]
    return [b"".join(first), b"".join(second * 40)]


def sample_report(blocks: Sequence[bytes]) -> bytes:
    clocks = message((1, message((1, 7), (2, 1), (5, "-5"))))
    system = message((1, message((1, "Local"), (3, 1))), (16, clocks), (17, 3), (18, 9))
    target = message((1, message((1, 1), (2, message((7, message((1, 0), (2, "GPU"))))))))
    return report(blocks, events=165, strings=["a", "b"], system=system, target=target)


def read_everything(path: Path) -> int:
    with RepTables(path) as tables:
        names = tables.tables()
        tables.preload(names)
        tables.notes()
        return sum(
            tables.read(name, sorted(tables.columns(name))).height + tables.row_count(name)
            for name in names
        )


def test_the_undamaged_sample_is_read(tmp_path: Path) -> None:
    assert read_everything(save(tmp_path, sample_report(sample_blocks()))) > 300


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    whole = sample_report(sample_blocks())
    for size in range(40, len(whole), 7):
        with pytest.raises(DamagedCaptureError):
            read_everything(save(tmp_path, whole[:size]))


@settings(PER_TEST, max_examples=50)
@given(data=st.data())
def test_flipped_bytes_never_crash_the_reader(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(sample_report(sample_blocks()))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(29, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = save(tmp_path, bytes(whole))
    try:
        read_everything(path)
    except DamagedCaptureError as error:
        advice = ("nsys export --type sqlite", "copy or record it again")
        assert any(words in str(error) for words in advice)  # noqa: PT017


@settings(PER_TEST, max_examples=60)
@given(data=st.data())
def test_flipped_bytes_inside_blocks_never_crash_the_reader(
    tmp_path: Path, data: st.DataObject
) -> None:
    blocks = [bytearray(part) for part in sample_blocks()]
    for _ in range(data.draw(st.integers(1, 6))):
        part = data.draw(st.sampled_from(blocks))
        part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
    path = save(tmp_path, sample_report([bytes(part) for part in blocks]))
    try:
        read_everything(path)
    except DamagedCaptureError as error:
        advice = ("nsys export --type sqlite", "copy or record it again")
        assert any(words in str(error) for words in advice)  # noqa: PT017


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (report([event(59, 102, (2, 1))], events=2), "names 2 events but holds 1"),
        (report([], events=1 << 50), "cannot hold the 1125899906842624 events"),
        (report([b"\x0a\xff\xff\xff\x7f"], events=1), "a length points beyond"),
        (report([b"\x0a\x00" * 100_000], events=100_000), "more events than nsys ever writes"),
        (report([b"\x1a\x00"], events=1), "something that is no event"),
    ],
)
def test_contradictions_are_named(tmp_path: Path, data: bytes, why: str) -> None:
    with pytest.raises(DamagedCaptureError, match=why):
        read_everything(save(tmp_path, data))


def test_an_impossible_block_size_is_refused_before_allocating(tmp_path: Path) -> None:
    whole = report([event(59, 102, (2, 1), (7, "x" * 200))], events=1)
    packed = block(event(59, 102, (2, 1), (7, "x" * 200)))
    size, length = packed[0], packed[1:3]
    assert whole.count(packed) == 1
    huge = bytes([size]) + b"\xff\x7f" + packed[1 + len(length) :]
    with pytest.raises(DamagedCaptureError, match="impossible size"):
        read_everything(save(tmp_path, whole.replace(packed, huge)))


def test_the_error_says_what_to_type(tmp_path: Path) -> None:
    path = save(tmp_path, report([b"\x1a\x00"], events=1, version="2026.1.1.204-xyz"))
    with pytest.raises(DamagedCaptureError) as caught:
        read_everything(path)
    assert f"nsys export --type sqlite --force-overwrite true -o made.sqlite {path}" in (
        caught.value.hint
    )
    assert "(needs nsys >= 2026.1.1.204)" in caught.value.hint
    assert "\n" not in str(caught.value)


def test_other_files_are_not_captures(tmp_path: Path) -> None:
    pointer = tmp_path / "pointer.nsys-rep"
    pointer.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(NotACaptureError, match="Git LFS pointer"):
        RepTables(pointer)
    empty = tmp_path / "empty.nsys-rep"
    empty.touch()
    with pytest.raises(NotACaptureError):
        RepTables(empty)
    with pytest.raises(CaptureError, match="cannot be opened"):
        RepTables(tmp_path / "missing.nsys-rep")
