"""What this Python process is for, from its command line.

Under a launcher most processes are not the program: launchers, trackers and compilers import torch
too, and must be left alone.
"""

from __future__ import annotations

import enum
import sys

from gpusight.capture.programs import PYTHON_LAUNCHERS, base_name, read_python

_HELPERS = PYTHON_LAUNCHERS | {"pip", "pip3", "ninja", "horovodrun", "composer", "jupyter"}
_HELPER_MODULES = (
    "pip",
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.elastic",
    "accelerate.commands",
    "deepspeed.launcher",
    "torch._inductor.compile_worker",
    "gpusight",
    "ensurepip",
    "venv",
)
_HELPER_CODE = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
_CHILD_CODE = "multiprocessing.spawn"


class Role(enum.Enum):
    """How a process relates to the program that is recorded."""

    MAIN = "main"
    """It runs the program, or one rank of it."""
    CHILD = "child"
    """`multiprocessing` started it: it trains, or it only loads data."""
    HELPER = "helper"
    """It starts, watches or serves others."""


def own_role() -> Role:
    """Tell what this process is."""
    return role_of(list(sys.orig_argv))


def role_of(argv: list[str]) -> Role:
    """Tell what a Python process is, by its command line."""
    line = read_python(argv)
    if line.runs is None:
        code = " ".join(argv[line.position :])
        if any(name in code for name in _HELPER_CODE):
            return Role.HELPER
        return Role.CHILD if _CHILD_CODE in code else Role.MAIN
    name = base_name(line.runs).removesuffix(".exe").removesuffix("-script.py")
    module = line.runs.replace("\\", "/").removesuffix("/__main__.py").replace("/", ".")
    is_helper = name in _HELPERS or any(_is_within(module, known) for known in _HELPER_MODULES)
    return Role.HELPER if is_helper else Role.MAIN


def _is_within(module: str, package: str) -> bool:
    """Tell whether `-m` names the package or a part of it; or a path ends in the package."""
    inside = module == package or module.startswith(f"{package}.")
    return inside or ("." in package and module.endswith(f".{package}"))
