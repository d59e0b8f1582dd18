"""Finds the libcupti that a recorder would load in this Python, and tries it; prints JSON.

Runs in the Python of the program to be recorded, which may have no gpusight: only that package is
taken from here, so that what is found is the program's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[4]))
from gpusight.errors import RecordError
from gpusight.recording.inside.cuda_driver import driver_version
from gpusight.recording.inside.cupti_library import find_library, load_cupti

sys.path.pop()


def _ask() -> dict[str, Any]:
    version = driver_version()
    fits = find_library(None if version is None else version // 1000)
    some = fits or find_library()
    told = {
        "library": None if fits is None else str(fits),
        "unfit": None if some is None or fits is not None else str(some),
        "why": None,
    }
    try:
        load_cupti().time_ns()
    except RecordError as error:
        return {**told, "works": False, "why": error.why or error.what}
    return {**told, "works": True}


sys.stdout.write("\n" + json.dumps(_ask()) + "\n")
