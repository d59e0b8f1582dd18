"""Labels of metrics: what people read in a report's sections, back to the metric.

A label is a metric's name in one section only: `Memory Throughput` is a percentage in one and bytes
a second in another. A few changed their meaning over the years, or depend on the GPU; what tells
them apart can be given to `metric_for`, and without it the meaning of most versions is taken.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from gpusight.model.metrics import label_rules as rules
from gpusight.model.metrics.label_table import LABELS, SECTION_NAMES
from gpusight.model.metrics.label_variants import RECENT, VARIANTS, Variant
from gpusight.model.metrics.names import canonical
from gpusight.model.metrics.units import scale_of, unit_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_METRIC_NAME = re.compile(r"[\w.:]*[a-z0-9]__[\w.]+")
_NAMED = re.compile(r".* \(([\w.:]*[a-z0-9]__[\w.]+)\)", re.DOTALL)
_LIKE_A_NAME = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+(?:\.[a-z0-9_]+)*")
_WITH_UNIT = re.compile(r"(.*\S)\s*\[[^\[\]]*\]")


def _squeeze(text: str) -> str:
    """Reduce a section's name to what all spellings share."""
    return "".join(char for char in text.lower() if char.isalnum())


def _fold(label: str) -> str:
    return " ".join(label.lower().split())


_SECTIONS = {
    _squeeze(name): identifier
    for identifier, names in SECTION_NAMES.items()
    for name in (identifier, *names)
}
_METRICS = {
    (section, _fold(label)): metric
    for section, labels in LABELS.items()
    for label, metric in labels.items()
}
_VARIANTS = {(section, _fold(label)): found for (section, label), found in VARIANTS.items()}
_ANYWHERE: dict[str, dict[str, None]] = {}
for (_, _label), _metric in _METRICS.items():
    _ANYWHERE.setdefault(_label, {})[_metric] = None


def section_of(name: str) -> str | None:
    """Give the identifier of a section (`SpeedOfLight`) from any name it was ever shown under."""
    return _SECTIONS.get(_squeeze(name))


def is_recent(labels: Iterable[str]) -> bool:
    """Tell by a file's labels whether 2025.3 or later wrote it; no when nothing tells."""
    return not RECENT.isdisjoint(labels)


@lru_cache(maxsize=8192)
def metric_for(
    section: str,
    label: str,
    unit: str = "",
    *,
    item: str = "",
    compute: tuple[int, int] | None = None,
    recent: bool = False,
    nth: int = 0,
) -> str | None:
    """Give the metric that a label stands for; None when that is not known.

    `section` is a section's name or identifier; when it is empty or not known, the unit decides
    between sections. `item` is the chart or table within the section (`Body Item Label`),
    `compute` the GPU's compute capability, `recent` what `is_recent` says of the file, and `nth`
    counts earlier rows of the same launch, section, item and label.
    """
    text = " ".join(label.split())
    named = text if _METRIC_NAME.fullmatch(text) else _named_within(text)
    if named:
        return canonical(named)
    place = _Place(
        section_of(section) or "",
        item.lower(),
        scale_of(unit)[1],
        compute[0] * 10 + compute[1] if compute else 0,
        recent,
        nth,
    )
    found = _look_up(text, place) or _look_up(_WITH_UNIT.sub(r"\1", text), place)
    return found or (canonical(text) if _LIKE_A_NAME.fullmatch(text) else None)


class _Place(NamedTuple):
    """Where a label stands, as far as that tells what it means."""

    section: str
    """Identifier; empty when not known."""
    item: str
    """Chart or table in the section, in small letters."""
    unit: str
    gpu: int
    """Compute capability, ten times; 0 when not known."""
    recent: bool
    nth: int


def _look_up(label: str, place: _Place) -> str | None:
    return _by_rule(label, place) or _in_section(label, place) or _anywhere(label, place)


def _named_within(text: str) -> str | None:
    """Give the name in `SM Busy (sm__instruction_throughput.avg…)`."""
    found = _NAMED.fullmatch(text)
    return found[1] if found else None


def _by_rule(label: str, place: _Place) -> str | None:
    if place.section == "ComputeWorkloadAnalysis":
        return rules.pipe(label, place.item, place.gpu, is_recent=place.recent)
    if place.section in ("WorkloadDistribution", "LaunchStats"):
        return rules.distributed(label, place.nth)
    return next((metric for rule in _RULES if (metric := rule(label))), None)


_RULES = (rules.breakdown, rules.arithmetic, rules.sampled_stall, rules.stall)


def _in_section(label: str, place: _Place) -> str | None:
    key = (place.section, _fold(label))
    variants = (v.metric for v in _VARIANTS.get(key, ()) if _applies(v, place))
    return next(variants, _METRICS.get(key))


def _applies(variant: Variant, place: _Place) -> bool:
    first, last = variant.compute
    return (
        variant.unit in ("", place.unit)
        and variant.item in place.item
        and (not last or first <= place.gpu <= last)
        and (place.recent or not variant.is_recent)
    )


def _anywhere(label: str, place: _Place) -> str | None:
    """Give what a label means in other sections, if its unit is the one printed.

    A label that is new to a section must mean the same in all others.
    """
    known = _ANYWHERE.get(_fold(label), {})
    unit = place.unit
    fitting = [metric for metric in known if not unit or unit_of(metric) in ("", unit)]
    return fitting[0] if fitting and (len(known) == 1 or not place.section) else None
