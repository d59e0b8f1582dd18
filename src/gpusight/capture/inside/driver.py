"""What the CUDA driver knows of this process. Asking never makes CUDA ready."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARIES = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")
DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/dxg")
"""Of NVIDIA's driver, on Jetson, in WSL2: one of them is there where a GPU is."""
_LEAST_VERSION = 1000
_LOADED: list[ctypes.CDLL] = []
"""The driver once it was seen: each CDLL makes a class, which waits for the garbage collector."""


def driver_version() -> int | None:
    """Give the version of CUDA that the driver supports, such as 13000; None without a driver."""
    try:
        driver = ctypes.CDLL(LIBRARIES[0])
    except OSError:
        return None
    version = ctypes.c_int(0)
    failed = driver.cuDriverGetVersion(ctypes.byref(version))
    return None if failed or version.value < _LEAST_VERSION else version.value


def cuda_is_initialised() -> bool:
    """Tell whether anything here has called cuInit, which comes before all other use of CUDA.

    Cheap enough to ask often, and does not load the driver. Where that cannot be told (on
    Windows) the answer is yes.
    """
    if not _can_tell():
        return True
    driver = _loaded_driver()
    return driver is not None and _device_count(driver) is not None


def cuda_in_use() -> bool:
    """Tell whether this process works with a GPU already.

    Where the driver cannot be asked without loading it (on Windows) PyTorch is.
    """
    if not _can_tell():
        return _torch_with_gpu() is not None
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
    """Wait until the GPUs have done what they were given, so that all of it has an end.

    Does nothing in a process that has not used CUDA, or while PyTorch captures a CUDA graph, which
    waiting would spoil. A GPU that answers with an error has failed the program too, which has
    said so.
    """
    torch = _torch_with_gpu()
    if torch is not None and _cannot_be_waited_for(torch):
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
        with _primary_context(driver, device) as entered:
            if entered:
                driver.cuCtxSynchronize()


def _cannot_be_waited_for(torch: Any) -> bool:
    """Tell whether a graph is being captured; a GPU that has failed does not even say that."""
    try:
        return bool(torch.cuda.is_current_stream_capturing())
    except RuntimeError:
        return True


def _can_tell() -> bool:
    return hasattr(os, "RTLD_NOLOAD")


def _loaded_driver() -> ctypes.CDLL | None:
    """Give the driver's library if this process has loaded it; never load it."""
    if not _can_tell():
        return None
    if not _LOADED:
        try:
            _LOADED.append(ctypes.CDLL(LIBRARIES[0], mode=os.RTLD_NOLOAD | os.RTLD_LAZY))
        except OSError:
            return None
    return _LOADED[0]


def _torch_with_gpu() -> Any:
    """Give torch if the program has made CUDA ready through it."""
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
    """Give the devices on which anything in this process works."""
    for number in range(_device_count(driver) or 0):
        device, flags, active = ctypes.c_int(0), ctypes.c_uint(0), ctypes.c_int(0)
        if driver.cuDeviceGet(ctypes.byref(device), number):
            continue
        state = (device.value, ctypes.byref(flags), ctypes.byref(active))
        if driver.cuDevicePrimaryCtxGetState(*state) == 0 and active.value:
            yield device.value


@contextlib.contextmanager
def _primary_context(driver: ctypes.CDLL, device: int) -> Iterator[bool]:
    """Enter what PyTorch and the runtime work with on a device; tells whether that could be."""
    context = ctypes.c_void_p()
    if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        yield False
        return
    try:
        entered = driver.cuCtxPushCurrent_v2(context) == 0
        yield entered
        if entered:
            driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)
