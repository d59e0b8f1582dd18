"""What a window would take with changes: alone, together, and where the time then goes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpusight.analyses.ledger.ledger import ledger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.analyses.ledger.ledger import Ledger
    from gpusight.analyses.replay.changes import Change
    from gpusight.analyses.replay.replay import Replay

COMMAND = "whatif"


@dataclass(frozen=True, slots=True)
class Applied:
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
    changes: tuple[Applied, ...]
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

    def with_warnings(self, warnings: Sequence[str]) -> WhatIf:
        """Say first what is wrong with the capture."""
        return replace(self, notes=tuple(dict.fromkeys((*warnings, *self.notes))))

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
        applied.append(Applied(name, replay.run(*parts).saved_ns, gained))
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
        ledger(schedule, replay.hosts_of(outcome), outcome.timing),
        meta or {},
        tuple(notes),
    )
