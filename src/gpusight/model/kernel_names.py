"""What a kernel is, from its name alone: a readable label, a category, a precision.

Every part of gpusight that speaks of kernels asks here, so that the ledger, the findings and the
reports agree. The families are in one table, `kernel_patterns.PATTERNS`.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from gpusight.model.demangle import demangle
from gpusight.model.kernel_labels import build
from gpusight.model.kernel_parts import parts_of
from gpusight.model.kernel_patterns import CATEGORIES, find
from gpusight.model.kernel_precision import PRECISIONS, precision_of, tensor_cores

__all__ = [
    "CATEGORIES",
    "PRECISIONS",
    "KernelName",
    "classify",
    "demangle",
]


class KernelName(msgspec.Struct, frozen=True):
    """A kernel's name and what it says."""

    raw: str
    """As in the capture."""
    demangled: str
    """Demangled where `raw` is mangled."""
    short: str
    """A label of at most 48 characters, on one line."""
    category: str
    """One of `CATEGORIES`."""
    precision: str
    """What the arithmetic runs in, one of `PRECISIONS`."""
    tensor_core: bool | None
    """Whether tensor cores are used; None where the name cannot tell."""


_MOST = 1 << 19
"""Names that are remembered, in 0.4 KB each beside the name.

A capture with more is looked at anew by each question, at 0.1 ms a name.
"""


@lru_cache(maxsize=_MOST)
def classify(name: str) -> KernelName:
    """Say what kernel `name` is. Any text is accepted; most of it is then in "other"."""
    demangled, parts = parts_of(name)
    row, groups = find(parts.subject, parts.args.lower(), parts.words)
    precision = precision_of(parts, row.category)
    return KernelName(
        raw=name,
        demangled=demangled,
        short=build(row.label, parts, precision, groups),
        category=row.category,
        precision=row.precision or precision,
        tensor_core=tensor_cores(parts, row.category, precision),
    )
