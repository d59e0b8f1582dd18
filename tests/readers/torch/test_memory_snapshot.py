"""Memory snapshots of PyTorch, of several versions, become events, blocks, chains and ranges."""

from __future__ import annotations

import gzip
import pickle
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusight.errors import CaptureError, DamagedCaptureError, GpusightError, NotACaptureError
from gpusight.readers.open import open_trace
from gpusight.readers.tables import shown_file, shown_frame
from gpusight.readers.torch.memory_snapshot import snapshot_source
from gpusight.trace.trace import Trace
from tests.shared import DATA

REAL = DATA / "memory_snapshot.pickle"
ROOTS_HOME = "/" + "root"
T0 = 1_700_000_000_000_000
FORWARD = {"name": "forward", "filename": "/home/alice/net/model.py", "line": 12}
MAIN = {"name": "<module>", "filename": "/home/alice/train.py", "line": 3}
CPP = {"name": "at::empty(c10::ArrayRef<long>)", "filename": "??", "line": 0}


def event(action: str, addr: int, size: int, us: int, *frames: Any, **more: Any) -> dict[str, Any]:
    stack = {"frames": list(frames)} if frames else {}
    rest = {"stream": 0, "time_us": T0 + us} | stack | more
    return {"action": action, "addr": addr, "size": size, **rest}


def block(address: int, size: int, state: str, *frames: Any, **more: Any) -> dict[str, Any]:
    known = {"address": address, "size": size, "requested_size": size - 12, "state": state}
    return known | {"frames": list(frames)} | more


def segment(address: int, size: int, *blocks: Any, **more: Any) -> dict[str, Any]:
    known = {"device": 0, "address": address, "total_size": size, "stream": 0, "blocks": [*blocks]}
    return (
        known | {"segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False} | more
    )


def mark(stage: str, name: str, us: int, device: int = 0) -> dict[str, Any]:
    return {"stage": stage, "name": name, "device": device, "time_us": T0 + us}


def write(folder: Path, value: Any, protocol: int = 4) -> Path:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


def opened(folder: Path, value: Any, protocol: int = 4) -> Trace:
    trace = Trace(snapshot_source(write(folder, value, protocol)))
    trace.validate()
    return trace


def rows(trace: Trace, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return trace.table(table, columns).rows()


def snapshot(*traces: list[Any], segments: Any = (), annotations: Any = ()) -> dict[str, Any]:
    return {
        "segments": list(segments),
        "device_traces": list(traces),
        "allocator_settings": {"expandable_segments": False},
        "external_annotations": list(annotations),
    }


# The real one ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def truth() -> dict[str, Any]:
    value: dict[str, Any] = pickle.loads(REAL.read_bytes())  # ours, so that Python may read it
    return value


def test_a_real_snapshot_holds_what_python_reads(truth: dict[str, Any]) -> None:
    trace = open_trace(REAL, cache=False)
    trace.validate()
    events = truth["device_traces"][0]
    renamed = {"alloc": "allocation", "free_completed": "deallocation"}
    renamed["segment_alloc"] = "segment_allocation"
    actions = [renamed.get(e["action"], e["action"]) for e in events]
    table = trace.memory_events
    assert table["operation"].to_list() == actions
    for ours, theirs in {"address": "addr", "bytes": "size", "stream": "stream"}.items():
        assert table[ours].to_list() == [e[theirs] for e in events]
    first = events[0]["time_us"]
    assert table["time_ns"].to_list() == [(e["time_us"] - first) * 1000 for e in events]
    assert trace.meta.start_utc_ns == first * 1000
    assert trace.meta.notes == ()


def test_blocks_of_a_real_snapshot_add_up(truth: dict[str, Any]) -> None:
    blocks = open_trace(REAL, cache=False).memory_blocks
    active = blocks.filter(pl.col("state") == "active")
    assert active["bytes"].sum() == sum(s["allocated_size"] for s in truth["segments"])
    assert active["requested_bytes"].sum() == sum(s["requested_size"] for s in truth["segments"])
    by_segment = blocks.group_by("segment").agg(pl.col("bytes").sum(), pl.first("segment_bytes"))
    assert (by_segment["bytes"] == by_segment["segment_bytes"]).all()
    idle = blocks.filter(pl.col("state") == "inactive")
    assert idle["requested_bytes"].null_count() == idle["callchain"].null_count() == idle.height


def test_chains_of_a_real_snapshot_are_those_recorded(truth: dict[str, Any]) -> None:
    trace = open_trace(REAL, cache=False)
    frames = trace.callchains.unique(["callchain", "depth"], maintain_order=True)
    chains = frames.group_by("callchain", maintain_order=True).agg("symbol", "depth")
    symbols = dict(zip(chains["callchain"], chains["symbol"].to_list(), strict=True))
    recorded = [[f["name"] for f in e["frames"]] for e in truth["device_traces"][0]]
    assert [symbols[c] for c in trace.memory_events["callchain"]] == recorded
    assert all(depth == [*range(len(depth))] for depth in chains["depth"].to_list())
    assert len({tuple(s) for s in recorded}) <= len(symbols) < trace.row_count("memory_events")
    held = [b["frames"] for s in truth["segments"] for b in s["blocks"]]
    ours = [symbols[c] if c else [] for c in trace.memory_blocks["callchain"]]
    assert ours == [[f["name"] for f in frames] for frames in held]


def test_no_path_of_a_real_snapshot_starts_at_the_root() -> None:
    files = open_trace(REAL, cache=False).callchains["file"].unique().drop_nulls().to_list()
    assert {"demo/snap.py", "torch/nn/modules/linear.py", "CUDACachingAllocator.cpp"} <= set(files)
    assert not [f for f in files if f.startswith("/") or "site-packages" in f]


def test_steps_of_the_optimizer_are_ranges() -> None:
    trace = open_trace(REAL, cache=False)
    assert Counter(trace.ranges["name"]) == {
        "Optimizer.step#Adam.step": 4,
        "Optimizer.zero_grad#Adam.zero_grad": 4,
    }
    assert not trace.ranges["open"].any()
    assert rows(trace, "devices", "device", "name") == [(0, "unknown GPU")]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_and_compression_reads_alike(
    tmp_path: Path, truth: dict[str, Any], protocol: int
) -> None:
    path = tmp_path / "again.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps(truth, protocol=protocol)))
    again, before = open_trace(path, cache=False), open_trace(REAL, cache=False)
    for table in ("memory_events", "memory_blocks", "callchains", "ranges", "devices"):
        assert again.table(table).equals(before.table(table)), table


# Events ------------------------------------------------------------------------------------------


def test_actions_become_operations(tmp_path: Path) -> None:
    actions = [
        "segment_alloc", "alloc", "free_requested", "free_completed", "free", "segment_map",
        "segment_unmap", "segment_free", "snapshot", "workspace_snapshot", "something_new",
    ]  # fmt: skip
    history = [event(action, 4096, 512, at) for at, action in enumerate(actions)]
    trace = opened(tmp_path, snapshot(history))
    assert trace.memory_events["operation"].to_list() == [
        "segment_allocation", "allocation", "free_requested", "deallocation", "deallocation",
        "segment_map", "segment_unmap", "segment_deallocation", "snapshot", "snapshot",
        "something_new",
    ]  # fmt: skip


def test_devices_are_the_places_of_their_histories(tmp_path: Path) -> None:
    one = [event("alloc", 512, 100, 5, stream=3), event("alloc", 1024, 200, 1, stream=3)]
    other = [event("alloc", 512, 300, 2)]
    trace = opened(tmp_path, snapshot([], one, [], other))
    assert rows(trace, "memory_events", "time_ns", "device", "stream", "address", "bytes") == [
        (0, 1, 3, 1024, 200),
        (1000, 3, 0, 512, 300),
        (4000, 1, 3, 512, 100),
    ]
    assert trace.devices["device"].to_list() == [1, 3]
    assert trace.memory_events["allocator"].unique().to_list() == ["framework"]
    assert trace.meta.duration_ns == 4000
    assert trace.meta.start_utc_ns == (T0 + 1) * 1000


def test_running_out_of_memory_has_no_address(tmp_path: Path) -> None:
    failure = event("oom", 0, 1 << 34, 9, CPP, device_free=123)
    del failure["addr"]
    trace = opened(tmp_path, snapshot([event("alloc", 512, 100, 0), failure]))
    assert rows(trace, "memory_events", "operation", "address", "bytes") == [
        ("allocation", 512, 100),
        ("out_of_memory", None, 1 << 34),
    ]


def test_events_without_times_are_numbered(tmp_path: Path) -> None:
    history = [event("alloc", n * 512, 100, 0) for n in range(3)]
    for entry in history:
        del entry["time_us"]
    trace = opened(tmp_path, snapshot(history, history[:2]))
    assert rows(trace, "memory_events", "time_ns", "device") == [
        (0, 0), (0, 1), (1, 0), (1, 1), (2, 0),
    ]  # fmt: skip
    assert trace.meta.duration_ns is None
    assert trace.meta.start_utc_ns is None
    assert any("numbered in their order" in note for note in trace.meta.notes)


def test_a_clock_that_does_not_count_from_1970_gives_no_date(tmp_path: Path) -> None:
    trace = opened(tmp_path, snapshot([event("alloc", 512, 8, 0, time_us=77)]))
    assert trace.meta.start_utc_ns is None
    assert trace.memory_events["time_ns"].to_list() == [0]


def test_a_history_that_does_not_reach_back_says_how_much_is_missing(tmp_path: Path) -> None:
    history = [
        event("free_requested", 1000, 300, 1),
        event("free_completed", 1000, 300, 2),
        event("alloc", 1000, 50, 3),
        event("alloc", 5000, 70, 4),
    ]
    held = segment(
        1000, 9000,
        block(1000, 50, "active_allocated"),
        block(5000, 70, "active_allocated"),
        block(7000, 400, "active_pending_free"),
        block(8000, 999, "inactive"),
    )  # fmt: skip
    trace = opened(tmp_path, snapshot(history, segments=[held]))
    (stacks, early) = trace.meta.notes
    assert "without stacks" in stacks
    assert "2 blocks (700 B) were allocated before its first event" in early


def test_without_a_history_it_says_how_to_have_one(tmp_path: Path) -> None:
    held = segment(4096, 512, block(4096, 512, "active_allocated", CPP))
    for value in ([held], {"segments": [held]}, snapshot([], segments=[held])):
        trace = opened(tmp_path, value)
        assert not trace.has("memory_events")
        assert trace.row_count("memory_blocks") == 1
        assert any("_record_memory_history" in note for note in trace.meta.notes)
        assert set(trace.callchains["source"]) == {"memory_blocks"}


# Blocks ------------------------------------------------------------------------------------------


def test_blocks_carry_what_their_segment_says(tmp_path: Path) -> None:
    segments = [
        segment(1000, 300, block(1000, 100, "active_allocated"), block(1100, 200, "inactive")),
        segment(
            9000, 50, block(9000, 50, "active_pending_free"),
            device=1, stream=7, segment_type="small", is_expandable=True,
        ),
    ]  # fmt: skip
    trace = opened(tmp_path, snapshot(segments=segments))
    columns = ("device", "stream", "segment", "segment_bytes", "segment_kind", "expandable",
               "address", "bytes", "requested_bytes", "state")  # fmt: skip
    assert rows(trace, "memory_blocks", *columns) == [
        (0, 0, 1000, 300, "large", False, 1000, 100, 88, "active"),
        (0, 0, 1000, 300, "large", False, 1100, 200, None, "inactive"),
        (1, 7, 9000, 50, "small", True, 9000, 50, 38, "pending_free"),
    ]


def test_blocks_of_older_versions(tmp_path: Path) -> None:
    """PyTorch 1.12: no addresses, what was asked for and from where in a history of its own."""
    history = [{"addr": 1000, "real_size": 61, "frames": [FORWARD]}, {"addr": 0, "real_size": 5}]
    blocks = [
        {"size": 64, "state": "active_allocated", "history": history},
        {"size": 36, "state": "active_awaiting_free"},
        {"size": 200, "state": "inactive", "history": []},
    ]
    old = {"device": 0, "address": 1000, "total_size": 300, "segment_type": "small"}
    trace = opened(tmp_path, [old | {"blocks": blocks}, segment(5000, 10)], protocol=2)
    assert rows(trace, "memory_blocks", "address", "bytes", "requested_bytes", "state") == [
        (1000, 64, 61, "active"),
        (1064, 36, None, "pending_free"),
        (1100, 200, None, "inactive"),
    ]
    assert trace.callchains["symbol"].to_list() == ["forward"]
    assert not trace.has("memory_blocks", "stream")


# Call chains -------------------------------------------------------------------------------------


def test_chains_are_listed_once_under_each_table_that_has_them(tmp_path: Path) -> None:
    copy = dict(FORWARD)
    history = [
        event("alloc", 512, 8, 0, FORWARD, MAIN),
        event("alloc", 600, 8, 1, MAIN),
        event("alloc", 700, 8, 2),
        event("alloc", 800, 8, 3, copy, MAIN),
    ]
    held = segment(
        512, 500, block(512, 8, "active_allocated", FORWARD, MAIN),
        block(900, 8, "active_allocated", CPP, MAIN),
    )  # fmt: skip
    trace = opened(tmp_path, snapshot(history, segments=[held]))
    assert trace.memory_events["callchain"].to_list() == [1, 2, None, 1]
    assert trace.memory_blocks["callchain"].to_list() == [1, 3]
    columns = ("source", "callchain", "depth", "symbol", "file", "line")
    assert rows(trace, "callchains", *columns) == [
        ("memory_events", 1, 0, "forward", "net/model.py", 12),
        ("memory_events", 1, 1, "<module>", "~/train.py", 3),
        ("memory_events", 2, 0, "<module>", "~/train.py", 3),
        ("memory_blocks", 1, 0, "forward", "net/model.py", 12),
        ("memory_blocks", 1, 1, "<module>", "~/train.py", 3),
        ("memory_blocks", 3, 0, "at::empty(c10::ArrayRef<long>)", None, None),
        ("memory_blocks", 3, 1, "<module>", "~/train.py", 3),
    ]


def test_odd_frames_do_no_harm(tmp_path: Path) -> None:
    odd = {"name": "a\udc80b", "filename": None, "line": 1 << 40}
    trace = opened(tmp_path, snapshot([event("alloc", 512, 8, 0, odd, {}, {"name": 3})]))
    assert rows(trace, "callchains", "symbol", "file", "line") == [
        ("a?b", None, None),
        (None, None, None),
        (None, None, None),
    ]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/opt/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py",
         "torch/nn/modules/linear.py"),
        ("/usr/lib/python3/dist-packages/numpy/core.py", "numpy/core.py"),
        ("/usr/lib/python3.10/threading.py", "threading.py"),
        (r"C:\Users\alice\proj\train.py", "proj/train.py"),
        (r"C:\Users\alice\train.py", "~/train.py"),
        ("/home/alice/train.py", "~/train.py"),
        ("/home/alice/work/net/model.py", "net/model.py"),
        ("/mnt/nfs/home/alice/train.py", "~/train.py"),
        ("/Users/alice/.venv/lib/python3.9/site-packages/x.py", "x.py"),
        (ROOTS_HOME + "/train.py", "~/train.py"),
        ("/tmp/torchinductor_alice/ab/cabc.py", "ab/cabc.py"),
        ("...ome/alice/train.py", "train.py"),
        ("...lib/python3.8/site-packages/torch/autograd/profiler.py",
         "torch/autograd/profiler.py"),
        ("/demo/snap.py", "demo/snap.py"),
        ("/snap.py", "snap.py"),
        ("Blas.cpp", "Blas.cpp"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
        ("??", None),
        ("", None),
        ("/", None),
    ],
)  # fmt: skip
def test_paths_lose_what_names_people_and_machines(path: str, expected: str | None) -> None:
    assert shown_file(path) == expected


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("/home/alice/train.py(12): step", "~/train.py(12): step"),
        ("train.py(12): step", "train.py(12): step"),
        ("<built-in method conv2d of type object at 0x7f>",
         "<built-in method conv2d of type object at 0x7f>"),
        ("/a/b/c.py(1): f(2): g", "b/c.py(1): f(2): g"),
    ],
)  # fmt: skip
def test_frames_of_printed_stacks_too(frame: str, expected: str) -> None:
    assert shown_frame(frame) == expected


# Ranges ------------------------------------------------------------------------------------------


def test_annotations_nest_on_each_device(tmp_path: Path) -> None:
    annotations = [
        mark("START", "step", 10),
        mark("START", "forward", 20),
        mark("START", "forward", 25, device=1),
        mark("END", "forward", 30),
        mark("END", "never opened", 35),
        mark("END", "step", 40),
        mark("END", "forward", 50, device=1),
        mark("START", "never closed", 60),
    ]
    trace = opened(tmp_path, snapshot([event("alloc", 512, 8, 0)], annotations=annotations))
    assert rows(trace, "ranges", "name", "start_ns", "end_ns", "open", "depth", "parent") == [
        ("step", 10_000, 40_000, False, 0, None),
        ("forward", 20_000, 30_000, False, 1, 0),
        ("forward", 25_000, 50_000, False, 0, None),
        ("never closed", 60_000, 60_000, True, 0, None),
    ]
    assert "1 ends of annotations have no start in the snapshot" in trace.meta.notes


# As C++ writes it --------------------------------------------------------------------------------


def cpp_pickle(value: Any) -> bytes:
    """Write as PyTorch's own pickler does: wide integers, containers memoised after their items."""
    match value:
        case bool():
            return b"\x88" if value else b"\x89"
        case int() if 0 <= value < 256:
            return b"K" + bytes((value,))
        case int():
            return b"\x8a\x08" + struct.pack("<q", value)
        case str():
            return b"X" + struct.pack("<I", len(value)) + value.encode()
        case tuple():
            return b"".join(map(cpp_pickle, value)) + b"\x86"
        case list():
            return b"](" + b"".join(map(cpp_pickle, value)) + b"er\x09\x00\x00\x00"
        case dict():
            items = b"".join(cpp_pickle(k) + cpp_pickle(v) for k, v in value.items())
            return b"}(" + items + b"uq\x07"
    raise AssertionError(value)


def test_a_snapshot_written_by_cpp(tmp_path: Path) -> None:
    held = segment(4096, 512, block(4096, 512, "active_allocated", FORWARD))
    pool = {"pool_id": (0, 3)}
    value = snapshot([event("alloc", 4096, 512, 0, FORWARD, **pool)], segments=[held])
    path = tmp_path / "cpp.pickle"
    path.write_bytes(b"\x80\x02" + cpp_pickle(value) + b".")
    trace, python = Trace(snapshot_source(path)), opened(tmp_path, value)
    for table in ("memory_events", "memory_blocks", "callchains"):
        assert trace.table(table).equals(python.table(table)), table


# What is no snapshot -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        {"state_dict": {}, "epoch": 3},
        [1, 2, 3],
        [],
        {},
        "segments",
        [{"device": 0}],
        {"allocator_settings": {}},
        {"note": "total_size"},
    ],
    ids=repr,
)
def test_other_pickles(tmp_path: Path, value: Any) -> None:
    with pytest.raises(NotACaptureError, match=r"not of a CUDA memory snapshot.*_dump_snapshot"):
        opened(tmp_path, value)


def test_another_pickle_is_refused_when_opened(tmp_path: Path) -> None:
    with pytest.raises(NotACaptureError, match="not of a CUDA memory snapshot"):
        open_trace(write(tmp_path, {"weights": [1.0, 2.0]}))
    with pytest.raises(NotACaptureError, match=r"would import (posix|nt|pathlib)"):
        open_trace(write(tmp_path, {"segments": [Path("x")]}))


def test_nothing_is_read_before_a_question(tmp_path: Path) -> None:
    path = write(tmp_path, snapshot([event("alloc", 512, 8, 0)]))
    source = snapshot_source(path)
    path.write_bytes(b"gone")
    with pytest.raises(CaptureError):
        source.has("memory_events")


NOT_ROWS = "not a list of dictionaries"
MISSHAPEN: dict[str, tuple[Any, str]] = {
    "segments are no list": ({"segments": {"total_size": 1}}, NOT_ROWS),
    "a segment is no dictionary": ({"segments": [1]}, NOT_ROWS),
    "blocks are no list": (snapshot(segments=[segment(1, 2) | {"blocks": 5}]), NOT_ROWS),
    "a history is no list": ({"segments": [], "device_traces": [5]}, NOT_ROWS),
    "histories are no list": ({"device_traces": "alloc"}, "one for each device"),
    "too many devices": ({"device_traces": [[]] * 5000}, "one for each device"),
    "an event without a size": (snapshot([{"action": "alloc", "addr": 1}]), "no 'size'"),
    "an event of a negative size": (snapshot([event("alloc", 1, -5, 0)]), "are negative"),
    "an event without an action": (snapshot([{"size": 1}]), "no 'action'"),
    "an address that is text": (snapshot([event("alloc", "x", 1, 1)]), "'addr' is not a whole"),  # type: ignore[arg-type]
    "an address beyond 64 bits": (snapshot([event("alloc", 2**64 - 1, 1, 1)]), "beyond 64 bits"),
    "an action that is a list": (snapshot([{"action": [], "size": 1}]), "'action' is not a text"),
    "a time beyond time": (snapshot([event("alloc", 1, 1, 0, time_us=1 << 60)]), "is no time"),
    "a stack that is text": (snapshot([event("alloc", 1, 1, 0, frames="abc")]), "not a list"),
    "a frame that is a number": (snapshot([event("alloc", 1, 1, 0, 7)]), "not a dictionary"),
    "a block without a size": (snapshot(segments=[segment(1, 2, {"state": "x"})]), "no 'size'"),
    "a segment without a device": (
        snapshot(segments=[{"address": 1, "total_size": 2, "blocks": []}]), "no 'device'"),
    "annotations are no list": (snapshot() | {"external_annotations": 3}, NOT_ROWS),
}  # fmt: skip


@pytest.mark.parametrize(("value", "says"), MISSHAPEN.values(), ids=MISSHAPEN.keys())
def test_misshapen_snapshots_say_what_is_wrong(tmp_path: Path, value: Any, says: str) -> None:
    with pytest.raises(DamagedCaptureError) as caught:
        opened(tmp_path, value)
    assert says in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_references_do_not_multiply_the_work(tmp_path: Path) -> None:
    """A small file may say the same thing a million million times; it is refused, or said once."""
    many = 20_000
    one = block(1, 1, "active_allocated", *[FORWARD] * many)
    shared_blocks = segment(1, 1, *[one] * many)
    trace = [event("alloc", 1, 1, 0)] * many
    frames = [[FORWARD] * many] * many
    history = [{"real_size": 1}] * many
    old = [{"size": 1, "state": "x", "history": history}] * many
    began = time.process_time()
    with pytest.raises(DamagedCaptureError, match="blocks of segments are the same"):
        opened(tmp_path, {"segments": [shared_blocks] * many})
    with pytest.raises(DamagedCaptureError, match="histories of devices are the same"):
        opened(tmp_path, {"device_traces": [trace] * 4000})
    for value in (
        {"segments": [shared_blocks]},
        {"segments": [segment(1, 1, *old)]},
        snapshot([event("alloc", 1, 1, 0, frames=f) for f in frames]),
    ):
        opened(tmp_path, value)
    assert time.process_time() - began < 5


def test_a_snapshot_that_holds_itself(tmp_path: Path) -> None:
    value = snapshot([event("alloc", 1, 1, 0)])
    value["itself"] = value
    frames: list[Any] = []
    frames.append(frames)
    assert opened(tmp_path, value).row_count("memory_events") == 1
    with pytest.raises(DamagedCaptureError, match="not a dictionary"):
        opened(tmp_path, snapshot([event("alloc", 1, 1, 0, frames=frames)]))


# Damage ------------------------------------------------------------------------------------------


def survives(path: Path) -> None:
    """Read everything; only errors with a message for the user may come out."""
    began = time.process_time()
    try:
        Trace(snapshot_source(path)).validate()
    except GpusightError as error:
        message = str(error)
        if not message.isprintable():
            raise AssertionError(message) from error
    assert time.process_time() - began < 5


@settings(max_examples=70)
@given(data=st.data())
def test_flipped_bits_do_no_harm(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(REAL.read_bytes())
    # The first bytes hold the structure; most of the rest are references to frames.
    position = st.integers(0, 3000) | st.integers(0, len(content) - 1)
    for at in data.draw(st.lists(position, min_size=1, max_size=4)):
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path / "flipped.pickle"
    path.write_bytes(content)
    survives(path)


@settings(max_examples=20)
@given(size=st.integers(0, REAL.stat().st_size - 1), rest=st.binary(max_size=50))
def test_cut_and_patched_files_do_no_harm(tmp_path: Path, size: int, rest: bytes) -> None:
    path = tmp_path / "cut.pickle"
    path.write_bytes(REAL.read_bytes()[:size] + rest)
    survives(path)


SMALL = st.integers(-5, 5) | st.sampled_from(["alloc", "free", "START", "inactive"]) | st.none()
ODD_ROWS = st.lists(
    st.dictionaries(
        st.sampled_from(
            ["action", "addr", "size", "stream", "time_us", "frames", "device", "address",
             "total_size", "blocks", "state", "history", "stage", "name", "filename", "line"]
        ),
        st.recursive(SMALL, lambda inner: st.lists(inner, max_size=3), max_leaves=4)
        | st.lists(st.dictionaries(st.sampled_from(["name", "size", "state"]), SMALL), max_size=2),
        max_size=8,
    ),
    max_size=4,
)  # fmt: skip


@settings(max_examples=60)
@given(segments=ODD_ROWS, traces=st.lists(ODD_ROWS, max_size=2), annotations=ODD_ROWS)
def test_odd_contents_do_no_harm(
    tmp_path: Path, segments: Any, traces: Any, annotations: Any
) -> None:
    survives(write(tmp_path, snapshot(*traces, segments=segments, annotations=annotations)))
