"""Parameters of requests: numbers in bounds, texts that end, and reasons otherwise."""

from __future__ import annotations

import pytest

from gpusight.errors import UsageError
from gpusight.web.routes import MAX_TIME_NS, RequestQuery

NUMBERS = {
    "0": 0,
    "-3": -3,
    "+4": 4,
    "12.9": 12,
    "-0.5": -1,
    "1e3": 1000,
    str(2**53 + 1): 2**53 + 1,
    str(MAX_TIME_NS): MAX_TIME_NS,
    "": None,
    "x": None,
    "nan": None,
    "NaN": None,
    "inf": None,
    "-Infinity": None,
    "1e400": None,
    "1e30": None,
    "0x10": None,
    "1,000": None,
    "9" * 41: None,
    "9" * 5000: None,
    "\u0663": 3,
}


@pytest.mark.parametrize(("text", "value"), NUMBERS.items(), ids=[n[:12] for n in NUMBERS])
def test_times(text: str, value: int | None) -> None:
    if value is None:
        with pytest.raises(UsageError, match=r"^t is "):
            RequestQuery({"t": text}).time("t")
    else:
        assert RequestQuery({"t": text}).time("t") == value


@pytest.mark.parametrize(("text", "fits"), [("0", False), ("1", True), ("8", True), ("9", False)])
def test_bounds(text: str, fits: bool) -> None:
    if fits:
        assert RequestQuery({"n": text}).whole("n", 1, 8) == int(text)
    else:
        with pytest.raises(UsageError, match="not a number from 1 to 8"):
            RequestQuery({"n": text}).whole("n", 1, 8)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match=r"^n is missing$"):
        RequestQuery({}).whole("n", 0, 1)
    assert RequestQuery({}).whole("n", 0, 9, default=5) == 5


def test_a_stretch_has_a_length() -> None:
    assert RequestQuery({"start": "-1", "end": "1"}).stretch() == (-1, 1)
    for start, end in (("1", "1"), ("2", "1")):
        with pytest.raises(UsageError, match="end is not after start"):
            RequestQuery({"start": start, "end": end}).stretch()


def test_names_are_distinct_and_bounded() -> None:
    assert RequestQuery({"k": "a,b,,a"}).names("k", 2, 5) == ["a", "b"]
    assert RequestQuery({"k": ""}).names("k", 2, 5) == []
    with pytest.raises(UsageError, match="3 names: at most 2 at once"):
        RequestQuery({"k": "a,b,c"}).names("k", 2, 5)
    with pytest.raises(UsageError, match="too long"):
        RequestQuery({"k": "x" * 13}).names("k", 2, 5)
