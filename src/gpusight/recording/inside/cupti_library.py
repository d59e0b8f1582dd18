"""libcupti through ctypes: where it is, its record layouts, the functions that recording needs."""

from __future__ import annotations

import ctypes
import glob
import os
import re
import struct
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpusight.errors import RecordError
from gpusight.recording.inside.cuda_driver import driver_version, mapped_libraries

if TYPE_CHECKING:
    from collections.abc import Callable

    Requested = Callable[[], tuple[int, int]]
    """Returns the address and the size of an empty buffer."""
    Completed = Callable[[int, int], None]
    """Takes the address of a buffer back, with how many of its bytes hold records."""


_LIBRARY = re.compile(r"libcupti\.so")
_VERSIONED = re.compile(r"libcupti\.so\.(\d{1,2})(?:\.\d+)?$")
"""With the major version of CUDA, which `libcupti.so.2025.3.1` and `libcupti.so` lack."""
_WHEELS = ("nvidia/*/lib", "triton/backends/nvidia/lib/cupti")
_TOOLKIT = ("extras/CUPTI/lib64", "lib64", "lib")
_SYSTEM = (*(f"/usr/local/cuda/{part}" for part in _TOOLKIT), "/usr/lib/*-linux-gnu")
HINT = "pip install cupti-python (it brings libcupti), or set CUDA_HOME to a CUDA toolkit"


def loaded_library() -> Path | None:
    """Return the libcupti that this process has loaded already: there must not be a second."""
    return next(iter(mapped_libraries(_LIBRARY)), None)


def find_library(driver_major: int | None = None) -> Path | None:
    """Find the libcupti to record with: one that is loaded, else the first that the driver takes.

    Wheels come before toolkits, because a framework that was installed with one will load it.
    A CUPTI of a later major version than the driver does not work with it.
    """
    loaded = loaded_library()
    if loaded is not None:
        return loaded
    for folder in _folders():
        paths = glob.glob(f"{glob.escape(folder)}/libcupti.so*")  # noqa: PTH207 - text
        versions = [(int(name[1]), name.string) for name in map(_VERSIONED.search, paths) if name]
        usable = [v for v in versions if driver_major is None or v[0] <= driver_major]
        if usable:
            return Path(max(usable)[1])
    return None


def _folders() -> list[str]:
    patterns = [f"{glob.escape(root)}/{wheel}" for root in sys.path if root for wheel in _WHEELS]
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    patterns += [f"{glob.escape(home)}/{part}" for home in homes for part in _TOOLKIT]
    searched = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    patterns += [*(glob.escape(folder) for folder in searched if folder), *_SYSTEM]
    paths = [path for pattern in patterns for path in sorted(glob.glob(pattern))]  # noqa: PTH207
    return list(dict.fromkeys(paths))


MEMCPY, MEMSET, DRIVER, RUNTIME = 1, 2, 4, 5
DEVICE, CONTEXT, KERNEL, NAME = 8, 9, 10, 11
MARKER, MARKER_DATA, OVERHEAD, MEMCPY_PEER = 12, 13, 17, 22
CUDA_EVENT, STREAM, SYNCHRONIZATION, MEMORY = 36, 37, 38, 49

KIND_NAMES = {
    MEMCPY: "copies",
    MEMSET: "memsets",
    DRIVER: "driver calls",
    RUNTIME: "runtime calls",
    DEVICE: "devices",
    CONTEXT: "contexts",
    KERNEL: "kernels",
    NAME: "names",
    MARKER: "NVTX ranges",
    MARKER_DATA: "NVTX attributes",
    OVERHEAD: "overhead",
    MEMCPY_PEER: "copies between GPUs",
    CUDA_EVENT: "CUDA events",
    STREAM: "streams",
    SYNCHRONIZATION: "synchronization",
    MEMORY: "allocations",
}


_TEXTS = ("name", "domain")


class RecordField(NamedTuple):
    """One value in a record: its name, its offset and its `struct` code."""

    name: str
    offset: int
    code: str

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.offset + struct.calcsize("=" + self.code)


class RecordReader(NamedTuple):
    """Reads rows from records of one size."""

    struct: struct.Struct
    missing: tuple[None, ...]

    def row(self, buffer: Any, at: int) -> tuple[Any, ...]:
        """Return the fields of the record that begins here."""
        return self.struct.unpack_from(buffer, at) + self.missing


@dataclass(frozen=True)
class RecordLayout:
    """The fields of one kind of record, in the order in which they lie."""

    kind: int
    fields: tuple[RecordField, ...]

    @cached_property
    def parameters(self) -> dict[str, str]:
        """Name the SQL parameter of each field of a row."""
        return {field.name: f"?{number}" for number, field in enumerate(self.fields, 1)}

    @cached_property
    def texts(self) -> tuple[int, ...]:
        """Where the addresses of texts lie."""
        return tuple(field.offset for field in self.fields if field.name in _TEXTS)

    def reader(self, size: int) -> RecordReader:
        """Read records of `size` bytes; fields beyond it are null."""
        present = [field for field in self.fields if field.end <= size]
        codes, at = ["="], 0
        for field in present:
            codes.append(f"{field.offset - at}x{field.code}")
            at = field.end
        return RecordReader(
            struct.Struct("".join(codes)), (None,) * (len(self.fields) - len(present))
        )


def _layout(kind: int, text: str) -> RecordLayout:
    """Read `name@offset:code` words. 64-bit numbers are read as signed: SQLite has no others."""
    fields = []
    for word in text.split():
        name, _, rest = word.partition("@")
        offset, _, code = rest.partition(":")
        fields.append(RecordField(name, int(offset), code or "I"))
    return RecordLayout(kind, tuple(fields))


_CALL = "cbid@4 start@8:q end@16:q process@24 thread@28 correlation@32 result@36:i"

LAYOUTS: dict[int, RecordLayout] = {
    layout.kind: layout
    for layout in (
        _layout(
            KERNEL,
            "cache@4:B registers@6:H start@16:q end@24:q device@40 context@44 stream@48 "
            "grid_x@52:i grid_y@56:i grid_z@60:i block_x@64:i block_y@68:i block_z@72:i "
            "static@76:i dynamic@80:i local@84 local_total@88 correlation@92 grid@96:q name@104:q "
            "launch_type@136:B shared_executed@140 graph_node@144:q shared_limit@152:i graph@156 "
            "cluster_x@176 cluster_y@180 cluster_z@184 local_total_long@192:q",
        ),
        _layout(
            MEMCPY,
            "copy_kind@4:B src_kind@5:B dst_kind@6:B bytes@8:q start@16:q end@24:q device@32 "
            "context@36 stream@40 correlation@44 graph_node@64:q copy_count@88:q",
        ),
        _layout(
            MEMCPY_PEER,
            "copy_kind@4:B src_kind@5:B dst_kind@6:B bytes@8:q start@16:q end@24:q device@32 "
            "context@36 stream@40 src_device@44 src_context@48 dst_device@52 dst_context@56 "
            "correlation@60 graph_node@72:q",
        ),
        _layout(
            MEMSET,
            "value@4 bytes@8:q start@16:q end@24:q device@32 context@36 stream@40 correlation@44 "
            "memory_kind@50:H graph_node@64:q",
        ),
        _layout(RUNTIME, _CALL),
        _layout(DRIVER, _CALL),
        _layout(
            SYNCHRONIZATION,
            "type@4:i start@8:q end@16:q correlation@24 context@28 stream@32 event@36 "
            "event_sync@40:q",
        ),
        _layout(
            CUDA_EVENT,
            "correlation@4 context@8 stream@12 event@16 event_sync@48:q",
        ),
        _layout(
            MEMORY,
            "operation@4:i memory_kind@8:i correlation@12 address@16:q bytes@24:q time@32:q "
            "pc@40:q device@52 context@56 stream@60 name@64:q pool@80:i pool_address@88:q "
            "pool_threshold@96:q pool_size@104:q pool_used@112:q",
        ),
        _layout(
            MARKER,
            "flags@4:i time@8:q id@16 object@20:i process@24 thread@28 name@40:q domain@48:q",
        ),
        _layout(MARKER_DATA, "flags@4:i id@8 payload_kind@12:i payload@16:q color@24 category@28"),
        _layout(OVERHEAD, "overhead@4:i object@8:i process@12 thread@16 start@24:q end@32:q"),
        _layout(NAME, "object@4:i process@8 thread@12 stream@16 name@24:q"),
        _layout(CONTEXT, "context@4 device@8 null_stream@14:H parent@16 green@20:B"),
        _layout(STREAM, "context@4 stream@8 priority@12 flag@16:i"),
        _layout(
            DEVICE,
            "bandwidth@8:q memory@16:q constant@24 l2@28 warp@32 clock@36 copy_engines@40 sms@44 "
            "max_ipc@48 max_warps@52 max_blocks@56 max_shared_sm@60 max_registers_sm@64 "
            "max_registers_block@68 max_shared_block@72 max_threads@76 block_x@80 block_y@84 "
            "block_z@88 grid_x@92 grid_y@96 grid_z@100 major@104 minor@108 id@112 uuid@120:16s "
            "name@136:q",
        ),
    )
}


DRIVER_CALLS, RUNTIME_CALLS = 1, 2
"""CUPTI's domains of functions."""
_SYSTEM_THREAD_IDS = 1
_NO_MORE_RECORDS = 12
_OBJECT_KINDS = (DEVICE, CONTEXT, STREAM)
_NEW_VERSIONS = 10_000
"""From CUDA 13 on the version of CUPTI is CUDA's, 130000; before, it counts up from 1."""
_REQUESTED = ctypes.CFUNCTYPE(
    None,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.POINTER(ctypes.c_size_t),
)
_COMPLETED = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)


_CALLED_FROM_C: list[Any] = []
"""What CUPTI may call until the process ends must not be collected before."""


class Cupti:
    """The functions of libcupti that recording needs; tests stand in for it."""

    def __init__(self, path: Path) -> None:
        self.path: Path | None = path
        """Where the library lies, for NVTX to load it too."""
        self.dropped = 0
        """Records that CUPTI had no room for, as far as it has reported."""
        self._library = ctypes.CDLL(str(path))
        self.version = self._version()

    def register(self, requested: Requested, completed: Completed) -> None:
        """Let CUPTI request and return buffers through these functions."""

        def provide(buffer: Any, size: Any, most: Any) -> None:
            buffer[0] = None  # without one CUPTI drops records; we may fail
            size[0] = most[0] = 0  # as many records as fit
            buffer[0], size[0] = requested()

        def take(context: int | None, stream: int, buffer: int, _size: int, valid: int) -> None:
            completed(buffer, valid)
            dropped = ctypes.c_size_t(0)
            self._library.cuptiActivityGetNumDroppedRecords(
                ctypes.c_void_p(context), ctypes.c_uint32(stream), ctypes.byref(dropped)
            )
            self.dropped += dropped.value

        callbacks = (_REQUESTED(provide), _COMPLETED(take))
        _CALLED_FROM_C.append(callbacks)
        self._check(self._library.cuptiActivityRegisterCallbacks(*callbacks), "register buffers")

    def enable(self, kind: int) -> str:
        """Record this kind from now on; returns why not, or nothing.

        Devices, contexts and streams that exist already are recorded too.
        """
        enable = self._library.cuptiActivityEnable
        if kind in _OBJECT_KINDS:
            enable = getattr(self._library, "cuptiActivityEnableAndDump", enable)
        code = enable(kind)
        return self._reason(code) if code else ""

    def disable(self, kind: int) -> None:
        """Record this kind no more."""
        self._library.cuptiActivityDisable(kind)

    def switch_off(self, domain: int, function: int) -> bool:
        """Leave one function out of the calls recorded; returns whether it could."""
        name = "Runtime" if domain == RUNTIME_CALLS else "Driver"
        switch = getattr(self._library, f"cuptiActivityEnable{name}Api", None)
        return switch is not None and switch(function, 0) == 0

    def flush(self, *, forced: bool) -> None:
        """Have CUPTI return buffers: those that are complete, or all."""
        self._library.cuptiActivityFlushAll(1 if forced else 0)

    def time_ns(self) -> int:
        """Return the time as records have it."""
        time = ctypes.c_uint64(0)
        self._check(self._library.cuptiGetTimestamp(ctypes.byref(time)), "read the clock")
        return time.value

    def use_system_thread_ids(self) -> bool:
        """Have records name threads as the operating system does."""
        switch = getattr(self._library, "cuptiSetThreadIdType", None)
        return switch is not None and switch(_SYSTEM_THREAD_IDS) == 0

    def function_name(self, domain: int, function: int) -> str | None:
        """Name a function of the CUDA API; None where there is none of that number."""
        name = ctypes.c_char_p(None)
        if self._library.cuptiGetCallbackName(domain, function, ctypes.byref(name)):
            return None
        return name.value.decode("ascii", "replace") if name.value else None

    def record_size(self, address: int, valid: int, at: int) -> int | None:
        """Return the size of the record at this offset of a buffer; None where it is unknown."""
        record = ctypes.c_void_p(address + at)
        code = self._library.cuptiActivityGetNextRecord(
            ctypes.c_void_p(address), ctypes.c_size_t(valid), ctypes.byref(record)
        )
        if code == _NO_MORE_RECORDS:
            return valid - at
        return None if code or not record.value else record.value - address - at

    def _version(self) -> str:
        number = ctypes.c_uint32(0)
        self._check(self._library.cuptiGetVersion(ctypes.byref(number)), "start")
        if number.value < _NEW_VERSIONS:
            return f"API {number.value}"
        return f"{number.value // 10_000}.{number.value // 100 % 100}"

    def _check(self, code: int, what: str) -> None:
        if code:
            raise RecordError(f"CUPTI cannot {what}", why=self._reason(code))

    def _reason(self, code: int) -> str:
        text = ctypes.c_char_p(None)
        self._library.cuptiGetResultString(code, ctypes.byref(text))
        return text.value.decode("ascii", "replace") if text.value else f"error {code}"


def load_cupti() -> Cupti:
    """Load the libcupti of this process, or say what is missing."""
    version = driver_version()
    if version is None:
        raise RecordError(
            "CUPTI cannot record here",
            why="no CUDA driver answers (libcuda.so.1)",
            hint="gpusight doctor shows what this machine has",
        )
    path = find_library(version // 1000)
    if path is None:
        why = f"there is no libcupti for CUDA {version // 1000} or earlier"
        raise RecordError("CUPTI cannot record here", why=why, hint=HINT)
    try:
        return Cupti(path)
    except OSError as error:
        why = f"{path} cannot be loaded: {error}"
        raise RecordError("CUPTI cannot record here", why=why, hint=HINT) from error
