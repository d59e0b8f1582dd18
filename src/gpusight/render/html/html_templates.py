"""HTML from Jinja templates, which are in `templates/`: all names in them are escaped.

The templates hold the markup; Python chooses what a page shows.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from gpusight import units
from gpusight.render.cell_text import NUMERIC, html_text, safe_text, shorten_middle, show
from gpusight.render.charts.chart_colors import COLORS, DARK, HOST_COLORS, LIGHT, color_of
from gpusight.render.explanation import confidence_sentence, evidence_value, gain_phrase
from gpusight.render.table_layout import sentence
from gpusight.results import Answer, Composite, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jinja2 import Environment
    from markupsafe import Markup

    from gpusight.render.charts.chart_colors import ChartTheme
    from gpusight.results import Field


@cache
def _environment() -> Environment:
    """Load Jinja, which only HTML needs."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def escaped(value: object) -> object:
        if isinstance(value, str) and not isinstance(value, Markup):
            return Markup(html_text(value))  # noqa: S704 - escaped in the line itself
        if value is None:
            raise TypeError("a template would write None")
        return value

    environment = Environment(
        loader=PackageLoader(__package__ or ""),
        autoescape=True,
        finalize=escaped,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "align": lambda fmt: "right" if fmt in NUMERIC else "left",
        "capitalized": capitalized,
        "clipped": clipped_text,
        "code_lines": _code_lines,
        "confidence_sentence": confidence_sentence,
        "css_color": css_color,
        "evidence_value": evidence_value,
        "format_count": units.format_count,
        "format_share": units.format_share,
        "format_time": units.format_time,
        "gain_phrase": gain_phrase,
        "prose": html_prose,
        "repr": repr,
        "sentence": sentence,
        "sha256": _sha256,
        "shorten_middle": shorten_middle,
        "show": show,
    }
    environment.tests |= {
        "composite": lambda result: isinstance(result, Composite),
        "not_applicable": lambda result: isinstance(result, NotApplicable),
        "numeric": lambda fmt: fmt in NUMERIC,
    }
    return environment


def render(template: str, **values: object) -> Markup:
    """Fill a template; what it gives needs no escaping in another one."""
    return markup(_environment().get_template(template).render(values).rstrip("\n"))


def markup(text: str) -> Markup:
    """Declare a text to be HTML already: of our own files, or escaped."""
    from markupsafe import Markup

    return Markup(text)  # noqa: S704 - callers pass nothing of a capture that is not escaped


def html_prose(words: str) -> Markup:
    """Show a text of our own, with its code spans; names in it are escaped like the rest."""
    parts = words.split("`")
    shown = (f"<code>{html_text(p)}</code>" if n % 2 else html_text(p) for n, p in enumerate(parts))
    return markup("".join(shown))


def _code_lines(text: str) -> Markup:
    """Show lines to paste; other texts have no ends of lines."""
    return markup("\n".join(map(html_text, text.rstrip("\n").splitlines())))


def capitalized(words: str) -> str:
    """Start a sentence with a capital letter; results are written to follow a colon."""
    return f"{words[:1].upper()}{words[1:]}"


MAX_NAME_CHARACTERS = 240
"""Letters of a name that a table shows."""


def clipped_text(words: str, most: int = MAX_NAME_CHARACTERS) -> Markup:
    """Escape a text and cut its middle out so that no more than `most` letters of HTML are left."""
    whole = safe_text(words[: 8 * most])
    width = most
    while True:
        shown = html_text(shorten_middle(whole, width))
        if len(shown) <= most or width <= 1:
            return markup(shown)
        width = width * most // (len(shown) + 1)


def _sha256(text: str) -> str:
    """Give what a policy names a script by."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def css_color(key: str) -> str:
    """Give the color of an entry, a category or a range as the page's styles call it."""
    return f"var(--{_slot(key)})"


def _slot(key: str) -> str:
    if key not in COLORS:
        color = color_of(key)
        if color in HOST_COLORS:
            return f"host-{HOST_COLORS.index(color)}"
        key = next(name for name, known in COLORS.items() if known == color)
    return key.replace("/", "-")


def css_colors() -> Iterator[tuple[str, str, str]]:
    """Give every color by its name in the styles: on a light page, and on a dark one."""
    for key, color in COLORS.items():
        yield _slot(key), color.light, color.dark
    for number, color in enumerate(HOST_COLORS):
        yield f"host-{number}", color.light, color.dark


# Pages --------------------------------------------------------------------------------------------


def html_page(title: str, subtitle: str, body: Markup, *, styles: str = "") -> str:
    """Write a page of its own round what is HTML already; `styles` come on top of the usual."""
    css = markup(_styles() + styles)
    page = render("page.html", title=title, subtitle=subtitle, body=body, styles=css)
    return f"{page}\n"


def _styles() -> str:
    css = resources.files(__package__ or "").joinpath("page.css").read_text(encoding="utf-8")
    light, dark = (f":root{{{theme_variables(theme)}}}" for theme in (LIGHT, DARK))
    return f"{light}\n@media (prefers-color-scheme: dark) {{{dark}}}\n{css}"


def theme_variables(theme: ChartTheme) -> str:
    """Write the colors of a theme as variables of CSS."""
    names = ("background", "text", "muted", "grid", "band", "mark", "quiet", "pale")
    colors = {name: getattr(theme, name) for name in names}
    colors |= {f"series-{number}": color for number, color in enumerate(theme.palette)}
    return "".join(f"--{name}:{color};" for name, color in colors.items())


def to_html(result: Answer, *, limit: int | None = None, is_headed: bool = False) -> Markup:
    """Write a result as HTML without styles, as notebooks show it.

    With `is_headed` its title has the time that it covers, which pages have in their own heading.
    """
    return render("result.html", result=result, limit=limit, is_headed=is_headed)


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A part of the report."""

    key: str
    """What its address ends in."""
    title: str
    body: Markup
    brief: str = ""
    """What the contents call it, where that is shorter."""


def absent_section(key: str, title: str, answer: NotApplicable, brief: str = "") -> ReportSection:
    """Write why there is nothing, and what would help."""
    return ReportSection(key, title, render("report_absent.html", answer=answer), brief)


# Tables -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HtmlColumn:
    """How a field is shown, where the format alone does not define it."""

    field: Field
    bar: bool = False
    """A share, drawn as a bar next to its number."""
    largest: float = 1.0
    """Of such a column: the value that the longest bar stands for."""
    extra: bool = False
    """Left out on narrow screens."""

    @property
    def kind(self) -> str:
        """Its classes."""
        named = "name" if self.field.fmt is Fmt.NAME else ""
        kinds = ("n" if self.field.fmt in NUMERIC else named, "bar" if self.bar else "")
        return " ".join(filter(None, (*kinds, "extra" if self.extra else "")))


def columns_of(
    result: TableResult, keys: Sequence[str], *, bars: Sequence[str] = (), extra: Sequence[str] = ()
) -> list[HtmlColumn]:
    """Choose columns of an answer by their keys, in this order; those it lacks are left out."""
    fields = {field.key: field for field in result.fields}
    return [
        HtmlColumn(
            fields[key],
            bar=key in bars,
            largest=_largest(result, key) if key in bars else 1.0,
            extra=key in extra,
        )
        for key in keys
        if key in fields
    ]


def _largest(result: TableResult, key: str) -> float:
    most = result.frame[key].max()
    return float(most) if isinstance(most, (int, float)) and most > 0 else 1.0


def shown_columns(result: TableResult) -> list[HtmlColumn]:
    """Give the columns that the command shows; what a row is about comes first."""
    shown = [field for field in result.fields if field.shown]
    return [
        HtmlColumn(field) for field in sorted(shown, key=lambda field: field.fmt is not Fmt.NAME)
    ]
