"""Which operators count, the cost of each call, its GPU time and the precision it ran with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import DURATION, names_of, share_of
from gpusight.analysis.attribution.nested_intervals import NONE
from gpusight.analysis.attribution.work_causes import FrameworkOperators, selected_work
from gpusight.analysis.flops.operator_cost import cost_of, has_formula
from gpusight.analysis.flops.operator_inputs import OperatorCost, UnknownCost
from gpusight.naming.kernel_names import classify

if TYPE_CHECKING:
    from typing import TypeAlias

    from gpusight.analysis.attribution.nested_intervals import NestedIntervals
    from gpusight.analysis.attribution.work_causes import WorkSelection
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace

    Entry: TypeAlias = "OperatorCost | UnknownCost"


_INPUTS = ["name", "shapes", "types", "concrete", "strides"]
_ARITHMETIC = ("matmul", "convolution", "attention")
"""Categories of kernels that do an operator's arithmetic."""
_SPEEDS = {
    "fp64": 1, "fp32": 2, "tf32": 3, "bf16": 4, "fp16": 4, "fp8": 5, "int8": 5, "fp4": 6,
}  # fmt: skip
"""Precisions in the order of their peaks on one kind of unit; equal numbers are equally fast."""
_MIN_ARITHMETIC_SHARE = 0.1
"""Kernels with less of a call's arithmetic time do not decide its precision."""
GENERATED = "generated code"
_NO_OPERATOR = "outside recorded operators"
_WHY = (
    (_ARITHMETIC, "no formula for it is known"),
    (("generated",), GENERATED),
    (("communication",), "communication"),
)
"""Why an operator is not counted, by the categories of its kernels."""
_OTHER_KIND = "other kind of operator"


@dataclass(frozen=True)
class CountedOperators:
    """The operator calls whose FLOPs are counted, and the GPU activities of no such call."""

    entries: list[Entry]
    """Every distinct cost, or the reason why it is not known."""
    names: list[str]
    """The operator of each entry."""
    calls: pl.DataFrame
    """A row for each counted call: `op` (row in `cpu_ops`), `entry`, `start_ns`, `process`,
    `device`, `gpu_ns`; `precision` and `tensor_core` from the names of its kernels, of the fastest
    where they differ, and whether they do (`mixed`)."""
    rest: pl.DataFrame
    """GPU activities of no such call: `name` (null outside operators), `why`, `gpu_ns`,
    `launches`, and `arithmetic_ns`, the part of kernels that would have to be counted."""
    work: pl.DataFrame
    """All selected GPU activities: `launched_ns`, `end_ns`, `process`, `device`, `gpu_ns`."""
    notes: tuple[str, ...]

    @property
    def gpu_ns(self) -> int:
        """The GPU time of all selected activities."""
        return int(self.work["gpu_ns"].sum())

    @property
    def flops(self) -> pl.Series:
        """The FLOPs of each entry; 0 where they are not known."""
        known = [e.flops if isinstance(e, OperatorCost) else 0 for e in self.entries]
        return pl.Series(known, dtype=pl.Float64)

    def cost(self, entry: int) -> OperatorCost:
        """Return the cost of a counted call."""
        cost = self.entries[entry]
        assert isinstance(cost, OperatorCost), "only calls with a cost are counted"
        return cost


def count_ops(scope: WorkSelection) -> CountedOperators:
    """Find the operator calls to count behind the selected GPU activities."""
    trace = scope.trace
    entries, names, entry_of = _entries(trace)
    nested = FrameworkOperators(trace).nested
    nearest = nested.nearest_rows(entry_of >= 0)
    owners = _owners(nested, entries, entry_of)
    selected = selected_work(scope)
    calls = trace.table("api_calls", ["start_ns", "process"])
    ops = trace.table("cpu_ops", ["start_ns", "process"])
    call, op = pl.col("call"), pl.col("op")
    kernels = selected.frame.filter(pl.col("kind") == "kernel").select("kind", "label").unique()
    known_names = [classify(selected.labels[label]) for label in kernels["label"]]
    classified = kernels.with_columns(
        pl.Series("category", [name.category for name in known_names], pl.String),
        pl.Series("precision", [name.precision for name in known_names], pl.String),
        pl.Series("tensor_core", [name.tensor_core for name in known_names], pl.Boolean),
    )
    work = (
        selected.frame.select("start_ns", "end_ns", "device", "kind", "label", "call", "op")
        .with_columns(
            DURATION.alias("gpu_ns"),
            pl.coalesce(_at(calls["start_ns"], call), _at(ops["start_ns"], op), "start_ns").alias(
                "launched_ns"
            ),
            pl.coalesce(_at(calls["process"], call), _at(ops["process"], op)).alias("process"),
            _null_if_negative(_at(pl.Series(owners), op)).alias("owner"),
            _null_if_negative(_at(pl.Series(nearest), op)).alias("known"),
        )
        .join(classified, on=["kind", "label"], how="left", maintain_order="left")
    )
    return CountedOperators(
        entries,
        names,
        _calls(trace, work, entries, entry_of),
        _rest(trace, work, entries, names, entry_of),
        work.select("launched_ns", "end_ns", "process", "device", "gpu_ns"),
        selected.notes,
    )


# Costs --------------------------------------------------------------------------------------------


def _entries(trace: Trace) -> tuple[list[Entry], list[str], Ints]:
    """Return each distinct cost, its operator, and which one each operator has (-1 for none)."""
    ops = trace.table("cpu_ops", _INPUTS)
    names = names_of(ops["name"])
    codes = [code for code, name in enumerate(names) if has_formula(name)]
    rows = (
        ops.lazy()
        .select(pl.col(_INPUTS).to_physical())
        .with_row_index("row")
        .filter(pl.col("name").is_in(codes))
        .collect()
    )
    distinct = rows.select(_INPUTS).unique(maintain_order=True).with_row_index("entry")
    matched = rows.join(distinct, on=_INPUTS, nulls_equal=True)
    entry_of = np.full(ops.height, NONE, dtype=np.int64)
    entry_of[matched["row"].to_numpy()] = matched["entry"].to_numpy()
    texts = [names_of(ops[column]) for column in _INPUTS]
    entries: list[Entry] = []
    entry_names: list[str] = []
    for key in distinct.select(_INPUTS).iter_rows():
        name, *inputs = (
            None if code is None else text[code] for text, code in zip(texts, key, strict=True)
        )
        cost = cost_of(str(name), *inputs)
        assert cost is not None, "operators without a formula were left out"
        entries.append(cost)
        entry_names.append(str(name))
    return entries, entry_names, entry_of


def _owners(nested: NestedIntervals, entries: list[Entry], entry_of: Ints) -> Ints:
    """Return, for each operator, the counted one that its launches belong to; -1 for none.

    Of counted operators inside each other the innermost is counted; lookups and the others apart.
    """
    families = [entry.family if isinstance(entry, OperatorCost) else "" for entry in entries]
    families.append("")  # of operators without an entry
    known = np.array([family != "" for family in families])[entry_of]
    is_lookup = np.array([family == "embedding" for family in families])[entry_of]
    encloses_other = np.zeros(len(entry_of), dtype=np.bool_)
    for marked in (known & ~is_lookup, known & is_lookup):
        placed = marked[nested.rows]
        inner = np.flatnonzero(placed & (nested.outer >= 0))
        around = nested.nearest(placed)[nested.outer[inner]]
        encloses_other[nested.rows_at(np.unique(around[around >= 0]))] = True
    nearest = nested.nearest_rows(known)
    return np.where((nearest >= 0) & ~encloses_other[nearest], nearest, NONE)


# GPU activities -----------------------------------------------------------------------------------


def _at(values: pl.Series, rows: pl.Expr) -> pl.Expr:
    """Return values by row; null where the row is."""
    return pl.lit(values).gather(rows) if len(values) else pl.lit(None, values.dtype)


def _null_if_negative(rows: pl.Expr) -> pl.Expr:
    return pl.when(rows >= 0).then(rows)


def _calls(trace: Trace, work: pl.DataFrame, entries: list[Entry], entry_of: Ints) -> pl.DataFrame:
    """Sum the activities of each counted call, with the precision and the unit it ran in."""
    of_tensors = pl.Series([getattr(e, "precision", None) for e in entries], dtype=pl.String)
    counted = work.filter(pl.col("owner").is_not_null()).with_columns(
        _at(of_tensors, _at(pl.Series(entry_of), pl.col("owner"))).alias("of_tensors")
    )
    ops = trace.table("cpu_ops", ["start_ns", "process"])
    return (
        counted.group_by("owner", maintain_order=True)
        .agg(pl.col("gpu_ns").sum(), pl.col("device").first())
        .join(_arithmetic(counted), on="owner", how="left", maintain_order="left")
        .with_columns(
            pl.col("mixed").fill_null(value=False),
            _at(pl.Series(entry_of), pl.col("owner")).alias("entry"),
            _at(ops["start_ns"], pl.col("owner")).alias("start_ns"),
            _at(ops["process"], pl.col("owner")).alias("process"),
        )
        .rename({"owner": "op"})
    )


def _arithmetic(counted: pl.DataFrame) -> pl.DataFrame:
    """Find the precision and unit that each call computed in, and whether in several (`mixed`).

    Of several the fastest decides: the FLOPs of each kernel are not known, and the call could reach
    more than the peak of a slower one.
    """
    known = pl.col("tensor_core").is_not_null()
    share = share_of(pl.col("gpu_ns"), pl.col("gpu_ns").sum().over("owner", known))
    named, of_tensors = (
        pl.col(column).replace_strict(_SPEEDS, default=None, return_dtype=pl.Int64)
        for column in ("precision", "of_tensors")
    )
    # Tensor Cores before all others, then narrower formats before wider ones.
    speed = pl.coalesce(named, of_tensors, 0)
    speed += pl.when("tensor_core").then(len(_SPEEDS)).otherwise(0)
    return (
        counted.filter(pl.col("category").is_in(_ARITHMETIC))
        .group_by("owner", "precision", "tensor_core", "of_tensors", maintain_order=True)
        .agg(pl.col("gpu_ns").sum())
        .with_columns(pl.when(known & (share >= _MIN_ARITHMETIC_SHARE)).then(speed).alias("speed"))
        .with_columns((pl.col("speed").drop_nulls().n_unique().over("owner") > 1).alias("mixed"))
        # Helper kernels, such as a split-K reduction, do not name a unit; next to a small GEMM
        # they can take longer than the GEMM itself.
        .sort(known, "speed", "gpu_ns", descending=True, nulls_last=True, maintain_order=True)
        .unique("owner", keep="first")
        .drop("gpu_ns", "speed", "of_tensors")
    )


def _rest(
    trace: Trace, work: pl.DataFrame, entries: list[Entry], names: list[str], entry_of: Ints
) -> pl.DataFrame:
    """Sum the activities of no counted call, by operator and why it is not counted."""
    reasons = [entry.reason if isinstance(entry, UnknownCost) else None for entry in entries]
    ops = trace.table("cpu_ops", ["name"])["name"].cast(pl.String)
    entry = _null_if_negative(_at(pl.Series(entry_of), pl.col("known")))
    reason = _at(pl.Series(reasons, dtype=pl.String), entry)
    entry_name = _at(pl.Series(names, dtype=pl.String), entry)
    operator = _at(ops, pl.col("op"))
    category = pl.col("category")
    return (
        work.filter(pl.col("owner").is_null())
        .with_columns(
            reason.alias("reason"),
            pl.when(reason.is_not_null()).then(entry_name).otherwise(operator).alias("name"),
        )
        .group_by("name", "reason", maintain_order=True)
        .agg(
            pl.col("gpu_ns").sum(),
            pl.len().cast(pl.Int64).alias("launches"),
            pl.col("gpu_ns").filter(category.is_in(_ARITHMETIC)).sum().alias("arithmetic_ns"),
            *(category.is_in(categories).any().alias(why) for categories, why in _WHY),
        )
        .with_columns(
            pl.coalesce(
                "reason",
                pl.when(pl.col("name").is_null()).then(pl.lit(_NO_OPERATOR)),
                *(pl.when(pl.col(why)).then(pl.lit(why)) for _, why in _WHY),
                pl.lit(_OTHER_KIND),
            ).alias("why")
        )
        .select("name", "why", "gpu_ns", "launches", "arithmetic_ns")
        .sort("gpu_ns", descending=True, maintain_order=True)
    )
