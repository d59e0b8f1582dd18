"""What the tables of a printed file said: gathered as columns, then made into tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from gpusight.naming.metric_names import unit_of
from gpusight.readers.name_columns import encode_names
from gpusight.readers.ncu.text_launches import PrintedLaunches, is_sum
from gpusight.readers.ncu.text_metrics import (
    MetricLabels,
    NumberNotation,
    is_nothing,
    notation_of,
    numbers,
    parts_of,
    whole_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_VALUES = {"launch": pl.UInt32, "name": pl.UInt32, "said": pl.String}
_RULES = {
    "launch": pl.UInt32,
    "rule": pl.String,
    "section": pl.String,
    "kind": pl.String,
    "message": pl.String,
    "speedup_kind": pl.String,
    "speedup": pl.String,
}
_INSTANCES = {
    "launch": pl.UInt32,
    "metric": pl.String,
    "instance": pl.Int64,
    "key": pl.String,
    "said": pl.String,
}
_KINDS = {
    "OK": "ok",
    "INF": "information",
    "WRN": "warning",
    "ERR": "error",
    "OPT": "optimization",
}
_SAME = 0.005
"""Values of one metric that differ by less, relative to their size or their last digit, agree."""


@dataclass
class CollectedValues:
    """Everything that was read so far. Values stay texts until all numbers of the file are seen."""

    launches: PrintedLaunches = field(default_factory=PrintedLaunches)
    names: MetricLabels = field(default_factory=MetricLabels)
    values: list[pl.DataFrame] = field(default_factory=list)
    rules: list[pl.DataFrame] = field(default_factory=list)
    instances: list[pl.DataFrame] = field(default_factory=list)
    sources: dict[str, list[str]] = field(default_factory=dict)
    """Lines of source files, by path."""
    devices: dict[int, dict[str, str]] = field(default_factory=dict)
    """Attributes of GPUs that a session page lists."""
    session: dict[str, str] = field(default_factory=dict)
    processes: dict[int, str] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    """What the profiler said around its tables, with the severity."""
    separators: list[str] = field(default_factory=list)
    unreadable: int = 0
    """Lines that began like rows and were none."""
    averaged: int = 0
    """Launches behind the rows of summaries."""
    without_id: bool = False
    notes: dict[str, None] = field(default_factory=dict)

    def add_values(self, frame: pl.DataFrame) -> None:
        """Add `launch`, `name` and `said`, what the table has for it."""
        self.values.append(frame.select(list(_VALUES)).filter(pl.col("said").fill_null("") != ""))

    def add_rules(self, frame: pl.DataFrame) -> None:
        """Add what rules said; columns that a layout lacks are null."""
        missing = [pl.lit(None, t).alias(c) for c, t in _RULES.items() if c not in frame.columns]
        self.rules.append(frame.with_columns(missing).select(list(_RULES)))

    def add_instances(self, frame: pl.DataFrame) -> None:
        """Add parts of counters, with what the table has for each."""
        missing = [
            pl.lit(None, t).alias(c) for c, t in _INSTANCES.items() if c not in frame.columns
        ]
        self.instances.append(frame.with_columns(missing).select(list(_INSTANCES)))


class CollectedTables:
    """The model's tables out of what was collected; launches have their final keys."""

    def __init__(self, collected: CollectedValues) -> None:
        self._collected = collected
        self._keys = pl.Series(collected.launches.keys()[0], dtype=pl.Int64)
        self._rules = _stacked(collected.rules, _RULES)
        said = _stacked(collected.values, _VALUES)
        collected.values.clear()  # the copy is enough: there may be millions
        self._texts = _texts(said.get_column("said"))
        self._said = said.select(
            "launch", "name", text=_positions(said.get_column("said"), self._texts)
        )
        self.meanings = collected.names.meanings()
        self._parts = pl.concat([_stacked(collected.instances, _INSTANCES), self._listed()])
        self.notation = self._notation()
        self.nothing = self.conflicts = 0

    def _notation(self) -> NumberNotation:
        """Decide how the file writes numbers, by all of them."""
        texts = [
            self._texts.get_column("whole"),
            self._parts.get_column("said"),
            self._rules.get_column("speedup"),
        ]
        separators: Sequence[str] = self._collected.separators
        known = pl.concat([text.rename("text") for text in texts]).drop_nulls().unique()
        return notation_of(known, separators[0] if separators else None)

    # Counters ------------------------------------------------------------------------------------

    @cached_property
    def counters(self) -> pl.DataFrame:
        """The table `counters`."""
        rows = self._once(self._valued())
        rows = rows.select(
            launch=self._keys.gather(rows.get_column("launch")),
            metric=self._meaning("metric", rows),
            value="value",
            text=rows.get_column("text"),
            unit=self._meaning("unit", rows),
            label=self._meaning("label", rows),
        )
        return self._with_parts(rows) if self.counter_instances.height else rows

    def _meaning(self, column: str, rows: pl.DataFrame) -> pl.Series:
        return self.meanings.get_column(column).gather(rows.get_column("name"))

    def _valued(self) -> pl.DataFrame:
        """Give `launch`, `name`, `scale`, `value` and `text`, without what was not measured."""
        whole = self._texts.get_column("whole")
        known = self._texts.select(
            numbers(whole, self.notation).alias("number"),
            nothing=is_nothing(pl.col("whole")),
            empty=is_nothing(pl.col("whole")) & pl.col("parts").is_null(),
        )
        at = self._said.get_column("text")
        empty = known.get_column("empty").gather(at)
        self.nothing = int(empty.sum())
        said = self._said.filter(~empty) if self.nothing else self._said
        at = said.get_column("text")
        words = pl.select(
            pl.when(known.get_column("number").is_null() & ~known.get_column("nothing")).then(whole)
        ).to_series()
        scale = self.meanings.get_column("scale").gather(said.get_column("name"))
        return said.select(
            "launch",
            "name",
            scale=scale,
            value=known.get_column("number").gather(at) * scale,
            text=words.gather(at),
        )

    def _once(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Keep the first value of a metric; count those that another place contradicts."""
        metric = self._meaning("metric", rows).to_physical().cast(pl.UInt64)
        key = rows.get_column("launch").cast(pl.UInt64) * (self.meanings.height + 1) + metric
        if key.n_unique() == rows.height:
            return rows
        keyed = rows.with_columns(key=key)
        spread = pl.col("value").max() - pl.col("value").min()
        size = pl.max_horizontal(pl.col("value").abs().max(), 2 * pl.col("scale").max())
        several = keyed.group_by("key").agg((spread > _SAME * size).alias("differ"))
        self.conflicts = int(several.get_column("differ").sum())
        return keyed.unique("key", keep="first", maintain_order=True).drop("key")

    def _with_parts(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Say how many parts counters have; add those of which only the parts were printed."""
        key = ["launch", "metric"]
        named = rows.with_columns(pl.col("metric").cast(pl.String))
        sums = self.counter_instances.group_by(key, maintain_order=True).agg(
            pl.len().cast(pl.Int64).alias("instances"), pl.col("value").sum()
        )
        counted = named.join(sums.drop("value"), on=key, how="left", maintain_order="left")
        alone = sums.join(named, on=key, how="anti", maintain_order="left")
        metrics = alone.get_column("metric").to_list()
        units = pl.Series("unit", [unit_of(metric) or None for metric in metrics], dtype=pl.String)
        alone = alone.with_columns(
            units,
            pl.when(pl.Series([is_sum(m) for m in metrics], dtype=pl.Boolean)).then("value"),
        )
        both = [counted.with_columns(pl.col("unit").cast(pl.String)), alone]
        joined = pl.concat(both, how="diagonal")
        return joined.with_columns(encode_names(joined.get_column("metric")))

    # Parts ---------------------------------------------------------------------------------------

    def _listed(self) -> pl.DataFrame:
        """Take apart the parts that stand in brackets behind values."""
        some = self._texts.with_row_index("text").filter(pl.col("parts").is_not_null())
        rows = self._said.join(
            some.select("text", "parts"), on="text", how="inner", maintain_order="left"
        )
        pieces = rows.with_columns(
            metric=self._meaning("metric", rows).cast(pl.String),
            part=pl.col("parts").str.split("; "),
        ).explode("part")
        both = pl.col("part").str.contains(": ")
        key = pl.when(both).then(pl.col("part").str.replace(r": .*$", ""))
        instance = pl.coalesce(
            key.str.to_integer(strict=False),
            key.str.strip_prefix("0x").str.to_integer(base=16, strict=False),
        )
        value = pl.when(both).then(pl.col("part").str.replace(r"^.*?: ", "")).otherwise("part")
        return pieces.select(
            "launch",
            "metric",
            instance=instance,
            key=pl.when(instance.is_null()).then(key),
            said=value,
        )

    @cached_property
    def counter_instances(self) -> pl.DataFrame:
        """The table `counter_instances`."""
        parts = self._parts
        value = numbers(parts.get_column("said"), self.notation)
        no_number = value.is_null() & ~pl.col("said").pipe(is_nothing)
        return parts.select(
            self._keys.gather(parts.get_column("launch")).alias("launch"),
            *("metric", "instance", "key"),
            value.alias("value"),
            pl.when(no_number).then("said").alias("text"),
        )

    # Rules ---------------------------------------------------------------------------------------

    @cached_property
    def rule_results(self) -> pl.DataFrame:
        """The table `rule_results`."""
        rules = self._rules
        kinds = pl.col("kind").str.to_uppercase().replace_strict(_KINDS, default="information")
        speedup = numbers(rules.get_column("speedup"), self.notation)
        return rules.with_columns(
            speedup.alias("speedup_percent"),
            launch=self._keys.gather(rules.get_column("launch")),
            kind=kinds,
            speedup_kind=pl.col("speedup_kind").str.to_lowercase().replace("", None),
        ).drop("speedup")


def _stacked(
    frames: Sequence[pl.DataFrame], schema: Mapping[str, type[pl.DataType]]
) -> pl.DataFrame:
    return pl.concat([pl.DataFrame(schema=schema), *frames])


def _texts(said: pl.Series) -> pl.DataFrame:
    """List every different value, what stands before its parts, and those parts."""
    return pl.DataFrame({"said": said.unique()}).with_columns(
        whole=whole_of(pl.col("said")), parts=parts_of(pl.col("said"))
    )


def _positions(said: pl.Series, texts: pl.DataFrame) -> pl.Series:
    """Give the row of each value in the list of different ones."""
    listed = texts.select("said").with_row_index("row")
    return (
        said.to_frame("said")
        .join(listed, on="said", how="left", maintain_order="left")
        .get_column("row")
    )
