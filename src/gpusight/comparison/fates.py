"""What became of the findings of `diagnose`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpusight.comparison.outcome import Fate, FindingChange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.comparison.digest import Digest, Found


def findings(before: Sequence[Digest], after: Sequence[Digest]) -> tuple[FindingChange, ...]:
    """Tell which findings are new, fixed or stayed, those worth most first.

    A side has a finding that at least half of its captures show; one that neither side has is left
    out. None at all where no capture of a side could be diagnosed.
    """
    sides = [[one for one in side if "findings" not in one.missing] for side in (before, after)]
    if not all(sides):
        return ()
    rules = dict.fromkeys(found.rule for side in sides for one in side for found in one.findings)
    every = [_changed(rule, *(_shown(rule, side) for side in sides)) for rule in rules]
    known = [one for one in every if one is not None]
    order = [Fate.NEW, Fate.STAYED, Fate.FIXED]
    return tuple(sorted(known, key=lambda one: (order.index(one.fate), -_worth(one))))


class _Shown(NamedTuple):
    """A finding on one side."""

    found: list[Found]
    captures: int

    @property
    def is_there(self) -> bool:
        return len(self.found) * 2 >= self.captures and bool(self.found)

    @property
    def step_ns(self) -> float | None:
        known = [one.step_ns for one in self.found if one.step_ns is not None]
        return sum(known) / len(known) if known else None


def _shown(rule: str, side: Sequence[Digest]) -> _Shown:
    """Find a rule in captures; of several findings of one, the foremost counts."""
    first = [next((f for f in one.findings if f.rule == rule), None) for one in side]
    return _Shown([one for one in first if one is not None], len(side))


def _changed(rule: str, before: _Shown, after: _Shown) -> FindingChange | None:
    fates = {(True, True): Fate.STAYED, (True, False): Fate.FIXED, (False, True): Fate.NEW}
    fate = fates.get((before.is_there, after.is_there))
    if fate is None:
        return None
    title = (before if fate is Fate.FIXED else after).found[0].title
    worth = before.step_ns, after.step_ns
    return FindingChange(rule, title, fate, *worth, len(before.found), len(after.found))


def _worth(one: FindingChange) -> float:
    return max(one.before_ns or 0.0, one.after_ns or 0.0)
