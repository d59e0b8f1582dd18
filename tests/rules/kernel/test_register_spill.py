"""The rule `register-spill` on launches built by hand."""

from __future__ import annotations

from gpusight.rules.rule import KernelRuleMatch, RuleNotApplicable
from tests.rules.kernel.rule_launches import matched, speedup
from tests.rules.launches import STALLED, launch_of, verdict_of


def test_spilled_instructions_are_not_issued_any_more() -> None:
    spilling = {
        "smsp__sass_inst_executed_op_local_ld.sum": 400_000,
        "smsp__sass_inst_executed_op_local_st.sum": 100_000,
        "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum": 40_000_000,
        "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum": 40_000_000,
        "lts__t_sectors_srcunit_tex.sum": 80_000_000,
        "dram__bytes_read.sum": 20_000_000_000,
        STALLED.format("wait"): 1,
    }
    array = matched("register-spill", spilling)
    spill = matched("register-spill", {**spilling, "derived__local_spilling_requests": 500_000})
    assert speedup(spill) > 1.5 * speedup(array)


def test_spills_alone_do_not_show_arrays_in_local_memory() -> None:
    printed = {"derived__local_spilling_requests": 0, "derived__local_spilling_requests_pct": 0}
    lacking = ("_op_local_", "mem_local")
    launch = launch_of(printed, without=lacking)
    assert isinstance(verdict_of("register-spill", launch), RuleNotApplicable)
    spilling = {**printed, "derived__local_spilling_requests_pct": 90}
    assert isinstance(
        verdict_of("register-spill", launch_of(spilling, without=lacking)), KernelRuleMatch
    )
