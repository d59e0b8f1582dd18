"""Kernel-info files of the Orion scheduler, which are read whole as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.errors import NotACaptureError

if TYPE_CHECKING:
    from pathlib import Path

_LARGEST = 1 << 28
"""A file of a million kernels has a fifth of this."""


def read_kernel_info(path: Path) -> str:
    """Read a kernel-info file; what is plainly no text is refused."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise NotACaptureError(f"cannot read {path}", why=error.strerror or str(error)) from error
    if len(content) > _LARGEST or b"\0" in content:
        why = "it is far too large" if len(content) > _LARGEST else "it is not text"
        raise NotACaptureError(f"{path} is not a kernel-info file", why=why)
    return content.decode("utf-8", "replace")
