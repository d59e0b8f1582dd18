"""The files of `gpusight orion build` on disk; never over a capture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.evidence import refuse_capture
from gpusight.output_files import staged_folder, write_file

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
    if intermediate is not None:
        with staged_folder(intermediate) as folder:
            for name, text in built.tables.items():
                (folder / name).write_text(text, encoding="utf-8", newline="")
    if out is not None:
        write_file(out, built.text.encode())
    return list(files)


def protect(path: Path, captures: Iterable[str]) -> None:
    """Refuse to write over any of the captures."""
    for capture in captures:
        refuse_capture(path, capture)
