"""What the CUDA driver, CUPTI, PyTorch and the packages of a Python report, as a line of JSON.

`python probes.py NAME` runs one probe as a program of its own, so that CUDA is never initialized
in the caller's process. It may be the Python of the program to be recorded, which can be older
than ours and have no gpusight: each probe imports only what it needs.
"""

from __future__ import annotations

import ctypes
import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_DRIVER_LIBRARIES = (
    ("nvcuda.dll",)
    if sys.platform == "win32"
    else ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")
)
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76
_PACKAGES = ("torch", "nvtx")


def probe_driver() -> dict[str, Any]:
    """Query the CUDA driver for its version and its GPUs, without a context."""
    for name in _DRIVER_LIBRARIES:
        try:
            cuda = ctypes.CDLL(name)
            break
        except OSError:
            continue
    else:
        return {"library": False}
    driver, count = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(driver))
    failed = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    devices = [] if failed else [_device(cuda, index) for index in range(count.value)]
    return {"library": True, "version": driver.value, "failed": failed, "devices": devices}


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


def probe_packages() -> dict[str, Any]:
    """Return the version of this Python and of the installed packages that matter."""
    packages: dict[str, str | None] = dict.fromkeys(_PACKAGES)
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:  # noqa: PERF203 - two of them
            continue
    return {"python": list(sys.version_info[:3]), "packages": packages}


def probe_torch() -> dict[str, Any]:
    """Query PyTorch whether it sees a GPU and can profile it."""
    import torch
    import torch.profiler

    supported = getattr(torch.profiler, "supported_activities", None)
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "available": bool(torch.cuda.is_available()),
        "activities": [] if supported is None else sorted(kind.name for kind in supported()),
    }


def probe_cupti() -> dict[str, Any]:
    """Find the libcupti that a recorder would load in this Python, and try it.

    Only gpusight is imported from where this file lies, so that the libcupti is the program's.
    """
    sys.path.append(str(Path(__file__).resolve().parents[3]))
    from gpusight.errors import RecordError
    from gpusight.recording.inside.cuda_driver import driver_version
    from gpusight.recording.inside.cupti_library import find_library, load_cupti

    sys.path.pop()
    cuda = driver_version()
    fitting = find_library(None if cuda is None else cuda // 1000)
    unfit = find_library() if fitting is None else None
    answer = {
        "library": None if fitting is None else str(fitting),
        "unfit": None if unfit is None else str(unfit),
        "why": None,
    }
    try:
        load_cupti().time_ns()
    except RecordError as error:
        return {**answer, "works": False, "why": error.why or error.what}
    return {**answer, "works": True}


if __name__ == "__main__":
    folder = Path(__file__).resolve().parent
    # The modules next to this file are ours, not the program's.
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != folder]
    # Packages may print on import: the answer is the last line.
    sys.stdout.write("\n" + json.dumps(globals()[sys.argv[1]]()) + "\n")
