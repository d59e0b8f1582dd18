"""The libraries that this process has loaded, by whomever."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import re

_MAPPINGS = Path("/proc/self/maps")


def mapped_libraries(name: re.Pattern[str]) -> list[Path]:
    """List those whose file name begins like this; none where a system does not tell."""
    try:
        lines = _MAPPINGS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    paths = {Path(line.split(maxsplit=5)[5]) for line in lines if "/" in line}
    return sorted(path for path in paths if name.match(path.name))
