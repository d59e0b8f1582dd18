"""Builds the programs in CUDA C++ and says how one of them is run."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.programs.registry import Program

SOURCE = Path(__file__).with_name("native.cu")


@functools.cache
def build() -> Path:
    """Compile the source for the GPU of this machine, unless that was done before."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    built = Path(tempfile.gettempdir()) / f"native-{digest}"
    if not built.exists():
        unfinished = built.with_name(f"{built.name}.{os.getpid()}")
        options = ["-O3", "-std=c++17", "-arch=native", "-o", str(unfinished)]
        subprocess.run(["nvcc", *options, str(SOURCE)], check=True)
        unfinished.rename(built)
    return built


def command(
    program: Program, variant: str, steps: int, *, repeats: int = 1, times: Path | None = None
) -> list[str]:
    """Return the words of the command that runs a program."""
    name = program.name.removeprefix("cuda_")
    numbers = [str(steps), str(program.warmup), str(repeats)]
    return [str(build()), name, variant, *numbers, *([str(times)] if times else [])]
