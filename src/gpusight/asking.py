"""How the functions of `gpusight.api` ask: captures are opened, and no answer is an exception."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from gpusight.errors import MissingDataError
from gpusight.model.trace import Trace
from gpusight.result import NotApplicable, with_warnings

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from gpusight.analyses.select import Selection
    from gpusight.result import Composite, Result, TableResult

PathLike: TypeAlias = "str | os.PathLike[str]"
Capture: TypeAlias = "Trace | PathLike"
"""An opened capture, or where it lies."""


def opened(trace: Capture) -> Trace:
    """Give a capture, opened where it is not yet."""
    from gpusight.readers import open_trace

    return trace if isinstance(trace, Trace) else open_trace(trace)


def selected(within: str | None, device: int | None, process: str | int | None) -> Selection:
    """Give the part of the capture that the arguments select."""
    from gpusight.analyses.select import Selection

    name = None if process is None else str(process)
    return Selection(within=within, device=device, process=name)


def ask(
    analysis: Callable[..., Result], trace: Capture, *arguments: object, **options: object
) -> TableResult | Composite:
    """Ask a question of a capture; what is wrong with the capture is part of the answer."""
    capture = opened(trace)
    return told(analysis(capture, *arguments, **options), [capture])


def told(answer: Result, captures: Iterable[Trace]) -> TableResult | Composite:
    """Give the answer with what is wrong with any of the captures that it was made of."""
    warnings = dict.fromkeys(warning for trace in captures for warning in trace.meta.warnings)
    return given(with_warnings(answer, tuple(warnings)))


def given(answer: Result) -> TableResult | Composite:
    """Give the answer; raise where there is none."""
    if isinstance(answer, NotApplicable):
        raise absent(answer)
    return answer


def absent(answer: NotApplicable) -> MissingDataError:
    """Give the error that stands for an answer that the capture does not hold."""
    return MissingDataError(answer.reason, hint=answer.hint)
