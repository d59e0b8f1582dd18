"""Says which Python this is and what of interest is installed; prints one line of JSON."""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("torch", "nvtx")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


_found = {
    "python": list(sys.version_info[:3]),
    "packages": {name: _version(name) for name in _PACKAGES},
}
sys.stdout.write("\n" + json.dumps(_found) + "\n")
