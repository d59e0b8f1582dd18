"""Tests never touch the user's cache, nor each other's."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

_NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    # Made when something is written there, which few tests do.
    folder: Path = tmp_path_factory.getbasetemp() / f"gpusight-cache-{next(_NUMBERS)}"
    monkeypatch.setenv("GPUSIGHT_CACHE_DIR", str(folder))
