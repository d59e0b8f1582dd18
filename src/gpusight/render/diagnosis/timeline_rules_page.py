"""`docs/timeline-rules.md`: every rule of the timeline, from its own declaration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.findings.timeline.judge import MOST_ERROR, PROFILER_LAUNCH_NS
from gpusight.findings.timeline.part import MOST_OPS
from gpusight.findings.timeline.rules import RULES
from gpusight.render.diagnosis.rules_page import explanation, overview, thresholds
from gpusight.render.diagnosis.timeline_parts import language
from gpusight.render.markdown import prose
from gpusight.units import format_count, format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.findings.timeline.rule import Rule

_INTRODUCTION = """\
`gpusight diagnose FILE` asks these rules about a timeline (Nsight Systems, torch.profiler, JAX).
Each says one of three things: *found*, with evidence, the time that a fix gives back and what to
change; *clean*; or *not applicable*, with the reason. Kernels that Nsight Compute measured have
rules of their own ([kernel-rules.md](kernel-rules.md)), and you can write further ones
([writing-rules.md](writing-rules.md))."""
_MODEL = f"""\
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
  Above {format_share(MOST_ERROR)} a note says so first, and confidence falls.
- A rank that changes when {format_time(PROFILER_LAUNCH_NS)} of each launch are taken off, as a
  profiler may add them, is marked (`"robust": false`).
- More than {format_count(MOST_OPS)} pieces of GPU work are judged on as many whole steps from the
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
_JSON = """\
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
    parts = ["# Timeline rules", _INTRODUCTION, overview(RULES.values()), _MODEL, _GATES, _JSON]
    for rule in RULES.values():
        parts += [*explanation(rule, language(rule.code)), *_more(rule), *thresholds(rule)]
    return parts


def _more(rule: Rule) -> Iterator[str]:
    if rule.afterwards:
        yield f"**Check afterwards.** {prose(rule.afterwards)}"
    if rule.least_share is None:
        yield "It is a finding whatever it gives back."
    else:
        yield f"It is a finding from {format_share(rule.least_share)} of the window on."
