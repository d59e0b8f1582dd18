"""Tests never touch the user's cache."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder: Path = tmp_path_factory.getbasetemp() / "gpusight-cache"
    monkeypatch.setenv("GPUSIGHT_CACHE_DIR", str(folder))
