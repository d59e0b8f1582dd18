"""A typical step track by track, as a picture, and how busy the GPUs were over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.render.pictures.timeline import timeline_figure
from gpusight.render.pictures.utilisation import utilisation_figure
from gpusight.render.report import markup
from gpusight.render.report.picture import picture
from gpusight.result import NotApplicable

if TYPE_CHECKING:
    from gpusight.result import Composite

_FACTS = ("busy_share", "busiest", "least_busy", "longest_idle_ns", "longest_idle_at_ns")


def timeline_section(found: Composite | NotApplicable) -> markup.Section | None:
    """Write the section; None where nothing has a time."""
    if isinstance(found, NotApplicable):
        return None
    what = next((fact.value for fact in found.facts if fact.key == "what"), "")
    told = f"What the GPU and its host did{f' in {what}' if what else ''}."
    return markup.Section(
        "timeline", "Timeline", markup.lead(told) + picture(timeline_figure(found))
    )


def utilisation_section(found: Composite | NotApplicable) -> markup.Section | None:
    """Write the section; None where no GPU worked."""
    if isinstance(found, NotApplicable):
        return None
    parts = (
        markup.lead("How busy the GPU was over time, by what it did."),
        markup.facts(found, _FACTS),
        picture(utilisation_figure(found)),
    )
    return markup.Section("utilisation", "Utilisation", "\n".join(parts))
