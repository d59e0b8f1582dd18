"""The pages docs/kernel-rules.md and docs/timeline-rules.md, from the rules themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.render.diagnosis_summary import language
from gpusight.render.markdown_tables import markdown_prose, markdown_table
from gpusight.rules.context import MAX_SAMPLE_OPS
from gpusight.rules.engine import MAX_REPLAY_ERROR, PROFILER_LAUNCH_NS
from gpusight.rules.registry import kernel_rules, timeline_rules
from gpusight.units import format_count, format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.rules.rule import KernelRule, Rule, TimelineRule


_KERNEL_INTRODUCTION = """\
`gpusight diagnose FILE` asks these rules about every kernel of an Nsight Compute report or CSV.
Each says one of three things: *found*, with evidence, an estimated gain and code to paste; *clean*;
or *not applicable*, with the section that Nsight Compute has to collect (`ncu --section NAME`, or
`ncu --set full` for all of them)."""
_KERNEL_MODEL = """\
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
_KERNEL_JSON = """\
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
    parts = [
        "# Kernel rules",
        _KERNEL_INTRODUCTION,
        rule_overview(kernel_rules().values()),
        _KERNEL_MODEL,
        _CHECKED,
        _KERNEL_JSON,
    ]
    for rule in kernel_rules().values():
        parts += [*rule_explanation(rule), _kernel_sections(rule), *rule_thresholds(rule)]
    return parts


def _kernel_sections(rule: KernelRule) -> str:
    return f"Sections: {', '.join(f'`{section}`' for section in rule.sections)}."


def rule_overview(rules: Iterable[Rule]) -> str:
    """List rules with what they find."""
    rows = [(f"[`{rule.id}`](#{rule.id})", markdown_prose(rule.detects)) for rule in rules]
    return markdown_table(("rule", "finds"), (False, False), rows)


def rule_explanation(rule: Rule, language: str = "cuda") -> Iterator[str]:
    """Explain a rule: what it finds, why that costs, what to do, and when it is wrong."""
    yield f"## {rule.id}"
    yield markdown_prose(rule.detects)
    yield f"**Why it costs.** {markdown_prose(rule.why)}"
    yield f"**What to do.** {markdown_prose(rule.fix)}"
    if rule.code:
        yield f"```{language}\n{rule.code.rstrip()}\n```"
    yield f"**Estimate.** {markdown_prose(rule.estimate)}"
    yield f"**When it misleads.** {markdown_prose(rule.caveats)}"


def rule_thresholds(rule: Rule) -> Iterator[str]:
    """List the thresholds of a rule with their reasons."""
    rows = [
        (f"`{name}`", f"{threshold.value:g}", markdown_prose(threshold.why))
        for name, threshold in rule.thresholds.items()
    ]
    if rows:
        yield markdown_table(
            ("threshold", "value", "meaning and reason"), (False, True, False), rows
        )


_TIMELINE_INTRODUCTION = """\
`gpusight diagnose FILE` asks these rules about a timeline (Nsight Systems, torch.profiler, JAX).
Each says one of three things: *found*, with evidence, the time that a fix gives back and what to
change; *clean*; or *not applicable*, with the reason. Kernels that Nsight Compute measured have
rules of their own ([kernel-rules.md](kernel-rules.md)), and you can write further ones
([writing-rules.md](writing-rules.md))."""
_SAMPLED = format_count(MAX_SAMPLE_OPS)
_TIMELINE_MODEL = f"""\
## How time is estimated

A rule says whether the program has a problem, and what its fix would change. The change is then
made in a replay of the captured steps: host threads keep their own work and recompute their waits,
GPU work keeps its order, its durations and what it depends on. What the steps take less is what
the fix gives back, so that a fix that only uncovers the next bottleneck gets only what it gives.

- *Saves a step* is what the fix gives when it is the only one. *After above* is what it gives once
  all findings above it are fixed. Neither may be added up.
- Findings are ranked by the time that they give back alone. A fix that gives little now and more
  after those above is listed as well.
- The replay of the unchanged program is compared with what was measured, and the error is shown.
  Above {format_share(MAX_REPLAY_ERROR)} a note says so first, and confidence falls.
- A rank that changes when {format_time(PROFILER_LAUNCH_NS)} of each launch are taken off, as a
  profiler may add them, is marked (`"robust": false`).
- More than {_SAMPLED} pieces of GPU work are judged on as many whole steps from the
  middle of the window as hold so many; the result is scaled, and a note says so.
- Warm-up is left out by default; `--steps`, `--in`, `--window` and `--warmup` choose otherwise."""
_GATES = """\
## Gates

`--fail-over 5%` makes the exit code 1 when any finding gives back more than 5% of the window, and
says which. Of a report of Nsight Compute, it is a kernel's first finding, as a part of the time of
all kernels. Given both, the timeline decides: faster kernels do not help a program that waits.

An incomplete capture never passes: the exit code is 1 when launch or copy calls have no GPU work in
the capture, or when the reader or the profiler reports lost data. The same holds when a rule named
by `--rule` lacked data."""
_TIMELINE_JSON = """\
## JSON

`--format json` writes one object:

```text
{"meta": {"command", "title", "path", "tool", "gpu", "device", "notes"},
 "window": {"start_ns", "end_ns", "steps", "steps_left_out", "step_ns"},
 "replay": {"error", "steps", "length_ns"},
 "findings": [{"rule", "title", "recoverable_ns", "share", "recoverable_ns_per_step",
               "after_above_ns", "confidence", "confidence_reason", "robust", "estimate",
               "evidence": [{"metric", "value", "unit", "meaning"}],
               "why", "fix", "code", "afterwards", "misleads",
               "where": [{"kind", "name", "ns", "count"}]}],
 "incomplete": [reason], "clean": [rule], "not_applicable": [{"rule", "reason"}],
 "ledger": {"window", "devices": [{"device", "entries": [{"entry", "ns", "share"}]}]}}
```

`recoverable_ns`, `share` and `after_above_ns` are of the whole window; they are null for findings
that are no matter of time. `confidence` is `high` (all was measured), `medium` (a part was assumed)
or `low` (an upper bound). Values of evidence are in base units, those with unit `share` from 0 to
1. With a report of Nsight Compute beside the timeline there are also `kernels`, those with the most
GPU time to give back first:

```text
 "kernels": [{"name", "label", "calls", "time_ns", "share", "time_ns_per_step", "gpu_saved_ns",
              "launches": [number in the report], "findings": [as in kernel-rules.md]}]
```"""


def timeline_rules_parts() -> list[str]:
    """Give the paragraphs of the page."""
    parts = [
        "# Timeline rules",
        _TIMELINE_INTRODUCTION,
        rule_overview(timeline_rules().values()),
        _TIMELINE_MODEL,
        _GATES,
        _TIMELINE_JSON,
    ]
    for rule in timeline_rules().values():
        parts += [
            *rule_explanation(rule, language(rule.code)),
            *_more(rule),
            *rule_thresholds(rule),
        ]
    return parts


def _more(rule: TimelineRule) -> Iterator[str]:
    if rule.verify:
        yield f"**Check afterwards.** {markdown_prose(rule.verify)}"
    if rule.min_share is None:
        yield "It is a finding whatever it gives back."
    else:
        yield f"It is a finding from {format_share(rule.min_share)} of the window on."
