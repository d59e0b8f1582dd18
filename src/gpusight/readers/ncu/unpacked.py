"""The bytes of a report, whether it lies there plain or packed.

Nsight Compute writes plain `.ncu-rep` and, from 2026.3 on, Zstandard-packed `.ncu-repz` files;
people pack reports with gzip and xz, for the binaries in them shrink thirtyfold. What is unpacked
goes to a temporary file without a name, so that memory stays small. A plain report is copied there
too: the process would end (SIGBUS) if the mapped file were truncated, as when ncu runs once more.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.errors import DamagedCaptureError
from gpusight.evidence import NCU_REPORT
from gpusight.readers.blocks import Blocks
from gpusight.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

_COPY_BYTES, _MAX_COPIED_BYTES = 4 << 20, 1 << 30
"""Written at once, and copied at all: a sparse file of terabytes must not fill the disk."""
_MAX_BYTES = 32 << 30
"""Reports have a few hundred megabytes. `Blocks` bounds how many times a small file may grow."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a report file holds."""

    data: memoryview
    mapping: mmap.mmap
    problem: str | None = None
    """Why there is no more than this."""

    def close(self) -> None:
        """Give the file back."""
        self.data.release()
        self.mapping.close()


def read_content(path: Path) -> Content:
    """Map a report into memory, unpacked where it is packed."""
    with path.open("rb") as file:
        if file.read(len(NCU_REPORT)) != NCU_REPORT:
            return _unpacked(path)
        return _copied(file)


def _copied(file: IO[bytes]) -> Content:
    file.seek(0)
    if os.fstat(file.fileno()).st_size > _MAX_COPIED_BYTES:
        return _mapped(file)
    try:
        with tempfile.TemporaryFile(prefix="gpusight-") as copy:
            shutil.copyfileobj(file, copy, _COPY_BYTES)
            copy.flush()
            return _mapped(copy)
    except OSError:
        return _mapped(file)  # no room for a copy; the report itself can still be read


def _unpacked(path: Path) -> Content:
    blocks = Blocks(path)
    with tempfile.TemporaryFile(prefix="gpusight-") as plain:
        size = 0
        for block in blocks:
            size += plain.write(block)
            if size > _MAX_BYTES:
                raise DamagedCaptureError(
                    f"{path} cannot be unpacked",
                    why=f"it grows to more than {format_bytes(_MAX_BYTES)}, which no report does",
                    hint="if it is one, unpack it yourself",
                )
        if size == 0:
            raise DamagedCaptureError(
                f"{path} cannot be unpacked",
                why=blocks.problem or "it unpacks to nothing",
                hint="copy it again",
            )
        plain.flush()
        return _mapped(plain, blocks.problem)


def _mapped(file: IO[bytes], problem: str | None = None) -> Content:
    mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return Content(memoryview(mapping), mapping, problem)
