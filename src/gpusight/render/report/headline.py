"""The beginning of a report: what was captured, four numbers, three fixes and what they give."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpusight.render.cells import show
from gpusight.render.diagnosis import timeline_parts
from gpusight.render.diagnosis.page import prose, text
from gpusight.render.report import markup
from gpusight.result import NotApplicable
from gpusight.units import MISSING, format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.reporting.headline import Gain, Headline, Number
    from gpusight.reporting.report import About, Report

_LONGEST = 300
_WORDS = {1: "it", 2: "both", 3: "all three"}
_MOST_CAUTIONS = 3
_WORTH = 1.005
"""Times faster below which nothing is said of it."""


def header(report: Report) -> str:
    """Write what the page begins with."""
    return "\n".join(
        (
            '<header class="hero">',
            '<p class="kicker">gpusight report</p>',
            f"<h1>{_breaking(markup.clipped(report.title, _LONGEST))}</h1>",
            *(f'<p class="about">{_about(one, report.title)}</p>' for one in report.captures),
            *(f'<p class="warning">{prose(warning)}</p>' for warning in report.warnings),
            f'<dl class="numbers">{"".join(map(_number, report.headline.numbers))}</dl>',
            *_first(report),
            "</header>",
        )
    )


def _breaking(escaped: str) -> str:
    """Let a file's name go on in the next line behind what parts its words."""
    return escaped.replace("_", "_<wbr>").replace(".", ".<wbr>")


def _about(one: About, title: str) -> str:
    gpus = [f"{count} x {name}" if count > 1 else name for name, count in Counter(one.gpus).items()]
    length = "" if one.duration_ns is None else format_time(one.duration_ns)
    file = "" if one.file == title else one.file
    facts = (file, one.tool, ", ".join(gpus), one.started, length)
    return " · ".join(markup.clipped(fact, _LONGEST) for fact in facts if fact)


def _number(number: Number) -> str:
    known = number.value is not None
    exact = f' data-v="{number.value!r}"' if known else ""
    shown = show(number.value, number.fmt) if known else MISSING
    value, _, unit = shown.partition(" ")
    unit = f" <small>{text(unit)}</small>" if unit else ""
    kind = "" if known else ' class="unknown"'
    return (
        f'<div{kind} data-key="{text(number.key)}"><dt>{text(number.label)}</dt>'
        f"<dd{exact}>{text(value)}{unit}</dd>"
        f'<dd class="detail">{markup.clipped(_said(number), _LONGEST)}</dd></div>'
    )


def _said(number: Number) -> str:
    return number.detail if number.value is not None else markup.begun(number.detail)


def _first(report: Report) -> Iterator[str]:
    """Show the foremost fixes and what they give together; or that there is nothing to fix."""
    told = report.headline
    found = None if report.program is None else report.program.diagnosis
    if isinstance(found, NotApplicable):
        return
    verdict = "" if found is None else timeline_parts.verdict(found)
    if verdict or not told.gains:
        yield '<div class="first calm"><h2>Nothing stands out</h2>'
        yield f"<p>{text(verdict or 'Nothing that was found gives time back.')}</p>"
    else:
        yield '<div class="first"><h2>Fix first</h2>'
    if told.gains:
        items = (
            _gain(gain, f"finding-{gain.rank}" if found else _place(gain, report))
            for gain in told.gains
        )
        yield f'<ol class="gains">{"".join(items)}</ol>'
        yield _together(told)
    yield from _cautions(told)
    yield "</div>"


def _place(gain: Gain, report: Report) -> str:
    """Say where a measured kernel is explained; of several reports, where the first begins."""
    return f"measured-1-{gain.rank}" if len(report.measured) == 1 else "measured-1"


def _cautions(told: Headline) -> Iterator[str]:
    """Name what gives no time back, but bears on how the numbers are read."""
    items = "".join(
        f'<li><a href="#finding-{one.rank}">{prose(one.title[:_LONGEST])}</a></li>'
        for one in told.cautions[:_MOST_CAUTIONS]
    )
    if items:
        yield f'<div class="cautions"><h3>Keep in mind</h3><ul>{items}</ul></div>'


def _gain(gain: Gain, place: str) -> str:
    later = "" if gain.alone_ns or not gain.after_ns else " · after those before it"
    saves = f'<b data-v="{gain.alone_ns!r}">{text(format_time(gain.worth_ns))}</b>'
    share = "" if not gain.share else f" · {format_share(gain.share)}"
    told = f"{gain.rule}{share}{later} · {gain.confidence} confidence"
    return (
        f'<li><a href="#{place}">{saves}'
        f'<span class="title">{prose(gain.title[:_LONGEST])}</span>'
        f"<small>{text(told)}</small></a></li>"
    )


def _together(told: Headline) -> str:
    """Draw what is left of the whole once these are fixed."""
    now, then = told.now_ns, told.then_ns
    if not now or then is None or now / max(then, 1.0) < _WORTH:
        return ""
    saved = [(gain.after_ns or 0.0) / now for gain in told.gains]
    cut = "".join(
        f'<span class="saved saved-{number}" style="width:{100 * part:.3f}%" '
        f'title="{text(f"{number}. {gain.rule}: {format_time(gain.after_ns)}")}"></span>'
        for number, (part, gain) in enumerate(zip(saved, told.gains, strict=True), 1)
    )
    whole = f"a {told.whole}" if told.whole == "step" else f"the {told.whole}"
    faster = f"{now / max(then, 1.0):,.2f} times faster"
    words = (
        f"After {_WORDS[len(told.gains)]}, {whole} of {format_time(now)} would take about "
        f"{format_time(then)}, {faster}."
    )
    return (
        f'<div class="together" data-now="{now!r}" data-then="{then!r}">'
        f'<div class="stack" role="img" aria-label="{text(words)}">'
        f'<span class="left" style="width:{100 * then / now:.3f}%"></span>{cut}</div>'
        f"<p>{text(words)}</p></div>"
    )
