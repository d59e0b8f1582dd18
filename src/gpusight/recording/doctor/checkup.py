"""Runs all checks of a machine: what it can capture with, as a result with tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from gpusight.recording.doctor.environment_checks import (
    container_checks,
    permission_checks,
    surrounding_checks,
    wsl_checks,
)
from gpusight.recording.doctor.gpu_checks import gpu_checks, survey
from gpusight.recording.doctor.machine import (
    Ability,
    CheckState,
    Checkup,
    Machine,
    MachineCheck,
    ToolVerdict,
)
from gpusight.recording.doctor.tool_checks import python_checks, tool_checks
from gpusight.recording.request import Tool
from gpusight.results import Composite, Fact, Field, Fmt, TableResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.recording.doctor.machine import CheckEffect


_RECORD_ORDER = (Tool.NSYS, Tool.CUPTI, Tool.TORCH)
"""In which order `gpusight record` prefers them; ncu measures kernels, no timeline."""
_WORST = (Ability.NO, Ability.PARTLY, Ability.YES)


def examine(
    machine: Machine | None = None, *, python: str | None = None, folder: str | None = None
) -> Checkup:
    """Look at everything that recording depends on.

    `python` is the interpreter that programs are run with, else the one that `python` starts;
    `folder` is where captures would go, else the current one.
    """
    machine = machine or Machine()
    hardware = survey(machine)
    checks = (
        *gpu_checks(machine, hardware),
        *tool_checks(machine, hardware),
        *python_checks(machine, hardware, python),
        *permission_checks(machine, hardware),
        *container_checks(machine),
        *wsl_checks(machine, hardware),
        *surrounding_checks(machine, folder or str(Path.cwd())),
    )
    verdicts = tuple(_verdict(tool, checks) for tool in Tool)
    able = [verdict.tool for verdict in verdicts if verdict.can is not Ability.NO]
    return Checkup(checks, verdicts, next((t for t in _RECORD_ORDER if t in able), None))


def _verdict(tool: Tool, checks: Sequence[MachineCheck]) -> ToolVerdict:
    """Combine what all checks say about one tool: the worst of it decides."""
    effects = [effect for check in checks for effect in check.effects if effect.tool is tool]
    can = next((level for level in _WORST if any(e.can is level for e in effects)), Ability.YES)
    usable = (CheckState.OK, CheckState.LIMITED)
    tool_text = next((c.found for c in checks if c.key == tool.value and c.state in usable), "")
    without = () if can is Ability.NO else _whys(effects, Ability.YES)
    why = () if can is Ability.YES else _whys(effects, can)
    return ToolVerdict(tool, can, tool_text, why, without)


def _whys(effects: Sequence[CheckEffect], level: Ability) -> tuple[str, ...]:
    return tuple(dict.fromkeys(effect.why for effect in effects if effect.can is level))


_LISTS = frozenset({"why", "without", "commands"})
TOOL_FIELDS = (
    Field("tool", "Tool", Fmt.TEXT, "What `--with` takes: nsys, ncu, cupti or torch"),
    Field("can", "Can", Fmt.TEXT, "Whether it can record here: `yes`, `partly` or `no`"),
    Field(
        "found", "Found", Fmt.NAME, "Version and path of the tool that would be used; null for none"
    ),
    Field("why", "Why", Fmt.TEXT, "Why it cannot, or only partly; a list"),
    Field("without", "Without", Fmt.TEXT, "What it cannot record here, although it works; a list"),
)
CHECK_FIELDS = (
    Field("check", "Check", Fmt.TEXT, "Stable name of the check"),
    Field("title", "Check", Fmt.TEXT, "Name of the check", shown=False),
    Field("state", "State", Fmt.TEXT, "`ok`, `limited`, `missing` or `unknown`"),
    Field("found", "Found", Fmt.NAME, "Result of the check"),
    Field("means", "Means", Fmt.TEXT, "Effect on recording; null for none"),
    Field("fix", "Fix", Fmt.TEXT, "How to fix it; null for nothing"),
    Field("commands", "Commands", Fmt.NAME, "Commands that fix it; a list"),
)


_USES = Fact(
    "record_uses",
    "gpusight record uses",
    None,
    Fmt.TEXT,
    "The tool that `gpusight record` uses by default; null where no tool can record",
)
FACTS = (_USES,)


def checkup_page(checkup: Checkup) -> Composite:
    """Return the verdicts, then every check."""
    uses = checkup.record_uses
    fact = replace(_USES, value=None if uses is None else uses.value)
    title = "Profilers on this machine"
    return Composite("doctor", title, (fact,), (tools_table(checkup), checks_table(checkup)))


def tools_table(checkup: Checkup) -> TableResult:
    """List the tools and whether they can capture."""
    rows: list[_Row] = [
        (v.tool.value, v.can.value, v.found or None, v.why, v.without) for v in checkup.verdicts
    ]
    return _table("tools", "Tools", TOOL_FIELDS, rows)


def checks_table(checkup: Checkup) -> TableResult:
    """List what was looked at."""
    rows: list[_Row] = [
        (c.key, c.title, c.state.value, c.found, c.means or None, c.fix or None, c.commands)
        for c in checkup.checks
    ]
    return _table("checks", "Checks", CHECK_FIELDS, rows)


def tool_summary(verdict: ToolVerdict) -> str:
    """Summarize in one line what a tool can do here."""
    parts = [verdict.found, *verdict.why]
    if verdict.without:
        parts.append(f"without {', '.join(verdict.without)}")
    return "; ".join(filter(None, parts))


_Row: TypeAlias = "tuple[str | tuple[str, ...] | None, ...]"


def _table(name: str, title: str, fields: tuple[Field, ...], rows: list[_Row]) -> TableResult:
    import polars as pl

    schema = {f.key: pl.List(pl.String) if f.key in _LISTS else pl.String for f in fields}
    return TableResult(name, title, fields, pl.DataFrame(rows, schema=schema, orient="row"))
