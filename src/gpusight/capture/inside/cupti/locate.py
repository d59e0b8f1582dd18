"""Where libcupti is: loaded already, in a wheel, in a CUDA toolkit, or known to the loader."""

from __future__ import annotations

import glob
import os
import re
import sys
from pathlib import Path

from gpusight.capture.inside.mapped import mapped_libraries

_LIBRARY = re.compile(r"libcupti\.so")
_VERSIONED = re.compile(r"libcupti\.so\.(\d{1,2})(?:\.\d+)?$")
_WHEELS = ("nvidia/*/lib", "triton/backends/nvidia/lib/cupti")
_TOOLKIT = ("extras/CUPTI/lib64", "lib64", "lib")
_SYSTEM = (*(f"/usr/local/cuda/{part}" for part in _TOOLKIT), "/usr/lib/*-linux-gnu")
HINT = "pip install cupti-python (it brings libcupti), or set CUDA_HOME to a CUDA toolkit"


def loaded_library() -> Path | None:
    """Give the libcupti that this process has loaded already: there must not be a second."""
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
        usable = [
            (major, path)
            for path in glob.glob(f"{glob.escape(folder)}/libcupti.so*")  # noqa: PTH207 - text
            if (major := _major(path)) is not None
            and (driver_major is None or major <= driver_major)
        ]
        if usable:
            return Path(max(usable)[1])
    return None


def _major(path: str) -> int | None:
    """Tell the major version of CUDA; `libcupti.so.2025.3.1` and `libcupti.so` do not say it."""
    found = _VERSIONED.search(path)
    return int(found.group(1)) if found else None


def _folders() -> list[str]:
    patterns = [f"{glob.escape(root)}/{wheel}" for root in sys.path if root for wheel in _WHEELS]
    named = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    patterns += [f"{glob.escape(home)}/{part}" for home in named for part in _TOOLKIT]
    searched = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    patterns += [*(glob.escape(folder) for folder in searched if folder), *_SYSTEM]
    found = [path for pattern in patterns for path in sorted(glob.glob(pattern))]  # noqa: PTH207
    return list(dict.fromkeys(found))
