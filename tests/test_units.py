from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusight import units
from gpusight.errors import UsageError


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (1, "1 ns"),
        (832, "832 ns"),
        (832.25, "832.2 ns"),
        (999, "999 ns"),
        (1_000, "1.000 µs"),
        (1_234, "1.234 µs"),
        (12_345, "12.35 µs"),
        (999_949, "999.9 µs"),
        (999_950, "1.000 ms"),
        (123_456_789, "123.5 ms"),
        (9_999_600, "10.00 ms"),
        (1_500_000_000, "1.500 s"),
        (7_200_000_000_000, "7,200 s"),
        (-1_500_000, "-1.500 ms"),
        (None, "-"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_time(ns: float | None, text: str) -> None:
    assert units.format_time(ns) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1_000, "1.000 kB"),
        (1_048_576, "1.049 MB"),
        (80e9, "80.00 GB"),
        (2.5e12, "2.500 TB"),
        (None, "-"),
    ],
)
def test_bytes_are_decimal(count: float | None, text: str) -> None:
    assert units.format_bytes(count) == text


def test_rates_counts_shares_and_reals() -> None:
    assert units.format_rate(12.5e9) == "12.50 GB/s"
    assert units.format_rate(None) == "-"
    assert units.format_count(1234567) == "1,234,567"
    assert units.format_count(0) == "0"
    assert units.format_count(2.5) == "2.500"
    assert units.format_count(None) == "-"
    assert units.format_share(0.1234) == "12.3%"
    assert units.format_share(1.0) == "100.0%"
    assert units.format_share(0.0) == "0.0%"
    assert units.format_share(0.0001) == "<0.1%"
    assert units.format_share(math.nan) == "-"
    assert units.format_real(0) == "0"
    assert units.format_real(3.14159) == "3.142"
    assert units.format_real(123456.7) == "123,457"
    assert units.format_real(0.00012345) == "1.234e-04"
    assert units.format_real(None) == "-"


@given(st.integers(min_value=0, max_value=10**15))
def test_what_is_shown_is_near_what_was_given(ns: int) -> None:
    text = units.format_time(ns).replace(",", "")
    number, unit = text.split()
    scale = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert math.isclose(float(number) * scale, ns, rel_tol=5.1e-4, abs_tol=0.5)
    assert len(units.format_time(ns)) <= len("1,000,000 s")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("300ms", 300e6),
        ("1.5 s", 1.5e9),
        ("+2us", 2e3),
        ("-.5 µs", -500.0),
        ("1e3ns", 1e3),
        ("5MB", None),
        ("5", None),
        ("ms", None),
        ("1e999s", None),
        ("", None),
    ],
)
def test_times_are_read(text: str, value: float | None) -> None:
    amount = units.parse_amount(text)
    assert (None if amount is None else amount.scaled(units.TIME_UNITS)) == value


@pytest.mark.parametrize(
    ("text", "fraction"),
    [
        ("5%", 0.05),
        (" 2.5 % ", 0.025),
        ("100%", 1.0),
        ("101%", None),
        ("0.05", None),
        ("+5%", None),
    ],
)
def test_percentages_are_read(text: str, fraction: float | None) -> None:
    assert units.parse_percent(text) == (None if fraction is None else pytest.approx(fraction))


@pytest.mark.parametrize(
    ("text", "steps"),
    [("5", (5, 5)), ("3-7", (3, 7)), (" 3 : 7 ", (3, 7)), ("2:", (2, None)), ("-7", (None, 7))],
)
def test_ranges_of_steps_are_read(text: str, steps: tuple[int | None, int | None]) -> None:
    assert units.parse_step_range(text, hint="") == steps


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no steps"),
        ("-", "names no steps"),
        ("x", "names no steps"),
        ("7-3", "ends before it begins"),
        ("9" * 19, "too large"),
    ],
)
def test_ranges_that_are_none_are_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        units.parse_step_range(text, hint="write 3-7")


@given(st.integers(min_value=0, max_value=2**62))
def test_exact_times_are_read_as_they_were(ns: int) -> None:
    amount = units.parse_amount(units.exact_time(ns))
    assert amount is not None
    assert int(amount.digits) * int(units.TIME_UNITS[amount.unit]) == ns
