"""Records every CUDA program that runs in a Python process, through CUPTI's activity records."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.errors import RecordError
from gpusight.recording.inside import nvtx_backend
from gpusight.recording.inside.cuda_driver import driver_version, wait_for_gpus
from gpusight.recording.inside.cupti_buffers import BufferWalker, CuptiBuffers, StringIds
from gpusight.recording.inside.cupti_library import (
    CONTEXT,
    CUDA_EVENT,
    DEVICE,
    DRIVER,
    KERNEL,
    KIND_NAMES,
    MARKER,
    MARKER_DATA,
    MEMCPY,
    MEMCPY_PEER,
    MEMORY,
    MEMSET,
    NAME,
    OVERHEAD,
    RUNTIME,
    STREAM,
    SYNCHRONIZATION,
    load_cupti,
)
from gpusight.recording.inside.cupti_write import (
    RecordedActivity,
    unwanted_functions,
    write_capture,
)
from gpusight.recording.inside.recording_window import NoRecorder, mark_pace

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.recording.inside.cupti_library import Cupti
    from gpusight.recording.inside.environment import RecorderPlan


_DRIVER_VERSION = re.compile(r"Kernel Module(?: for \w+)?\s+(\d[\d.]*)")
_SYSTEM = re.compile(r'^PRETTY_NAME="?([^"\n]*)', re.MULTILINE)
_CPU = re.compile(r"^model name\s*:\s*(.*)$", re.MULTILINE)
_FACTS = (
    ("NvDriverVersion", "/proc/driver/nvidia/version", _DRIVER_VERSION),
    ("OsDescription", "/etc/os-release", _SYSTEM),
    ("CpuDescription", "/proc/cpuinfo", _CPU),
)


def facts(cuda_version: int | None) -> dict[str, str]:
    """Return driver, CUDA, system and processor, under the names that nsys has for them."""
    matches = {
        name: pattern.search(_read_if_there(Path(path)) or "") for name, path, pattern in _FACTS
    }
    known = {name: match[1].strip() for name, match in matches.items() if match}
    known["CudaDriverVersion"] = str(cuda_version or "")
    return {name: value for name, value in known.items() if value}


def thread_names() -> dict[int, str]:
    """Name the threads that live now, by their system id.

    Where a thread has only the process's name, Python's name for it is better.
    """
    names: dict[int, str] = {}
    for folder in Path("/proc/self/task").glob("*"):
        comm = _read_if_there(folder / "comm")
        if comm is not None:
            names[int(folder.name)] = comm.strip()
    own = names.get(os.getpid())
    for thread in threading.enumerate():
        tid = thread.native_id
        if tid in names and tid != os.getpid() and names[tid] == own:
            names[tid] = thread.name
    return names


def python_thread_ids() -> dict[int, int]:
    """Map the low 32 bits of the POSIX ids of Python's threads to their system ids."""
    return {
        thread.ident & 0xFFFFFFFF: thread.native_id
        for thread in threading.enumerate()
        if thread.ident is not None and thread.native_id is not None
    }


def _read_if_there(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # a thread that has ended, a system without /proc
        return None


_ALWAYS = (DEVICE, CONTEXT, STREAM, NAME)
_NEEDED = (KERNEL, MEMCPY, MEMSET, RUNTIME)
_OPTIONAL = (DRIVER, MEMCPY_PEER, SYNCHRONIZATION, MARKER, MARKER_DATA, OVERHEAD, CUDA_EVENT)
_WORK = (KERNEL, MEMCPY, MEMCPY_PEER, MEMSET, RUNTIME, DRIVER)


class CuptiRecorder(NoRecorder):
    """Switches CUPTI on and off, and writes what it recorded in the layout of an nsys export.

    Kernels of CUDA graphs are always recorded one by one, with or without `--graph-nodes`: CUPTI's
    record of whole graphs (GRAPH_TRACE of CUDA 13.0) crashes a program that launches a graph which
    was instantiated before the recording.
    """

    suffix = ".sqlite"

    def __init__(self, plan: RecorderPlan, load: Callable[[], Cupti] = load_cupti) -> None:
        self._plan = plan
        self._cupti = load()
        self._walker = BufferWalker(self._cupti)
        self._texts = StringIds()
        self._buffers = CuptiBuffers(self._walker, self._texts)
        self._process = os.getpid()
        self._start_ns = self._end_ns = self._start_utc_ns = 0
        self._system_ids = False
        self._prepared = False
        self._unwanted: list[tuple[int, int]] = []
        self._threads: dict[int, str] = {}
        self._warnings: list[str] = []
        self._attach_nvtx()

    def prepare(self) -> None:
        """Register buffers; devices, contexts and streams are recorded from here on."""
        self._prepared = True
        self._system_ids = self._cupti.use_system_thread_ids()
        self._cupti.register(self._buffers.request, self._buffers.complete)
        for kind in _ALWAYS:
            self._enable(kind)
        self._unwanted = unwanted_functions(self._cupti)

    def cancel(self) -> None:
        """Get all buffers back: CUPTI must not call us after Python has ended."""
        self._disable()
        self._cupti.flush(forced=True)

    def start(self) -> None:
        """Record from here on."""
        if not self._prepared:
            self.prepare()
        self._start_ns, self._start_utc_ns = self._cupti.time_ns(), time.time_ns()
        try:
            for kind in self._kinds():
                self._enable(kind)
        except RecordError:
            self._disable()
            raise
        for domain, function in self._unwanted:
            self._cupti.switch_off(domain, function)

    def store_pace(self, text: str) -> None:
        """Mark it."""
        mark_pace(text)

    def mark_clock(self, text: str) -> None:
        """Mark it."""
        nvtx_backend.mark(text, domain=nvtx_backend.DOMAIN)

    def capture_time_ns(self) -> int:
        """Return CUPTI's time since the start."""
        return self._cupti.time_ns() - self._start_ns

    def stop(self) -> None:
        """Record no more; wait for the GPUs, and have all buffers back."""
        try:
            self._end_ns = self._cupti.time_ns()
            wait_for_gpus()
            self._threads = thread_names()
        finally:
            self.cancel()

    def is_empty(self) -> bool:
        """Return whether the process did nothing with CUDA while it was recorded."""
        return not any(self._buffers.counts[kind] for kind in _WORK)

    def why_empty(self) -> str:
        """Return what did not happen."""
        return "it did nothing with CUDA meanwhile"

    def write(self, path: Path) -> None:
        """Write what was recorded to a new file."""
        if self._buffers.unkept:
            self._warnings.append(self._buffers.unkept)
        write_capture(
            RecordedActivity(
                cupti=self._cupti,
                walker=self._walker,
                texts=self._texts,
                buffers=self._buffers,
                process=self._process,
                start_ns=self._start_ns,
                end_ns=self._end_ns,
                start_utc_ns=self._start_utc_ns,
                facts=facts(driver_version()),
                process_name=Path(sys.executable or "python").name,
                thread_names=self._threads,
                thread_ids=None if self._system_ids else python_thread_ids(),
                warnings=self._warnings,
            ),
            path,
        )
        self._buffers.close()

    def forget(self) -> None:
        """Let go without touching CUPTI: this is a forked child, it is the parent's."""
        self._buffers.forget()

    def _kinds(self) -> tuple[int, ...]:
        return (*_NEEDED, *_OPTIONAL, *((MEMORY,) if self._plan.memory else ()))

    def _enable(self, kind: int) -> None:
        """Enable a kind of record; without some there is no capture worth having."""
        why = self._cupti.enable(kind)
        if not why:
            return
        what = KIND_NAMES[kind]
        if kind in _NEEDED:
            raise RecordError(
                f"CUPTI cannot record {what}", why=why, hint="another profiler may be in its place"
            )
        self._warnings.append(f"CUPTI cannot record {what}: {why}")

    def _disable(self) -> None:
        for kind in (*self._kinds(), *_ALWAYS):
            self._cupti.disable(kind)

    def _attach_nvtx(self) -> None:
        """Have NVTX, when the program first uses it, pass its ranges to our copy of CUPTI."""
        if self._cupti.path is None:
            return
        library = os.environ.setdefault(nvtx_backend.PATH_VARIABLE, str(self._cupti.path))
        nvtx_backend.choose_again()
        if library != str(self._cupti.path):
            self._warnings.append(
                f"{nvtx_backend.PATH_VARIABLE} already led NVTX to another tool: ranges may "
                "be missing, and CUPTI serves one tool at a time"
            )
