"""Which operators count, the cost of each call, its GPU time and the precision it ran with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import DURATION, names_of, share_of
from gpusight.analysis.attribution.framework_operators import FrameworkOperators
from gpusight.analysis.attribution.nested_intervals import NONE
from gpusight.analysis.attribution.work_causes import selected_work
from gpusight.analysis.flops.operator_cost import cost_of, has_formula
from gpusight.analysis.flops.operator_inputs import OperatorCost, UnknownCost
from gpusight.naming.kernel_names import classify

if TYPE_CHECKING:
    from typing import TypeAlias

    from gpusight.analysis.attribution.nested_intervals import Mask, NestedIntervals
    from gpusight.analysis.attribution.work_causes import SelectedWork, WorkSelection
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace

    Entry: TypeAlias = "OperatorCost | UnknownCost"


_INPUTS = ["name", "shapes", "types", "concrete", "strides"]
_ARITHMETIC = ("matmul", "convolution", "attention")
"""Categories of kernels that do an operator's arithmetic, not what goes around it."""
_SPEEDS = {
    "fp64": 1, "fp32": 2, "tf32": 3, "bf16": 4, "fp16": 4, "fp8": 5, "int8": 5, "fp4": 6,
}  # fmt: skip
"""Precisions in the order of their peaks on one kind of unit; equal numbers are equally fast."""
_LEAST_SHARE = 0.1
"""Kernels with less of a call's arithmetic than this do not decide what it ran in."""
_LOOKUP = "embedding"
GENERATED = "generated code"
_NO_OPERATOR = "outside recorded operators"
_WHY = (
    (_ARITHMETIC, "no formula for it is known"),
    (("generated",), GENERATED),
    (("communication",), "communication"),
)
"""Why the work of an operator is not counted, by the categories of its kernels."""
_OTHER_KIND = "other kind of operator"


@dataclass(frozen=True)
class CountedOperators:
    """The operators that count, and the GPU work that belongs to none of them."""

    entries: list[Entry]
    """Every different cost, or the reason why it is not known."""
    names: list[str]
    """The operator of each entry."""
    calls: pl.DataFrame
    """A row for each call that counts: `op` (row in `cpu_ops`), `entry`, `start_ns`, `process`,
    `device`, `gpu_ns`; `precision` and `tensor_core` as the names of its kernels say, of the
    fastest where they differ, and whether they do (`mixed`)."""
    rest: pl.DataFrame
    """Work that belongs to no such call: `name` (null outside operators), `why`, `gpu_ns`,
    `launches`, and `arithmetic_ns`, the part of kernels that would have to be counted."""
    work: pl.DataFrame
    """All work looked at: `launched_ns`, `end_ns`, `process`, `device`, `gpu_ns`."""
    notes: tuple[str, ...]

    @property
    def gpu_ns(self) -> int:
        """The GPU time of all work looked at."""
        return int(self.work["gpu_ns"].sum())

    @property
    def flops(self) -> pl.Series:
        """The operations of each entry; 0 where they are not known."""
        known = [e.flops if isinstance(e, OperatorCost) else 0 for e in self.entries]
        return pl.Series(known, dtype=pl.Float64)

    def cost(self, entry: int) -> OperatorCost:
        """Give the cost of a call that counts."""
        found = self.entries[entry]
        assert isinstance(found, OperatorCost), "only what has a cost counts"
        return found


def count_ops(scope: WorkSelection) -> CountedOperators:
    """Find the operators that count among the GPU work of a selection."""
    trace = scope.trace
    entries, names, entry_of = _entries(trace)
    nested = FrameworkOperators(trace).nested
    nearest = _nearest(nested, entry_of >= 0)
    owners = _owners(nested, entries, entry_of)
    chosen = selected_work(scope)
    work = _described(trace, chosen, owners, nearest)
    return CountedOperators(
        entries,
        names,
        _calls(trace, work, entries, entry_of),
        _rest(trace, work, entries, names, entry_of),
        work.select("launched_ns", "end_ns", "process", "device", "gpu_ns"),
        chosen.notes,
    )


# Costs --------------------------------------------------------------------------------------------


def _entries(trace: Trace) -> tuple[list[Entry], list[str], Ints]:
    """Work out each different cost once, and say which one each operator has; -1 for none."""
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
    found = rows.join(distinct, on=_INPUTS, nulls_equal=True)
    entry_of = np.full(ops.height, NONE, dtype=np.int64)
    entry_of[found["row"].to_numpy()] = found["entry"].to_numpy()
    texts = [names_of(ops[column]) for column in _INPUTS]
    inputs = [
        [None if code is None else text[code] for text, code in zip(texts, key, strict=True)]
        for key in distinct.select(_INPUTS).iter_rows()
    ]
    return [_entry(*texts) for texts in inputs], [str(name) for name, *_ in inputs], entry_of


def _entry(name: str | None, *inputs: str | None) -> Entry:
    cost = cost_of(str(name), *inputs)
    assert cost is not None, "operators without a formula were left out"
    return cost


# Which operator counts ----------------------------------------------------------------------------


def _nearest(nested: NestedIntervals, marked: Mask) -> Ints:
    """Find the innermost marked operator at or around each, as rows; -1 for none."""
    found = np.empty(len(marked), dtype=np.int64)
    found[nested.rows] = nested.rows_at(nested.nearest(marked[nested.rows]))
    return found


def _owners(nested: NestedIntervals, entries: list[Entry], entry_of: Ints) -> Ints:
    """Give, for each operator, the one that counts for what it launches; -1 for none."""
    families = [entry.family if isinstance(entry, OperatorCost) else "" for entry in entries]
    lookup = np.array([family == _LOOKUP for family in (*families, "")], dtype=np.bool_)[entry_of]
    known = np.array([family != "" for family in (*families, "")], dtype=np.bool_)[entry_of]
    outer = np.zeros(len(entry_of), dtype=np.bool_)
    for marked in (known & ~lookup, known & lookup):
        outer[_enclosing(nested, marked)] = True
    nearest = _nearest(nested, known)
    return np.where((nearest >= 0) & ~outer[nearest], nearest, NONE)


def _enclosing(nested: NestedIntervals, marked: Mask) -> Ints:
    """Give the rows of marked operators that have another marked one inside."""
    placed = marked[nested.rows]
    inner = np.flatnonzero(placed & (nested.outer >= 0))
    around = nested.nearest(placed)[nested.outer[inner]]
    return nested.rows_at(np.unique(around[around >= 0]))


# GPU work -----------------------------------------------------------------------------------------


def _described(trace: Trace, chosen: SelectedWork, owners: Ints, nearest: Ints) -> pl.DataFrame:
    """Add to each piece of work what launched it when, what it is, and for which call it counts."""
    calls = trace.table("api_calls", ["start_ns", "process"])
    ops = trace.table("cpu_ops", ["start_ns", "process"])
    call, op = pl.col("call"), pl.col("op")
    return (
        chosen.frame.select("start_ns", "end_ns", "device", "kind", "label", "call", "op")
        .with_columns(
            DURATION.alias("gpu_ns"),
            pl.coalesce(_at(calls["start_ns"], call), _at(ops["start_ns"], op), "start_ns").alias(
                "launched_ns"
            ),
            pl.coalesce(_at(calls["process"], call), _at(ops["process"], op)).alias("process"),
            _known(_at(pl.Series(owners), op)).alias("owner"),
            _known(_at(pl.Series(nearest), op)).alias("known"),
        )
        .join(_classes(chosen), on=["kind", "label"], how="left", maintain_order="left")
    )


def _at(values: pl.Series, rows: pl.Expr) -> pl.Expr:
    """Take values by row; null where the row is."""
    return pl.lit(values).gather(rows) if len(values) else pl.lit(None, values.dtype)


def _known(rows: pl.Expr) -> pl.Expr:
    return pl.when(rows >= 0).then(rows)


def _classes(chosen: SelectedWork) -> pl.DataFrame:
    """Say what the kernels are, from their names; each is looked at once."""
    kernels = chosen.frame.filter(pl.col("kind") == "kernel").select("kind", "label").unique()
    known = [classify(chosen.labels[label]) for label in kernels["label"]]
    return kernels.with_columns(
        pl.Series("category", [k.category for k in known], pl.String),
        pl.Series("precision", [k.precision for k in known], pl.String),
        pl.Series("tensor_core", [k.tensor_core for k in known], pl.Boolean),
    )


def _calls(trace: Trace, work: pl.DataFrame, entries: list[Entry], entry_of: Ints) -> pl.DataFrame:
    """Sum the work of each call that counts, with the precision and the unit it ran in."""
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
    """Tell in which precision and on which unit each call computed, and whether in several.

    Of several the fastest decides: the operations that each did are not known, and the peak of a
    slower one is not the most that the call could reach.
    """
    told = pl.col("tensor_core").is_not_null()
    share = share_of(pl.col("gpu_ns"), pl.col("gpu_ns").sum().over("owner", told))
    return (
        counted.filter(pl.col("category").is_in(_ARITHMETIC))
        .group_by("owner", "precision", "tensor_core", "of_tensors", maintain_order=True)
        .agg(pl.col("gpu_ns").sum())
        .with_columns(pl.when(told & (share >= _LEAST_SHARE)).then(_speed()).alias("speed"))
        .with_columns((pl.col("speed").drop_nulls().n_unique().over("owner") > 1).alias("mixed"))
        # Helpers, such as what adds up the parts of a split product, do not say what units they
        # use; beside a small product they can take longer than the product itself.
        .sort(told, "speed", "gpu_ns", descending=True, nulls_last=True, maintain_order=True)
        .unique("owner", keep="first")
        .drop("gpu_ns", "speed", "of_tensors")
    )


def _speed() -> pl.Expr:
    """Rank what kernels run in: on tensor cores before all others, then narrower before wider."""
    named, of_tensors = (
        pl.col(column).replace_strict(_SPEEDS, default=None, return_dtype=pl.Int64)
        for column in ("precision", "of_tensors")
    )
    return pl.coalesce(named, of_tensors, 0) + pl.when("tensor_core").then(len(_SPEEDS)).otherwise(
        0
    )


def _rest(
    trace: Trace, work: pl.DataFrame, entries: list[Entry], names: list[str], entry_of: Ints
) -> pl.DataFrame:
    """Sum the work that belongs to no call that counts, by operator and why it is not counted."""
    reasons = [entry.reason if isinstance(entry, UnknownCost) else None for entry in entries]
    ops = trace.table("cpu_ops", ["name"])["name"].cast(pl.String)
    entry = _known(_at(pl.Series(entry_of), pl.col("known")))
    told = _at(pl.Series(reasons, dtype=pl.String), entry)
    told_of = _at(pl.Series(names, dtype=pl.String), entry)
    has = [(pl.col("category").is_in(kinds).any().alias(why), why) for kinds, why in _WHY]
    return (
        work.filter(pl.col("owner").is_null())
        .with_columns(told.alias("told"), told_of.alias("told_of"))
        .with_columns(
            pl.when(pl.col("told").is_not_null())
            .then("told_of")
            .otherwise(_at(ops, pl.col("op")))
            .alias("name"),
        )
        .group_by("name", "told", maintain_order=True)
        .agg(
            pl.col("gpu_ns").sum(),
            pl.len().cast(pl.Int64).alias("launches"),
            pl.col("gpu_ns")
            .filter(pl.col("category").is_in(_ARITHMETIC))
            .sum()
            .alias("arithmetic_ns"),
            *(expression for expression, _ in has),
        )
        .with_columns(
            pl.coalesce(
                "told",
                pl.when(pl.col("name").is_null()).then(pl.lit(_NO_OPERATOR)),
                *(pl.when(pl.col(why)).then(pl.lit(why)) for _, why in has),
                pl.lit(_OTHER_KIND),
            ).alias("why")
        )
        .select("name", "why", "gpu_ns", "launches", "arithmetic_ns")
        .sort("gpu_ns", descending=True, maintain_order=True)
    )
