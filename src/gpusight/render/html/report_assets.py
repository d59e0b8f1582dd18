"""What pages with the report's script bring with them: styles in both themes, and the script."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from gpusight.render.charts.chart_colors import DARK, LIGHT
from gpusight.render.html.comparison_page import comparison_styles
from gpusight.render.html.html_templates import css_colors, theme_variables
from gpusight.render.html.report_charts import chart_styles

if TYPE_CHECKING:
    from gpusight.render.charts.chart_colors import ChartTheme


def report_styles() -> str:
    """Return the styles of a page with the report's script: both themes, and one chosen by hand."""
    light, dark = _variables(LIGHT), _variables(DARK, dark=True)
    return (
        f":root{{{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark)"
        f"{{:root:not([data-theme=light]){{{dark}}}}}\n"
        f"@media screen{{:root[data-theme=dark]{{{dark}}}}}\n"
        f"{chart_styles()}.comparison{{{comparison_styles()}}}\n"
        f"{asset_text('report.css')}"
    )


def _variables(theme: ChartTheme, *, dark: bool = False) -> str:
    colors = {name: (night if dark else day) for name, day, night in css_colors()}
    return theme_variables(theme) + "".join(f"--{name}:{c};" for name, c in colors.items())


def asset_text(name: str) -> str:
    """Return a file of what the front end was built to."""
    path = resources.files(__package__ or "").joinpath("assets", name)
    return path.read_text(encoding="utf-8")
