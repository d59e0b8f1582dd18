"""Limits as people write them: `step_time=+3%`, `idle/input=+1ms`, `memory_peak=70GB`."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpusight.analyses.steps.step import shortened
from gpusight.errors import UsageError
from gpusight.result import Fmt

DEFAULT = "step_time=+5%"
"""What a gate holds where no limit is given."""
_TIMES = {"ns": 1.0, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9}
_DECIMAL = {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_BINARY = {"kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40}
_UNITS = {
    **{unit: (Fmt.TIME, factor) for unit, factor in _TIMES.items()},
    **{unit: (Fmt.BYTES, factor) for unit, factor in (_DECIMAL | _BINARY).items()},
    "%": (Fmt.SHARE, 0.01),
    "": (Fmt.COUNT, 1.0),
}
_AMOUNT = re.compile(r"\s*([+-]?)\s*(\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})\s*([A-Za-zµμ%]{0,3})\s*")
_MINUS = str.maketrans({"−": "-"})  # noqa: RUF100
_HINT = "write METRIC=+3%, METRIC=+1ms, METRIC=+5MB, METRIC=+10 or, as a ceiling, METRIC=50ms"
_EXAMPLES = {Fmt.TIME: ("a time", "1ms"), Fmt.BYTES: ("bytes", "5MB")}
_COUNTED = ("counted", "10")


class Kind(enum.Enum):
    """What a limit is measured from."""

    RELATIVE = "relative"
    """Growth, as a part of the baseline."""
    ABSOLUTE = "absolute"
    """Growth over the baseline, in the metric's unit."""
    CEILING = "ceiling"
    """The value itself; needs no baseline."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that a metric may be, or may have grown by."""

    metric: str
    kind: Kind
    value: float
    """A part of the baseline, or an amount in nanoseconds, bytes or as counted."""
    measures: Fmt
    """What its unit measures: TIME, BYTES, COUNT where it has none, SHARE of the baseline."""
    text: str
    """The limit as it was written, without the metric."""

    def __str__(self) -> str:
        """Give it as it is written."""
        return f"{self.metric}={self.text}"

    @property
    def improvement(self) -> bool:
        """It asks that the metric has become smaller."""
        return self.kind is not Kind.CEILING and self.value < 0

    def most(self, baseline: float) -> float:
        """Give the largest value that is within the limit."""
        if self.kind is Kind.RELATIVE:
            return baseline * (1 + self.value)
        return self.value + (baseline if self.kind is Kind.ABSOLUTE else 0.0)

    def check_unit(self, fmt: Fmt) -> None:
        """Raise where the unit does not fit a metric that is shown in this way."""
        known = fmt if fmt in _EXAMPLES else Fmt.COUNT
        if self.measures in (Fmt.SHARE, known) or self.value == 0:
            return
        what, example = _EXAMPLES.get(known, _COUNTED)
        sign = "" if self.kind is Kind.CEILING else "+"
        raise UsageError(
            f"{str(self)!r} does not fit: {self.metric} is {what}",
            hint=f"write {self.metric}={sign}{example}"
            + (f" or {self.metric}=+3%" if sign else ""),
        )


def read_limit(text: str) -> Limit:
    """Read `METRIC=LIMIT`; a metric may hold `=` itself, as names of kernels do."""
    metric, equals, amount = text.rpartition("=")
    if not equals or not metric.strip():
        raise UsageError(f"{shortened(text)!r} is not a limit", hint=_HINT)
    return limit_of(metric.strip(), amount)


def read_limits(given: str | Iterable[str] | Mapping[str, str]) -> list[Limit]:
    """Read limits as Python has them: texts, or amounts by metric."""
    if isinstance(given, Mapping):
        return [limit_of(*map(_text, item)) for item in given.items()]
    if not isinstance(given, Iterable):
        raise _no_text(given)
    return [read_limit(_text(one)) for one in ([given] if isinstance(given, str) else given)]


def _text(given: object) -> str:
    if not isinstance(given, str):
        raise _no_text(given)
    return given


def _no_text(given: object) -> UsageError:
    return UsageError(f"a limit is a text, not {type(given).__name__}", hint=_HINT)


def limit_of(metric: str, amount: str) -> Limit:
    """Read how far a metric may go."""
    found = _AMOUNT.fullmatch(amount.translate(_MINUS))
    sign, digits, unit = found.groups() if found else ("", "", "?")
    if unit.lower() not in _UNITS:
        raise UsageError(f"{shortened(f'{metric}={amount}')!r} is not a limit", hint=_HINT)
    measures, factor = _UNITS[unit.lower()]
    if measures is Fmt.SHARE and not sign:
        raise UsageError(
            f"{shortened(f'{metric}={amount}')!r} does not say which way",
            hint=f"write {metric}=+{digits}% for growth over the baseline",
        )
    value = float(f"{sign}{digits}") * factor
    assert math.isfinite(value)
    if measures is Fmt.SHARE and value < -1:
        raise UsageError(
            f"{shortened(f'{metric}={amount}')!r} cannot be held: nothing falls by more than 100%",
            hint=f"write such as {metric}=-5%",
        )
    return Limit(metric, _kind(sign, measures), value, measures, f"{sign}{digits}{unit}")


def _kind(sign: str, measures: Fmt) -> Kind:
    if not sign:
        return Kind.CEILING
    return Kind.RELATIVE if measures is Fmt.SHARE else Kind.ABSOLUTE


def joined(configured: Iterable[Limit], given: Iterable[Limit]) -> tuple[Limit, ...]:
    """Join the limits of a file and of a command: those given for a metric stand for its own."""
    own = tuple(dict.fromkeys(given))
    replaced = {limit.metric for limit in own}
    kept = [limit for limit in dict.fromkeys(configured) if limit.metric not in replaced]
    return (*kept, *own)
