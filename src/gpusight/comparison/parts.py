"""The parts of a comparison: every row that either side has, with its change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from gpusight.analyses.steps.phase_names import PHASES
from gpusight.comparison.limit import busy_share, limit
from gpusight.comparison.match import match_kernels
from gpusight.comparison.outcome import CallChange, CopyChange, Entry, KernelChange, Side
from gpusight.comparison.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from gpusight.comparison.change import Change
    from gpusight.comparison.digest import Calls, Digest, Series
    from gpusight.comparison.outcome import Metric
    from gpusight.comparison.quantities import Quantity

    Floats: TypeAlias = NDArray[np.float64]
    Pairs: TypeAlias = Sequence[tuple[Quantity, Quantity]]
    Test: TypeAlias = Callable[[Pairs], list[Change]]

_Key = TypeVar("_Key")
_Row = TypeVar("_Row")
_LEAST_BETWEEN = 0.01
"""Part of the time from step to step from which on that between them is listed."""
REST = "(all other kernels)"
"""What the row is called that sums up those that digests leave out."""


def side(digests: Sequence[Digest]) -> Side:
    """Sum up one side."""
    spent = mean_ledger(digests)
    return Side(
        labels=tuple(one.label for one in digests),
        tools=tuple(dict.fromkeys(one.tool for one in digests)),
        gpus=digests[0].gpus,
        steps=tuple(one.steps for one in digests),
        step_ns=tuple(_mean(one, one.step_ns) for one in digests),
        limit=limit(spent),
        busy_share=busy_share(spent),
        period_ns=tuple(_mean(one, one.step_ns) + _mean(one, one.between_ns) for one in digests),
    )


def mean_ledger(digests: Sequence[Digest]) -> dict[str, float]:
    """Give the ledger from one step to the next, mean over captures."""
    spent: dict[str, float] = {}
    for digest in digests:
        for entry, ns in digest.entries():
            spent[entry] = spent.get(entry, 0.0) + _mean(digest, ns) / len(digests)
    return spent


def _mean(digest: Digest, series: Series) -> float:
    return float(np.average(series, weights=digest.blocks))


def ledger(
    before: Sequence[Digest], after: Sequence[Digest], test: Test, step_ns: float | None
) -> tuple[Entry, ...]:
    """Give every entry of either side, those that changed most first."""
    return _entries(Rows.of(before, after, lambda one: one.ledger), test, step_ns)


def between(
    before: Sequence[Digest], after: Sequence[Digest], test: Test, period: Metric, pause: Metric
) -> tuple[Entry, ...]:
    """Give the entries of the time between steps; none where that is next to nothing."""
    sides = [(pause.change.before, period.change.before), (pause.change.after, period.change.after)]
    if all((apart or 0.0) < _LEAST_BETWEEN * (whole or 0.0) for apart, whole in sides):
        return ()
    rows: Rows[str, Series] = Rows.of(before, after, lambda one: one.between)
    return _entries(rows, test, pause.change.delta)


def _entries(rows: Rows[str, Series], test: Test, whole_ns: float | None) -> tuple[Entry, ...]:
    tested = zip(rows.keys, test(rows.pairs(lambda ns: ns, rows.keys)), strict=True)
    made = (Entry(name, change, _part(change, whole_ns)) for name, change in tested)
    return _by_change(made, lambda entry: entry.change)


def _part(change: Change, whole_ns: float | None) -> float | None:
    return change.delta / whole_ns if change.delta is not None and whole_ns else None


def _by_change(rows: Iterable[_Row], change: Callable[[_Row], Change]) -> tuple[_Row, ...]:
    return tuple(sorted(rows, key=lambda row: -abs(change(row).delta or 0.0)))


def phases(
    before: Sequence[Digest], after: Sequence[Digest], test: Test
) -> tuple[tuple[str, Change], ...]:
    """Give the phases in their order; none where a capture does not tell them."""
    if not all(one.phases for one in (*before, *after)):
        return ()
    rows: Rows[str, Series] = Rows.of(before, after, lambda one: one.phases)
    names = sorted(rows.keys, key=lambda name: (PHASES.index(name) if name in PHASES else 99, name))
    return tuple(zip(names, test(rows.pairs(lambda ns: ns, names)), strict=True))


class _Launches(NamedTuple):
    ns: Floats
    calls: Floats


def kernels(
    before: Sequence[Digest], after: Sequence[Digest], test: Test
) -> tuple[KernelChange, ...]:
    """Give the kernels that belong together, those that changed most first."""
    matched = match_kernels(before, after)
    rows = Rows(
        [(one, _launches(one, [m.before[at] for m in matched])) for at, one in enumerate(before)],
        [(one, _launches(one, [m.after[at] for m in matched])) for at, one in enumerate(after)],
    )
    tested = test(rows.pairs(lambda row: row.ns.tolist(), range(len(matched))))
    made = []
    for at, (one, change) in enumerate(zip(matched, tested, strict=True)):
        calls = rows.means(lambda row: row.calls.tolist(), at)
        names = one.before_names, one.after_names, one.short or REST
        made.append(KernelChange(*names, one.category, one.ranges, one.match, change, *calls))
    return _by_change(made, lambda row: row.ns)


def _launches(digest: Digest, parts: Sequence[Mapping[int, float]]) -> dict[int, _Launches]:
    """Give the launches of a capture by the position of the match that they belong to."""
    return {at: _weighed(digest, part) for at, part in enumerate(parts) if part}


def _weighed(digest: Digest, parts: Mapping[int, float]) -> _Launches:
    """Sum rows of a capture, each by the part of its launches that belongs here."""
    of = [(digest.kernels[at], part) for at, part in parts.items()]
    ns = sum((np.array(row.ns, float) * part for row, part in of), np.zeros(len(digest.blocks)))
    calls = (np.array(row.calls, float) * part for row, part in of)
    return _Launches(ns, sum(calls, np.zeros(len(digest.blocks))))


def calls(
    before: Sequence[Digest], after: Sequence[Digest], part: str, test: Test, test_of_outer: Test
) -> tuple[CallChange, ...]:
    """Give the `ranges` or the `api` calls by name, of captures that have any; else none.

    The outermost ranges are few, and are tested as the step is.
    """
    before, after = ([one for one in side if getattr(one, part)] for side in (before, after))
    if not before or not after:
        return ()
    rows: Rows[str, Calls] = Rows.of(before, after, lambda o: {r.name: r for r in getattr(o, part)})
    known = [name for name in rows.keys if all(row.gpu_ns is not None for row in rows.named(name))]
    work = dict(zip(known, test(rows.pairs(lambda row: row.gpu_ns or (), known)), strict=True))
    number = _numbers(rows, test, rows.keys if part == "api" else ())
    outer = {name: all(row.outer for row in rows.named(name)) for name in rows.keys}
    made = []
    for is_outer, tested in ((True, test_of_outer), (False, test)):
        names = [name for name in rows.keys if outer[name] is is_outer]
        host = zip(names, tested(rows.pairs(lambda row: row.host_ns, names)), strict=True)
        for name, change in host:
            many = rows.means(lambda row: row.calls, name)
            numbers = work.get(name), *many
            made.append(CallChange(name, change, *numbers, outer=is_outer, calls=number.get(name)))
    return _by_change(made, lambda row: row.host_ns)


def _numbers(rows: Rows[_Key, Any], test: Test, keys: Sequence[_Key]) -> dict[_Key, Change]:
    """Say by how much the number of calls changed."""
    return dict(zip(keys, test(rows.pairs(lambda row: row.calls, keys)), strict=True))


def copies(before: Sequence[Digest], after: Sequence[Digest], test: Test) -> tuple[CopyChange, ...]:
    """Give copies and fills by direction and kinds of memory."""
    rows = Rows.of(
        before, after, lambda o: {(c.operation, c.src_kind, c.dst_kind): c for c in o.copies}
    )
    tested = zip(rows.keys, test(rows.pairs(lambda copy: copy.ns, rows.keys)), strict=True)
    made = []
    number = _numbers(rows, test, rows.keys)
    for kind, change in tested:
        moved = rows.means(lambda copy: copy.bytes, kind)
        many = rows.means(lambda copy: copy.calls, kind)
        made.append(CopyChange(*kind, change, *moved, *many, calls=number[kind]))
    return _by_change(made, lambda row: row.ns)
