"""How rules write amounts per step and name locations, and what is code of libraries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.ledger.idle_contributors import RECORD
from gpusight.naming.kernel_patterns import LIBRARY_KERNELS
from gpusight.rules.context import memoize
from gpusight.rules.rule import FindingLocation
from gpusight.units import format_share

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext


MAX_LOCATIONS_SHOWN = 5
_MAX_NAME_LENGTH = 40
"""Of a location within a sentence."""
TITLE_NAME_LENGTH = 20
"""The same for titles."""


def title_share(share: float) -> str:
    """Format a share for a title: `9.2%`, `78%`."""
    return f"{share:.0%}" if share >= 0.0995 else format_share(share)


def summed_locations(
    rows: pl.DataFrame, kind: str, column: str, ns: str = "duration_ns"
) -> list[FindingLocation]:
    """Sum rows by a column of names, the largest first; rows without a name are dropped."""
    sums = (
        rows.filter(pl.col(column).is_not_null())
        .group_by(pl.col(column).cast(pl.String).alias("name"), maintain_order=True)
        .agg(pl.col(ns).sum().alias("ns"), pl.len().alias("count"))
        .sort("ns", descending=True, maintain_order=True)
        .head(MAX_LOCATIONS_SHOWN)
    )
    return [
        FindingLocation(kind, name, float(total), count) for name, total, count in sums.iter_rows()
    ]


def called_from(
    context: RuleContext, rows: pl.DataFrame, ns: str = "duration_ns"
) -> dict[str, list[FindingLocation]]:
    """Return where calls or GPU activities come from, by kind, the largest first."""
    rows = rows.with_columns(inner_range(context))
    return {kind: summed_locations(rows, kind, kind, ns) for kind in ("site", "operator", "range")}


def inner_range(context: RuleContext) -> pl.Expr:
    """Return the range of rows, without those of the steps themselves."""
    steps = [step.name for step in context.focus.steps]
    name = pl.col("range").cast(pl.String).str.replace(RECORD, "")
    inner = pl.when(~name.is_in(steps)).then(name)
    family = inner.str.replace_all(r"\d+", "#")
    # Names that only differ by numbers are written as one: `layer #`.
    return pl.when(inner.n_unique().over(family) > 1).then(family).otherwise(inner).alias("range")


def named(
    where: tuple[FindingLocation, ...], *kinds: str, most: int = 2, length: int = _MAX_NAME_LENGTH
) -> str:
    """Name locations of some kinds within a sentence: "`data`, `collate` and `to`"."""
    # Of a long name, the beginning and the end are kept.
    half = length // 2
    names = [w.name for w in where if w.kind in kinds][:most]
    *others, last = [
        quoted_name(n if len(n) <= length else f"{n[:half]}…{n[1 - half :]}") for n in names
    ] or [""]
    return f"{', '.join(others)} and {last}" if others else last


def quoted_name(name: str) -> str:
    """Quote a name of a capture; a backtick in it would end the quotation."""
    return "`" + name.replace("`", "'") + "`"


def largest(*groups: list[FindingLocation]) -> tuple[FindingLocation, ...]:
    """Choose the locations to show: the largest of each kind, then the largest of all."""
    firsts = [group[0] for group in groups if group]
    others = sorted((w for group in groups for w in group[1:]), key=lambda w: -(w.ns or 0))
    chosen = (firsts + others)[:MAX_LOCATIONS_SHOWN]
    return tuple(sorted(chosen, key=lambda w: -(w.ns or 0)))


# Training and libraries ---------------------------------------------------------------------------


_TRAINING_PHASES = ("backward", "optimizer")
_BACKWARD_KERNELS = r"(?i)bwd|backward|dgrad|wgrad"


@memoize
def is_training(context: RuleContext) -> bool:
    """Return whether the sample has a backward pass or an optimizer step."""
    phase, category = pl.col("phase").cast(pl.String), pl.col("category")
    trains = (
        phase.is_in(_TRAINING_PHASES)
        | (category == "optimizer")
        | pl.col("label").str.contains(_BACKWARD_KERNELS)
    )
    return bool(context.ops.select(trains.fill_null(value=False).any()).item())


_LIBRARY_DOMAINS = re.compile(
    r"(?i)^(?:lib)?(?:cccl|cub|thrust|cudf|rmm|raft|cuml|cugraph|cuvs|nvcomp|nccl|cublas(?:lt)?"
    r"|cudnn|cusparse|cusolver|cufft|cutensor|dali|tensorrt)(?:_python)?$"
)
_LIBRARY_RANGES = re.compile(
    r"(?i)^(?:cub|thrust|cudf|rmm|raft|cuml|cugraph|cuvs|nvcomp)::"
    r"|^(?:cublas|cudnn|cusparse|cusolver|cufft|cutensor|nccl)[A-Z_:]"
)


_FRAMEWORK_RANGES = re.compile(
    r"(?:aten|autograd|c10d?|torch|prims?|inductor)::|nccl:|record_param_comms|Optimizer\.|"
    r"ProfilerStep|XlaModule|TSL:|Pjit"
)


@memoize
def library_ranges(context: RuleContext) -> frozenset[str]:
    """Return the names of ranges that a library opens inside its own functions."""
    if not context.trace.has("ranges"):
        return frozenset()
    pairs = context.trace.table("ranges", ["name", "domain"]).unique()
    texts = pairs.select(pl.col("name", "domain").cast(pl.String)).iter_rows()
    names = {
        name
        for name, domain in texts
        if name and (_LIBRARY_RANGES.match(name) or _LIBRARY_DOMAINS.match(domain or ""))
    }
    return frozenset(names | {re.sub(r"\d+", "#", name) for name in names})


def own_locations(
    context: RuleContext, where: tuple[FindingLocation, ...]
) -> tuple[FindingLocation, ...]:
    """Return the ranges of the program: those of libraries and frameworks are not its code."""
    internal = library_ranges(context)
    return tuple(
        w
        for w in where
        if w.kind == "range" and w.name not in internal and not _FRAMEWORK_RANGES.match(w.name)
    )


def mostly_in_libraries(context: RuleContext, rows: pl.DataFrame) -> bool:
    """Return whether most of these calls or activities come from ranges of libraries."""
    inside = rows["range"].cast(pl.String).is_in(list(library_ranges(context)))
    return bool(rows.height) and 2 * int(inside.fill_null(value=False).sum()) > rows.height


def library_kernels(rows: pl.DataFrame) -> bool:
    """Return whether most of the time of these kernels is in those of libraries and frameworks."""
    by_library = pl.col("name").str.contains(LIBRARY_KERNELS).fill_null(value=False)
    library_ns = int(rows.filter(by_library)["duration_ns"].sum())
    return 2 * library_ns > int(rows["duration_ns"].sum())
