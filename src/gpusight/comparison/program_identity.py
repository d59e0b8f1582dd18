"""Whether captures are of one program, as far as their kernels show.

An optimization changes names, durations and numbers of kernels. What it hardly changes is how many
GEMMs, convolutions and attention kernels run per step, and what hand-written kernels are called.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analysis.capture_completeness import KERNELS
from gpusight.analysis.ledger.ledger_entries import GRAPH
from gpusight.units import format_share, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.comparison.digest import Digest

PROGRAM, KERNEL_COUNT, PROFILER = "program", "kernels", "profiler"
"""Kinds of differences (`comparability.KINDS`)."""
_CONVOLUTION = "convolution"
_CORE = {"matmul": "GEMM", _CONVOLUTION: "convolution", "attention": "attention kernel"}
"""Categories of the kernels that a model consists of, in words."""
_OPAQUE = frozenset({"custom", "generated", "loop", "other", "stencil"})
"""Categories of kernels that may compute anything, GEMMs and convolutions included."""
_MAX_CORE_RATIO = 2.0
"""Fused attention, fused projections and recomputation change the number of GEMMs by less."""
_MIN_CONVOLUTION_SHARE = 0.1
"""Share of kernel time from which on a program is one with convolutions."""
_MAX_OPAQUE_SHARE = 0.25
"""Share of kernel time above which too little is known about what the kernels compute."""
_MIN_SAME_LAUNCHES = 0.5
"""Share of the other launches with the same number of each kernel: then it is one program."""
_WORDS = re.compile(r"[A-Z]?[a-z]{3,}|[A-Z]{3,}")
_FILLERS = frozenset(
    _WORDS.findall(
        "auto bool char const cuda double float global gpu half int kernel kern long naive "
        "optimized opt shared short simple size test tiled unsigned void"
    )
)
"""Words of names that many kernels have."""


@dataclass(frozen=True, slots=True)
class _Work:
    """What the kernels of a step are."""

    launches: Counter[str]
    """By category."""
    core_launches: Counter[str]
    """By name, of the kernels of `_CORE`."""
    other_launches: Counter[str]
    """By name, of the other kernels."""
    share: dict[str, float]
    """Of kernel time, by category."""
    words: frozenset[str]
    """In the names of opaque kernels."""

    @property
    def core(self) -> float:
        return sum(self.launches[category] for category in _CORE)

    @property
    def opaque_share(self) -> float:
        return sum(self.share.get(category, 0.0) for category in _OPAQUE)

    def named_core(self) -> str:
        """Give the number of core kernels per step: `14 GEMMs`."""
        texts = [
            f"{count:,} {plural(name, count)}"
            for category, name in _CORE.items()
            if (count := round(self.launches[category]))
        ]
        return " + ".join(texts) or "no GEMMs or convolutions"


def other_program(digests: Sequence[Digest]) -> str:
    """Say what shows that captures are not of the program of the first; empty where they may be."""
    work = [_work(digest) for digest in digests if _is_known(digest)]
    per_step = " per step" if any(digest.steps for digest in digests) else ""
    return next(filter(None, (_difference(work[0], other, per_step) for other in work[1:])), "")


def _is_known(digest: Digest) -> bool:
    """Return whether all kernels of a capture are known."""
    return bool(digest.kernels) and GRAPH not in digest.ledger and KERNELS not in digest.lost


def _work(digest: Digest) -> _Work:
    launches: Counter[str] = Counter()
    by_name: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    times: Counter[str] = Counter()
    words: set[str] = set()
    for row in digest.kernels:
        calls, ns = (float(np.average(s, weights=digest.blocks)) for s in (row.calls, row.ns))
        launches[row.category] += calls  # type: ignore[assignment]
        times[row.category] += ns  # type: ignore[assignment]
        by_name[row.category not in _CORE][row.name] += calls  # type: ignore[assignment]
        if row.category in _OPAQUE:
            words |= {word.lower() for word in _WORDS.findall(row.short)} - _FILLERS
    total = sum(times.values()) or 1.0
    share = {category: ns / total for category, ns in times.items()}
    return _Work(launches, *by_name, share, frozenset(words))


def _difference(before: _Work, after: _Work, per_step: str) -> str:
    sides = before, after
    if all(side.opaque_share > 1 - _MAX_OPAQUE_SHARE for side in sides):
        if before.words and after.words and not before.words & after.words:
            return "no kernel names in common"
        return ""
    if any(side.opaque_share > _MAX_OPAQUE_SHARE for side in sides):
        known, opaque = sorted(sides, key=lambda side: side.opaque_share)
        if known.core <= _MAX_CORE_RATIO * sum(opaque.launches.values()):
            return ""  # these may compute the same as those
    convolutions = [side.launches[_CONVOLUTION] for side in sides]
    shares = [side.share.get(_CONVOLUTION, 0.0) for side in sides]
    if min(convolutions) == 0 and max(shares) >= _MIN_CONVOLUTION_SHARE:
        texts = [f"{format_share(share)} of kernel time" if share else "none" for share in shares]
        return f"convolutions: {texts[0]} before, {texts[1]} after"
    low, high = sorted((before.core, after.core))
    if high <= _MAX_CORE_RATIO * low or high < 2:
        return ""
    # Batched GEMMs leave the other kernels as they are; longer steps or windows have more of all.
    same = _same_launches(before.other_launches, after.other_launches)
    if low:
        every = [side.core_launches + side.other_launches for side in sides]
        same = max(same, _same_launches(every[0], every[1], after.core / before.core))
    elif before.core_launches.keys() & after.core_launches.keys():
        return ""  # they are named, but were not launched in these steps
    if same >= _MIN_SAME_LAUNCHES:
        return ""
    return f"{before.named_core()}{per_step} before, {after.named_core()} after"


def _same_launches(before: Counter[str], after: Counter[str], scale: float = 1.0) -> float:
    """Return the share of launches of which the side after has `scale` times as many."""
    least = 0.5 * max(1.0, scale)
    same = sum(calls for name, calls in before.items() if abs(after[name] - calls * scale) < least)
    most = max(sum(before.values()), sum(after.values()) / scale)
    return same / most if most else 0.0
