"""What was measured, listed in one of several forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.analyses.counters.choose import ProfileScope, no_counters
from gpusight.analyses.counters.listing import COMMAND, brief, instances, metric_list, tidy, wide
from gpusight.analyses.counters.source import source_lines
from gpusight.analyses.select import EVERYTHING, Selection
from gpusight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusight.model.trace import Trace
    from gpusight.result import NotApplicable, TableResult

FORMS: dict[str, Callable[[ProfileScope, Sequence[str]], TableResult | NotApplicable]] = {
    "tidy": tidy,
    "wide": wide,
    "list": metric_list,
    "instances": instances,
    "source": source_lines,
}


def counters(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    form: str = "tidy",
    metrics: Sequence[str] = (),
    kernel: str | None = None,
    launches: Sequence[int] = (),
) -> TableResult | NotApplicable:
    """List what was measured of the selected launches.

    `form` is `tidy` (a row for each launch and metric), `wide` (a column for each metric), `list`
    (the metrics), `instances` (their parts) or `source` (by line). `metrics` are names, globs,
    regular expressions or parts of names; none means all.
    """
    if form not in FORMS:
        raise UsageError(f"no form {form!r} of counters", hint=f"forms are {', '.join(FORMS)}")
    if not trace.has("counters"):
        return no_counters(COMMAND)
    scope = ProfileScope(trace, selection, kernel=kernel, launches=launches)
    return FORMS[form](scope, metrics)


def brief_counters(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    kernel: str | None = None,
    launches: Sequence[int] = (),
    as_wide: bool = False,
) -> TableResult | NotApplicable:
    """List the few metrics that tell most, for people."""
    if not trace.has("counters"):
        return no_counters(COMMAND)
    scope = ProfileScope(trace, selection, kernel=kernel, launches=launches)
    return brief(scope, as_wide=as_wide)
