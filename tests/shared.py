"""Where the captures are: the few in the repository, and the wider set when it lies beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = REPOSITORY / "tests" / "data"
SHARED = Path(os.environ.get("GPUSIGHT_SHARED", REPOSITORY.parent / "shared")) / "data"

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

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared captures are not here")


def name(path: Path) -> str:
    """Name a capture in a test's id."""
    return f"{path.parent.name}/{path.stem}"
