"""A checkup as a result: tables that every format can write."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from gpusight.result import Composite, Fact, Field, Fmt, TableResult

if TYPE_CHECKING:
    from gpusight.capture.doctor.check import Checkup, Verdict

_LISTS = frozenset({"why", "without", "commands"})
TOOL_FIELDS = (
    Field("tool", "Tool", Fmt.TEXT, "What `--with` takes: nsys, ncu, cupti or torch"),
    Field("can", "Can", Fmt.TEXT, "Whether it can capture here: `yes`, `partly` or `no`"),
    Field("found", "Found", Fmt.NAME, "Version and place of what would be used; null for none"),
    Field("why", "Why", Fmt.TEXT, "Why it cannot, or only partly; a list"),
    Field("without", "Without", Fmt.TEXT, "What it does not give here, though it works; a list"),
)
CHECK_FIELDS = (
    Field("check", "Check", Fmt.TEXT, "Stable name of what was looked at"),
    Field("title", "What", Fmt.TEXT, "Its name for people", shown=False),
    Field("state", "State", Fmt.TEXT, "`ok`, `limited`, `missing` or `unknown`"),
    Field("found", "Found", Fmt.NAME, "What was found"),
    Field("means", "Means", Fmt.TEXT, "What that means for recording; null where nothing follows"),
    Field("fix", "Fix", Fmt.TEXT, "What to do about it; null for nothing"),
    Field("commands", "Commands", Fmt.NAME, "What to type for that; a list"),
)


_USES = Fact(
    "record_uses",
    "gpusight record uses",
    None,
    Fmt.TEXT,
    "The tool that `gpusight record` takes where it is not told; null where nothing can record",
)
FACTS = (_USES,)


def page(checkup: Checkup) -> Composite:
    """Give the verdicts, then every check."""
    uses = checkup.record_uses
    fact = replace(_USES, value=None if uses is None else uses.value)
    title = "What this machine can capture with"
    return Composite("doctor", title, (fact,), (tools(checkup), checks(checkup)))


def tools(checkup: Checkup) -> TableResult:
    """List the tools and whether they can capture."""
    rows: list[_Row] = [
        (v.tool.value, v.can.value, v.found or None, v.why, v.without) for v in checkup.verdicts
    ]
    return _table("tools", "Tools", TOOL_FIELDS, rows)


def checks(checkup: Checkup) -> TableResult:
    """List what was looked at."""
    rows: list[_Row] = [
        (
            c.key,
            c.title,
            c.state.value,
            c.found,
            c.means or None,
            c.fix or None,
            c.commands,
        )
        for c in checkup.checks
    ]
    return _table("checks", "Checks", CHECK_FIELDS, rows)


def one_line(verdict: Verdict) -> str:
    """Say in a line what a tool can do here."""
    parts = [verdict.found, *verdict.why]
    if verdict.without:
        parts.append(f"without {', '.join(verdict.without)}")
    return "; ".join(filter(None, parts))


_Row: TypeAlias = "tuple[str | tuple[str, ...] | None, ...]"


def _table(name: str, title: str, fields: tuple[Field, ...], rows: list[_Row]) -> TableResult:
    import polars as pl

    schema = {f.key: pl.List(pl.String) if f.key in _LISTS else pl.String for f in fields}
    return TableResult(name, title, fields, pl.DataFrame(rows, schema=schema, orient="row"))
