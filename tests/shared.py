"""Where the captures are: the few in the repository, and the wider set when it lies beside it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

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

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared captures are not here")


def tool(name: str, usual: str) -> str:
    """Find a tool of NVIDIA's, or skip the test."""
    places = [
        os.environ.get(f"GPUSIGHT_{name.upper()}"),
        shutil.which(name),
        str(Path.home() / ".cache/nsight" / usual),
    ]
    for place in places:
        if place and Path(place).exists():
            return place
    pytest.skip(f"NVIDIA's {name} is not installed")


def name(path: Path) -> str:
    """Name a capture in a test's id."""
    return f"{path.parent.name}/{path.stem}"
