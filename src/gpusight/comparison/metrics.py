"""Quantities of captures by name: what `compare` lists and what `gate --max` limits.

| key | what |
|---|---|
| `step_time` `step_period` `between_steps` | a step; from one step to the next; what lies between |
| `busy` `idle` | GPU time at work, or not; mean over GPUs; they sum to `step_period` |
| `compute/matmul` `copy/h2d` `idle/input` … | an entry of the ledger; `compute`, `copy`: a group |
| `kernel_time` `launches` | durations and number of kernels of a step, summed over GPUs |
| `h2d_bytes` `d2h_bytes` `memory_peak` | bytes copied; bytes in use at once on one GPU |
| `findings` | how many things `diagnose` finds |
| `kernel:GLOB` `phase:NAME` | GPU time of kernels of a step, or of a phase |
| `range:GLOB` `api:GLOB` | host time inside ranges, or API calls |
| `range_gpu:GLOB` | GPU time of what ranges launched |
| `finding:RULE` | time a step that fixing it would give back; 0 where it is not found |

Kernels and phases are of the steps alone; ledger, ranges, calls and copies are from one step to the
next, so that input that is loaded between steps counts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analyses.completeness import COPIES, KERNELS, MEMSETS
from gpusight.analyses.ledger.causes import IDLE, Cause
from gpusight.analyses.ledger.labels import COMMUNICATION, COMPUTE, COPY, GRAPH
from gpusight.analyses.select import near_matches
from gpusight.analyses.steps.phase_names import PHASES
from gpusight.comparison.patterns import PATTERNS, names_of, rules
from gpusight.comparison.quantities import API, Quantity, changes, measured, summed
from gpusight.errors import UsageError
from gpusight.model.kernel_names import CATEGORIES
from gpusight.result import Fmt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from gpusight.comparison.digest import Digest

    Floats = NDArray[np.float64]

__all__ = [
    "LIST",
    "Quantity",
    "both",
    "changes",
    "crosses",
    "entries",
    "metric_keys",
    "quantity",
    "unmatched",
]

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
_LONGEST_NAME = 2_000
"""What a pattern looks at: a hostile name of a megabyte could keep a regex busy for hours."""


# Asking ------------------------------------------------------------------------------------------


def quantity(digests: Sequence[Digest], key: str) -> Quantity:
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


def both(before: Sequence[Digest], after: Sequence[Digest], key: str) -> tuple[Quantity, Quantity]:
    """Give a quantity of either side."""
    return quantity(before, key), quantity(after, key)


def unmatched(pair: tuple[Quantity, Quantity], digests: Sequence[Digest]) -> str:
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
    return (*compute, GRAPH, *copy, COMMUNICATION, *(cause.entry for cause in Cause))


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


def _of_ledger(digest: Digest, key: str) -> Floats:
    return summed((ns for entry, ns in digest.entries() if _is_part(entry, key)), digest)


def _busy(digest: Digest) -> Floats:
    return summed((ns for entry, ns in digest.entries() if not _is_part(entry, IDLE)), digest)


def _seen(digest: Digest, series: Sequence[Sequence[float]]) -> Floats | None:
    """Sum up what kernels do; None where CUDA graphs hide some of them."""
    return None if GRAPH in digest.ledger else summed(series, digest)


def _bytes(digest: Digest, *, up: bool) -> Floats | None:
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


def _period(digest: Digest) -> Floats:
    return summed((digest.step_ns, digest.between_ns), digest)


_METRICS: dict[str, tuple[str, Fmt, Callable[[Digest], Floats | float | None]]] = {
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
