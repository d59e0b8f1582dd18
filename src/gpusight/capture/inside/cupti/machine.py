"""What a capture says about this process and its machine. No host, user or environment."""

from __future__ import annotations

import os
import re
import sys
import threading
from pathlib import Path

_DRIVER = re.compile(r"Kernel Module(?: for \w+)?\s+(\d[\d.]*)")
_QUOTED = re.compile(r'^PRETTY_NAME="?([^"\n]*)', re.MULTILINE)
_CPU = re.compile(r"^model name\s*:\s*(.*)$", re.MULTILINE)
_FACTS = (
    ("NvDriverVersion", "/proc/driver/nvidia/version", _DRIVER),
    ("OsDescription", "/etc/os-release", _QUOTED),
    ("CpuDescription", "/proc/cpuinfo", _CPU),
)


def facts(cuda_version: int | None) -> dict[str, str]:
    """Give driver, CUDA, system and processor, under the names that nsys has for them."""
    known = {name: _found(Path(path), pattern) for name, path, pattern in _FACTS}
    known["CudaDriverVersion"] = str(cuda_version) if cuda_version else None
    return {name: value for name, value in known.items() if value}


def process_name() -> str:
    """Name this process as a profiler outside would: by its executable."""
    return Path(sys.executable or "python").name


def thread_names() -> dict[int, str]:
    """Name the threads that live now, by their system id.

    Where the system only knows the process's name, Python's name for a thread says more.
    """
    names: dict[int, str] = {}
    for folder in Path("/proc/self/task").glob("*"):
        comm = _read(folder / "comm")
        if comm is not None:
            names[int(folder.name)] = comm.strip()
    own = names.get(os.getpid())
    for thread in threading.enumerate():
        tid = thread.native_id
        if tid in names and tid != os.getpid() and names[tid] == own:
            names[tid] = thread.name
    return names


def python_thread_ids() -> dict[int, int]:
    """Give the system ids of Python's threads by the low 32 bits of their POSIX ids."""
    return {
        thread.ident & 0xFFFFFFFF: thread.native_id
        for thread in threading.enumerate()
        if thread.ident is not None and thread.native_id is not None
    }


def _found(path: Path, pattern: re.Pattern[str]) -> str | None:
    found = pattern.search(_read(path) or "")
    return found.group(1).strip() if found else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # a thread that has ended, a system without /proc
        return None
