"""The GPU work of a selection, whatever table it stands in, with what caused it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.attribution.attribute import Attribution, attribute, graph_note
from gpusight.analyses.launches import held_tables
from gpusight.analyses.select import GPU_WORK, Scope
from gpusight.analyses.statistics import names_of
from gpusight.model.kernel_names import classify

if TYPE_CHECKING:
    from gpusight.model.trace import Trace

KINDS = ("kernel", "copy", "memset", "graph")
"""What a piece of work is, in the order of the tables that hold it."""
_NAMED_BY = {"kernels": "name", "copies": "kind"}
_WORDS = {"memset": "memset", "graph": "CUDA graph"}
_COLUMNS = ["start_ns", "end_ns", "device", "stream", "correlation"]


class WorkScope(Scope):
    """A selection that can also number the rows of GPU work it selects."""

    def gpu_rows(self, table: str) -> pl.Series:
        """Give the numbers of the selected rows in the whole table, in order."""
        device, within = self.selection.device, self.selection.within
        extra = ["start_ns"] if device is None else ["device"]
        if within is not None:
            extra += ["start_ns", "process", "correlation"]
        frame = self._load(table, [], extra, "row")
        if device is not None:
            frame = frame.filter(pl.col("device") == device)
        if within is not None:
            frame = self._launched_inside(frame)
        return frame["row"]


@dataclass(frozen=True)
class Work:
    """Pieces of GPU work, one table after the other."""

    frame: pl.DataFrame
    """`kind`, `label` (a position in `labels`), times, where it ran, and the columns of causes."""
    labels: pl.Series
    """Kernel names, and what copies and fills are called."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the causes must know."""
        count = int(self.frame["in_graph"].sum())
        return (graph_note(count),) if count else ()

    def found(self) -> dict[str, int]:
        """Count the work by how its operator was found."""
        counts = self.frame["found"].cast(pl.String).value_counts()
        return dict(zip(counts["found"], counts["count"], strict=True))


def short_labels(labels: pl.Series, codes: pl.Series) -> pl.Series:
    """Give readable labels for these positions in `labels`, looking at each one once."""
    distinct = codes.unique().sort()
    texts = [text if text.startswith("[") else classify(text).short for text in labels[distinct]]
    return pl.Series(texts, dtype=pl.String).gather(distinct.search_sorted(codes))


def selected_work(scope: WorkScope) -> Work:
    """Collect the selected work of all tables with its causes."""
    causes = attribute(scope.trace)
    parts: list[pl.DataFrame] = []
    labels: list[str] = []
    for table in held_tables(scope.trace, GPU_WORK) or GPU_WORK[:1]:
        part, known = _part(scope, table, causes)
        parts.append(part.with_columns(pl.col("label") + len(labels)))
        labels += known
    return Work(pl.concat(parts), pl.Series(labels, dtype=pl.String))


def _part(scope: WorkScope, table: str, causes: Attribution) -> tuple[pl.DataFrame, list[str]]:
    rows = scope.gpu_rows(table)
    kind = KINDS[GPU_WORK.index(table)]
    frame = scope.trace.table(table, _COLUMNS)[rows]
    codes, labels = _labels(scope.trace, table, kind)
    return (
        frame.with_columns(
            pl.lit(kind, pl.Enum(KINDS)).alias("kind"), codes.gather(rows).alias("label")
        ).hstack(causes.frames[table][rows].get_columns()),
        labels,
    )


def _labels(trace: Trace, table: str, kind: str) -> tuple[pl.Series, list[str]]:
    """Number what each row is called, and list those names."""
    column = _NAMED_BY.get(table)
    if column is None:
        rows = trace.table(table, ["start_ns"]).height
        return pl.Series([0], dtype=pl.Int64).new_from_index(0, rows), [f"[{_WORDS[kind]}]"]
    names = trace.table(table, [column])[column]
    known = names_of(names)
    if kind == "copy":
        known = [f"[copy {name}]" for name in known]
    return names.to_physical().cast(pl.Int64), known
