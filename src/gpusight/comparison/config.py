"""`gpusight.toml`: what a repository wants its gate to hold.

    [gate]
    baseline = "perf/baseline.json"
    [gate.max]
    step_time = "+3%"

Any other table in `[gate]`, such as `[gate.train]`, is a gate with a name of its own, and starts
from what `[gate]` says.
"""

from __future__ import annotations

import difflib
import math
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpusight.analyses.steps.step import shortened
from gpusight.comparison.comparable import KINDS, check_kinds
from gpusight.comparison.limits import Limit, limit_of
from gpusight.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same code under the name that it had before
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

NAME = "gpusight.toml"
_MOST_BYTES = 1 << 20
_PERCENT = re.compile(r"\s*(\d{1,3}(?:\.\d{0,9})?)\s*%\s*")


@dataclass(frozen=True, slots=True)
class GateConfig:
    """What a file says about a gate; None and empty where it says nothing."""

    path: Path | None = None
    baseline: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
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


def _limits(path: Path, value: Any) -> tuple[Limit, ...] | None:
    """Read limits; a bare `+10` is the number 10 to TOML, so they must be texts."""
    if not isinstance(value, dict):
        return None
    found: list[Limit] = []
    for metric, amounts in value.items():
        if amounts == []:
            raise _wrong(path, metric, f'a limit: "{shortened(metric)}" = "+3%"')
        for amount in amounts if isinstance(amounts, list) else [amounts]:
            if not isinstance(amount, str):
                raise _wrong(path, metric, f'it as text: "{shortened(metric)}" = "+3%"')
            found.append(_limit(path, metric, amount))
    return tuple(found)


def _limit(path: Path, metric: str, amount: str) -> Limit:
    try:
        return limit_of(metric, amount)
    except UsageError as error:
        raise UsageError(f"{path}: {error.what}", hint=error.hint) from error


def _part(_: Path, value: Any) -> float | None:
    """Read a part of the whole, as a percentage or a fraction."""
    if isinstance(value, str):
        found = _PERCENT.fullmatch(value)
        value = float(found[1]) / 100 if found else None
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


def _text(_: Path, value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _steps(_: Path, value: Any) -> str | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if whole else _text(_, value)


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
    "in": (_text, 'a range as for --in: in = "train_step"'),
    "junit": (_file, 'a file: junit = "gate.xml"'),
    "markdown": (_file, 'a file: markdown = "gate.md"'),
}
"""How each setting is read, and what an error tells to write."""
