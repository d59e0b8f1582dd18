"""The one place where quantities become text, and text becomes quantities.

Inside the package everything is in base units: nanoseconds, bytes, bytes/s, fractions of 1.
For people, times are ns, µs, ms or s; bytes and rates are decimal (SI: 1 MB is 1,000,000 bytes), as
nsys prints them; four significant digits, so that a column of numbers stays narrow and comparable.
Counts are whole and grouped by commas, which survive copying into a spreadsheet or a shell.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from gpusight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeGuard

MISSING = "-"
"""Shown for an unknown value; a blank would look like a mistake."""

TIME_UNITS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9}
"""Nanoseconds in a unit."""
BYTE_UNITS = {
    "b": 1.0,
    "kb": 1e3,
    "mb": 1e6,
    "gb": 1e9,
    "tb": 1e12,
    "kib": 2.0**10,
    "mib": 2.0**20,
    "gib": 2.0**30,
    "tib": 2.0**40,
}
"""Bytes in a unit, as `format_bytes` has them."""
AMOUNT = r"([+-]?)\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*([A-Za-zµμ%]*)"
"""A number and its unit: sign, digits, unit."""
_AMOUNT = re.compile(rf"\s*{AMOUNT}\s*")
_SPAN = re.compile(r"\s*(\d*)\s*(?:([-:])\s*(\d*)\s*)?")
_MAX_DIGITS = 18
"""So that a number fits in 64 bits."""
_MAX_SHOWN = 40
_THOUSAND = 1000.0
_TIME_STEPS = ((1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s"))
_BYTE_STEPS = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"), (1e15, "PB"))


def in_one_unit(first: str, second: str, between: str) -> str:
    """Join two numbers; the unit once where it is the same."""
    number, _, unit = first.partition(" ")
    same = unit and unit == second.partition(" ")[2]
    return f"{number if same else first}{between}{second}"


def format_time(ns: float | None, *, digits: int = 4) -> str:
    """Show nanoseconds as ns, µs, ms or s: `1.234 ms`."""
    return _scaled(ns, _TIME_STEPS, digits)


def format_speedup(factor: float) -> str:
    """Show how many times faster: `1.21x`, `3.6x`, `104x`."""
    decimals = 2 if factor < 1.995 else 1 if factor < 9.95 else 0
    return f"{factor:.{decimals}f}x"


def format_bytes(count: float | None, *, digits: int = 4) -> str:
    """Show bytes in SI units: `1.500 MB` is 1,500,000 bytes."""
    return _scaled(count, _BYTE_STEPS, digits)


def format_rate(bytes_per_second: float | None, *, digits: int = 4) -> str:
    """Show bytes/s in SI units: `12.50 GB/s`."""
    text = _scaled(bytes_per_second, _BYTE_STEPS, digits)
    return text if text == MISSING else f"{text}/s"


def format_count(value: float | None) -> str:
    """Show a whole number grouped by commas; a fraction is kept when there is one."""
    if not _known(value):
        return MISSING
    return f"{round(value):,}" if float(value).is_integer() else format_real(value)


def format_mean(count: float) -> str:
    """Show a mean count: whole where it is whole, else with at most three significant digits."""
    if count >= 100 or float(count).is_integer():
        return f"{round(count):,}"
    if count < 0.005:
        return "<0.01"
    return f"{count:.{1 if count >= 10 else 2}f}".rstrip("0").rstrip(".")


def format_share(fraction: float | None) -> str:
    """Show a fraction of 1 as a percentage; what is small but not zero does not read as zero."""
    if not _known(fraction):
        return MISSING
    percent = fraction * 100
    if 0 < percent < 0.05:  # one decimal would round it down to zero
        return "<0.1%"
    return f"{percent:.1f}%"


def format_real(value: float | None) -> str:
    """Show a number with four significant digits, grouped by commas when large."""
    if not _known(value):
        return MISSING
    if value == 0:
        return "0"
    if 5e-4 <= abs(value) < 1e-3:
        return f"{value:.4f}"
    if abs(value) < 1e-3:  # below this, zeros would crowd out the digits
        return f"{value:.3e}"
    return f"{value:,.{_decimals(abs(value))}f}"


class Amount(NamedTuple):
    """A number as it was written, and the unit behind it."""

    sign: str
    digits: str
    unit: str

    def scaled(self, units: Mapping[str, float]) -> float | None:
        """Return the number in the base unit; None if the unit is unknown or it overflows."""
        factor = units.get(self.unit.lower())
        value = None if factor is None else float(self.sign + self.digits) * factor
        return value if _known(value) else None


def parse_amount(text: str) -> Amount | None:
    """Read a number and its unit: `+1.5 ms`, `5MB`, `3%`, `10`; None if it is none."""
    match = _AMOUNT.fullmatch(text)
    return None if match is None else Amount(*match.groups())


def parse_percent(text: str) -> float | None:
    """Read a percentage from 0% to 100% as a fraction of 1; None if it is none."""
    amount = parse_amount(text)
    if amount is None or amount.sign or amount.unit != "%":
        return None
    percent = float(amount.digits)
    return percent / 100 if percent <= 100 else None


def parse_step_range(text: str, *, hint: str) -> tuple[int | None, int | None]:
    """Read steps by number: `5`, `3-7` (or `3:7`), `2:` or `:7`; None for an open end.

    Raises a UsageError about `--steps` with the hint.
    """
    shown = repr(text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…")
    match = _SPAN.fullmatch(text)
    first, separator, last = match.groups() if match else ("", None, "")
    if not (first or last):
        raise UsageError(f"--steps {shown} names no steps", hint=hint)
    if max(len(first), len(last or "")) > _MAX_DIGITS:
        raise UsageError(f"--steps {shown} has a number that is too large", hint=hint)
    if separator is None:
        return int(first), int(first)
    begin, end = (int(digits) if digits else None for digits in (first, last))
    if begin is not None and end is not None and end < begin:
        raise UsageError(f"--steps {shown} ends before it begins", hint=hint)
    return begin, end


def plural(noun: str, count: float = 2) -> str:
    """Write a noun for a count of things: `thread`, `threads`, `copies`, `batches`."""
    if count == 1:
        return noun
    if noun.endswith("y"):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "ch")) else f"{noun}s"


def join_words(words: Sequence[str], conjunction: str = "and") -> str:
    """List words as a sentence does: `a`, `a and b`, `a, b and c`."""
    return f" {conjunction} ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


_DIGITS = re.compile(r"(\d+)")


def natural_key(text: str) -> tuple[str | int, ...]:
    """Order names by the numbers in them: `r2` before `r10`."""
    parts = _DIGITS.split(text)
    return tuple(int(part) if at % 2 else part for at, part in enumerate(parts))


def exact_time(ns: int) -> str:
    """Write a time in the largest unit that leaves no fraction, as it can be typed: `300ms`."""
    for unit in ("s", "ms", "us"):
        if ns % int(TIME_UNITS[unit]) == 0:
            return f"{ns // int(TIME_UNITS[unit])}{unit}"
    return f"{ns}ns"


def unit_of(show: Callable[[float | None], str], largest: float) -> tuple[float, str]:
    """Choose the unit in which several values are shown by `show`: its factor and its name."""
    factor = 1.0
    # The largest unit shows its own thousandfold as 1,000 of itself.
    while factor * _THOUSAND <= largest and show(factor * _THOUSAND).startswith("1.000 "):
        factor *= _THOUSAND
    return factor, show(factor).partition(" ")[2]


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _decimals(magnitude: float) -> int:
    """Count the decimals that show four significant digits."""
    return max(0, 3 - math.floor(math.log10(magnitude)))


def _scaled(value: float | None, steps: tuple[tuple[float, str], ...], digits: int = 4) -> str:
    if not _known(value):
        return MISSING
    magnitude = abs(value)
    # 999,960 ns must become 1.000 ms, not 1000.0 µs: step up once a fifth digit would be needed.
    rounding = 0.5 * 10.0**-digits
    index = sum(magnitude >= factor * (1 - rounding) for factor, _ in steps[1:])
    factor, unit = steps[index]
    if index == 0:
        return f"{value:.{0 if float(value).is_integer() else 1}f} {unit}"
    scaled = value / factor
    decimals = min(digits - 1, max(0, _decimals(abs(scaled) * (1 + rounding)) + digits - 4))
    return f"{scaled:,.{decimals}f} {unit}"
