"""All rules over one launch: what was found, ranked, with one finding for each cause."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpusight.findings.finding import Confidence, Finding
from gpusight.findings.kernels.rule import Absent, Found, Rule, Verdict
from gpusight.findings.kernels.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.findings.kernels.launch import Launch


LARGE = 10.0
"""Gains beyond this are known to their order of magnitude only: other costs come up."""
MOST = 0.6
"""Part of what an effect would give back that its cause must give back to stand for it."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the rules say of one launch."""

    findings: tuple[Finding, ...]
    """The largest gain first."""
    clean: tuple[str, ...]
    absent: dict[str, Absent]


def judge(launch: Launch, rules: Mapping[str, Rule] = RULES) -> Judgement:
    """Ask every rule about a launch."""
    verdicts = {name: rule.judge(launch) for name, rule in rules.items()}
    found = {name: v for name, v in verdicts.items() if isinstance(v, Found)}
    findings = [_finding(rules[name], launch, v) for name, v in found.items()]
    return Judgement(
        findings=tuple(_one_for_each_cause(ranked(findings), rules)),
        clean=tuple(name for name, v in verdicts.items() if _is_clean(v)),
        absent={name: v for name, v in verdicts.items() if isinstance(v, Absent)},
    )


def ranked(findings: list[Finding]) -> list[Finding]:
    """Sort by what a fix gives back; the sort is stable, so that causes stay before effects."""
    return sorted(findings, key=lambda f: -(f.speedup or 0.0))


def _is_clean(verdict: Verdict) -> bool:
    return not isinstance(verdict, (Found, Absent))


def _finding(rule: Rule, launch: Launch, found: Found) -> Finding:
    confidence, reason = found.confidence, found.confidence_reason
    speedup = None if found.time_share is None else 1 / found.time_share
    if speedup is None:
        confidence, reason = Confidence.LOW, "the gain is not known"
    elif speedup > LARGE and confidence is Confidence.HIGH:
        confidence, reason = (
            Confidence.MEDIUM,
            f"{reason}, but so large a gain is an order of magnitude",
        )
    return Finding(
        rule=rule.id,
        title=found.title,
        where=launch.name,
        time_ns=launch.duration_ns,
        speedup=speedup,
        confidence=confidence,
        confidence_reason=reason,
        estimate=found.estimate,
        evidence=found.evidence,
        why=rule.why,
        fix=found.fix or rule.fix,
        code=found.code or rule.code,
        misleads=rule.misleads,
        sections=rule.sections,
    )


def _one_for_each_cause(findings: list[Finding], rules: Mapping[str, Rule]) -> list[Finding]:
    """Drop findings that another one accounts for, and name them there."""
    effects: dict[str, list[str]] = {}
    for effect in findings:
        cause = next((c for c in findings if _accounts_for(c, effect, rules)), None)
        if cause is not None:
            effects.setdefault(cause.rule, []).append(effect.rule)
    explained = {rule for rules_ in effects.values() for rule in rules_}
    return [
        replace(finding, also=tuple(effects.get(finding.rule, ())))
        for finding in findings
        if finding.rule not in explained
    ]


def _accounts_for(cause: Finding, effect: Finding, rules: Mapping[str, Rule]) -> bool:
    """Tell whether a finding names the cause of another, for most of what that one would give."""
    if effect.rule not in rules[cause.rule].explains:
        return False
    return (cause.saved_ns or 0.0) >= MOST * (effect.saved_ns or 0.0)
