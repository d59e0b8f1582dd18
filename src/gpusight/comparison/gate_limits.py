"""Limits as people write them (`step_time=+3%`), on the command line and in `gpusight.toml`."""

from __future__ import annotations

import difflib
import enum
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpusight.analysis.steps.step_list import shortened
from gpusight.comparison.comparability import KINDS, check_kinds
from gpusight.errors import UsageError
from gpusight.results import Fmt
from gpusight.units import BYTE_UNITS, TIME_UNITS, parse_amount, parse_percent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


_UNITS = {**TIME_UNITS, **BYTE_UNITS, "%": 0.01, "": 1.0}
_MEASURED = {
    **dict.fromkeys(TIME_UNITS, Fmt.TIME),
    **dict.fromkeys(BYTE_UNITS, Fmt.BYTES),
    "%": Fmt.SHARE,
    "": Fmt.COUNT,
}
"""What a unit measures."""
_MAX_DIGITS = 37
_MINUS = str.maketrans({"−": "-"})  # noqa: RUF100
_HINT = "write METRIC=+3%, METRIC=+1ms, METRIC=+5MB, METRIC=+10 or, as a ceiling, METRIC=50ms"
_EXAMPLES = {Fmt.TIME: ("a time", "1ms"), Fmt.BYTES: ("bytes", "5MB")}
_COUNTED = ("counted", "10")


class LimitKind(enum.Enum):
    """What a limit is measured from."""

    RELATIVE = "relative"
    """Growth, as a part of the baseline."""
    ABSOLUTE = "absolute"
    """Growth over the baseline, in the metric's unit."""
    CEILING = "ceiling"
    """The value itself; needs no baseline."""


@dataclass(frozen=True, slots=True)
class GateLimit:
    """The most that a metric may be, or may have grown by."""

    metric: str
    kind: LimitKind
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
        return self.kind is not LimitKind.CEILING and self.value < 0

    def most(self, baseline: float) -> float:
        """Give the largest value that is within the limit."""
        if self.kind is LimitKind.RELATIVE:
            return baseline * (1 + self.value)
        return self.value + (baseline if self.kind is LimitKind.ABSOLUTE else 0.0)

    def check_unit(self, fmt: Fmt) -> None:
        """Raise where the unit does not fit a metric that is shown in this way."""
        known = fmt if fmt in _EXAMPLES else Fmt.COUNT
        if self.measures in (Fmt.SHARE, known) or self.value == 0:
            return
        what, example = _EXAMPLES.get(known, _COUNTED)
        sign = "" if self.kind is LimitKind.CEILING else "+"
        raise UsageError(
            f"{str(self)!r} does not fit: {self.metric} is {what}",
            hint=f"write {self.metric}={sign}{example}"
            + (f" or {self.metric}=+3%" if sign else ""),
        )


def read_limit(text: str) -> GateLimit:
    """Read `METRIC=LIMIT`; a metric may hold `=` itself, as names of kernels do."""
    metric, equals, amount = text.rpartition("=")
    if not equals or not metric.strip():
        raise UsageError(f"{shortened(text)!r} is not a limit", hint=_HINT)
    return limit_of(metric.strip(), amount)


def read_limits(given: str | Iterable[str] | Mapping[str, str]) -> list[GateLimit]:
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


def limit_of(metric: str, amount: str) -> GateLimit:
    """Read how far a metric may go."""
    parsed = parse_amount(amount.translate(_MINUS))
    value = None if parsed is None else parsed.scaled(_UNITS)
    if parsed is None or value is None or len(parsed.digits) > _MAX_DIGITS:
        raise UsageError(f"{shortened(f'{metric}={amount}')!r} is not a limit", hint=_HINT)
    sign, digits, unit = parsed
    measures = _MEASURED[unit.lower()]
    if measures is Fmt.SHARE and not sign:
        raise UsageError(
            f"{shortened(f'{metric}={amount}')!r} does not say which way",
            hint=f"write {metric}=+{digits}% for growth over the baseline",
        )
    if measures is Fmt.SHARE and value < -1:
        raise UsageError(
            f"{shortened(f'{metric}={amount}')!r} cannot be held: nothing falls by more than 100%",
            hint=f"write such as {metric}=-5%",
        )
    return GateLimit(metric, _kind(sign, measures), value, measures, f"{sign}{digits}{unit}")


def _kind(sign: str, measures: Fmt) -> LimitKind:
    if not sign:
        return LimitKind.CEILING
    return LimitKind.RELATIVE if measures is Fmt.SHARE else LimitKind.ABSOLUTE


def joined(configured: Iterable[GateLimit], given: Iterable[GateLimit]) -> tuple[GateLimit, ...]:
    """Join the limits of a file and of a command: those given for a metric stand for its own."""
    own = tuple(dict.fromkeys(given))
    replaced = {limit.metric for limit in own}
    kept = [limit for limit in dict.fromkeys(configured) if limit.metric not in replaced]
    return (*kept, *own)


if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same code under the name that it had before
    import tomli as tomllib


NAME = "gpusight.toml"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class GateConfig:
    """What a file says about a gate; None and empty where it says nothing."""

    path: Path | None = None
    baseline: tuple[str, ...] = ()
    limits: tuple[GateLimit, ...] = ()
    confidence: float | None = None
    least_effect: float | None = None
    strict: bool = False
    allow_missing: bool = False
    allow_changed: tuple[str, ...] = ()
    steps: str | None = None
    within: str | None = None
    junit: Path | None = None
    markdown: Path | None = None


def find_config(folder: Path) -> Path | None:
    """Find the file in a folder, or above it up to the root of its repository."""
    for place in _folders(folder.resolve()):
        if (place / NAME).is_file():
            return place / NAME
    return None


def _folders(folder: Path) -> list[Path]:
    """Give the folders to look in; outside of a repository only the folder itself."""
    above = [folder, *folder.parents]
    for number, place in enumerate(above, 1):
        if (place / ".git").exists():
            return above[:number]
    return [folder]


def load_config(path: Path, gate: str | None = None) -> GateConfig:
    """Read a file, and in it the gate of this name; raises UsageError in one line."""
    tables = _tables(path)
    own = {key: value for key, value in tables.items() if key in SETTINGS}
    named = {key: value for key, value in tables.items() if isinstance(value, dict)}
    named = {key: value for key, value in named.items() if key not in SETTINGS}
    unknown = [key for key in tables if key not in own and key not in named]
    for where, keys in (("[gate]", unknown), *_strangers(named)):
        if keys:
            raise _unknown(path, where, keys[0])
    chosen = _chosen(path, own, named, gate)
    values = {key: _value(path, key, value) for key, value in chosen.items()}
    return GateConfig(path=path, **{_FIELDS.get(key, key): v for key, v in values.items()})


def _tables(path: Path) -> dict[str, Any]:
    """Give what stands in `[gate]`."""
    if path.exists() and not path.is_file():  # a pipe would keep us waiting
        raise UsageError(f"cannot read {path}", why="it is not a regular file")
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise UsageError(f"{path} is no settings file", why="it is larger than 1 MB")
        content = tomllib.loads(text.decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"cannot read {path}", why=error.strerror or str(error)) from error
    except ValueError as error:  # no TOML, no UTF-8, or a number of thousands of digits
        raise UsageError(f"{path} is not TOML", why=shortened(str(error))) from error
    except RecursionError as error:
        raise UsageError(f"{path} is not TOML", why="it is nested too deeply") from error
    others = [key for key in content if key != "gate"]
    if others:
        raise _unknown(path, "the file", others[0], known=("gate",))
    gate = content.get("gate", {})
    if not isinstance(gate, dict):
        raise _wrong(path, "gate", "a table: [gate]")
    return gate


def _strangers(named: Mapping[str, dict[str, Any]]) -> list[tuple[str, list[str]]]:
    return [
        (f"[gate.{name}]", [key for key in table if key not in SETTINGS])
        for name, table in named.items()
    ]


def _chosen(
    path: Path, own: dict[str, Any], named: Mapping[str, dict[str, Any]], gate: str | None
) -> dict[str, Any]:
    """Give what the gate says, on top of what all of them share."""
    if gate is None:
        if named and not own:
            names = ", ".join(map(shortened, named))
            raise UsageError(f"{path} holds several gates", hint=f"choose one by --gate: {names}")
        return own
    if gate not in named:
        known = ", ".join(map(shortened, named)) or "none with a name"
        raise UsageError(f"{path} has no [gate.{shortened(gate)}]", hint=f"it holds: {known}")
    limits = [table.get("max", {}) for table in (own, named[gate])]
    merged = {**own, **named[gate]}
    if all(isinstance(one, dict) for one in limits) and any(limits):
        merged["max"] = {**limits[0], **limits[1]}
    return merged


def _unknown(path: Path, where: str, key: str, known: tuple[str, ...] | None = None) -> UsageError:
    known = tuple(SETTINGS) if known is None else known
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}"
    return UsageError(f"{path}: {shortened(key)!r} is not a setting of {where}", hint=hint)


def _wrong(path: Path, key: str, wanted: str) -> UsageError:
    return UsageError(
        f"{path}: {shortened(key)!r} has the wrong kind of value", hint=f"write {wanted}"
    )


def _value(path: Path, key: str, value: Any) -> Any:
    read, wanted = SETTINGS[key]
    found = read(path, value)
    if found is None:
        raise _wrong(path, key, wanted)
    return found


def _files(path: Path, value: Any) -> tuple[str, ...] | None:
    """Give files, which are named from where the settings lie; patterns stay patterns."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(t, str) and t for t in texts):
        return None
    return tuple(str(path.parent / text) for text in texts)


def _file(path: Path, value: Any) -> Path | None:
    return path.parent / value if isinstance(value, str) and value else None


def _limits(path: Path, value: Any) -> tuple[GateLimit, ...] | None:
    """Read limits; a bare `+10` is the number 10 to TOML, so they must be texts."""
    if not isinstance(value, dict):
        return None
    found: list[GateLimit] = []
    for metric, amounts in value.items():
        if amounts == []:
            raise _wrong(path, metric, f'a limit: "{shortened(metric)}" = "+3%"')
        for amount in amounts if isinstance(amounts, list) else [amounts]:
            if not isinstance(amount, str):
                raise _wrong(path, metric, f'it as text: "{shortened(metric)}" = "+3%"')
            found.append(_limit(path, metric, amount))
    return tuple(found)


def _limit(path: Path, metric: str, amount: str) -> GateLimit:
    try:
        return limit_of(metric, amount)
    except UsageError as error:
        raise UsageError(f"{path}: {error.what}", hint=error.hint) from error


def _part(_: Path, value: Any) -> float | None:
    """Read a part of the whole, as a percentage or a fraction."""
    if isinstance(value, str):
        value = parse_percent(value)
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if known and math.isfinite(value) and 0 <= value < 1 else None


def _confidence(path: Path, value: Any) -> float | None:
    part = _part(path, value)
    return part if part is not None and part >= LEAST_CONFIDENCE else None


def _flag(_: Path, value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _kinds(path: Path, value: Any) -> tuple[str, ...] | None:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    try:
        return check_kinds(names)
    except UsageError as error:
        raise UsageError(f"{path}: {error.what}", hint=error.hint) from error


def _config_text(_: Path, value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _steps(_: Path, value: Any) -> str | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if whole else _config_text(_, value)


LEAST_CONFIDENCE = 0.5
_FIELDS = {"max": "limits", "in": "within"}
SETTINGS: dict[str, tuple[Callable[[Path, Any], Any], str]] = {
    "baseline": (_files, 'a file or a list of files: baseline = "perf/baseline.json"'),
    "max": (_limits, 'a table of limits: max = { step_time = "+3%" }'),
    "confidence": (_confidence, 'a percentage from 50%: confidence = "95%"'),
    "least_effect": (_part, 'a percentage below 100%: least_effect = "2%"'),
    "strict": (_flag, "strict = true or strict = false"),
    "allow_missing": (_flag, "allow_missing = true or allow_missing = false"),
    "allow_changed": (_kinds, f'a list of {", ".join(KINDS)}: allow_changed = ["kernels"]'),
    "steps": (_steps, 'steps as for --steps: steps = "3-7"'),
    "in": (_config_text, 'a range as for --in: in = "train_step"'),
    "junit": (_file, 'a file: junit = "gate.xml"'),
    "markdown": (_file, 'a file: markdown = "gate.md"'),
}
"""How each setting is read, and what an error tells to write."""
