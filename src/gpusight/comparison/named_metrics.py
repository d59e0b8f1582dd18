"""Quantities by name (`step_time`, `kernel:GLOB`, …).

What `compare` lists and `gate --max` limits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analysis.capture_completeness import COPIES, KERNELS, MEMSETS
from gpusight.analysis.ledger.ledger_entries import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    GRAPH,
    IDLE,
    IdleCause,
)
from gpusight.analysis.selection import matcher, near_matches
from gpusight.analysis.steps.step_list import PHASES
from gpusight.comparison.compared_quantities import API, ComparedQuantity, measured, summed
from gpusight.errors import UsageError
from gpusight.naming.kernel_patterns import CATEGORIES
from gpusight.results import Fmt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from gpusight.comparison.compared_quantities import Floats
    from gpusight.comparison.digest import CallDigest, Digest

    MetricValues = NDArray[np.float64]


_MAX_MATCHED_CHARS = 2_000
"""What a pattern looks at: a hostile name of a megabyte could keep a regex busy for hours."""


def _kernels(digests: Sequence[Digest], key: str, pattern: str) -> ComparedQuantity:
    matches = _matcher(pattern)
    rows = [[k for k in d.kernels if matches(k.name) or matches(k.short)] for d in digests]
    of = {id(d): summed((k.ns for k in r), d) for d, r in zip(digests, rows, strict=True)}

    def value(digest: Digest) -> Floats | None:
        return None if GRAPH in digest.ledger else of[id(digest)]

    return measured(digests, key, key, Fmt.TIME, value, "graph", needs=(KERNELS,), found=any(rows))


def _ranges(digests: Sequence[Digest], key: str, pattern: str) -> ComparedQuantity:
    return _calls(digests, key, pattern, "ranges", lambda d: d.ranges, lambda c: c.host_ns)


def _range_work(digests: Sequence[Digest], key: str, pattern: str) -> ComparedQuantity:
    needs = (KERNELS, COPIES)
    return _calls(
        digests, key, pattern, "ranges", lambda d: d.ranges, lambda c: c.gpu_ns, needs=needs
    )


def _api(digests: Sequence[Digest], key: str, pattern: str) -> ComparedQuantity:
    return _calls(digests, key, pattern, "api", lambda d: d.api, lambda c: c.host_ns)


def _calls(
    digests: Sequence[Digest],
    key: str,
    pattern: str,
    part: str,
    rows: Callable[[Digest], tuple[CallDigest, ...]],
    series: Callable[[CallDigest], tuple[float, ...] | None],
    *,
    needs: Sequence[str] = (),
) -> ComparedQuantity:
    matches = _matcher(pattern)

    def value(digest: Digest) -> Floats | None:
        if part in digest.missing and not rows(digest):
            return None
        mine = [series(one) for one in rows(digest) if matches(one.name)]
        known = [one for one in mine if one is not None]
        return None if mine and not known else summed(known, digest)

    found = any(matches(one.name) for digest in digests for one in rows(digest))
    return measured(digests, key, key, Fmt.TIME, value, part, needs=needs, found=found)


def _phase(digests: Sequence[Digest], key: str, phase: str) -> ComparedQuantity:
    if phase not in PHASES:
        raise UsageError(f"no phase is called {phase!r}", why=f"phases are {', '.join(PHASES)}")

    def value(digest: Digest) -> Floats | None:
        if not digest.phases:
            return None
        return summed([digest.phases[phase]] if phase in digest.phases else [], digest)

    return measured(digests, key, key, Fmt.TIME, value, "phases", needs=(KERNELS, COPIES))


def _finding(digests: Sequence[Digest], key: str, rule: str) -> ComparedQuantity:
    known = {*rules(), *(found.rule for digest in digests for found in digest.findings)}
    if rule not in known:
        near = near_matches(rule, sorted(known))
        hint = "see: gpusight diagnose --list-rules"
        raise UsageError(f"no rule is called {rule!r}", why=f"near ones are {near}", hint=hint)

    def value(digest: Digest) -> float | None:
        if "findings" in digest.missing or rule in digest.not_evaluated:
            return None
        mine = [found.step_ns for found in digest.findings if found.rule == rule]
        return None if None in mine else float(sum(ns for ns in mine if ns is not None))

    sources = (KERNELS, COPIES, API)
    found = measured(digests, key, key, Fmt.TIME, value, "findings", needs=sources)
    reasons = (f"{d.label}: {d.not_evaluated[rule]}" for d in digests if rule in d.not_evaluated)
    return found if found.lost else replace(found, missing=next(reasons, found.missing))


PATTERNS = {
    "kernel": _kernels,
    "range": _ranges,
    "range_gpu": _range_work,
    "api": _api,
    "phase": _phase,
    "finding": _finding,
}


def _matcher(pattern: str) -> Callable[[str], bool]:
    """Match whole names by a glob, or any part by a regular expression written /…/."""
    if not pattern:
        raise UsageError("a pattern is missing after the colon", hint="such as kernel:'*gemm*'")
    matches = matcher(pattern)
    return lambda name: name == pattern or bool(matches(name[:_MAX_MATCHED_CHARS]))


def names_of(kind: str, digests: Sequence[Digest]) -> list[str]:
    """List what names of a kind there are to match, the most expensive first."""
    every: list[str] = []
    for digest in digests:
        if kind == "kernel":
            every += (kernel.short for kernel in digest.kernels)
        else:
            every += (one.name for one in (digest.api if kind == "api" else digest.ranges))
    return [name for name in dict.fromkeys(every) if name]


def rules() -> list[str]:
    """List the rules of `diagnose`."""
    from gpusight.rules.registry import TIMELINE_RULES

    return list(TIMELINE_RULES)


LIST = (
    "step_time",
    "step_period",
    "between_steps",
    "kernel_time",
    "busy",
    "idle",
    "launches",
    "memory_peak",
    "h2d_bytes",
    "d2h_bytes",
    "findings",
)
"""Metrics of every comparison, in the order of its table."""
_PAGED = "Unified "
_COPY_KINDS = ("h2d", "d2h", "d2d", "p2p", "h2h", "unified", "memset", "other")
_MAX_NAME_CHARS = 2_000
"""What a pattern looks at: a hostile name of a megabyte could keep a regex busy for hours."""


# Asking ------------------------------------------------------------------------------------------


def quantity(digests: Sequence[Digest], key: str) -> ComparedQuantity:
    """Give a quantity of captures by its key; raises `UsageError` for a key that means nothing."""
    kind, separator, pattern = key.partition(":")
    if separator and kind in PATTERNS:
        return PATTERNS[kind](digests, key, pattern.strip())
    if key in _METRICS:
        label, fmt, value = _METRICS[key]
        needs = _NEEDS.get(key, ())
        return measured(digests, key, label, fmt, value, _PART_OF.get(key, key), needs=needs)
    if any(_is_part(entry, key) for entry in (*entries(), *_ledgers(digests))):
        needs = _entry_needs(key)
        return measured(digests, key, key, Fmt.TIME, lambda one: _of_ledger(one, key), needs=needs)
    raise UsageError(
        f"no metric is called {key!r}",
        why="near ones are " + near_matches(key, metric_keys(digests)),
        hint="see docs/gate.md for all of them",
    )


def both(
    before: Sequence[Digest], after: Sequence[Digest], key: str
) -> tuple[ComparedQuantity, ComparedQuantity]:
    """Give a quantity of either side."""
    return quantity(before, key), quantity(after, key)


def unmatched(pair: tuple[ComparedQuantity, ComparedQuantity], digests: Sequence[Digest]) -> str:
    """Say that a pattern matches nothing on either side: that may be meant, or be misspelt."""
    if any(one.found for one in pair):
        return ""
    kind, _, pattern = pair[1].key.partition(":")
    names = names_of(kind, digests)
    near = f", names are like {near_matches(pattern, names)}" if names else ""
    return f"matches nothing in any capture{near}"


# Keys --------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def entries() -> tuple[str, ...]:
    """List every entry that a ledger may have."""
    compute = [f"{COMPUTE}/{category}" for category in CATEGORIES if category != COMMUNICATION]
    copy = [f"{COPY}/{kind}" for kind in _COPY_KINDS]
    return (*compute, GRAPH, *copy, COMMUNICATION, *(cause.entry for cause in IdleCause))


def metric_keys(digests: Sequence[Digest] = ()) -> list[str]:
    """List keys that mean something, without patterns; of the ledger those of the captures too."""
    every = dict.fromkeys((*LIST, COMPUTE, COPY, *entries(), *_ledgers(digests)))
    return [*every, *(f"phase:{phase}" for phase in PHASES), *(f"finding:{r}" for r in rules())]


def _ledgers(digests: Iterable[Digest]) -> list[str]:
    return list(dict.fromkeys(entry for digest in digests for entry, _ in digest.entries()))


def _is_part(entry: str, key: str) -> bool:
    """Tell whether an entry counts for a key: itself, or the group it is of."""
    return bool(key) and f"{entry}/".startswith(f"{key}/")


# Values ------------------------------------------------------------------------------------------


def _of_ledger(digest: Digest, key: str) -> MetricValues:
    return summed((ns for entry, ns in digest.entries() if _is_part(entry, key)), digest)


def _busy(digest: Digest) -> MetricValues:
    return summed((ns for entry, ns in digest.entries() if not _is_part(entry, IDLE)), digest)


def _seen(digest: Digest, series: Sequence[Sequence[float]]) -> MetricValues | None:
    """Sum up what kernels do; None where CUDA graphs hide some of them."""
    return None if GRAPH in digest.ledger else summed(series, digest)


def _bytes(digest: Digest, *, up: bool) -> MetricValues | None:
    """Sum the bytes of copies from the host, or to it; what the driver pages in is none."""
    if "copies" in digest.missing and not digest.copies:
        return None
    mine = [c.bytes for c in digest.copies if crosses(c.operation, up=up)]
    return summed(mine, digest)


def crosses(operation: str, *, up: bool) -> bool:
    """Tell whether a copy is from the host to a GPU, or back; paging by the driver is neither."""
    if operation.startswith(_PAGED):
        return False
    source, _, target = operation.partition("-to-")
    ends = (source, target) if up else (target, source)
    return ends[0] == "Host" and ends[1] not in ("", "Host")


def _memory_peak(digest: Digest) -> float | None:
    return float(max(digest.memory_peak.values())) if digest.memory_peak else None


def _findings(digest: Digest) -> float | None:
    return None if "findings" in digest.missing else float(len(digest.findings))


def _period(digest: Digest) -> MetricValues:
    return summed((digest.step_ns, digest.between_ns), digest)


_METRICS: dict[str, tuple[str, Fmt, Callable[[Digest], MetricValues | float | None]]] = {
    "step_time": ("Step time", Fmt.TIME, lambda d: np.array(d.step_ns, float)),
    "step_period": ("Step to step", Fmt.TIME, _period),
    "between_steps": ("Between steps", Fmt.TIME, lambda d: np.array(d.between_ns, float)),
    "kernel_time": ("Kernel time", Fmt.TIME, lambda d: _seen(d, [d.kernel_ns])),
    "busy": ("GPU busy", Fmt.TIME, _busy),
    "idle": ("GPU idle", Fmt.TIME, lambda d: _of_ledger(d, IDLE)),
    "launches": ("Kernels", Fmt.COUNT, lambda d: _seen(d, [k.calls for k in d.kernels])),
    "memory_peak": ("Memory peak", Fmt.BYTES, _memory_peak),
    "h2d_bytes": ("Copied to GPU", Fmt.BYTES, lambda d: _bytes(d, up=True)),
    "d2h_bytes": ("Copied to host", Fmt.BYTES, lambda d: _bytes(d, up=False)),
    "findings": ("Findings", Fmt.COUNT, _findings),
}
_TIMES = ("step_time", "step_period", "between_steps", "kernel_time", "launches")
_NEEDS = {
    **dict.fromkeys(_TIMES, (KERNELS,)),  # a step ends when its GPU work is done
    **dict.fromkeys(("busy", "idle"), (KERNELS, COPIES)),
    "findings": (KERNELS, COPIES, API),
    **dict.fromkeys(("h2d_bytes", "d2h_bytes"), (COPIES,)),
}
"""Sources that a metric is summed over: where one was lost, the metric is missing."""


def _entry_needs(key: str) -> tuple[str, ...]:
    """Name the sources that an entry of the ledger, or a group of entries, is made of."""
    if key == COPY:
        return (COPIES, MEMSETS)
    if key == _MEMSET:
        return (MEMSETS,)
    if key.startswith(f"{COPY}/"):
        return (COPIES,)
    return (KERNELS, COPIES, API) if _is_part(key, IDLE) else (KERNELS,)


_MEMSET = f"{COPY}/memset"
_PART_OF = {
    "h2d_bytes": "copies",
    "d2h_bytes": "copies",
    "kernel_time": "graph",
    "launches": "graph",
}
