"""Where an axis is marked, and what stands there: round numbers in one unit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight import units
from gpusight.render.cells import safe_text
from gpusight.result import Fmt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpusight.render.pictures.figure import Axis

_SCALED: dict[Fmt, Callable[[float | None], str]] = {
    Fmt.TIME: units.format_time,
    Fmt.BYTES: units.format_bytes,
    Fmt.RATE: units.format_rate,
}
_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
_DENSER = 0.75
"""A step may be this much finer than asked for, when it is rounder."""
_THOUSAND = 1000.0
_SI = ("", "k", "M", "G", "T", "P", "E")
_MAX_TICKS = 100


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis."""

    value: float
    label: str


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis with its ends: turns values into fractions of its length."""

    axis: Axis
    low: float
    high: float

    def place(self, value: float) -> float:
        """Give where a value lies, from 0 at the low end to 1 at the high one."""
        if self.axis.log:
            low, high = math.log10(self.low), math.log10(self.high)
            return (math.log10(max(value, self.low)) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, about: int) -> list[Tick]:
        """Mark the axis at about so many round values, or at all of its names."""
        if self.axis.names:
            return [Tick(n, safe_text(name)) for n, name in enumerate(self.axis.names)]
        if self.axis.log:
            return list(self._decades(about))
        largest = max(abs(self.low), abs(self.high))
        factor, unit = unit_of(self.axis.fmt, largest, self.axis.unit)
        step = _round_step((self.high - self.low) / factor / max(about, 1))
        first = math.ceil(self.low / factor / step - 1e-9)
        last = math.floor(self.high / factor / step + 1e-9)
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        if round(step, decimals) != step:  # 2.5 needs one more decimal than 2
            decimals += 1
        numbers = [n * step for n in range(first, min(last, first + _MAX_TICKS) + 1)]
        return [Tick(n * factor, _label(n, decimals, unit)) for n in numbers]

    def _decades(self, about: int) -> Iterator[Tick]:
        low, high = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        every = max(1, math.ceil((high - low) / max(about, 1)))
        for power in range(low, high + 1, every):
            value = 10.0**power
            factor, unit = unit_of(self.axis.fmt, value, self.axis.unit)
            yield Tick(value, _label(value / factor, max(0, -power if factor == 1 else 0), unit))


def scale(axis: Axis, low: float, high: float) -> Scale:
    """Fit an axis to the data, or to the ends it was given; never of no length."""
    first = low if axis.low is None else axis.low
    last = high if axis.high is None else axis.high
    if axis.log:
        first = first if first > 0 else (last / 1000 if last > 0 else 1.0)
        return Scale(axis, first, last if last > first else first * 10)
    return Scale(axis, first, last if last > first else first + (abs(first) or 1.0))


def unit_of(fmt: Fmt, largest: float, unit: str = "") -> tuple[float, str]:
    """Choose the unit that a whole axis is shown in, by its largest value: factor and name."""
    if unit:
        steps = math.floor(math.log10(max(largest, 1.0)) / 3 + 1e-9)
        steps = min(steps, len(_SI) - 1)
        return _THOUSAND**steps, _SI[steps] + unit
    if fmt is Fmt.SHARE:
        return 0.01, "%"
    show = _SCALED.get(fmt)
    if show is None:
        return 1.0, ""
    return units.unit_of(show, largest)


def _round_step(rough: float) -> float:
    if not rough > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(n for n in _ROUND if n * power >= rough * _DENSER) * power


def _label(number: float, decimals: int, unit: str) -> str:
    text = f"{number:,.{decimals}f}"
    if unit == "%":
        return text + unit
    return f"{text} {unit}" if unit else text
