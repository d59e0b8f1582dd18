"""Which kernels are which part of attention: by ranges, by their order, or one kernel for all.

With ranges (see `names`), the matrix products are those launched inside the ranges of the scores
and of the final product; what else runs there is around them. Without, attention is a matrix
product, a softmax and a matrix product on one stream, with nothing but small work between.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.questions.answer import listed
from gpusight.analyses.questions.names import FINAL, PARTS, SCORES, SOFTMAX, attention_part
from gpusight.analyses.questions.passes import line_for
from gpusight.analyses.questions.spans import hold, named_ranges, outermost
from gpusight.model.kernel_names import classify
from gpusight.result import NotApplicable

if TYPE_CHECKING:
    from gpusight.analyses.questions.program import Program
    from gpusight.model.trace import Trace

AROUND, FUSED = "around", "fused"
_BETWEEN = ("elementwise", "copy", "random", "reduction", "embedding")
"""What may run between the products and softmax: scaling, masking, dropout, layout."""
_SPLIT = re.compile(r"split-k reduce")
"""Label of what adds up the parts of a product; it belongs to the product before it."""


_ORDERED = (
    "no ranges name the parts of attention: they are told by the order of kernels, a matrix "
    "product, a softmax, a matrix product"
)


@dataclass(frozen=True)
class Split:
    """The kernels of attention in the forward passes, with the part that each is."""

    trace: Trace
    kernels: pl.DataFrame
    """Those of `Program.kernels` with their `role`."""
    calls: dict[str, int]
    """How often each part ran."""
    passes: int
    """Forward passes that these are of; 0 where none are known."""
    how: str
    range_ns: dict[str, float]
    """Kernel time of one range of each part, with all that it launched; none without ranges."""

    @property
    def fused(self) -> bool:
        """Tell whether all of attention is one kernel."""
        return FUSED in self.calls


def split(program: Program) -> Split | NotApplicable:
    """Find the parts of attention."""
    known = not isinstance(program.passes, NotApplicable)
    kernels = program.forward() if known else program.kernels.filter(pl.col("part") == "other")
    if kernels.is_empty():
        where = "inside a forward pass" if known else "in what is looked at"
        return NotApplicable("attention", f"it cannot be told: no kernel was launched {where}")
    passes = program.runs
    missing: list[str] = list(PARTS)
    if program.trace.has("ranges"):
        roles, calls, range_ns = _by_ranges(program.trace, kernels)
        missing = [part for part in PARTS if part not in calls]
        if not missing:
            how = "the parts of attention are ranges of the program"
            return Split(program.trace, _with(kernels, roles), calls, passes, how, range_ns)
    roles, calls = _by_order(program, kernels)
    if SOFTMAX in calls:
        return Split(program.trace, _with(kernels, roles), calls, passes, _ORDERED, {})
    fused = kernels["category"] == "attention"
    if fused.any():
        how = "kernels of fused attention are known by their names"
        roles = pl.select(pl.when(fused).then(pl.lit(FUSED))).to_series()
        calls = {FUSED: int(fused.sum())}
        return Split(program.trace, _with(kernels, roles), calls, passes, how, {})
    return _absent(program.trace, missing)


def _with(kernels: pl.DataFrame, roles: pl.Series) -> pl.DataFrame:
    return kernels.with_columns(roles.alias("role")).filter(pl.col("role").is_not_null())


def _absent(trace: Trace, missing: list[str]) -> NotApplicable:
    lines = {
        SCORES: "computing attention scores",
        SOFTMAX: "computing softmax",
        FINAL: "final matmul",
    }
    which = listed([repr(lines[part]) for part in missing])
    if len(missing) == len(PARTS):
        reason = "no ranges name the parts of attention, and no kernels look like it"
    else:
        reason = f"no kernels were launched in a range of attention's {listed(missing)}"
    return NotApplicable("attention", reason, f"{line_for(trace, lines[missing[0]])} for {which}")


# By ranges ----------------------------------------------------------------------------------------


def _by_ranges(
    trace: Trace, kernels: pl.DataFrame
) -> tuple[pl.Series, dict[str, int], dict[str, float]]:
    """Give the role of each kernel by the range around its launch, and counts and times of ranges.

    Where ranges of parts lie in each other, softmax counts most, then the final product.
    """
    named = named_ranges(trace, attention_part)
    role = pl.lit(None, pl.String)
    calls: dict[str, int] = {}
    range_ns: dict[str, float] = {}
    for part in (SCORES, FINAL, SOFTMAX):
        held = _held(named.filter(pl.col("read") == part), kernels)
        mine = kernels.filter(held.is_not_null())
        if mine.is_empty():
            continue
        calls[part] = held.drop_nulls().n_unique()
        range_ns[part] = float(mine["duration_ns"].sum()) / calls[part]
        products = (mine["category"] == "matmul").any() and part != SOFTMAX
        own = (pl.col("category") == "matmul") if products else pl.lit(value=True)
        inside = pl.when(own).then(pl.lit(part)).otherwise(pl.lit(AROUND))
        role = pl.when(held.is_not_null()).then(inside).otherwise(role)
    return kernels.select(role.alias("role"))["role"], calls, range_ns


def _held(spans: pl.DataFrame, kernels: pl.DataFrame) -> pl.Series:
    """Give the range that each kernel was launched in, null for none."""
    if spans.is_empty():
        return pl.Series([None], dtype=pl.Int64).new_from_index(0, kernels.height)
    return hold(outermost(spans), kernels, "launch_ns")


# By order -----------------------------------------------------------------------------------------


def _by_order(program: Program, kernels: pl.DataFrame) -> tuple[pl.Series, dict[str, int]]:
    """Give roles by what runs before and after each softmax on its stream."""
    chain = _chain(program, kernels)
    kind = pl.col("kind")
    at = pl.col("at")
    product = pl.when(kind == "matmul").then(at)
    wall = pl.when(kind == "wall").then(at)
    softmax = pl.when(kind == "softmax").then(at)
    found = chain.with_columns(
        product.forward_fill().shift(1).over("queue").alias("before"),
        product.backward_fill().shift(-1).over("queue").alias("after"),
        pl.max_horizontal(wall, softmax).forward_fill().shift(1).over("queue").alias("lower"),
        pl.max_horizontal(wall, softmax).backward_fill().shift(-1).over("queue").alias("upper"),
    ).filter(
        kind == "softmax",
        pl.col("before") > pl.col("lower").fill_null(-1),
        pl.col("after") < pl.col("upper").fill_null(chain.height),
    )
    return _roles(chain, found.unique("before", keep="last"), kernels)


def _chain(program: Program, kernels: pl.DataFrame) -> pl.DataFrame:
    """Lay kernels out by stream and start, and say what each can be in attention."""
    names = program.names
    labels = {code: classify(names[code]).short for code in kernels["code"].unique()}
    label = pl.col("code").replace_strict(labels, return_dtype=pl.String)
    category = pl.col("category")
    others = label.str.starts_with("log_softmax") | label.str.contains(" bwd")
    kind = (
        pl.when(label.str.contains(_SPLIT.pattern))
        .then(pl.lit("rest"))
        .when(category == "matmul")
        .then(pl.lit("matmul"))
        .when((category == "softmax") & ~others)
        .then(pl.lit("softmax"))
        .when(category.is_in(_BETWEEN))
        .then(pl.lit("between"))
        .otherwise(pl.lit("wall"))
    )
    return (
        kernels.with_row_index("place")
        .select("place", "start_ns", "queue", "pass", kind.alias("kind"))
        .sort("queue", "start_ns")
        .with_row_index("at")
        .with_columns(pl.col("at").cast(pl.Int64))
    )


def _roles(
    chain: pl.DataFrame, found: pl.DataFrame, kernels: pl.DataFrame
) -> tuple[pl.Series, dict[str, int]]:
    """Mark the products and softmaxes found, and what runs from one product to the other."""
    marks = pl.concat(
        [
            found.select(pl.col("before").alias("at"), pl.lit(SCORES).alias("role")),
            found.select("at", pl.lit(SOFTMAX).alias("role")),
            found.select(pl.col("after").alias("at"), pl.lit(FINAL).alias("role")),
        ]
    ).unique("at", keep="first")
    laid = chain.join(marks, on="at", how="left", maintain_order="left").with_columns(
        pl.col("role").forward_fill().over("queue").alias("last")
    )
    rest = pl.col("kind") == "rest"
    open_ = pl.col("last").is_in([SCORES, SOFTMAX]) & (pl.col("kind") == "between")
    follows = rest & (pl.col("role").shift(1).over("queue").is_in([SCORES, FINAL]))
    role = pl.when(follows).then("last").when(open_).then(pl.lit(AROUND)).otherwise("role")
    laid = laid.with_columns(role.alias("role")).sort("place")
    calls = dict.fromkeys(PARTS, found.height) if found.height else {}
    assert laid.height == kernels.height, "every kernel has its place"
    return laid["role"], calls
