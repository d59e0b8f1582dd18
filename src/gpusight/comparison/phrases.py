"""Changes in words.

Numbers as in the tables, which change is worth a sentence, what the bottleneck is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpusight.analysis.ledger.ledger_entries import COMMUNICATION, COMPUTE, COPY, IDLE, IdleCause
from gpusight.comparison.significance import ChangeVerdict
from gpusight.results import Fmt
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
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpusight.comparison.comparison_result import Comparison, CopyChange, EntryChange
    from gpusight.comparison.significance import MeasuredChange


_ON_GPU = "Device"
_FORMATS: dict[Fmt, Callable[[float | None], str]] = {
    Fmt.TIME: format_time,
    Fmt.BYTES: format_bytes,
    Fmt.COUNT: format_count,
    Fmt.SHARE: format_share,
}
_IS = {
    ChangeVerdict.LOWER: "is lower",
    ChangeVerdict.HIGHER: "is higher",
    ChangeVerdict.APPEARED: "is new",
    ChangeVerdict.VANISHED: "is gone",
    ChangeVerdict.SAME: "is the same",
    ChangeVerdict.UNCLEAR: "may have changed",
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


def from_to(change: MeasuredChange, fmt: Fmt = Fmt.TIME) -> str:
    """Show both values; the unit once where it is the same: `46.59 -> 42.42 ms`."""
    return in_one_unit(shown(change.before, fmt), shown(change.after, fmt), " -> ")


def in_one_unit(first: str, second: str, between: str) -> str:
    """Join two numbers; the unit once where it is the same."""
    number, _, unit = first.partition(" ")
    same = unit and unit == second.partition(" ")[2]
    return f"{number if same else first}{between}{second}"


def difference(change: MeasuredChange, fmt: Fmt = Fmt.TIME) -> str:
    """Show by how much something changed: `-4.169 ms, -8.9%`."""
    if not change.delta:
        return "no difference"
    text = signed(change.delta, fmt)
    return text if change.ratio is None else f"{text}, {signed_share(change.ratio)}"


def interval(change: MeasuredChange, confidence: float, fmt: Fmt = Fmt.TIME) -> str:
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


def is_how(change: MeasuredChange) -> str:
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


GPU, HOST = "gpu", "host"
NOTHING = "unknown"
_HOST_CAUSES = (IdleCause.LAUNCHING, IdleCause.FRAMEWORK, IdleCause.OTHER)
"""What a faster host, or less for it to do, would shorten."""
_GPU_GROUPS = (COMPUTE, COPY, COMMUNICATION)
_IN_WORDS = {
    GPU: "GPU work",
    COMPUTE: "computing on the GPU",
    COPY: "copies",
    COMMUNICATION: "communication",
    HOST: "the host",
    "input": "input",
    "synchronising": "waiting for the GPU",
    "allocating": "allocating memory",
    "queued": "queues on the GPU",
    "profiler": "the profiler",
    "unknown": "something that the captures do not tell",
}


def bottleneck(ledger: Mapping[str, float]) -> str:
    """Name what holds the step up most: `gpu` where it works for half of the step or more.

    Else the largest group of idle time: `host`, or a cause of its own.
    """
    groups = idle_groups(ledger)
    idle = sum(groups.values())
    if idle * 2 <= sum(ledger.values()):
        return GPU if ledger else NOTHING
    return max(groups, key=lambda group: groups[group])


def gpu_part(ledger: Mapping[str, float]) -> str:
    """Name what the GPU does most: `compute`, `copy` or `communication`."""
    return max(_GPU_GROUPS, key=lambda group: group_of(ledger, group))


def idle_groups(ledger: Mapping[str, float]) -> dict[str, float]:
    """Sum idle time by what it is spent on; what the host does itself is one group."""
    groups: dict[str, float] = {}
    for cause in IdleCause:
        name = HOST if cause in _HOST_CAUSES else cause.name.lower()
        groups[name] = groups.get(name, 0.0) + ledger.get(cause.entry, 0.0)
    return groups


def group_of(ledger: Mapping[str, float], group: str) -> float:
    """Sum the entries of a group."""
    return sum(ns for entry, ns in ledger.items() if f"{entry}/".startswith(f"{group}/"))


def busy_share(ledger: Mapping[str, float]) -> float | None:
    """Give the part of the step in which the GPU worked; None where that took no time."""
    total = sum(ledger.values())
    return (total - group_of(ledger, IDLE)) / total if total else None


def in_words(what: str) -> str:
    """Call a limit what a sentence calls it."""
    return _IN_WORDS.get(what, what)


WORTH_NAMING = 0.1
"""Part of a change from which on an entry of it is named."""
FAR_MORE = 2.0
"""Times the change of the whole from which on one of a part is far more."""
_MOST_ENTRIES = 4


def whole(found: Comparison) -> tuple[str, MeasuredChange]:
    """Give what GPU work and idle time sum to: the step, unless much lies between steps."""
    name = "the time from step to step" if found.is_apart else "the step"
    return name, found.headline.change


def each(found: Comparison) -> str:
    """Say what a time of work or waiting is a mean of."""
    return "from step to step" if found.is_apart else "a step"


def matters(found: Comparison, change: MeasuredChange) -> bool:
    """Tell whether a change is a part of that of the whole that is worth a sentence."""
    delta, of = abs(change.delta or 0.0), whole(found)[1]
    asked = WORTH_NAMING * abs(of.delta or 0.0) if of.claimed else 0.0
    return delta >= max(asked, found.least * (of.before or 0.0))


def entries(found: Comparison, rows: Iterable[EntryChange], of: float | None) -> str:
    """Name the claimed entries that make up most of a change, with their own."""
    least = max(abs(of or 0.0) * WORTH_NAMING, found.least * (whole(found)[1].before or 0.0) / 2)
    claimed = ((one.entry, one.change) for one in rows if one.change.claimed)
    return sentences(
        (name, change) for name, change in claimed if abs(change.delta or 0.0) >= least
    )


def sentences(changes: Iterable[tuple[str, MeasuredChange]]) -> str:
    """List changes by name."""
    return listed((f"{name} {signed(change.delta)}" for name, change in changes), _MOST_ENTRIES)


def colon(text: str) -> str:
    """Add a list to a sentence, where there is any."""
    return f": {text}" if text else ""


def bottleneck_phrase(found: Comparison) -> str:
    """Say what holds the step up."""
    was, now = found.before.limit, found.after.limit
    old, new = _named(found, was, "before"), _named(found, now, "after")
    if was != now:
        return f"{new} became the limit instead of {old}"
    if now == GPU:
        return f"{new} still is the limit"
    return f"{new} was the limit before and still is"


def _named(found: Comparison, what: str, side: str) -> str:
    """Call a limit by its name; GPU work that is no computing also by what it is."""
    if what != GPU:
        return in_words(what)
    part = gpu_part({one.entry: getattr(one.change, side) or 0.0 for one in found.ledger})
    return in_words(GPU) if part == COMPUTE else f"{in_words(GPU)} (mostly {in_words(part)})"


def busy_phrase(found: Comparison) -> str:
    """Say how busy the GPU was and is."""
    shares = (format_share(side.busy_share) for side in (found.before, found.after))
    return f"GPU busy {' -> '.join(shares)}"
