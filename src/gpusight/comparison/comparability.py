"""Whether captures are comparable: same GPUs, steps and amount of work; limitations."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gpusight.analysis.capture_completeness import KERNELS
from gpusight.analysis.ledger.ledger_entries import GRAPH
from gpusight.analysis.profiler_correction import NOT_CORRECTED
from gpusight.comparison.build_digest import UNKNOWN_GPU
from gpusight.comparison.comparison_result import KernelMatch
from gpusight.comparison.named_metrics import slowed_by_profiler, summed
from gpusight.comparison.phrases import HOST, overlap_phrase
from gpusight.comparison.program_identity import KERNEL_COUNT, PROFILER, PROGRAM, other_program
from gpusight.errors import UsageError
from gpusight.results import NotApplicable
from gpusight.units import format_count, format_share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpusight.comparison.comparison_result import Comparison
    from gpusight.comparison.digest import Digest


def each_once(digests: Sequence[Digest]) -> tuple[list[Digest], list[str]]:
    """Leave out copies of a capture, which would count as repeats; name them in notes."""
    first: dict[bytes, Digest] = {}
    notes = []
    for digest in digests:
        original = first.setdefault(_content(digest), digest)
        if original is not digest:
            notes.append(f"{original.label} and {digest.label} are the same capture: counted once")
    return list(first.values()), list(dict.fromkeys(notes))


def _content(digest: Digest) -> bytes:
    """Return the measurements of a capture, whatever its file is called."""
    return msgspec.json.encode(msgspec.structs.replace(digest, label="", notes=()))


def other_parts(digests: Sequence[Digest], command: str) -> NotApplicable | None:
    """Refuse captures that were summarized with different options: their steps differ."""
    first = digests[0]
    other = next((digest for digest in digests if digest.scope != first.scope), None)
    if other is None:
        return None
    parts = " and ".join(
        f"{d.label} {f'uses {d.scope}' if d.scope else 'is whole'}" for d in (first, other)
    )
    if first.scope:  # of a baseline, if there is one
        instead = f" instead of {other.scope}" if other.scope else ""
        hint = f"add {first.scope}{instead}, or save a new baseline"
    else:
        save = f"gpusight baseline save CAPTURE… {other.scope}"
        hint = f"omit {other.scope}, or use it for the baseline too: {save}"
    return NotApplicable(command, f"the captures cover different parts: {parts}", hint)


# Differences that make a comparison inconclusive --------------------------------------------------

INCOMPLETE, STEPS = "incomplete", "steps"
KINDS = {
    INCOMPLETE: "a capture lost kernels, its reader or profiler reports lost data, or ranks are "
    "missing",
    PROGRAM: "kernels that show another program",
    "gpu-model": "another GPU model, or an unknown one",
    "gpus": "another number of GPUs",
    PROFILER: "only some captures are corrected for the profiler's overhead",
    "processes": "another number of processes that use GPUs",
    STEPS: "steps were found in another way, or, for metrics of whole captures, another number",
    KERNEL_COUNT: "another number of kernels, or fewer launch calls, per step",
}
"""Differences by the name that `--allow-changed` takes."""
MAX_WORK_CHANGE = 0.1
"""Change of kernels per step, and drop of launch calls per step, above which work is not the same:
users accept an intended change by name, and lost data cannot look like one."""
MAX_STEPS_CHANGE = 0.1
"""Change of the number of steps above which captures do not cover the same run."""
WHOLE_CAPTURE = ("memory_peak",)
"""Metrics of a whole capture, which may grow with its steps; the others are per step."""
OF_ALL_RANKS = ("straggler", "wait_for_ranks")
"""Metrics that ranks whose captures are missing may change."""
_NUMBER = re.compile(r"\d[\d,]*")


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that makes captures not comparable."""

    kind: str
    """One of `KINDS`."""
    text: str
    data: bool = False
    """Data may be lost: then not even a ceiling passes, which needs no baseline."""
    whole: bool = False
    """It concerns metrics of whole captures only (`WHOLE_CAPTURE`), none per step."""
    of_ranks: bool = False
    """It concerns metrics of all ranks only (`OF_ALL_RANKS`)."""

    def concerns(self, metric: str) -> bool:
        """Return whether it makes the two sides of a metric not comparable."""
        if self.kind == PROFILER:
            return slowed_by_profiler(metric)
        if self.of_ranks:
            return metric in OF_ALL_RANKS
        return not self.whole or metric in WHOLE_CAPTURE

    def document(self) -> dict[str, str]:
        """Return it as plain objects, for JSON."""
        return {"kind": self.kind, "text": self.text}


def check_kinds(names: Iterable[str]) -> tuple[str, ...]:
    """Return these kinds, each once; raise for an unknown name."""
    kinds = tuple(dict.fromkeys(name.strip() for name in names))
    unknown = [name for name in kinds if name not in KINDS]
    if unknown:
        raise UsageError(
            f"{unknown[0]!r} is not a kind of change", hint=f"one of: {', '.join(KINDS)}"
        )
    return kinds


def differences(before: Sequence[Digest], after: Sequence[Digest]) -> tuple[Difference, ...]:
    """List what makes captures not comparable; `before` may be empty."""
    digests = (*before, *after)
    rows = []
    for digest in digests:
        reasons = [digest.lost[KERNELS]] if KERNELS in digest.lost else []
        reasons += digest.reported_losses
        rows += [Difference(INCOMPLETE, f"{digest.label}: {why}", data=True) for why in reasons]
        if digest.job is not None and digest.job.missing:
            text = f"{digest.label}: {digest.job.missing}"
            rows.append(Difference(INCOMPLETE, text, data=True, of_ranks=True))
    if why := other_program(digests):
        rows.append(Difference(PROGRAM, f"probably different programs: {why}"))
    kernels = list(_kernels(digests, after))
    rows += kernels
    if mixed := mixed_times(digests):
        of_after = bool(mixed_times(after))
        remedy = "save a new baseline"
        if of_after or not mixed_times(before):
            remedy = "record the new captures alike" if before else "record them alike"
        hint = f"{remedy}, or use --pace off for all"
        rows.append(Difference(PROFILER, f"{mixed}; {hint}", data=of_after))
    if before:
        rows += [*_gpus(before, after), *_steps(before, after, same_work=not kernels)]
    order = list(KINDS)
    return tuple(sorted(rows, key=lambda row: order.index(row.kind)))


_OTHER_PROGRAM = (PROGRAM, "gpu-model", "gpus", "processes", KERNEL_COUNT)
"""Differences that repeats of one program do not have."""


def other_programs(digests: Sequence[Digest]) -> str:
    """Say how captures differ that cannot be repeats of one program; empty where they may be."""
    rows = differences(digests[:1], digests[1:]) if len(digests) > 1 else ()
    texts = (row.text for row in rows if row.kind in _OTHER_PROGRAM)
    return next(texts, "").partition(";")[0]


def mixed_times(digests: Sequence[Digest]) -> str:
    """Say which captures are corrected for the profiler and which are not; empty if all agree."""
    recorded = [digest for digest in digests if digest.recorded_step_ns is None]
    others = [digest for digest in digests if digest.recorded_step_ns is not None]
    if recorded and others:
        notes = (note for digest in recorded for note in digest.notes)
        reasons = (n.removeprefix(NOT_CORRECTED) for n in notes if n.startswith(NOT_CORRECTED))
        why = "".join(f" ({reason})" for reason in islice(reasons, 1))
        return (
            f"{_labels(recorded)} {_are(recorded)} not corrected for the profiler{why}, "
            f"{_labels(others)} {_are(others)}"
        )
    estimated = [digest for digest in others if digest.is_estimate]
    measured = [d for d in others if not d.is_estimate and not _needs_no_correction(d)]
    if estimated and measured:
        return (
            f"the overhead of the profiler is estimated for {_labels(estimated)}, and measured for "
            f"{_labels(measured)}"
        )
    return ""


def _needs_no_correction(digest: Digest) -> bool:
    """Return whether the estimated overhead is so small that recorded times stay."""
    steps = sum(digest.blocks)
    mean_ns = sum(ns * n for ns, n in zip(digest.step_ns, digest.blocks, strict=True)) / steps
    same = math.isclose(mean_ns, digest.recorded_step_ns or 0.0, rel_tol=1e-6)
    return same and not digest.pace_steps


def all_corrected(digests: Sequence[Digest]) -> bool:
    """Return whether all times are without the profiler."""
    return all(digest.recorded_step_ns is not None for digest in digests)


def _kernels(digests: Sequence[Digest], after: Sequence[Digest]) -> Iterator[Difference]:
    """Compare kernels and launch calls per step; captures that lost kernels are named already."""

    def kernels_per_step(digest: Digest) -> float:
        total = summed((row.calls for row in digest.kernels), digest)
        return float(np.average(total, weights=digest.blocks))

    def launch_calls(digest: Digest) -> float:
        return digest.launch_calls or 0.0

    complete = [digest for digest in digests if KERNELS not in digest.lost]
    without_graphs = [digest for digest in complete if GRAPH not in digest.ledger]
    counts = _changed(without_graphs, kernels_per_step, MAX_WORK_CHANGE)
    with_calls = [digest for digest in complete if digest.launch_calls is not None]
    fewest = min(with_calls, key=launch_calls, default=None)
    dropped = any(fewest is digest for digest in after)
    calls = _changed(with_calls, launch_calls, MAX_WORK_CHANGE) if dropped else ""
    if not counts and not calls:
        return
    per_step = " per step" if any(digest.steps for digest in digests) else ""
    parts = [f"kernels{per_step} {counts}"] if counts else []
    if calls and calls == counts:
        parts = [f"kernels and launch calls{per_step} {counts}"]
    elif calls:
        parts.append(f"launch calls{per_step} {calls}")
    evidence = "some captures have no API calls, so kernels may also be lost"
    if len(with_calls) == len(complete):
        evidence = "no kernel is lost: each recorded launch has its kernel"
    yield Difference(KERNEL_COUNT, f"{', '.join(parts)}; {evidence}", data=True)


def _changed(digests: Sequence[Digest], of: Callable[[Digest], float], max_change: float) -> str:
    """Show the two values that differ most, in order of the captures; empty where none differ."""
    values = [of(digest) for digest in digests]
    if not values:
        return ""
    low, high = int(np.argmin(values)), int(np.argmax(values))
    if values[high] - values[low] <= max_change * values[high]:
        return ""
    first, last = sorted((low, high))
    old, new = values[first], values[last]
    share = f" ({(new - old) / old:+.0%})" if old else ""
    return f"{format_count(old)} -> {format_count(new)}{share}"


def _gpus(before: Sequence[Digest], after: Sequence[Digest]) -> Iterator[Difference]:
    models = [frozenset(map(_gpu_names, side)) for side in (before, after)]
    unknown = [any(not d.gpus or UNKNOWN_GPU in d.gpus for d in side) for side in (before, after)]
    if models[0] != models[1] and not all(unknown):
        what = "unknown on one side" if any(unknown) else "different"
        names = _differing(before, after, _gpu_names)
        yield Difference("gpu-model", f"GPU model: {what} ({names})")
    if {len(digest.gpus) for digest in before} != {len(digest.gpus) for digest in after}:
        numbers = _differing(before, after, lambda digest: str(len(digest.gpus)))
        yield Difference("gpus", f"number of GPUs: {numbers}")
    if {digest.processes for digest in before} != {digest.processes for digest in after}:
        numbers = _differing(before, after, lambda digest: str(digest.processes))
        yield Difference("processes", f"processes that use GPUs: {numbers}")


def _gpu_names(digest: Digest) -> str:
    """Name the GPUs of a capture, each model once."""
    return " + ".join(sorted(set(digest.gpus))) or "unknown"


def _steps(
    before: Sequence[Digest], after: Sequence[Digest], *, same_work: bool
) -> Iterator[Difference]:
    """Compare how many steps were recorded, warm-up included, and how they were found.

    Found in another way, they are the same steps nevertheless if each capture knows their time
    without the profiler, and as many kernels run in each.
    """
    digests = (*before, *after)
    total = _changed(digests, lambda d: float(d.steps + d.steps_left_out), MAX_STEPS_CHANGE)
    if total:
        yield Difference(STEPS, f"number of steps: {total}", whole=True)
    if all_corrected(digests) and same_work and not any(GRAPH in d.ledger for d in digests):
        return
    ways = [frozenset(_NUMBER.sub("", d.steps_found) for d in side) for side in (before, after)]
    if ways[0] != ways[1]:
        ways_found = _differing(before, after, lambda digest: digest.steps_found)
        yield Difference(STEPS, f"steps: found by {ways_found}")


def _differing(
    before: Sequence[Digest], after: Sequence[Digest], of: Callable[[Digest], str]
) -> str:
    """Show how the two sides differ; empty where they do not."""
    sides = [sorted({of(digest) for digest in side}) for side in (before, after)]
    if sides[0] == sides[1] and len(sides[0]) == 1:
        return ""
    return " vs. ".join(" and ".join(side) for side in sides)


# Notes --------------------------------------------------------------------------------------------

_MIN_STEPS = 5
ONE_CAPTURE = "one capture"
"""How notes begin that say what a single capture does not show."""
_MIN_MATCHED = 0.5
"""Share of kernel time that must match, else the programs are called different."""
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


def comparison_notes(
    before: Sequence[Digest], after: Sequence[Digest], comparison: Comparison
) -> tuple[str, ...]:
    """List the limitations of a comparison, then the notes of the captures."""
    known = [metric.key for metric in comparison.metrics if metric.change.delta is not None]
    concerning = [d for d in comparison.differences if not d.whole or any(map(d.concerns, known))]
    digests = (*before, *after)
    overlap = overlap_phrase(comparison)
    notes = [f"{overlap}; times of kernels and phases are sums"] if overlap else []
    if comparison.other_program:  # as the verdict has it; then the work differs too
        concerning = [row for row in concerning if row.kind not in (PROGRAM, KERNEL_COUNT)]
    notes += [f"different on the two sides: {row.text}" for row in concerning]
    contents = {_content(digest) for digest in after}
    if same := [digest for digest in before if _content(digest) in contents]:
        notes.append(f"{_labels(same)} {_are(same)} on both sides")
    if comparison.is_comparable:  # else more captures show no more
        notes += _how_many(before, after)
    notes += _tools_and_gpus(before, after)
    notes += [] if comparison.other_program else _different_programs(digests, comparison)
    if not all_corrected(digests) and HOST in (comparison.before.limit, comparison.after.limit):
        notes.append(
            "the host is the bottleneck, and profilers slow it down: also measure without one "
            "(gpusight help record)"
        )
    notes += _missing(digests)
    for note in dict.fromkeys(note for digest in digests for note in digest.notes):
        having = [digest for digest in digests if note in digest.notes]
        notes.append(note if len(having) == len(digests) else f"{_labels(having)}: {note}")
    return tuple(dict.fromkeys(notes))


def _how_many(before: Sequence[Digest], after: Sequence[Digest]) -> Iterator[str]:
    sides = {"before": before, "after": after}
    single = [name for name, side in sides.items() if len(side) == 1]
    steps = [sum(digest.steps for digest in side) for side in sides.values()]
    if not all(digest.steps for digest in (*before, *after)):
        yield ("no steps found: whole windows are compared, which is valid only for the same work")
    few = f", of few steps ({steps[0]} before, {steps[1]} after)" * (0 < min(steps) < _MIN_STEPS)
    if len(single) == 2:
        known = "run-to-run variation is not measured"
        if min(steps) <= 1:
            known = "one sample per side; variance unknown"
        yield f"{ONE_CAPTURE} per side{few}: {known}; record 3 or more per side"
    elif single:
        (other,) = sides.keys() - set(single)
        source = f"its variation is taken from the captures {other}"
        yield f"{ONE_CAPTURE} {single[0]}{few}: {source}; record 3 or more"


def _tools_and_gpus(before: Sequence[Digest], after: Sequence[Digest]) -> Iterator[str]:
    tools = _differing(before, after, lambda digest: _VERSION.sub("", digest.tool))
    versions = _differing(before, after, lambda digest: digest.tool)
    if tools and all_corrected((*before, *after)):
        yield f"different profilers ({tools}): step and idle times are without their overhead"
    elif tools:
        yield (
            f"different profilers ({tools}): their overhead changes host times, idle times and "
            "memory peaks; kernel times are comparable"
        )
    elif versions:
        yield f"different profiler versions ({versions})"
    if max(len(digest.gpus) for digest in (*before, *after)) > 1:
        yield "several GPUs: the ledger is their mean; kernels, phases and copies are sums"


def _different_programs(digests: Sequence[Digest], comparison: Comparison) -> Iterator[str]:
    """Warn where little kernel time matches."""
    if any(GRAPH in digest.ledger for digest in digests):  # kernels of graphs are not known
        return
    kernels = comparison.kernels
    matched = [row for row in kernels if row.match in (KernelMatch.NAME, KernelMatch.ROLE)]
    shares = []
    for side in ("before", "after"):
        total = sum(getattr(row.ns, side) or 0.0 for row in kernels)
        matched_ns = sum(getattr(row.ns, side) or 0.0 for row in matched)
        shares.append(matched_ns / total if total else 1.0)
    if max(shares) < _MIN_MATCHED:
        parts = " and ".join(map(format_share, shares))
        yield f"probably different programs: only {parts} of their kernel time matches"


def _missing(digests: Sequence[Digest]) -> Iterator[str]:
    """List the data that captures lack; what all of them lack is one line."""
    lacking = {part: [d for d in digests if part in d.missing] for part in _PARTS}
    nowhere = [_PARTS[part] for part, without in lacking.items() if len(without) == len(digests)]
    reasons = {digest.missing.get("findings") for digest in digests}
    if len(reasons) == 1 and _PARTS["findings"] in nowhere:
        nowhere.remove(_PARTS["findings"])
        yield f"no findings: {reasons.pop()}"
    if nowhere:
        yield f"not in the captures: {', '.join(nowhere)}"
    for part, without in lacking.items():
        if 0 < len(without) < len(digests):
            reason = without[0].missing[part]
            yield f"no {_PARTS[part]} in {_labels(without)}: {reason}"


def _labels(digests: Sequence[Digest]) -> str:
    more = f" and {len(digests) - 1} more" if len(digests) > 1 else ""
    return f"{digests[0].label}{more}"


def _are(digests: Sequence[Digest]) -> str:
    return "are" if len(digests) > 1 else "is"
