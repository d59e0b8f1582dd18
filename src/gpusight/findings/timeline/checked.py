"""Whether a user's rule, what it says and what it changes are what they must be.

Everything that a user's rule hands over is looked at here, once. Later code may rely on it: lists
have become tuples, and numbers of NumPy and Polars those of Python.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gpusight.analyses.replay.program import Program
from gpusight.findings.finding import Confidence, Evidence
from gpusight.findings.timeline.rule import Absent, Clean, Found, Rule, Where
from gpusight.findings.verdict import Limit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.findings.timeline.rule import Verdict

TEXTS = ("detects", "why", "fix", "misleads", "estimate")
"""What every rule must say of itself."""
_UNITS = ("share", "byte", "byte/s", "ns", "cycle", "flop/s", "")
_MOST_NS = 2.0**61
"""All times of a program together stay below this, so that sums of them fit 64 bits."""
_SHOWN = 40
"""Characters that are shown of a value which is wrong."""

_Fit: TypeAlias = Callable[[str, object], Any]
"""Gives a value as it is used, or raises `UnfitError` with the name under which it was given."""


class UnfitError(ValueError):
    """What a rule handed over cannot be used, and why."""


def checked_rule(rule: Rule) -> dict[str, Any]:
    """Give the attributes of a rule as they are used."""
    missing = [name for name in TEXTS if getattr(rule, name, None) is None]
    if missing:
        raise UnfitError(f"no {', '.join(missing)}")
    found = {name: fit(name, getattr(rule, name)) for name, fit in _RULE.items()}
    _check_method(rule)
    return found


def checked_verdict(verdict: object) -> Verdict:
    """Give what a rule said as it is used."""
    if isinstance(verdict, Clean):
        return verdict
    if isinstance(verdict, (Found, Absent)):
        fitted: Found | Absent = _fitted("", verdict)
        return fitted
    raise UnfitError(f"check gave {type(verdict).__name__}, not Found, Clean or Absent")


def checked_program(before: Program, after: object) -> Program:
    """Give what a change made of a program as it is replayed."""
    if not isinstance(after, Program):
        raise UnfitError(f"a change gave {type(after).__name__}, not the program that it changed")
    new: dict[str, Any] = {}
    for field in fields(Program):
        old, value = getattr(before, field.name), getattr(after, field.name)
        if value is old:
            continue
        array = isinstance(old, np.ndarray)
        new[field.name] = _array(field.name, old, value) if array else _whole(field.name, value)
    return after.changed(**new) if new else after


# Values -------------------------------------------------------------------------------------------


def _wrong(name: str, value: object, wanted: str) -> UnfitError:
    plain = value is None or isinstance(value, (float, str))
    # Python refuses to write out numbers of thousands of digits.
    short = isinstance(value, int) and value.bit_length() <= 64
    shown = repr(value) if plain or short else type(value).__name__
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    return UnfitError(f"{name} is {shown}, not {wanted}")


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(name, value, "text")
    return value


def _line(name: str, value: object) -> str:
    if not _text(name, value).strip():
        raise UnfitError(f"{name} is empty")
    return str(value)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _wrong(name, value, "a number")
    try:
        finite = math.isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        raise _wrong(name, value, "a finite number")
    return int(value) if isinstance(value, Integral) else float(value)


def _amount(name: str, value: object) -> float:
    if _number(name, value) < 0:
        raise _wrong(name, value, "0 or more")
    return _number(name, value)


def _share(name: str, value: object) -> float:
    if not 0 <= _number(name, value) <= 1:
        raise _wrong(name, value, "a share from 0 to 1")
    return _number(name, value)


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _wrong(name, value, "a whole number")
    return int(value)


def _unit(name: str, value: object) -> str:
    if _text(name, value) not in _UNITS:
        raise _wrong(name, value, f"one of {', '.join(filter(None, _UNITS))}, or empty")
    return str(value)


def _confidence(name: str, value: object) -> Confidence:
    if not isinstance(value, Confidence):
        raise _wrong(name, value, "a gpusight.Confidence")
    return value


def _change(name: str, value: object) -> Callable[..., Any]:
    if not callable(value):
        raise _wrong(name, value, "a change, such as those of gpusight.changes")
    return value


def _limits(name: str, value: object) -> dict[str, Limit]:
    if not isinstance(value, Mapping):
        raise _wrong(name, value, "a mapping of names to gpusight.Limit")
    named = {_text(f"a name in {name}", key): limit for key, limit in value.items()}
    return {key: _one(Limit)(f"{name}[{key!r}]", limit) for key, limit in named.items()}


def _or_none(fit: _Fit) -> _Fit:
    return lambda name, value: None if value is None else fit(name, value)


def _each(fit: _Fit) -> _Fit:
    def each(name: str, value: object) -> tuple[Any, ...]:
        if not isinstance(value, (tuple, list)):
            raise _wrong(name, value, "a tuple")
        return tuple(fit(f"{name}[{at}]", one) for at, one in enumerate(value))

    return each


def _one(kind: type) -> _Fit:
    def one(name: str, value: object) -> Any:
        if not isinstance(value, kind):
            raise _wrong(name, value, f"a gpusight.{kind.__name__}")
        return _fitted(f"{name}.", value)

    return one


def _fitted(lead: str, thing: Any) -> Any:
    wanted = next(wanted for kind, wanted in _FIELDS.items() if isinstance(thing, kind))
    return replace(
        thing, **{name: fit(lead + name, getattr(thing, name)) for name, fit in wanted.items()}
    )


_FIELDS: dict[type, dict[str, _Fit]] = {
    Evidence: {"metric": _text, "value": _number, "unit": _unit, "meaning": _text},
    Where: {"kind": _text, "name": _text, "ns": _or_none(_amount), "count": _or_none(_amount)},
    Limit: {"value": _number, "why": _text},
    Absent: {"reason": _line},
    Found: {
        "title": _line,
        "evidence": _each(_one(Evidence)),
        "confidence": _confidence,
        "confidence_reason": _text,
        "change": _each(_change),
        "recoverable_ns": _or_none(_amount),
        "least_ns": _or_none(_amount),
        **dict.fromkeys(("estimate", "fix", "code", "afterwards"), _text),
        "where": _each(_one(Where)),
        "also": _each(_text),
    },
}
_RULE: dict[str, _Fit] = {
    **dict.fromkeys(TEXTS, _line),
    **dict.fromkeys(("code", "afterwards"), _text),
    "limits": _limits,
    "least_share": _or_none(_share),
}


def _check_method(rule: Rule) -> None:
    if type(rule).check is Rule.check or not callable(rule.check):
        raise UnfitError("it has no method check(self, timeline)")
    try:
        signature = inspect.signature(rule.check)
    except (TypeError, ValueError):  # not every callable tells what it takes
        return
    try:
        signature.bind(None)
    except TypeError:
        raise UnfitError(f"check takes {signature}, not the timeline alone") from None


# Programs -----------------------------------------------------------------------------------------


def _array(name: str, old: NDArray[Any], value: object) -> NDArray[Any]:
    """Give an array of a changed program in the kind of the old one."""
    new = np.asarray(value)
    if new.shape != old.shape:
        raise UnfitError(f"a change made {name} {new.size:,} values, not {old.size:,}")
    if (new.dtype == np.bool_) != (old.dtype == np.bool_) or new.dtype.kind not in "biuf":
        raise UnfitError(f"a change made {name} an array of {new.dtype}, not {old.dtype}")
    if not np.isfinite(new).all():
        raise UnfitError(f"a change made a value of {name} that is no finite number")
    if name.endswith("_ns"):
        _check_times(name, old, new)
    if new.dtype.kind == "f" and old.dtype.kind == "i":
        new = np.rint(new)
    return new.astype(old.dtype)


def _check_times(name: str, old: NDArray[Any], new: NDArray[Any]) -> None:
    """Refuse times that no program has; measured gaps may be a little below 0 themselves."""
    if float(np.abs(new.astype(np.float64)).sum()) > _MOST_NS:
        raise UnfitError(f"a change made {name} too large to be added up")
    if (new < np.minimum(old, 0)).any():
        raise UnfitError(f"a change made a value of {name} that is below 0")
