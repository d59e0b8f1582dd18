"""The Chrome reader against the same files read naively, and against traces written by hand."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import gpusight as gs
from gpusight.errors import DamagedCaptureError, NotACaptureError
from gpusight.readers.open import open_trace
from gpusight.trace.trace import Trace
from tests.shared import DATA, EVERY_TORCH_TRACE, name

CATEGORIES = {
    "kernels": {"kernel", "Kernel"},
    "copies": {"gpu_memcpy", "Memcpy"},
    "memsets": {"gpu_memset", "Memset"},
    "syncs": {"cuda_sync"},
    "api_calls": {"cuda_runtime", "cuda_driver", "Runtime"},
    "python_calls": {"python_function"},
    "gpu_ranges": {"gpu_user_annotation"},
    "overheads": {"overhead"},
}


def naive(path: Path) -> list[dict[str, Any]]:
    """Read a trace with the standard library, times as exact decimals."""
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
    document = json.loads(text, parse_float=Decimal)
    events: list[dict[str, Any]] = document["traceEvents"]
    return events


def write(path: Path, events: list[dict[str, Any]] | str, **about: Any) -> Trace:
    """Write a trace and open it."""
    if isinstance(events, str):
        path.write_text(events)
    else:
        path.write_text(json.dumps({"schemaVersion": 1, **about, "traceEvents": events}))
    return open_trace(path, cache=False)


def event(name: str = "aten::mm", **fields: Any) -> dict[str, Any]:
    """Make a complete event of the host."""
    return {
        "ph": "X", "cat": "cpu_op", "name": name, "pid": 5, "tid": 6, "ts": 1.0, "dur": 2.0,
        **fields,
    }  # fmt: skip


@pytest.mark.parametrize("path", EVERY_TORCH_TRACE, ids=name)
def test_every_event_is_there_with_its_exact_times(path: Path) -> None:
    events = naive(path)
    trace = open_trace(path, cache=False)
    trace.validate()
    origin = None
    for table, categories in CATEGORIES.items():
        wanted = sorted(
            (int(e["ts"] * 1000), int(e["dur"] * 1000))
            for e in events
            if e.get("cat") in categories
        )
        rows = trace.table(table, ["start_ns", "end_ns"])
        assert rows.height == len(wanted), table
        if wanted:
            shift = wanted[0][0] - rows["start_ns"][0]
            origin = shift if origin is None else origin
            assert shift == origin, "every table counts from the same origin"
            got = sorted((s + shift, e - s) for s, e in rows.iter_rows())
            assert got == wanted, table


@pytest.mark.parametrize("path", EVERY_TORCH_TRACE, ids=name)
def test_operators_and_annotations_are_told_apart(path: Path) -> None:
    events = [e for e in naive(path) if e.get("cat") in {"cpu_op", "Operator", "user_annotation"}]
    notes = [e["name"] for e in events if e["cat"] == "user_annotation" or "#" in e["name"]]
    trace = open_trace(path, cache=False)
    assert trace.row_count("cpu_ops") + trace.row_count("ranges") == len(events)
    assert Counter(trace.table("ranges", ["name"])["name"]) == Counter(notes)
    times = [trace.table(table, ["start_ns", "end_ns"]) for table in ("cpu_ops", "ranges")]
    ours = sorted((s, e - s) for s, e in pl.concat(times).iter_rows())
    wanted = sorted((int(e["ts"] * 1000), int(e["dur"] * 1000)) for e in events)
    origins = {theirs[0] - own[0] for own, theirs in zip(ours, wanted, strict=True)}
    assert len(origins) <= 1, "every row counts from the same origin"
    assert [length for _, length in ours] == [length for _, length in wanted]


@pytest.mark.parametrize("path", EVERY_TORCH_TRACE, ids=name)
def test_arguments_of_kernels(path: Path) -> None:
    wanted = Counter(
        (
            e["args"].get("correlation"),
            e["args"].get("stream", e["tid"]),
            e["args"].get("grid", [None])[0],
            e["args"].get("registers per thread"),
        )
        for e in naive(path)
        if e.get("cat") in {"kernel", "Kernel"}
    )
    trace = open_trace(path, cache=False)
    rows = trace.table("kernels", ["correlation", "stream", "grid_x", "registers_per_thread"])
    assert Counter(rows.iter_rows()) == wanted


def test_one_of_everything() -> None:
    """A trace made for this: graphs, streams, collectives, memory, modules, synchronisations."""
    trace = open_trace(DATA / "torch_odd.json.gz", cache=False)
    for table in ("kernels", "copies", "memsets", "syncs", "api_calls", "ranges", "gpu_ranges",
                  "cpu_ops", "python_calls", "collectives", "process_groups", "memory_events",
                  "overheads", "devices", "processes", "threads", "streams"):  # fmt: skip
        assert trace.has(table), table
    assert (trace.meta.rank, trace.meta.world_size, trace.meta.backend) == (0, 1, "nccl")
    device = trace.devices.row(0, named=True)
    assert (device["name"], device["sm_count"], device["compute_major"]) == ("NVIDIA H200", 132, 9)
    steps = [n for n in trace.table("ranges", ["name"])["name"] if n.startswith("ProfilerStep#")]
    assert steps == ["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"]
    kinds = set(trace.table("syncs", ["kind"])["kind"])
    assert {"context", "stream waits for event"} <= kinds
    copies = set(trace.table("copies", ["kind", "src_kind", "dst_kind"]).iter_rows())
    assert ("Host-to-Device", "Pageable", "Device") in copies
    assert ("Host-to-Device", "Pinned", "Device") in copies


def test_collectives_say_what_moved() -> None:
    trace = open_trace(DATA / "torch_odd.json.gz", cache=False)
    rows = trace.table(
        "collectives", ["name", "side", "group", "group_size", "dtype", "in_elements", "in_bytes"]
    )
    assert set(rows.filter(side="host").iter_rows()) == {
        ("allreduce", "host", "0", 1, "Float", 1 << 20, 4 << 20),
        ("_allgather_base", "host", "0", 1, "Float", 1 << 20, 4 << 20),
    }


def test_memory_events_have_a_sign_a_place_and_totals(tmp_path: Path) -> None:
    def instant(ts: int, size: int, device: int, kind: int) -> dict[str, Any]:
        args = {"Bytes": size, "Addr": 77, "Device Id": device, "Device Type": kind,
                "Total Allocated": 900, "Total Reserved": 1000}  # fmt: skip
        return event("[memory]", ph="i", cat="cpu_instant_event", ts=ts, args=args)

    trace = write(tmp_path / "t.json", [instant(1, 512, 0, 1), instant(2, -64, -1, 0)])
    columns = ["operation", "bytes", "device", "memory_kind", "allocated_bytes", "address"]
    assert trace.table("memory_events", columns).rows() == [
        ("allocation", 512, 0, "Device", 900, 77),
        ("deallocation", 64, None, "Host", 900, 77),
    ]


def test_times_beyond_what_a_double_keeps_are_exact(tmp_path: Path) -> None:
    """Microseconds since 1970 with three decimals: a double would round to quarter microseconds."""
    events = ", ".join(
        f'{{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": {ts}, "dur": {dur}}}'
        for ts, dur in [
            ("1710014642008386.001", "0.002"),
            ("1710014642008386.003", "12.5"),
            ("1710014642008387", "1"),
        ]
    )
    trace = write(tmp_path / "t.json", f'{{"schemaVersion": 1, "traceEvents": [{events}]}}')
    assert trace.table("cpu_ops", ["start_ns", "end_ns"]).rows() == [
        (0, 2),
        (2, 12502),
        (999, 1999),
    ]
    assert trace.meta.start_utc_ns == 1710014642008386001


@pytest.mark.parametrize(
    ("own", "theirs"), [(5, 5), ("5", 5), ("stream 5", 5), ("Thread-x/5", 5)], ids=str
)
def test_threads_are_numbers_however_they_are_written(
    tmp_path: Path, own: object, theirs: int
) -> None:
    trace = write(tmp_path / "t.json", [event(tid=own), event(tid=own, ts=9)])
    assert trace.table("threads", ["tid"])["tid"].to_list() == [theirs]
    assert trace.cpu_ops["thread"].n_unique() == 1


def test_ids_that_only_repeat_the_correlation_name_no_operator(tmp_path: Path) -> None:
    """Builds of 2022 and 2023: the number would match an operator by accident."""
    launch = {"External id": 3, "correlation": 3}
    kernel = event("k", cat="kernel", pid=0, tid=7, ts=5, args=launch)
    op = event(args={"External id": 3})
    assert write(tmp_path / "t.json", [op, kernel]).kernels["op"].to_list() == [None]
    kernel["args"] = {"External id": 3, "correlation": 90}
    assert write(tmp_path / "u.json", [op, kernel]).kernels["op"].to_list() == [3]


def test_a_range_that_the_profiler_was_stopped_in_is_open(tmp_path: Path) -> None:
    """What PyTorch closes itself did not end there; such a step is not a whole one."""
    steps = [
        event(f"ProfilerStep#{n}", cat="user_annotation", ts=10 * n, args={"Ev Idx": n, **flags})
        for n, flags in enumerate(({}, {"finished": True}, {"finished": False}))
    ]
    assert write(tmp_path / "t.json", steps).ranges["open"].to_list() == [None, False, True]


def test_shapes_are_compact_json_whatever_their_key(tmp_path: Path) -> None:
    new = event(args={"Input Dims": [[2, 3], [], [4]], "Input type": ["float", "", "int"]})
    old = event(cat="Operator", ts=3, args={"Input dims": [[2, 3], [], [4]]})
    ops = write(tmp_path / "t.json", [new, old]).cpu_ops
    assert ops["shapes"].to_list() == ["[[2,3],[],[4]]", "[[2,3],[],[4]]"]
    assert ops["types"].to_list() == ['["float","","int"]', None]


def test_mangled_kernel_names_are_demangled(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.json", [event("_Z4mainv", cat="kernel", pid=0, tid=7)])
    assert trace.table("kernels", ["name", "mangled_name"]).rows() == [("main()", "_Z4mainv")]


def test_the_profiler_before_2021(tmp_path: Path) -> None:
    """A list of events without categories; tracks are called functions of the CPU and of CUDA."""
    host = {"name": "add", "ph": "X", "ts": 10.5, "dur": 2.25, "tid": 1, "pid": "CPU functions"}
    device = {"name": "add", "ph": "X", "ts": 12.0, "dur": 1.0, "tid": 0, "pid": "CUDA functions"}
    flow = {"name": "add", "ph": "s", "ts": 10.5, "tid": 1, "pid": "CPU functions", "id": 1,
            "cat": "cpu_to_cuda", "args": {}}  # fmt: skip
    trace = write(tmp_path / "t.json", json.dumps([{**host, "args": {}}, device, flow]))
    assert trace.table("cpu_ops", ["name", "start_ns", "end_ns"]).rows() == [("add", 0, 2250)]
    assert trace.table("kernels", ["name", "start_ns", "end_ns"]).rows() == [("add", 1500, 2500)]


# What a file may look like ------------------------------------------------------------------------

TRICKY = [
    event('a "},{" b'),
    event("}, {", ts=2, args={"Input Dims": [[1], {"x": [{}, {}]}], "note": "}]}"}),
    event('{"ph": "X"}, ] , "traceEvents": [', ts=3),
    event("back\\slash \\", ts=4),
    event("é ☃ \u0000", ts=5),
]


@pytest.mark.parametrize("indent", [None, 0, 2, 7])
@pytest.mark.parametrize("size", [1, 3, 17, 64, 1 << 20])
def test_pieces_may_end_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, indent: int | None
) -> None:
    """The same events whatever the size of a block and of a piece, and however it is spaced."""
    monkeypatch.setattr("gpusight.readers.file_blocks.BLOCK_BYTES", size)
    monkeypatch.setattr("gpusight.readers.chrome_events._CHUNK_BYTES", size)
    about = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": '"traceEvents": ['}]}
    text = json.dumps(
        {**about, "traceEvents": TRICKY, "distributedInfo": {"rank": 3}}, indent=indent
    )
    trace = write(tmp_path / "t.json", text)
    assert trace.cpu_ops["name"].to_list() == [e["name"] for e in TRICKY]
    assert trace.cpu_ops["shapes"].to_list()[1] == '[[1],{"x":[{},{}]}]'
    assert trace.meta.rank == 3
    assert trace.devices["name"].to_list() == ['"traceEvents": [']
    assert (trace.meta.notes, trace.meta.warnings) == ((), ())


@pytest.mark.parametrize("packed", [False, True], ids=["json", "gz"])
def test_a_trace_cut_off_anywhere_gives_what_is_there(tmp_path: Path, packed: bool) -> None:
    raw = gzip.decompress((DATA / "healthy.json.gz").read_bytes())
    whole = open_trace(DATA / "healthy.json.gz", cache=False).row_count("cpu_ops")
    file = tmp_path / ("t.json.gz" if packed else "t.json")
    zipped = gzip.compress(raw, 6)
    begin = raw.index(b'"traceEvents"') + 20
    for part in (0.2, 0.3, 0.31, 0.5, 0.77, 0.9):
        size = begin + int((len(raw) - begin) * part)
        file.write_bytes(zipped[: int(len(zipped) * part)] if packed else raw[:size])
        trace = open_trace(file, cache=False)
        assert 0 < trace.row_count("cpu_ops") <= whole
        assert any("cut off" in warning for warning in trace.meta.warnings)
        trace.validate()


def test_what_is_not_json_is_repaired_or_left_out(tmp_path: Path) -> None:
    """`inf` for a bandwidth, a Windows path, bytes that are not text, and one event beyond help."""
    good = json.dumps(event("good"))
    copy = (
        b'{"ph":"X","cat":"gpu_memcpy","name":"Memcpy HtoD","pid":0,"tid":7,"ts":1,"dur":0,"args":'
    )
    bad = [
        copy + b'{"memory bandwidth (GB/s)": inf, "bytes": 12}}',
        b'{"ph":"X","cat":"cpu_op","name":"C:\\Users\\x","pid":1,"tid":1,"ts":2,"dur":1}',
        b'{"ph":"X","cat":"cpu_op","name":"\xff\xfe","pid":1,"tid":1,"ts":3,"dur":1}',
        b'{"ph":"X","cat":"cpu_op","name":"no value","pid":1,"tid":1,"ts":}',
    ]
    path = tmp_path / "t.json"
    path.write_bytes(b'{"traceEvents": [' + b",\n".join([good.encode(), *bad]) + b"]}")
    trace = open_trace(path, cache=False)
    assert sorted(trace.cpu_ops["name"]) == ["C:\\Users\\x", "good", "\ufffd\ufffd"]
    assert trace.copies["bytes"].to_list() == [12]
    assert trace.meta.warnings == ("1 events are not valid JSON and were skipped",)


@pytest.mark.parametrize(
    "text",
    ["[]", '{"traceEvents": []}', '{"traceEvents": [{"ph":"B","name":"x","ts":1}]}',
     '{"traceEvents": [{"ph":"X","cat":"v8","name":"x","ts":1,"dur":1,"pid":1,"tid":1}]}'],
)  # fmt: skip
def test_other_peoples_traces_are_named(tmp_path: Path, text: str) -> None:
    trace = write(tmp_path / "t.json", text)
    with pytest.raises(NotACaptureError, match="Chrome trace, but not one of PyTorch or JAX"):
        trace.has("kernels")


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ('{"a": 1}', NotACaptureError),
        ('{"traceEvents": 3}', NotACaptureError),
        ("[1, 2", NotACaptureError),
        ("{", DamagedCaptureError),
        ('{"schemaVersion": 1, "deviceProp', DamagedCaptureError),
    ],
)
def test_other_json_is_refused_with_a_remedy(
    tmp_path: Path, text: str, refusal: type[Exception]
) -> None:
    trace = write(tmp_path / "t.json", text)
    with pytest.raises(refusal):
        trace.has("kernels")


def test_an_event_without_end_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpusight.readers.chrome_events._MAX_EVENT_BYTES", 1 << 22)
    trace = write(tmp_path / "t.json", '{"traceEvents": [{"name": "' + "x" * (1 << 23) + '"}]}')
    with pytest.raises(DamagedCaptureError, match="event without an end"):
        trace.has("kernels")


@pytest.mark.parametrize(
    "odd",
    [
        {"ts": "12.5"}, {"dur": "2.5"}, {"dur": 0}, {"name": None},
        {"pid": None, "tid": None}, {"pid": "", "tid": ""}, {"tid": 2**70}, {"tid": 1.5},
        {"args": None}, {"args": []}, {"args": {"External id": "x", "Input Dims": 3}},
        {"args": {"External id": 2**80}}, {"args": {"External id": [1]}},
    ],
    ids=str,
)  # fmt: skip
def test_odd_values_harm_nobody_else(tmp_path: Path, odd: dict[str, Any]) -> None:
    good = event("good", args={"External id": 4})
    trace = write(tmp_path / "t.json", [good, event(**odd)])
    trace.validate()
    rows = trace.table("cpu_ops", ["name", "op"])
    assert rows.filter(pl.col("name") == "good")["op"].to_list() == [4]
    assert rows.height == 2


def test_categories_that_nobody_knows_are_mentioned(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.json", [event(), event(cat="brand_new"), event(ph="C", cat=None)])
    assert trace.meta.notes == ("not read: events of brand_new (1), phase 'C' (1)",)


def test_a_second_opening_needs_no_walk_through_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpusight.readers.column_cache._MIN_CACHED_S", 0.0)
    path = DATA / "healthy.json.gz"
    first = open_trace(path)
    kernels, notes = first.table("kernels", ["name", "start_ns"]), first.meta
    first.close()

    def refuse(_: Path) -> None:
        raise AssertionError("walked through the file again")

    monkeypatch.setattr("gpusight.readers.chrome_source.scan_trace", refuse)
    second = open_trace(path)
    assert second.has("cpu_ops")
    assert not second.has("collectives")
    assert second.has("kernels", "registers_per_thread")
    assert second.row_count("kernels") == 48
    assert second.meta == notes
    assert second.table("kernels", ["name", "start_ns"]).equals(kernels)


def test_the_one_gpu_that_worked_is_the_one_described(tmp_path: Path) -> None:
    """HIP numbers the GPUs that a process sees from 0, and its work by the machine's numbers."""
    kernel = event("k", cat="kernel", pid=2, tid=0, args={"device": 2})
    first = [{"id": 0, "name": "AMD Instinct MI300X", "numSms": 304}]
    devices = write(tmp_path / "t.json", [kernel], deviceProperties=first).devices
    named = {row["device"]: (row["name"], row["sm_count"]) for row in devices.iter_rows(named=True)}
    assert named == {2: ("AMD Instinct MI300X", 304)}
    several = [*first, {"id": 1, "name": "AMD Instinct MI210"}]
    devices = write(tmp_path / "u.json", [kernel], deviceProperties=several).devices
    assert devices.filter(device=2)["name"].to_list() == [""]


def test_paths_name_no_user(tmp_path: Path) -> None:
    frame = "/home/anna/run/train.py(3): step"
    call = event(frame, cat="python_function", ts=5)
    op = event(
        args={"Call stack": f"/opt/env/lib/python3.9/site-packages/torch/x.py(1): f;{frame}"}
    )
    trace = write(tmp_path / "t.json", [op, call])
    assert trace.python_calls["name"].to_list() == ["run/train.py(3): step"]
    assert trace.cpu_ops["stack"].to_list() == ["torch/x.py(1): f;run/train.py(3): step"]


# What a hostile file may hold ---------------------------------------------------------------------


def test_arguments_that_are_no_text_are_repaired(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    odd = b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":1,"args":%b}'
    label = b'{"ph":"M","name":"thread_name","pid":1,"tid":1,"args":{"name":"\xff"}}'
    arguments = (b'{"Call stack":"\xff\xfe"}', b"[]", b'{"External id":7}')
    events = b",".join([label, *(odd % each for each in arguments)])
    path.write_bytes(b'{"schemaVersion":1,"traceEvents":[%b]}' % events)
    trace = open_trace(path, cache=False)
    assert trace.cpu_ops["stack"].to_list() == ["\ufffd\ufffd", None, None]
    assert trace.cpu_ops["op"].to_list() == [None, None, 7]
    assert trace.threads["name"].to_list() == ["\ufffd"]


def test_what_nests_too_deep_is_left_out(tmp_path: Path) -> None:
    deep = '{"a":' * 100_000 + "1" + "}" * 100_000
    bad = json.dumps(event("deep", args=0)).replace('"args": 0', f'"args": {deep}')
    text = f'{{"schemaVersion": 1, "traceEvents": [{bad}, {json.dumps(event("good"))}]}}'
    trace = write(tmp_path / "t.json", text)
    trace.validate()
    assert "good" in trace.cpu_ops["name"].to_list()


def test_a_head_full_of_lists_of_events_takes_no_time(tmp_path: Path) -> None:
    runs = ",".join('{"traceEvents": []}' for _ in range(20_000))
    with pytest.raises(NotACaptureError):
        write(tmp_path / "t.json", f'{{"runs": [{runs}]}}').has("kernels")


def test_processes_keep_their_correlation_ids_apart(tmp_path: Path) -> None:
    """Two processes in one file with the same ids: work that names neither belongs to neither."""
    calls = [
        event("cudaLaunchKernel", cat="cuda_runtime", pid=pid, ts=ts, args={"correlation": 2**62})
        for pid, ts in ((11, 1), (12, 2), (13, 3))
    ]
    kernel = event("k", cat="kernel", pid=0, tid=7, ts=9, args={"correlation": 2**62, "device": 0})
    marks = [event(f"p{pid}", cat="user_annotation", pid=pid, ts=0, dur=99) for pid in (11, 12)]
    trace = write(tmp_path / "t.json", [*calls, *marks, kernel])
    assert trace.kernels["process"].to_list() == [None]
    assert set(gs.ranges(trace).frame["gpu_work_ns"]) <= {None, 0}
    assert len(gs.kernels(trace, within="p11")) == 0


@pytest.mark.parametrize("ts", ["null", '"soon"', "1e300", "NaN"])
def test_events_without_a_time_are_left_out_and_counted(tmp_path: Path, ts: str) -> None:
    odd = json.dumps(event("odd", ts=0)).replace('"ts": 0', f'"ts": {ts}')
    good = json.dumps(event("good", ts=1.7e15))
    trace = write(tmp_path / "t.json", f'{{"schemaVersion": 1, "traceEvents": [{odd}, {good}]}}')
    assert trace.cpu_ops["name"].to_list() == ["good"]
    assert trace.meta.duration_ns == 2000
    assert trace.meta.warnings == ("1 of 2 operator events left out: 1 has no time",)


@pytest.mark.parametrize(
    ("dur", "why"),
    [
        ("-3", "a negative duration"),
        ("-1e-3", "a negative duration"),
        ("null", "no duration"),
        ('"long"', "no duration"),
        ("1e308", "no duration"),
        ("9223372036854775807", "no duration"),
        ("1e13", "a duration over 30 days"),
    ],
)
@pytest.mark.parametrize("ts", ["1.5", "1700000000000000.125"])
def test_events_without_a_usable_duration_are_left_out_and_counted(
    tmp_path: Path, dur: str, why: str, ts: str
) -> None:
    text = json.dumps(event("odd", ts=0, dur=0)).replace('"ts": 0', f'"ts": {ts}')
    odd, good = text.replace('"dur": 0', f'"dur": {dur}'), text.replace('"dur": 0', '"dur": 2')
    trace = write(tmp_path / "t.json", f'{{"traceEvents": [{good}, {odd}, {good}]}}')
    trace.validate()
    assert trace.cpu_ops["end_ns"].to_list() == [2000, 2000]
    assert trace.row_count("cpu_ops") == 2
    assert trace.warnings == (f"1 of 3 operator events left out: 1 has {why}",)


def test_an_event_without_a_duration_is_left_out(tmp_path: Path) -> None:
    endless = event()
    del endless["dur"]
    trace = write(tmp_path / "t.json", [event(), endless])
    assert trace.cpu_ops.height == 1
    assert trace.warnings == ("1 of 2 operator events left out: 1 has no duration",)


def test_a_trace_most_of_which_cannot_be_used_is_damaged(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.json", [event(), event(dur=-1), event(dur=-1)])
    with pytest.raises(DamagedCaptureError, match="2 of 3 operator events cannot be used"):
        trace.has("cpu_ops")


def test_arguments_that_cannot_be_meant_are_named(tmp_path: Path) -> None:
    copies = [
        event("Memcpy HtoD", cat="gpu_memcpy", args={"bytes": size, "device": 0})
        for size in (8, -8, "many")
    ]
    trace = write(tmp_path / "t.json", copies)
    trace.validate()
    assert trace.copies["bytes"].sum() == 8
    assert trace.warnings == (
        "1 of 3 copy events have bytes out of range, count as 0",
        "1 of 3 copy events have no number as bytes",
    )


def test_times_that_cannot_all_be_right_are_mentioned(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.json", [event(ts=-5), event(ts=1.7e15)])
    assert [w for w in trace.meta.warnings if "some of its times are wrong" in w]


def test_a_second_trace_behind_the_first_is_mentioned(tmp_path: Path) -> None:
    first = json.dumps({"schemaVersion": 1, "traceEvents": [event()]})
    trace = write(tmp_path / "t.json", first + "\n" + first)
    assert trace.row_count("cpu_ops") == 1
    assert [w for w in trace.meta.warnings if "was skipped" in w]


def test_our_own_timeline_is_no_capture(tmp_path: Path) -> None:
    out = tmp_path / "timeline.json"
    gs.export(DATA / "healthy.json.gz", out, to="chrome")
    with pytest.raises(NotACaptureError, match="a timeline exported by gpusight"):
        open_trace(out, cache=False).has("kernels")


@pytest.mark.parametrize("filler", [b" ", b"[", b"\0", b"x", b'{"a":'], ids=repr)
def test_what_goes_on_and_on_is_refused_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filler: bytes
) -> None:
    monkeypatch.setattr("gpusight.readers.chrome_events._MAX_EVENT_BYTES", 1 << 23)
    monkeypatch.setattr("gpusight.readers.chrome_events._MAX_BRACKETS", 100_000)
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + filler * (1 << 24), 1))
    with pytest.raises((DamagedCaptureError, NotACaptureError)):
        open_trace(path, cache=False).has("kernels")
