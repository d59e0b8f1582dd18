"""Changes in words; numbers are those of the tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpusight.comparison.change import Verdict
from gpusight.result import Fmt
from gpusight.units import (
    MISSING,
    format_bytes,
    format_count,
    format_real,
    format_share,
    format_time,
    unit_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpusight.comparison.change import Change
    from gpusight.comparison.outcome import CopyChange

_ON_GPU = "Device"
_FORMATS: dict[Fmt, Callable[[float | None], str]] = {
    Fmt.TIME: format_time,
    Fmt.BYTES: format_bytes,
    Fmt.COUNT: format_count,
    Fmt.SHARE: format_share,
}
_IS = {
    Verdict.LOWER: "is lower",
    Verdict.HIGHER: "is higher",
    Verdict.APPEARED: "is new",
    Verdict.VANISHED: "is gone",
    Verdict.SAME: "is the same",
    Verdict.UNCLEAR: "may have changed",
}


def shown(value: float | None, fmt: Fmt = Fmt.TIME) -> str:
    """Show a value in its unit."""
    whole = round(value, 3) if value is not None and fmt is Fmt.COUNT else value
    return _FORMATS.get(fmt, format_real)(whole)


def signed(value: float | None, fmt: Fmt = Fmt.TIME) -> str:
    """Show a difference with its sign: `+1.234 ms`, `-28.20 ms`; none has no sign."""
    text = shown(value if value is None else value or 0.0, fmt)
    return f"+{text}" if value is not None and value > 0 and text != MISSING else text


def signed_share(ratio: float | None) -> str:
    """Show a difference as a part of what was before: `-8.9%`."""
    if ratio is None or not math.isfinite(ratio):
        return MISSING
    number = ratio * 100
    if abs(number) < 0.05:
        return "0.0%"
    return f"{number:+,.0f}%" if abs(number) >= 1000 else f"{number:+.1f}%"


def percent(part: float) -> str:
    """Show a part that somebody chose, as it was written: `2%`, `99.5%`."""
    return f"{part * 100:g}%"


def from_to(change: Change, fmt: Fmt = Fmt.TIME) -> str:
    """Show both values; the unit once where it is the same: `46.59 -> 42.42 ms`."""
    return in_one_unit(shown(change.before, fmt), shown(change.after, fmt), " -> ")


def in_one_unit(first: str, second: str, between: str) -> str:
    """Join two numbers; the unit once where it is the same."""
    number, _, unit = first.partition(" ")
    same = unit and unit == second.partition(" ")[2]
    return f"{number if same else first}{between}{second}"


def difference(change: Change, fmt: Fmt = Fmt.TIME) -> str:
    """Show by how much something changed: `-4.169 ms, -8.9%`."""
    if not change.delta:
        return "no difference"
    text = signed(change.delta, fmt)
    return text if change.ratio is None else f"{text}, {signed_share(change.ratio)}"


def interval(change: Change, confidence: float, fmt: Fmt = Fmt.TIME) -> str:
    """Show the interval of a difference and what it is; empty where there is none."""
    ends = spread(change.low, change.high, fmt)
    return "" if ends == MISSING else f"{percent(confidence)} interval {ends}"


def spread(low: float | None, high: float | None, fmt: Fmt = Fmt.TIME) -> str:
    """Show the ends of an interval in one unit, with signs: `-4.90 to -3.41 ms`."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return MISSING
    largest = max(abs(low), abs(high))
    factor, unit = unit_of(_FORMATS.get(fmt, format_real), largest)
    scaled = largest / factor
    digits = min(3, max(0, 2 - math.floor(math.log10(scaled)))) if scaled else 0
    ends = " to ".join(f"{end / factor:+,.{digits}f}" for end in (low, high))
    return f"{ends} {unit}".rstrip()


def is_how(change: Change) -> str:
    """Say what became of something: `is lower`."""
    return _IS[change.verdict]


def copy_name(one: CopyChange) -> str:
    """Name copies of one kind: `Host-to-Device, Pageable`; the GPU's own memory goes unsaid."""
    kinds = [kind for kind in (one.src_kind, one.dst_kind) if kind and kind != _ON_GPU]
    return f"{one.operation}, {' to '.join(kinds)}" if kinds else one.operation


def joined(parts: Sequence[str]) -> str:
    """Join parts as a sentence does: `a, b and c`."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def listed(parts: Iterable[str], most: int = 4) -> str:
    """Join parts by commas; what is too much is counted."""
    every = list(parts)
    more = len(every) - most
    return ", ".join((*every[:most], f"{more} more")) if more > 1 else ", ".join(every)
