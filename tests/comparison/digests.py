"""Digests built by hand: the ledger that matters to a test, everything else follows from it.

digest({"compute/matmul": [10, 10.1], "idle/launching": [2, 2.2]})   # milliseconds a step
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gpusight.comparison.digest import Digest, KernelDigest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MS = 1e6
JITTER = (0.99, 1.0, 1.01, 1.0)


def digest(
    ledger: Mapping[str, Sequence[float]],
    label: str = "run.sqlite",
    *,
    between: Sequence[float] = (),
    **changed: Any,
) -> Digest:
    """Give a digest with these entries, in ms, one value a step; `changed` replaces fields.

    `between` is the part of each step after it, in ms.
    """
    series = {entry: tuple(ms * MS for ms in values) for entry, values in ledger.items()}
    count = len(next(iter(series.values())))
    step = tuple(sum(values[at] for values in series.values()) for at in range(count))
    gap = tuple(ms * MS for ms in between) or (0.0,) * count
    kernels = kernels_of(series)
    made = Digest(
        label=label,
        tool="Nsight Systems 2025.3.2",
        gpus=("NVIDIA H200",),
        steps=count,
        steps_left_out=0,
        steps_found="numbered ranges, such as 'step_0'",
        blocks=(1,) * count,
        step_ns=step,
        between_ns=gap,
        median_ns=sorted(step)[count // 2],
        min_ns=min(step),
        max_ns=max(step),
        ledger=series,
        kernel_ns=tuple(sum(k.ns[at] for k in kernels) for at in range(count)),
        phases={},
        kernels=kernels,
        order=tuple(range(len(kernels))),
        ranges=(),
        api=(),
        copies=(),
        memory_peak={},
        findings=(),
        missing={"memory_peak": "no memory events"},
        notes=(),
    )
    return msgspec.structs.replace(made, **changed)


def steady(
    label: str = "run.sqlite",
    *,
    between: float = 0.0,
    change: Mapping[str, Any] | None = None,
    **ms: float,
) -> Digest:
    """Give a digest of four steps that differ by 1%: `compute_matmul=10` is 10 ms of that entry."""
    pauses = [between * part for part in JITTER]
    return digest(_steady(ms), label, between=pauses, **(change or {}))


def _steady(ms: Mapping[str, float]) -> dict[str, list[float]]:
    return {key.replace("_", "/"): [value * part for part in JITTER] for key, value in ms.items()}


def kernels_of(series: Mapping[str, tuple[float, ...]]) -> tuple[KernelDigest, ...]:
    """Give one kernel for each entry of computation, launched four times a step."""
    return tuple(
        kernel(entry.removeprefix("compute/"), ns)
        for entry, ns in series.items()
        if entry.startswith("compute/") and entry != "compute/graph"
    )


def kernel(
    category: str, ns: tuple[float, ...], name: str = "", calls: float = 4.0
) -> KernelDigest:
    """Give the launches of a kernel outside of ranges."""
    name = name or f"{category}_kernel"
    return KernelDigest(
        name=name, short=name, category=category, range=None, ns=ns, calls=(calls,) * len(ns)
    )
