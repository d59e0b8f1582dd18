"""What-if scenarios: parsing what the user typed, the result, and its tables."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.ledger.device_ledger import build_ledger
from gpusight.analysis.selection import near_matches
from gpusight.errors import UsageError
from gpusight.naming.kernel_patterns import CATEGORIES
from gpusight.results import Composite, Fact, Field, Fmt, TableResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusight.analysis.ledger.device_ledger import DeviceLedger, Ledger
    from gpusight.analysis.replay.changes import Change
    from gpusight.analysis.replay.window_replay import Replay


KERNEL, RANGE = "kernel:", "range:"
"""Before a pattern that kernels, or the ranges that launched work, are matched with."""
KERNELS, COPIES, HOST = "kernels", "copies", "host"
SYNC, INPUT, ALLOC, OVERHEAD = "sync", "input", "alloc", "overhead"
_PATTERNS = (KERNEL, RANGE)
_FACTOR = re.compile(r"(?P<number>\d{1,6}(?:\.\d{1,6})?)\s*[xX]?")


class ScenarioAction(enum.Enum):
    """What is to become of a target."""

    SPEEDUP = "speedup"
    REMOVE = "remove"
    GRAPH = "graph"
    FUSE = "fuse"
    OVERLAP = "overlap"
    APPLY = "apply"
    PRECISION = "precision"


TARGETS: dict[ScenarioAction, tuple[str, ...]] = {
    ScenarioAction.SPEEDUP: (*CATEGORIES, KERNELS, COPIES, HOST),
    ScenarioAction.REMOVE: (SYNC, INPUT, ALLOC, COPIES, OVERHEAD, *CATEGORIES),
    ScenarioAction.FUSE: ("elementwise", "optimizer", "attention"),
    ScenarioAction.OVERLAP: (COPIES, "communication"),
    ScenarioAction.PRECISION: ("tf32", "bf16", "fp16"),
}
"""The words that each verb knows."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One thing that is to be different."""

    verb: ScenarioAction
    target: str = ""
    factor: float = 1.0
    """How many times faster, of a speed-up."""

    @property
    def text(self) -> str:
        """Say it in words, as tables show it."""
        name = self.target
        for prefix in _PATTERNS:
            name = name.replace(prefix, f"{prefix[:-1]} ", 1) if name.startswith(prefix) else name
        return {
            ScenarioAction.SPEEDUP: f"{name} {self.factor:g}x faster",
            ScenarioAction.REMOVE: f"no {name}",
            ScenarioAction.GRAPH: "launches as CUDA graphs",
            ScenarioAction.FUSE: f"{name} fused",
            ScenarioAction.OVERLAP: f"{name} beside computation",
            ScenarioAction.APPLY: f"fix of {name}",
            ScenarioAction.PRECISION: f"FP32 products in {name.upper()}",
        }[self.verb]


def parse_scenario(verb: ScenarioAction, text: str = "") -> Scenario:
    """Read one wish: `matmul=4x` of a speed-up, else the target alone."""
    if verb is ScenarioAction.GRAPH:
        return Scenario(verb)
    if verb is ScenarioAction.SPEEDUP:
        target, _, factor = text.rpartition("=")
        return Scenario(
            verb, _target(verb, target or text), _factor(text, factor if target else "")
        )
    return Scenario(verb, _target(verb, text))


def scenarios(
    *,
    speedup: Mapping[str, float] | None = None,
    precision: str | None = None,
    remove: Iterable[str] = (),
    fuse: Iterable[str] = (),
    overlap: Iterable[str] = (),
    apply: Iterable[str] = (),
    graph: bool = False,
) -> list[Scenario]:
    """Make wishes of named arguments; graphs come last, so that they hold what is left."""
    found = [
        Scenario(
            ScenarioAction.SPEEDUP,
            _target(ScenarioAction.SPEEDUP, target),
            _factor(f"{target}={factor}", factor),
        )
        for target, factor in (speedup or {}).items()
    ]
    for verb, targets in (
        (ScenarioAction.PRECISION, () if precision is None else precision),
        (ScenarioAction.REMOVE, remove),
        (ScenarioAction.FUSE, fuse),
        (ScenarioAction.OVERLAP, overlap),
        (ScenarioAction.APPLY, apply),
    ):
        found += [parse_scenario(verb, target) for target in _each(targets)]
    return [*found, Scenario(ScenarioAction.GRAPH)] if graph else found


def _each(targets: Iterable[str]) -> Iterable[str]:
    return [targets] if isinstance(targets, str) else targets


def _target(verb: ScenarioAction, text: str) -> str:
    """Give a target that the verb knows; rules are known to those who ask them."""
    target = text.strip()
    patterns = verb in {ScenarioAction.SPEEDUP, ScenarioAction.REMOVE}
    if verb is ScenarioAction.APPLY or target in TARGETS[verb]:
        return target
    if patterns and any(target.startswith(p) and len(target) > len(p) for p in _PATTERNS):
        return target
    near = near_matches(target, list(TARGETS[verb]))
    more = ", or kernel:GLOB or range:GLOB" if patterns else ""
    raise UsageError(
        f"cannot {verb.value} {target!r}",
        why=f"near it is {near}",
        hint=f"known are {', '.join(TARGETS[verb])}{more}",
    )


def _factor(text: str, factor: str | float) -> float:
    """Read how many times faster; slower is not a thing that a fix does."""
    found = _FACTOR.fullmatch(str(factor).strip())
    if found is None or float(found["number"]) < 1:
        raise UsageError(
            f"{text!r} says no speed-up",
            why="it needs a number from 1 after the last equals sign",
            hint="write for example matmul=4x or 'kernel:*gemm*=2x'",
        )
    return float(found["number"])


COMMAND = "whatif"


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """One change with what it gives back, of the replayed time."""

    change: str
    alone_ns: int
    """When it is the only one; below 0 where it costs."""
    after_ns: int
    """Once those before it are done."""

    def document(self) -> dict[str, Any]:
        """Give it as plain objects."""
        return {"change": self.change, "alone_ns": self.alone_ns, "after_ns": self.after_ns}


@dataclass(frozen=True)
class WhatIf:
    """A window as it was, and as it would be."""

    start_ns: int
    end_ns: int
    steps: int
    """Steps in the replayed window; 0 where none are known."""
    unchanged_ns: int
    """Length of the replay without any change."""
    error: float
    """Part of the measured time by which a replay with usual latencies misses it."""
    changed_ns: int
    changes: tuple[AppliedChange, ...]
    before: Ledger
    after: Ledger
    meta: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What is different, in one line."""
        return f"What if: {', '.join(change.change for change in self.changes)}"

    @property
    def measured_ns(self) -> int:
        """Length as measured."""
        return self.end_ns - self.start_ns

    @property
    def saved_ns(self) -> int:
        """What all changes give back together."""
        return self.unchanged_ns - self.changed_ns

    @property
    def share(self) -> float | None:
        """The same as a part of the replayed time."""
        return self.saved_ns / self.unchanged_ns if self.unchanged_ns else None

    @property
    def per_step(self) -> int:
        """What to divide by for the time of a step."""
        return max(1, self.steps)

    def of_device(self, device: int) -> WhatIf:
        """Keep the ledgers of one GPU; all of them were replayed."""
        return replace(self, before=_only(self.before, device), after=_only(self.after, device))

    def document(self) -> dict[str, Any]:
        """Give what `--format json` writes, as plain objects."""
        return {
            "window": {"start_ns": self.start_ns, "end_ns": self.end_ns},
            "measured_ns": self.measured_ns,
            "unchanged_ns": self.unchanged_ns,
            "error": self.error,
            "changed_ns": self.changed_ns,
            "saved_ns": self.saved_ns,
            "share": self.share,
            "steps": self.steps,
            "changes": [change.document() for change in self.changes],
            "ledger": {"before": self.before.document(), "after": self.after.document()},
            "meta": {"command": COMMAND, **self.meta},
            "notes": list(self.notes),
        }


def _only(every: Ledger, device: int) -> Ledger:
    return replace(every, devices=tuple(one for one in every.devices if one.device == device))


def replayed(
    replay: Replay,
    changes: Sequence[tuple[str, Sequence[Change]]],
    *,
    before: Ledger,
    steps: int = 0,
    meta: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> WhatIf:
    """Replay named changes: each alone, and one after the other."""
    schedule = replay.schedule
    done: list[Change] = []
    applied = []
    outcome = replay.unchanged
    for name, parts in changes:
        done += parts
        after = replay.run(*done)
        gained = outcome.total_ns - after.total_ns
        applied.append(AppliedChange(name, replay.run(*parts).saved_ns, gained))
        outcome = after
    return WhatIf(
        schedule.start_ns,
        schedule.end_ns,
        steps,
        replay.unchanged.total_ns,
        replay.error,
        outcome.total_ns,
        tuple(applied),
        before,
        build_ledger(schedule, replay.hosts_of(outcome), outcome.timing),
        meta or {},
        tuple(notes),
    )


WHATIF_FACTS = (
    Field("measured_ns", "Measured", Fmt.TIME, "Time that was replayed, as measured"),
    Field("step_before_ns", "A step now", Fmt.TIME, "Mean time of a step, as measured"),
    Field("step_after_ns", "A step then", Fmt.TIME, "Mean time of a step with all changes"),
    Field("changed_ns", "Then", Fmt.TIME, "The same time with all changes"),
    Field("saved_ns", "Given back", Fmt.TIME, "What all changes give back together"),
    Field("share", "Of the time", Fmt.SHARE, "The same as a part of the time"),
    Field("speedup", "Times faster", Fmt.REAL, "Time before over time after"),
    Field("error", "Replay error", Fmt.SHARE, "By how much the unchanged replay misses the time"),
)
CHANGE_FIELDS = (
    Field("alone_ns", "Alone", Fmt.TIME, "Given back when it is the only change; a step"),
    Field(
        "after_ns", "After those above", Fmt.TIME, "Given back once those above are done; a step"
    ),
    Field("alone_share", "Alone of all", Fmt.SHARE, "Alone, as a part of the time"),
    Field("change", "Change", Fmt.NAME, "What is different"),
)
LEDGER_FIELDS = (
    Field("device", "GPU", Fmt.ID, "Which GPU"),
    Field("before_ns", "Now", Fmt.TIME, "Time of the entry as measured; a step"),
    Field("after_ns", "Then", Fmt.TIME, "Time of the entry with all changes; a step"),
    Field("delta_ns", "Difference", Fmt.TIME, "The difference; a step"),
    Field("before_share", "Now of all", Fmt.SHARE, "Part of the time as measured"),
    Field("after_share", "Then of all", Fmt.SHARE, "Part of the time with all changes"),
    Field("entry", "Entry", Fmt.TEXT, "What the time goes into"),
)
_TYPES = {Fmt.ID: pl.Int64(), Fmt.TEXT: pl.String(), Fmt.NAME: pl.String()}


def whatif_page(result: WhatIf) -> Composite:
    """Lay a what-if out for a screen: times of a step, or of all where no steps are known."""
    of = "a step" if result.steps else "the time"
    return Composite(
        "whatif",
        result.title,
        _facts(result),
        (
            _table(
                "changes", f"What each change gives back of {of}", CHANGE_FIELDS, _changes(result)
            ),
            _table(
                "ledger", f"Where {of} goes, now and then", _ledger_fields(result), _entries(result)
            ),
        ),
        meta=dict(result.meta),
        notes=result.notes,
    )


def _facts(result: WhatIf) -> tuple[Fact, ...]:
    each = result.per_step
    values = {
        "measured_ns": result.measured_ns,
        "changed_ns": result.changed_ns,
        "saved_ns": result.saved_ns,
        "share": result.share,
        "speedup": result.unchanged_ns / result.changed_ns if result.changed_ns else None,
        "error": result.error,
    }
    if result.steps:
        values |= {
            "step_before_ns": result.measured_ns / each,
            "step_after_ns": result.changed_ns / each,
            "saved_ns": result.saved_ns / each,
        }
        del values["measured_ns"], values["changed_ns"]
    return tuple(
        Fact(f.key, f.label, values[f.key], f.fmt, f.meaning)
        for f in WHATIF_FACTS
        if f.key in values
    )


def _changes(result: WhatIf) -> list[dict[str, object]]:
    each = result.per_step
    return [
        {
            "alone_ns": one.alone_ns / each,
            "after_ns": one.after_ns / each,
            "alone_share": one.alone_ns / max(1, result.unchanged_ns),
            "change": one.change,
        }
        for one in result.changes
    ]


def _ledger_fields(result: WhatIf) -> tuple[Field, ...]:
    several = len(result.before.devices) > 1
    return LEDGER_FIELDS if several else LEDGER_FIELDS[1:]


def _entries(result: WhatIf) -> list[dict[str, object]]:
    """Set the entries side by side, by GPU, what changed most first."""
    rows: list[dict[str, object]] = []
    for device in result.before.devices:
        after = _of(result.after, device.device)
        names = dict.fromkeys(e.entry for d in (device, after) if d for e in d.entries)
        pairs = [(name, device.ns(name), after.ns(name) if after else 0) for name in names]
        for name, now, then in sorted(pairs, key=lambda p: (-abs(p[2] - p[1]), -p[1])):
            rows.append(_entry(result, device.device, name, now, then))
    return rows


def _of(ledger: Ledger, device: int) -> DeviceLedger | None:
    return next((one for one in ledger.devices if one.device == device), None)


def _entry(result: WhatIf, device: int, name: str, now: int, then: int) -> dict[str, object]:
    each = result.per_step
    return {
        "device": device,
        "before_ns": now / each,
        "after_ns": then / each,
        "delta_ns": (then - now) / each,
        "before_share": now / max(1, result.measured_ns),
        "after_share": then / max(1, result.changed_ns),
        "entry": name,
    }


def _table(
    command: str, title: str, fields: tuple[Field, ...], rows: list[dict[str, object]]
) -> TableResult:
    schema = {f.key: _TYPES.get(f.fmt, pl.Float64()) for f in fields}
    kept = [{key: row[key] for key in schema} for row in rows]
    return TableResult(command, title, fields, pl.DataFrame(kept, schema=schema))
