"""Outputs of commands and functions are those of the fixture, byte for byte.

A part of the cases runs here; `scripts/goldens --check`, or GPUSIGHT_ALL_GOLDENS=1, runs them all.
After a change that is meant: `scripts/goldens`, and look at the lines that differ in the fixture.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpusight as gs
from gpusight.cli.commands import COMMANDS
from tests.goldens.cases import cases, cases_of_suite
from tests.goldens.regenerate import read_goldens
from tests.goldens.running import Workplace, run, stable_text, workplace

ALL = os.environ.get("GPUSIGHT_ALL_GOLDENS", "0") not in ("", "0")
GOLDENS = read_goldens()
NOT_RUN = {
    "annotate",  # records, and has no output
    "annotate_model",
    "doctor",  # describes the machine
    "mark",
    "profile",
    "record",
    "step",
    "torch_profile",
}


@pytest.fixture(scope="module")
def place() -> Iterator[Workplace]:
    with workplace() as made:
        yield made


@pytest.mark.parametrize("case", cases() if ALL else cases_of_suite())
def test_outputs_are_the_golden_ones(case: str, place: Workplace) -> None:
    outcome = run(case, place)
    assert outcome.digest == GOLDENS[case], (
        f"{case} differs: scripts/goldens --save FOLDER on the old tree, then --against FOLDER\n"
        f"{outcome.text[:2000]}"
    )


def test_the_last_bits_of_floats_are_no_difference() -> None:
    texts = [
        '{"ns": 43195826.666666664, "share": -0.1}',
        '{"ns": 43195826.66666667, "share": -0.1}',
    ]
    stable = {stable_text(text, Path("/nowhere")) for text in texts}
    assert stable == {'{"ns": 43195826.67, "share": -0.1}'}
    kept = "0.9183980578x 1.2.34567890123456 20250101.123 M10.1234567890123"
    assert stable_text(kept, Path("/nowhere")) == kept


def test_the_fixture_has_every_case_and_no_other() -> None:
    assert sorted(GOLDENS) == sorted(cases())
    assert set(cases_of_suite()) <= set(cases())


def test_every_command_and_function_has_cases() -> None:
    named = " ".join(cases()).replace("served(", "gs.serve(")
    functions = {name for name in gs.__all__ if inspect.isfunction(getattr(gs, name))}
    assert [name for name in sorted(functions - NOT_RUN) if f"gs.{name}(" not in named] == []
    assert [name for name in COMMANDS if f"gpusight {name} " not in named] == []


def test_a_case_depends_on_nothing_around_it(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case = "gpusight info demo.sqlite --format table"
    for name, value in {"COLUMNS": "40", "TZ": "Asia/Tokyo", "GPUSIGHT_DEBUG": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert run(case, place).digest == GOLDENS[case]
    assert Path.cwd() == tmp_path


def test_a_changed_output_is_noticed(place: Workplace) -> None:
    case = "gpusight info demo.sqlite --format table"
    assert run(f"{case} --wide --top 1", place).digest != GOLDENS[case]
    assert run("gpusight info nothing", place).code == "2"
