"""How the functions of `gpusight.api` ask: captures are opened, and no answer is an exception."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from gpusight.errors import MissingDataError, UsageError
from gpusight.results import NotApplicable, with_warnings
from gpusight.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpusight.analysis.selection import Selection
    from gpusight.comparison.digest import Digest
    from gpusight.results import Composite, Result, TableResult

PathLike: TypeAlias = "str | os.PathLike[str]"
Capture: TypeAlias = "Trace | PathLike"
"""An opened capture, or where it lies."""
Summed: TypeAlias = "Capture | Digest"
"""A capture, or what a comparison needs to know of one."""
_Source = TypeVar("_Source", bound="Trace | Path")


def opened(trace: Capture) -> Trace:
    """Give a capture, opened where it is not yet."""
    from gpusight.readers.open import open_trace

    return trace if isinstance(trace, Trace) else open_trace(trace)


def selected(within: str | None, device: int | None, process: str | int | None) -> Selection:
    """Give the part of the capture that the arguments select."""
    from gpusight.analysis.selection import Selection

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
    from gpusight.comparison.build_digest import make_digest

    def make(one: Trace | Path) -> Digest | NotApplicable:
        return make_digest(opened(one), selection, steps=steps, window=window, warmup=warmup)

    given, notes = _each(captures)
    found = sum_up(given, make, notes)
    if isinstance(found, NotApplicable):
        raise absent(found)
    return found


def sum_up(
    captures: Iterable[_Source | Digest],
    make: Callable[[_Source], Digest | NotApplicable],
    notes: Mapping[Path, str] = MappingProxyType({}),
) -> list[Digest] | NotApplicable:
    """Sum captures up by `make`, up to the first that cannot be; baselines are sums already.

    `notes` are of paths, and become notes of their captures.
    """
    from msgspec import structs

    from gpusight.comparison.baseline_file import is_baseline, load_baseline
    from gpusight.comparison.digest import Digest

    found: list[Digest] = []
    for one in captures:
        if isinstance(one, Digest):
            found.append(one)
        elif isinstance(one, Path) and is_baseline(one):
            found += load_baseline(one)
        else:
            path = one if isinstance(one, Path) else Path(one.meta.path)
            made = _made(path, one, make)
            if isinstance(made, NotApplicable):
                return replace(made, reason=f"{path.name} cannot be compared: {made.reason}")
            told = [notes[path]] if path in notes else []
            found.append(structs.replace(made, notes=(*made.notes, *told)))
    return found


def _made(
    path: Path, capture: _Source, make: Callable[[_Source], Digest | NotApplicable]
) -> Digest | NotApplicable:
    """Sum a capture up; a request that does not fit it says which capture that is."""
    try:
        return make(capture)
    except (UsageError, MissingDataError) as error:
        what = error.what if path.name in error.what else f"{path.name}: {error.what}"
        raise type(error)(what, why=error.why, hint=error.hint) from error


def _each(
    captures: Summed | Iterable[Summed],
) -> tuple[list[Trace | Digest | Path], Mapping[Path, str]]:
    """Give what is to be summed up one by one, paths as the files that they mean, with notes."""
    from gpusight.comparison.digest import Digest
    from gpusight.comparison.inputs import side_inputs as side_meant

    single = isinstance(captures, (str, os.PathLike, Trace, Digest))
    if not single and not isinstance(captures, Iterable):
        raise _no_capture(captures)
    given: list[Trace | Digest | Path] = []
    paths: list[str] = []
    for one in [captures] if single else captures:  # type: ignore[union-attr]
        if isinstance(one, (Trace, Digest)):
            given.append(one)
        elif isinstance(one, (str, os.PathLike)):
            paths.append(os.fspath(one))
        else:
            raise _no_capture(one)
    meant = side_meant(paths)  # together, so that it sees what was named twice
    return [*given, *meant.paths], meant.notes


def _no_capture(given: object) -> UsageError:
    return UsageError(
        f"{type(given).__name__} is no capture",
        hint="give a path, an opened capture, a digest of gs.baseline, or a list of these",
    )


def ask(
    analysis: Callable[..., Result], trace: Capture, *arguments: object, **options: object
) -> TableResult | Composite:
    """Ask a question of a capture; what is wrong with the capture is part of the answer."""
    capture = opened(trace)
    return told(analysis(capture, *arguments, **options), [capture])


def told(answer: Result, captures: Iterable[Trace]) -> TableResult | Composite:
    """Give the answer with what is wrong with any of the captures that it was made of."""
    warnings = dict.fromkeys(warning for trace in captures for warning in trace.warnings)
    return given(with_warnings(answer, tuple(warnings)))


def given(answer: Result) -> TableResult | Composite:
    """Give the answer; raise where there is none."""
    if isinstance(answer, NotApplicable):
        raise absent(answer)
    return answer


def absent(answer: NotApplicable) -> MissingDataError:
    """Give the error that stands for an answer that the capture does not hold."""
    return MissingDataError(answer.reason, hint=answer.hint)
