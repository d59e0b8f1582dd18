"""The pages docs/kernel-rules.md and docs/timeline-rules.md, from the rules themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.render.diagnosis_summary import language
from gpusight.render.markdown_tables import markdown_prose, markdown_table
from gpusight.rules.context import MAX_SAMPLE_MISS, MAX_SAMPLE_OPS
from gpusight.rules.engine import MAX_REPLAY_ERROR, PROFILER_LAUNCH_NS
from gpusight.rules.registry import kernel_rules, timeline_rules
from gpusight.units import format_count, format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.rules.rule import KernelRule, Rule, TimelineRule


_KERNEL_INTRODUCTION = """\
`gpusight diagnose FILE` evaluates these rules on every kernel of an Nsight Compute report or CSV.
A rule *finds* a problem (with evidence, an estimated speedup and code), *passes*, or is *not
applicable*. Then it names the section to collect: `ncu --section NAME`, or `ncu --set full`."""
_KERNEL_MODEL = """\
## How speedups are estimated

The busiest unit sets the time of a kernel. Where no unit reaches 60% of its peak, warp stalls do. A
fix reduces the load of some units and some stalls. The remaining time is the larger of two: the
time of the next busiest unit, and the remaining stalls. Units reach at most 90% of their peak, and
launching and draining a grid takes 1.5 µs. A speedup below 1.1x is not a finding, except for
`memory-bound`, `compute-bound` and `latency-bound`, which show the distance to the roofline.

Kernels are ordered by the time that their first fix saves over all launches, findings of a kernel
by speedup. Fixes of one kernel do not add up. Where one rule names the cause of what another one
detects, such as bank conflicts of a busy L1, only the cause is a finding; `also` lists the other.

A kernel at the roofline (80% of a peak in bandwidth or FLOP/s) gains only by doing less: its
speedup is 1. Below 60% of every peak no bandwidth is exhausted: the kernel is `latency-bound`, also
where its warps mostly stall on memory. DRAM is named where it is at 85% of the busiest memory unit
or more, since its bytes pass L2 and L1 too.

Kernels of libraries and frameworks (cuBLAS, cuDNN, PyTorch) are recognized by their names. Their
code and grid are not yours to change, so the advice is how to call them: batch size, layout,
precision, fusion.

Launches of one kernel with the same grid and block are one row. Times and speedups are of all of
them; texts and evidence are of the longest launch that has the finding, which `explain` names."""
_CHECKED = """\
## Accuracy

On 80 kernels written and captured before the rules were run on them, the first finding was an
accepted one for 64 with a full set (31 of 61 CUDA kernels with the basic set). Half of 39 measured
speedups were within a factor of 1.5. These kernels have since been used to improve the rules (72 of
80 now), so this is no longer a blind test. All are from one GPU model, an H200. The thresholds were
set with 84 further kernels on it.

Known errors, with examples from those kernels:

- Repeated sweeps over the same data from DRAM are `memory-bound`. That one sweep is enough (5.8x)
  is not detected.
- Binary search at random keys: the estimate for sorted keys is too low (2.3x instead of 8x).
- Random reads inside L2 look like uncoalesced accesses: up to 2.9x is estimated where there is no
  gain.
- Tiny blocks: the estimate is too low (4x; larger blocks with wider loads gave 18x).
- Compare-and-swap loops on one address: retries are not counted, so the estimate is far too low.
- Estimates above 10x are an order of magnitude only.

Without the counters (`--set basic` has none for accesses, conflicts, spills and divergence),
kernels are reported at the roofline, and a note lists the rules that were not evaluated."""
_KERNEL_JSON = """\
## JSON

`--format json` writes one object. `kernels` has an entry for every launch, those of the kernel with
the largest saving first:

```text
{"meta": {"command", "title", "tool", "tool_version", "gpus", "launches", "duration_ns", "saved_ns",
          "notes"},
 "saved_ns": …,
 "kernels": [{"name", "label", "launch", "duration_ns", "device", "grid", "block", "held_by",
              "saved_ns",
              "findings": [{"rule", "title", "where", "speedup", "saved_ns", "confidence",
                            "confidence_reason", "effort", "estimate",
                            "evidence": [{"metric", "value", "unit", "meaning"}],
                            "why", "fix", "code", "misleads", "sections",
                            "places": [{"path", "line", "share", "text"}], "also"}],
              "clean": [rule], "not_applicable": [{"rule", "reason", "sections"}],
              "profiler_rules": [{"rule", "title", "section", "kind", "speedup_kind",
                                  "speedup_percent", "message"}]}]}
```

`speedup` is old time over new time, at least 1, or null where it is unknown. `confidence` is `high`
(all inputs of the estimate were measured), `medium` (a part was assumed) or `low` (an upper bound).
`effort` is `one line`, `config` or `rewrite`. Values of evidence are in base units, those with unit
`share` from 0 to 1. `held_by` is what limits the launch (`memory`, `compute` or `latency`), the
same as `bound` in `gpusight roofline` and `gpusight kernels` ([roofline.md](roofline.md))."""


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
    yield f"**Caveats.** {markdown_prose(rule.caveats)}"


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
`gpusight diagnose FILE` checks a timeline (Nsight Systems, torch.profiler, JAX) with these rules.
Each has one of three results: a *finding*, with evidence, the time that the fix saves and what to
change; *passed*; or *not applicable*, with the reason. Kernels profiled with Nsight Compute have
rules of their own ([kernel-rules.md](kernel-rules.md)), and you can write further ones
([writing-rules.md](writing-rules.md))."""
_SAMPLED = format_count(MAX_SAMPLE_OPS)
_SAMPLE_MISS = format_share(MAX_SAMPLE_MISS)
_TIMELINE_MODEL = f"""\
## How time is estimated

A rule detects a problem and defines the change that its fix makes. The change is applied in a
replay of the captured steps: host threads keep their own work and recompute their waits; GPU work
keeps its order, durations and dependencies. The saving is the difference in step time. A fix that
only exposes the next bottleneck saves only the difference.

- Findings form a plan: the fix that saves most first, then the one that saves most after it, and so
  on. What a fix needs comes before it: a CUDA graph cannot contain blocking syncs. *Saves/step* is
  incremental, so the rows add up to the total. `explain` also shows what a fix saves alone.
- A fix that saves nothing alone and little in the plan is not listed.
- The replay of the unchanged program is compared with the measured time; the difference is the
  simulation error. Above {format_share(MAX_REPLAY_ERROR)} a note reports it first and
  lowers confidence.
- Findings that the plan would swap without {format_time(PROFILER_LAUNCH_NS)} of profiler overhead
  per launch are marked (`"robust": false`).
- With more than {_SAMPLED} GPU activities, the replay uses as many consecutive steps as contain
  so many: those whose mean step time, GPU time and number of activities are closest to the whole
  window's. Where these differ by over {_SAMPLE_MISS}, it uses up to twice as many. The result is
  scaled, and a note reports it.
- Warm-up, or the program start where no steps are found, is left out by default; `--steps`,
  `--in`, `--window` and `--warmup` choose another window ([ledger.md](ledger.md))."""
_GATES = """\
## Gates

`--fail-over 5%` sets exit code 1 when one fix of the plan saves more than 5% of the window after
those above it, and names it. For an Nsight Compute report it is the first finding of a kernel, as
a share of the time of all kernels. Given both, the timeline decides: faster kernels do not help
while the GPU is idle.

An incomplete capture never passes: the exit code is 1 when launch or copy calls have no GPU work in
the capture, or when the reader or the profiler reports lost data. The same holds when a rule named
by `--rule` lacked data."""
_TIMELINE_JSON = """\
## JSON

`--format json` writes one object:

```text
{"meta": {"command", "title", "path", "tool", "gpu", "device", "notes"},
 "window": {"start_ns", "end_ns", "steps", "steps_left_out", "step_ns", "recorded_step_ns"},
 "profiler",
 "replay": {"error", "steps", "length_ns"},
 "findings": [{"rule", "title", "recoverable_ns", "share", "recoverable_ns_per_step",
               "after_above_ns", "confidence", "confidence_reason", "effort", "robust",
               "estimate",
               "evidence": [{"metric", "value", "unit", "meaning"}],
               "why", "fix", "code", "afterwards", "misleads",
               "where": [{"kind", "name", "ns", "count"}]}],
 "incomplete": [reason], "clean": [rule], "not_applicable": [{"rule", "reason"}],
 "ledger": {"window", "devices": [{"device", "entries": [{"entry", "ns", "share"}]}]}}
```

`recoverable_ns`, `share` and `after_above_ns` are of the whole window; they are null for findings
without a time estimate. `confidence` is `high` (all was measured), `medium` (a part was assumed)
or `low` (an upper bound). Values of evidence are in base units, those with unit `share` from 0 to
1. With an Nsight Compute report next to the timeline there are also `kernels`, those that save the
most GPU time first:

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
        yield "It is a finding whatever it saves."
    else:
        yield f"It is a finding if it saves at least {format_share(rule.min_share)} of the window."
