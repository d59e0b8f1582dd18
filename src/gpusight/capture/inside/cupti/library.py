"""libcupti through ctypes: the few functions that recording takes."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Protocol

from gpusight.capture.inside.cupti import locate
from gpusight.capture.inside.cupti.layouts import CONTEXT, DEVICE, STREAM
from gpusight.capture.inside.driver import driver_version
from gpusight.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Requested = Callable[[], tuple[int, int]]
    """Gives the address and the size of an empty buffer."""
    Completed = Callable[[int, int], None]
    """Takes the address of a buffer back, with how many of its bytes hold records."""

DRIVER_CALLS, RUNTIME_CALLS = 1, 2
"""CUPTI's domains of functions."""
_SYSTEM_THREAD_IDS = 1
_NO_MORE_RECORDS = 12
_THINGS = (DEVICE, CONTEXT, STREAM)
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


class Cupti(Protocol):
    """What recording asks of libcupti."""

    version: str
    path: Path | None
    """Where the library lies, for NVTX to load it too."""
    dropped: int
    """Records that CUPTI had no room for, as far as it has said."""

    def register(self, requested: Requested, completed: Completed) -> None:
        """Have buffers asked for and given back through these."""

    def enable(self, kind: int) -> str:
        """Record this kind from now on; gives why not, or nothing.

        Devices, contexts and streams that are there already are recorded too.
        """

    def disable(self, kind: int) -> None:
        """Record this kind no more."""

    def switch_off(self, domain: int, function: int) -> bool:
        """Leave one function out of the calls recorded; tells whether it could."""

    def flush(self, *, forced: bool) -> None:
        """Have buffers given back: those that are complete, or all."""

    def time_ns(self) -> int:
        """Give the time as records have it."""

    def use_system_thread_ids(self) -> bool:
        """Have records name threads as the operating system does."""

    def function_name(self, domain: int, function: int) -> str | None:
        """Name a function of the CUDA API; None where there is none of that number."""

    def record_size(self, address: int, valid: int, at: int) -> int | None:
        """Give the size of the record at this offset of a buffer; None where CUPTI knows none."""


class LoadedCupti:
    """libcupti as it is on this machine."""

    def __init__(self, path: Path) -> None:
        self.path: Path | None = path
        self.dropped = 0
        self._library = ctypes.CDLL(str(path))
        self.version = self._version()

    def register(self, requested: Requested, completed: Completed) -> None:
        """Have buffers asked for and given back through these."""

        def ask(buffer: Any, size: Any, most: Any) -> None:
            buffer[0] = None  # without one CUPTI drops records; we may fail
            size[0] = most[0] = 0  # as many records as fit
            buffer[0], size[0] = requested()

        def take(context: int | None, stream: int, buffer: int, _size: int, valid: int) -> None:
            completed(buffer, valid)
            self._count_dropped(context, stream)

        callbacks = (_REQUESTED(ask), _COMPLETED(take))
        _CALLED_FROM_C.append(callbacks)
        self._check(self._library.cuptiActivityRegisterCallbacks(*callbacks), "register buffers")

    def enable(self, kind: int) -> str:
        """Record this kind from now on; gives why not, or nothing."""
        enable = self._library.cuptiActivityEnable
        if kind in _THINGS:
            enable = getattr(self._library, "cuptiActivityEnableAndDump", enable)
        code = enable(kind)
        return self._reason(code) if code else ""

    def disable(self, kind: int) -> None:
        """Record this kind no more."""
        self._library.cuptiActivityDisable(kind)

    def switch_off(self, domain: int, function: int) -> bool:
        """Leave one function out of the calls recorded; tells whether it could."""
        name = "Runtime" if domain == RUNTIME_CALLS else "Driver"
        switch = getattr(self._library, f"cuptiActivityEnable{name}Api", None)
        return switch is not None and switch(function, 0) == 0

    def flush(self, *, forced: bool) -> None:
        """Have buffers given back: those that are complete, or all."""
        self._library.cuptiActivityFlushAll(1 if forced else 0)

    def time_ns(self) -> int:
        """Give the time as records have it."""
        time = ctypes.c_uint64(0)
        self._check(self._library.cuptiGetTimestamp(ctypes.byref(time)), "tell the time")
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
        """Give the size of the record at this offset of a buffer; None where CUPTI knows none."""
        record = ctypes.c_void_p(address + at)
        code = self._library.cuptiActivityGetNextRecord(
            ctypes.c_void_p(address), ctypes.c_size_t(valid), ctypes.byref(record)
        )
        if code == _NO_MORE_RECORDS:
            return valid - at
        return None if code or not record.value else record.value - address - at

    def _count_dropped(self, context: int | None, stream: int) -> None:
        dropped = ctypes.c_size_t(0)
        self._library.cuptiActivityGetNumDroppedRecords(
            ctypes.c_void_p(context), ctypes.c_uint32(stream), ctypes.byref(dropped)
        )
        self.dropped += dropped.value

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
            hint="gpusight doctor says what this machine has",
        )
    path = locate.find_library(version // 1000)
    if path is None:
        why = f"there is no libcupti for CUDA {version // 1000} or earlier"
        raise RecordError("CUPTI cannot record here", why=why, hint=locate.HINT)
    try:
        return LoadedCupti(path)
    except OSError as error:
        why = f"{path} cannot be loaded: {error}"
        raise RecordError("CUPTI cannot record here", why=why, hint=locate.HINT) from error
