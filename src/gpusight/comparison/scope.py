"""Which part of a capture was summed up, as options that can be typed again."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from gpusight.comparison.naming import cut
from gpusight.evidence import encodable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.analyses.select import Selection


def scope_of(
    selection: Selection,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
) -> str:
    """Write what was chosen as options; empty where nothing was.

    A process given by its number is `--process ID`: every run has another.
    """
    return cut(encodable(" ".join(_options(selection, steps, window, warmup=warmup))))


def _options(
    selection: Selection,
    steps: str | None,
    window: tuple[int | None, int | None] | None,
    *,
    warmup: bool,
) -> Iterator[str]:
    if selection.within is not None:
        yield f"--in {shlex.quote(selection.within.strip())}"
    if selection.device is not None:
        yield f"--device {selection.device}"
    if selection.process is not None:
        name = selection.process.strip()
        yield f"--process {'ID' if name.isdecimal() else shlex.quote(name)}"
    if steps is not None:
        yield f"--steps {shlex.quote(''.join(steps.split()).lower())}"
    if window is not None:
        yield f"--window {'-'.join(map(_time, window))}"
    if warmup:
        yield "--warmup"


def _time(end_ns: int | None) -> str:
    """Write an end of a window in the largest unit that leaves no fraction."""
    if end_ns is None:
        return ""
    units = (("s", 10**9), ("ms", 10**6), ("us", 10**3))
    return next((f"{end_ns // ns}{unit}" for unit, ns in units if end_ns % ns == 0), f"{end_ns}ns")
