"""The pace of a program, as it is stored with a capture."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusight.pace import Pace, sidecar_path


def test_a_pace_is_one_line_that_reads_back() -> None:
    pace = Pace.of(44e6, [9e6, 10e6, 11e6, 12e6], how="before", source="optimizer")
    assert pace == Pace(4, 11_000_000, 10_500_000, pace.spread, "before", "optimizer")
    assert 0.1 < pace.spread < 0.3
    assert pace.to_text().startswith('{"version":1,"steps":4,"mean_ns":11000000,')
    assert Pace.from_text(pace.to_text()) == pace


def test_a_single_run_has_no_spread() -> None:
    pace = Pace.of(5e9, [5e9], how="second run", source="program")
    assert (pace.steps, pace.mean_ns, pace.median_ns, pace.spread) == (1, 5e9, 5e9, 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('"version":1', '"version":2'), "version 1"),
        (('"steps":2', '"steps":0'), "took time"),
        (('"mean_ns":10', '"mean_ns":NaN'), "mean_ns of a pace"),
        (('"mean_ns":10', '"mean_ns":"x"'), "mean_ns of a pace"),
        (('"before"', '"guessed"'), "unknown pace"),
        (('"gs.step"', '"epoch"'), "unknown pace"),
        (("{", "["), "delimiter"),
    ],
)
def test_other_texts_are_none(change: tuple[str, str], says: str) -> None:
    text = Pace(2, 10, 10, 0.1, "before", "gs.step").to_text().replace(*change)
    with pytest.raises(ValueError, match=says):
        Pace.from_text(text)


def test_a_file_next_to_the_capture() -> None:
    assert sidecar_path(Path("a/run.nsys-rep")) == Path("a/run.nsys-rep.pace.json")
