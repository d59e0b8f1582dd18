"""What became of the findings of `diagnose`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpusight.comparison.outcome import Fate, FindingChange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.comparison.digest import Digest, Found


def findings(before: Sequence[Digest], after: Sequence[Digest]) -> tuple[FindingChange, ...]:
    """Tell which findings are new, fixed or stayed, those worth most first.

    New is what every capture shows after and none before, fixed the reverse: rules have
    thresholds, and what some captures of a side show and others do not tells nothing of a change.
    None at all where no capture of a side could be diagnosed.
    """
    sides = [[one for one in side if "findings" not in one.missing] for side in (before, after)]
    if not all(sides):
        return ()
    rules = dict.fromkeys(found.rule for side in sides for one in side for found in one.findings)
    every = [_changed(rule, *(_shown(rule, side) for side in sides)) for rule in rules]
    order = [Fate.NEW, Fate.STAYED, Fate.FIXED]
    return tuple(sorted(every, key=lambda one: (order.index(one.fate), -_worth(one))))


class _Shown(NamedTuple):
    """A finding on one side, and the captures that show it."""

    found: list[tuple[Found, Digest]]
    captures: int

    @property
    def everywhere(self) -> bool:
        return len(self.found) == self.captures

    @property
    def step_ns(self) -> float | None:
        known = [one.step_ns for one, _ in self.found if one.step_ns is not None]
        return sum(known) / len(known) if known else None


def _shown(rule: str, side: Sequence[Digest]) -> _Shown:
    """Find a rule in captures; of several findings of one, the foremost counts."""
    first = [(next((f for f in one.findings if f.rule == rule), None), one) for one in side]
    return _Shown([(found, one) for found, one in first if found is not None], len(side))


def _changed(rule: str, before: _Shown, after: _Shown) -> FindingChange:
    said, capture = (after.found or before.found)[0]
    return FindingChange(
        rule,
        said.title,
        _fate(before, after),
        before.step_ns,
        after.step_ns,
        len(before.found),
        len(after.found),
        capture.label,
        (before.captures, after.captures),
    )


def _fate(before: _Shown, after: _Shown) -> Fate:
    if after.everywhere and not before.found:
        return Fate.NEW
    return Fate.FIXED if before.everywhere and not after.found else Fate.STAYED


def _worth(one: FindingChange) -> float:
    return max(one.before_ns or 0.0, one.after_ns or 0.0)
