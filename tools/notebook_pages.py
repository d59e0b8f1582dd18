"""Runs the notebooks of `docs/notebooks` and writes their outputs into them.

    python -m tools.notebook_pages           # writes
    python -m tools.notebook_pages --check   # exit code 1 where text in them is out of date

Needs nbclient and ipykernel, which the development environment has.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
REMEDY = "run: python -m tools.notebook_pages"
_TIMEOUT_S = 120
_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def notebooks() -> list[Path]:
    """List them."""
    return sorted(NOTEBOOKS.glob("*.ipynb"))


def executed(path: Path) -> dict[str, Any]:
    """Run a notebook in a folder with the files beside it; raises where a cell fails."""
    import nbformat
    from nbclient import NotebookClient

    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call,unused-ignore]
    with tempfile.TemporaryDirectory() as folder:
        for file in NOTEBOOKS.glob("*.xz"):
            shutil.copy(file, folder)
        client: Any = NotebookClient(
            notebook, timeout=_TIMEOUT_S, resources={"metadata": {"path": folder}}
        )
        client.execute()
    return cleaned(notebook)


def cleaned(notebook: dict[str, Any]) -> dict[str, Any]:
    """Leave out what differs between runs and machines."""
    cells = []
    for number, cell in enumerate(notebook["cells"]):
        kept: dict[str, Any] = {
            "cell_type": cell["cell_type"],
            "id": f"cell-{number}",
            "metadata": {},
            "source": cell["source"].splitlines(keepends=True),
        }
        if cell["cell_type"] == "code":
            kept["execution_count"] = cell["execution_count"]
            kept["outputs"] = [_output(output) for output in cell["outputs"]]
        cells.append(kept)
    return {
        "cells": cells,
        "metadata": {"kernelspec": _KERNEL, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _output(output: dict[str, Any]) -> dict[str, Any]:
    kept = {key: output[key] for key in ("output_type", "name", "execution_count") if key in output}
    if "text" in output:
        return kept | {"text": output["text"].splitlines(keepends=True)}
    data = {kind: text.splitlines(keepends=True) for kind, text in output["data"].items()}
    return kept | {"data": data, "metadata": {}}


def texts(notebook: dict[str, Any]) -> list[list[str]]:
    """Give what each cell prints or shows as text."""
    return [
        ["".join(out.get("text") or out["data"].get("text/plain", "")) for out in cell["outputs"]]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def main() -> int:
    """Run all of them; returns the exit code."""
    outdated = []
    for path in notebooks():
        new = executed(path)
        if "--check" not in sys.argv:
            path.write_text(json.dumps(new, indent=1, ensure_ascii=False) + "\n", "utf-8")
        elif texts(new) != texts(json.loads(path.read_text("utf-8"))):
            outdated.append(path.name)
    if outdated:
        print(f"out of date: {', '.join(outdated)}; {REMEDY}")
    return 1 if outdated else 0


if __name__ == "__main__":
    sys.exit(main())
