"""`docs/kernel-rules.md`: every kernel rule, from its own declaration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.findings.kernels.rules import RULES
from gpusight.render.markdown import prose, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.findings.kernels.rule import Rule
    from gpusight.findings.timeline.rule import Rule as TimelineRule

_INTRODUCTION = """\
`gpusight diagnose FILE` asks these rules about every kernel of an Nsight Compute report or CSV.
Each says one of three things: *found*, with evidence, an estimated gain and code to paste; *clean*;
or *not applicable*, with the section that Nsight Compute has to collect (`ncu --section NAME`, or
`ncu --set full` for all of them)."""
_MODEL = """\
## How gains are estimated

A kernel takes as long as its busiest unit needs, or, where no unit is busy (60% of its peak or
more), as long as its warps wait. A fix takes load off some units and removes some waits. What is
left of the time is the larger of what the units still need, the next busiest one included, and of
the waits that stay. So a fix gets only what it gives. Units are taken to reach 90% of their peak at
best, and starting and draining a grid takes 1.5 µs in any case. Gains below a tenth are no finding,
but for `memory-bound`, `compute-bound` and `latency-bound`, which say how far the roof is.

Kernels are ranked by the time that their first fix gives back over all their launches; the findings
of a kernel by their gain. Fixes of one kernel do not add up. Where one rule names the cause of what
another one sees, such as bank conflicts of a busy L1, only the cause is a finding, and `also` names
the other.

`memory-bound` and `compute-bound` say where the roof is. A kernel at its roof (80% of the peak of a
unit) has nothing to gain but by doing less; its speed-up is 1."""
_CHECKED = """\
## How well it does

On 80 kernels written and captured before the rules were looked at, the first finding was an
accepted one for 64 with a full set (31 of 61 CUDA kernels with the basic set); half of 39 measured
gains were within a factor of 1.5. Those kernels have since served to improve the rules (72 of 80
now), so that this is no longer a blind number. All are from one GPU model, an H200; the thresholds
were set with 84 further kernels on it.

Known to be wrong, with examples from those kernels:

- Repeated sweeps over the same data, from DRAM each time, are called `memory-bound`. That one sweep
  would do (5.8 times faster) is not seen.
- Binary search at random keys: the gain of sorted keys is too low (2.3 times; it was 8).
- Random reads inside L2 look like uncoalesced accesses that could be put in order: up to 2.9 times
  was promised where nothing was to be had.
- Tiny blocks: the gain is too low (4 times; larger blocks with wider loads gave 18).
- Compare-and-swap loops on one address: how often they retry is not counted, so that the gain of
  getting rid of them is far too low.
- Gains of more than ten times are known to their order of magnitude only.

Where a report lacks the counters (`--set basic` has none of accesses, conflicts, spills and
divergence), kernels are said to be at a roof, and a note says what was not judged."""
_JSON = """\
## JSON

`--format json` writes one object. `kernels` has an entry for every launch, those of the kernel with
the most time to give back first:

```text
{"meta": {"command", "title", "tool", "tool_version", "gpus", "launches", "duration_ns", "saved_ns",
          "notes"},
 "saved_ns": …,
 "kernels": [{"name", "label", "launch", "duration_ns", "device", "grid", "block", "held_by",
              "saved_ns",
              "findings": [{"rule", "title", "where", "speedup", "saved_ns", "confidence",
                            "confidence_reason", "estimate",
                            "evidence": [{"metric", "value", "unit", "meaning"}],
                            "why", "fix", "code", "misleads", "sections",
                            "places": [{"path", "line", "share", "text"}], "also"}],
              "clean": [rule], "not_applicable": [{"rule", "reason", "sections"}],
              "profiler_rules": [{"rule", "title", "section", "kind", "speedup_kind",
                                  "speedup_percent", "message"}]}]}
```

`speedup` is old time over new, at least 1, or null where nothing measured tells it. `confidence` is
`high` (all that the estimate needs was measured), `medium` (a part was assumed) or `low` (an upper
bound). Values of evidence are in base units, those with unit `share` from 0 to 1. `held_by` is
`memory`, `compute` or `latency`, by the rules of that name; the roofline's `bound` is another thing
([roofline.md](roofline.md))."""


def kernel_rules_parts() -> list[str]:
    """Give the paragraphs of the page."""
    parts = ["# Kernel rules", _INTRODUCTION, overview(RULES.values()), _MODEL, _CHECKED, _JSON]
    for rule in RULES.values():
        parts += [*explanation(rule), _sections(rule), *thresholds(rule)]
    return parts


def _sections(rule: Rule) -> str:
    return f"Sections: {', '.join(f'`{section}`' for section in rule.sections)}."


def overview(rules: Iterable[Rule | TimelineRule]) -> str:
    """List rules with what they find."""
    rows = [(f"[`{rule.id}`](#{rule.id})", prose(rule.detects)) for rule in rules]
    return table(("rule", "finds"), (False, False), rows)


def explanation(rule: Rule | TimelineRule, language: str = "cuda") -> Iterator[str]:
    """Explain a rule: what it finds, why that costs, what to do, and when it is wrong."""
    yield f"## {rule.id}"
    yield prose(rule.detects)
    yield f"**Why it costs.** {prose(rule.why)}"
    yield f"**What to do.** {prose(rule.fix)}"
    if rule.code:
        yield f"```{language}\n{rule.code.rstrip()}\n```"
    yield f"**Estimate.** {prose(rule.estimate)}"
    yield f"**When it misleads.** {prose(rule.misleads)}"


def thresholds(rule: Rule | TimelineRule) -> Iterator[str]:
    """List the thresholds of a rule with their reasons."""
    rows = [(f"`{n}`", f"{limit.value:g}", prose(limit.why)) for n, limit in rule.limits.items()]
    if rows:
        yield table(("threshold", "value", "meaning and reason"), (False, True, False), rows)
