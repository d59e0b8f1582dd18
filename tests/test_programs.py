"""The programs with known defects: what the registry has of them, and one that runs on a CPU."""

from __future__ import annotations

import argparse
import ast
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.programs import running
from benchmarks.programs.collect import measured_ms, missing_tasks, planned_seconds
from benchmarks.programs.registry import FOUND, GROUPS, PROGRAMS, REPAIRED
from gpusight.rules.registry import TIMELINE_RULES
from tests.shared import REPOSITORY

if TYPE_CHECKING:
    from benchmarks.programs.registry import Program

FOLDER = REPOSITORY / "benchmarks" / "programs"


def functions(module: str) -> set[str]:
    if module == "native":
        source = (FOLDER / "native.cu").read_text(encoding="utf-8")
        return {f"cuda_{name}" for name in re.findall(r"^Step (\w+)\(bool", source, re.MULTILINE)}
    tree = ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda program: program.name)
def test_every_program_has_its_function_and_names_rules_that_exist(program: Program) -> None:
    assert program.name in functions(program.module)
    assert set(program.expected) <= set(TIMELINE_RULES)
    assert program.variants == ((FOUND, REPAIRED) if program.defect else (FOUND,))
    assert program.defect or not program.expected


def test_the_groups_hold_every_program_once() -> None:
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(PROGRAMS)


def test_there_are_enough_programs_defects_and_healthy_ones() -> None:
    healthy = [program for program in PROGRAMS.values() if program.defect is None]
    assert len(PROGRAMS) >= 42
    assert len({program.expected[0] for program in PROGRAMS.values() if program.expected}) >= 18
    assert len(healthy) >= 8


def test_the_programs_in_cuda_are_all_listed() -> None:
    assert functions("native") == {p.name for p in PROGRAMS.values() if p.library == "cuda"}


def test_measured_step_times_replace_the_guess_in_the_plan() -> None:
    program = PROGRAMS["token_loop"]
    step_ms = measured_ms()["token_loop", FOUND]
    steps_s = (program.warmup + 3 * program.steps) * step_ms / 1e3
    assert planned_seconds(program, FOUND, "plain") == pytest.approx(steps_s + 4)
    assert planned_seconds(program, FOUND, "nsys") > planned_seconds(program, FOUND, "cupti")


def test_a_collection_goes_on_with_what_is_missing_most() -> None:
    one, other = PROGRAMS["token_loop"], PROGRAMS["nan_checks"]
    tasks = [
        (program, variant, doing)
        for program in (one, other)
        for variant in (FOUND, REPAIRED)
        for doing in ("plain", "nsys", "torch")
    ]
    plain_ms = {(one.name, FOUND): 1.0, (one.name, REPAIRED): 1.0, (other.name, FOUND): 1.0}

    def row(program: Program, variant: str, tool: str, **more: object) -> dict[str, object]:
        return {"program": program.name, "variant": variant, "tool": tool, **more}

    rows = [
        row(one, FOUND, "nsys", alone={}),
        row(one, FOUND, "torch"),
        row(one, REPAIRED, "nsys", error="no steps"),
        row(other, FOUND, "nsys", alone={}),
        row(other, REPAIRED, "nsys", alone={}),
        row(other, REPAIRED, "torch", alone={}),
    ]
    assert missing_tasks(tasks, rows, plain_ms) == [
        (other, FOUND, "torch"),
        (other, REPAIRED, "plain"),
        (one, REPAIRED, "torch"),
        (one, REPAIRED, "nsys"),
        (one, FOUND, "torch"),
    ]
    done = [row(*task, alone={}) for task in tasks]
    assert missing_tasks(tasks, done, dict.fromkeys(((p.name, v) for p, v, _ in tasks), 1.0)) == []


def test_step_times_are_of_programs_that_are_listed() -> None:
    measured = json.loads((FOLDER / "step_times_h200.json").read_text(encoding="utf-8"))
    for name, variants in measured["programs"].items():
        assert set(variants) <= set(PROGRAMS[name].variants)
        assert all(row.keys() <= {"plain_ms", "run_ms"} for row in variants.values())


def test_about_half_of_the_programs_are_held_out() -> None:
    held_out = sum(program.held_out for program in PROGRAMS.values())
    assert 0.35 < held_out / len(PROGRAMS) < 0.65


@pytest.mark.parametrize("source", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_no_program_marks_its_steps(source: Path) -> None:
    text = source.read_text(encoding="utf-8")
    assert "nvtx" not in text
    assert "record_function" not in text


def test_a_program_prints_its_step_time_for_each_repeat(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "PAUSE_S", 0)
    times = tmp_path / "times.json"
    args = argparse.Namespace(variant=FOUND, device="cpu", steps=2, times=times, repeats=2)
    running.run(PROGRAMS["small_features"], args)
    assert capsys.readouterr().out.count("step time: ") == 2
    assert [len(timed["step_ms"]) for timed in json.loads(times.read_text())] == [2, 2]
