"""Which part of a capture was summed up, as options that can be typed again."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.analysis.selection import EVERYTHING, Selection
from gpusight.comparison.baseline_file import fault
from gpusight.comparison.build_digest import make_digest, scope_of
from gpusight.comparison.digest import Digest
from gpusight.comparison.digest_rows import LONGEST
from gpusight.readers.open import open_trace
from tests.shared import DATA

MS = 1_000_000


@pytest.mark.parametrize(
    ("selection", "options", "told"),
    [
        (EVERYTHING, {}, ""),
        (Selection(within=" forward "), {}, "--in forward"),
        (Selection(within="/step_[0-9]+/"), {}, "--in '/step_[0-9]+/'"),
        (Selection(device=0), {}, "--device 0"),
        (Selection(process="python"), {}, "--process python"),
        (Selection(process="1234"), {}, "--process ID"),
        (EVERYTHING, {"steps": "3 - 7"}, "--steps 3-7"),
        (EVERYTHING, {"steps": "ALL", "warmup": True}, "--steps all --warmup"),
        (EVERYTHING, {"window": (1200 * MS, 1500 * MS)}, "--window 1200ms-1500ms"),
        (EVERYTHING, {"window": (None, 2000 * MS)}, "--window -2s"),
        (EVERYTHING, {"window": (7, None)}, "--window 7ns-"),
        (Selection(within="a", device=1), {"steps": "5"}, "--in a --device 1 --steps 5"),
    ],
)
def test_what_was_chosen_is_written_as_it_is_typed(
    selection: Selection, options: dict[str, Any], told: str
) -> None:
    assert scope_of(selection, **options) == told


def test_a_long_choice_fits_a_baseline_and_stays_apart() -> None:
    scopes = [scope_of(Selection(within="x" * 5_000 + end)) for end in "ab"]
    assert max(map(len, scopes)) <= LONGEST
    assert scopes[0] != scopes[1]
    assert scope_of(Selection(within="\ud800")).encode()


def test_a_digest_says_of_what_part_it_is() -> None:
    trace = open_trace(DATA / "dataload.sqlite", cache=False)
    whole, part = make_digest(trace), make_digest(trace, steps="1-2")
    assert isinstance(whole, Digest)
    assert isinstance(part, Digest)
    assert (whole.scope, part.scope) == ("", "--steps 1-2")
    assert not fault(part)


def test_findings_of_a_range_are_not_those_of_the_capture() -> None:
    trace = open_trace(DATA / "gpt_small_forward.sqlite", cache=False)
    names = trace.table("ranges")["name"].unique().to_list()
    made = make_digest(trace, Selection(within=sorted(filter(None, names))[0]))
    assert isinstance(made, Digest)
    assert made.findings == ()
    assert made.missing["findings"] == "they are of whole steps, not of a range"
