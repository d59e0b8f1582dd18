"""What must hold of a digest before anyone computes with it: a file may say anything."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gpusight.comparison.digest import MOST_BLOCKS
from gpusight.comparison.make_calls import MOST_NAMES
from gpusight.comparison.make_kernels import MOST_KERNELS, MOST_LAUNCHES
from gpusight.comparison.make_work import MOST_COPIES
from gpusight.comparison.naming import LONGEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.comparison.digest import Digest, Series

MOST_DIGESTS = 1_000
_LARGEST = 1e18
"""Nanoseconds or bytes: sums of it stay far from where numbers end."""
_ALIKE = 1e-6
_MOST_ROWS = {
    "gpus": 10_000,
    "ledger": 1_000,
    "between": 1_000,
    "phases": 1_000,
    "kernels": MOST_KERNELS + 1,
    "order": MOST_LAUNCHES,
    "ranges": MOST_NAMES + 1,
    "api": MOST_NAMES + 1,
    "copies": MOST_COPIES + 1,
    "memory_peak": 10_000,
    "findings": 1_000,
    "missing": 1_000,
    "lost": 10,
    "not_evaluated": 1_000,
    "reported_losses": 1_000,
    "notes": 1_000,
}


def fault(digest: Digest) -> str:
    """Say what is wrong with a digest that was read; empty where nothing is."""
    for problem in (_rows, _values, _steps, _lengths, _sums):
        if found := problem(digest):
            return f"{_called(digest)}: {found}"
    return ""


def _called(digest: Digest) -> str:
    return digest.label[:80] or "a capture without a name"


def _rows(digest: Digest) -> str:
    many = [key for key, most in _MOST_ROWS.items() if len(getattr(digest, key)) > most]
    return f"it has too many rows of {many[0]}" if many else ""


def _values(digest: Digest) -> str:
    """Look at every number and every text, wherever it stands."""
    for key, values in digest.document().items():
        for value in _flat(values):
            if isinstance(value, str) and len(value) > LONGEST:
                return f"a text of {key} is too long"
            if isinstance(value, (int, float)) and not 0 <= value <= _LARGEST:
                return f"a number of {key} is negative or too large"
    return ""


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from _flat(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _flat(one)
    else:
        yield value


def _steps(digest: Digest) -> str:
    if not 0 < len(digest.blocks) <= MOST_BLOCKS or min(digest.blocks) < 1:
        return f"steps are in 1 to {MOST_BLOCKS} blocks of at least one"
    if sum(digest.blocks) != max(1, digest.steps):
        return f"its blocks hold {sum(digest.blocks):,} steps and not {digest.steps:,}"
    if not digest.min_ns <= digest.median_ns <= digest.max_ns:
        return "the median of its steps is not between the shortest and the longest"
    if digest.order and max(digest.order) >= len(digest.kernels):
        return "the order of launches names kernels that it does not have"
    return "" if sum(digest.step_ns) > 0 else "its steps take no time"


def _lengths(digest: Digest) -> str:
    wrong = [key for key, series in _series(digest) if len(series) != len(digest.blocks)]
    return f"{wrong[0]} does not have a value for each block" if wrong else ""


def _series(digest: Digest) -> Iterator[tuple[str, Series]]:
    for key in ("step_ns", "between_ns", "kernel_ns"):
        yield key, getattr(digest, key)
    for key in ("ledger", "between", "phases"):
        yield from ((key, series) for series in getattr(digest, key).values())
    for kernel in digest.kernels:
        yield from (("kernels", series) for series in (kernel.ns, kernel.calls))
    for key in ("ranges", "api"):
        for row in getattr(digest, key):
            known = (row.calls, row.host_ns, row.gpu_ns)
            yield from ((key, series) for series in known if series is not None)
    for copy in digest.copies:
        yield from (("copies", series) for series in (copy.calls, copy.ns, copy.bytes))


def _sums(digest: Digest) -> str:
    if not _alike(digest.ledger.values(), digest.step_ns):
        return "the ledger does not sum to the steps"
    if not _alike(digest.between.values(), digest.between_ns):
        return "the ledger of the time between steps does not sum to it"
    if not _alike((kernel.ns for kernel in digest.kernels), digest.kernel_ns):
        return "the kernels do not sum to the kernel time"
    return ""


def _alike(parts: Iterable[Series], whole: Series) -> bool:
    every = list(parts)
    sums = (math.fsum(part[at] for part in every) for at in range(len(whole)))
    return all(
        math.isclose(one, wanted, rel_tol=_ALIKE, abs_tol=1.0)
        for one, wanted in zip(sums, whole, strict=True)
    )
