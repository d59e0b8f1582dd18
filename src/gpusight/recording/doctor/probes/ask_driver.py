"""Asks the CUDA driver what it knows, without a context; prints one line of JSON.

Runs as a program of its own, so that CUDA is never initialised in anybody's process.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

_LIBRARIES = (
    ("nvcuda.dll",)
    if sys.platform == "win32"
    else ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")
)
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76


def _load() -> ctypes.CDLL | None:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:  # noqa: PERF203 - two of them
            continue
    return None


def _device(cuda: ctypes.CDLL, index: int) -> dict[str, Any]:
    device, value = ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), index)
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, len(name), device)
    capability = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(value.value)
    return {"name": name.value.decode("utf-8", "replace"), "capability": capability}


def _ask() -> dict[str, Any]:
    cuda = _load()
    if cuda is None:
        return {"library": False}
    version, count = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    failed = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    devices = [] if failed else [_device(cuda, index) for index in range(count.value)]
    return {"library": True, "version": version.value, "failed": failed, "devices": devices}


sys.stdout.write(json.dumps(_ask()) + "\n")
