"""The kernels of a digest: by the range that they were launched in, and by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.attribution.attribute import attribute
from gpusight.analyses.select import GPU_WORK
from gpusight.analyses.statistics import names_of
from gpusight.comparison.blocks import ranked, rounded, rounded_parts
from gpusight.comparison.digest import Kernels
from gpusight.comparison.naming import NO_NAME, family, plain
from gpusight.model.kernel_names import classify

if TYPE_CHECKING:
    from gpusight.comparison.blocks import Blocks, Ints
    from gpusight.comparison.digest import Series
    from gpusight.model.trace import Trace

MOST_KERNELS = 400
MOST_LAUNCHES = 20_000
"""Launches of a step whose order is kept."""
_KERNELS = GPU_WORK.index("kernels")
_NO_RANGE = 0
"""Number of the family of kernels that were launched outside all ranges."""


@dataclass(frozen=True)
class KernelRows:
    """Kernels, and the order in which one step launches them."""

    rows: tuple[Kernels, ...]
    order: tuple[int, ...]
    kernel_ns: Series


def kernel_rows(trace: Trace, blocks: Blocks, work: pl.DataFrame) -> KernelRows:
    """Sum kernels up by range and name, the most expensive first."""
    own = work.filter(pl.col("table") == _KERNELS)
    ns, step = (own[c].to_numpy() for c in ("ns", "step"))
    kernel_ns = rounded(blocks.sums(own, np.zeros_like(ns), "ns", 1)[0])
    if own.is_empty():
        return KernelRows((), (), kernel_ns)
    names = trace.table("kernels", ["name"])["name"]
    family_of, families = _families(trace, own["row"])
    texts = names_of(names)
    name_of = names.to_physical().cast(pl.Int64).gather(own["row"]).to_numpy()
    groups = ranked(family_of * len(texts) + name_of, ns, MOST_KERNELS)
    times = rounded_parts(blocks.sums(own, groups.code, "ns", groups.count), kernel_ns)
    calls = blocks.sums(own, groups.code, None, groups.count)
    known = [divmod(group, len(texts)) for group in groups.groups.tolist()]
    series = [(times[at], rounded(calls[at], 3)) for at in range(groups.count)]
    # The rest has no name: there is one more series than there are names.
    rows = [
        _row(families[of_range], texts[of_name], *own_series)
        for (of_range, of_name), own_series in zip(known, series, strict=False)
    ]
    rows += [_rest(*left) for left in series[len(known) :]]
    return KernelRows(tuple(rows), _order(groups.code[step == blocks.median_step]), kernel_ns)


def _families(trace: Trace, rows: pl.Series) -> tuple[Ints, list[str | None]]:
    """Number the family of the innermost range around each launch, and name the families."""
    causes = attribute(trace).frames["kernels"]["range"].gather(rows)
    names = trace.table("ranges", ["name"])["name"]
    texts = family(pl.Series(names_of(names), dtype=pl.String))
    known = texts.unique().sort()
    of_name = known.search_sorted(texts).cast(pl.Int64) + 1
    code = of_name.gather(names.to_physical().gather(causes)).fill_null(_NO_RANGE)
    return code.to_numpy(), [None, *known]


def _row(within: str | None, name: str, ns: Series, calls: Series) -> Kernels:
    known = classify(name)
    return Kernels(
        name=plain(name) or NO_NAME,
        short=plain(known.short),
        category=str(known.category),
        range=None if within is None else plain(within) or NO_NAME,
        ns=ns,
        calls=calls,
    )


def _rest(ns: Series, calls: Series) -> Kernels:
    return Kernels(name="", short="", category="other", range=None, ns=ns, calls=calls)


def _order(launches: Ints) -> tuple[int, ...]:
    return () if len(launches) > MOST_LAUNCHES else tuple(launches.tolist())
