"""Chooses the step among the loops of a sequence: the longest that covers it, with its inner loop.

What is done after every tenth step (evaluation, logging, checkpoints) makes a longer period as
well; `_is_tail` distinguishes it. `_is_loop` distinguishes steps from layers of a single pass,
`_is_start_up` from compilation and autotuning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import compress, pairwise
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analysis.steps.step_periods import (
    Activities,
    Period,
    covering,
    exchanges,
    holding,
    periods_around,
    periods_of,
    with_earlier,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.trace.intervals import Ints

    Mask = NDArray[np.bool_]
    Floats = NDArray[np.float64]


_NEARLY_ALL = 0.8
"""Part of the work that a step must cover, of the loop that covers most; and part of the periods
that must have something for all to have it."""
_MAJORITY = 0.5
"""The same from the first period on, since anything may come before."""
_LONGER = 1.25
"""Times the length of a loop: up to here another is the same one, cut at other places."""
_SAME = 0.05
"""Part of the sequence: coverage that makes no difference."""
_MIN_REPETITIONS = 3
_MIN_RUNS = 6
"""Repetitions of a loop that may be several runs of it."""
_LONG = 20
"""Two repetitions are enough of what is this long."""
_MIN_VAGUE = 5
"""Repetitions needed of the same categories of kernels in other numbers."""
_MIN_INNER = 0.3
"""Part of a step that an inner loop must cover to be named."""
_MIN_OTHER = 0.3
"""Part of a training step's kernels that an update of another network has at least."""
_PAUSE = 3.0
"""Times the longest pause inside a period: a pause before each that marks its start."""
_SMALL = 0.1
"""Part of a period's kernels that something done every few periods adds at most."""
_WILD = 1.0
"""Variation of the number of inner periods from which on outer ones have nothing in common."""
_IRREGULAR = 0.5
"""The same from which on a few kernels before a run of inner periods are no start of an outer."""
_REGULAR = 0.2
"""The same up to which a last repetition that does less ends a run."""
_SWEEP = 0.5
"""Variation of the time of inner periods, from outer to outer, of a benchmark of several sizes."""
_MAX_LOOKED_AT = 9
"""Outer periods whose start is looked at, and inner ones that are compared."""
_PARTS = 10
"""Parts of a loop that are looked at for preparation: one may have hundreds of short periods."""
_MAX_EXCEPTIONS = 0.2
"""Part of them that may have it once the program has started: an evaluation, say."""
_MAX_LAYERS = 128
"""More repetitions than any network has layers."""
_MAX_ATTENDS = 2
"""Attention of a layer to its input and, in a decoder, to an encoder's output."""
_MAX_PAUSES = 4096
"""Layers whose pauses are compared."""
_CHANCE = 1e-3
"""Probability that pauses differ so much by chance at any place that is looked at."""
_MIN_ROUNDS = 8
"""Rounds of layers that do not agree by chance."""
_MUCH_LONGER = 2
"""Times the other pauses of a round."""


def find_period(
    codes: Ints, pauses: Ints | None = None, opens: Mask | None = None
) -> Period | None:
    """Find the periods of a sequence; None where it does not repeat itself.

    `opens` marks the codes that may begin one; where several could, the one with the longest pause
    before it does.
    """
    return choose_period([Activities.plain(codes, pauses, opens)])


def choose_period(
    codings: list[Activities], compared: Activities | None = None, *, min_kinds: int = 1
) -> Period | None:
    """Find the step among the periods of one sequence, under several codings, the strictest first.

    `compared` distinguishes kernels where a vague coding does not; of such a coding a period must
    hold kernels of `min_kinds`. A loop of the start-up gives way to one after it.
    """
    if len(codings[0]) < 2:
        return None
    compared = compared or codings[-1]
    step = _covering_most(codings, compared, min_kinds)
    if step is None or not _may_be_start_up(compared, step):
        return step
    rest = [coding.since(step.next_start) for coding in codings]
    later = choose_period(rest, compared.since(step.next_start), min_kinds=min_kinds)
    if later is None or not _is_start_up(compared, step, later.moved(step.next_start)):
        return step
    # Its first periods may have been taken for the end of the start-up.
    return with_earlier(compared, later.moved(step.next_start))


def _covering_most(
    codings: list[Activities], compared: Activities, min_kinds: int
) -> Period | None:
    periods = [
        p
        for coding in codings
        for p in periods_of(coding)
        # Long ones with a copy or a wait are not alike by chance, even of one kind less.
        if _kinds_in(coding, p) + (p.length >= _LONG and is_marked(compared, p)) >= min_kinds
    ]
    if min_kinds > 1:  # by chance a few parts have the same categories of kernels
        periods = [p for p in periods if p.same_counts or len(p.starts) >= _MIN_VAGUE]
    exchange = exchanges(compared) if min_kinds == 1 else None
    if exchange is not None and not any(_is_same_loop(p, exchange) for p in periods):
        periods.append(exchange)
    runs = [p for p in periods if p.same_counts and len(p.starts) >= _MIN_RUNS]
    if runs:
        periods += periods_around(compared, max(runs, key=lambda p: p.coverage))
    layers = [p for p in periods if p.coverage >= _NEARLY_ALL and _is_layer(compared, p)]
    loops = _apart(
        [
            p
            for p in periods
            if _is_loop(compared, p) and all(_adds_kinds(compared, p, layer) for layer in layers)
        ]
    )
    if not loops:
        return None
    enough = _NEARLY_ALL * max(p.coverage for p in loops)
    step = longest = next(p for p in loops if p.coverage >= enough)
    for inner in loops[loops.index(step) + 1 :]:
        if _is_tail(compared, step, inner, covers=inner.coverage >= enough):
            step = inner
    # Steps that the host pauses after every few of, for what it does then, are no layers.
    may_be_layers = step is longest
    if not step.same_counts or step.coverage < _NEARLY_ALL:
        step = _in_a_row(compared, periods, step)
    inside = [
        p
        for p in periods
        if p.same_counts
        and (p.length >= _MIN_REPETITIONS or p.coverage >= _NEARLY_ALL * step.coverage)
        and step.length >= _MIN_REPETITIONS * p.length
        and p.coverage >= _MIN_INNER * step.coverage
    ]
    step = replace(step, inner=max(inside, key=lambda p: p.coverage, default=None))
    return _joined_by_pauses(compared, step) if may_be_layers else step


def _is_same_loop(period: Period, other: Period) -> bool:
    """Return whether a plain loop has the repetitions of another one, give or take a cut one."""
    is_plain = period.same_counts and bool(period.whole.all())
    return is_plain and abs(len(period.starts) - len(other.starts)) <= 1


def _in_a_row(sequence: Activities, periods: list[Period], step: Period) -> Period:
    """Return loops that follow each other as one, where they explain more than one loop does.

    A program trains one model after the other, or runs one benchmark after the other.
    """
    loops = [
        p
        for p in periods
        if p.same_counts and len(p.starts) >= _MIN_RUNS and _is_iteration(sequence, p)
    ]
    # A test that comes after training is no training.
    training = [_share_with(sequence, "updates", p) >= _NEARLY_ALL for p in loops]
    if any(training):
        loops = list(compress(loops, training))
    row: list[Period] = []
    for loop in sorted(loops, key=lambda p: (-round(p.coverage, 1), -p.length)):
        if all(_follows(loop, p) or _follows(p, loop) for p in row):
            row.append(loop)
    least = step.coverage + _SAME if step.same_counts else _NEARLY_ALL * step.coverage
    if len(row) < 2 or sum(p.coverage for p in row) < least:
        return step
    row.sort(key=lambda p: int(p.starts[0]))
    starts, ends, whole = (
        np.concatenate([getattr(p, name) for p in row]) for name in ("starts", "ends", "whole")
    )
    ends = np.minimum(ends, np.append(starts[1:], ends[-1]))
    length = round(float((ends - starts).mean()))
    last = row[-1].next_start
    joined = Period(starts, ends, length, same_counts=False, coverage=0, coverage_after=0,
                    whole=whole, next_start=last)  # fmt: skip
    return covering(sequence, joined)


def _follows(later: Period, earlier: Period) -> bool:
    """Return whether a loop comes after another; where both are cut a little may be in both."""
    return bool(later.starts[0] >= earlier.ends[-1] - _SMALL * earlier.length)


def _is_iteration(sequence: Activities, period: Period) -> bool:
    """Return whether periods train, or copy a batch to the GPU and read a result."""
    if _share_with(sequence, "updates", period) >= _NEARLY_ALL:
        return _trains_in(sequence, period, period)
    kinds = ("feeds", "reads", "computes")
    return all(_share_with(sequence, kind, period) >= _NEARLY_ALL for kind in kinds)


def most_repeated(sequence: Activities) -> Period | None:
    """Return the loop that covers most of a sequence, whether or not it may be a step."""
    loops = [
        p
        for p in periods_of(sequence)
        if p.same_counts and min(len(p.starts), p.length) >= _MIN_REPETITIONS
    ]
    return max(loops, key=lambda p: p.coverage, default=None)


def _may_be_start_up(sequence: Activities, loop: Period) -> bool:
    """Return whether a loop prepares as it goes on, or more GPU time comes after it."""
    if len(sequence) - loop.next_start < _MIN_REPETITIONS:
        return False
    used = sequence.before("took")
    more = used[-1] - used[loop.next_start] > used[loop.next_start] - used[loop.starts[0]]
    return bool(more) or _parts_that_prepare(sequence, loop) >= _MAJORITY


def _is_start_up(sequence: Activities, loop: Period, later: Period) -> bool:
    """Return whether a loop compiles, autotunes or warms up for the one after it.

    It prepares as it goes on and the later one does not; or the later one has more repetitions and
    more GPU time, as graphs that are launched after a few passes without. Training that a test
    comes after is no start-up.
    """
    enough = _MIN_REPETITIONS if later.same_counts else _MIN_VAGUE
    if len(later.starts) < enough or (_trains(sequence, loop) and not _trains(sequence, later)):
        return False
    took = sequence.before("took")
    in_loop, in_later = (int((took[p.ends] - took[p.starts]).sum()) for p in (loop, later))
    if len(later.starts) > len(loop.starts) and in_later > in_loop:
        return True
    settled = _parts_that_prepare(sequence, later, first=1)
    return _parts_that_prepare(sequence, loop) >= _MAJORITY and settled <= _MAX_EXCEPTIONS


def _trains(sequence: Activities, loop: Period) -> bool:
    """Return whether periods have a backward pass, an optimizer or a graph, which may hide both."""
    kinds = ("updates", "backward", "graphs")
    return any(_share_with(sequence, kind, loop) >= _NEARLY_ALL for kind in kinds)


def _parts_that_prepare(sequence: Activities, loop: Period, first: int = 0) -> float:
    """Return the part of a loop, of a few equal ones, in which code is loaded or kernels are new.

    Of a training loop these are the first, of autotuning nearly all.
    """
    starts = loop.starts[first:]
    each = np.linspace(0, len(starts), min(len(starts), _PARTS) + 1).astype(np.int64)
    bounds = np.append(starts, loop.ends[-1])[each]
    prepared = sequence.before("prepares")[bounds]
    return float(np.mean(np.diff(prepared) > 0))


def _apart(periods: list[Period]) -> list[Period]:
    """Keep one of periods of about the same length, which are one loop cut at other places.

    The longest come first.
    """
    kept: list[Period] = []
    for period in sorted(periods, key=lambda p: -p.length):
        exact = kept and kept[-1].same_counts and period.same_counts
        if kept and kept[-1].length < (_LONGER if exact else 2) * period.length:
            gain = period.coverage - kept[-1].coverage
            rank = [(p.same_counts, p.whole.sum()) for p in (period, kept[-1])]
            better = gain > _SAME or (gain > -_SAME and rank[0] > rank[1])
            kept[-1] = period if better else kept[-1]
        else:
            kept.append(period)
    return kept


def _kinds_in(sequence: Activities, period: Period) -> int:
    """Count the kinds of kernels in a period."""
    middle = len(period.starts) // 2
    inside = slice(int(period.starts[middle]), int(period.ends[middle]))
    return len(np.unique(sequence.codes[inside][sequence.computes[inside]]))


def _is_loop(sequence: Activities, period: Period) -> bool:
    """Distinguish steps from a loop inside one: such as layers of a single pass.

    Steps wait, copy, update weights or come after a pause. Layers follow each other without, and
    after the last comes the network's output.
    """
    count = len(period.starts)
    if count < _MIN_REPETITIONS and not (period.same_counts and period.length >= _LONG):
        return False
    if _share_with(sequence, "computes", period) < _NEARLY_ALL or period.coverage_after < _MAJORITY:
        return False
    if count > _MAX_LAYERS or _share_with(sequence, "updates", period) >= _NEARLY_ALL:
        return True
    sure = period.same_counts and period.coverage >= _NEARLY_ALL
    if not sure and not is_marked(sequence, period):
        return False
    return not _output_follows(sequence, period)


def _is_layer(sequence: Activities, period: Period) -> bool:
    """Return whether periods are layers of a transformer: each attends once or twice.

    And neither copies a batch nor reads a result: a copy of a scalar waits for itself.
    """
    before = sequence.before("attends")
    attends = np.median(before[period.ends] - before[period.starts])
    copied = np.append(False, (sequence.marks & sequence.resets & ~sequence.computes)[:-1])
    reads = replace(sequence, reads=sequence.reads & ~copied)
    kinds = ("reads", "feeds", "backward", "graphs")
    ends = max(_share_with(reads, kind, period) for kind in kinds) >= _MAJORITY
    return bool(1 <= attends <= _MAX_ATTENDS and not ends and not _pauses(sequence, period))


def is_marked(sequence: Activities, period: Period) -> bool:
    """Return whether periods have what steps have and layers do not."""
    return _share_with(sequence, "marks", period) >= _NEARLY_ALL or _pauses(sequence, period)


def _share_with(sequence: Activities, kind: str, period: Period) -> float:
    """Return the part of the periods that hold an activity of a kind."""
    before = sequence.before(kind)
    return float(np.mean(before[period.ends] > before[period.starts]))


def _pauses(sequence: Activities, period: Period) -> bool:
    """Return whether the host pauses before each period as it does nowhere inside."""
    if period.length < 2:
        return False
    inside = sequence.pauses.copy()
    inside[period.starts] = 0
    bounds = np.stack((period.starts, period.ends), axis=1).ravel()
    longest = np.maximum.reduceat(np.append(inside, 0), bounds)[::2]
    return bool(np.median(sequence.pauses[period.starts]) >= _PAUSE * max(1, np.median(longest)))


def _joined_by_pauses(sequence: Activities, loop: Period) -> Period:
    """Join equal layers to passes where nothing but the host's pauses shows where one starts.

    Once in each round of so many layers, at the same place, the host pauses longer than at this
    place of the others.
    """
    kinds = ("marks", "backward")
    if loop.inner is not None or not loop.same_counts or len(loop.starts) < 2 * _MIN_REPETITIONS:
        return loop
    if max(_share_with(sequence, kind, loop) for kind in kinds) > _MAX_EXCEPTIONS:
        return loop
    starts = loop.starts[loop.starts <= len(sequence) - loop.length][:_MAX_PAUSES]
    pauses = sequence.pauses[starts[:, None] + np.arange(loop.length)]
    # A pass starts where the host usually pauses: at one of a few places of a layer.
    places = np.argsort(-np.median(pauses, axis=0), kind="stable")[:_MAX_LOOKED_AT]
    largest = min(_MAX_LAYERS, len(starts) // _MIN_REPETITIONS)
    ranks = np.argsort(np.argsort(pauses[:, places], axis=0, kind="stable"), axis=0)
    rounds = [_longest_at(ranks / len(starts), each) for each in range(2, largest + 1)]
    deviations, place, first, each = max(rounds, default=(0.0, 0, 0, 0))
    tried = len(places) * largest * (largest + 1) / 2
    if tried * math.erfc(deviations / math.sqrt(2)) / 2 <= _CHANCE:
        place = int(places[place])
        own, others = pauses[first::each, place], np.delete(pauses[:, place], np.s_[first::each])
        if np.median(own) >= _LONGER * np.median(others):
            return _joined(sequence, loop, place, first, each)
    agreed = [(*_agreeing(pauses[:, 0], each), each) for each in range(2, largest + 1)]
    share, first, each = max(agreed, default=(0.0, 0, 0))
    return _joined(sequence, loop, 0, first, each) if share >= _NEARLY_ALL else loop


def _agreeing(pauses: Ints, each: int) -> tuple[float, int]:
    """Return in what part of the rounds the pause of the same layer is longest, and which."""
    rounds = pauses[: len(pauses) // each * each].reshape(-1, each)[1:]  # the first warms up
    first = int(np.bincount(rounds.argmax(axis=1)).argmax())
    others = np.delete(rounds, first, axis=1).max(axis=1)
    # Few rounds may agree by chance, but not by a pause that is much longer.
    factor = 1 if len(rounds) >= _MIN_ROUNDS else _MUCH_LONGER
    return float(np.mean(rounds[:, first] > factor * others)), first


def _longest_at(ranks: Floats, each: int) -> tuple[float, int, int, int]:
    """Return by how many standard deviations pauses are longest at one layer of each round.

    With the place in the layer, the layer in the round and the layers of a round. `ranks` are
    from 0 to 1, one row per layer: of ordinary pauses their mean is 1/2, their variance 1/12.
    """
    count = len(ranks) // each
    means = ranks[: count * each].reshape(count, each, -1).mean(axis=0)
    first, place = np.unravel_index(int(means.argmax()), means.shape)
    deviation = np.sqrt((1 - 1 / each) / 12 / count)
    return float((means[first, place] - 0.5) / deviation), int(place), int(first), each


def _joined(sequence: Activities, loop: Period, place: int, first: int, each: int) -> Period:
    """Make one period of so many, from a place in the first on; parts of one are left out."""
    bounds = loop.starts + place
    earlier = int(bounds[0]) - loop.length
    if place and earlier >= 0:
        bounds, first = np.append(earlier, bounds), first + 1
    bounds = np.append(bounds, bounds[-1] + loop.length)
    bounds = bounds[bounds <= len(sequence)][first % each :: each]
    # Where the host waits, the next pass starts after it.
    opens = np.append(np.flatnonzero(sequence.opens), len(sequence))
    bounds = np.unique(opens[np.searchsorted(opens, bounds)])
    starts = bounds[:-1]
    if len(starts) < 2:
        return loop
    return replace(
        loop,
        starts=starts,
        ends=bounds[1:],
        length=each * loop.length,
        whole=np.ones(len(starts), np.bool_),
        next_start=int(bounds[-1]),
        inner=loop,
    )


def _output_follows(sequence: Activities, period: Period) -> bool:
    """Return whether a little follows the last period, with a GEMM that no period has."""
    after = slice(int(period.starts[-1]), len(sequence))
    inside = np.unique(sequence.codes[period.starts[0] : period.starts[-1]])
    own = sequence.codes[after][sequence.heavy[after]]
    short = int(sequence.computes[after].sum()) <= 2 * max(period.length, _LONG)
    if not short or np.isin(own, inside).all():
        return False
    if len(period.starts) < _MIN_REPETITIONS:
        return True
    # Where each period has GEMMs of its own, as for other sizes, so has the last.
    first = np.zeros(len(sequence), np.int64)
    first[np.unique(sequence.codes, return_index=True)[1]] = 1
    new = np.append(0, np.cumsum(first & sequence.heavy))
    middle = slice(1, -1)
    return float(np.mean(new[period.ends[middle]] > new[period.starts[middle]])) < _MAJORITY


def _is_tail(sequence: Activities, outer: Period, inner: Period, *, covers: bool) -> bool:
    """Return whether the inner period is the step, and the outer one what is done every few steps.

    `covers` is whether inner periods hold nearly all work.
    """
    kernels, own_kernels = _outside(sequence, outer, inner)
    updated = _trains_in(sequence, outer, inner)
    backward, fed = (
        _share_with(sequence, kind, inner) >= _NEARLY_ALL for kind in ("backward", "feeds")
    )
    if outer.same_counts and not inner.same_counts:
        return covers and (updated or fed) and _is_chance(sequence, outer, inner, fed=fed)
    if updated and kernels > _MIN_OTHER * own_kernels and _trains_another(sequence, outer, inner):
        return False
    if updated or (fed and backward):
        # A loop of training over batches may also be a part of a step that gathers these first.
        in_inner, in_outer = (_time_in(sequence, period) for period in (inner, outer))
        most_of_it = in_inner >= _MAJORITY * in_outer or kernels <= _SMALL * own_kernels
        gathered = _outside(sequence, outer, inner, "heavy")[0] and not _begins(
            sequence, inner, kernels
        )
        if most_of_it or not gathered:
            return updated or _share_with(sequence, "updates", outer) < _NEARLY_ALL
    if not covers or _share_with(sequence, "updates", outer) >= _NEARLY_ALL:
        return False
    if fed:
        return not _is_batch(sequence, outer, inner)
    if not inner.same_counts:
        return not kernels and not _adds_kinds(sequence, outer, inner)
    if len(outer.starts) < _MIN_REPETITIONS:
        # Two halves of a program may be the same but for an event that was lost.
        return is_marked(sequence, inner) or kernels <= _SMALL * own_kernels
    if not is_marked(sequence, inner):
        return not kernels and _ends_inside(sequence, outer, inner)
    is_small = kernels <= _SMALL * own_kernels
    outside = kernels / max(1, own_kernels)
    return is_small if backward else not _is_request(sequence, outer, inner, outside)


def _adds_kinds(sequence: Activities, outer: Period, inner: Period) -> bool:
    """Return whether outer periods hold kinds of activities that few inner ones do.

    Otherwise they are so many inner ones, cut where these happen to differ.
    """
    in_outer, in_inner = (holding(sequence, p.starts, p.ends) for p in (outer, inner))
    return bool(((in_outer >= _NEARLY_ALL) & (in_inner < _MAJORITY)).any())


def _is_chance(sequence: Activities, outer: Period, inner: Period, *, fed: bool) -> bool:
    """Return whether parts of a program hold the same by chance: so many steps that differ.

    Two halves do, and so do parts with several batches each (`fed`), but not in the same order.
    """
    kernels, own_kernels = _outside(sequence, outer, inner)
    alone = kernels <= _MAJORITY * own_kernels and not _in_same_order(sequence, outer)
    return len(outer.starts) < _MIN_REPETITIONS or (fed and alone)


def _is_batch(sequence: Activities, outer: Period, inner: Period) -> bool:
    """Return whether inner periods that copy input are parts of a batch, an image or a time step.

    Parts in turn, on several streams: the host pauses after all of them only. An image is copied
    and looked at before its parts are.
    """
    kernels, own_kernels = _outside(sequence, outer, inner)
    own_input = kernels >= own_kernels and _outside(sequence, outer, inner, "feeds")[0] > 0
    in_turn = not _pauses(sequence, inner) and _pauses(sequence, outer)
    return own_input or in_turn or _leads(sequence, outer, inner)


def _in_same_order(sequence: Activities, period: Period) -> bool:
    """Return whether most periods hold what the one before does, in the same order."""
    codes = sequence.codes
    same = []
    for a, b in list(pairwise(period.starts.tolist()))[:_MAX_LOOKED_AT]:
        length = min(b - a, len(codes) - b)
        same.append(float(np.mean(codes[a : a + length] == codes[b : b + length])))
    return float(np.median(same)) >= 1 - _SAME


def _begins(sequence: Activities, inner: Period, kernels: int) -> bool:
    """Return whether the program begins with the inner loop, so many other kernels come after it.

    An evaluation comes after training; what is gathered for it comes before. A capture that begins
    in the middle of training may have less of the first run of the loop than of the others.
    """
    before = sequence.before("computes")
    starts = inner.starts
    last = np.flatnonzero(np.diff(starts) > _LONGER * inner.length)
    runs = np.diff(np.append(-1, last))
    whole = len(runs) > 1 and runs[0] >= np.median(runs)
    after = before[-1] - before[inner.ends[-1]]
    return bool(before[starts[0]] < _MAJORITY * kernels and (whole or after >= _MAJORITY * kernels))


def _leads(sequence: Activities, outer: Period, inner: Period) -> bool:
    """Return whether the loop comes after other kernels from first to last, as stages do.

    What is done every few steps comes after some of them, and a program ends after any number.
    """
    codes = sequence.codes
    own = np.unique(codes[inner.starts[0] : inner.ends[0]])
    between = slice(int(outer.starts[0]), int(inner.starts[-1]))
    others = np.setdiff1d(codes[between][sequence.computes[between]], own)
    runs = np.searchsorted(inner.starts, np.flatnonzero(np.isin(codes, others)))
    per_outer = np.diff(np.append(np.unique(runs), len(inner.starts)))
    return len(runs) > 0 and runs[0] == 0 and len(np.unique(per_outer)) == 1


def _ends_inside(sequence: Activities, outer: Period, inner: Period) -> bool:
    """Return whether the program ends in the middle of an outer period, which no pass does.

    A simulation writes results every so many time steps, and ends after any number of them.
    """
    per_outer = np.diff(np.searchsorted(inner.starts, np.append(outer.starts, len(sequence))))
    regular = len(per_outer) >= _MIN_REPETITIONS and len(np.unique(per_outer[:-1])) == 1
    marks = sequence.before("marks")
    ends = marks[-1] == marks[inner.starts[-1]]
    return bool(regular and per_outer[-1] < per_outer[0] and ends)


def _trains_in(sequence: Activities, outer: Period, inner: Period) -> bool:
    """Return whether inner periods update weights, and are no loop over them after a pass."""
    if _share_with(sequence, "updates", inner) < _NEARLY_ALL:
        return False
    passes = [
        max(_share_with(sequence, kind, period) for kind in ("heavy", "backward"))
        for period in (inner, outer)
    ]
    return passes[0] >= _MAJORITY or passes[1] < _NEARLY_ALL


def _trains_another(sequence: Activities, outer: Period, inner: Period) -> bool:
    """Return whether a pass and an update of another network come after every few inner periods."""
    between = np.zeros(len(sequence) + 1, np.int8)
    between[inner.ends] += 1
    between[np.append(inner.starts[1:], outer.next_start)] -= 1
    tails = np.cumsum(between[:-1]) > 0
    parts = [
        _share_with(replace(sequence, **{kind: getattr(sequence, kind) & tails}), kind, outer)
        for kind in ("updates", "backward", "heavy")
    ]
    return min(parts) >= _NEARLY_ALL


def _is_request(sequence: Activities, outer: Period, inner: Period, outside: float) -> bool:
    """Return whether outer periods are requests or time steps, with a loop inside each.

    `outside` is what they have outside the loop, in repetitions of it. Neither trains: what is
    done every few steps of a simulation or of inference looks alike, and is no request.
    """
    per_outer = np.searchsorted(inner.starts, np.append(outer.starts, outer.ends[-1]))
    variation = _variation(np.diff(per_outer))
    if variation > _WILD or _variation(_time_per_inner(sequence, per_outer, inner)) > _SWEEP:
        return False
    own = int(np.median(np.diff(sequence.before("computes")[inner.starts])))
    boundaries = _boundaries(sequence, outer, inner)
    # A last repetition on a condition is no last one where it comes after any number of others.
    if boundaries.is_reset or (boundaries.does_less and variation <= _REGULAR):
        return True
    # What is rebuilt when it is needed comes after any number of steps.
    prepares = boundaries.prepared > _SMALL * own and variation <= _IRREGULAR
    return prepares or outside > _MAJORITY


@dataclass(frozen=True)
class _Boundaries:
    """What is done where one run of an inner loop ends and the next starts."""

    prepared: float
    """Kernels after the last result was read."""
    is_reset: bool
    """Whether data are reset there."""
    does_less: bool
    """Whether one repetition of each run lacks kernels: the first or last, on a condition."""


def _variation(values: Ints | Floats) -> float:
    """Return the standard deviation as a part of the mean."""
    return float(np.std(values) / max(1e-9, float(np.mean(values)))) if len(values) else 0.0


def _time_per_inner(sequence: Activities, per_outer: Ints, inner: Period) -> Floats:
    """Return the GPU time of a typical inner period, for each outer one that has any.

    It changes by factors where a benchmark runs one size after the other.
    """
    used = sequence.before("took")
    took = used[inner.ends] - used[inner.starts]
    parts = [took[a:b] for a, b in pairwise(per_outer.tolist()) if b > a]
    return np.array([np.median(part) for part in parts])


def _boundaries(sequence: Activities, outer: Period, inner: Period) -> _Boundaries:
    """Look at the repetitions of an inner loop that differ from the others, in each outer period.

    A request prepares for the next run of the loop, or one of its repetitions does less. What is
    logged or saved every few steps adds to a step, and ends with a result that is read.
    """
    starts, ends = inner.starts, np.append(inner.starts[1:], inner.next_start)
    sizes = ends - starts
    usual = np.flatnonzero(inner.whole & (sizes == int(np.median(sizes[inner.whole]))))
    if not len(usual):
        return _Boundaries(0.0, is_reset=False, does_less=False)
    # The most frequent of several in a row: any one may be the first or last of a run.
    several = usual[max(0, (len(usual) - _MAX_LOOKED_AT) // 2) :][:_MAX_LOOKED_AT]
    parts = np.stack([sequence.codes[starts[i] : ends[i]] for i in several])
    alike = [int((parts == part).all(axis=1).sum()) for part in parts]
    sample = parts[int(np.argmax(alike))]
    own_kernels = int(sequence.kernel_codes[sample].sum())
    at = np.searchsorted(starts, outer.starts, side="right") - 1
    kernels, resets, less = [], [], []
    for k in range(1, len(at), max(1, len(at) // _MAX_LOOKED_AT)):
        run = np.arange(at[k - 1] + 1, at[k] + 1)
        own = starts[run, None] + np.arange(len(sample))
        same = sizes[run] == len(sample)
        same[same] = (sequence.codes[own[same]] == sample).all(axis=1)
        unlike = run[~same].tolist()
        # Outer periods may begin anywhere: one ends where repetitions differ, if only there.
        is_end = bool(unlike) and unlike[-1] - unlike[0] <= 1
        first, last = (unlike[0], unlike[-1]) if is_end else (max(0, int(at[k]) - 1), int(at[k]))
        begin, end = int(starts[first]), int(ends[last])
        places = np.arange(begin, end)[_inserted(sequence.codes[begin:end], sample)]
        reads = np.flatnonzero(sequence.reads[places])
        places = places[int(reads[-1]) + 1 :] if len(reads) else places
        # A kernel in the place of another one, for a batch of another size, prepares nothing.
        more = int(sequence.computes[begin:end].sum()) - (last - first + 1) * own_kernels
        kernels.append(max(0, min(int(sequence.computes[places].sum()), more)))
        resets.append(bool(sequence.resets[places].any()))
        less.append(
            is_end
            and len(run) >= _MIN_REPETITIONS
            and _lacks(sequence, slice(begin, end), np.tile(sample, last - first + 1))
        )
    return _Boundaries(
        float(np.median(kernels)),
        is_reset=float(np.mean(resets)) >= _NEARLY_ALL,
        does_less=float(np.mean(less)) >= _NEARLY_ALL,
    )


def _lacks(sequence: Activities, part: slice, usual: Ints) -> bool:
    """Return whether a part of the sequence lacks kernels that the usual codes have.

    With GEMMs of its own instead it may be a repetition of another size.
    """
    kinds, codes = len(sequence.kernel_codes), sequence.codes[part]
    missing = np.bincount(usual, minlength=kinds) - np.bincount(codes, minlength=kinds)
    other = np.isin(codes[sequence.heavy[part]], usual, invert=True)
    return bool((missing[sequence.kernel_codes] > 0).any() and not other.any())


def _inserted(codes: Ints, sample: Ints) -> slice:
    """Return the part that repetitions of a sample, in front and behind, do not explain."""
    repeated = np.resize(sample, len(codes))
    before = len(codes) if (same := codes == repeated).all() else int(np.argmin(same))
    same = codes[::-1] == np.resize(sample[::-1], len(codes))
    behind = len(codes) if same.all() else int(np.argmin(same))
    # Its end may look like the end of a repetition: a result is read after both.
    more = len(codes) - round(len(codes) / len(sample)) * len(sample)
    return slice(before, max(before, len(codes) - behind, before + more))


def _time_in(sequence: Activities, period: Period) -> int:
    """Return the host time from the first to the last activity of all periods."""
    return int((sequence.times[period.ends - 1] - sequence.times[period.starts]).sum())


def _outside(
    sequence: Activities, outer: Period, inner: Period, kind: str = "computes"
) -> tuple[int, int]:
    """Count the kernels of a typical outer period outside inner ones, and those of an inner one."""
    before = sequence.before(kind)
    starts = inner.starts
    own = int(np.median(before[inner.ends] - before[starts]))
    each = own if inner.same_counts else before[inner.ends] - before[starts]
    inside = np.zeros(len(starts) + 1, np.int64)
    inside[1:] = np.cumsum(np.where(inner.whole, each, 0))
    bounds = np.append(outer.starts, outer.next_start)
    all_of_it = np.diff(before[bounds])
    outside = all_of_it - np.diff(inside[np.searchsorted(starts, bounds)])
    return max(0, int(np.median(outside))), own
