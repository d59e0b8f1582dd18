"""The rule `fp64-heavy` on launches built by hand."""

from __future__ import annotations

import pytest

from gpusight.rules.rule import KernelRuleMatch
from tests.rules.kernel.rule_launches import FOUND, matched
from tests.rules.launches import launch_of, verdict_of


def test_the_estimate_follows_the_rate_of_fp64() -> None:
    fp64 = matched("fp64-heavy", **FOUND["fp64-heavy"])
    # H200: FP64 at half the FP32 rate, and the FP32 pipe has 5% to do already.
    assert fp64.time_share == pytest.approx((0.05 + 0.97 / 2) / 0.97, rel=0.05)


def test_the_rate_of_fp64_is_that_of_the_gpu() -> None:
    from dataclasses import replace

    from gpusight.hardware.gpu_lookup import find_gpu

    launch = launch_of(**FOUND["fp64-heavy"])
    geforce = replace(launch, gpu=find_gpu("RTX 4090"))
    ours, theirs = verdict_of("fp64-heavy", launch), verdict_of("fp64-heavy", geforce)
    assert isinstance(ours, KernelRuleMatch)
    assert isinstance(theirs, KernelRuleMatch)
    assert theirs.time_share is not None
    assert ours.time_share is not None
    assert theirs.time_share < ours.time_share / 2
    assert "1/64" in theirs.title
