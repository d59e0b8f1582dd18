"""The forms in which counters can be listed, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.analyses.counters.listing import counters, instances, metric_list, wide_counters
from gpusight.analyses.counters.source import source_lines
from gpusight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.result import NotApplicable, TableResult

FORMS: dict[str, Callable[..., TableResult | NotApplicable]] = {
    "tidy": counters,
    "wide": wide_counters,
    "list": metric_list,
    "instances": instances,
    "source": source_lines,
}


def form_of(name: str) -> Callable[..., TableResult | NotApplicable]:
    """Find a form by its name."""
    if name not in FORMS:
        raise UsageError(f"no form {name!r} of counters", hint=f"forms are {', '.join(FORMS)}")
    return FORMS[name]
