"""Whether a change says anything: same GPUs, steps and amount of work; what a reader must know."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gpusight.analysis.capture_completeness import KERNELS
from gpusight.analysis.ledger.ledger_entries import GRAPH
from gpusight.comparison.build_digest import NO_NAME
from gpusight.comparison.compared_quantities import summed
from gpusight.comparison.comparison_result import KernelMatch
from gpusight.comparison.phrases import HOST
from gpusight.errors import UsageError
from gpusight.results import NotApplicable
from gpusight.units import format_count, format_share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpusight.comparison.comparison_result import Comparison
    from gpusight.comparison.digest import Digest


# The same run ------------------------------------------------------------------------------------


def content(digest: Digest) -> bytes:
    """Give what a capture measured, whatever it is called."""
    bare = msgspec.structs.replace(digest, label="", notes=())
    return msgspec.json.encode(bare)


def each_once(digests: Sequence[Digest]) -> tuple[list[Digest], list[str]]:
    """Leave out copies of a capture, which would pass for repeats; say which they are."""
    first: dict[bytes, Digest] = {}
    notes = []
    for digest in digests:
        kept = first.setdefault(content(digest), digest)
        if kept is not digest:
            notes.append(f"{kept.label} and {digest.label} are the same capture: counted once")
    return list(first.values()), list(dict.fromkeys(notes))


# Names --------------------------------------------------------------------------------------------


def differing(
    before: Sequence[Digest], after: Sequence[Digest], of: Callable[[Digest], str]
) -> str:
    """Show what captures differ in; empty where all are alike."""
    sides = [sorted({of(one) for one in side}) for side in (before, after)]
    if sides[0] == sides[1] and len(sides[0]) == 1:
        return ""
    return " against ".join(" and ".join(side) for side in sides)


def gpu_names(digest: Digest) -> str:
    """Name the GPUs of a capture, each kind once."""
    return " + ".join(sorted(set(digest.gpus))) or "unknown"


# Another part ------------------------------------------------------------------------------------


def other_parts(digests: Sequence[Digest], command: str) -> NotApplicable | None:
    """Refuse captures of which different parts were summed up: their steps are not the same."""
    first = digests[0]
    other = next((one for one in digests if one.scope != first.scope), None)
    if other is None:
        return None
    told = " and ".join(f"{one.label} {_part(one)}" for one in (first, other))
    reason = f"the captures are not of the same part: {told}"
    return NotApplicable(command, reason, _how_to_agree(first.scope, other.scope))


def _part(digest: Digest) -> str:
    return f"was summed up {f'with {digest.scope}' if digest.scope else 'as a whole'}"


def _how_to_agree(before: str, after: str) -> str:
    """Say what to type; what stands before is a baseline, if anything is."""
    if before:
        instead = f" instead of {after}" if after else ""
        return f"add {before}{instead}, or save the baseline anew"
    save = f"gpusight baseline save CAPTURE… {after}"
    return f"leave {after} out, or give it to the baseline too: {save}"


KINDS = {
    "incomplete": "a capture lost kernels, or its reader or profiler reports lost data",
    "gpu-model": "another GPU model, or one that is not known",
    "gpus": "another number of GPUs",
    "processes": "another number of processes that use GPUs",
    "steps": "another number of steps, or steps found in another way",
    "kernels": "another number of kernels, or fewer launch calls, per step",
}
"""What may differ, by the name that `--allow-changed` takes."""
MAX_WORK_CHANGE = 0.1
"""Change of kernels per step, and drop of launch calls per step, above which work is not the same:
who means that change accepts it by name, and lost data cannot pass for it."""
MAX_STEPS_CHANGE = 0.1
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
    counts = _changed(shown, kernels_per_step, MAX_WORK_CHANGE)
    called = [one for one in whole if one.launch_calls is not None]
    fewest = min(called, key=_launch_calls, default=None)
    dropped = any(fewest is one for one in after)
    calls = _changed(called, _launch_calls, MAX_WORK_CHANGE) if dropped else ""
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
    total = _changed((*before, *after), _all_steps, MAX_STEPS_CHANGE)
    if total:
        told.append(f"number of steps {total}")
    ways = [frozenset(_NUMBER.sub("", one.steps_found) for one in s) for s in (before, after)]
    if ways[0] != ways[1]:
        told.append(f"found as {differing(before, after, lambda one: one.steps_found)}")
    if told:
        yield Difference("steps", f"steps: {'; '.join(told)}")


def _all_steps(digest: Digest) -> float:
    return float(digest.steps + digest.steps_left_out)


_FEW_STEPS = 5
_RELATED = 0.5
"""Part of the kernel time that must match, else the programs are called different."""
_VERSION = re.compile(r"\s+v?\d[\w.+-]*$")
_PARTS = {
    "findings": "findings",
    "phases": "phases",
    "ranges": "ranges",
    "api": "API calls",
    "kernels": "kernels",
    "copies": "copies",
    "memsets": "memsets",
}


def notes(before: Sequence[Digest], after: Sequence[Digest], found: Comparison) -> tuple[str, ...]:
    """Give what limits a comparison, then what captures say of themselves."""
    every = (
        *(f"not the same on both sides: {one.text}" for one in found.differences),
        *_twice(before, after),
        *_how_many(before, after),
        *_differences(before, after),
        *_relation((*before, *after), found),
        *_overhead(found),
        *_absent(before, after),
        *_own(before, after),
    )
    return tuple(dict.fromkeys(every))


def _twice(before: Sequence[Digest], after: Sequence[Digest]) -> Iterator[str]:
    """Say that a capture is compared with itself."""
    known = {content(one) for one in after}
    same = [one for one in before if content(one) in known]
    if same:
        yield f"{_labels(same)} {'stand' if len(same) > 1 else 'stands'} on both sides"


def _how_many(before: Sequence[Digest], after: Sequence[Digest]) -> Iterator[str]:
    sides = {"before": before, "after": after}
    single = [name for name, side in sides.items() if len(side) == 1]
    steps = [sum(one.steps for one in side) for side in sides.values()]
    if not all(one.steps for one in (*before, *after)):
        yield (
            "no steps are known: whole windows are compared, which tells something only if they "
            "hold the same work"
        )
    if len(single) == 2:
        known = "the spread of steps only" if min(steps) > 1 else "nothing of the spread"
        yield (
            f"one capture a side: intervals cover {known}, and runs of the same program may differ "
            "by more; record 3 or more of each and name them all"
        )
    elif single:
        yield f"one capture {single[0]}: it is taken to vary as those of the other side do"
    if single and 0 < min(steps) < _FEW_STEPS:
        yield f"few steps: {steps[0]} before and {steps[1]} after"


def _differences(before: Sequence[Digest], after: Sequence[Digest]) -> Iterator[str]:
    tools = differing(before, after, lambda one: _VERSION.sub("", one.tool))
    versions = differing(before, after, lambda one: one.tool)
    if tools:
        yield (
            f"other tools ({tools}): each slows the host in its own way, so that host and idle "
            "times, and memory peaks, differ for that alone; kernel times can be compared"
        )
    elif versions:
        yield f"other versions of the tool ({versions})"
    if max(len(one.gpus) for one in (*before, *after)) > 1:
        yield "several GPUs: the ledger is their mean; kernels, phases and copies are summed"


def _relation(every: Sequence[Digest], found: Comparison) -> Iterator[str]:
    """Say that two programs have little in common: neither is made of what the other has too."""
    if any(GRAPH in one.ledger for one in every):  # what graphs run is not in the captures
        return
    matched = [row for row in found.kernels if row.match in (KernelMatch.NAME, KernelMatch.ROLE)]
    shares = []
    for side in ("before", "after"):
        total = sum(getattr(row.ns, side) or 0.0 for row in found.kernels)
        shares.append(
            sum(getattr(row.ns, side) or 0.0 for row in matched) / total if total else 1.0
        )
    if max(shares) < _RELATED:
        told = " and ".join(map(format_share, shares))
        yield f"these look like different programs: only {told} of their kernel time matches"


def _overhead(found: Comparison) -> Iterator[str]:
    """Warn where a profiler makes what is compared."""
    if HOST in (found.before.limit, found.after.limit):
        yield (
            "the host is the limit, and profilers slow the host down: time both without one too "
            "(docs/capture.md)"
        )


def _absent(before: Sequence[Digest], after: Sequence[Digest]) -> Iterator[str]:
    """Say which parts captures lack; in one line what all of them do."""
    every = (*before, *after)
    lacking = {part: [one for one in every if part in one.missing] for part in _PARTS}
    nowhere = [_PARTS[part] for part, mine in lacking.items() if len(mine) == len(every)]
    reasons = {one.missing.get("findings") for one in every}
    if len(reasons) == 1 and _PARTS["findings"] in nowhere:
        nowhere.remove(_PARTS["findings"])
        yield f"no findings: {reasons.pop()}"
    if nowhere:
        yield f"the captures do not tell: {', '.join(nowhere)}"
    for part, mine in lacking.items():
        if 0 < len(mine) < len(every):
            yield f"{_PARTS[part]} are not known of {_labels(mine)}: {mine[0].missing[part]}"


def _own(before: Sequence[Digest], after: Sequence[Digest]) -> Iterator[str]:
    """Repeat what captures say of themselves, each once."""
    every = (*before, *after)
    for note in dict.fromkeys(note for one in every for note in one.notes):
        having = [one for one in every if note in one.notes]
        yield note if len(having) == len(every) else f"{_labels(having)}: {note}"


def _labels(digests: Sequence[Digest]) -> str:
    more = f" and {len(digests) - 1} more" if len(digests) > 1 else ""
    return f"{digests[0].label}{more}"
