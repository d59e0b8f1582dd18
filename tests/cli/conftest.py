from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.captures import NAMED

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _quiet_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the tests away from the user's cache and screen."""
    monkeypatch.setenv("GPUSIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def train() -> str:
    return str(NAMED["demo"])


@pytest.fixture
def graph() -> str:
    """A capture whose CUDA graphs were traced as wholes: it has no kernels."""
    return str(NAMED["graph"])
