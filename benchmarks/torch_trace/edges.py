"""What a trace holds once: its head, the outermost Python functions and its tail."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.torch_trace.kernels import SMS
from benchmarks.torch_trace.layout import PID, RANKS, TIDS
from benchmarks.torch_trace.recorder import COMMUNICATION, COMPUTE

if TYPE_CHECKING:
    from collections.abc import Iterable

GPUS_NAMED = 16
BUFFER_NS = 2_053_640
ROOTS = ("train.py(86): <module>", "train.py(76): main")

HEADER = """
  {
    "schemaVersion": 1,
    "deviceProperties": [
DEVICES
    ],
      "distributedInfo": DISTRIBUTED,
      "trace_id": "8A3361ED41EA4A04909D6D34A2B19488",
      "with_stack": 1,
      "profile_memory": 1,
      "cuda_driver_version": 13000,
      "record_shapes": 1,
      "with_flops": 1,
      "cuda_runtime_version": 13000,
      "cupti_version": 130001,
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1790857026000000000,
  "traceEvents": [
"""
DEVICE = """    {
      "id": ID, "name": "NVIDIA H200", "totalGlobalMem": 150109880320,
      "computeMajor": 9, "computeMinor": 0,
      "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,
      "regsPerBlock": 65536, "warpSize": 32,
      "sharedMemPerBlock": 49152, "numSms": SMS
    , "regsPerMultiprocessor": 65536, "sharedMemPerBlockOptin": 232448, "sharedMemPerMultiprocessor": 233472
    }"""  # noqa: E501
GROUP = {
    "pg_name": "0",
    "pg_desc": "default_pg",
    "backend_config": "cuda:nccl",
    "pg_size": RANKS,
    "ranks": list(range(RANKS)),
}
DISTRIBUTED = {
    "backend": "nccl",
    "rank": 0,
    "world_size": RANKS,
    "pg_count": 1,
    "pg_config": [GROUP],
    "nccl_version": "2.27.5",
}
SPAN = """  {
    "ph": "X", "cat": "Trace", "ts": START, "dur": DURATION,
    "pid": "Spans", "tid": "PyTorch Profiler",
    "name": "PyTorch Profiler (0)",
    "args": {
      "Op count": 0
    }
  },
  {
    "name": "process_sort_index", "ph": "M", "ts": START,
    "pid": "Spans", "tid": 0,
    "args": {
      "sort_index": 536870912
    }
  },
  {
    "name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g",
    "pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": START
  },
  {
    "name": "Record Window End", "ph": "i", "s": "g",
    "pid": "", "tid": "", "ts": END
  }
  ],
  "traceName": "NAME"
}"""


def header() -> bytes:
    """Write everything before the first event."""
    device = DEVICE.replace("SMS", str(SMS))
    devices = ",\n".join(device.replace("ID", str(i), 1) for i in range(RANKS))
    text = HEADER.replace("DEVICES", devices).replace("DISTRIBUTED", json.dumps(DISTRIBUTED))
    return text.encode("ascii")


def root_frames(first_index: int, start_ns: int, end_ns: int) -> bytes:
    """Write the Python functions around all steps."""
    text = ""
    for i, name in enumerate(ROOTS):
        text += (
            f'  {{\n    "ph": "X", "cat": "python_function", "name": "{name}", "pid": {PID},'
            f' "tid": {PID},\n    "ts": {_us(start_ns)}, "dur": {_us(end_ns - start_ns)},\n'
            f'    "args": {{\n      "Python parent id": {i or "null"}, "Python id": {i + 1},'
            f' "Ev Idx": {first_index + i}\n    }}\n  }},\n'
        )
    return text.encode("ascii")


def overheads(starts_ns: Iterable[int]) -> bytes:
    """Write when the profiler asked for buffers."""
    return "".join(
        '  {\n    "ph": "X", "cat": "overhead", "name": "Activity Buffer Request", "pid": -1,'
        f' "tid": 0,\n    "ts": {_us(start)}, "dur": {_us(BUFFER_NS)}\n  }},\n'
        for start in starts_ns
    ).encode("ascii")


def trailer(name: str, start_ns: int, end_ns: int) -> bytes:
    """Write the names of processes and threads and everything after the last event."""
    processes = {PID: ("CPU", PID), **{i: (f"GPU {i}", 5_000_000 + i) for i in range(GPUS_NAMED)}}
    text = ""
    for pid, (label, order) in processes.items():
        text += _meta("process_name", start_ns, pid, 0, '"name": "python3"')
        text += _meta("process_labels", start_ns, pid, 0, f'"labels": "{label}"')
        text += _meta("process_sort_index", start_ns, pid, 0, f'"sort_index": {order}')
    threads = {(0, stream): f"stream {stream} " for stream in (COMPUTE, COMMUNICATION)}
    threads |= {(PID, TIDS[0]): f"thread {TIDS[0]} (python3)"}
    threads |= {(PID, TIDS[1]): f"thread {TIDS[1]} (pt_autograd_0)"}
    for (pid, tid), thread in threads.items():
        text += _meta("thread_name", start_ns, pid, tid, f'"name": "{thread}"')
        text += _meta("thread_sort_index", start_ns, pid, tid, f'"sort_index": {tid}')
    span = SPAN.replace("START", _us(start_ns)).replace("DURATION", _us(end_ns - start_ns))
    return (text + span.replace("END", _us(end_ns)).replace("NAME", name)).encode("ascii")


def _meta(name: str, start_ns: int, pid: int, tid: int, argument: str) -> str:
    return (
        f'  {{\n    "name": "{name}", "ph": "M", "ts": {_us(start_ns)}, "pid": {pid},'
        f' "tid": {tid},\n    "args": {{\n      {argument}\n    }}\n  }},\n'
    )


def _us(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
