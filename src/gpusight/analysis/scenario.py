"""What-if scenarios: parsing, the result, and its tables."""

from __future__ import annotations

import difflib
import enum
import re
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.aggregates import table_of
from gpusight.analysis.ledger.device_ledger import build_ledger
from gpusight.errors import UsageError
from gpusight.naming.kernel_patterns import CATEGORIES
from gpusight.results import Composite, Fact, Field, Fmt
from gpusight.units import format_share, format_speedup, format_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusight.analysis.ledger.device_ledger import Ledger
    from gpusight.analysis.replay.changes import Change
    from gpusight.analysis.replay.window_replay import Replay
    from gpusight.analysis.steps.window_headline import StepWindow


KERNEL, RANGE = "kernel:", "range:"
"""Prefix of a pattern for kernels, or for the ranges that launched GPU work."""
KERNELS, COPIES, HOST = "kernels", "copies", "host"
SYNC, INPUT, ALLOC, OVERHEAD = "sync", "input", "alloc", "overhead"
_PATTERNS = (KERNEL, RANGE)
PATTERN_HINT = "kernel:GLOB or range:GLOB"
_FACTOR = re.compile(r"(?P<number>\d{1,6}(?:\.\d{1,6})?)\s*[xX]?")


class ScenarioAction(enum.Enum):
    """What a scenario does to its target."""

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
"""Targets of each verb."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One change of the program."""

    verb: ScenarioAction
    target: str = ""
    factor: float = 1.0
    """Factor of a speedup."""

    @property
    def text(self) -> str:
        """Description that tables show."""
        name = self.target
        for prefix in _PATTERNS:
            name = name.replace(prefix, f"{prefix[:-1]} ", 1) if name.startswith(prefix) else name
        return {
            ScenarioAction.SPEEDUP: f"{name} {self.factor:g}x faster",
            ScenarioAction.REMOVE: f"without {name}",
            ScenarioAction.GRAPH: "CUDA graphs",
            ScenarioAction.FUSE: f"{name} fused",
            ScenarioAction.OVERLAP: f"{name} overlapped with compute",
            ScenarioAction.APPLY: f"fix of {name}",
            ScenarioAction.PRECISION: f"FP32 GEMMs in {name.upper()}",
        }[self.verb]


def parse_scenario(verb: ScenarioAction, text: str = "") -> Scenario:
    """Parse one scenario: `matmul=4x` of a speedup, else the target alone."""
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
    """Make scenarios of named arguments; graphs come last and apply to what is left."""
    parsed = [
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
        several = [targets] if isinstance(targets, str) else targets
        parsed += [parse_scenario(verb, target) for target in several]
    return [*parsed, Scenario(ScenarioAction.GRAPH)] if graph else parsed


def _target(verb: ScenarioAction, text: str) -> str:
    """Check that the verb has this target.

    The names of rules, and what can be removed, are checked with the capture.
    """
    target = text.strip()
    checked_later = verb in {ScenarioAction.APPLY, ScenarioAction.REMOVE}
    if checked_later or target in TARGETS[verb]:
        return target
    patterns = verb is ScenarioAction.SPEEDUP
    if patterns and is_pattern(target):
        return target
    more = f", or {PATTERN_HINT}" if patterns else ""
    hint = f"known: {', '.join(TARGETS[verb])}{more}"
    why = similar_text(target, TARGETS[verb])
    raise UsageError(f"--{verb.value} cannot take {target!r}", why=why, hint=hint)


def similar_text(target: str, known: Sequence[str]) -> str:
    """Name the targets that look like a mistyped one; empty where none does."""
    near = difflib.get_close_matches(target, known)
    return f"similar: {', '.join(map(repr, near))}" if near else ""


def is_pattern(target: str) -> bool:
    """Return whether a target is a pattern of kernels or ranges."""
    return any(target.startswith(p) and len(target) > len(p) for p in _PATTERNS)


def _factor(text: str, factor: str | float) -> float:
    """Parse the factor of a speedup; a scenario makes nothing slower."""
    match = _FACTOR.fullmatch(str(factor).strip())
    if match is None or float(match["number"]) < 1:
        raise UsageError(
            f"{text!r} has no speedup factor",
            why="a number of at least 1 must follow the last equals sign",
            hint="write for example matmul=4x or 'kernel:*gemm*=2x'",
        )
    return float(match["number"])


COMMAND = "whatif"


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """One change, and the simulated time that it saves."""

    change: str
    alone_ns: int
    """Saved when it is the only one; negative where it costs."""
    after_ns: int
    """Saved after those before it (incremental)."""


@dataclass(frozen=True)
class WhatIf:
    """A window as measured, and as simulated with changes."""

    start_ns: int
    end_ns: int
    steps: int
    """Steps in the replayed window; 0 where none are known."""
    unchanged_ns: int
    """Length of the simulation without any change."""
    error: float
    """Simulation error: share of the measured time that median latencies miss."""
    changed_ns: int
    changes: tuple[AppliedChange, ...]
    before: Ledger
    after: Ledger
    meta: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    window: StepWindow | None = None
    """The window of every command; what was simulated may be a sample of its steps."""
    not_modeled: tuple[str, ...] = ()
    """What the capture shows and the simulation leaves out, such as other ranks."""

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
        """What all changes save together."""
        return self.unchanged_ns - self.changed_ns

    @property
    def share(self) -> float | None:
        """`saved_ns` as a share of the simulated time."""
        return self.saved_ns / self.unchanged_ns if self.unchanged_ns else None

    @property
    def per_step(self) -> float:
        """Divisor for times per step; scaled, so that the step time is that of the window."""
        if self.window is None or not self.window.steps or not self.measured_ns:
            return max(1, self.steps)
        return self.measured_ns / self.window.length_ns * len(self.window.steps)

    @property
    def window_text(self) -> str:
        """Name the window: `10 steps of 12.5 ms (2 warm-up steps excluded), GPU busy 92.5%`."""
        if "headline" in self.meta:
            return str(self.meta["headline"]["text"])
        length = format_time(self.measured_ns / self.per_step, digits=3)
        if not self.steps:
            return f"{length}, no steps found"
        return f"{self.steps:,} {'step' if self.steps == 1 else 'steps'} of {length}"

    @property
    def sample_text(self) -> str:
        """Name the steps that were simulated: `3 of 13 steps`; empty where it is all of them."""
        steps = 0 if self.window is None else len(self.window.steps)
        return f"{self.steps:,} of {steps:,} steps" if 0 < self.steps < steps else ""

    def of_device(self, device: int) -> WhatIf:
        """Keep the ledgers of one GPU; all GPUs were replayed."""
        before, after = (
            replace(ledger, devices=tuple(d for d in ledger.devices if d.device == device))
            for ledger in (self.before, self.after)
        )
        return replace(self, before=before, after=after)

    def document(self) -> dict[str, Any]:
        """Return what `--format json` writes, as plain objects."""
        not_modeled = {"not_modeled": list(self.not_modeled)} if self.not_modeled else {}
        return not_modeled | {
            "window": {"start_ns": self.start_ns, "end_ns": self.end_ns},
            "measured_ns": self.measured_ns,
            "unchanged_ns": self.unchanged_ns,
            "error": self.error,
            "changed_ns": self.changed_ns,
            "saved_ns": self.saved_ns,
            "share": self.share,
            "steps": self.steps,
            "changes": [asdict(change) for change in self.changes],
            "ledger": {"before": self.before.document(), "after": self.after.document()},
            "meta": {"command": COMMAND, **self.meta},
            "notes": list(self.notes),
        }


def replayed(
    replay: Replay,
    changes: Sequence[tuple[str, Sequence[Change]]],
    *,
    before: Ledger,
    steps: int = 0,
    meta: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
    window: StepWindow | None = None,
) -> WhatIf:
    """Simulate named changes: each alone, and one after the other.

    The total does not depend on their order: each simulation applies them sorted by name.
    """
    schedule = replay.schedule
    applied = []
    outcome = replay.unchanged
    for count, (name, parts) in enumerate(changes, 1):
        ordered = sorted(changes[:count], key=lambda named: named[0])
        after = replay.run(*(part for _, of_change in ordered for part in of_change))
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
        window,
    )


WHATIF_FACTS = (
    Field("window", "Window", Fmt.TEXT, "Steps and step time of the window"),
    Field("measured_ns", "Measured", Fmt.TIME, "Length of the window as measured"),
    Field("step_before_ns", "Step time", Fmt.TIME, "Mean step time without the changes"),
    Field("step_after_ns", "Predicted", Fmt.TIME, "Predicted step time with all changes"),
    Field("changed_ns", "Predicted", Fmt.TIME, "Predicted length of the window with all changes"),
    Field("saved_ns", "Saved", Fmt.TIME, "Time that all changes save together, per step"),
    Field("share", "Saved %", Fmt.SHARE, "The same as a share of the time"),
    Field("speedup", "Speedup", Fmt.TEXT, "Time before divided by time after"),
    Field("error", "Simulation error", Fmt.TEXT, "Error of the simulation without changes"),
)
CHANGE_FIELDS = (
    Field("after_ns", "Incremental", Fmt.TIME, "Saved after the changes above, per step"),
    Field("alone_ns", "Alone", Fmt.TIME, "Saved by this change alone, per step"),
    Field("alone_share", "Alone %", Fmt.SHARE, "Saved by this change alone, as a share"),
    Field("change", "Change", Fmt.NAME, "The simulated change"),
)
LEDGER_FIELDS = (
    Field("device", "GPU", Fmt.ID, "Which GPU"),
    Field("before_ns", "Before", Fmt.TIME, "Time of the entry without the changes, per step"),
    Field("after_ns", "Predicted", Fmt.TIME, "Time of the entry with all changes, per step"),
    Field("delta_ns", "Change", Fmt.TIME, "The difference, per step"),
    Field("before_share", "% before", Fmt.SHARE, "Share of that time"),
    Field("after_share", "% predicted", Fmt.SHARE, "Share of the predicted time"),
    Field("entry", "Cause", Fmt.TEXT, "Ledger entry"),
)


def whatif_page(result: WhatIf) -> Composite:
    """Lay a what-if out for a screen: times per step, or of the window without steps."""
    per_step = " per step" if result.steps else ""
    changes = [
        {
            "alone_ns": change.alone_ns / result.per_step,
            "after_ns": change.after_ns / result.per_step,
            "alone_share": change.alone_ns / max(1, result.unchanged_ns),
            "change": change.change,
        }
        for change in result.changes
    ]
    ledger_fields = LEDGER_FIELDS if len(result.before.devices) > 1 else LEDGER_FIELDS[1:]
    changes_title = f"Time saved{per_step}"
    # `ledger` is of the whole window: say where this one is not.
    sample = f" ({result.sample_text})" if result.sample_text else ""
    ledger_title = f"Time breakdown{per_step}{sample}"
    return Composite(
        "whatif",
        result.title,
        _facts(result),
        (
            table_of("changes", changes_title, CHANGE_FIELDS, changes, pl.Float64()),
            table_of("ledger", ledger_title, ledger_fields, _entries(result), pl.Float64()),
        ),
        meta=dict(result.meta),
        notes=result.notes,
    )


def _facts(result: WhatIf) -> tuple[Fact, ...]:
    each = result.per_step
    factor = result.unchanged_ns / result.changed_ns if result.changed_ns else None
    speedup = None if factor is None else format_speedup(factor)
    values: dict[str, object] = {
        "window": result.window_text,
        "measured_ns": result.measured_ns,
        "changed_ns": result.changed_ns,
        "saved_ns": result.saved_ns,
        "share": result.share,
        "speedup": speedup,
        "error": f"{format_share(result.error)} (unchanged program)",
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


def _entries(result: WhatIf) -> list[dict[str, object]]:
    """Return the entries before and after, by GPU, the largest change first."""
    rows: list[dict[str, object]] = []
    steps = result.per_step
    after_by_device = {ledger.device: ledger for ledger in result.after.devices}
    for device in result.before.devices:
        after = after_by_device.get(device.device)
        names = dict.fromkeys(e.entry for d in (device, after) if d for e in d.entries)
        pairs = [(name, device.ns(name), after.ns(name) if after else 0) for name in names]
        for name, now, then in sorted(pairs, key=lambda p: (-abs(p[2] - p[1]), -p[1])):
            rows.append(
                {
                    "device": device.device,
                    "before_ns": now / steps,
                    "after_ns": then / steps,
                    "delta_ns": (then - now) / steps,
                    "before_share": now / max(1, result.measured_ns),
                    "after_share": then / max(1, result.changed_ns),
                    "entry": name,
                }
            )
    return rows
