"""JSON, CSV, Markdown and HTML."""

from __future__ import annotations

import csv
import io
import json
import math
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

from gpusight.errors import MissingDataError
from gpusight.render.csv_json import (
    chunks,
    csv_chunks,
    encode_json,
    escape_formulas,
    json_chunks,
    to_csv,
    to_json,
)
from gpusight.render.html.html_templates import to_html
from gpusight.render.markdown_tables import markdown_code, markdown_prose, to_markdown
from gpusight.results import Composite, Fact, Field, Fmt, NotApplicable, TableResult
from tests.render.hostile import HOSTILE, hostile

ABSENT = NotApplicable("ranges", "no ranges", "capture with nvtx")


def composite() -> Composite:
    facts = (Fact("busy_share", "Busy", math.nan, Fmt.SHARE, ""), Fact("n", "N", 3, Fmt.COUNT, ""))
    return Composite("summary", "Summary", facts, (hostile(), ABSENT), {"path": "x"}, ("note",))


def test_json_of_a_table_holds_every_field_in_base_units() -> None:
    document = json.loads(to_json(hostile()))
    assert document["meta"]["command"] == "kernels"
    assert document["meta"]["total"] == 7
    assert document["meta"]["notes"] == ["note with \x1b[5m escape"]
    assert [row["name"] for row in document["rows"]] == list(HOSTILE)
    assert document["rows"][0]["bytes"] is None
    assert "rows_left_out" not in document["meta"]


def test_json_says_what_was_left_out() -> None:
    document = json.loads(to_json(hostile(), limit=2))
    assert len(document["rows"]) == 2
    assert document["meta"]["rows_left_out"] == len(HOSTILE) - 2


def test_json_is_safe_to_print() -> None:
    text = to_json(hostile())
    assert not {"\x1b", "\x9b", "\u202e"} & set(text)


def test_json_of_names_that_are_not_utf8() -> None:
    name = b"x\xff.sqlite".decode("utf-8", "surrogateescape")
    text = encode_json({name: [name, {"path": Path(name), "ns": math.nan, "µ": (1, None)}]})
    escaped = "x\\udcff.sqlite"
    assert json.loads(text) == {escaped: [escaped, {"path": escaped, "ns": None, "µ": [1, None]}]}
    text.encode()


def test_json_has_no_nan() -> None:
    fields = (Field("x", "X", Fmt.REAL, ""), Field("d", "D", Fmt.TEXT, ""))
    frame = pl.DataFrame({"x": [math.nan, math.inf], "d": [timedelta(seconds=1)] * 2})
    rows = json.loads(to_json(TableResult("sql", "Query", fields, frame)))["rows"]
    assert [row["x"] for row in rows] == [None, None]


def test_json_of_a_composite() -> None:
    document = json.loads(to_json(composite()))
    meta = document["meta"]
    assert (meta["busy_share"], meta["n"], meta["path"]) == (None, 3, "x")
    assert meta["not_applicable"] == {
        "ranges": {"reason": "no ranges", "hint": "capture with nvtx"}
    }
    assert {row["section"] for row in document["rows"]} == {"kernels"}


def test_json_of_what_could_not_be_answered() -> None:
    document = json.loads(to_json(ABSENT))
    assert document["meta"]["not_applicable"] == {
        "reason": "no ranges",
        "hint": "capture with nvtx",
    }
    assert document["rows"] == []


def test_csv_keeps_names_as_data() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(hostile()), newline="")))
    assert [row["name"] for row in rows] == list(HOSTILE)
    assert rows[0]["bytes"] == ""
    assert len(to_csv(hostile(), limit=1).splitlines()) == 2


def test_csv_of_nested_values_and_composites() -> None:
    fields = (Field("x", "X", Fmt.TEXT, ""), Field("ok", "OK", Fmt.TEXT, ""))
    frame = pl.DataFrame({"x": [[1, 2]], "ok": [True]})
    assert to_csv(TableResult("sql", "Query", fields, frame)) == 'x,ok\n"[1,2]",true\n'
    lines = to_csv(composite()).splitlines()
    assert lines[0] == "section,row,key,value"
    assert ",,n,3" in lines
    assert "kernels,1,calls,1000" in lines


def test_csv_has_no_nan() -> None:
    fields = (Field("x", "X", Fmt.REAL, ""), Field("y", "Y", Fmt.REAL, ""))
    frame = pl.DataFrame({"x": [math.nan, 1.5], "y": [2.5, None]})
    assert to_csv(TableResult("sql", "Query", fields, frame)) == "x,y\n,2.5\n1.5,\n"
    assert ",,busy_share," in to_csv(composite()).splitlines()


def test_csv_of_nothing_is_an_error() -> None:
    with pytest.raises(MissingDataError, match="no ranges"):
        to_csv(ABSENT)


def test_markdown_keeps_every_row_on_its_line() -> None:
    lines = to_markdown(hostile()).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == len(HOSTILE) + 2
    unescaped = [line.replace("\\\\", "").replace("\\|", "").count("|") for line in table]
    assert set(unescaped) == {5}
    assert "\x1b" not in "".join(lines)
    assert to_markdown(hostile(), limit=1).count("more rows") == 1


@pytest.mark.parametrize(
    ("name", "span"),
    [
        ("a<b>", "`a<b>`"),
        ("a|b", "`a\\|b`"),
        ("a`b", "`` a`b ``"),
        ("", "`  `"),
        ("a\\|b", "a\\\\\\|b"),
    ],
)
def test_names_are_code_spans(name: str, span: str) -> None:
    assert markdown_code(name) == span


def test_names_in_sentences_need_no_escape() -> None:
    assert markdown_prose("`a|b` is `c\\|d` | e", cell=False) == "`a|b` is `c\\|d` \\| e"


def test_markdown_of_a_composite() -> None:
    text = to_markdown(composite())
    assert text.startswith("## Summary\n\n> note")
    assert "\n### Title" in text
    assert "**ranges**: no ranges; capture with nvtx" in text


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert {name for name, _ in attrs} <= {"style", "title"}


def test_html_escapes_everything() -> None:
    parser = Tags()
    parser.feed(to_html(composite()))
    assert parser.tags == {"p", "b", "i", "table", "thead", "tbody", "tr", "th", "td"}
    text = to_html(hostile(), limit=2)
    assert "</script>" not in text
    assert "&lt;/script&gt;" in text
    assert "more rows" in text


@pytest.mark.parametrize("rows", [0, 1, 3, 50_001])
def test_pieces_make_the_same_text_as_a_whole(rows: int) -> None:
    names = [f"kernel_{n % 7}\n[]" for n in range(rows)]
    frame = pl.DataFrame(
        {"name": names, "n": range(rows)}, schema={"name": pl.String, "n": pl.Int64}
    )
    fields = (Field("name", "Name", Fmt.NAME, ""), Field("n", "N", Fmt.COUNT, ""))
    result = TableResult("test", "A title with []", fields, frame, notes=("and a note: []",))
    assert "".join(json_chunks(result)) == to_json(result)
    assert "".join(csv_chunks(result)) == to_csv(result)
    assert "".join(json_chunks(result, limit=2)) == to_json(result, limit=2)


def test_long_names_make_small_pieces() -> None:
    frame = pl.DataFrame({"name": ["x" * 1_000_000] * 40})
    assert [piece.height for piece in chunks(frame)] == [8] * 5


@pytest.mark.parametrize(
    ("line", "escaped"),
    [
        ("=1+1,x", "'=1+1,x"),
        ("x,@SUM(A1)", "x,'@SUM(A1)"),
        ("+cmd|' /C calc'!A0,1", "'+cmd|' /C calc'!A0,1"),
        ("-2+3,-5,+7,-1.5e-7,-inf,-", "'-2+3,-5,+7,-1.5e-7,-inf,'-"),
        ('"=HYPERLINK(""http://x"",""y"")",a', '"\'=HYPERLINK(""http://x"",""y"")",a'),
        ("\tx,＝1", "'\tx,'＝1"),
        ('"a,=b",c', '"a,=b",c'),
        ('"a""=b",,"",c=d', '"a""=b",,"",c=d'),
        ("void f<(int)-1>(x)", "void f<(int)-1>(x)"),
    ],
)
def test_cells_that_a_spreadsheet_would_run(line: str, escaped: str) -> None:
    assert escape_formulas(f"a,b\n{line}\n") == f"a,b\n{escaped}\n"
    before, after = (next(csv.reader([text])) for text in (line, escaped))
    assert [cell.removeprefix("'") for cell in after] == before
