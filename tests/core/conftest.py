"""Tests of the core run on the library of the installation, or on one that checks itself."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import settings

from gpusight.core import library

SANITIZED = "PYTEST_CORE_LIBRARY"
"""Path of a library built with sanitizers; see test_library.py."""

if SANITIZED in os.environ:
    library.LIBRARY = Path(os.environ[SANITIZED])
    # Slow, and after the same tests on the library of the installation: each run draws its own.
    settings.register_profile("sanitized", settings(), max_examples=25)
    settings.load_profile("sanitized")
