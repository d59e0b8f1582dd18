"""Whether a measured change says anything: the same GPUs, steps and amount of work on both sides.

Half of the kernels lost looks like half of the kernel time saved. So a limit does not pass where
the sides differ in one of `KINDS`, unless the user accepts that kind by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analyses.completeness import KERNELS
from gpusight.analyses.ledger.labels import GRAPH
from gpusight.comparison.alike import differing, gpu_names
from gpusight.comparison.make_ledger import NO_NAME
from gpusight.comparison.quantities import summed
from gpusight.errors import UsageError
from gpusight.units import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpusight.comparison.digest import Digest

KINDS = {
    "incomplete": "a capture lost kernels, or its reader or profiler reports lost data",
    "gpu-model": "another GPU model, or one that is not known",
    "gpus": "another number of GPUs",
    "processes": "another number of processes that use GPUs",
    "steps": "another number of steps, or steps found in another way",
    "kernels": "another number of kernels, or fewer launch calls, per step",
}
"""What may differ, by the name that `--allow-changed` takes."""
MOST_WORK_CHANGE = 0.1
"""Change of kernels per step, and drop of launch calls per step, above which work is not the same:
who means that change accepts it by name, and lost data cannot pass for it."""
MOST_STEPS_CHANGE = 0.1
"""Change of the number of steps above which captures do not cover the same run."""
_NUMBER = re.compile(r"\d[\d,]*")


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that keeps a comparison from being conclusive."""

    kind: str
    """One of `KINDS`."""
    text: str
    data: bool = False
    """Data may be lost: then not even a ceiling passes, which needs no baseline."""

    def document(self) -> dict[str, str]:
        """Give it as plain objects, for JSON."""
        return {"kind": self.kind, "text": self.text}


def check_kinds(names: Iterable[str]) -> tuple[str, ...]:
    """Give these kinds, each once; raises for a name that is none."""
    found = tuple(dict.fromkeys(name.strip() for name in names))
    unknown = [name for name in found if name not in KINDS]
    if unknown:
        raise UsageError(f"{unknown[0]!r} is nothing that can change", hint=", ".join(KINDS))
    return found


def differences(before: Sequence[Digest], after: Sequence[Digest]) -> tuple[Difference, ...]:
    """List what keeps captures from being compared; `before` may be empty."""
    every = (*before, *after)
    found = [*_incomplete(every), *_kernels(every, after)]
    if before:
        found += [*_gpus(before, after), *_processes(before, after), *_steps(before, after)]
    order = list(KINDS)
    return tuple(sorted(found, key=lambda one: order.index(one.kind)))


def _incomplete(every: Sequence[Digest]) -> Iterator[Difference]:
    for one in every:
        reasons = [one.lost[KERNELS]] if KERNELS in one.lost else []
        for reason in (*reasons, *one.reported_losses):
            yield Difference("incomplete", f"{one.label}: {reason}", data=True)


# The same work ------------------------------------------------------------------------------------


def _kernels(every: Sequence[Digest], after: Sequence[Digest]) -> Iterator[Difference]:
    """Compare kernels and launch calls per step; captures that lost kernels are named already."""
    whole = [one for one in every if KERNELS not in one.lost]
    shown = [one for one in whole if GRAPH not in one.ledger]
    counts = _changed(shown, kernels_per_step, MOST_WORK_CHANGE)
    called = [one for one in whole if one.launch_calls is not None]
    fewest = min(called, key=_launch_calls, default=None)
    dropped = any(fewest is one for one in after)
    calls = _changed(called, _launch_calls, MOST_WORK_CHANGE) if dropped else ""
    if not counts and not calls:
        return
    parts = [f"kernels per step {counts}"] if counts else []
    parts += [f"launch calls per step {calls}"] if calls else []
    yield Difference("kernels", f"{', '.join(parts)}; {_evidence(whole)}", data=True)


def _launch_calls(digest: Digest) -> float:
    return digest.launch_calls or 0.0


def _evidence(every: Sequence[Digest]) -> str:
    if all(one.launch_calls is not None for one in every):
        return "every recorded launch has its kernel, so the program itself may launch less"
    return "without API calls in every capture, lost kernels cannot be told from fewer launches"


def kernels_per_step(digest: Digest) -> float:
    """Give the mean number of kernels of a step."""
    total = summed((row.calls for row in digest.kernels), digest)
    return float(np.average(total, weights=digest.blocks))


def _changed(digests: Sequence[Digest], of: Callable[[Digest], float], most: float) -> str:
    """Show the two values that differ most, in order of the captures; empty where none differ."""
    values = [of(one) for one in digests]
    if not values:
        return ""
    low, high = int(np.argmin(values)), int(np.argmax(values))
    if values[high] - values[low] <= most * values[high]:
        return ""
    first, last = sorted((low, high))
    old, new = values[first], values[last]
    share = f" ({(new - old) / old:+.0%})" if old else ""
    return f"{format_count(old)} -> {format_count(new)}{share}"


# The same machine and run -------------------------------------------------------------------------


def _gpus(before: Sequence[Digest], after: Sequence[Digest]) -> Iterator[Difference]:
    sides = [frozenset(map(gpu_names, side)) for side in (before, after)]
    unknown = [_is_unknown(side) for side in (before, after)]
    if sides[0] != sides[1] and not all(unknown):
        what = "not known on one side" if any(unknown) else "another model"
        told = differing(before, after, gpu_names)
        yield Difference("gpu-model", f"GPU model: {what} ({told})")
    counts = [frozenset(len(one.gpus) for one in side) for side in (before, after)]
    if counts[0] != counts[1]:
        told = differing(before, after, lambda one: str(len(one.gpus)))
        yield Difference("gpus", f"number of GPUs: {told}")


def _is_unknown(side: Sequence[Digest]) -> bool:
    return any(not one.gpus or NO_NAME in one.gpus for one in side)


def _processes(before: Sequence[Digest], after: Sequence[Digest]) -> Iterator[Difference]:
    counts = [frozenset(one.processes for one in side) for side in (before, after)]
    if counts[0] != counts[1]:
        told = differing(before, after, lambda one: str(one.processes))
        yield Difference("processes", f"processes that use GPUs: {told}")


def _steps(before: Sequence[Digest], after: Sequence[Digest]) -> Iterator[Difference]:
    """Compare how many steps were recorded, warm-up included, and how they were found."""
    told = []
    total = _changed((*before, *after), _all_steps, MOST_STEPS_CHANGE)
    if total:
        told.append(f"number of steps {total}")
    ways = [frozenset(_NUMBER.sub("", one.steps_found) for one in s) for s in (before, after)]
    if ways[0] != ways[1]:
        told.append(f"found as {differing(before, after, lambda one: one.steps_found)}")
    if told:
        yield Difference("steps", f"steps: {'; '.join(told)}")


def _all_steps(digest: Digest) -> float:
    return float(digest.steps + digest.steps_left_out)
