"""The notebooks of docs/ run, and show what they showed when they were written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tools.notebook_pages import REMEDY, cleaned, executed, notebooks, texts


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: str(path.stem))
def test_a_notebook_shows_what_its_cells_give(path: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    stored = json.loads(path.read_text("utf-8"))
    assert texts(executed(path)) == texts(stored), REMEDY


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: str(path.stem))
def test_a_notebook_is_clean(path: Path) -> None:
    text = path.read_text("utf-8")
    stored = json.loads(text)
    code = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)
    assert "/home/" not in text
    assert "/tmp/" not in text
    for cell in stored["cells"]:
        cell["source"] = "".join(cell["source"])
        for output in cell.get("outputs", ()):
            for data in (output, output.get("data", {})):
                data |= {k: "".join(v) for k, v in data.items() if isinstance(v, list)}
    assert cleaned(stored) == json.loads(text)


def test_there_are_two() -> None:
    assert [path.stem for path in notebooks()] == ["compare-and-whatif", "training"]
