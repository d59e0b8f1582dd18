"""Modules, operations and annotations laid over the work of a device.

Every kernel names the module and the operation it was compiled from, and where known the operation
of the program (`jit(step)/dot_general`). Some profiles hold lines with these drawn; others leave it
to the viewer, and then they are laid over the work here: one range for each execution on a stream,
from its first piece of work to its last. An execution is a scope that the host opened; profiles
without scopes (older ones) have runs of work with the same name instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

OVERLAY = "overlay"
_MODULE, _OPERATOR, _ANNOTATION = "module", "operator", "annotation"
KINDS = {
    "XLA Modules": _MODULE,
    "XLA Ops": _OPERATOR,
    "Async XLA Ops": _OPERATOR,
    "Host Offload Ops": _OPERATOR,
    "Framework Ops": _ANNOTATION,
    "TensorFlow Ops": _ANNOTATION,
    "Framework Name Scope": _ANNOTATION,
    "TensorFlow Name Scope": _ANNOTATION,
    "Source code": _ANNOTATION,
    "Steps": _ANNOTATION,
}
"""Lines on which the profiler draws what the work belongs to."""
_STEPS = "Steps"
TEXTS = {
    "hlo_module": "module",
    "hlo_op": "operation",
    "name": "framework_name",
    "tf_op": "framework_op",
}
"""Stats that say what a piece of work belongs to, and the columns that they are read into."""
_OWNERS = ("line", "scope", *TEXTS.values())
COLUMNS = (*_OWNERS, "start_ns", "end_ns")
_RANGE = ("line", "start_ns", "end_ns", "name", "kind")
_MOST_SCOPES = 64


def merged(work: pl.DataFrame) -> pl.DataFrame:
    """Join work that follows on its line and belongs to the same."""
    differs = pl.any_horizontal(pl.col(c).ne_missing(pl.col(c).shift()) for c in _OWNERS)
    first = work.select(differs).to_series().arg_true()
    if not len(first):
        return work
    at = first.to_numpy()
    return work.select(_OWNERS)[first].with_columns(
        start_ns=pl.Series(np.minimum.reduceat(work["start_ns"].to_numpy(), at)),
        end_ns=pl.Series(np.maximum.reduceat(work["end_ns"].to_numpy(), at)),
    )


def drawn(events: pl.DataFrame, names: Sequence[str], lines: Sequence[str]) -> pl.DataFrame:
    """Name what the profiler drew on lines of its own; steps are mere numbers there."""
    kinds = pl.Series([KINDS.get(line) for line in lines], dtype=pl.String)
    steps = pl.Series([line == _STEPS for line in lines], dtype=pl.Boolean)
    texts = pl.Series(names, dtype=pl.String).gather(events["kind"])
    numbered = steps.gather(events["line"]) & texts.str.contains(r"^\d+$")
    return events.with_columns(
        name=pl.when(numbered).then("step#" + texts).otherwise(texts),
        kind=kinds.gather(events["line"]),
    ).select(_RANGE)


def laid_over(
    overlay: pl.DataFrame, words: Sequence[str], scopes: Mapping[int, int], known: set[str]
) -> Iterator[pl.DataFrame]:
    """Lay over the work what the profiler has not drawn; `known` are the kinds that it has."""
    paths = [place for place, word in enumerate(words) if "/" in word]
    # What has no path in it is the name of a variable, or a mere filler.
    programs = [
        pl.when(pl.col(column).is_in(paths)).then(pl.col(column))
        for column in ("framework_name", "framework_op")
    ]
    roots = overlay["scope"].replace_strict(
        _roots(overlay["scope"], scopes), default=None, return_dtype=pl.Int64
    )
    for kind, what, execution in (
        (_MODULE, pl.col("module"), roots),
        (_OPERATOR, pl.col("operation"), pl.col("scope")),
        (_ANNOTATION, pl.coalesce(*programs), pl.col("scope")),
    ):
        if kind not in known:
            ranges = _executions(overlay.with_columns(what=what, execution=execution))
            names = pl.Series(words, dtype=pl.String).gather(ranges["what"])
            yield ranges.with_columns(names.alias("name"), kind=pl.lit(kind)).select(_RANGE)


def _roots(scope: pl.Series, scopes: Mapping[int, int]) -> dict[int, int]:
    """Follow each scope to the outermost one around it: the execution of a module."""
    roots: dict[int, int] = {}
    for inner in scope.drop_nulls().unique().to_list():
        outer = inner
        for _ in range(_MOST_SCOPES):
            if outer not in scopes:
                break
            outer = scopes[outer]
        roots[inner] = outer
    return roots


def _executions(work: pl.DataFrame) -> pl.DataFrame:
    ordered = work.filter(pl.col("what").is_not_null()).sort("line", "start_ns")
    differs = [pl.col(c).ne_missing(pl.col(c).shift()) for c in ("line", "what")]
    run = pl.any_horizontal(differs).cum_sum().cast(pl.Int64)
    return (
        ordered.with_columns(execution=pl.coalesce("execution", -1 - run))
        .group_by("line", "execution", "what", maintain_order=True)
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    )


def outer_and_inner(operations: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Tell operations that enclose others from those that do the work."""
    from gpusight.model.nesting import nest

    _, parent = nest(
        operations["start_ns"].to_numpy(),
        operations["end_ns"].to_numpy(),
        operations["line"].to_numpy().astype(np.int64),
    )
    encloses = np.zeros(operations.height, np.bool_)
    encloses[parent[parent >= 0]] = True
    return operations.filter(encloses), operations.filter(~encloses)
