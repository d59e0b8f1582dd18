"""Finds CUDA on this machine, to switch the profiler around this process on and off.

cudaProfilerStart works on the current device and makes CUDA ready there if nothing has yet; a
process that forks afterwards cannot use CUDA in its children. `driver.cuda_in_use` tells before.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusight.capture.inside.driver import LIBRARIES
from gpusight.capture.inside.mapped import mapped_libraries
from gpusight.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_RUNTIME_FILES = ("libcudart.so*", "libcudart-*.so*", "cudart64_*.dll", "libcudart*.dylib")
_RUNTIME = re.compile(r"(lib)?cudart(64_|[-.])", re.IGNORECASE)
_LOADER_NAMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so")
_NO_CONTEXT = {3, 201}
"""The driver's: CUDA is not initialised; no context is current on this thread."""


class CudaNotFoundError(RecordError):
    """No CUDA library can be loaded here."""


class _Profiler:
    """Two functions of one CUDA library, and where it was found."""

    def __init__(self, where: str, start: Callable[[], Any], stop: Callable[[], Any]) -> None:
        self.where, self.start, self.stop = where, start, stop


def profiler_start() -> None:
    """Let the profiler around this process record from here on, as cudaProfilerStart does."""
    profiler = _found()
    _check(int(profiler.start()), "cudaProfilerStart", profiler.where)


def profiler_stop() -> None:
    """Let it record no more."""
    profiler = _found()
    _check(int(profiler.stop()), "cudaProfilerStop", profiler.where)


def _check(status: int, call: str, where: str) -> None:
    if status == 0:
        return
    why = f"it answered with CUDA error {status}"
    if status in _NO_CONTEXT:
        why = "nothing on this thread has used the GPU yet"
    raise RecordError(f"{call} of {where} failed", why=why)


_FOUND: list[_Profiler] = []
_MISSED: dict[bool, CudaNotFoundError] = {}
"""What a search in vain said, without torch and with it: looking takes long, a loop asks often."""


def _found() -> _Profiler:
    has_torch = "torch" in sys.modules
    if has_torch in _MISSED:
        raise _MISSED[has_torch].with_traceback(None)
    if not _FOUND:
        try:
            _FOUND.append(_find())
        except CudaNotFoundError as error:
            _MISSED[has_torch] = error
            raise
    return _FOUND[0]


def _find() -> _Profiler:
    """Try the places from the surest on; any runtime will do, a profiler sees all of them."""
    tried: list[str] = []
    torch = _torch_profiler()
    if torch is not None:
        return torch
    for candidate in _candidates():
        tried.append(candidate)
        profiler = _loaded(candidate)
        if profiler is not None:
            return profiler
    raise CudaNotFoundError(
        "no CUDA runtime was found",
        why=f"looked in PyTorch, this process, {', '.join(tried)}",
        hint="install nvidia-cuda-runtime or set CUDA_HOME",
    )


def _torch_profiler() -> _Profiler | None:
    """Take PyTorch's own runtime where the program has imported it and it has a GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_available():
        return None
    runtime = torch.cuda.cudart()
    return _Profiler("PyTorch's CUDA runtime", runtime.cudaProfilerStart, runtime.cudaProfilerStop)


def _candidates() -> Iterator[str]:
    yield from map(str, mapped_libraries(_RUNTIME))
    yield from _in_wheels()
    yield from _in_toolkits()
    found = ctypes.util.find_library("cudart")
    if found:
        yield found
    yield from _LOADER_NAMES
    yield from LIBRARIES


def _in_wheels() -> Iterator[str]:
    """Look into NVIDIA's wheels: nvidia/cuda_runtime, and nvidia/cu13 since CUDA 13."""
    for entry in sys.path:
        nvidia = Path(entry) / "nvidia"
        if entry and nvidia.is_dir():
            for folder in ("*/lib", "*/bin", "*/bin/x86_64"):
                yield from _runtimes(nvidia, folder)


def _in_toolkits() -> Iterator[str]:
    named = (os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"))
    for home in dict.fromkeys([*filter(None, named), "/usr/local/cuda"]):
        for folder in ("lib64", "lib", "targets/*/lib", "bin", "bin/x64"):
            yield from _runtimes(Path(home), folder)


def _runtimes(root: Path, folder: str) -> Iterator[str]:
    for pattern in _RUNTIME_FILES:
        yield from map(str, sorted(root.glob(f"{folder}/{pattern}"), reverse=True))


def _loaded(candidate: str) -> _Profiler | None:
    try:
        library = ctypes.CDLL(candidate)
    except OSError:
        return None
    for start, stop in (
        ("cudaProfilerStart", "cudaProfilerStop"),
        ("cuProfilerStart", "cuProfilerStop"),
    ):
        if hasattr(library, start):
            return _Profiler(candidate, getattr(library, start), getattr(library, stop))
    return None
