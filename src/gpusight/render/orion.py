"""The files of `gpusight orion build` on disk; never over a capture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.errors import GpusightError
from gpusight.evidence import refuse_capture

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gpusight.analyses.orion.build import Built


def save(
    built: Built, out: Path | None, intermediate: Path | None, *, captures: Iterable[str]
) -> list[Path]:
    """Write the kernel-info file, and the tables on the way into a folder; gives what it wrote."""
    files = {} if out is None else {out: built.text}
    if intermediate is not None:
        files |= {intermediate / name: text for name, text in built.tables.items()}
    sources = list(captures)
    for path in files:
        protect(path, sources)
    try:
        if intermediate is not None:
            intermediate.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        what = error.filename or out or intermediate
        raise GpusightError(f"cannot write {what}", why=error.strerror or str(error)) from error
    return list(files)


def protect(path: Path, captures: Iterable[str]) -> None:
    """Refuse to write over any of the captures."""
    for capture in captures:
        refuse_capture(path, capture)
