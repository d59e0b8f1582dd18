"""What changed since a capture before: verdict, reasons, waterfall and tables of `compare`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpusight.render.cells import shorten_middle
from gpusight.render.comparison.html import to_body
from gpusight.render.report import markup
from gpusight.result import NotApplicable

if TYPE_CHECKING:
    from gpusight.comparison.outcome import Comparison

_LONGEST = 200
_RANGES = 3
"""Ranges that a kernel is said to have been launched in."""


def comparison_section(found: Comparison | NotApplicable | None) -> markup.Section | None:
    """Write the section; None where nothing was to be compared."""
    if found is None:
        return None
    if isinstance(found, NotApplicable):
        return markup.Section("comparison", "Before and after", markup.absent(found))
    body = f'<div class="comparison">{to_body(_bounded(found), level=3)}</div>'
    return markup.Section("comparison", "Before and after", body)


def _bounded(found: Comparison) -> Comparison:
    """Cut names that a hostile capture may have made long without end."""
    kernels = tuple(
        replace(
            one,
            short=shorten_middle(one.short, _LONGEST),
            ranges=tuple(shorten_middle(name, _LONGEST) for name in one.ranges[:_RANGES]),
        )
        for one in found.kernels
    )
    ranges, api = (
        tuple(replace(one, name=shorten_middle(one.name, _LONGEST)) for one in calls)
        for calls in (found.ranges, found.api)
    )
    return replace(found, kernels=kernels, ranges=ranges, api=api)
