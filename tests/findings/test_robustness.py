"""Whatever a capture holds, every rule answers, and no gain is nonsense."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from gpusight.rules.diagnosis_results import KernelReportDiagnosis
from gpusight.rules.kernel_diagnosis import diagnose_kernels
from gpusight.rules.kernel_launch import QUANTITIES
from gpusight.rules.registry import KERNEL_RULES
from tests.findings.launches import HEALTHY, trace_of

METRICS = sorted({m for q in QUANTITIES for f in q.formulas for m in f.metrics})
VALUES = st.one_of(
    st.sampled_from([0.0, 1.0, 32.0, 100.0, -1.0, 1e18, float("nan"), float("inf")]),
    st.floats(0, 120),
    st.floats(0, 1e12),
)
SIDES = st.sampled_from([None, 0, 1, 33, 132, 70_000])


@settings(max_examples=70, deadline=None)
@given(
    counters=st.dictionaries(st.sampled_from(METRICS), VALUES, max_size=60),
    lacking=st.lists(st.sampled_from(sorted(HEALTHY)), max_size=30),
    grid=SIDES,
    block=SIDES,
    duration=st.sampled_from([None, 0.0, 900.0, 3e3, 2e5, 1e12]),
    name=st.sampled_from(["k", "sgemm_nn", "flash_fwd_kernel", ""]),
)
def test_every_rule_answers(
    counters: dict[str, float],
    lacking: list[str],
    grid: int | None,
    block: int | None,
    duration: float | None,
    name: str,
) -> None:
    trace = trace_of(
        {
            "counters": counters,
            "grid_x": grid,
            "block_x": block,
            "duration_ns": duration,
            "name": name,
        },
        without=[metric for metric in lacking if metric not in counters],
    )
    found = diagnose_kernels(trace)
    assert isinstance(found, KernelReportDiagnosis)
    (kernel,) = found.kernels
    also = [rule for f in kernel.findings for rule in f.also]
    rules = [f.rule for f in kernel.findings]
    assert sorted([*rules, *also, *kernel.clean, *kernel.not_applicable]) == sorted(KERNEL_RULES)
    for finding in kernel.findings:
        assert finding.speedup is None or 1 <= finding.speedup <= 1000
        assert all(math.isfinite(e.value) for e in finding.evidence)
    gains = [f.speedup or 0.0 for f in kernel.findings]
    assert gains == sorted(gains, reverse=True)
