"""Every rule that `diagnose` asks, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.findings.kernels.rules import RULES as KERNEL_RULES
from gpusight.findings.timeline.rules import RULES as TIMELINE_RULES
from gpusight.render.diagnosis.lines import Line, plain, wrapped
from gpusight.result import Field, Fmt, TableResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.findings.timeline.rule import Rule

RULE_FIELDS = (
    Field("rule", "Rule", Fmt.TEXT, "Its identifier, for `--rule`"),
    Field("of", "Of", Fmt.TEXT, "`timeline`, `kernels` (reports of Nsight Compute) or `yours`"),
    Field("finds", "Finds", Fmt.NAME, "What it looks for"),
)


_HEADINGS = {
    "timeline": "Of timelines (nsys, torch.profiler, JAX)",
    "yours": "Your own",
    "kernels": "Of kernels that Nsight Compute measured",
}


def rule_text(rules: TableResult, width: int | None) -> str:
    """Write the rules for people: what each finds, wrapped beside its name."""
    widest = max(len(rule) for rule in rules.frame["rule"])
    lines: list[Line] = []
    for kind, heading in _HEADINGS.items():
        some = rules.frame.filter(pl.col("of") == kind)
        if some.height:
            lines += [*([Line("")] if lines else []), Line(heading)]
        for rule, finds in some.select("rule", "finds").iter_rows():
            lines += wrapped(finds.removeprefix("Looks for "), width, f"  {rule:<{widest}}  ")
    return plain(lines)


def rule_list(own: Sequence[Rule] = ()) -> TableResult:
    """List the rules of timelines, the user's own, and those of kernels."""
    rows = [(rule.id, "timeline", rule.detects) for rule in TIMELINE_RULES.values()]
    rows += [(rule.id, "yours", rule.detects) for rule in own]
    rows += [(rule.id, "kernels", rule.detects) for rule in KERNEL_RULES.values()]
    schema = dict.fromkeys(("rule", "of", "finds"), pl.String)
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return TableResult("diagnose", "Rules", RULE_FIELDS, frame)
