"""Limits (`step_time=+3%`) on the command line and in `gpusight.toml`."""

from __future__ import annotations

import difflib
import enum
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpusight.analysis.steps.step_list import shortened
from gpusight.comparison.comparability import KINDS, check_kinds
from gpusight.comparison.named_metrics import (
    COMMUNICATION_SHARE,
    GPU_RUN_NOISE,
    HOST_RUN_NOISE,
    SHARES,
    changes,
    quantity,
)
from gpusight.comparison.significance import CONFIDENCE, MIN_CONFIDENCE
from gpusight.errors import UsageError
from gpusight.results import Fmt
from gpusight.units import BYTE_UNITS, TIME_UNITS, format_share, parse_amount, parse_percent

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same code under the name that it had before
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpusight.comparison.digest import Digest


_UNITS = {**TIME_UNITS, **BYTE_UNITS, "%": 0.01, "": 1.0}
_MEASURED = {
    **dict.fromkeys(TIME_UNITS, Fmt.TIME),
    **dict.fromkeys(BYTE_UNITS, Fmt.BYTES),
    "%": Fmt.SHARE,
    "": Fmt.COUNT,
}
"""What a unit measures."""
_MAX_NUMBER_CHARS = 37
"""18 digits, which fit in 64 bits, a point, and 18 digits."""
_MINUS = str.maketrans({"−": "-"})  # noqa: RUF100
_HINT = "write METRIC=+3%, METRIC=+1ms, METRIC=+5MB, METRIC=+10 or, as a ceiling, METRIC=50ms"
_EXAMPLES = {
    Fmt.TIME: ("a time", "1ms"),
    Fmt.BYTES: ("a size in bytes", "5MB"),
    Fmt.SHARE: ("a part of the step", "5%"),
}
_COUNTED = ("a count", "10")
_COMMUNICATION = "exposed_communication"


INCONCLUSIVE_POLICIES = ("pass", "fail")
"""What an inconclusive gate can count as; without one, the exit code is 3."""


class LimitKind(enum.Enum):
    """What a limit is measured from."""

    RELATIVE = "relative"
    """Growth, as a share of the baseline."""
    ABSOLUTE = "absolute"
    """Growth over the baseline, in the metric's unit."""
    CEILING = "ceiling"
    """The value itself; needs no baseline."""


@dataclass(frozen=True, slots=True)
class GateLimit:
    """The largest value of a metric, or its largest growth over the baseline."""

    metric: str
    kind: LimitKind
    value: float
    """A share of the baseline, or an amount in nanoseconds, bytes or a count."""
    measures: Fmt
    """What its unit measures: TIME, BYTES, COUNT where it has none, SHARE of the baseline."""
    text: str
    """The limit as typed, without the metric."""

    @property
    def quantity(self) -> str:
        """What is measured: a part of the step, where a ceiling of communication is in %."""
        is_share = self.measures is Fmt.SHARE and self.kind is LimitKind.CEILING
        return COMMUNICATION_SHARE if is_share and self.metric == _COMMUNICATION else self.metric

    def __str__(self) -> str:
        """Return it as typed."""
        return f"{self.metric}={self.text}"

    @property
    def improvement(self) -> bool:
        """Whether it requires the metric to decrease."""
        return self.kind is not LimitKind.CEILING and self.value < 0

    def most(self, baseline: float) -> float:
        """Return the largest value that is within the limit."""
        if self.kind is LimitKind.RELATIVE:
            return baseline * (1 + self.value)
        return self.value + (baseline if self.kind is LimitKind.ABSOLUTE else 0.0)

    def check_unit(self, fmt: Fmt) -> None:
        """Raise where the unit does not fit the format of the metric."""
        known = fmt if fmt in _EXAMPLES else Fmt.COUNT
        if self.measures in (Fmt.SHARE, known) or self.value == 0:
            return
        what, example = _EXAMPLES.get(known, _COUNTED)
        sign = "" if self.kind is LimitKind.CEILING else "+"
        if self.measures is Fmt.COUNT and known in _EXAMPLES:  # as typed, with a unit
            example = self.text.lstrip("+-") + example.lstrip("0123456789")
            sign = self.text[:1] if self.text[:1] in ("+", "-") else ""
        raise UsageError(
            f"{str(self)!r} has the wrong unit: {self.metric} is {what}",
            hint=f"write {self.metric}={sign}{example}"
            + (f" or {self.metric}=+3%" if sign else ""),
        )


def read_limit(text: str) -> GateLimit:
    """Read `METRIC=LIMIT`; a metric may contain `=` itself, as kernel names do."""
    metric, equals, amount = text.rpartition("=")
    if not equals or not metric.strip():
        raise UsageError(f"{shortened(text)!r} is not a limit", hint=_HINT)
    return limit_of(metric.strip(), amount)


def read_limits(limits: str | Iterable[str] | Mapping[str, str | float]) -> list[GateLimit]:
    """Read limits given in Python: texts, or amounts by metric."""
    if isinstance(limits, Mapping):  # a number is a ceiling of a count, which has no unit
        return [
            limit_of(_text(metric), str(amount) if _is_number(amount) else _text(amount))
            for metric, amount in limits.items()
        ]
    if isinstance(limits, str) or not isinstance(limits, Iterable):
        return [read_limit(_text(limits))]
    return [read_limit(_text(limit)) for limit in limits]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"a limit is a string, not {type(value).__name__}", hint=_HINT)
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def limit_of(metric: str, amount: str) -> GateLimit:
    """Read the limit of a metric."""
    parsed = parse_amount(amount.translate(_MINUS))
    value = None if parsed is None else parsed.scaled(_UNITS)
    if parsed is None or value is None or len(parsed.digits) > _MAX_NUMBER_CHARS:
        raise UsageError(f"{shortened(f'{metric}={amount}')!r} is not a limit", hint=_HINT)
    sign, digits, unit = parsed
    measures = _MEASURED[unit.lower()]
    if measures is Fmt.SHARE and not sign and metric not in (*SHARES, _COMMUNICATION):
        raise UsageError(
            f"{shortened(f'{metric}={amount}')!r} has no sign",
            hint=f"write {metric}=+{digits}% for growth over the baseline",
        )
    if measures is Fmt.SHARE and value < -1:
        raise UsageError(
            f"{shortened(f'{metric}={amount}')!r} is impossible: no metric falls by over 100%",
            hint=f"write for example {metric}=-5%",
        )
    in_percentage_points = metric in SHARES  # how a part of the step grows
    if not sign:
        kind = LimitKind.CEILING
    elif measures is Fmt.SHARE and not in_percentage_points:
        kind = LimitKind.RELATIVE
    else:
        kind = LimitKind.ABSOLUTE
    return GateLimit(metric, kind, value, measures, f"{sign}{digits}{unit}")


def join_limits(
    configured: Iterable[GateLimit], typed: Iterable[GateLimit]
) -> tuple[GateLimit, ...]:
    """Join the limits of a file and of a command; those of the command replace the file's."""
    typed = tuple(dict.fromkeys(typed))
    replaced = {limit.metric for limit in typed}
    kept = [limit for limit in dict.fromkeys(configured) if limit.metric not in replaced]
    return (*kept, *typed)


# gpusight.toml ------------------------------------------------------------------------------------


CONFIG_FILE_NAME = "gpusight.toml"
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class GateConfig:
    """Settings of a gate in a file; None and empty where the file has none."""

    path: Path | None = None
    baseline: tuple[str, ...] = ()
    limits: tuple[GateLimit, ...] = ()
    confidence: float | None = None
    least_effect: float | None = None
    inconclusive: str | None = None
    allow_missing: bool = False
    allow_changed: tuple[str, ...] = ()
    steps: str | None = None
    within: str | None = None
    junit: Path | None = None
    markdown: Path | None = None


def find_config(folder: Path) -> Path | None:
    """Find the file in a folder, or above it up to the root of its repository."""
    folder = folder.resolve()
    folders = [folder, *folder.parents]
    roots = (number for number, each in enumerate(folders, 1) if (each / ".git").exists())
    for each in folders[: next(roots, 1)]:
        if (each / CONFIG_FILE_NAME).is_file():
            return each / CONFIG_FILE_NAME
    return None


def load_config(path: Path, gate: str | None = None) -> GateConfig:
    """Read a file, and in it the gate of this name; raise `UsageError` in one line."""
    tables = _gate_table(path)
    shared = {key: value for key, value in tables.items() if key in SETTINGS}
    named = {
        key: value
        for key, value in tables.items()
        if isinstance(value, dict) and key not in SETTINGS
    }
    for key in tables:
        if key not in shared and key not in named:
            raise _unknown_setting(path, "[gate]", key)
    for name, table in named.items():
        for key in table:
            if key not in SETTINGS:
                raise _unknown_setting(path, f"[gate.{name}]", key)
    fields = {}
    for key, value in _merged_settings(path, shared, named, gate).items():
        read, wanted = SETTINGS[key]
        setting = read(path, value)
        if setting is None:
            raise _wrong_type(path, key, wanted)
        fields[_FIELDS.get(key, key)] = setting
    return GateConfig(path=path, **fields)


def _gate_table(path: Path) -> dict[str, Any]:
    """Read the table `[gate]`."""
    if path.exists() and not path.is_file():  # a pipe would block
        raise UsageError(f"cannot read {path}", why="it is not a regular file")
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise UsageError(f"{path} is not a settings file", why="it is larger than 1 MB")
        content = tomllib.loads(text.decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"cannot read {path}", why=error.strerror or str(error)) from error
    except ValueError as error:  # no TOML, no UTF-8, or a number of thousands of digits
        raise UsageError(f"{path} is not TOML", why=shortened(str(error))) from error
    except RecursionError as error:
        raise UsageError(f"{path} is not TOML", why="it is nested too deeply") from error
    others = [key for key in content if key != "gate"]
    if others:
        raise _unknown_setting(path, "the file", others[0], known=("gate",))
    gate = content.get("gate", {})
    if not isinstance(gate, dict):
        raise _wrong_type(path, "gate", "a table: [gate]")
    return gate


def _merged_settings(
    path: Path, shared: dict[str, Any], named: Mapping[str, dict[str, Any]], gate: str | None
) -> dict[str, Any]:
    """Return the settings of the gate, on top of those of all gates."""
    if gate is None:
        if named and not shared:
            names = ", ".join(map(shortened, named))
            raise UsageError(f"{path} has several gates", hint=f"choose one with --gate: {names}")
        return shared
    if gate not in named:
        known = ", ".join(map(shortened, named)) or "none with a name"
        raise UsageError(f"{path} has no [gate.{shortened(gate)}]", hint=f"it has: {known}")
    limits = [table.get("max", {}) for table in (shared, named[gate])]
    merged = {**shared, **named[gate]}
    if all(isinstance(table, dict) for table in limits) and any(limits):
        merged["max"] = {**limits[0], **limits[1]}
    return merged


def _unknown_setting(
    path: Path, where: str, key: str, known: tuple[str, ...] | None = None
) -> UsageError:
    known = tuple(SETTINGS) if known is None else known
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known settings: {', '.join(known)}"
    return UsageError(f"{path}: {shortened(key)!r} is not a setting of {where}", hint=hint)


def _wrong_type(path: Path, key: str, wanted: str) -> UsageError:
    return UsageError(
        f"{path}: {shortened(key)!r} has the wrong kind of value", hint=f"write {wanted}"
    )


def _files(path: Path, value: Any) -> tuple[str, ...] | None:
    """Read file names relative to the settings; patterns stay patterns."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(t, str) and t for t in texts):
        return None
    return tuple(str(path.parent / text) for text in texts)


def _file(path: Path, value: Any) -> Path | None:
    return path.parent / value if isinstance(value, str) and value else None


def _limits(path: Path, value: Any) -> tuple[GateLimit, ...] | None:
    """Read limits; a number is a ceiling of a count, also `+10`, which TOML reads as 10."""
    if not isinstance(value, dict):
        return None
    limits: list[GateLimit] = []
    for metric, amounts in value.items():
        if amounts == []:
            raise _wrong_type(path, metric, f'a limit: "{shortened(metric)}" = "+3%"')
        for amount in amounts if isinstance(amounts, list) else [amounts]:
            if not isinstance(amount, str) and not _is_number(amount):
                raise _wrong_type(path, metric, f'it as a string: "{shortened(metric)}" = "+3%"')
            try:
                limits.append(limit_of(metric, str(amount)))
            except UsageError as error:
                raise UsageError(f"{path}: {error.what}", hint=error.hint) from error
    return tuple(limits)


def _share(_: Path, value: Any) -> float | None:
    """Read a percentage or a fraction."""
    if isinstance(value, str):
        value = parse_percent(value)
    known = _is_number(value) and math.isfinite(value) and 0 <= value < 1
    return float(value) if known else None


def _confidence(path: Path, value: Any) -> float | None:
    share = _share(path, value)
    return share if share is not None and share >= MIN_CONFIDENCE else None


def _kinds(path: Path, value: Any) -> tuple[str, ...] | None:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    try:
        return check_kinds(names)
    except UsageError as error:
        raise UsageError(f"{path}: {error.what}", hint=error.hint) from error


def _nonempty_text(_path: Path, value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _steps(path: Path, value: Any) -> str | None:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_integer else _nonempty_text(path, value)


_FIELDS = {"max": "limits", "in": "within"}
SETTINGS: dict[str, tuple[Callable[[Path, Any], Any], str]] = {
    "baseline": (_files, 'a file or a list of files: baseline = "perf/baseline.json"'),
    "max": (_limits, 'a table of limits: max = { step_time = "+3%" }'),
    "confidence": (_confidence, 'a percentage from 50%: confidence = "95%"'),
    "least_effect": (_share, 'a percentage below 100%: least_effect = "2%"'),
    "inconclusive": (
        lambda _, value: value if value in INCONCLUSIVE_POLICIES else None,
        'inconclusive = "pass" or inconclusive = "fail"',
    ),
    "allow_missing": (
        lambda _, value: value if isinstance(value, bool) else None,
        "allow_missing = true or allow_missing = false",
    ),
    "allow_changed": (_kinds, f'a list of {", ".join(KINDS)}: allow_changed = ["kernels"]'),
    "steps": (_steps, 'steps as for --steps: steps = "3-7"'),
    "in": (_nonempty_text, 'a range as for --in: in = "train_step"'),
    "junit": (_file, 'a file: junit = "gate.xml"'),
    "markdown": (_file, 'a file: markdown = "gate.md"'),
}
"""How each setting is read, and the hint of an error."""


# Limits to propose --------------------------------------------------------------------------------

_PROPOSED = (0.03, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)
"""Growth that a proposal is rounded up to."""
_COARSE = 0.1
"""Noise of the step time from which on a limit of the kernel time is proposed too."""


def noise_share(digests: Sequence[Digest], metric: str) -> float | None:
    """Return how much as many captures of the same program may differ, as a share of the mean.

    It is what `compare` makes of two sides that vary like these captures: half of the interval.
    None for one capture, which shows no noise, and where the metric is unknown.
    """
    side = quantity(digests, metric)
    if len(side.known) < 2 or not side.mean:
        return None
    same = changes([(side, side)], confidence=CONFIDENCE, least=0.0)[0]
    return None if same.high is None else same.high / side.mean


def limits_above_noise(digests: Sequence[Digest]) -> tuple[list[str], str]:
    """Propose limits for a baseline that noise alone does not exceed, and say what they rest on."""
    shares = {key: noise_share(digests, key) for key in ("step_time", "kernel_time")}
    step = shares["step_time"]
    if step is None:
        limit = f"step_time=+{HOST_RUN_NOISE:.0%}"
        if quantity(digests, "kernel_time").mean:
            limit = f"kernel_time=+{GPU_RUN_NOISE:.0%}"
        return [limit], "usual noise: one capture shows none, three show that of step_time"
    is_coarse = step > _COARSE
    known = {k: share for k, share in shares.items() if share is not None}
    limits = [
        f"{key}=+{_rounded_up(share):.0%}"
        for key, share in known.items()
        if key == "step_time" or (is_coarse and share < step / 2)
    ]
    noise = ", ".join(f"{key} ± {format_share(share)}" for key, share in known.items())
    return limits, f"noise of {len(digests)} captures per side ({noise})"


def _rounded_up(share: float) -> float:
    return next((limit for limit in _PROPOSED if limit >= share), math.ceil(share))
