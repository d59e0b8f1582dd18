"""What tests ask of strip charts: their rows by kind, and what a drawing of one holds."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TypeVar

from gpusight.render.charts.draw_chart import draw
from gpusight.render.charts.figure import StripChart, StripChartRow

SVG = "{http://www.w3.org/2000/svg}"
_Kind = TypeVar("_Kind", bound=StripChartRow)


def rows_of(chart: StripChart, kind: type[_Kind]) -> list[_Kind]:
    return [row for row in chart.rows if isinstance(row, kind)]


def svg_of(chart: StripChart) -> ET.Element:
    return ET.fromstring(draw(chart, "svg"))


def texts_of(chart: StripChart) -> list[str]:
    return [element.text or "" for element in svg_of(chart).iter(f"{SVG}text")]
