"""The source lines where a finding comes from, by the counters of single instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.counters.choose import ProfileScope
from gpusight.analyses.counters.source import (
    first_of,
    instructions,
    line_text,
    metrics_of_instructions,
    source_texts,
    with_lines,
)
from gpusight.findings.finding import Place
from gpusight.findings.kernels.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusight.findings.kernels.rule import Located
    from gpusight.model.trace import Trace

SHOWN = 3
"""Lines that are named for each finding."""
LEAST = 0.05
"""Least part of the whole that a line must have to be named."""


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
    if not wanted:
        return {}
    parts = _parts(trace, list(rules), wanted)
    sources = source_texts(trace)
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
    known = metrics_of_instructions(trace)
    signs = {located: _signs(located, known) for located in wanted}
    metrics = {metric for weights in signs.values() for metric in weights}
    scope = ProfileScope(trace, launches=launches)
    lined = with_lines(trace, instructions(scope, sorted(metrics)))
    return {located: _amounts(lined, weights) for located, weights in signs.items()}


def _signs(located: Located, known: Sequence[str]) -> dict[str, float]:
    """Say by metric how often its parts count; empty where the capture lacks one."""
    added, taken = first_of(located.metrics, known), first_of(located.less, known)
    if not added or (located.less and not taken):
        return {}
    return {added[0]: float(located.scale), **dict.fromkeys(taken, -1.0)}


def _amounts(lined: pl.DataFrame, signs: Mapping[str, float]) -> pl.DataFrame:
    """Add up by launch and source line."""
    sign = pl.col("metric").cast(pl.String).replace_strict(signs, default=0.0)
    amount = (pl.col("value") * sign).sum().alias("amount")
    return lined.group_by("launch", "path", "line").agg(amount).filter(pl.col("amount") > 0)


def _places(
    amounts: pl.DataFrame | None, launch: int, sources: dict[str, list[str]]
) -> list[Place]:
    if amounts is None:
        return []
    own = amounts.filter(pl.col("launch") == launch)
    whole = float(own["amount"].sum())
    top = own.drop_nulls("line").sort("amount", "path", "line", descending=True).head(SHOWN)
    return [
        Place(path, line, amount / whole, line_text(sources, path, line) or "")
        for path, line, amount in top.select("path", "line", "amount").iter_rows()
        if amount >= LEAST * whole
    ]
