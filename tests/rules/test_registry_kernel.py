"""Each kernel rule on launches built by hand: found, clean, and not applicable."""

from __future__ import annotations

import pytest

from gpusight.rules.registry import KERNEL_RULES, kernel_rules
from gpusight.rules.rule import Clean, KernelRuleMatch, RuleNotApplicable
from tests.rules.kernel.rule_launches import CLEAN, FOUND, LACKING
from tests.rules.launches import launch_of, verdict_of


@pytest.mark.parametrize("rule", sorted(KERNEL_RULES))
def test_found(rule: str) -> None:
    verdict = verdict_of(rule, launch_of(**FOUND[rule]))
    assert isinstance(verdict, KernelRuleMatch)
    assert verdict.evidence
    assert verdict.time_share is not None
    assert 0 < verdict.time_share <= 1
    assert verdict.title
    assert verdict.estimate


@pytest.mark.parametrize("rule", sorted(KERNEL_RULES))
def test_clean(rule: str) -> None:
    assert isinstance(verdict_of(rule, launch_of(**CLEAN[rule])), Clean)


@pytest.mark.parametrize("rule", sorted(KERNEL_RULES))
def test_not_applicable(rule: str) -> None:
    verdict = verdict_of(rule, launch_of(without=LACKING[rule], **FOUND[rule]))
    assert isinstance(verdict, RuleNotApplicable)
    assert verdict.reason
    assert verdict.sections


@pytest.mark.parametrize("rule", sorted(KERNEL_RULES))
def test_a_capture_of_nothing_but_durations_is_not_applicable(rule: str) -> None:
    launch = launch_of(without=("",), grid_x=None, block_x=None, compute_major=None)
    assert isinstance(verdict_of(rule, launch), RuleNotApplicable)


@pytest.mark.parametrize("rule", sorted(KERNEL_RULES))
def test_rules_explain_themselves(rule: str) -> None:
    declared = kernel_rules()[rule]
    texts = (declared.detects, declared.why, declared.fix, declared.caveats, declared.estimate)
    assert all(text.endswith(".") for text in texts)
    assert declared.explains <= KERNEL_RULES.keys()
    assert rule not in declared.explains
    assert declared.sections
    assert all(threshold.why for threshold in declared.thresholds.values())
    # The snippet is shown behind a margin of 11 columns on a screen of 80.
    assert max(map(len, declared.code.splitlines())) <= 69
