"""Averages over time, and what is told of a column that is empty in part."""

from __future__ import annotations

import polars as pl
import pytest

from gpusight.analysis import aggregates
from gpusight.analysis.aggregates import (
    average,
    is_filled,
    is_named,
    kept,
    prevailing,
    share_of,
    shown_if_filled,
    weighed_mean,
    whole_sum,
)
from gpusight.results import Field, Fmt


def frame(values: list[float | None], times: list[float | None]) -> pl.DataFrame:
    return pl.DataFrame(
        {"value": values, "duration_ns": times},
        schema={"value": pl.Float64, "duration_ns": pl.Float64},
    )


@pytest.mark.parametrize(
    ("values", "times", "mean"),
    [
        ([1.0, 2.0], [30.0, 10.0], 1.25),
        ([1.0, None], [30.0, 10.0], 1.0),
        ([0.0, 5.0], [10.0, None], 0.0),  # a weighted sum of nothing is no reason to forget weights
        ([1.0, 2.0], [None, None], 1.5),
        ([1.0, 2.0], [0.0, 0.0], 1.5),
        ([None, None], [1.0, 1.0], None),
        ([], [], None),
    ],
)
def test_means_are_weighed_by_time(
    values: list[float | None], times: list[float | None], mean: float | None
) -> None:
    assert frame(values, times).select(weighed_mean("value")).item() == mean


def test_an_average_of_all_is_not_known_where_one_is_missing() -> None:
    assert average(frame([1.0, 2.0], [30.0, 10.0]), "value") == 1.25
    assert average(frame([1.0, None], [30.0, 10.0]), "value") is None
    assert average(frame([1.0, 2.0], [None, None]), "value") is None
    assert average(frame([1.0, 2.0], [0.0, 0.0]), "value") is None
    renamed = frame([1.0, 2.0], [30.0, 10.0]).rename({"duration_ns": "time_ns"})
    assert average(renamed, "value", "time_ns") == 1.25


def test_what_holds_for_most_of_the_time_prevails() -> None:
    rows = pl.DataFrame(
        {
            "group": [1, 1, 1, 2, 2],
            "bound": ["memory", "memory", "compute", None, "latency"],
            "duration_ns": [10.0, 10.0, 30.0, 99.0, None],
        }
    )
    result = prevailing(rows, ["group"], "bound")
    assert result["bound"].to_list() == ["compute", "compute", "compute", "latency", "latency"]


def test_a_sum_with_a_part_that_is_not_known_is_not_known() -> None:
    assert frame([1.0, 2.0], [1.0, 1.0]).select(whole_sum("value")).item() == 3.0
    assert frame([1.0, None], [1.0, 1.0]).select(whole_sum("value")).item() is None


def test_empty_columns_are_hidden_but_not_in_a_table_without_rows() -> None:
    fields = [Field(key, key, Fmt.REAL, key) for key in ("value", "duration_ns")]
    rows = frame([None, None], [1.0, None])
    assert (is_filled(rows, "value"), is_filled(rows, "duration_ns")) == (False, True)
    assert [f.shown for f in shown_if_filled(fields, rows)] == [False, True]
    assert [f.shown for f in shown_if_filled(fields, rows.clear())] == [True, True]


def test_shares_are_exact() -> None:
    values = [
        21_120,
        4_320,
        2_369,
    ]  # times the reciprocal of their sum, two have another last digit
    frame = pl.DataFrame({"ns": [*values, None]})
    for whole in (pl.col("ns").sum(), sum(values)):
        shares = frame.select(share_of(pl.col("ns"), whole)).to_series().to_list()
        assert shares == [*(value / sum(values) for value in values), None]
    assert frame.select(share_of(pl.col("ns"), 0)).to_series().to_list() == [None] * 4


@pytest.mark.parametrize(
    "mask", [[], [True] * 4, [False] * 4, [False, True, True, None], [True, None, True, False]]
)
def test_rows_kept_are_those_of_filter(mask: list[bool | None]) -> None:
    frame = pl.DataFrame({"row": range(len(mask))})
    flags = pl.Series(mask, dtype=pl.Boolean)
    assert kept(frame, flags).equals(frame.filter(flags))


@pytest.mark.parametrize("many", [1, 1_000])
def test_names_are_looked_at_once(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregates, "_MANY_NAMES", many)
    looked: list[str] = []
    names = pl.Series(["b", "a", None, "b"], dtype=pl.Enum(["a", "b"]))

    def wanted(name: str) -> bool:
        looked.append(name)
        return name == "b"

    assert is_named(names, wanted).to_list() == [True, False, None, True]
    assert sorted(looked) == ["a", "b"]
