"""How right diagnoses are: scores of captures, what is summed up of them, and the page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tools.accuracy_page import MAX_ERROR, accuracy_parts, unexplained, worst_cases

from benchmarks.programs import accuracy
from benchmarks.programs.accuracy import Errors
from benchmarks.programs.registry import FOUND, PROGRAMS, REPAIRED
from benchmarks.programs.score import captures, own_times, read_rows, score, write_rows
from gpusight.rules.finding import TABLE, PastPredictions, past_predictions
from gpusight.rules.registry import TIMELINE_RULES
from tests.shared import REPOSITORY

DEMO = REPOSITORY / "src" / "gpusight" / "data" / "demo.sqlite"
"""A launch-bound training loop."""


def row(program: str, tool: str = "nsys", **changes: Any) -> dict[str, Any]:
    """Make the row of a capture of a program as found, whose diagnosis is right in everything."""
    of = PROGRAMS[program]
    return {
        "program": program,
        "variant": FOUND,
        "tool": tool,
        "held_out": of.held_out,
        "defect": of.defect,
        "library": of.library,
        "expected": list(of.expected),
        "plain_ms": 20.0,
        "steps": 10,
        "unit": 1,
        "recorded_ms": 30.0,
        "pace_ms": 20.0,
        "step_ms": 20.0,
        "plan": [[rule, 0.5, "high"] for rule in of.expected[:1]],
        "right": True if of.expected else None,
        "applied": list(of.expected[:1]),
        "predicted_ms": 10.0 if of.expected else None,
        "repaired_ms": 10.0 if of.expected else None,
        "ledger": {"compute/matmul": 1.0},
    } | changes


def test_nine_of_ten_errors_are_at_most_the_ninth() -> None:
    errors = Errors(tuple(number / 100 for number in range(-10, 0)))
    assert (errors.median, errors.ninth, errors.worst) == (0.055, 0.09, 0.1)
    assert Errors((-0.3, 0.1)).ninth == 0.3


def test_a_healthy_program_is_accused_by_a_claim_of_more_than_a_twentieth() -> None:
    healthy = row("large_gemms", plan=[["small-grid", 0.04, "high"], ["launch-bound", 0.2, "low"]])
    assert accuracy.accusations(healthy) == [("launch-bound", 0.2)]
    assert accuracy.accusations(row("large_gemms", plan=[["memory-growth", None, "high"]])) == []


def test_a_repaired_program_may_have_other_findings_but_not_its_old_one() -> None:
    plan = [["host-sync", 0.3, "high"], ["launch-bound", 0.2, "high"]]
    repaired = row("logged_activations", variant=REPAIRED, plan=plan)
    assert accuracy.found_again(repaired) == [("host-sync", 0.3)]


def test_tools_agree_on_the_first_finding_and_the_step() -> None:
    rows = [row("token_loop", "nsys"), row("token_loop", "cupti", step_ms=21.0)]
    (pair,) = accuracy.agreements(rows)
    assert pair.agree
    (pair,) = accuracy.agreements([rows[0], row("token_loop", "cupti", step_ms=23.0)])
    assert pair.same_first
    assert not pair.agree
    # torch.profiler records one process, so that it cannot see who shares the GPU.
    assert not accuracy.agreements([row("shared_gpu", "nsys"), row("shared_gpu", "torch")])


def test_a_rule_with_few_pairs_is_represented_by_its_kind() -> None:
    rows = [row("token_loop", tool, predicted_ms=12.0) for tool in ("nsys", "cupti", "torch")]
    rows += [row("pageable_batches", predicted_ms=5.0)]
    table = accuracy.past_predictions(rows)
    assert table["launch-bound"] == PastPredictions("launch-bound", 3, 1, 0.2, 0.2)
    assert table["host-sync"].of == "host time"
    assert table["pageable-copy"] == PastPredictions("all rules", 4, 2, 0.2, 0.5)
    assert "memory-growth" not in table  # its fix saves no time


def test_a_defect_that_was_not_found_is_no_prediction_of_a_rule() -> None:
    rows = [row("token_loop", tool, applied=[]) for tool in ("nsys", "cupti", "torch")]
    assert accuracy.past_predictions(rows) == {}
    assert len(accuracy.predictions(rows)) == 3


def test_a_prediction_of_more_fixes_than_the_repair_makes_is_no_error_of_a_rule() -> None:
    """The repair of looped_optimizer is another optimizer; CUDA graphs would be right too."""
    assert PROGRAMS["looped_optimizer"].repairs == ("unfused-optimizer",)
    assert "launch-bound" in PROGRAMS["looped_optimizer"].expected
    tools = ("nsys", "cupti", "torch")
    both = [
        row("looped_optimizer", tool, applied=["launch-bound", "unfused-optimizer"])
        for tool in tools
    ]
    assert accuracy.past_predictions(both) == {}
    assert not any(pair.is_of_the_repair for pair in accuracy.predictions(both))
    one = [row("looped_optimizer", tool, applied=["unfused-optimizer"]) for tool in tools]
    assert accuracy.past_predictions(one)["unfused-optimizer"].pairs == 3


def test_what_the_fix_saves_is_compared_as_a_share_of_the_step_too() -> None:
    (pair,) = accuracy.predictions([row("token_loop", step_ms=30.0, predicted_ms=15.0)])
    assert pair.error == 0.5
    assert pair.saved == (0.5, 0.5)


def test_repairs_are_fixes_of_rules_that_exist() -> None:
    for program in PROGRAMS.values():
        assert set(program.repairs) <= set(TIMELINE_RULES), program.name
        assert program.defect or not program.repairs


def test_kinds_name_rules_that_exist_and_each_once() -> None:
    rules = [rule for kind in accuracy.KINDS.values() for rule in kind]
    assert set(rules) <= set(TIMELINE_RULES)
    assert len(rules) == len(set(rules))


def test_worst_cases_are_what_is_wrong_or_far_off() -> None:
    rows = [
        row("token_loop", right=False),
        row("ode_solver", step_ms=20.0 * (1.01 + MAX_ERROR)),
        row("lbfgs_fit", predicted_ms=10.0 * (1.01 + MAX_ERROR)),
        row("large_gemms", plan=[["small-grid", 0.1, "high"]]),
        row("fp32_matmuls"),
    ]
    assert worst_cases(rows) == {
        "large_gemms": ["accused (nsys)"],
        "lbfgs_fit": ["after the fix +21% (nsys)"],
        "ode_solver": ["step +21% (nsys)"],
        "token_loop": ["first finding wrong (nsys)"],
    }
    page = "\n".join(accuracy_parts(rows))
    assert "| token_loop | first finding wrong (nsys) |" in page


def test_collections_replace_the_step_times_of_their_programs(tmp_path: Path) -> None:
    known, results = tmp_path / "times.json", tmp_path / "results.json"
    old = {"found": {"plain_ms": [9.0], "run_ms": {"nsys": 12.0}}}
    known.write_text(json.dumps({"machine": {}, "programs": {"ode_solver": old, "jax_scan": old}}))
    measured = {
        "plain": [{"mean_ms": 7.0}, {"mean_ms": 8.0}],
        "recorded": {"torch": {"mean_ms": 15.0}, "cupti": {"mean_ms": None}},
    }
    programs = {"ode_solver": {"variants": {"found": measured}}}
    machine = {"gpu": "H200", "date": "2026-11-19"}
    results.write_text(json.dumps({"machine": machine, "programs": programs}))
    merged = accuracy.merge_times([results], known)
    assert merged["machine"] == machine
    assert merged["programs"]["jax_scan"] == old
    assert merged["programs"]["ode_solver"]["found"] == {
        "plain_ms": [7.0, 8.0],
        "run_ms": {"nsys": 12.0, "torch": 15.0},
        "date": "2026-11-19",
    }
    assert own_times(tmp_path) == {("ode_solver", FOUND): 7.5}


def test_a_capture_becomes_a_row(tmp_path: Path) -> None:
    shutil.copy(DEMO, tmp_path / "looped_optimizer.found.cupti.sqlite")
    (tmp_path / "looped_optimizer.found.cupti.log").write_text("")
    (tmp_path / "results.json").write_text("{}")
    (capture,) = captures(tmp_path)
    plain_ms = {("looped_optimizer", FOUND): 30.0, ("looped_optimizer", REPAIRED): 20.0}
    scored = score(capture, plain_ms)
    assert (scored["program"], scored["tool"], scored["plain_ms"]) == (
        "looped_optimizer",
        "cupti",
        30.0,
    )
    assert scored["right"] == (scored["plan"][0][0] in PROGRAMS["looped_optimizer"].expected)
    assert 0 < scored["predicted_ms"] <= scored["step_ms"]
    assert set(scored["applied"]) <= {"unfused-optimizer"}
    assert {rule for rule, *_ in scored["plan"]} <= set(scored["alone"])
    assert all(0 < ms <= scored["step_ms"] for ms in scored["alone"].values())
    assert scored["repaired_ms"] == 20.0
    assert sum(scored["ledger"].values()) == pytest.approx(1, abs=0.01)
    file = tmp_path / "rows.json"
    write_rows(file, [scored])
    assert read_rows(file) == [scored]


def test_what_was_not_recorded_is_a_row_too(tmp_path: Path) -> None:
    text = "gpusight record: nothing was recorded: no steps were counted; record all of it: …"
    (tmp_path / "token_loop.found.nsys.log").write_text(f"step time: 3 ms\n{text}\n")
    (log,) = captures(tmp_path)
    assert score(log, {})["error"] == "nothing was recorded: no steps were counted"


def test_what_cannot_be_diagnosed_is_a_row_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "token_loop.found.nsys.nsys-rep"
    path.write_bytes(b"nothing")
    scored = score(path, {})
    assert str(tmp_path) not in scored["error"]
    assert "first finding wrong (nsys)" in worst_cases([scored])["token_loop"]


# What is committed --------------------------------------------------------------------------------


def test_the_committed_rows_are_of_programs_that_are_listed() -> None:
    for scored in read_rows():
        program = PROGRAMS[scored["program"]]
        assert scored["variant"] in program.variants
        assert scored["held_out"] == program.held_out


def test_what_gpusight_ships_is_in_step_with_the_rows() -> None:
    written = TABLE.read_text(encoding="utf-8")
    assert written == accuracy.table_text(read_rows()), (
        "run python -m benchmarks.programs.accuracy table"
    )
    assert past_predictions() == accuracy.past_predictions(read_rows())


def test_every_worst_case_of_the_design_half_is_explained() -> None:
    assert unexplained(read_rows()) == [], "add a sentence to CAUSES in tools/accuracy_page.py"
