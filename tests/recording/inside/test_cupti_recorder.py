"""`record --with cupti`: CUPTI's records in, a capture that every command reads out."""

from __future__ import annotations

import csv
import io
import json
import os
import sqlite3
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

import gpusight as gs
from gpusight.errors import RecordError
from gpusight.recording.inside import nvtx_backend
from gpusight.recording.inside.cupti_buffers import BufferWalker, CuptiBuffers, StringIds
from gpusight.recording.inside.cupti_recorder import CuptiRecorder
from gpusight.recording.inside.environment import CUPTI, RecorderPlan
from gpusight.trace.trace import Trace
from tests.recording.inside.fake_cupti import FakeCupti
from tests.shared import tool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = 1_794_756_449_633_000_000
"""A time as CUPTI gives it, nanoseconds since 1970, that no 64-bit real can hold exactly."""
PID = os.getpid()
TID, OTHER = PID, PID + 1
SGEMM = "_ZN7cutlass7Kernel2I41cutlass_80_simt_sgemm_64x64_8x5_tn_align1EEvNT_6ParamsE"
H200 = {
    "id": 0,
    "name": "NVIDIA H200",
    "compute_capability_major": 9,
    "num_multiprocessors": 132,
    "core_clock_rate": 1_980_000,
    "global_memory_bandwidth": 4_814_304_000,
    "global_memory_size": 150_109_880_320,
    "l2cache_size": 62_914_560,
    "num_threads_per_warp": 32,
    "max_warps_per_multiprocessor": 64,
    "max_blocks_per_multiprocessor": 32,
    "max_threads_per_block": 1024,
    "max_registers_per_multiprocessor": 65_536,
    "max_shared_memory_per_multiprocessor": 233_472,
    "max_shared_memory_per_block": 49_152,
}


class Session:
    """A recording of rows that a test gives, with times from its start."""

    def __init__(self, cupti: FakeCupti | None = None, **wanted: Any) -> None:
        self.cupti = cupti or FakeCupti()
        self.cupti.now_ns = NOW
        self.recorder = CuptiRecorder(RecorderPlan(CUPTI, "out", **wanted), load=lambda: self.cupti)
        self.recorder.start()
        self.add("device", **H200)
        self.add("context", context_id=1, device_id=0, null_stream_id=7)
        self.add("stream", context_id=1, stream_id=7, flag=3)

    def add(self, what: str, **fields: Any) -> None:
        for name in ("start", "end", "timestamp"):
            if fields.get(name):
                fields[name] += NOW
        self.cupti.add(what, **fields)

    def call(self, function: int, start: int, end: int, correlation: int, **fields: Any) -> None:
        given = {"thread_id": TID, "process_id": PID, **fields}
        kind = given.pop("what", "runtime")
        self.add(kind, cbid=function, start=start, end=end, correlation_id=correlation, **given)

    def kernel(self, start: int, end: int, correlation: int, **fields: Any) -> None:
        shape = dict.fromkeys(("grid_x", "grid_y", "grid_z", "block_y", "block_z"), 1)
        given = {**shape, "block_x": 128, "name": SGEMM, "context_id": 1, "stream_id": 7, **fields}
        self.add("kernel", start=start, end=end, correlation_id=correlation, **given)

    def marker(self, flags: int, at: int, number: int, name: str = "", **fields: Any) -> None:
        given = {"object_kind": 2, "process_id": PID, "thread_id": TID, **fields}
        if name:
            given["name"] = name
        self.add("marker", flags_=flags, timestamp=at, id=number, **given)

    def write(self, path: Path, end: int = 100_000) -> Trace:
        self.cupti.now_ns = NOW + end
        self.recorder.stop()
        path.touch()
        self.recorder.write(path)
        trace = gs.open(path)
        assert isinstance(trace, Trace)
        return trace


INSTANT, START, END = 1, 2, 4


def rows(trace: Trace, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return trace.table(table, list(columns)).rows()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.sqlite"


@pytest.fixture(autouse=True)
def _keep_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(nvtx_backend.PATH_VARIABLE, "")  # so that it is put back, whatever sets it
    monkeypatch.delenv(nvtx_backend.PATH_VARIABLE)
    yield
    monkeypatch.undo()
    nvtx_backend.choose_again()


def test_kernels_have_their_shape_and_a_readable_name(path: Path) -> None:
    session = Session()
    session.call(211, 1_000, 4_000, 1556)
    session.kernel(
        5_000,
        12_584,
        1556,
        grid_x=8,
        grid_z=6,
        registers_per_thread=74,
        dynamic_shared_memory=20_480,
        shared_memory_executed=135_168,
        local_memory_total=1,
        local_memory_total_v2=155_713_536,
        grid_id=1,
        graph_node_id=2**34,
        cluster_x=2,
    )
    trace = session.write(path)
    shape = ("grid_x", "grid_z", "block_x", "registers_per_thread", "dynamic_shared_bytes")
    assert rows(trace, "kernels", "start_ns", "end_ns", "correlation", *shape) == [
        (5_000, 12_584, 1556, 8, 6, 128, 74, 20_480)
    ]
    more = ("executed_shared_bytes", "local_total_bytes", "graph_node", "cluster_x", "cluster_y")
    assert rows(trace, "kernels", *more) == [(135_168, 155_713_536, 2**34, 2, None)]
    name = (
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_tn_align1>"
        "(cutlass_80_simt_sgemm_64x64_8x5_tn_align1::Params)"
    )
    assert rows(trace, "kernels", "name", "base_name", "mangled_name") == [(name, "Kernel2", SGEMM)]


def test_the_capture_says_what_made_it_and_on_what(path: Path) -> None:
    session = Session()
    session.kernel(1, 2, 1)
    trace = session.write(path, end=60_000)
    assert (trace.meta.tool, trace.meta.tool_version) == ("gpusight record, CUPTI", "13.0")
    assert trace.meta.duration_ns == 60_000
    hardware = ("name", "compute_major", "sm_count", "clock_hz", "memory_bytes", "memory_bandwidth")
    assert rows(trace, "devices", *hardware) == [
        ("NVIDIA H200", 9, 132, 1_980_000_000, 150_109_880_320, 4_814_304_000_000)
    ]
    assert rows(trace, "processes", "pid") == [(PID,)]
    assert (TID,) in rows(trace, "threads", "tid")


def test_only_calls_that_matter_are_kept(path: Path) -> None:
    session = Session()
    session.call(3, 100, 200, 1)  # cudaGetDevice
    session.call(211, 1_000, 4_000, 2)  # cudaLaunchKernel …
    session.call(307, 1_500, 3_500, 3, what="driver")  # … and the cuLaunchKernel inside it
    session.kernel(5_000, 6_000, 2)
    session.call(307, 7_000, 8_000, 4, what="driver")  # cuLaunchKernel by the program itself
    session.kernel(9_000, 9_500, 4)
    session.call(307, 1_600, 3_000, 5, what="driver", thread_id=OTHER)  # on another thread
    session.call(673, 9_600, 9_700, 6, what="driver")  # cuKernelGetName
    trace = session.write(path)
    names = ("name", "api", "start_ns", "correlation")
    assert rows(trace, "api_calls", *names) == [
        ("cudaLaunchKernel", "runtime", 1_000, 2),
        ("cuLaunchKernel", "driver", 1_600, 5),
        ("cuLaunchKernel", "driver", 7_000, 4),
    ]


def test_a_call_with_work_is_kept_whatever_it_is(path: Path) -> None:
    session = Session()
    session.call(3, 100, 900, 1)  # "cudaGetDevice", nested in it the call that has the work
    session.call(307, 200, 800, 2, what="driver")
    session.kernel(5_000, 6_000, 2)
    session.call(999, 9_000, 9_100, 3)  # a function that this CUPTI cannot name
    trace = session.write(path)
    assert rows(trace, "api_calls", "name", "correlation") == [
        ("cuLaunchKernel", 2),
        ("cuda[999]", 3),
    ]


def test_copies_fills_waits_and_memory(path: Path) -> None:
    session = Session(memory=True)
    place = {"context_id": 1, "stream_id": 7}
    copy = {**place, "copy_kind": 1, "src_kind": 1, "dst_kind": 3, "bytes": 4096}
    session.add("memcpy", start=1_000, end=1_500, correlation_id=1, **copy)
    session.add(
        "peer", start=2_000, end=2_500, copy_kind=10, src_kind=3, dst_kind=3, bytes=8,
        context_id=1, stream_id=7, src_device_id=0, dst_device_id=1, correlation_id=2,
    )  # fmt: skip
    session.add("memset", start=3_000, end=3_100, bytes=64, value=7, memory_kind=3, **place)
    session.add(
        "sync", start=4_000, end=4_500, type=4, context_id=1, stream_id=2**32 - 1,
        cuda_event_id=2**32 - 1,
    )  # fmt: skip
    allocation = {"memory_kind": 3, "address": 1 << 40, "bytes": 512, "context_id": 1}
    session.add("memory", memory_operation_type=1, timestamp=5_000, **allocation)
    session.add("memory", memory_operation_type=2, timestamp=6_000, **allocation)
    trace = session.write(path)
    assert rows(trace, "copies", "kind", "src_kind", "dst_kind", "bytes", "dst_device") == [
        ("Host-to-Device", "Pageable", "Device", 4096, None),
        ("Peer-to-Peer", "Device", "Device", 8, 1),
    ]
    assert rows(trace, "memsets", "bytes", "value", "memory_kind") == [(64, 7, "Device")]
    assert rows(trace, "syncs", "kind", "start_ns", "device") == [("context", 4_000, 0)]
    assert rows(trace, "memory_events", "operation", "time_ns", "bytes", "memory_kind") == [
        ("allocation", 5_000, 512, "Device"),
        ("deallocation", 6_000, 512, "Device"),
    ]


def test_waits_are_on_the_device_of_their_context(path: Path) -> None:
    session = Session()
    session.add("device", **{**H200, "id": 1})
    session.add("context", context_id=2, device_id=1)
    session.add("sync", start=1, end=2, type=4, context_id=2)
    session.add("event", context_id=2, stream_id=9, event_id=5, correlation_id=3)
    session.kernel(1, 2, 1)
    trace = session.write(path)
    assert rows(trace, "syncs", "device") == [(1,)]
    assert rows(trace, "event_records", "device", "event") == [(1, 5)]


def test_ranges_pair_up_and_tell_push_pop_from_start_end(path: Path) -> None:
    session = Session()
    session.kernel(1, 2, 1)
    session.marker(START, 100, 1, "step 0", domain="gpusight")
    session.marker(START, 200, 2, "outer")
    session.marker(START, 300, 3, "inner")
    session.marker(INSTANT, 350, 9, "mark")
    session.marker(END, 400, 3)
    session.marker(END, 500, 2)
    session.marker(START, 600, 4, "crosses")
    session.marker(START, 700, 5, "top")
    session.marker(END, 800, 4)
    session.marker(END, 900, 5)
    session.marker(START, 950, 6, "elsewhere")
    session.marker(END, 980, 6, thread_id=OTHER)
    session.marker(END, 990, 77)  # began before recording did
    session.marker(START, 995, 8, "open")
    trace = session.write(path, end=2_000)
    assert rows(trace, "ranges", "name", "kind", "domain", "start_ns", "end_ns", "open") == [
        ("step 0", "push_pop", "gpusight", 100, 2_000, True),
        ("outer", "push_pop", "", 200, 500, False),
        ("inner", "push_pop", "", 300, 400, False),
        ("mark", "mark", "", 350, 350, False),
        ("crosses", "start_end", "", 600, 800, False),
        ("top", "push_pop", "", 700, 900, False),
        ("elsewhere", "start_end", "", 950, 980, False),
        ("open", "push_pop", "", 995, 2_000, True),
    ]
    assert rows(trace, "ranges", "name", "depth")[2] == ("inner", 1)


def test_ranges_carry_colour_category_and_payload(path: Path) -> None:
    session = Session()
    session.kernel(1, 2, 1)
    session.marker(INSTANT, 100, 1, "loss")
    session.marker(INSTANT, 200, 2, "rate")
    session.marker(INSTANT, 300, 3, "plain")
    look = {"flags_": 2, "color": 0xFF00FF00, "category": 3}
    session.add("marker_data", id=1, payload_kind=4, payload={"metric_value_int64": -42}, **look)
    session.add(
        "marker_data", id=2, payload_kind=0, payload={"metric_value_double": 0.25}, flags_=1
    )
    trace = session.write(path)
    columns = ("name", "color", "category", "payload_int", "payload_real")
    assert rows(trace, "ranges", *columns) == [
        ("loss", 0xFF00FF00, "3", -42, None),
        ("rate", None, None, None, 0.25),
        ("plain", None, None, None, None),
    ]


def test_whole_graphs_are_not_asked_for() -> None:
    assert 51 not in Session().cupti.enabled  # it crashes programs, see CuptiRecorder


def test_time_that_cupti_took_is_told_and_time_of_the_program_is_not(path: Path) -> None:
    session = Session()
    session.kernel(1, 2, 1)
    own = {"object_kind": 2, "process_id": PID, "thread_id": TID}
    session.add("overhead", overhead_kind=0x20000, start=100, end=200, **own)
    session.add("overhead", overhead_kind=0x50000, start=300, end=900, **own)  # lazy loading
    trace = session.write(path)
    assert rows(trace, "overheads", "name", "start_ns") == [("CUPTI: Instrumentation", 100)]


def three_steps(session: Session) -> None:
    for step in range(3):
        at = 10_000 * step
        session.marker(START, at + 500, step + 1, f"step {step}")
        session.call(211, at + 1_000, at + 4_000, step + 1)
        session.kernel(at + 5_000, at + 8_000, step + 1)
        session.marker(END, at + 10_000, step + 1)


def test_ledger_and_diagnosis_work_on_it(path: Path) -> None:
    session = Session()
    three_steps(session)
    trace = session.write(path)
    document = json.loads(gs.ledger(trace).to_json())
    window = document["window"]
    assert (window["start_ns"], window["end_ns"]) == (500, 30_000)
    assert window["step_ns"] == window["recorded_step_ns"]
    (device,) = document["devices"]
    assert {entry["entry"]: entry["ns"] for entry in device["entries"]} == {
        "compute/matmul": 9_000,
        "idle/launching": 12_000,  # from the call to the kernel's start
        "idle/framework": 8_500,
    }
    assert "3 steps of 9.83 µs" in gs.diagnose(trace).to_text()


def test_work_without_an_end_is_left_out_and_said(path: Path) -> None:
    session = Session()
    session.kernel(1_000, 2_000, 1)
    session.kernel(3_000, 0, 2)
    session.cupti.dropped = 17
    trace = session.write(path)
    assert rows(trace, "kernels", "start_ns") == [(1_000,)]
    severity = dict(rows(trace, "diagnostics", "text", "severity"))
    assert severity["1 kernels had not ended when recording did and are left out"] == "warning"
    lost = "CUPTI dropped 17 records (buffers full): counts are too low"
    assert severity[lost] == "warning"


@pytest.mark.parametrize("longer_by", [8, 64])
def test_records_of_later_versions_are_longer(path: Path, longer_by: int) -> None:
    session = Session(FakeCupti(longer_by=longer_by))
    session.call(211, 1_000, 4_000, 1)
    session.kernel(5_000, 6_000, 1)
    session.kernel(7_000, 8_000, 2)
    trace = session.write(path)
    assert rows(trace, "kernels", "start_ns") == [(5_000,), (7_000,)]


def test_fields_beyond_a_shorter_record_are_null() -> None:
    from gpusight.recording.inside.cupti_library import KERNEL, LAYOUTS

    layout = LAYOUTS[KERNEL]
    row = dict(zip(layout.parameters, layout.reader(144).row(bytes(144), 0), strict=True))
    assert (row["shared_executed"], row["graph_node"], row["cluster_x"]) == (0, None, None)


def test_a_record_of_unknown_length_loses_the_rest_of_its_buffer_and_is_said(path: Path) -> None:
    session = Session()
    session.kernel(1_000, 2_000, 1)
    session.cupti._pending += (54).to_bytes(4, "little") + bytes(60)
    trace = session.write(path)
    assert rows(trace, "kernels", "start_ns") == [(1_000,)]
    message = "64 bytes of CUPTI's records could not be read"
    assert (message, "warning") in rows(trace, "diagnostics", "text", "severity")


def test_threads_are_found_by_their_posix_ids_where_cupti_has_no_others(path: Path) -> None:
    import threading

    cupti = FakeCupti()
    cupti.system_ids = False
    session = Session(cupti)
    session.call(211, 1, 2, 1, thread_id=threading.get_ident() & 0xFFFFFFFF)
    trace = session.write(path)
    (thread,) = rows(trace, "api_calls", "thread")[0]
    assert thread & 0xFFFFFF == threading.get_native_id()


def test_a_process_that_did_nothing_has_no_capture() -> None:
    session = Session()
    session.marker(INSTANT, 100, 1, "only a mark")
    session.recorder.stop()
    assert session.recorder.is_empty()
    session.kernel(1, 2, 3)
    session.cupti.deliver()
    assert not session.recorder.is_empty()


def test_recording_is_off_after_the_window_and_noise_is_never_on() -> None:
    session = Session()
    assert {10, 1, 2, 4, 5, 12, 13, 38} <= session.cupti.enabled
    assert 49 not in session.cupti.enabled  # memory was not asked for
    assert (2, 3) in session.cupti.switched_off  # cudaGetDevice
    session.recorder.stop()
    assert not session.cupti.enabled


def test_what_cupti_refuses_is_said(path: Path) -> None:
    with pytest.raises(
        RecordError, match="CUPTI cannot record kernels: CUPTI_ERROR_NOT_COMPATIBLE"
    ):
        Session(FakeCupti(refuses=(10,)))
    session = Session(FakeCupti(refuses=(12,)))
    session.kernel(1, 2, 1)
    texts = [text for (text,) in rows(session.write(path), "diagnostics", "text")]
    assert "CUPTI cannot record NVTX ranges: CUPTI_ERROR_NOT_COMPATIBLE" in texts


def test_a_refusal_leaves_nothing_on() -> None:
    cupti = FakeCupti(refuses=(5,))
    with pytest.raises(RecordError):
        Session(cupti)
    assert not cupti.enabled


def test_nvtx_is_led_to_the_same_library_unless_another_tool_is_around(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cupti = FakeCupti()
    cupti.path = path.with_name("libcupti.so.13")
    assert nvtx_backend.backend() is None
    Session(cupti)
    assert os.environ[nvtx_backend.PATH_VARIABLE] == str(cupti.path)
    with pytest.warns(
        nvtx_backend.NvtxUnavailableWarning, match=r"libcupti\.so\.13 cannot be used"
    ):
        nvtx_backend.backend()  # is looked for again
    monkeypatch.setenv(nvtx_backend.PATH_VARIABLE, "libToolsInjection64.so")
    session = Session(cupti)
    assert os.environ[nvtx_backend.PATH_VARIABLE] == "libToolsInjection64.so"
    session.kernel(1, 2, 1)
    texts = [text for (text,) in rows(session.write(path), "diagnostics", "text")]
    assert any("another tool" in text for text in texts)


def test_many_buffers_go_to_a_file_and_come_back_whole(path: Path) -> None:
    session = Session()
    for number in range(40):
        session.kernel(number * 10 + 1, number * 10 + 5, number, name=f"kernel_{number % 7}")
        session.cupti.deliver()
    trace = session.write(path)
    assert rows(trace, "kernels", "start_ns", "name") == [
        (number * 10 + 1, f"kernel_{number % 7}") for number in range(40)
    ]


def test_a_buffer_lent_again_does_not_change_what_was_kept() -> None:
    cupti = FakeCupti()
    walker = BufferWalker(cupti)
    lent = CuptiBuffers(walker, StringIds())
    cupti.register(lent.request, lent.complete)
    for start in (1, 2):
        cupti.add("kernel", start=start, end=9)
        cupti.deliver()
    starts = [row[2] for part in lent.contents() for _, found in walker.rows(part) for row in found]
    assert starts == [1, 2]
    assert len(lent._memory) == 1
    lent.close()


def test_a_disk_that_is_full_costs_what_did_not_fit_and_is_said(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.BytesIO):
        """Has room for some bytes, and takes half of what comes when there is no more."""

        room = 3000

        def write(self, records: Any) -> int:
            if self.tell() + len(records) > self.room:
                super().write(bytes(records)[:100])
                raise OSError(28, "No space left on device")
            return super().write(records)

    made = Full()
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: made)
    session = Session()
    for number in range(40):
        session.kernel(number * 10 + 1, number * 10 + 5, number)
        session.cupti.deliver()
        Full.room += 1000 * (number == 30)
    trace = session.write(path)
    starts = [start for (start,) in rows(trace, "kernels", "start_ns")]
    assert starts == sorted({*starts})
    assert {start % 10 for start in starts} == {1}
    assert 16 <= len(starts) < 40
    texts = [text for (text,) in rows(trace, "diagnostics", "text")]
    assert any("could not be kept: [Errno 28] No space left" in text for text in texts)


def test_a_gpu_that_cannot_be_waited_for_leaves_nothing_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failed() -> None:
        raise OSError("the driver is gone")

    session = Session()
    monkeypatch.setattr("gpusight.recording.inside.cupti_recorder.wait_for_gpus", failed)
    with pytest.raises(OSError, match="gone"):
        session.recorder.stop()
    assert not session.cupti.enabled  # CUPTI calls back until the end, Python may be gone by then


def test_what_was_prepared_in_vain_leaves_nothing_on() -> None:
    cupti = FakeCupti()
    recorder = CuptiRecorder(RecorderPlan(CUPTI, "out"), load=lambda: cupti)
    recorder.prepare()
    assert cupti.enabled
    recorder.cancel()
    assert not cupti.enabled


def test_a_forked_child_keeps_nothing() -> None:
    session = Session()
    session.kernel(1, 2, 1)
    session.cupti.deliver()
    session.recorder.forget()
    session.kernel(3, 4, 2)
    session.cupti.deliver()
    assert session.recorder.is_empty()


def test_nothing_about_the_person_is_written(path: Path) -> None:
    session = Session()
    session.kernel(1, 2, 1)
    session.write(path).close()
    with sqlite3.connect(path) as database:
        kept = {name for (name,) in database.execute("SELECT name FROM TARGET_INFO_SYSTEM_ENV")}
    database.close()
    assert kept <= {"NvDriverVersion", "CudaDriverVersion", "OsDescription", "CpuDescription"}
    assert not {"META_DATA_CAPTURE", "NVTX_EVENTS"} & kept


@pytest.mark.parametrize(
    ("report", "column", "expected"),
    [
        ("cuda_gpu_kern_sum", "Total Time (ns)", [9_000]),
        ("cuda_gpu_kern_sum", "Instances", [3]),
        ("cuda_api_sum", "Total Time (ns)", [9_000]),
        ("cuda_gpu_mem_time_sum", "Total Time (ns)", [500]),
        ("nvtx_sum", "Total Time (ns)", [9_500, 9_500, 9_500]),
        ("nvtx_gpu_proj_sum", "Total GPU Ops", [1, 1, 1]),
    ],
)
def test_nsys_stats_reads_it(path: Path, report: str, column: str, expected: list[int]) -> None:
    nsys = tool("nsys", "nsys/target-linux-x64/nsys")
    session = Session()
    three_steps(session)
    session.add("memcpy", start=50_000, end=50_500, copy_kind=1, src_kind=1, dst_kind=3, bytes=4)
    session.write(path).close()
    command = [nsys, "stats", "-q", "--format", "csv", "-r", report, str(path)]
    csv_text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    table = csv.DictReader(io.StringIO(csv_text.strip()))
    assert [int(row[column]) for row in table] == expected
