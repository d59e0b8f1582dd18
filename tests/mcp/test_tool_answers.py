from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from gpusight.mcp.tool_answers import (
    BUDGET_TOKENS,
    count_tokens,
    encoded,
    page,
    quoted,
    rounded,
    sentence,
)


@given(st.text())
def test_a_name_cannot_leave_its_quotes(name: str) -> None:
    text = quoted(name)
    assert text.startswith("`")
    assert text.endswith("`")
    assert text.count("`") == 2
    assert text.isprintable()
    assert len(text) <= 122


@given(st.text(), st.text())
def test_a_sentence_closes_its_quotes(name: str, rest: str) -> None:
    text = sentence(f"Data loading (`{name}`) {rest}")
    assert text.count("`") % 2 == 0
    assert text.isprintable()


def test_a_long_name_keeps_both_ends() -> None:
    text = quoted("begin" + "x" * 500 + "end", 40)
    assert text.startswith("`begin")
    assert text.endswith("end`")


def test_tokens_are_counted_from_above() -> None:
    # A token of the vocabularies in use is 4 letters of English or 3 digits in the mean.
    assert count_tokens("") == 0
    assert count_tokens("kernel launch overhead") == 6
    assert count_tokens('{"ms":12.5}') >= 7
    assert count_tokens("1234567") == 3
    assert count_tokens("µ") == 2


@given(st.lists(st.text(max_size=200), max_size=300))
def test_pages_fit_and_lose_no_row(names: list[str]) -> None:
    rows = [{"name": quoted(name)} for name in names]
    first, seen = 0, []
    while True:
        answer = page({"notice": "n"}, "rows_shown", rows, first)
        assert count_tokens(encoded(answer)) <= BUDGET_TOKENS
        seen += answer["rows_shown"]
        if "cursor" not in answer:
            break
        assert int(answer["cursor"]) > first
        assert answer["total"] == len(rows)
        first = int(answer["cursor"])
    assert seen == rows


def test_numbers_have_three_digits() -> None:
    assert [rounded(value) for value in (12.3456, 123456.7, 0.0123456, 5.0)] == [
        12.3,
        123457,
        0.0123,
        5,
    ]
    assert re.fullmatch(r"[0-9.]+", str(rounded(0.1 + 0.2)))
