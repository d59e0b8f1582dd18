"""Python stacks of nsys: the same tables from reports and exports, whatever the layout."""

from __future__ import annotations

import json
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import gpusight as gs
from gpusight.readers.open import open_trace
from gpusight.trace.trace import Trace
from tests.readers.nsys.test_native_report import nsys
from tests.readers.nsys.test_native_report_synthetic import event, message, report, save

PID = 1 << 48 | 77 << 24
MAIN, OTHER, SAMPLER = PID | 77, PID | 78, PID | 90
STRINGS = [
    "&lt;module&gt;",
    "/home/me/train.py",
    "collate",
    "/x/site-packages/torch/nn/act.py",
    "f",
]
COLLATE, MODULE, TORCH = (2, 1, 88), (0, 1, 3), (4, 3, 7)
"""Frames: function and file by number, line."""
DOMAIN, FRAME, STACK = 4, 1 << 32, (1 << 32) + 3
OLD = [("Thread state", STACK - 2, 0), ("Source", STACK - 1, 4), ("Frames count", 16, 8)]
NEW = [("Flags", 18, 0), ("Thread state", STACK - 2, 8), ("Frames count", 16, 12)]
"""The entries before the frames: of nsys 2023.4, and of a later version without a source."""
ENTRIES = [("Function", 80, 0), ("File", 80, 8), ("Line", 15, 16)]
Event = tuple[int, int, int | None, bytes]
"""Time, thread, category, payload."""


def payload(*frames: tuple[int, int, int], source: int = 1, new: bool = False) -> bytes:
    head = (0, 1, len(frames)) if new else (1, source, len(frames))
    start = struct.pack("<QII" if new else "<IIQ", *head)
    return start + b"".join(struct.pack("<QQi4x", *frame) for frame in frames)


def native(folder: Path, events: Sequence[Event], before: Sequence[tuple[str, int, int]]) -> Path:
    def schema(
        number: int, name: str, entries: Sequence[tuple[str, int, int]]
    ) -> tuple[int, bytes]:
        listed = [(4, message((1, kind), (3, at), (7, text))) for text, kind, at in entries]
        return 2, message((1, number), *listed, (5, name), (9, DOMAIN))

    backtrace = schema(STACK, "PythonBacktrace", [*before, ("Frames", FRAME, 16)])
    schemas = message((3, message((1, PID), backtrace, schema(FRAME, "PythonFrame", ENTRIES))))
    made = [event(75, 102, (1, 75), (2, 1), (7, "Python Backtrace"), (9, MAIN), (13, DOMAIN))]
    for time, thread, category, data in events:
        inside = (8, message((9, message((1, STACK), (2, data)))))
        of = [(5, category)] if category is not None else []
        made.append(event(34, 102, (1, 34), (2, time), *of, inside, (9, thread), (13, DOMAIN)))
    whole = report([b"".join(made)], events=len(made), strings=STRINGS, schemas=schemas)
    return save(folder, whole)


def export(
    folder: Path, events: Sequence[Event], before: Sequence[tuple[str, int, int]], kind: str
) -> Path:
    """Write what newer versions of nsys export with `--include-blobs=true`."""
    entries = [(STACK, *entry) for entry in (*before, ("Frames", FRAME, 16))]
    entries += [(FRAME, *entry) for entry in ENTRIES]
    tables = {
        "StringIds": pl.DataFrame({"id": range(len(STRINGS)), "value": STRINGS}),
        "NVTX_PAYLOAD_SCHEMA_ENTRIES": pl.DataFrame(
            [(DOMAIN, schema, i, t, name, at) for i, (schema, name, t, at) in enumerate(entries)],
            schema=["domainId", "schemaId", "idx", "type", "name", "offset"],
            orient="row",
        ),
        "NVTX_EVENTS": pl.DataFrame(
            [
                (1, None, 75, "Python Backtrace", None, MAIN, DOMAIN, None),
                *(
                    (time, None, 34, None, category, thread, DOMAIN, wrapped(data))
                    for time, thread, category, data in events
                ),
            ],
            schema={
                "start": pl.Int64,
                "end": pl.Int64,
                "eventType": pl.Int64,
                "text": pl.String,
                "category": pl.Int64,
                "globalTid": pl.Int64,
                "domainId": pl.Int64,
                "binaryData": pl.Binary,
            },
            orient="row",
        ),
    }
    if kind == "hex":
        hexed = pl.col("binaryData").bin.encode("hex").str.to_uppercase()
        tables["NVTX_EVENTS"] = tables["NVTX_EVENTS"].with_columns(hexed)
    if kind == "sqlite":
        path = folder / "made.sqlite"
        with sqlite3.connect(path) as connection:
            for name, frame in tables.items():
                columns = ", ".join(f"[{c}] {sql_type(t)}" for c, t in frame.schema.items())
                connection.execute(f"CREATE TABLE {name} ({columns})")
                marks = ", ".join("?" * frame.width)
                connection.executemany(f"INSERT INTO {name} VALUES ({marks})", frame.rows())
        return path
    path = folder / "made"
    path.mkdir()
    for name, frame in tables.items():
        if kind == "arrow":
            frame.write_ipc(path / f"{name}.arrow")
        else:
            frame.write_parquet(path / f"{name}.parquet")
    return path


def sql_type(dtype: pl.DataType) -> str:
    return "INTEGER" if dtype == pl.Int64 else "TEXT"  # nsys declares blobs as text


def wrapped(data: bytes) -> bytes:
    return struct.pack("<4q", DOMAIN, STACK, len(data), 32) + data


def stacks(trace: Trace) -> tuple[pl.DataFrame, pl.DataFrame]:
    names = pl.col("file", "function", "kind").cast(pl.String)
    frames = trace.table("stack_frames").with_columns(names).sort("stack", "depth")
    samples = trace.table("stack_samples").with_columns(pl.col("source").cast(pl.String))
    return samples, frames.select("stack", "depth", "file", "line", "function", "kind")


EVENTS: list[Event] = [
    (1_000, MAIN, None, payload(COLLATE, MODULE)),
    (2_000, OTHER, None, payload(TORCH, MODULE)),
    (3_000, MAIN, None, payload(COLLATE, MODULE)),
]


@pytest.mark.parametrize("kind", ["native", "sqlite", "parquet", "arrow", "hex"])
def test_every_form_has_the_same_stacks(kind: str, tmp_path: Path) -> None:
    made = (
        native(tmp_path, EVENTS, OLD) if kind == "native" else export(tmp_path, EVENTS, OLD, kind)
    )
    trace = open_trace(made, cache=False)
    trace.validate()
    samples, frames = stacks(trace)
    assert samples.select("time_ns", "thread", "stack", "weight_ns", "source").rows() == [
        (1_000, MAIN, 0, None, "nsys-python"),
        (2_000, OTHER, 1, None, "nsys-python"),
        (3_000, MAIN, 0, None, "nsys-python"),
    ]
    assert set(samples["process"]) == {PID >> 24}
    assert frames.rows() == [
        (0, 0, "~/train.py", 88, "collate", "python"),
        (0, 1, "~/train.py", 3, "<module>", "python"),
        (1, 0, "torch/nn/act.py", 7, "f", "python"),
        (1, 1, "~/train.py", 3, "<module>", "python"),
    ]


def test_the_layout_is_that_of_the_schema(tmp_path: Path) -> None:
    """A later version has other fields before the frames, and no source."""
    events = [(1_000, MAIN, None, payload(COLLATE, MODULE, new=True))]
    samples, frames = stacks(open_trace(native(tmp_path, events, NEW), cache=False))
    assert samples["weight_ns"].to_list() == [None]
    assert frames["line"].to_list() == [88, 3]


def test_threads_that_have_numbers_of_their_own(tmp_path: Path) -> None:
    """nsys 2023 names its sampling thread, and numbers Python's, the main thread first."""
    events = [
        (1_000, SAMPLER, 1, payload(COLLATE, MODULE)),
        (1_000, SAMPLER, 2, payload(TORCH)),
        (2_000, SAMPLER, 1, payload(MODULE)),
    ]
    trace = open_trace(native(tmp_path, events, OLD), cache=False)
    threads = stacks(trace)[0]["thread"].to_list()
    assert [threads[0], threads[2]] == [MAIN, MAIN]
    assert threads[1] not in {MAIN, OTHER, SAMPLER}
    assert threads[1] >> 24 == PID >> 24


def test_stacks_of_cuda_calls_stand_for_no_time(tmp_path: Path) -> None:
    events = [(1_000, MAIN, None, payload(COLLATE, source=2)), *EVENTS[1:]]
    samples, _ = stacks(open_trace(native(tmp_path, events, OLD), cache=False))
    assert samples["weight_ns"].to_list() == [0, None, None]


def test_hotspots_count_the_samples(tmp_path: Path) -> None:
    result = gs.hotspots(open_trace(native(tmp_path, EVENTS, OLD), cache=False))
    first = result.rows()[0]
    assert (first["file"], first["line"], first["function"]) == ("~/train.py", 88, "collate")
    assert first["samples"] == 2


def test_payloads_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    events = [*EVENTS, (4_000, MAIN, None, b"\x01\x02\x03"), (5_000, MAIN, None, EVENTS[0][3][:-1])]
    trace = open_trace(native(tmp_path, events, OLD), cache=False)
    assert trace.table("stack_samples").height == 3
    assert "2 Python stacks of nsys do not fit their schema, left out" in trace.warnings


@pytest.mark.parametrize("drop", ["NVTX_PAYLOAD_SCHEMA_ENTRIES", "binaryData"])
def test_an_export_without_payloads_says_so(drop: str, tmp_path: Path) -> None:
    path = export(tmp_path, EVENTS, OLD, "sqlite")
    with sqlite3.connect(path) as connection:
        if drop == "binaryData":
            connection.execute("UPDATE NVTX_EVENTS SET binaryData = NULL")
        else:
            connection.execute(f"DROP TABLE {drop}")
    trace = open_trace(path, cache=False)
    assert not trace.has("stack_samples")
    trace.table("ranges")
    assert any("not in this export" in warning for warning in trace.warnings)


def test_a_program_without_cuda_calls_misses_nothing(tmp_path: Path) -> None:
    """`--python-backtrace=cuda` prepares the domain and the schemas before the first call."""
    trace = open_trace(native(tmp_path, [], OLD), cache=False)
    trace.table("ranges")
    assert not trace.has("stack_samples")
    assert not trace.warnings


def test_other_payloads_are_no_stacks(tmp_path: Path) -> None:
    """NCCL's payloads have schemas too, without frames."""
    path = export(tmp_path, EVENTS, OLD, "sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET name = 'Peer rank'")
        connection.execute("UPDATE NVTX_EVENTS SET text = 'NCCL' WHERE eventType = 75")
    trace = open_trace(path, cache=False)
    trace.table("ranges")
    assert not trace.has("stack_samples")
    assert not trace.warnings


def test_forms_agree_on_samples(tmp_path: Path) -> None:
    one = stacks(open_trace(native(tmp_path, EVENTS, OLD), cache=False))
    two = stacks(open_trace(export(tmp_path, EVENTS, OLD, "sqlite"), cache=False))
    for left, right in zip(one, two, strict=True):
        assert_frame_equal(left, right)


PROGRAM = """
import threading, time


def collate(until):
    total = 0
    while time.perf_counter() < until:
        total += sum(range(500))
    return total


def main():
    other = threading.Thread(target=time.sleep, args=(0.8,))
    other.start()
    for _ in range(20):
        collate(time.perf_counter() + 0.04)
        time.sleep(0.002)
    other.join()


main()
"""


@pytest.mark.oracle
def test_a_program_that_nsys_samples_now(tmp_path: Path) -> None:
    """The real nsys samples Python on any machine; its JSON export has the bytes of each stack."""
    (tmp_path / "train.py").write_text(PROGRAM)
    options = ["-t", "nvtx", "-s", "none", "--cpuctxsw=none", "--python-sampling=true"]
    command = [nsys(), "profile", *options, "--python-sampling-frequency=200", "-o", "traced"]
    done = subprocess.run(
        [*command, sys.executable, "train.py"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        timeout=300,
    )
    made = tmp_path / "traced.nsys-rep"
    if not made.exists():
        pytest.skip(f"nsys could not sample here: {done.stderr.decode(errors='replace')[-200:]}")
    export = [nsys(), "export", "--type", "json", "-o", "traced.json", "traced.nsys-rep"]
    subprocess.run(export, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    trace = open_trace(made, cache=False)
    samples, frames = stacks(trace)
    assert sorted(samples["time_ns"]) == sorted(exported_times(tmp_path / "traced.json"))
    counted = samples["thread"].value_counts(sort=True)
    assert counted.height == 2
    main = trace.table("threads").filter(pl.col("thread").is_in(samples["thread"].implode()))
    assert main.filter(pl.col("tid") == pl.col("process") & 0xFFFFFF).height == 1
    assert {"collate", "main", "<module>"} <= set(frames["function"])
    rows = [row for row in gs.hotspots(trace).rows() if str(row["file"]).endswith("train.py")]
    assert (rows[0]["function"], rows[0]["line"]) in {("collate", 7), ("collate", 8)}


def exported_times(path: Path) -> list[int]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    events = [line["NvtxEvent"] for line in lines if "NvtxEvent" in line]
    return [int(e["Timestamp"]) for e in events if "BinaryData" in e.get("Payload", {})]
