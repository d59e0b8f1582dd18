"""The source lines where a finding comes from, by the counters of single instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.findings.finding import Place
from gpusight.findings.kernels.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpusight.findings.kernels.rule import Located
    from gpusight.model.trace import Trace

SHOWN = 3
"""Lines that are named for each finding."""
LEAST = 0.05
"""Least part of the whole that a line must have to be named."""
_CODE = ("binary", "function", "offset", "path", "line")


def hot_lines(
    trace: Trace, rules: Mapping[int, Iterable[str]]
) -> dict[tuple[int, str], list[Place]]:
    """Name the source lines behind the findings of these rules, by launch and rule.

    Nothing is named where the report has no counters of single instructions (SourceCounters), or
    the program no line numbers (compile with -lineinfo).
    """
    if not trace.has("counter_instances") or not trace.has("code_lines"):
        return {}
    wanted = {located for names in rules.values() for located in map(_located, names)}
    parts = _parts(trace, list(rules), wanted)
    sources = _sources(trace)
    found: dict[tuple[int, str], list[Place]] = {}
    for launch, names in rules.items():
        for rule in names:
            places = _places(parts.get(_located(rule)), launch, sources)
            if places:
                found[launch, rule] = places
    return found


def _located(rule: str) -> Located:
    return RULES[rule].located_by


def _parts(
    trace: Trace, launches: list[int], wanted: Iterable[Located]
) -> dict[Located, pl.DataFrame]:
    """Give for each way of locating the amounts by launch and source line."""
    metrics = {m for located in wanted for m in (*located.metrics, *located.less)}
    rows = trace.table("counter_instances", ("launch", "metric", "instance", "value"))
    rows = rows.filter(pl.col("launch").is_in(launches)).with_columns(
        pl.col("metric").cast(pl.String)
    )
    rows = rows.filter(pl.col("metric").is_in(list(metrics)))
    lined = _with_lines(trace, rows)
    return {located: _amounts(lined, located) for located in wanted}


def _with_lines(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Find the line of each instruction: that of the last entry at or before its offset."""
    profiles = trace.table("profiles", ("launch", "binary", "mangled_name", "address"))
    code = trace.table("code_lines", _CODE).with_columns(pl.col("function").cast(pl.String))
    owned = profiles.with_columns(pl.col("mangled_name").cast(pl.String).alias("function"))
    at = rows.join(owned.drop_nulls("address"), on="launch").with_columns(
        (pl.col("instance") - pl.col("address")).alias("offset")
    )
    keys = ["binary", "function"]
    return at.sort("offset").join_asof(
        code.sort("offset"), on="offset", by=keys, strategy="backward", check_sortedness=False
    )


def _amounts(lined: pl.DataFrame, located: Located) -> pl.DataFrame:
    sign = (
        pl.when(pl.col("metric").is_in(list(located.metrics)))
        .then(located.scale)
        .when(pl.col("metric").is_in(list(located.less)))
        .then(-1.0)
        .otherwise(0.0)
    )
    amount = (pl.col("value") * sign).sum().alias("amount")
    return lined.group_by("launch", "path", "line").agg(amount).filter(pl.col("amount") > 0)


def _places(
    amounts: pl.DataFrame | None, launch: int, sources: Mapping[str, list[str]]
) -> list[Place]:
    if amounts is None:
        return []
    own = amounts.filter(pl.col("launch") == launch)
    whole = float(own["amount"].sum())
    top = own.drop_nulls("line").sort("amount", "path", "line", descending=True).head(SHOWN)
    return [
        Place(row["path"], row["line"], row["amount"] / whole, _text(sources, row))
        for row in top.iter_rows(named=True)
        if row["amount"] >= LEAST * whole
    ]


def _sources(trace: Trace) -> dict[str, list[str]]:
    rows = trace.table("source_files", ("path", "content")).drop_nulls()
    return {path: content.splitlines() for path, content in rows.iter_rows()}


def _text(sources: Mapping[str, list[str]], row: Mapping[str, int | str]) -> str:
    lines, number = sources.get(str(row["path"]), []), int(row["line"])
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""
