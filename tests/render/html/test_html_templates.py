"""Templates of HTML: every name is escaped, nothing is missing, and the page is plain text."""

from __future__ import annotations

from html import unescape

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

import gpusight as gs
from gpusight.render.cell_text import safe_text
from gpusight.render.html.html_templates import _environment, html_prose, to_html
from gpusight.render.html.report_page import to_page
from gpusight.reports.report_builder import build_report
from tests.render.hostile import HOSTILE, hostile
from tests.shared import DATA
from tests.traces import build_trace


def written(template: str, **values: object) -> str:
    return _environment().from_string(template).render(values)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_escaped_and_every_character_is_visible(name: str) -> None:
    shown = written('<p title="{{ name }}">{{ name }}</p>', name=name)
    inside = shown.removeprefix('<p title="').removesuffix("</p>")
    first, _, second = inside.partition('">')
    assert unescape(first) == unescape(second) == safe_text(name)
    assert not set("<>\"'") & set(first + second)


def test_only_markup_stays_markup() -> None:
    assert written("{{ x }}", x=Markup("<b>")) == "<b>"
    assert written("{{ x ~ y }}", x=Markup("<b>"), y="<i>") == "<b>&lt;i&gt;"
    assert written("{{ x | prose }}", x="`<a>` & b") == "<code>&lt;a&gt;</code> &amp; b"
    assert html_prose("a `b").endswith("<code>b</code>")


def test_what_is_missing_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        written("{{ x.y }}", x=object())
    with pytest.raises(TypeError, match="None"):
        written("{{ x }}", x=None)


def test_every_template_compiles() -> None:
    names = _environment().list_templates()
    assert "report.html" in names
    assert all(_environment().get_template(name) for name in names)


def test_what_users_get_is_plain_text() -> None:
    """Text added to markup would be escaped."""
    capture = DATA / "dataload.sqlite"
    kernels, diagnosis = gs.kernels(capture), gs.diagnose(capture)
    texts = (kernels._repr_html_(), diagnosis._repr_html_(), diagnosis.to_html())
    assert {type(text) for text in texts} == {str}
    assert isinstance(to_html(hostile()), Markup)


def test_ranges_may_be_as_deep_as_the_tree_takes_them() -> None:
    ranges = [{"start_ns": n, "end_ns": 1000 - n, "name": f"level {n}x"} for n in range(150)]
    page = to_page(build_report([build_trace(ranges=ranges)]))
    assert "level 98x" in page
