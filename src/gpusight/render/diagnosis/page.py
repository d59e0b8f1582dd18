"""The HTML page around a diagnosis: needs nothing else, runs no script, shows text as text."""

from __future__ import annotations

from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from gpusight.render.cells import safe_text
from gpusight.render.diagnosis.parts import value_of
from gpusight.render.pictures.theme import DARK, LIGHT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.findings.finding import Evidence
    from gpusight.render.pictures.theme import Theme

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, subtitle: str, body: str, *, styles: str = "") -> str:
    """Write a page of its own round what is HTML already; `styles` come on top of the usual."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{text(title)}</title>\n<style>\n{_styles()}{styles}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{text(title)}</h1>\n<p class="sub">{text(subtitle)}</p>\n'
        f"{body}\n</main>\n</body>\n</html>\n"
    )


def text(words: str) -> str:
    """Escape text so that nothing in it is HTML, nor drives what shows it."""
    return escape(safe_text(words))


def prose(words: str) -> str:
    """Show a text of our own, with its code spans; names in it are escaped like the rest."""
    parts = words.split("`")
    shown = (f"<code>{text(p)}</code>" if n % 2 else text(p) for n, p in enumerate(parts))
    return "".join(shown)


def code(lines: str) -> str:
    """Show lines to paste."""
    shown = "\n".join(text(line) for line in lines.rstrip("\n").splitlines())
    return f"<pre>{shown}</pre>"


def seen(evidence: Iterable[Evidence]) -> Iterator[str]:
    """Show the numbers of a finding as rows of a table."""
    for one in evidence:
        value, meaning = text(value_of(one)), prose(one.meaning)
        yield f'<tr><td style="text-align:right">{value}</td><td>{meaning}</td></tr>'


def notes(said: Iterable[str]) -> Iterator[str]:
    """Show what a reader must know."""
    return (f"<p><i>{prose(note)}</i></p>" for note in said)


def _styles() -> str:
    css = resources.files(__package__ or "").joinpath("page.css").read_text(encoding="utf-8")
    dark = f"@media (prefers-color-scheme: dark) {{{_variables(DARK)}}}"
    return f"{_variables(LIGHT)}\n{dark}\n{css}"


def _variables(theme: Theme) -> str:
    names = ("background", "text", "muted", "grid", "band", "mark", "quiet", "pale")
    colours = {name: getattr(theme, name) for name in names}
    colours |= {f"series-{n}": colour for n, colour in enumerate(theme.palette)}
    return f":root{{{''.join(f'--{name}:{colour};' for name, colour in colours.items())}}}"
