"""Changes in words.

Numbers as in the tables, which change is worth a sentence, what the bottleneck is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpusight.analysis.ledger.ledger_entries import COMMUNICATION, COMPUTE, COPY, IDLE, IdleCause
from gpusight.comparison.significance import MAX_REPEATS, ChangeVerdict
from gpusight.results import Fmt
from gpusight.units import (
    MISSING,
    format_bytes,
    format_count,
    format_mean,
    format_real,
    format_share,
    format_time,
    in_one_unit,
    unit_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpusight.comparison.comparison_result import Comparison, CopyChange, EntryChange
    from gpusight.comparison.significance import MeasuredChange


_ON_GPU = "Device"
_UNITS: dict[Fmt, Callable[[float | None], str]] = {
    Fmt.TIME: format_time,
    Fmt.BYTES: format_bytes,
    Fmt.COUNT: format_count,
}
"""Formats that the unit of an interval is taken from."""
_IS = {
    ChangeVerdict.LOWER: "is lower",
    ChangeVerdict.HIGHER: "is higher",
    ChangeVerdict.APPEARED: "is new",
    ChangeVerdict.VANISHED: "dropped to 0",
    ChangeVerdict.SAME: "is unchanged",
    ChangeVerdict.UNCLEAR: "may have changed",
    ChangeVerdict.NOT_COMPARABLE: "is not comparable",
}


def shown(value: float | None, fmt: Fmt = Fmt.TIME) -> str:
    """Show a value in its unit, with three significant digits; counts as whole numbers."""
    if fmt is Fmt.TIME:
        is_short = value is not None and abs(value) < 1_000
        return format_time(round(value) if is_short else value, digits=3)  # type: ignore[arg-type]
    if fmt is Fmt.BYTES:
        return format_bytes(value, digits=3)
    if fmt is Fmt.SHARE:
        return format_share(value)
    if fmt is not Fmt.COUNT or value is None or not math.isfinite(value):
        return format_real(value)
    sign = "-" if value < 0 else ""
    return sign + format_mean(abs(round(value, 3)))


def signed(value: float | None, fmt: Fmt = Fmt.TIME) -> str:
    """Show a difference with its sign: `+1.23 ms`, `-28.2 ms`; none has no sign."""
    text = shown(value if value is None else value or 0.0, fmt)
    is_more = value is not None and value > 0 and text != MISSING and not text.startswith("0 ")
    return f"+{text}" if is_more else text


def signed_share(ratio: float | None) -> str:
    """Show a difference as a share of the value before: `-8.9%`."""
    if ratio is None or not math.isfinite(ratio):
        return MISSING
    number = ratio * 100
    if abs(number) < 0.05:
        return "0.0%"
    return f"{number:+,.0f}%" if abs(number) >= 1000 else f"{number:+.1f}%"


def percent(share: float) -> str:
    """Show a share that the user chose: `2%`, `99.5%`."""
    return f"{share * 100:g}%"


def from_to(change: MeasuredChange, fmt: Fmt = Fmt.TIME) -> str:
    """Show both values; the unit once where it is the same: `46.9 -> 42.7 ms`."""
    return in_one_unit(shown(change.before, fmt), shown(change.after, fmt), " -> ")


def difference(change: MeasuredChange, fmt: Fmt = Fmt.TIME) -> str:
    """Show a difference and its share: `-4.14 ms, -8.8%`."""
    if not change.delta:
        return "no difference"
    text = signed(change.delta, fmt)
    return text if change.ratio is None else f"{text}, {signed_share(change.ratio)}"


def interval(change: MeasuredChange, confidence: float, fmt: Fmt = Fmt.TIME) -> str:
    """Show the confidence interval of a difference; empty where there is none."""
    ends = spread(change.low, change.high, fmt)
    return "" if ends == MISSING else f"{percent(confidence)} interval {ends}"


def spread(low: float | None, high: float | None, fmt: Fmt = Fmt.TIME) -> str:
    """Show the ends of an interval in one unit, with signs: `-4.90 to -3.41 ms`."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return MISSING
    largest = max(abs(low), abs(high))
    factor, unit = unit_of(_UNITS.get(fmt, format_real), largest)
    scaled = largest / factor
    digits = min(3, max(0, 2 - math.floor(math.log10(scaled)))) if scaled else 0
    if fmt is Fmt.COUNT and low.is_integer() and high.is_integer():
        digits = 0
    ends = " to ".join(f"{end / factor:+,.{digits}f}" for end in (low, high))
    return f"{ends} {unit}".rstrip()


def repeats_phrase(
    repeats: int | None, sides: str = "captures per side", *, measured: bool = True
) -> str:
    """Say how many captures are needed; where nothing shows how much runs differ, the least."""
    if not measured:
        return f"{repeats} or more {sides}"
    return f"more than {MAX_REPEATS} {sides}" if repeats is None else f"about {repeats} {sides}"


def is_how(change: MeasuredChange) -> str:
    """Put a verdict into words: `is lower`."""
    return _IS[change.verdict]


def copy_name(copy: CopyChange) -> str:
    """Name copies of one kind: `Host-to-Device, Pageable`; device memory is not named."""
    kinds = [kind for kind in (copy.src_kind, copy.dst_kind) if kind and kind != _ON_GPU]
    return f"{copy.operation}, {' to '.join(kinds)}" if kinds else copy.operation


def join_first(parts: Iterable[str], most: int = 4) -> str:
    """Join parts by commas; those over the limit are counted."""
    texts = list(parts)
    more = len(texts) - most
    return ", ".join((*texts[:most], f"{more} more")) if more > 1 else ", ".join(texts)


GPU, HOST = "gpu", "host"
NOTHING = "unknown"
_HOST_CAUSES = (IdleCause.LAUNCHING, IdleCause.SETUP, IdleCause.FRAMEWORK, IdleCause.HOST)
"""Idle time that a faster host, or less host work, would shorten."""
_GPU_GROUPS = (COMPUTE, COPY, COMMUNICATION)
_IN_WORDS = {
    GPU: "GPU work",
    COMPUTE: "compute",
    COPY: "copies",
    COMMUNICATION: "communication",
    HOST: "the host",
    "input": "data loading",
    "waiting": "waits for other threads or processes",
    "synchronizing": "blocking syncs",
    "allocating": "memory allocation",
    "queued": "GPU queues",
    "profiler": "profiler overhead",
    "unknown": "an unknown cause",
}


_MIN_HOST_SHARE = 0.9
"""Share of the step that the host needs for itself, from which on it is the bottleneck: GPU work
that took no time at all would save less than a tenth."""


def bottleneck(ledger: Mapping[str, float], host_share: float | None = None) -> str:
    """Name the bottleneck of a step: `gpu` if the GPU is busy for half of the step or more.

    Else the largest group of idle time: `host`, or a cause of its own. A GPU that is busy while the
    host is too is not the bottleneck: `host_share` is the part of the step that the host needs
    alone, None where that is not known.
    """
    groups: dict[str, float] = {}
    for cause in IdleCause:
        name = HOST if cause in _HOST_CAUSES else cause.name.lower()
        groups[name] = groups.get(name, 0.0) + ledger.get(cause.entry, 0.0)
    if sum(groups.values()) * 2 <= sum(ledger.values()):
        if not ledger:
            return NOTHING
        return GPU if host_share is None or host_share < _MIN_HOST_SHARE else HOST
    return max(groups, key=lambda group: groups[group])


def gpu_part(ledger: Mapping[str, float]) -> str:
    """Name what most GPU time goes to: `compute`, `copy` or `communication`."""
    return max(_GPU_GROUPS, key=lambda group: _group_ns(ledger, group))


def _group_ns(ledger: Mapping[str, float], group: str) -> float:
    """Sum the entries of a group."""
    return sum(ns for entry, ns in ledger.items() if f"{entry}/".startswith(f"{group}/"))


def busy_share(ledger: Mapping[str, float]) -> float | None:
    """Compute the share of the step in which the GPU is busy; None for an empty ledger."""
    total = sum(ledger.values())
    return (total - _group_ns(ledger, IDLE)) / total if total else None


def in_words(what: str) -> str:
    """Name a bottleneck in a sentence."""
    return _IN_WORDS.get(what, what)


WORTH_NAMING = 0.1
"""Share of a change from which on an entry of it is named."""
FAR_MORE = 2.0
"""Multiple of the total change from which on the change of a part is far more."""
_MAX_ENTRIES = 4


def whole(comparison: Comparison) -> tuple[str, MeasuredChange]:
    """Return what GPU work and idle time sum to: the step, or the window where none are known."""
    return "the step" if comparison.has_steps else "the window", comparison.step


def per_step(comparison: Comparison) -> str:
    """Return ` per step`; nothing where the captures have no steps."""
    return " per step" if comparison.has_steps else ""


def matters(comparison: Comparison, change: MeasuredChange) -> bool:
    """Return whether a change is large enough for a sentence, relative to the total."""
    delta_ns, total = abs(change.delta or 0.0), whole(comparison)[1]
    least_ns = WORTH_NAMING * abs(total.delta or 0.0) if total.significant else 0.0
    return delta_ns >= max(least_ns, comparison.least * (total.before or 0.0))


def entries(
    comparison: Comparison, rows: Iterable[EntryChange], total_delta_ns: float | None
) -> str:
    """List the significant entries that make up most of a change, with their own changes."""
    least_ns = max(
        abs(total_delta_ns or 0.0) * WORTH_NAMING,
        comparison.least * (whole(comparison)[1].before or 0.0) / 2,
    )
    significant = ((row.entry, row.change) for row in rows if row.change.significant)
    return sentences(
        (name, change) for name, change in significant if abs(change.delta or 0.0) >= least_ns
    )


def sentences(changes: Iterable[tuple[str, MeasuredChange]]) -> str:
    """List changes by name."""
    return join_first((f"{name} {signed(change.delta)}" for name, change in changes), _MAX_ENTRIES)


_MIN_RUNNING = 0.5
"""Share of a change of kernel time that must be time in which a kernel runs: else it is overlap."""


def overlap_phrase(comparison: Comparison) -> str:
    """Say that kernels only overlap more, or less; empty where that is not so.

    The durations of kernels on several streams sum to more than the time in which the GPU runs
    them, and kernels that share the GPU take longer: that is no regression of these kernels.
    """
    kernels, busy = comparison.metric("kernel_time").change, comparison.metric("busy").change
    gpus = len(comparison.before.gpus)
    if not kernels.significant or not comparison.ledger or gpus != len(comparison.after.gpus):
        return ""
    running = (COMPUTE, COMMUNICATION)
    running_ns = sum(
        row.change.delta or 0.0 for row in comparison.ledger if row.entry.split("/")[0] in running
    )
    delta_ns = kernels.delta or 0.0
    if running_ns * gpus * math.copysign(1.0, delta_ns) >= _MIN_RUNNING * abs(delta_ns):
        return ""
    how = "more" if delta_ns > 0 else "less"
    return f"kernels overlap {how}: GPU busy time {is_how(busy)} ({from_to(busy)})"


def bottleneck_phrase(comparison: Comparison) -> str:
    """Name the bottleneck before and after; GPU work that is mostly not compute by what it is."""
    names = []
    for side in ("before", "after"):
        limit = getattr(comparison, side).limit
        name = in_words(limit)
        if limit == GPU:
            ledger = {row.entry: getattr(row.change, side) or 0.0 for row in comparison.ledger}
            part = gpu_part(ledger)
            name += "" if part == COMPUTE else f" (mostly {in_words(part)})"
        names.append(name)
    if comparison.before.limit != comparison.after.limit:
        return f"the bottleneck moved from {names[0]} to {names[1]}"
    return f"the bottleneck is still {names[1]}"


def busy_phrase(comparison: Comparison) -> str:
    """Show GPU busy before and after."""
    sides = (comparison.before, comparison.after)
    return f"GPU busy {' -> '.join(dict.fromkeys(format_share(s.busy_share) for s in sides))}"


def bottleneck_sentence(comparison: Comparison) -> str:
    """Name the bottleneck before and after, with its evidence: the host's part, GPU busy."""
    sides = (comparison.before, comparison.after)
    needs = ""
    if sides[1].limit == HOST and all(side.host_share is not None for side in sides):
        shares = " -> ".join(dict.fromkeys(format_share(side.host_share) for side in sides))
        needs = (
            f"with instant GPU work {whole(comparison)[0]} would still take {shares} of its time, "
        )
    return f"{bottleneck_phrase(comparison)} ({needs}{busy_phrase(comparison)})."
