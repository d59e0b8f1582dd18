from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusight.render.cell_text import (
    align_units,
    display_width,
    safe_text,
    shorten_distinct,
    shorten_middle,
    show,
)
from gpusight.results import Fmt


@pytest.mark.parametrize(
    ("raw", "safe"),
    [
        ("plain name<float>", "plain name<float>"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\nb", "a\\nb"),
        ("\u202eabc", "\\u202eabc"),
        ("\x9b2J", "\\x9b2J"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("lone\udc80", "lone\\udc80"),
        ("µs → 名前", "µs → 名前"),
    ],
)
def test_invisible_characters_become_visible(raw: str, safe: str) -> None:
    assert safe_text(raw) == safe


@given(st.text())
def test_safe_text_is_always_printable(text: str) -> None:
    assert safe_text(text).isprintable()


@given(st.text(), st.integers(min_value=0, max_value=40))
def test_shortened_text_fits(text: str, width: int) -> None:
    assert display_width(shorten_middle(safe_text(text), width)) <= width


@given(st.lists(st.text(), max_size=6), st.integers(min_value=0, max_value=40))
def test_texts_shortened_together_fit(texts: list[str], width: int) -> None:
    texts = [safe_text(text) for text in texts]
    cut = shorten_distinct(texts, width)
    assert len(cut) == len(texts)
    assert all(display_width(short) <= width for short in cut)
    assert all(s == t for s, t in zip(cut, texts, strict=True) if display_width(t) <= width)


def test_what_names_differ_in_is_not_cut() -> None:
    names = [
        f"sm__inst_executed.{part}.pct_of_peak_sustained_elapsed"
        for part in ("avg", "max", "min", "sum")
    ]
    cut = shorten_distinct([*names, names[0], "short"], 32)
    assert cut[:2] == ["sm__inst_execu…avg…ained_elapsed", "sm__inst_execu…max…ained_elapsed"]
    assert len(set(cut)) == len(set(names)) + 1
    assert cut[4] == cut[0]


def test_shortening_keeps_both_ends() -> None:
    assert shorten_middle("abcdefghij", 5) == "ab…ij"
    assert shorten_middle("abcdefghij", 10) == "abcdefghij"


@pytest.mark.parametrize(
    ("value", "fmt", "text"),
    [
        (None, Fmt.TIME, "-"),
        (math.nan, Fmt.REAL, "-"),
        (1500, Fmt.TIME, "1.500 µs"),
        (1500, Fmt.BYTES, "1.500 kB"),
        (1500, Fmt.COUNT, "1,500"),
        (0.5, Fmt.SHARE, "50.0%"),
        (2e9, Fmt.RATE, "2.000 GB/s"),
        (True, Fmt.TEXT, "yes"),
        (7, Fmt.TEXT, "7"),
        (["a", "b"], Fmt.TEXT, "a, b"),
        ("odd", Fmt.COUNT, "odd"),
    ],
)
def test_values_are_shown_by_their_format(value: object, fmt: Fmt, text: str) -> None:
    assert show(value, fmt) == text


def test_units_take_one_width() -> None:
    assert align_units(["1.500 s", "832 ns", "-"]) == ["1.500 s ", "832 ns", "-"]
