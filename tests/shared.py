"""Where the captures are: the few in the repository, and the wider set when it lies beside it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from gpusight.readers.open import open_trace
from gpusight.rules.engine import RuleResults
from gpusight.rules.finding import TimelineFinding
from gpusight.trace.trace import Trace, TraceSource

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = REPOSITORY / "tests" / "data"
SHARED = Path(os.environ.get("GPUSIGHT_SHARED", REPOSITORY.parent / "shared")) / "data"


def _raw_csv(report: Path) -> Path:
    return report.with_name(report.name.replace(".ncu-rep", ".raw.csv"))


OWN = sorted(DATA.glob("*.sqlite"))
EVERY_SQLITE = [
    *OWN,
    *sorted(SHARED.glob("nsys/*.sqlite")),
    *sorted(SHARED.glob("public/nsys/*.sqlite")),
]
EVERY_REPORT = [
    *sorted(DATA.glob("*.nsys-rep")),
    *sorted(SHARED.glob("nsys_rep/*.nsys-rep")),
    *sorted(SHARED.glob("public/nsys/*.nsys-rep")),
    *sorted(SHARED.glob("public/nsys/*.qdrep")),
]
EVERY_TORCH_TRACE = [
    *sorted(p for p in DATA.glob("*.json.gz") if not p.name.startswith("jax")),
    *sorted(SHARED.glob("torch/*.json*")),
    *sorted(SHARED.glob("public/torch/*.json*")),
]

EVERY_NCU_REPORT = [
    *sorted(p for p in DATA.glob("*.ncu-rep*")),
    *sorted(SHARED.glob("ncu/*.ncu-rep.xz")),
    *sorted(SHARED.glob("public/ncu/*")),
]
NCU_WITH_RAW_CSV = [
    path for path in sorted(SHARED.glob("ncu/*.ncu-rep.xz")) if _raw_csv(path).exists()
]

SAMPLE = (
    "nsys/pageable.*",
    *(f"public/nsys/{version}__*.sqlite" for version in ("2020.5.1.85", "2021.2.1.58")),
    *(f"public/nsys/{version}__*.sqlite" for version in ("2022.1.1.61", "2023.3.1.92")),
    *(f"public/nsys/{version}__*.sqlite" for version in ("2024.6.2.225", "2025.3.2.474")),
    "public/nsys/2026.1.1.204__*.sqlite",
    "nsys_rep/gpt_tiny_osrt.*",
    *(f"public/nsys/{version}__*.*rep" for version in ("2020.4.1.126", "2022.4.2.1")),
    *(f"public/nsys/{version}__*.*rep" for version in ("2023.2.3.1001", "2024.2.1.106")),
    "public/nsys/2025.3.2.474__*.*rep",
    *("torch/gpt_tiny_compile.*", "torch/pageable.*", "public/torch/CyclicRouter__*"),
    *("public/torch/*mi300*", "public/torch/*graph_execution*", "public/torch/*before_fix*"),
    *(f"public/ncu/{version}__*" for version in ("pre2020.2-cuda10.0", "2020.3.1.0")),
    *(f"public/ncu/{version}__*" for version in ("2022.4.0.0", "2024.3.1.0")),
    *(f"public/ncu/{version}__*" for version in ("2025.1.0.0", "2026.2.1.0")),
)
"""Small captures: one of each tool and year, and what `tests/data` has nothing like."""
_SAMPLED = {path for pattern in SAMPLE for path in SHARED.glob(pattern)}
WIDER = {
    path
    for path in (*EVERY_SQLITE, *EVERY_REPORT, *EVERY_TORCH_TRACE, *EVERY_NCU_REPORT)
    if path.is_relative_to(SHARED) and path not in _SAMPLED
}
"""A test with one of these as a parameter is marked `wide`; one that names its capture is not."""

TWINS = {
    *(path for path in DATA.glob("*.nsys-rep") if path.with_suffix(".sqlite") in OWN),
    *DATA.glob("jax_*.trace.json.gz"),
}
"""The same runs in another format: `wide` but for tests of reading and of sanitized copies."""

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared captures are not here")


# Tests run with another home.
_NSIGHT = os.path.expanduser("~/.cache/nsight")  # noqa: PTH111 - there may be no home
_CHOSEN = {name: os.environ.get(f"GPUSIGHT_{name.upper()}") for name in ("nsys", "ncu")}


def tool(name: str, usual: str) -> str:
    """Find a tool of NVIDIA's, or skip the test."""
    places = [_CHOSEN[name], shutil.which(name), str(Path(_NSIGHT, usual))]
    for place in places:
        if place and Path(place).exists():
            return place
    pytest.skip(f"NVIDIA's {name} is not installed")


def opened(path: Path) -> Trace:
    """Open a capture, once in a session: reading takes as long as most tests."""
    return (
        kept_open(str(path), file_state(path)) if path.is_file() else open_trace(path, cache=False)
    )


TIMES = {"recorded": False}
"""Whether tests see the recorded times of captures (a list in conftest.py), or what users see."""


def file_state(path: Path) -> tuple[int, ...]:
    """Return what changes when another file is written there, or other times are shown of it."""
    state = path.stat()
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, TIMES["recorded"]


class KeptTrace(Trace):
    """Stays open for the next test, and so does its source, which `serve` closes by itself."""

    def __init__(self, source: TraceSource) -> None:
        super().__init__(source)
        source.close = lambda: None  # type: ignore[method-assign]
        self.rule_results: dict[tuple[object, ...], RuleResults[TimelineFinding]] = {}


@lru_cache(maxsize=64)
def kept_open(path: str, _state: tuple[int, ...]) -> Trace:
    """Open a capture and keep it, with the tables that tests read of it."""
    return KeptTrace(open_trace(path, cache=False)._source)


@contextmanager
def full_disk(most_bytes: int) -> Iterator[None]:
    """Let larger files fail, as on a full disk."""
    import resource

    limits: Any = resource.getrlimit(resource.RLIMIT_FSIZE)
    compiles, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        sys.dont_write_bytecode = compiles  # Python would keep half of a compiled module


def name(path: Path) -> str:
    """Name a capture in a test's id."""
    return f"{path.parent.name}/{path.stem}"
