"""Tables as text: what fits, what is cut, what is said about it."""

from __future__ import annotations

import io
import re

import polars as pl
import pytest

from gpusight.render.cell_text import display_width
from gpusight.render.html.html_templates import to_html
from gpusight.render.markdown_tables import to_markdown
from gpusight.render.table_layout import TableOptions, TextTableLayout, lay_out_table
from gpusight.render.terminal_tables import result_lines, to_plain
from gpusight.render.terminal_text import draw_lines, screen_width, wants_color
from gpusight.results import Composite, Fact, Field, Fmt, NotApplicable, TableResult
from tests.render.hostile import FIELDS, HOSTILE, hostile

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def colored(result: TableResult | Composite, width: int | None) -> str:
    out = io.StringIO()
    draw_lines(result_lines(result, TableOptions(width=width, bars=True)), out)
    return out.getvalue()


def small() -> TableResult:
    frame = pl.DataFrame(
        {
            "share": [0.75, 0.25],
            "total_ns": [1_500_000_000, 832],
            "calls": [12_000, 1],
            "bytes": [1, 2],
            "name": ["gemm", "void at::native::vectorized_elementwise_kernel<4, float>"],
        }
    )
    return TableResult("kernels", "Kernels", FIELDS, frame, notes=("half of it is missing",))


def test_a_plain_table() -> None:
    assert to_plain(small(), TableOptions(width=60)) == (
        "Kernels\n"
        "Share     Total   Calls  Name\n"
        "-----  --------  ------  -----------------------------------\n"
        "75.0%  1.500 s   12,000  gemm\n"
        "25.0%    832 ns       1  void at::native::…_kernel<4, float>\n"
        "note: half of it is missing\n"
    )


def test_wide_shows_everything() -> None:
    text = to_plain(small(), TableOptions(width=None, every_field=True))
    assert "void at::native::vectorized_elementwise_kernel<4, float>" in text
    assert "Bytes" in text


FULL = "void at::native::vectorized_elementwise_kernel<4, float>"
NAMED = TableResult(
    "kernels",
    "Kernels",
    (
        Field("calls", "Calls", Fmt.COUNT, ""),
        Field("bytes", "Bytes", Fmt.BYTES, "", shown=False),
        Field("short_name", "Kernel", Fmt.NAME, ""),
        Field("name", "Full name", Fmt.NAME, "", shown=False),
    ),
    pl.DataFrame({"calls": [2], "bytes": [3], "short_name": ["elementwise"], "name": [FULL]}),
)


def test_full_names_take_the_place_of_short_ones() -> None:
    text = to_plain(NAMED, TableOptions(width=40, full_names=True))
    assert text == f"Kernels\nCalls  Kernel\n-----  {'-' * len(FULL)}\n    2  {FULL}\n"
    markdown = to_markdown(NAMED, full_names=True)
    assert f"`{FULL}`" in markdown
    assert "`elementwise`" not in markdown
    assert "elementwise\n" in to_plain(NAMED, TableOptions(width=40))


def test_full_names_of_a_table_without_short_ones_are_not_cut() -> None:
    assert FULL in to_plain(small(), TableOptions(width=40, full_names=True))


def test_a_tree_is_indented() -> None:
    fields = (
        Field("depth", "Depth", Fmt.COUNT, "", shown=False),
        Field("name", "Module", Fmt.NAME, "", indented_by="depth"),
    )
    frame = pl.DataFrame({"depth": [0, 1, None], "name": ["Net", "Block", "Loss"]})
    result = TableResult("ops", "Modules", fields, frame)
    assert to_plain(result, TableOptions()).splitlines()[3:] == ["Net", "  Block", "Loss"]
    assert "padding-left:1.5em" in to_html(result)


def test_rows_left_out_are_counted() -> None:
    text = to_plain(small(), TableOptions(limit=1))
    assert "… and 1 more row (use --top 0 for all)" in text
    assert "832 ns" not in text


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 300])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    for text in (
        to_plain(hostile(), TableOptions(width=width)),
        ANSI.sub("", colored(hostile(), width)),
    ):
        table = [line for line in text.splitlines() if "note" not in line]
        assert max(map(display_width, table)) <= max(width, 40)


def lay_out(result: TableResult, look: TableOptions) -> TextTableLayout:
    return lay_out_table(result.fields, result.frame, look)


def test_too_narrow_leaves_numbers_out_from_the_right_and_says_so() -> None:
    layout = lay_out(small(), TableOptions(width=40))
    assert [c.heading for c in layout.columns] == ["Share", "Total", "Name"]
    assert layout.columns_left_out == ("Calls",)
    assert "no room for: Calls" in to_plain(small(), TableOptions(width=40))


def test_a_narrow_gap_saves_a_column() -> None:
    fields = (Field("a", "A", Fmt.COUNT, ""), Field("b", "B", Fmt.TEXT, ""))
    frame = pl.DataFrame({"a": [123456], "b": ["twelve chars"]})
    layout = lay_out(TableResult("t", "T", fields, frame), TableOptions(width=20))
    assert (layout.gap, layout.columns_left_out) == (1, ())


def test_hostile_names_are_escaped_in_plain_text() -> None:
    text = to_plain(hostile(), TableOptions(width=None))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\x9b" not in text
    assert all(line.isprintable() for line in text.split("\n"))
    assert "\\x1b[31mred\\x1b[0m" in text
    assert "two\\nlines\\r\\ttab" in text
    assert len(text.splitlines()) == 1 + 2 + len(HOSTILE) + 1


def test_hostile_names_are_escaped_in_colour() -> None:
    text = ANSI.sub("", colored(hostile(), None))
    assert all(line.isprintable() for line in text.split("\n"))
    assert "\\x1b[31mred" in text
    assert "[bold]markup[/bold] :smile:" in text


def test_bars_are_drawn_in_colour_only() -> None:
    assert "█" in colored(small(), 100)
    assert "█" not in to_plain(small(), TableOptions(width=100))


def test_a_composite_says_notes_first_and_what_is_missing() -> None:
    facts = (
        Fact("busy", "GPU busy", 0.5, Fmt.SHARE, ""),
        Fact("cpu", "CPU", "word " * 40, Fmt.TEXT, ""),
    )
    missing = NotApplicable(
        "ranges", "the capture has no NVTX ranges.", "capture with --trace=nvtx"
    )
    result = Composite("summary", "Summary", facts, (small(), missing), notes=("events dropped",))
    text = to_plain(result, TableOptions(width=60))
    assert text.startswith("Summary\nnote: events dropped\n\nGPU busy  50.0%\nCPU       word")
    assert "\n\nKernels\n" in text
    assert "ranges: the capture has no NVTX ranges; capture with" in text
    assert max(map(len, text.splitlines())) <= 60
    assert "50.0% ██████\n" in ANSI.sub("", colored(result, 60))


def test_many_short_facts_stand_in_two_columns() -> None:
    facts = tuple(Fact(f"k{i}", f"Fact {i}", i / 10, Fmt.SHARE, "") for i in range(9))
    result = Composite("summary", "Summary", facts, ())
    assert to_plain(result, TableOptions(width=80)).splitlines()[2:] == [
        "Fact 0  0.0%                            Fact 5  50.0%",
        "Fact 1  10.0%                           Fact 6  60.0%",
        "Fact 2  20.0%                           Fact 7  70.0%",
        "Fact 3  30.0%                           Fact 8  80.0%",
        "Fact 4  40.0%",
    ]
    assert "Fact 5  50.0% ██████\n" in ANSI.sub("", colored(result, 80))
    assert len(to_plain(result, TableOptions(width=40)).splitlines()) == 11


def test_an_empty_table_says_so() -> None:
    assert "no rows" in to_plain(
        TableResult("kernels", "Kernels", FIELDS, small().frame.clear()), TableOptions()
    )


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_colour_needs_a_terminal_and_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert wants_color(Terminal())
    assert not wants_color(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_color(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_color(Terminal())


def test_width_comes_from_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "77")
    assert screen_width() == 77
