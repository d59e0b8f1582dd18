"""Changes that make one kernel of several, or kernels faster by a factor.

Their durations follow from the program that they are applied to, not from what was measured, so
that they compose: attention that runs on tensor cores already is fused at that speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpusight.analyses.replay.changes import as_one, take
from gpusight.analyses.replay.program import Wait, marked, put

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analyses.replay.changes import Change
    from gpusight.analyses.replay.program import Program
    from gpusight.analyses.schedule.schedule import Ints

    Reals = NDArray[np.float64]

MOST_BEFORE_NS = 200_000
"""Host time before a launch that can be the way to it: operators of frameworks take tens of
microseconds, what takes longer is other work and stays."""


def scaled(ops: Ints, factor: Reals) -> Change:
    """Let each of these pieces of work take this part of its time."""

    def change(program: Program) -> Program:
        return take(ops, (program.duration_ns[ops] * factor).astype(np.int64))(program)

    return change


def one_of_parts(groups: Ints, part: Reals, host_ns: Reals, most_ns: Reals | None = None) -> Change:
    """Let each group become one kernel that takes `part` of the time of each of its members.

    These are by position of the work, `groups` as `as_one` wants it; no member adds more than its
    `most_ns`. `host_ns`, by group, is what the one launch costs the host beyond an ordinary
    launch, never more than the group saves it.
    """

    def change(program: Program) -> Program:
        there = np.flatnonzero((groups >= 0) & ~program.gone)
        time = program.duration_ns[there] * part[there]
        if most_ns is not None:
            time = np.minimum(time, most_ns[there])
        total = np.bincount(groups[there], weights=time, minlength=len(host_ns))
        merged = _merged(program, groups, total.astype(np.int64))
        return _with_host_time(program, merged, groups, host_ns)

    return change


def one_as_long_as_longest(groups: Ints, part: Reals) -> Change:
    """Let each group become one kernel that takes as long as the longest of its members.

    Of each member only this part of its time counts, by position of the work.
    """

    def change(program: Program) -> Program:
        there = np.flatnonzero((groups >= 0) & ~program.gone)
        longest = np.zeros(int(groups.max(initial=-1)) + 1, np.int64)
        time = (program.duration_ns[there] * part[there]).astype(np.int64)
        np.maximum.at(longest, groups[there], time)
        return _merged(program, groups, longest)

    return change


def _merged(program: Program, groups: Ints, duration_ns: Ints) -> Program:
    """Merge groups; of the host's time before a launch, long stretches are not the way to it."""
    way = np.minimum(program.movable_ns, MOST_BEFORE_NS)
    merged = as_one(groups, duration_ns)(program.changed(movable_ns=way))
    movable = np.where(merged.movable_ns == way, program.movable_ns, merged.movable_ns)
    return merged.changed(movable_ns=np.minimum(movable, np.maximum(merged.gap_ns, 0)))


def _with_host_time(before: Program, after: Program, groups: Ints, host_ns: Reals) -> Program:
    n = len(before.own_ns)
    ops = np.flatnonzero((groups >= 0) & ~before.gone & (before.call < n))
    call, first = np.unique(before.call[ops], return_index=True)
    group = groups[ops][first]
    saved = (before.own_ns + before.gap_ns - after.own_ns - after.gap_ns)[call]
    most = np.bincount(group, weights=saved, minlength=len(host_ns))
    kept = ops[~after.gone[ops]]
    spent = np.zeros(n)
    np.add.at(spent, before.call[kept], np.minimum(host_ns, most)[groups[kept]])
    return after.changed(own_ns=after.own_ns + spent.astype(np.int64))


def without_kernels(ops: Ints) -> Change:
    """Let kernels vanish that a library launched on its own, with their launch calls.

    The host's way to such a call is that of the operator, which is still there.
    """

    def change(program: Program) -> Program:
        left = program.changed(gone=marked(program.gone, ops))
        used = np.zeros(len(left.own_ns) + 1, np.bool_)
        used[left.call[~left.gone]] = True
        calls = np.unique(left.call[ops])
        calls = calls[calls < len(left.own_ns)]
        unused = calls[~used[calls] & (left.wait[calls] == Wait.NOTHING)]
        return left.changed(own_ns=put(left.own_ns, unused, 0))

    return change
