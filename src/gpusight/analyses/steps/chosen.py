"""Steps and times as people write them: `3-7`, `5`, `2:`, `all`; `1.2s-1.5s`, `300ms-`."""

from __future__ import annotations

import math
import re

from gpusight.analyses.steps.step import shortened
from gpusight.errors import UsageError

ALL = "all"
_UNITS = {"ns": 1, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9}
_SPAN = re.compile(r"\s*(\d*)\s*([-:])\s*(\d*)\s*")
_TIME = r"(?:(\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+)\s*([a-zµμ]*))"
_WINDOW = re.compile(rf"\s*{_TIME}?\s*([-:])\s*{_TIME}?\s*", re.IGNORECASE)
_STEPS_HINT = "write 5, 3-7, 2: or all"
_MOST_DIGITS = 18
"""So that a number fits in 64 bits."""
_WINDOW_HINT = "write 1.2s-1.5s, 300ms- or 0-2s (ns, us, ms, s)"


def read_steps(text: str) -> tuple[int | None, int | None] | None:
    """Read which steps by number, first and last, None for an open end; None for all."""
    if text.strip().lower() == ALL:
        return None
    shown = repr(shortened(text))
    if text.strip().isdecimal():
        only = _number(text.strip(), shown)
        return only, only
    found = _SPAN.fullmatch(text)
    if found is None or not (found.group(1) or found.group(3)):
        raise UsageError(f"--steps {shown} names no steps", hint=_STEPS_HINT)
    first, last = (_number(p, shown) if p else None for p in (found.group(1), found.group(3)))
    if first is not None and last is not None and last < first:
        raise UsageError(f"--steps {shown} ends before it begins", hint=_STEPS_HINT)
    return first, last


def _number(digits: str, shown: str) -> int:
    """Read a number of a step; `shown` is what errors call the whole."""
    if len(digits) > _MOST_DIGITS:
        raise UsageError(f"--steps {shown} is beyond any capture", hint=_STEPS_HINT)
    return int(digits)


def read_window(text: str) -> tuple[int | None, int | None]:
    """Read a window as nanoseconds from the capture's origin, None for an open end.

    A unit at the end holds for both: `1.2-1.5s`.
    """
    shown = repr(shortened(text))
    found = _WINDOW.fullmatch(text)
    if found is None or not (found.group(1) or found.group(4)):
        raise UsageError(f"--window {shown} is not a span of time", hint=_WINDOW_HINT)
    first, unit, _, last, last_unit = found.groups()
    begin = _ns(first, unit or last_unit, shown)
    end = _ns(last, last_unit, shown)
    if begin is not None and end is not None and end <= begin:
        raise UsageError(f"--window {shown} ends before it begins", hint=_WINDOW_HINT)
    return begin, end


def _ns(number: str | None, unit: str | None, shown: str) -> int | None:
    if number is None:
        return None
    factor = _UNITS.get((unit or "").lower())
    if factor is None:
        what = f"has no unit {shortened(unit)!r}" if unit else "has no unit"
        raise UsageError(f"--window {shown} {what}", hint=_WINDOW_HINT)
    value = float(number) * factor
    if not math.isfinite(value) or value >= 2**63:
        raise UsageError(f"--window {shown} is beyond any capture", hint=_WINDOW_HINT)
    return round(value)
