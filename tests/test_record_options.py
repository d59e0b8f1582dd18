"""What `benchmarks.record_options` runs on a machine with a GPU, and the table that it prints."""

from __future__ import annotations

import inspect

import pytest

from benchmarks.record_options import HOST_BOUND, OPTIONS, chosen_options, print_table
from gpusight.recording.inside import cupti_library, cupti_recorder


def test_one_call_measures_the_options_of_the_tools_that_were_asked_for() -> None:
    chosen = chosen_options(None, "cupti,torch")
    assert chosen[0] == "plain"
    assert {name.split()[0] for name in chosen} == {"plain", "cupti", "torch"}
    assert chosen_options(None, "nsys,cupti,torch") == list(OPTIONS)
    assert chosen_options("plain;torch shapes", "nsys") == ["plain", "torch shapes"]


def test_kinds_and_arguments_that_are_left_out_or_added_exist() -> None:
    for words in OPTIONS.values():
        if words[:1] == ("cupti",):
            kinds = {getattr(cupti_library, name) for name in words[1:]}
            assert kinds <= set(cupti_recorder._OPTIONAL)
        if words[:1] == ("torch",):
            profiler = pytest.importorskip("torch.profiler")
            assert set(words[1:]) <= inspect.signature(profiler.profile).parameters.keys()


def test_what_was_not_reached_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    names = list(HOST_BOUND[:2])
    print_table({"plain": {names[0]: [[1.0, 2.0], [3.0, 6.0]], names[1]: []}}, names)
    assert "| plain (2 runs) | 2 / 4 | - |" in capsys.readouterr().out
