"""A libcupti for tests: packs rows into records as NVIDIA's own `cupti-python` lays them out."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpusight.recording.inside.cupti_library import Cupti

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_KINDS = {
    "kernel": (10, "activity_kernel10_dtype"),
    "memcpy": (1, "activity_memcpy6_dtype"),
    "peer": (22, "activity_memcpy_pto_p4_dtype"),
    "memset": (2, "activity_memset4_dtype"),
    "runtime": (5, "activity_api_dtype"),
    "driver": (4, "activity_api_dtype"),
    "sync": (38, "activity_synchronization2_dtype"),
    "event": (36, "activity_cuda_event2_dtype"),
    "memory": (49, "activity_memory4_dtype"),
    "marker": (12, "activity_marker2_dtype"),
    "marker_data": (13, "activity_marker_data_dtype"),
    "overhead": (17, "activity_overhead3_dtype"),
    "name": (11, "activity_name_dtype"),
    "context": (9, "activity_context3_dtype"),
    "stream": (37, "activity_stream_dtype"),
    "device": (8, "activity_device5_dtype"),
}
FUNCTIONS = {
    (2, 3): "cudaGetDevice_v3020",
    (2, 20): "cudaMalloc_v3020",
    (2, 41): "cudaMemcpyAsync_v3020",
    (2, 131): "cudaStreamSynchronize_v3020",
    (2, 211): "cudaLaunchKernel_v7000",
    (2, 317): "cudaStreamIsCapturing_v10000",
    (1, 307): "cuLaunchKernel",
    (1, 673): "cuKernelGetName",
}


class FakeCupti(Cupti):
    """Takes rows from the test and hands them over in buffers, as libcupti does."""

    version = "13.0"
    path: Path | None = None

    def __init__(
        self, *, longer_by: int = 0, now_ns: int = 0, refuses: tuple[int, ...] = ()
    ) -> None:
        self._types: Any = pytest.importorskip("cupti.cupti")
        self.longer_by, self.now_ns, self.refuses = longer_by, now_ns, refuses
        self.dropped = 0
        self.enabled: set[int] = set()
        self.switched_off: list[tuple[int, int]] = []
        self.system_ids = True
        self._request: Callable[[], tuple[int, int]] | None = None
        self._pending = b""
        self._strings: list[Any] = []

    def add(self, what: str, **fields: Any) -> None:
        """Record one row."""
        kind, layout = _KINDS[what]
        record = self._types.__dict__[layout]
        row = np.zeros(1, record)
        row["kind"] = kind
        for name, value in fields.items():
            if name in ("process_id", "thread_id") and "object_id" in record.names:
                row["object_id"]["pt"][name] = value
            elif isinstance(value, dict):  # a union, by the member that is meant
                for member, content in value.items():
                    row[name][member] = content
            else:
                row[name] = self._address(value) if isinstance(value, str) else value
        self._pending += row.tobytes() + bytes(self.longer_by)

    def deliver(self) -> None:
        """Hand over what was recorded, and forget its texts as CUPTI may."""
        assert self._request is not None
        address, size = self._request()
        assert len(self._pending) <= size
        ctypes.memmove(address, self._pending, len(self._pending))
        self._complete(address, len(self._pending))
        self._pending = b""
        for text in self._strings:
            ctypes.memset(text, ord("?"), len(text) - 1)

    def _address(self, text: str) -> int:
        self._strings.append(ctypes.create_string_buffer(text.encode()))
        return ctypes.addressof(self._strings[-1])

    # What the recorder asks for ------------------------------------------------------------------

    def register(self, requested: Any, completed: Any) -> None:
        self._request, self._complete = requested, completed

    def enable(self, kind: int) -> str:
        if kind in self.refuses:
            return "CUPTI_ERROR_NOT_COMPATIBLE"
        self.enabled.add(kind)
        return ""

    def disable(self, kind: int) -> None:
        self.enabled.discard(kind)

    def switch_off(self, domain: int, function: int) -> bool:
        self.switched_off.append((domain, function))
        return True

    def flush(self, *, forced: bool) -> None:
        if forced and self._pending:
            self.deliver()

    def time_ns(self) -> int:
        return self.now_ns

    def use_system_thread_ids(self) -> bool:
        return self.system_ids

    def function_name(self, domain: int, function: int) -> str | None:
        return FUNCTIONS.get((domain, function))

    def record_size(self, address: int, valid: int, at: int) -> int | None:
        assert at < valid
        kind = ctypes.c_uint32.from_address(address + at).value
        for number, layout in _KINDS.values():
            if number == kind:
                return int(self._types.__dict__[layout].itemsize) + self.longer_by
        return None
