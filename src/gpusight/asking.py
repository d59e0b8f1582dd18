"""How the functions of `gpusight.api` ask: captures are opened, and no answer is an exception."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from gpusight.errors import MissingDataError
from gpusight.model.trace import Trace
from gpusight.result import NotApplicable, with_warnings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpusight.analyses.select import Selection
    from gpusight.comparison.digest import Digest
    from gpusight.result import Composite, Result, TableResult

PathLike: TypeAlias = "str | os.PathLike[str]"
Capture: TypeAlias = "Trace | PathLike"
"""An opened capture, or where it lies."""
Summed: TypeAlias = "Capture | Digest"
"""A capture, or what a comparison needs to know of one."""
_Source = TypeVar("_Source", bound="Trace | Path")


def opened(trace: Capture) -> Trace:
    """Give a capture, opened where it is not yet."""
    from gpusight.readers import open_trace

    return trace if isinstance(trace, Trace) else open_trace(trace)


def selected(within: str | None, device: int | None, process: str | int | None) -> Selection:
    """Give the part of the capture that the arguments select."""
    from gpusight.analyses.select import Selection

    name = None if process is None else str(process)
    return Selection(within=within, device=device, process=name)


def digested(
    captures: Summed | Iterable[Summed],
    selection: Selection,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
) -> list[Digest]:
    """Sum captures up for a comparison; a baseline file holds such sums already.

    A path may also be a glob, a folder of captures or a list, as on the command line. Raises where
    a capture cannot be compared.
    """
    from gpusight.comparison.make import make_digest

    def make(one: Trace | Path) -> Digest | NotApplicable:
        return make_digest(opened(one), selection, steps=steps, window=window, warmup=warmup)

    found = sum_up(_each(captures), make)
    if isinstance(found, NotApplicable):
        raise absent(found)
    return found


def sum_up(
    captures: Iterable[_Source | Digest], make: Callable[[_Source], Digest | NotApplicable]
) -> list[Digest] | NotApplicable:
    """Sum captures up by `make`, up to the first that cannot be; baselines are sums already."""
    from gpusight.comparison.digest import Digest
    from gpusight.comparison.files import is_baseline, load_baseline

    found: list[Digest] = []
    for one in captures:
        if isinstance(one, Digest):
            found.append(one)
        elif isinstance(one, Path) and is_baseline(one):
            found += load_baseline(one)
        else:
            made = make(one)
            if isinstance(made, NotApplicable):
                name = (one if isinstance(one, Path) else Path(one.meta.path)).name
                return replace(made, reason=f"{name} cannot be compared: {made.reason}")
            found.append(made)
    return found


def _each(captures: Summed | Iterable[Summed]) -> Iterator[Trace | Digest | Path]:
    """Give what is to be summed up one by one, paths as the files that they mean."""
    from gpusight.comparison.digest import Digest
    from gpusight.comparison.sides import side_paths

    given = [captures] if isinstance(captures, (str, os.PathLike, Trace, Digest)) else captures
    paths: list[str] = []
    for one in given:
        if isinstance(one, (Trace, Digest)):
            yield one
        else:
            paths.append(os.fspath(one))
    yield from side_paths(paths)  # together, so that it sees what was named twice


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
