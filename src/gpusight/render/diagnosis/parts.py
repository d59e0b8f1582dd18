"""The parts of an explanation, the same in every form: what was seen, gained, to do, and said."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight import units
from gpusight.analyses.counters.quantity import SHARE
from gpusight.render.cells import safe_text
from gpusight.render.diagnosis.tables import NO_GAIN, gain

if TYPE_CHECKING:
    from gpusight.findings.finding import Evidence, Finding
    from gpusight.findings.kernels.diagnosis import Diagnosis, KernelGroup, ProfilerRule
    from gpusight.findings.timeline.finding import TimelineFinding

OWN_RULES = 3
"""Results of the profiler's own rules that are shown for a kernel."""
_SENTENCE = re.compile(r"(?<=[a-z)%])\.\s+(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Explained:
    """One kernel, explained: texts that are safe to print, not yet wrapped or escaped."""

    title: str
    subtitle: str
    findings: tuple[Finding, ...]
    profiler: tuple[str, ...]
    """What the profiler's own rules said, in brief."""


def explained(diagnosis: Diagnosis, group: KernelGroup) -> Explained:
    """Put together what is said of a kernel."""
    return Explained(
        title=safe_text(group.label),
        subtitle=_subtitle(diagnosis, group),
        findings=group.findings,
        profiler=tuple(map(_said, _foremost(group.longest.profiler_rules))),
    )


def _subtitle(diagnosis: Diagnosis, group: KernelGroup) -> str:
    numbers = [str(k.launch) for k in group.kernels]
    shown = ", ".join(numbers[:4]) + (f" and {len(numbers) - 4} more" if len(numbers) > 4 else "")
    parts = [f"launch {shown}" if len(numbers) == 1 else f"launches {shown}"]
    if group.duration_ns:
        share = units.format_share(group.duration_ns / diagnosis.duration_ns)
        parts.append(f"{units.format_time(group.duration_ns)}, {share} of the time")
    shape = group.longest
    if None not in (*shape.grid, *shape.block):
        parts.append(f"grid {_dims(shape.grid)}, block {_dims(shape.block)}")
    return "; ".join(parts)


def _dims(sides: tuple[int | None, ...]) -> str:
    kept = [s for s in sides if s is not None]
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return " x ".join(f"{s:,}" for s in kept)


def verdict(finding: Finding) -> str:
    """Give the gain of a finding as a phrase: `2.1x, saves 520 µs`."""
    if finding.speedup is None:
        return "gain not known"
    if finding.speedup < NO_GAIN:
        return "nothing to gain"
    text, saved = gain(finding) or "", finding.saved_ns
    return f"{text}, saves {units.format_time(saved)}" if saved else text


def trust(finding: Finding | TimelineFinding) -> str:
    """Give how the gain was estimated and how far to trust it, as one sentence."""
    how = finding.estimate.rstrip(".")
    return f"{how} ({finding.confidence.value} confidence: {finding.confidence_reason})"


def value_of(evidence: Evidence) -> str:
    """Show a number of the evidence in its unit."""
    if evidence.unit == SHARE:
        return units.format_share(evidence.value)
    if evidence.unit == "byte":
        return units.format_bytes(evidence.value)
    if evidence.unit == "byte/s":
        return units.format_rate(evidence.value)
    if evidence.unit == "ns":
        return units.format_time(evidence.value)
    if evidence.unit == "flop/s":
        return f"{units.format_real(evidence.value / 1e12)} TFLOP/s"
    text = units.format_count(evidence.value if evidence.value < 1e4 else round(evidence.value))
    return f"{text} cycles" if evidence.unit == "cycle" else text


def _foremost(said: tuple[ProfilerRule, ...]) -> list[ProfilerRule]:
    """Choose what the profiler would do first; what it only mentions stays out."""
    advice = [r for r in said if r.kind == "optimization" and r.message]
    if not advice:  # versions up to 2021 call it so; later ones warn of metrics that are missing
        advice = [r for r in said if r.kind in {"warning", "error"} and r.message]
    of_launch = {"global": 1, "local": 0}
    return sorted(
        advice,
        key=lambda r: (-of_launch.get(r.speedup_kind or "", 0), -(r.speedup_percent or 0.0)),
    )[:OWN_RULES]


def _said(result: ProfilerRule) -> str:
    """Give a result of the profiler's rules in one sentence of its own."""
    message = " ".join((result.message or "").split())
    first = safe_text(_SENTENCE.split(message, maxsplit=1)[0]).rstrip(".")
    percent = "" if result.speedup_percent is None else f" ({result.speedup_percent:.0f}%)"
    return f"{safe_text(result.rule)}{percent}: {first}."
