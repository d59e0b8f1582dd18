"""The waterfall of a comparison: it leads from one step to the other, whatever the entries."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from gpusight.comparison.comparison_result import Comparison, EntryChange
from gpusight.errors import UsageError
from gpusight.render.charts.chart_colors import slots
from gpusight.render.charts.chart_frame import (
    NARROW,
    WIDE,
    ChartSize,
    lay_out_figure,
    size_of,
    text_width,
)
from gpusight.render.charts.chart_labels import placed_bars
from gpusight.render.charts.draw_chart import draw
from gpusight.render.charts.figure import BarSeries, ChartAxis, Figure
from gpusight.render.charts.ledger_charts import waterfall
from gpusight.render.result_view import ComparisonView
from gpusight.results import Fmt
from tests.render.test_comparison import LEDGER, change, comparison, hostile, with_pauses


def bars(figure: Figure) -> list[tuple[str, float, float, str]]:
    """Give row, start, end and label of each bar, from the top down."""
    found: list[tuple[float, float, float, str]] = []
    for series in figure.series:
        assert isinstance(series, BarSeries)
        for n, y in enumerate(series.y):
            found.append((y, series.x[n], series.ends[n], series.labels[n]))
    ordered = sorted(found, key=lambda one: (-one[0], one[1]))
    return [(figure.y.names[round(y)], start, end, label) for y, start, end, label in ordered]


def test_bars_lead_from_before_to_after() -> None:
    drawn = bars(waterfall(comparison()))
    changes = [one for one in drawn if one[0] not in {"before", "after", "95% interval"}]
    assert [name for name, *_ in changes] == [
        "compute/matmul",
        "compute/optimizer",
        "idle/framework",
        "idle/launching",
        "compute/elementwise",
        "other entries",
    ]
    assert changes[0][1] == pytest.approx(46.59e6)
    assert all(a[2] == pytest.approx(b[1]) for a, b in pairwise(changes))
    assert changes[-1][2] == pytest.approx(42.42e6)
    assert [label for *_, label in changes[:1]] == ["-28.20 ms"]
    assert changes[4][3] == "~+1.000 ms"


@pytest.mark.parametrize(("side", "total"), [("before", 46.59e6), ("after", 42.42e6)])
def test_either_step_is_made_of_its_kinds(side: str, total: float) -> None:
    parts = [one for one in bars(waterfall(comparison())) if one[0] == side]
    assert parts[0][1] == 0
    assert all(a[2] == pytest.approx(b[1]) for a, b in pairwise(parts))
    assert parts[-1][2] == pytest.approx(total)
    assert [label for *_, label in parts if label] == [parts[-1][3]]


def test_time_between_steps_is_one_bar_of_the_whole_period() -> None:
    figure = waterfall(with_pauses())
    assert figure.title == "From step to step -20.1%: 64.99 -> 51.92 ms"
    assert figure.x.label == "time from step to step"
    drawn = bars(figure)
    before, after = ([one for one in drawn if one[0] == side] for side in ("before", "after"))
    assert [before[-1][2], after[-1][2]] == pytest.approx([64.99e6, 51.92e6])
    assert before[-1][2] - before[-1][1] == pytest.approx(18.4e6)
    changes = [one for one in drawn if one[0] not in {"before", "after", "95% interval"}]
    assert [one[3] for one in changes if one[0] == "between steps"] == ["-8.900 ms"]
    assert all(a[2] == pytest.approx(b[1]) for a, b in pairwise(changes))
    assert changes[-1][2] == pytest.approx(51.92e6)
    assert "between steps" not in {row for row, *_ in bars(waterfall(comparison()))}
    few = {"between_steps": change(0.4, 0.48), "step_period": change(46.99, 42.9)}
    known = [replace(one, change=few.get(one.key, one.change)) for one in with_pauses().metrics]
    little = waterfall(replace(with_pauses(), metrics=tuple(known)))
    assert little.title == "Step time -9.0%: 46.59 -> 42.42 ms"
    assert "between steps" not in {row for row, *_ in bars(little)}


def test_kinds_keep_their_colours_when_others_are_missing() -> None:
    only = tuple(EntryChange(n, c, None) for n, c in LEDGER.items() if n.startswith("idle"))
    found = slots(waterfall(comparison(ledger=only)))
    assert found["idle"] == slots(waterfall(comparison()))["idle"] == "1"


def test_many_entries_are_joined_and_the_sum_holds() -> None:
    many = tuple(EntryChange(f"compute/k{n}", change(1.0, 2.0), None) for n in range(40))
    step = change(40.0, 80.0)
    metrics = (replace(comparison().metrics[0], change=step),)
    drawn = bars(waterfall(comparison(ledger=many, metrics=metrics)))
    other = next(one for one in drawn if one[0] == "other entries")
    assert other[3] == "+30.00 ms"
    assert other[2] == pytest.approx(80e6)


def test_nothing_known_but_the_step_is_still_a_picture() -> None:
    bare = comparison(ledger=())
    rows = [row for row, *_ in bars(waterfall(bare))]
    assert rows == ["before", "after", "95% interval"]
    metric = replace(bare.metrics[0], change=replace(bare.step, before=0.0, low=None, high=None))
    assert draw(waterfall(replace(bare, metrics=(metric,))), "svg")


@pytest.mark.parametrize("made", [comparison(), hostile()])
@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_labels_stay_in_the_picture(made: Comparison, size: ChartSize) -> None:
    figure = waterfall(made)
    frame = lay_out_figure(figure, size_of(figure, size))
    placed = list(placed_bars(frame))
    assert placed
    for bar in placed:
        wide = text_width(bar.text, 12)
        left = bar.text_at if bar.anchor == "start" else bar.text_at - wide
        assert left >= frame.left - 1 or not bar.text
        assert left + wide <= frame.size.width
        assert frame.top <= bar.top
        assert bar.top + bar.height <= frame.bottom


def test_svg_is_sound_whatever_the_names() -> None:
    root = ET.fromstring(draw(waterfall(hostile()), "svg"))
    assert not root.findall(".//{http://www.w3.org/2000/svg}b")
    titles = [one.text for one in root.iter("{http://www.w3.org/2000/svg}title")]
    assert any("computing" in (title or "") for title in titles) or titles


@pytest.mark.parametrize(("form", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_other_forms_are_drawn_too(form: str, start: bytes) -> None:
    pytest.importorskip("vl_convert")
    assert draw(waterfall(hostile()), form).startswith(start)


def test_bars_may_stand_on_a_page_with_a_script() -> None:
    page = draw(waterfall(comparison()), "html").decode()
    assert "-28.20 ms" in page


def test_every_bar_needs_its_end() -> None:
    axes = ChartAxis("", Fmt.TIME), ChartAxis("", Fmt.TEXT)
    with pytest.raises(ValueError, match="differ in length"):
        Figure("t", *axes, (BarSeries("a", (0.0,), (), (0.0,)),))
    with pytest.raises(ValueError, match="differs in number"):
        Figure("t", *axes, (BarSeries("a", (0.0,), (1.0,), (0.0,), labels=("a", "b")),))


# In Python ----------------------------------------------------------------------------------------


def test_a_view_gives_parts_and_shows_itself() -> None:
    view = ComparisonView(comparison())
    assert view.step.delta == pytest.approx(-4.17e6)
    assert view.metrics["memory_peak"].missing == "no"
    assert view.ledger[0].entry == "compute/matmul"
    assert view.phases["optimizer"].after == 2e6
    assert (len(view.kernels), len(view.ranges), len(view.api_calls)) == (4, 1, 1)
    assert (len(view.copies), len(view.findings)) == (1, 2)
    assert view.explanation[0] in repr(view)
    assert "--top" not in repr(view)
    assert view.to_markdown().startswith("## Step time")
    assert view.to_csv().startswith("section,name")
    assert view._repr_html_().startswith("<img")
    assert json.loads(view.to_json())["verdict"]


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("a.svg", b"<svg"),
        ("a.html", b"<!DOCTYPE html>"),
        ("a.HTM", b"<!DOCTYPE html>"),
        ("a.md", b"## Step time"),
        ("a.csv", b"section,name"),
        ("a.json", b"{"),
        ("a.txt", b"before  old.sqlite"),
    ],
)
def test_a_view_saves_itself(name: str, start: bytes, tmp_path: Path) -> None:
    path = ComparisonView(comparison()).save(tmp_path / name)
    assert path.read_bytes().startswith(start)


def test_a_view_never_writes_over_a_capture(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        ComparisonView(comparison()).save(tmp_path / "a.sqlite")
