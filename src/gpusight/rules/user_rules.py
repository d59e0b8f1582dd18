"""Rules that users write: loads them from files and packages, and checks what they return."""

from __future__ import annotations

import inspect
import math
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from importlib import metadata
from numbers import Integral, Real
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np
import polars as pl

from gpusight.analysis.replay.simulation import ReplayProgram
from gpusight.errors import GpusightError, RuleError
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.locations import CANDIDATES
from gpusight.rules.registry import KERNEL_RULES, TIMELINE_RULES
from gpusight.rules.rule import (
    Clean,
    FindingLocation,
    InstructionCounters,
    KernelRule,
    KernelRuleMatch,
    Rule,
    RuleMatch,
    RuleNotApplicable,
    Threshold,
    TimelineRule,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from gpusight.analysis.counters.launch_quantities import LaunchQuantity
    from gpusight.analysis.replay.changes import Change
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.kernel_launch import ProfiledLaunch
    from gpusight.rules.rule import RuleVerdict


TEXTS = ("detects", "why", "fix", "caveats", "estimate")
"""What every rule must say of itself."""
_UNITS = ("share", "byte", "byte/s", "ns", "cycle", "flop/s", "")
_MOST_NS = 2.0**61
"""All times of a program together stay below this, so that sums of them fit 64 bits."""
_SHOWN = 40
"""Characters that are shown of a value which is wrong."""

_Fit: TypeAlias = Callable[[str, object], Any]
"""Gives a value as it is used, or raises `InvalidRuleError` with the name that it was given."""


class InvalidRuleError(ValueError):
    """What a rule handed over cannot be used, and why."""


def checked_rule(rule: TimelineRule | KernelRule) -> dict[str, Any]:
    """Give the attributes of a rule as they are used."""
    missing = [name for name in TEXTS if getattr(rule, name, None) is None]
    if missing:
        raise InvalidRuleError(f"no {', '.join(missing)}")
    wanted = _RULE | (_TIMELINE_RULE if isinstance(rule, TimelineRule) else _KERNEL_RULE)
    attributes = {name: fit(name, getattr(rule, name)) for name, fit in wanted.items()}
    _check_method(rule)
    return attributes


def checked_verdict(verdict: object) -> RuleVerdict:
    """Give what a rule said as it is used."""
    if isinstance(verdict, Clean):
        return verdict
    if isinstance(verdict, (RuleMatch, RuleNotApplicable)):
        fitted: RuleMatch | RuleNotApplicable = _fitted("", verdict)
        return fitted
    what = type(verdict).__name__
    raise InvalidRuleError(f"check gave {what}, not RuleMatch, Clean or RuleNotApplicable")


def checked_stretches(stretches: object) -> pl.DataFrame:
    """Give the stretches that a rule located as they are shown."""
    if not isinstance(stretches, pl.DataFrame):
        raise InvalidRuleError(f"locate gave {type(stretches).__name__}, not a polars.DataFrame")
    missing = [name for name in CANDIDATES if name not in stretches.columns]
    if missing:
        raise InvalidRuleError(f"locate gave no column {', '.join(missing)}")
    columns = [pl.col(name).cast(dtype) for name, dtype in CANDIDATES.items()]
    columns += [pl.col("telling").cast(pl.Float64)] if "telling" in stretches.columns else []
    return stretches.select(columns).drop_nulls(["start_ns", "end_ns", "weight_ns", "name"])


def checked_program(before: ReplayProgram, after: object) -> ReplayProgram:
    """Give what a change made of a program as it is replayed."""
    if not isinstance(after, ReplayProgram):
        raise InvalidRuleError(
            f"a change gave {type(after).__name__}, not the program that it changed"
        )
    new: dict[str, Any] = {}
    for field in fields(ReplayProgram):
        old, value = getattr(before, field.name), getattr(after, field.name)
        if value is old:
            continue
        array = isinstance(old, np.ndarray)
        new[field.name] = _array(field.name, old, value) if array else _whole(field.name, value)
    return after.changed(**new) if new else after


# Values -------------------------------------------------------------------------------------------


def _wrong(name: str, value: object, wanted: str) -> InvalidRuleError:
    plain = value is None or isinstance(value, (float, str))
    # Python refuses to write out numbers of thousands of digits.
    short = isinstance(value, int) and value.bit_length() <= 64
    shown = repr(value) if plain or short else type(value).__name__
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    return InvalidRuleError(f"{name} is {shown}, not {wanted}")


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(name, value, "text")
    return value


def _line(name: str, value: object) -> str:
    if not _text(name, value).strip():
        raise InvalidRuleError(f"{name} is empty")
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


def _thresholds(name: str, value: object) -> dict[str, Threshold]:
    if not isinstance(value, Mapping):
        raise _wrong(name, value, "a mapping of names to gpusight.Threshold")
    named = {_text(f"a name in {name}", key): threshold for key, threshold in value.items()}
    return {key: _one(Threshold)(f"{name}[{key!r}]", one) for key, one in named.items()}


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, value, "True or False")
    return value


def _quantity(name: str, value: object) -> LaunchQuantity:
    from gpusight.analysis.counters.launch_quantities import LaunchQuantity

    if not isinstance(value, LaunchQuantity):
        raise _wrong(name, value, "a quantity of gpusight.rules.kernel_quantities")
    return value


def _rule_ids(name: str, value: object) -> frozenset[str]:
    if not isinstance(value, (set, frozenset, tuple, list)):
        raise _wrong(name, value, "a set")
    return frozenset(_text(f"a rule in {name}", id_) for id_ in value)


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
    FindingLocation: {
        "kind": _text,
        "name": _text,
        "ns": _or_none(_amount),
        "count": _or_none(_amount),
    },
    Threshold: {"value": _number, "why": _text},
    RuleNotApplicable: {"reason": _line, "sections": _each(_text)},
    InstructionCounters: {"metrics": _each(_text), "less": _each(_text), "scale": _number},
    RuleMatch: {
        "title": _line,
        "evidence": _each(_one(Evidence)),
        "confidence": _confidence,
        "confidence_reason": _text,
        "change": _each(_change),
        "recoverable_ns": _or_none(_amount),
        "min_ns": _or_none(_amount),
        **dict.fromkeys(("estimate", "fix", "code", "verify"), _text),
        "where": _each(_one(FindingLocation)),
        "also": _each(_text),
    },
}
_RULE: dict[str, _Fit] = {
    **dict.fromkeys(TEXTS, _line),
    **dict.fromkeys(("code", "verify"), _text),
    "thresholds": _thresholds,
    "is_fix": _flag,
}
_TIMELINE_RULE: dict[str, _Fit] = {"min_share": _or_none(_share)}
_KERNEL_RULE: dict[str, _Fit] = {
    "needs": _each(_quantity),
    "helps": _each(_quantity),
    "located_by": _or_none(_one(InstructionCounters)),
    "single_kernels": _flag,
    "explains": _rule_ids,
    "tells_roof": _flag,
}


def _check_method(rule: TimelineRule | KernelRule) -> None:
    what = "context" if isinstance(rule, TimelineRule) else "launch"
    if type(rule).check in {TimelineRule.check, KernelRule.check} or not callable(rule.check):
        raise InvalidRuleError(f"it has no method check(self, {what})")
    try:
        signature = inspect.signature(rule.check)
    except (TypeError, ValueError):  # not every callable tells what it takes
        return
    try:
        signature.bind(None)
    except TypeError:
        raise InvalidRuleError(f"check takes {signature}, not the {what} alone") from None


# Programs -----------------------------------------------------------------------------------------


def _array(name: str, old: NDArray[Any], value: object) -> NDArray[Any]:
    """Give an array of a changed program in the kind of the old one."""
    new = np.asarray(value)
    if new.shape != old.shape:
        raise InvalidRuleError(f"a change made {name} {new.size:,} values, not {old.size:,}")
    if (new.dtype == np.bool_) != (old.dtype == np.bool_) or new.dtype.kind not in "biuf":
        raise InvalidRuleError(f"a change made {name} an array of {new.dtype}, not {old.dtype}")
    if not np.isfinite(new).all():
        raise InvalidRuleError(f"a change made a value of {name} that is no finite number")
    if name.endswith("_ns"):
        _check_times(name, old, new)
    if new.dtype.kind == "f" and old.dtype.kind == "i":
        new = np.rint(new)
    return new.astype(old.dtype)


def _check_times(name: str, old: NDArray[Any], new: NDArray[Any]) -> None:
    """Refuse times that no program has; measured gaps may be a little below 0 themselves."""
    if float(np.abs(new.astype(np.float64)).sum()) > _MOST_NS:
        raise InvalidRuleError(f"a change made {name} too large to be added up")
    if (new < np.minimum(old, 0)).any():
        raise InvalidRuleError(f"a change made a value of {name} that is below 0")


GROUP = "gpusight.rules"
"""The entry point under which packages register rules."""
_ID = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_HINT = "docs/writing-rules.md has an example"
_BASES = "gpusight.TimelineRule or gpusight.KernelRule"
_Kind = TypeVar("_Kind", TimelineRule, KernelRule)
UserRule: TypeAlias = "UserTimelineRule | UserKernelRule"
_LONGEST = 300
"""Characters that are shown of what a rule raised."""


class _UserRule(Rule, Generic[_Kind]):
    """A user's rule, with its mistakes reported as errors that name it."""

    def __init__(self, rule: _Kind, source: str) -> None:
        self._rule: _Kind = rule
        self.source = source
        """File or package that it comes from."""
        self.id = rule.id  # type: ignore[misc]
        for name, value in checked_rule(rule).items():
            setattr(self, name, value)
        self._place = _place_of(rule, source)

    def _errors_named(self) -> AbstractContextManager[None]:
        return _errors_named(f"rule {self.id!r}", self.source, self._place)


class UserKernelRule(_UserRule[KernelRule], KernelRule):
    """A user's rule for measured launches."""

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Ask the rule; what it raises, and an answer that cannot be used, is an error."""
        with self._errors_named():
            verdict = checked_verdict(self._rule.check(launch))
            if not isinstance(verdict, RuleMatch):
                return verdict
            if not isinstance(verdict, KernelRuleMatch):
                raise InvalidRuleError("check gave a RuleMatch, not a KernelRuleMatch")
            left = _or_none(_share)("time_share", verdict.time_share)
            if left == 0:
                raise InvalidRuleError("time_share is 0: no fix makes a launch take no time")
            return replace(verdict, time_share=left)


class UserTimelineRule(_UserRule[TimelineRule], TimelineRule):
    """A user's rule for timelines."""

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Ask the rule where a finding happens."""
        with self._errors_named():
            return checked_stretches(self._rule.locate(context, finding))

    def check(self, context: RuleContext) -> RuleVerdict:
        """Ask the rule; what it raises, and an answer that cannot be used, is an error."""
        with self._errors_named():
            verdict = checked_verdict(self._rule.check(context))
        if not isinstance(verdict, RuleMatch) or not verdict.change:
            return verdict
        change = tuple(map(self._guarded, verdict.change))
        with self._errors_named():
            # What cannot be replayed alone fails here, where it is known whose it is.
            context.replay.run(*change)
        return replace(verdict, change=change)

    def _guarded(self, change: Change) -> Change:
        def guarded(program: ReplayProgram) -> ReplayProgram:
            with self._errors_named():
                return checked_program(program, change(program))

        return guarded


@contextmanager
def _errors_named(what: str, source: str, place: str = "") -> Iterator[None]:
    """Report what a user's code raises as an error of its rule; an interrupt stays one.

    What would end the program is an error too: its exit code could be taken for that of a gate.
    """
    try:
        yield
    except (GpusightError, KeyboardInterrupt):
        raise
    except InvalidRuleError as error:
        why = " ".join(str(error).split())
        raise RuleError(f"{what} of {place or source} cannot be used", why=why, hint=_HINT) from (
            error
        )
    except BaseException as error:
        raise _failed(what, source, error, place) from error


def user_rules(
    sources: Iterable[str | os.PathLike[str] | Rule | type[Rule]],
) -> tuple[UserRule, ...]:
    """Give the rules of these files, or these rules themselves, and those of installed packages."""
    rules = [rule for source in sources for rule in _from(source)]
    rules += installed_rules()
    taken = dict.fromkeys((*TIMELINE_RULES, *KERNEL_RULES), "gpusight")
    for rule in rules:
        if rule.id in taken:
            why = f"{taken[rule.id]} has one of that name"
            raise RuleError(f"rule {rule.id!r} of {rule.source} cannot be added", why=why)
        taken[rule.id] = rule.source
    return tuple(rules)


def _from(source: str | os.PathLike[str] | Rule | type[Rule]) -> Iterator[UserRule]:
    if isinstance(source, (Rule, type)):
        yield _made(source, f"module {source.__module__}")
    else:
        yield from rules_of_file(Path(source))


def rules_of_file(path: Path) -> Iterator[UserRule]:
    """Run a file and give the rules that it defines."""
    module = _run(path)
    with _errors_named("rules", str(path)):
        defined = vars(module).values()
        own = [c for c in defined if _is_rule(c) and c.__module__ == module.__name__]
    if not own:
        why = f"it defines no class that derives from {_BASES} and has an id"
        raise RuleError(f"no rule in {path}", why=why, hint=_HINT)
    return (_made(one, str(path)) for one in own)


def installed_rules() -> Iterator[UserRule]:
    """Give the rules that installed packages registered."""
    for point in metadata.entry_points(group=GROUP):
        package = f"package {point.dist.name}" if point.dist else f"entry point {point.name}"
        with _errors_named(f"rule {point.name!r}", package):
            loaded = point.load()
            usable = _is_rule(loaded)
        if not usable:
            why = f"{point.value} is no class that derives from {_BASES} and has an id"
            raise RuleError(f"no rule in {package}", why=why, hint=_HINT)
        yield _made(loaded, package)


def _is_rule(thing: object) -> bool:
    kinds = (TimelineRule, KernelRule)
    return inspect.isclass(thing) and issubclass(thing, kinds) and hasattr(thing, "id")


def _made(rule: Rule | type[Rule], source: str) -> UserRule:
    """Make a rule, and check that it says all that is shown of it."""
    kind = rule if isinstance(rule, type) else type(rule)
    with _errors_named(f"rule {kind.__name__}", source):
        made = rule() if isinstance(rule, type) else rule
        if not isinstance(made, (TimelineRule, KernelRule)):
            raise InvalidRuleError(f"it does not derive from {_BASES}")
        name = getattr(made, "id", None)
        if not isinstance(name, str) or not _ID.fullmatch(name):
            raise InvalidRuleError(f"the id {name!r} is not lower case words with hyphens")
        if isinstance(made, TimelineRule):
            return UserTimelineRule(made, source)
        return UserKernelRule(made, source)


def _run(path: Path) -> ModuleType:
    """Run a file as a module of its own; nothing is written beside it."""
    name = f"gpusight_rules_{path.stem}"
    module = ModuleType(name)
    module.__file__ = str(path)
    try:
        text = path.read_bytes()
    except OSError as error:
        why = error.strerror or str(error)
        raise RuleError(f"cannot read rules from {path}", why=why) from error
    with _errors_named("rules", str(path)):
        code = compile(text, str(path), "exec")
        sys.modules[name] = module  # dataclasses look their module up
        exec(code, vars(module))  # noqa: S102 - the user named this file to be run
    return module


def _place_of(rule: TimelineRule | KernelRule, source: str) -> str:
    """Name the line where a rule's check begins; its source where that is not known."""
    check = type(rule).check
    if not isinstance(check, FunctionType):
        return source
    return f"{check.__code__.co_filename}:{check.__code__.co_firstlineno}"


def _failed(what: str, source: str, error: BaseException, place: str = "") -> RuleError:
    """Give the error for a rule that failed: what it raised, and on which line of which file."""
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{error.filename}:{error.lineno}" if error.lineno else source
    else:
        place = _last_place(error, place.rpartition(":")[0] or source) or place or source
    return RuleError(f"{what} failed at {place}", why=_exception_text(error))


def _exception_text(error: BaseException) -> str:
    """Give what an exception says, on one line."""
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception:  # noqa: BLE001 - its text is the user's code too
        text = ""
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return textwrap.shorten(said, _LONGEST, placeholder=" …")


def _last_place(error: BaseException, file: str) -> str:
    """Name the last line that ran in the rule's own file; empty where none did."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f"{frame.filename}:{frame.lineno}" for frame in frames if frame.filename == file]
    return own[-1] if own else ""
