"""User-written rules: loaded from files and packages, with checks of what they return."""

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
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, get_args

import numpy as np
import polars as pl

from gpusight.analysis.replay.simulation import ReplayProgram
from gpusight.errors import DOCS_URL, GpusightError, RuleError
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.locations import CANDIDATES
from gpusight.rules.registry import KERNEL_RULES, TIMELINE_RULES
from gpusight.rules.rule import (
    Clean,
    Effort,
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
    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch
    from gpusight.analysis.replay.changes import Change
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict


TEXTS = ("detects", "why", "fix", "caveats", "estimate")
"""Texts that every rule must have."""
_UNITS = ("share", "byte", "byte/s", "ns", "cycle", "flop/s", "")
_EFFORTS = get_args(Effort)
_MAX_TOTAL_NS = 2.0**61
"""Limit of the sum of all times of a program, which has to fit 64 bits."""
_MAX_VALUE_LENGTH = 40

_Fit: TypeAlias = Callable[[str, object], Any]
"""Takes a name and a value; returns the checked value, or raises `InvalidRuleError`."""


class InvalidRuleError(ValueError):
    """A rule, or what it returns, cannot be used."""


def checked_rule(rule: TimelineRule | KernelRule) -> dict[str, Any]:
    """Return the checked attributes of a rule."""
    missing = [name for name in TEXTS if getattr(rule, name, None) is None]
    if missing:
        raise InvalidRuleError(f"no {', '.join(missing)}")
    checks = {"min_share": _or_none(_share)} if isinstance(rule, TimelineRule) else _KERNEL_RULE
    attributes = {name: fit(name, getattr(rule, name)) for name, fit in (_RULE | checks).items()}
    _check_method(rule)
    return attributes


def checked_verdict(verdict: object) -> RuleVerdict:
    """Return the checked verdict of a rule."""
    if isinstance(verdict, Clean):
        return verdict
    if isinstance(verdict, (RuleMatch, RuleNotApplicable)):
        fitted: RuleMatch | RuleNotApplicable = _fitted("", verdict)
        return fitted
    raise InvalidRuleError(
        f"check returned {type(verdict).__name__}, not RuleMatch, Clean or RuleNotApplicable"
    )


def checked_program(before: ReplayProgram, after: object) -> ReplayProgram:
    """Return the checked result of a change."""
    if not isinstance(after, ReplayProgram):
        raise InvalidRuleError(f"a change returned {type(after).__name__}, not the changed program")
    new: dict[str, Any] = {}
    for field in fields(ReplayProgram):
        old, value = getattr(before, field.name), getattr(after, field.name)
        if value is old:
            continue
        is_array = isinstance(old, np.ndarray)
        new[field.name] = _array(field.name, old, value) if is_array else _whole(field.name, value)
    return after.changed(**new) if new else after


# Values -------------------------------------------------------------------------------------------


def _wrong(name: str, value: object, wanted: str) -> InvalidRuleError:
    plain = value is None or isinstance(value, (float, str))
    # Python refuses to write out numbers of thousands of digits.
    short = isinstance(value, int) and value.bit_length() <= 64
    shown = repr(value) if plain or short else type(value).__name__
    shown = shown if len(shown) <= _MAX_VALUE_LENGTH else f"{shown[:_MAX_VALUE_LENGTH]}…"
    return InvalidRuleError(f"{name} is {shown}, not {wanted}")


def _of_type(kind: type, wanted: str) -> _Fit:
    def fit(name: str, value: object) -> Any:
        if not isinstance(value, kind):
            raise _wrong(name, value, wanted)
        return value

    return fit


_text = _of_type(str, "text")
_flag = _of_type(bool, "True or False")
_confidence = _of_type(Confidence, "a gpusight.Confidence")
_change = _of_type(Callable, "a change, such as those of gpusight.changes")  # type: ignore[arg-type]


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
    number = _number(name, value)
    if number < 0:
        raise _wrong(name, value, "0 or more")
    return number


def _share(name: str, value: object) -> float:
    number = _number(name, value)
    if not 0 <= number <= 1:
        raise _wrong(name, value, "a share from 0 to 1")
    return number


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _wrong(name, value, "a whole number")
    return int(value)


def _unit(name: str, value: object) -> str:
    if _text(name, value) not in _UNITS:
        raise _wrong(name, value, f"one of {', '.join(filter(None, _UNITS))}, or empty")
    return str(value)


def _effort(name: str, value: object) -> str:
    if _text(name, value) not in _EFFORTS:
        raise _wrong(name, value, f"one of {', '.join(_EFFORTS)}")
    return str(value)


def _thresholds(name: str, value: object) -> dict[str, Threshold]:
    if not isinstance(value, Mapping):
        raise _wrong(name, value, "a mapping of names to gpusight.Threshold")
    named = {_text(f"a name in {name}", key): threshold for key, threshold in value.items()}
    return {key: _instance(Threshold)(f"{name}[{key!r}]", item) for key, item in named.items()}


def _quantity(name: str, value: object) -> LaunchQuantity:
    from gpusight.analysis.counters.launch_quantities import LaunchQuantity

    if not isinstance(value, LaunchQuantity):
        raise _wrong(name, value, "a quantity of gpusight.analysis.counters.kernel_quantities")
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
        return tuple(fit(f"{name}[{index}]", item) for index, item in enumerate(value))

    return each


def _instance(kind: type) -> _Fit:
    def instance(name: str, value: object) -> Any:
        if not isinstance(value, kind):
            raise _wrong(name, value, f"a gpusight.{kind.__name__}")
        return _fitted(f"{name}.", value)

    return instance


def _fitted(prefix: str, instance: Any) -> Any:
    checks = next(checks for kind, checks in _FIELDS.items() if isinstance(instance, kind))
    return replace(
        instance,
        **{name: fit(prefix + name, getattr(instance, name)) for name, fit in checks.items()},
    )


_FIELDS: dict[type, dict[str, _Fit]] = {
    Evidence: {"metric": _text, "value": _number, "unit": _unit, "meaning": _text},
    FindingLocation: {
        **dict.fromkeys(("kind", "name"), _text),
        **dict.fromkeys(("ns", "count"), _or_none(_amount)),
    },
    Threshold: {"value": _number, "why": _text},
    RuleNotApplicable: {"reason": _line, "sections": _each(_text)},
    InstructionCounters: {"metrics": _each(_text), "less": _each(_text), "scale": _number},
    RuleMatch: {
        "title": _line,
        "evidence": _each(_instance(Evidence)),
        "confidence": _confidence,
        "confidence_reason": _text,
        "change": _each(_change),
        **dict.fromkeys(("recoverable_ns", "min_ns"), _or_none(_amount)),
        **dict.fromkeys(("estimate", "fix", "code", "verify", "caveats"), _text),
        "effort": _or_none(_effort),
        "where": _each(_instance(FindingLocation)),
        "also": _each(_text),
    },
}
_RULE: dict[str, _Fit] = {
    **dict.fromkeys(TEXTS, _line),
    **dict.fromkeys(("code", "verify"), _text),
    "thresholds": _thresholds,
    "is_fix": _flag,
    "effort": _effort,
}
_KERNEL_RULE: dict[str, _Fit] = {
    "needs": _each(_quantity),
    "helps": _each(_quantity),
    "located_by": _or_none(_instance(InstructionCounters)),
    "single_kernels": _flag,
    "explains": _rule_ids,
    "at_roofline": _flag,
}


def _check_method(rule: TimelineRule | KernelRule) -> None:
    what = "context" if isinstance(rule, TimelineRule) else "launch"
    if type(rule).check in {TimelineRule.check, KernelRule.check} or not callable(rule.check):
        raise InvalidRuleError(f"it has no method check(self, {what})")
    try:
        signature = inspect.signature(rule.check)
    except (TypeError, ValueError):  # not every callable has a signature
        return
    try:
        signature.bind(None)
    except TypeError:
        raise InvalidRuleError(f"check takes {signature}, not only the {what}") from None


# Programs -----------------------------------------------------------------------------------------


def _array(name: str, old: NDArray[Any], value: object) -> NDArray[Any]:
    """Return an array of a changed program with the dtype of the old one."""
    new = np.asarray(value)
    if new.shape != old.shape:
        raise InvalidRuleError(f"a change returned {new.size:,} values of {name}, not {old.size:,}")
    if (new.dtype == np.bool_) != (old.dtype == np.bool_) or new.dtype.kind not in "biuf":
        raise InvalidRuleError(f"a change returned {name} as {new.dtype}, not {old.dtype}")
    if not np.isfinite(new).all():
        raise InvalidRuleError(f"a change returned a value of {name} that is not finite")
    if name.endswith("_ns"):
        if float(np.abs(new.astype(np.float64)).sum()) > _MAX_TOTAL_NS:
            raise InvalidRuleError(f"a change returned {name} with a sum that is too large")
        # Measured gaps may be a little below 0 themselves.
        if (new < np.minimum(old, 0)).any():
            raise InvalidRuleError(f"a change returned a value of {name} below 0")
    if new.dtype.kind == "f" and old.dtype.kind == "i":
        new = np.rint(new)
    return new.astype(old.dtype)


# Loading ------------------------------------------------------------------------------------------


GROUP = "gpusight.rules"
"""The entry point under which packages register rules."""
_ID = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_HINT = f"see: {DOCS_URL}/writing-rules.md"
_BASES = "gpusight.TimelineRule or gpusight.KernelRule"
_Kind = TypeVar("_Kind", TimelineRule, KernelRule)
UserRule: TypeAlias = "UserTimelineRule | UserKernelRule"
_MAX_EXCEPTION_LENGTH = 300


class _UserRule(Rule, Generic[_Kind]):
    """A user's rule, whose mistakes are reported as errors that name it."""

    def __init__(self, rule: _Kind, source: str) -> None:
        self._rule: _Kind = rule
        self.source = source
        """File or package that it comes from."""
        self.id = rule.id  # type: ignore[misc]
        for name, value in checked_rule(rule).items():
            setattr(self, name, value)
        check = type(rule).check
        self._place = source
        if isinstance(check, FunctionType):
            self._place = f"{check.__code__.co_filename}:{check.__code__.co_firstlineno}"

    def _errors_named(self) -> AbstractContextManager[None]:
        return _errors_named(f"rule {self.id!r}", self.source, self._place)


class UserKernelRule(_UserRule[KernelRule], KernelRule):
    """A user's rule for profiled launches."""

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Run the rule; what it raises, and a verdict that cannot be used, is an error."""
        with self._errors_named():
            verdict = checked_verdict(self._rule.check(launch))
            if not isinstance(verdict, RuleMatch):
                return verdict
            if not isinstance(verdict, KernelRuleMatch):
                raise InvalidRuleError("check returned a RuleMatch, not a KernelRuleMatch")
            time_share = _or_none(_share)("time_share", verdict.time_share)
            if time_share == 0:
                raise InvalidRuleError("time_share is 0: a launch always takes some time")
            return replace(verdict, time_share=time_share)


class UserTimelineRule(_UserRule[TimelineRule], TimelineRule):
    """A user's rule for timelines."""

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Let the rule locate a finding, and check what it returns."""
        with self._errors_named():
            spans: object = self._rule.locate(context, finding)
            if not isinstance(spans, pl.DataFrame):
                what = type(spans).__name__
                raise InvalidRuleError(f"locate returned {what}, not a polars.DataFrame")
            missing = [name for name in CANDIDATES if name not in spans.columns]
            if missing:
                raise InvalidRuleError(f"locate returned no column {', '.join(missing)}")
            columns = [pl.col(name).cast(dtype) for name, dtype in CANDIDATES.items()]
            if "priority" in spans.columns:
                columns.append(pl.col("priority").cast(pl.Float64))
            return spans.select(columns).drop_nulls(["start_ns", "end_ns", "weight_ns", "name"])

    def check(self, context: RuleContext) -> RuleVerdict:
        """Run the rule; what it raises, and a verdict that cannot be used, is an error."""
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

    A SystemExit is an error too: its exit code could be taken for that of a gate.
    """
    try:
        yield
    except (GpusightError, KeyboardInterrupt):
        raise
    except InvalidRuleError as error:
        why = " ".join(str(error).split())
        message = f"{what} of {place or source} cannot be used"
        raise RuleError(message, why=why, hint=_HINT) from error
    except BaseException as error:
        if isinstance(error, SyntaxError) and error.filename:
            place = f"{error.filename}:{error.lineno}" if error.lineno else source
        else:
            # The last line that ran in the rule's own file.
            file = place.rpartition(":")[0] or source
            frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
            place = f"{file}:{frames[-1].lineno}" if frames else place or source
        raise RuleError(f"{what} failed at {place}", why=_exception_text(error)) from error


def user_rules(
    sources: Iterable[str | os.PathLike[str] | Rule | type[Rule]],
) -> tuple[UserRule, ...]:
    """Return the rules of these files, these rules themselves, and those of installed packages."""
    rules: list[UserRule] = []
    for source in sources:
        if isinstance(source, (Rule, type)):
            rules.append(_make_rule(source, f"module {source.__module__}"))
        else:
            rules += rules_of_file(Path(source))
    rules += installed_rules()
    sources_by_id = dict.fromkeys((*TIMELINE_RULES, *KERNEL_RULES), "gpusight")
    for rule in rules:
        if rule.id in sources_by_id:
            why = f"{sources_by_id[rule.id]} has one of that name"
            raise RuleError(f"rule {rule.id!r} of {rule.source} cannot be added", why=why)
        sources_by_id[rule.id] = rule.source
    return tuple(rules)


def rules_of_file(path: Path) -> Iterator[UserRule]:
    """Run a file as a module, without a bytecode cache, and return the rules that it defines."""
    module = ModuleType(f"gpusight_rules_{path.stem}")
    module.__file__ = str(path)
    try:
        text = path.read_bytes()
    except OSError as error:
        why = error.strerror or str(error)
        raise RuleError(f"cannot read rules from {path}", why=why) from error
    with _errors_named("rules", str(path)):
        code = compile(text, str(path), "exec")
        sys.modules[module.__name__] = module  # dataclasses look their module up
        exec(code, vars(module))  # noqa: S102 - the user named this file to be run
        defined = vars(module).values()
        classes = [c for c in defined if _is_rule(c) and c.__module__ == module.__name__]
    if not classes:
        why = f"it defines no class that derives from {_BASES} and has an id"
        raise RuleError(f"no rule in {path}", why=why, hint=_HINT)
    return (_make_rule(kind, str(path)) for kind in classes)


def installed_rules() -> Iterator[UserRule]:
    """Return the rules that installed packages register."""
    for point in metadata.entry_points(group=GROUP):
        package = f"package {point.dist.name}" if point.dist else f"entry point {point.name}"
        with _errors_named(f"rule {point.name!r}", package):
            loaded = point.load()
            usable = _is_rule(loaded)
        if not usable:
            why = f"{point.value} is no class that derives from {_BASES} and has an id"
            raise RuleError(f"no rule in {package}", why=why, hint=_HINT)
        yield _make_rule(loaded, package)


def _is_rule(thing: object) -> bool:
    kinds = (TimelineRule, KernelRule)
    return inspect.isclass(thing) and issubclass(thing, kinds) and hasattr(thing, "id")


def _make_rule(rule: Rule | type[Rule], source: str) -> UserRule:
    """Instantiate a rule and check its attributes."""
    kind = rule if isinstance(rule, type) else type(rule)
    with _errors_named(f"rule {kind.__name__}", source):
        instance = rule() if isinstance(rule, type) else rule
        if not isinstance(instance, (TimelineRule, KernelRule)):
            raise InvalidRuleError(f"it does not derive from {_BASES}")
        name = getattr(instance, "id", None)
        if not isinstance(name, str) or not _ID.fullmatch(name):
            raise InvalidRuleError(f"the id {name!r} is not lower case words with hyphens")
        if isinstance(instance, TimelineRule):
            return UserTimelineRule(instance, source)
        return UserKernelRule(instance, source)


def _exception_text(error: BaseException) -> str:
    """Return the type and the message of an exception on one line."""
    try:
        message = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception:  # noqa: BLE001 - its text is the user's code too
        message = ""
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return textwrap.shorten(text, _MAX_EXCEPTION_LENGTH, placeholder=" …")
