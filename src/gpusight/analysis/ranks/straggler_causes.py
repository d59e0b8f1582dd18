"""Which ranks hold up a job, how often, why, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, lgamma, log, log1p
from typing import TYPE_CHECKING, Any

import numpy as np

from gpusight.analysis.ranks.rank_digest import WAITING
from gpusight.results import Evidence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpusight.analysis.ranks.rank_digest import RankDigest, StepDigest
    from gpusight.analysis.ranks.rank_replay import CollectiveWaits, OwnTimes
    from gpusight.trace.intervals import Ints


MIN_LATE_SHARE = 0.02
"""Part of the step that a rank must be later than the others to be a straggler."""
MIN_DEVIATIONS = 3.0
"""Standard errors by which its lateness must exceed that of the other ranks."""
MIN_COST_SHARE = 0.01
"""Part of the job's step time that it must cost."""
MIN_UPSTREAM_SHARE = 0.5
"""Part of the waits that a rank causes which its own waits for another rank must explain."""
MAX_CHANCE = 1e-3
"""How likely as many late steps may be at the rate of the other ranks; divided by the ranks."""
MIN_LAUNCH_RATIO = 1.5
"""Times as many launches of a kernel as on other ranks are more work, whatever each takes."""
_MIN_LATE_RATE = 0.02
_MIN_PATTERN_STEPS = 3
_CONSTANT_SHARE = 0.8
_MIN_DRIFT_STEPS = 6
_MIN_REPEATS = 3
"""Late steps that make a pattern; of more, one that does not fit is an exception."""
_DRIFT_CORRELATION = 0.8
_DRIFT_RATIO = 2.0

HOST, INPUT, MORE_WORK, SLOW_KERNELS, UPSTREAM, NETWORK = (
    "host",
    "input",
    "more-work",
    "slow-kernels",
    "upstream",
    "network",
)

ADVICE = {
    HOST: (
        "Its GPU is idle while its host does what the other hosts do less of.",
        "Do what only this rank does (logging, checkpoints) less often or in a thread of its own.",
    ),
    INPUT: (
        "Its GPU is idle while its host reads, waits for or prepares data.",
        "Give it the loader workers and the disk that others have; divide samples by size.",
    ),
    MORE_WORK: (
        "Its GPU runs more kernels than the others, or the same ones with more thread blocks.",
        "Divide the work evenly: samples of equal length, packed sequences, balanced experts.",
    ),
    SLOW_KERNELS: (
        "Its GPU needs longer for the same kernels.",
        "Compare clocks and temperature with another GPU (nvidia-smi -q), look for other programs.",
    ),
    NETWORK: (
        "Its transfers take longer than those of other groups.",
        "Compare its links with those of another node; NCCL_DEBUG=INFO shows what NCCL uses.",
    ),
    UPSTREAM: (
        "It waits for another straggler itself, and later in the step other ranks wait for it.",
        "Fix the other one first: this rank costs nothing by itself.",
    ),
}
"""What each cause means, and what to do."""


@dataclass(frozen=True)
class Straggler:
    """A rank that holds up the others."""

    place: int
    """Position of its digest."""
    rank: int
    cause: str
    share: float
    """Part of the job's step time that it costs."""
    recoverable_ns: float
    """What the job saves per step if the rank is as fast as the median of the others."""
    late_ns: float
    """How much later than the median of the others it is, per step."""
    pattern: str
    """`constant`, `every 3rd step`, `drifting`, or `4 of 20 steps`."""
    evidence: tuple[Evidence, ...]

    def document(self) -> dict[str, Any]:
        """Return plain objects, for JSON."""
        return {
            "rank": self.rank,
            "cause": self.cause,
            "share": self.share,
            "recoverable_ns": self.recoverable_ns,
            "late_ns": self.late_ns,
            "pattern": self.pattern,
            "evidence": [item.document() for item in self.evidence],
        }


def find_stragglers(
    digests: Sequence[RankDigest], numbers: Sequence[int], waits: CollectiveWaits, own: OwnTimes
) -> tuple[Straggler, ...]:
    """Find the ranks that hold up the job, the most expensive first; `numbers` are their ranks."""
    if len(digests) < 2 or not len(own.steps) or not own.job_ns:
        return ()
    late = _late_ranks(own)
    stragglers = []
    for place, limit_ns in late.items():
        saved_ns = own.saved_ns(place, late)
        share = saved_ns / own.job_ns
        if share < MIN_COST_SHARE:
            continue
        by_step = own.late_ns[:, place]
        steps = own.steps[by_step > limit_ns]
        cause, parts = _cause(digests, place, steps if len(steps) else own.steps, waits)
        evidence = (*parts, *_blame(place, waits, own, by_step > limit_ns))
        stragglers.append(
            Straggler(
                place,
                numbers[place],
                cause,
                share,
                saved_ns,
                float(by_step.mean()),
                _pattern(by_step, limit_ns),
                evidence,
            )
        )
    stragglers.sort(key=lambda straggler: (-straggler.recoverable_ns, straggler.rank))
    sources = {straggler.place for straggler in stragglers}
    by_chance_ns = noise_ns(own, stragglers)
    return (*stragglers, *_upstream(numbers, waits, own, sources, set(late), by_chance_ns))


def noise_ns(own: OwnTimes, stragglers: Sequence[Straggler]) -> float:
    """Return how late ranks are by chance: three standard deviations over ranks and steps."""
    accused = {straggler.place for straggler in stragglers}
    others = [rank for rank in range(own.own_ns.shape[1]) if rank not in accused]
    late = own.late_ns[:, others]
    return float(late.mean() + MIN_DEVIATIONS * late.std()) if late.size else 0.0


def _late_ranks(own: OwnTimes) -> dict[int, float]:
    """Return the ranks whose lateness is no chance, and the limit above which a step is late.

    The latest one is tested first: those that are left are the measure of chance for the next.
    """
    limits_ns: dict[int, float] = {}
    means = own.late_ns.mean(axis=0)
    for place in np.argsort(-means, kind="stable").tolist():
        others = [r for r in range(len(means)) if r != place and r not in limits_ns]
        if not others:
            break
        chance = MAX_CHANCE / len(means)
        limit_ns = _limit(own.late_ns[:, place], own.late_ns[:, others], own.job_ns, chance)
        if limit_ns is None:
            break
        limits_ns[place] = limit_ns
    return limits_ns


def _limit(late: Ints, others: Ints, step_ns: float, max_chance: float) -> float | None:
    """Return above which lateness a step counts as late; None where a rank is late by chance."""
    min_ns = MIN_LATE_SHARE * step_ns
    usual, spread = float(others.mean()), float(others.std())
    limit_ns = max(min_ns, usual + MIN_DEVIATIONS * spread)
    excess_ns = float(late.mean()) - usual
    if excess_ns < min_ns:
        return None
    if len(late) < _MIN_PATTERN_STEPS:
        return limit_ns if late.min() > max(limit_ns, 2 * others.max(initial=0)) else None
    error_ns = np.sqrt(late.var(ddof=1) / len(late) + spread**2 / others.size)
    is_sure = excess_ns >= MIN_DEVIATIONS * error_ns
    times = int((late > limit_ns).sum())
    is_periodic = times >= _MIN_REPEATS and _period(late > limit_ns, exceptions=0) is not None
    usual_rate = float(np.clip((others > limit_ns).mean(), _MIN_LATE_RATE, 1 - _MIN_LATE_RATE))
    is_often = _chance(times, len(late), usual_rate) < max_chance
    # Steps of the other ranks are late by chance too: then a limit above them still counts steps.
    return min(limit_ns, float(late.mean())) if is_sure or is_periodic or is_often else None


def _chance(count: int, steps: int, rate: float) -> float:
    """Return how likely so many late steps, or more, are at the rate of the other ranks."""
    if not count:
        return 1.0
    return sum(
        exp(
            lgamma(steps + 1) - lgamma(late + 1) - lgamma(steps - late + 1)
            + late * log(rate) + (steps - late) * log1p(-rate)
        )
        for late in range(count, steps + 1)
    )  # fmt: skip


# Which steps --------------------------------------------------------------------------------------


def _pattern(late: Ints, limit_ns: float) -> str:
    """Name the steps in which a rank is late."""
    is_late = late > limit_ns
    if _drifts(late):
        return "drifting"
    if is_late.mean() >= _CONSTANT_SHARE:
        return "constant"
    period = _period(is_late, exceptions=int(is_late.sum() > _MIN_REPEATS))
    if period is not None:
        return f"every {_ordinal(period)} step"
    return f"{int(is_late.sum())} of {len(late)} steps"


def _period(late: NDArray[np.bool_], *, exceptions: int) -> int | None:
    """Return N where every Nth step is late, at least twice, and others are not."""
    places = np.flatnonzero(late)
    if len(places) < 2:
        return None
    for period in sorted(set(np.diff(places).tolist()) - {1}):
        for first in {int(place) % period for place in places[:2]}:
            expected = np.zeros(len(late), np.bool_)
            expected[first::period] = True
            if np.count_nonzero(expected != late) <= exceptions:
                return int(period)
    return None


def _drifts(late: Ints) -> bool:
    """Return whether lateness rises or falls steadily."""
    if len(late) < _MIN_DRIFT_STEPS or not late.std():
        return False
    order = np.argsort(np.argsort(late, kind="stable"), kind="stable")
    correlation = float(np.corrcoef(np.arange(len(late)), order)[0, 1])
    third = len(late) // 3
    first, last = float(late[:third].mean()), float(late[-third:].mean())
    return abs(correlation) >= _DRIFT_CORRELATION and max(first, last) >= _DRIFT_RATIO * max(
        min(first, last), 1.0
    )


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 < number % 100 < 14 else ending}"


# Why ----------------------------------------------------------------------------------------------


def _cause(
    digests: Sequence[RankDigest], place: int, steps: Ints, waits: CollectiveWaits
) -> tuple[str, list[Evidence]]:
    """Compare the parts of a rank's own time with the median of the others, in its late steps."""
    parts = [_parts(digest, rank, steps, waits) for rank, digest in enumerate(digests)]
    own_parts = parts[place]
    others = [part for rank, part in enumerate(parts) if rank != place and part]
    if not own_parts or not others:
        return HOST, []
    names = {name for part in (own_parts, *others) for name in part}
    more = {
        name: own_parts.get(name, 0.0) - float(np.median([part.get(name, 0.0) for part in others]))
        for name in names
    }
    causes: dict[str, float] = {}
    for name, ns in more.items():
        causes[_cause_of(name)] = causes.get(_cause_of(name), 0.0) + max(0.0, ns)
    cause = max(causes, key=lambda word: (causes[word], word))
    evidence = []
    if cause == SLOW_KERNELS:
        cause, shown = _work_or_speed(digests, place)
        evidence += shown
    largest = max((n for n in more if _cause_of(n) == cause), key=more.__getitem__, default=None)
    if largest is None:
        largest = max((n for n in more if _cause_of(n) == SLOW_KERNELS), key=more.__getitem__)
    meaning = f"More {largest} time per late step than the median rank"
    return cause, [Evidence(f"more {largest}", more[largest], "ns", meaning), *evidence]


_GPU_PARTS = ("compute", "copy", "idle/queued")


def _cause_of(part: str) -> str:
    if part in _GPU_PARTS:
        return SLOW_KERNELS
    if part == "transfer":
        return NETWORK
    return INPUT if part == "idle/input" else HOST


def _parts(digest: RankDigest, place: int, steps: Ints, waits: CollectiveWaits) -> dict[str, float]:
    """Return the parts of a rank's own time, as means over these steps."""
    own = [step for step in digest.steps if step.number in steps]
    if not own:
        return {}
    sums: dict[str, float] = {}
    for step in own:
        for name, ns in _step_parts(step, any_collectives=bool(len(waits.matched))):
            sums[name] = sums.get(name, 0.0) + ns
    inside = np.isin([-1 if step is None else step for step in waits.matched.step], steps)
    sums["transfer"] = float(waits.exposed_transfer_ns[inside, place].sum())
    return {name: ns / len(own) for name, ns in sums.items()}


def _step_parts(step: StepDigest, *, any_collectives: bool) -> list[tuple[str, int]]:
    idle = [
        (f"idle/{cause}", ns)
        for cause, ns in step.idle.items()
        if any_collectives or cause != WAITING  # that stands in for collectives
    ]
    return [("compute", step.compute_ns), ("copy", step.copy_ns), *idle]


def _work_or_speed(digests: Sequence[RankDigest], place: int) -> tuple[str, list[Evidence]]:
    """Decide whether a rank runs more or larger kernels, or the same ones more slowly."""
    usual: dict[str, list[tuple[float, float, float]]] = {}
    for rank, digest in enumerate(digests):
        steps = max(1, len(digest.steps))
        for kernel in digest.kernels if rank != place else ():
            each = (kernel.count / steps, kernel.ns / kernel.count, kernel.blocks / kernel.count)
            usual.setdefault(kernel.name, []).append(each)
    digest_of_rank = digests[place]
    steps = max(1, len(digest_of_rank.steps))
    work_ns, speed_ns = 0.0, 0.0
    for kernel in digest_of_rank.kernels:
        count = kernel.count / steps
        ns = kernel.ns / kernel.count
        if kernel.name not in usual:
            work_ns += kernel.ns / steps
            continue
        columns = zip(*usual[kernel.name], strict=True)
        other_count, other_ns, blocks = (float(np.median(column)) for column in columns)
        if count > MIN_LAUNCH_RATIO * other_count:
            # Other calls of the same kernel: their shapes, and so their times, are their own.
            work_ns += count * ns - other_count * other_ns
            continue
        # Launches with more thread blocks are larger: they may take so much longer.
        larger = kernel.blocks / kernel.count / blocks if blocks and kernel.blocks else 1.0
        expected_ns = other_ns * max(1.0, larger)
        work_ns += count * expected_ns - other_count * other_ns
        speed_ns += count * (ns - expected_ns)
    if work_ns > speed_ns:
        shown = Evidence("kernel work", work_ns, "ns", "Time of additional or larger kernels/step")
        return MORE_WORK, [shown]
    shown = Evidence("kernel speed", speed_ns, "ns", "Longer time of the same kernels per step")
    return SLOW_KERNELS, [shown]


def _blame(
    place: int, waits: CollectiveWaits, own: OwnTimes, late: NDArray[np.bool_]
) -> list[Evidence]:
    """Return how often a rank is last, and in how many steps it is late."""
    shown = [
        Evidence("late steps", float(late.sum()), "", "Steps in which it is later than by chance"),
        Evidence("steps", float(len(own.steps)), "", "Steps compared"),
    ]
    inside = [at for at, step in enumerate(waits.matched.step) if step is not None]
    took_part = [at for at in inside if waits.matched.present[at, place]]
    if took_part:
        last = float((waits.last[took_part] == place).sum())
        shown += [
            Evidence("last arrivals", last, "", "Collectives in which it arrives last"),
            Evidence("collectives", float(len(took_part)), "", "Collectives it takes part in"),
        ]
    return shown


def _upstream(
    numbers: Sequence[int],
    waits: CollectiveWaits,
    own: OwnTimes,
    sources: set[int],
    late: set[int],
    by_chance_ns: float,
) -> list[Straggler]:
    """Find ranks that others wait for, although they only wait for a straggler themselves."""
    matched, exposed = waits.matched, waits.exposed_wait_ns
    if not len(matched) or not sources:
        return []
    min_ns = max(by_chance_ns, MIN_LATE_SHARE * own.job_ns)
    rows = np.array([at for at, step in enumerate(matched.step) if step is not None], np.int64)
    steps = np.array([matched.step[at] for at in rows], np.int64)
    stragglers = []
    for place, number in enumerate(numbers):
        if place in late:
            continue
        waited = {source: _waited_before(rows, steps, waits, place, source) for source in sources}
        source = max(waited, key=lambda rank: int(waited[rank].max(initial=0)))
        caused = np.where((waits.last[rows] == place)[:, None], exposed[rows], 0)
        # What others wait for it is the late rank's doing as far as it waited itself before.
        passed_on = np.minimum(caused, waited[source]).sum(axis=0)
        most, count = int(caused.sum(axis=0)[passed_on.argmax()]), max(1, len(own.steps))
        is_much = most / count >= min_ns
        if is_much and int(passed_on.max()) >= MIN_UPSTREAM_SHARE * most:
            meaning = f"Waits for rank {numbers[source]} before others wait for it"
            own_wait_ns = float(exposed[rows[waits.last[rows] == source], place].sum()) / count
            shown = Evidence("own wait", own_wait_ns, "ns", meaning)
            late_ns = most / count
            stragglers.append(Straggler(place, number, UPSTREAM, 0.0, 0.0, late_ns, "", (shown,)))
    return stragglers


def _waited_before(
    rows: Ints, steps: Ints, waits: CollectiveWaits, place: int, source: int
) -> Ints:
    """Return how long a rank waited for another one earlier in the step of each collective.

    In collectives without the rank of a column: those that took part left at the same time.
    """
    own = np.where(waits.last[rows] == source, waits.exposed_wait_ns[rows, place], 0)
    without = np.where(waits.matched.present[rows], 0, own[:, None])
    before = np.cumsum(without, axis=0) - without
    begun = np.maximum.accumulate(steps)  # collectives are in order of time
    waited: Ints = before - before[np.searchsorted(begun, begun)]
    return waited
