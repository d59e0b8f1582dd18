"""Limits as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.comparison.gate_limits import (
    DEFAULT,
    GateLimit,
    LimitKind,
    joined,
    limit_of,
    read_limit,
    read_limits,
)
from gpusight.errors import UsageError
from gpusight.results import Fmt


@pytest.mark.parametrize(
    ("text", "metric", "kind", "value", "measures"),
    [
        ("step_time=+3%", "step_time", LimitKind.RELATIVE, 0.03, Fmt.SHARE),
        ("step_time=-5%", "step_time", LimitKind.RELATIVE, -0.05, Fmt.SHARE),
        ("step_time=−5%", "step_time", LimitKind.RELATIVE, -0.05, Fmt.SHARE),
        (" idle/input = + 1 ms ", "idle/input", LimitKind.ABSOLUTE, 1e6, Fmt.TIME),
        ("idle=+200us", "idle", LimitKind.ABSOLUTE, 2e5, Fmt.TIME),
        ("idle=+200µs", "idle", LimitKind.ABSOLUTE, 2e5, Fmt.TIME),
        ("idle=+200μs", "idle", LimitKind.ABSOLUTE, 2e5, Fmt.TIME),
        ("idle=+.5S", "idle", LimitKind.ABSOLUTE, 5e8, Fmt.TIME),
        ("idle=+7ns", "idle", LimitKind.ABSOLUTE, 7, Fmt.TIME),
        ("step_time=50ms", "step_time", LimitKind.CEILING, 5e7, Fmt.TIME),
        ("memory_peak=+5MB", "memory_peak", LimitKind.ABSOLUTE, 5e6, Fmt.BYTES),
        ("memory_peak=+2GiB", "memory_peak", LimitKind.ABSOLUTE, 2 * 2**30, Fmt.BYTES),
        ("memory_peak=70gb", "memory_peak", LimitKind.CEILING, 7e10, Fmt.BYTES),
        ("memory_peak=-1kB", "memory_peak", LimitKind.ABSOLUTE, -1e3, Fmt.BYTES),
        ("h2d_bytes=+1KiB", "h2d_bytes", LimitKind.ABSOLUTE, 1024, Fmt.BYTES),
        ("launches=+10", "launches", LimitKind.ABSOLUTE, 10, Fmt.COUNT),
        ("findings=0", "findings", LimitKind.CEILING, 0, Fmt.COUNT),
        ("kernel:f<a=1>*=+3%", "kernel:f<a=1>*", LimitKind.RELATIVE, 0.03, Fmt.SHARE),
        ("range:my step=+3%", "range:my step", LimitKind.RELATIVE, 0.03, Fmt.SHARE),
    ],
)
def test_what_is_written_is_what_is_meant(
    text: str, metric: str, kind: LimitKind, value: float, measures: Fmt
) -> None:
    limit = read_limit(text)
    assert (limit.metric, limit.kind, limit.measures) == (metric, kind, measures)
    assert limit.value == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "=",
        "step_time",
        "=+3%",
        "step_time=",
        "step_time=+",
        "step_time=+%",
        "step_time=fast",
        "step_time=+3 furlongs",
        "step_time=++3%",
        "step_time=+1e9ms",
        "step_time=nan",
        "step_time=+inf%",
        "step_time=+1,5ms",
        "step_time=+1ms/s",
        "step_time=+" + "9" * 400,
        "step_time=+٣%x",
    ],
)
def test_what_is_no_limit_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="is not a limit") as caught:
        read_limit(text)
    assert "METRIC=+3%" in caught.value.hint
    assert len(str(caught.value)) < 250


def test_nothing_falls_by_more_than_all_of_it() -> None:
    assert read_limit("step_time=-100%").value == -1
    for text in ("step_time=-100.1%", "step_time=-200%"):
        with pytest.raises(UsageError, match="nothing falls by more than 100%"):
            read_limit(text)


def test_python_may_give_texts_or_a_mapping() -> None:
    meant = [read_limit("step_time=+3%"), read_limit("launches=+10")]
    assert read_limits(["step_time=+3%", "launches=+10"]) == meant
    assert read_limits({"step_time": "+3%", "launches": "+10"}) == meant
    assert read_limits("step_time=+3%") == meant[:1]
    wrong: Any
    for wrong in (5, [5], {"step_time": 5}, {5: "+3%"}, None):
        with pytest.raises(UsageError, match="a limit is a text, not"):
            read_limits(wrong)


def test_a_percentage_says_which_way() -> None:
    with pytest.raises(UsageError, match="does not say which way; write step_time=\\+3%"):
        read_limit("step_time=3%")


@pytest.mark.parametrize(
    ("text", "most"),
    [("x=+3%", 103), ("x=-5%", 95), ("x=+7", 107), ("x=-7", 93), ("x=50", 50), ("x=+0%", 100)],
)
def test_the_most_that_is_allowed_of_100(text: str, most: float) -> None:
    assert read_limit(text).most(100.0) == pytest.approx(most)


@pytest.mark.parametrize(
    ("text", "improvement"), [("x=-5%", True), ("x=-1ms", True), ("x=+0", False), ("x=5", False)]
)
def test_a_negative_limit_asks_for_an_improvement(text: str, improvement: bool) -> None:
    assert read_limit(text).improvement is improvement


@pytest.mark.parametrize(
    ("amount", "fmt"),
    [
        ("+3%", Fmt.TIME),
        ("+3%", Fmt.BYTES),
        ("+3%", Fmt.COUNT),
        ("+3ms", Fmt.TIME),
        ("3MB", Fmt.BYTES),
        ("+3", Fmt.COUNT),
        ("3", Fmt.REAL),
        ("0", Fmt.TIME),
        ("+0", Fmt.BYTES),
    ],
)
def test_units_that_fit(amount: str, fmt: Fmt) -> None:
    limit_of("x", amount).check_unit(fmt)


@pytest.mark.parametrize(
    ("amount", "fmt", "told"),
    [
        ("+3", Fmt.TIME, "x is a time; write x=+1ms or x=+3%"),
        ("50", Fmt.TIME, "x is a time; write x=1ms"),
        ("+3ms", Fmt.BYTES, "x is bytes; write x=+5MB or x=+3%"),
        ("+3MB", Fmt.COUNT, "x is counted; write x=+10 or x=+3%"),
        ("3ms", Fmt.COUNT, "x is counted; write x=10"),
    ],
)
def test_units_that_do_not_fit(amount: str, fmt: Fmt, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        limit_of("x", amount).check_unit(fmt)
    assert str(caught.value).endswith(told)


def test_limits_given_stand_for_the_configured_ones_of_their_metric() -> None:
    def limits(*texts: str) -> list[GateLimit]:
        return [read_limit(text) for text in texts]

    configured = limits("a=+1%", "a=5ms", "b=+1%")
    found = joined(configured, limits("a=+2%", "c=+1%", "c=+1%"))
    assert [str(limit) for limit in found] == ["b=+1%", "a=+2%", "c=+1%"]


def test_the_default_is_a_limit() -> None:
    assert read_limit(DEFAULT).metric == "step_time"
