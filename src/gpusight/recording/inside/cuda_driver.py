"""The CUDA driver and runtime of this process, found without initializing CUDA."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import itertools
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpusight.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


LIBRARIES = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")
DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/dxg")
"""Of NVIDIA's driver, on Jetson, in WSL2: one of them is there where a GPU is."""
_MIN_VERSION = 1000
_LOADED: list[ctypes.CDLL] = []
"""The driver once it was seen: each CDLL makes a class, which waits for the garbage collector."""


def driver_version() -> int | None:
    """Return the version of CUDA that the driver supports, such as 13000; None without a driver."""
    try:
        driver = ctypes.CDLL(LIBRARIES[0])
    except OSError:
        return None
    version = ctypes.c_int(0)
    failed = driver.cuDriverGetVersion(ctypes.byref(version))
    return None if failed or version.value < _MIN_VERSION else version.value


def cuda_is_initialized() -> bool:
    """Return whether anything here has called cuInit, which comes before all other use of CUDA.

    Cheap enough to call often, and does not load the driver. Where that is not known (on Windows)
    it is True.
    """
    if not _CAN_FIND_LOADED:
        return True
    driver = _loaded_driver()
    return driver is not None and _device_count(driver) is not None


def cuda_in_use() -> bool:
    """Return whether this process works with a GPU already.

    Where the driver cannot be queried without loading it (on Windows) PyTorch is.
    """
    if not _CAN_FIND_LOADED:
        return torch_with_gpu() is not None
    driver = _loaded_driver()
    if driver is None:
        return False
    return _has_context(driver) or next(_devices_in_use(driver), None) is not None


def borrow_context() -> None:
    """Make the context that other threads work with this thread's too, if it has none."""
    driver = _loaded_driver()
    if driver is None or _has_context(driver):
        return
    device = next(_devices_in_use(driver), None)
    context = ctypes.c_void_p()
    if device is not None and not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        driver.cuCtxSetCurrent(context)


def wait_for_gpus() -> None:
    """Wait until the GPUs have finished all activities, so that each has an end.

    Does nothing in a process that has not used CUDA, or while PyTorch captures a CUDA graph, which
    waiting would spoil. A GPU that answers with an error has failed the program too, which has
    reported it.
    """
    torch = torch_with_gpu()
    try:
        if is_capturing():
            return
    except RuntimeError:  # the GPU has failed
        return
    driver = _loaded_driver()
    if driver is None:
        if torch is not None:
            with contextlib.suppress(RuntimeError):
                torch.cuda.synchronize()
        return
    if _has_context(driver):
        driver.cuCtxSynchronize()  # may be one that the program made for itself
    for device in _devices_in_use(driver):
        _synchronize_primary(driver, device)


_CAN_FIND_LOADED = hasattr(os, "RTLD_NOLOAD")


def _loaded_driver() -> ctypes.CDLL | None:
    """Return the driver's library if this process has loaded it; never load it."""
    if not _CAN_FIND_LOADED:
        return None
    if not _LOADED:
        try:
            _LOADED.append(ctypes.CDLL(LIBRARIES[0], mode=os.RTLD_NOLOAD | os.RTLD_LAZY))
        except OSError:
            return None
    return _LOADED[0]


CAPTURED_GRAPHS: set[int] = set()
"""Graphs of PyTorch that are being captured, on whatever thread, where that is known."""


def is_capturing() -> bool:
    """Return whether work goes into a CUDA graph now: to wait for the GPU would spoil it."""
    torch = torch_with_gpu()
    return bool(CAPTURED_GRAPHS) or (
        torch is not None and bool(torch.cuda.is_current_stream_capturing())
    )


def torch_with_gpu() -> Any:
    """Return torch if the program has initialized CUDA through it."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)  # not there while torch is being imported
    return torch if cuda is not None and cuda.is_initialized() else None


def _has_context(driver: ctypes.CDLL) -> bool:
    context = ctypes.c_void_p()
    return driver.cuCtxGetCurrent(ctypes.byref(context)) == 0 and context.value is not None


def _device_count(driver: ctypes.CDLL) -> int | None:
    """Count devices; before cuInit every call fails."""
    count = ctypes.c_int(0)
    return None if driver.cuDeviceGetCount(ctypes.byref(count)) else count.value


def _devices_in_use(driver: ctypes.CDLL) -> Iterator[int]:
    """Yield the devices with an active primary context in this process."""
    for number in range(_device_count(driver) or 0):
        device, flags, active = ctypes.c_int(0), ctypes.c_uint(0), ctypes.c_int(0)
        if driver.cuDeviceGet(ctypes.byref(device), number):
            continue
        state = (device.value, ctypes.byref(flags), ctypes.byref(active))
        if driver.cuDevicePrimaryCtxGetState(*state) == 0 and active.value:
            yield device.value


def _synchronize_primary(driver: ctypes.CDLL, device: int) -> None:
    """Wait for the context that PyTorch and the runtime work with on a device."""
    context = ctypes.c_void_p()
    if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        return
    if driver.cuCtxPushCurrent_v2(context) == 0:
        driver.cuCtxSynchronize()
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    driver.cuDevicePrimaryCtxRelease_v2(device)


_MAPPINGS = Path("/proc/self/maps")


def mapped_libraries(name: re.Pattern[str]) -> list[Path]:
    """List the loaded libraries whose file name begins like this; none where that is unknown."""
    try:
        lines = _MAPPINGS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    paths = {Path(line.split(maxsplit=5)[5]) for line in lines if "/" in line}
    return sorted(path for path in paths if name.match(path.name))


_WHEEL_FOLDERS = ("*/lib", "*/bin", "*/bin/x86_64")
_TOOLKIT_FOLDERS = ("lib64", "lib", "targets/*/lib", "bin", "bin/x64")
_RUNTIME_FILES = ("libcudart.so*", "libcudart-*.so*", "cudart64_*.dll", "libcudart*.dylib")
_RUNTIME = re.compile(r"(lib)?cudart(64_|[-.])", re.IGNORECASE)
_LOADER_NAMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so")
_NO_CONTEXT = {3, 201}
"""The driver's errors: CUDA is not initialized; no context is current on this thread."""


class CudaNotFoundError(RecordError):
    """No CUDA library can be loaded here."""


class _Profiler(NamedTuple):
    """Two functions of one CUDA library, and where it was found."""

    where: str
    start: Callable[[], Any]
    stop: Callable[[], Any]


def profiler_start() -> None:
    """Let the profiler around this process record from here on, as cudaProfilerStart does."""
    profiler = _profiler_library()
    _check(int(profiler.start()), "cudaProfilerStart", profiler.where)


def profiler_stop() -> None:
    """Let it record no more."""
    profiler = _profiler_library()
    _check(int(profiler.stop()), "cudaProfilerStop", profiler.where)


def _check(status: int, call: str, where: str) -> None:
    if status == 0:
        return
    why = f"it answered with CUDA error {status}"
    if status in _NO_CONTEXT:
        why = "nothing on this thread has used the GPU yet"
    raise RecordError(f"{call} of {where} failed", why=why)


_PROFILER_LIBRARY: list[_Profiler] = []
_MISSED: dict[bool, CudaNotFoundError] = {}
"""The error of a search in vain, without torch and with it: searching takes long."""


def _profiler_library() -> _Profiler:
    has_torch = "torch" in sys.modules
    if has_torch in _MISSED:
        raise _MISSED[has_torch].with_traceback(None)
    if not _PROFILER_LIBRARY:
        try:
            _PROFILER_LIBRARY.append(_find())
        except CudaNotFoundError as error:
            _MISSED[has_torch] = error
            raise
    return _PROFILER_LIBRARY[0]


def _find() -> _Profiler:
    """Try the surest candidates first; any runtime will do, a profiler sees all of them."""
    tried: list[str] = []
    torch = _torch_profiler()
    if torch is not None:
        return torch
    for candidate in _candidates():
        tried.append(candidate)
        try:
            library = ctypes.CDLL(candidate)
        except OSError:
            continue
        for prefix in ("cuda", "cu"):  # the runtime's, the driver's
            start, stop = f"{prefix}ProfilerStart", f"{prefix}ProfilerStop"
            if hasattr(library, start):
                return _Profiler(candidate, getattr(library, start), getattr(library, stop))
    raise CudaNotFoundError(
        "no CUDA runtime was found",
        why=f"looked in PyTorch, this process, {', '.join(tried)}",
        hint="install nvidia-cuda-runtime or set CUDA_HOME",
    )


def _torch_profiler() -> _Profiler | None:
    """Use PyTorch's own runtime where the program has imported it and it has a GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_available():
        return None
    runtime = torch.cuda.cudart()
    return _Profiler("PyTorch's CUDA runtime", runtime.cudaProfilerStart, runtime.cudaProfilerStop)


def _candidates() -> Iterator[str]:
    yield from map(str, mapped_libraries(_RUNTIME))
    # NVIDIA's wheels: nvidia/cuda_runtime, and nvidia/cu13 since CUDA 13.
    wheels = [Path(entry) / "nvidia" for entry in sys.path if entry]
    variables = (os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"))
    toolkits = map(Path, dict.fromkeys([*filter(None, variables), "/usr/local/cuda"]))
    for roots, folders in ((wheels, _WHEEL_FOLDERS), (toolkits, _TOOLKIT_FOLDERS)):
        for root, folder, pattern in itertools.product(roots, folders, _RUNTIME_FILES):
            yield from map(str, sorted(root.glob(f"{folder}/{pattern}"), reverse=True))
    system = ctypes.util.find_library("cudart")
    if system:
        yield system
    yield from _LOADER_NAMES
    yield from LIBRARIES
