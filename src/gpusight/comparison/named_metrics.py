"""Metrics of captures by name (`step_time`, `kernel:GLOB`, …), and how much they changed.

`compare` lists them and `gate --max` limits them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from gpusight.analysis.capture_completeness import COPIES, KERNELS, MEMSETS
from gpusight.analysis.ledger.ledger_entries import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    GRAPH,
    IDLE,
    IdleCause,
)
from gpusight.analysis.name_patterns import matcher, near_matches, similar_names
from gpusight.analysis.steps.step_list import PHASES
from gpusight.comparison.significance import (
    Basis,
    ChangeVerdict,
    MeasuredChange,
    SampledChange,
    compare_series,
    compare_values,
)
from gpusight.errors import DOCS_URL, UsageError
from gpusight.naming.kernel_patterns import CATEGORIES
from gpusight.results import Fmt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpusight.comparison.digest import CallDigest, Digest, DigestFinding, KernelDigest
    from gpusight.trace.intervals import Reals


Value: TypeAlias = "SampledChange | float | None"
"""Of one capture: a row of values by block, one value for the whole capture, or not known."""
API = "api"
_REASONS = {
    "api": "no API calls in the capture, so idle causes are unknown",
    "graph": "CUDA graphs were traced as a whole: their kernels are not in the capture",
    "findings": "the finding has no time estimate",
    "ranks": "one capture does not show who waits for whom: give the captures of all ranks",
    "ranges": "the capture does not link ranges to GPU work",
}
"""Why a capture lacks data, where it has no reason of its own."""


@dataclass(frozen=True)
class ComparedQuantity:
    """One quantity of several captures."""

    key: str
    label: str
    fmt: Fmt
    by_capture: tuple[Value, ...]
    missing: str = ""
    """Why a capture lacks it; empty where all have it."""
    matched: bool = True
    """Whether a pattern matches anything; what matches nothing is 0, or misspelled."""
    lost: bool = False
    """Whether a capture lost the data that it is summed over."""

    @property
    def known(self) -> tuple[SampledChange | float, ...]:
        """Values of the captures that have it."""
        return tuple(value for value in self.by_capture if value is not None)

    @property
    def means(self) -> tuple[float, ...]:
        """Mean per step of each capture that has it."""
        return tuple(v if isinstance(v, float) else float(v.means[0]) for v in self.known)

    @property
    def mean(self) -> float | None:
        """Mean over captures, each of equal weight; None where none has it."""
        return float(np.mean(self.means)) if self.known else None


def measured(
    digests: Sequence[Digest],
    key: str,
    label: str,
    fmt: Fmt,
    value: Callable[[Digest], Reals | float | None],
    part: str = "",
    *,
    needs: Sequence[str] = (),
    matched: bool = True,
) -> ComparedQuantity:
    """Compute a quantity of every capture; None where it is not known, for the reason of `part`.

    It is not known either where the capture lost one of the sources that it `needs`.
    """
    lost = [
        next((f"{d.label}: {d.lost[source]}" for source in needs if source in d.lost), "")
        for d in digests
    ]
    # Without API calls idle causes are unknown: all such entries are 0 then.
    without_api = [API in needs and API in d.missing for d in digests]
    by_capture: list[Value] = []
    for digest, lost_reason, no_api in zip(digests, lost, without_api, strict=True):
        values = None if lost_reason or no_api else value(digest)
        if values is None or isinstance(values, float):
            by_capture.append(values)
        else:
            by_capture.append(sampled(digest, values, key))
    missing = first_loss = next(filter(None, lost), "")
    if None in by_capture and not first_loss:
        digest = digests[by_capture.index(None)]
        part = API if any(without_api) else part
        why = digest.missing.get(part) or _REASONS.get(part, "not in the capture")
        missing = f"{digest.label}: {why}"
    return ComparedQuantity(key, label, fmt, tuple(by_capture), missing, matched, bool(first_loss))


def sampled(digest: Digest, values: Reals, key: str = "") -> SampledChange:
    """Take the values of a capture's blocks, with the error that their metric has of its pace."""
    rows = values[np.newaxis]
    if not digest.pace_error or not slowed_by_profiler(key):
        return SampledChange(digest.blocks, rows)
    # GPU work stays as recorded, so that idle time takes all of the error; other times on the host
    # take their share of it.
    weights = np.array(digest.blocks, np.float64)
    whole = _of_ledger(digest, IDLE) if _is_part(key, IDLE) else np.array(digest.step_ns)
    step_ns, whole_ns, mean_ns = (
        float(np.average(series, weights=weights)) for series in (digest.step_ns, whole, values)
    )
    error_ns = digest.pace_error * step_ns * mean_ns / whole_ns if whole_ns else 0.0
    return SampledChange(digest.blocks, rows, np.array([error_ns]))


def slowed_by_profiler(key: str) -> bool:
    """Return whether a profiler changes a metric: those with time of the host, not GPU work."""
    return key in _HOST_TIMES or key.startswith(_HOST_PREFIXES) or _is_part(key, IDLE)


_HOST_TIMES = ("step_time", "between_steps", "findings")
_HOST_PREFIXES = ("range:", "api:", "finding:")


GPU_RUN_NOISE = 0.05
"""Share by which the time of the same kernels may differ from run to run: clocks, temperature,
another GPU of the model. Steps of one run do not show it."""
HOST_RUN_NOISE = 0.5
"""The same of all other time, which depends on the host, its load, storage and network: repeats of
one program on a shared machine differ by a third and more."""
_KERNEL_TIMES = ("kernel_time", COMPUTE)
SUMS = ("kernel:", "range_gpu:", "phase:")
"""Metrics that sum durations, also of kernels that run at the same time."""
_KERNEL_PREFIXES = (f"{COMPUTE}/", *SUMS)
_PART_KERNEL_TIMES = ("step_time", "busy")
"""Metrics that are the time of `COMPUTE` and other time."""


def run_noise(digests: Sequence[Digest], side: ComparedQuantity) -> float:
    """Bound by how much a time of one side may differ from run to run of the same program."""
    if side.fmt is not Fmt.TIME or side.mean is None:
        return 0.0
    kernel_ns = 0.0
    if side.key in _KERNEL_TIMES or side.key.startswith(_KERNEL_PREFIXES):
        kernel_ns = side.mean
    elif side.key in _PART_KERNEL_TIMES:
        kernel_ns = min(side.mean, quantity(digests, COMPUTE).mean or 0.0)
    return GPU_RUN_NOISE * kernel_ns + HOST_RUN_NOISE * (side.mean - kernel_ns)


def summed(series: Iterable[Sequence[float]], digest: Digest) -> Reals:
    """Sum series of a capture block by block."""
    total = np.zeros(len(digest.blocks))
    for values in series:
        total += values
    return total


# Changes ------------------------------------------------------------------------------------------


def changes(
    pairs: Sequence[tuple[ComparedQuantity, ComparedQuantity]], *, confidence: float, least: float
) -> list[MeasuredChange]:
    """Compute by how much quantities changed; series of all captures are tested together."""
    series = [i for i, pair in enumerate(pairs) if all(map(_is_series, pair))]
    others = set(range(len(pairs))).difference(series)
    results = {i: _changed(*pairs[i], confidence, least) for i in others}
    if series:
        sides = [_stacked([pairs[i][side] for i in series]) for side in (0, 1)]
        tested = compare_series(*sides, confidence=confidence, least=least)
        results |= dict(zip(series, tested, strict=True))
    return [results[i] for i in range(len(pairs))]


def _is_series(quantity: ComparedQuantity) -> bool:
    values = quantity.by_capture
    return bool(values) and all(isinstance(value, SampledChange) for value in values)


def _changed(
    before: ComparedQuantity, after: ComparedQuantity, confidence: float, least: float
) -> MeasuredChange:
    """Compute the change of a quantity that is single values, or that captures lack."""
    if not before.known or not after.known:
        return MeasuredChange(
            before.mean, after.mean, None, None, ChangeVerdict.UNCLEAR, Basis.NONE
        )
    series = [
        [value for value in side.known if isinstance(value, SampledChange)]
        for side in (before, after)
    ]
    if len(series[0]) == len(before.known) and len(series[1]) == len(after.known):
        return compare_series(*series, confidence=confidence, least=least)[0]
    return compare_values(before.means, after.means, confidence=confidence, least=least)


def _stacked(quantities: Sequence[ComparedQuantity]) -> list[SampledChange]:
    """Join series to one sample per capture, with a row for each quantity."""
    stacked = []
    for column in zip(*(quantity.by_capture for quantity in quantities), strict=True):
        samples = [value for value in column if isinstance(value, SampledChange)]
        rows = np.vstack([sample.values for sample in samples])
        no_error = np.zeros(1)
        errors = [no_error if sample.errors is None else sample.errors for sample in samples]
        stacked.append(SampledChange(samples[0].blocks, rows, np.concatenate(errors)))
    return stacked


# Metrics of what matches a pattern ----------------------------------------------------------------

_MAX_MATCHED_CHARS = 2_000
"""What a pattern looks at: a hostile name of a megabyte could keep a regex busy for hours."""


def _kernels(digests: Sequence[Digest], key: str, pattern: str) -> ComparedQuantity:
    matches = _matcher(pattern)

    def kernels(digest: Digest) -> list[KernelDigest]:
        return [k for k in digest.kernels if matches(k.name) or matches(k.short)]

    def value(digest: Digest) -> Reals | None:
        return _unless_graphs(digest, [kernel.ns for kernel in kernels(digest)])

    matched = any(map(kernels, digests))
    needs = (KERNELS,)
    return measured(digests, key, key, Fmt.TIME, value, "graph", needs=needs, matched=matched)


def _calls(
    digests: Sequence[Digest],
    key: str,
    pattern: str,
    *,
    part: str,
    series: Callable[[CallDigest], tuple[float, ...] | None],
    needs: Sequence[str] = (),
) -> ComparedQuantity:
    """Sum `ranges` or `api` calls that a pattern matches."""
    matches = _matcher(pattern)

    def rows(digest: Digest) -> tuple[CallDigest, ...]:
        calls: tuple[CallDigest, ...] = getattr(digest, part)
        return calls

    def value(digest: Digest) -> Reals | None:
        if part in digest.missing and not rows(digest):
            return None
        matching = [series(call) for call in rows(digest) if matches(call.name)]
        known = [values for values in matching if values is not None]
        return None if matching and not known else summed(known, digest)

    matched = any(matches(call.name) for digest in digests for call in rows(digest))
    return measured(digests, key, key, Fmt.TIME, value, part, needs=needs, matched=matched)


def _phase(digests: Sequence[Digest], key: str, phase: str) -> ComparedQuantity:
    if phase not in PHASES:
        raise UsageError(f"unknown phase {phase!r}", why=f"phases are {', '.join(PHASES)}")

    def value(digest: Digest) -> Reals | None:
        if not digest.phases:
            return None
        return summed([digest.phases[phase]] if phase in digest.phases else [], digest)

    return measured(digests, key, key, Fmt.TIME, value, "phases", needs=(KERNELS, COPIES))


def _finding(digests: Sequence[Digest], key: str, rule: str) -> ComparedQuantity:
    known = {*rules(), *(finding.rule for digest in digests for finding in digest.findings)}
    if rule not in known:
        near = near_matches(rule, sorted(known))
        hint = "see: gpusight diagnose --list-rules"
        raise UsageError(f"unknown rule {rule!r}", why=f"similar rules: {near}", hint=hint)

    def value(digest: Digest) -> float | None:
        if "findings" in digest.missing or rule in digest.not_evaluated:
            return None
        savings = [f.step_ns for f in digest.findings if f.rule == rule and f.in_plan]
        return None if None in savings else float(sum(ns for ns in savings if ns is not None))

    needs = (KERNELS, COPIES, API)
    saving = measured(digests, key, key, Fmt.TIME, value, "findings", needs=needs)
    reasons = (f"{d.label}: {d.not_evaluated[rule]}" for d in digests if rule in d.not_evaluated)
    return saving if saving.lost else replace(saving, missing=next(reasons, saving.missing))


_PATTERNS: dict[str, Callable[[Sequence[Digest], str, str], ComparedQuantity]] = {
    "kernel": _kernels,
    "range": partial(_calls, part="ranges", series=lambda call: call.host_ns),
    "range_gpu": partial(
        _calls, part="ranges", series=lambda call: call.gpu_ns, needs=(KERNELS, COPIES)
    ),
    "api": partial(_calls, part="api", series=lambda call: call.host_ns),
    "phase": _phase,
    "finding": _finding,
}


def _matcher(pattern: str) -> Callable[[str], bool]:
    """Match whole names by a glob, or any part by a regular expression written /…/."""
    if not pattern:
        raise UsageError("no pattern after the colon", hint="write for example kernel:'*gemm*'")
    matches = matcher(pattern)
    return lambda name: name == pattern or bool(matches(name[:_MAX_MATCHED_CHARS]))


def rules() -> list[str]:
    """List the rules of `diagnose`."""
    from gpusight.rules.registry import TIMELINE_RULES

    return list(TIMELINE_RULES)


def fixes(digest: Digest) -> list[DigestFinding]:
    """List the findings of the plan; those below it are notes, or save too little."""
    if not digest.findings:
        return []
    from gpusight.rules.registry import timeline_rules

    about_capture = {name for name, rule in timeline_rules().items() if not rule.is_fix}
    return [f for f in digest.findings if f.in_plan and f.rule not in about_capture]


# Metrics by key -----------------------------------------------------------------------------------

LIST = (
    "step_time",
    "between_steps",
    "kernel_time",
    "busy",
    "idle",
    "launches",
    "memory_peak",
    "h2d_bytes",
    "d2h_bytes",
    "findings",
)
"""Metrics of every comparison, in the order of its table."""
JOB_LIST = ("exposed_communication", "wait_for_ranks", "straggler")
"""Metrics of every comparison of jobs."""
COMMUNICATION_SHARE = "exposed_communication_share"
"""What a limit of `exposed_communication` without a sign and with % is on."""
SHARES = ("straggler", COMMUNICATION_SHARE)
"""Metrics that are a part of the step: their limits are in %, growth in percentage points."""
_PAGING = "Unified "
_COPY_KINDS = ("h2d", "d2h", "d2d", "p2p", "h2h", "unified", "memset", "other")


def quantity(digests: Sequence[Digest], key: str) -> ComparedQuantity:
    """Return a quantity of captures by its key; raise `UsageError` for an unknown key."""
    kind, separator, pattern = key.partition(":")
    if separator and kind in _PATTERNS:
        return _PATTERNS[kind](digests, key, pattern.strip())
    if key in _METRICS:
        label, fmt, value = _METRICS[key]
        needs = _NEEDS.get(key, ())
        return measured(digests, key, label, fmt, value, _PART_OF.get(key, key), needs=needs)
    if any(_is_part(entry, key) for entry in (*entries(), *_ledgers(digests))):
        needs = _entry_needs(key)
        return measured(digests, key, key, Fmt.TIME, lambda d: _of_ledger(d, key), needs=needs)
    raise UsageError(
        f"unknown metric {key!r}",
        why="similar metrics: " + near_matches(key, metric_keys(digests)),
        hint=f"all metrics: {DOCS_URL}/gate.md",
    )


def both(
    before: Sequence[Digest], after: Sequence[Digest], key: str
) -> tuple[ComparedQuantity, ComparedQuantity]:
    """Return a quantity of both sides."""
    return quantity(before, key), quantity(after, key)


def unmatched(pair: tuple[ComparedQuantity, ComparedQuantity], digests: Sequence[Digest]) -> str:
    """Explain that a pattern matches nothing on either side: intended, or a typo."""
    if any(quantity.matched for quantity in pair):
        return ""
    kind, _, pattern = pair[1].key.partition(":")
    names: list[str] = []
    for digest in digests:
        if kind == "kernel":
            names += (kernel.short for kernel in digest.kernels)
        else:
            names += (call.name for call in (digest.api if kind == "api" else digest.ranges))
    names = [name for name in dict.fromkeys(names) if name]
    similar = ", ".join(map(repr, similar_names(pattern, names)))
    return f"matches nothing in any capture{f'; similar names: {similar}' if similar else ''}"


@lru_cache(maxsize=1)
def entries() -> tuple[str, ...]:
    """List every entry that a ledger may have."""
    compute = [f"{COMPUTE}/{category}" for category in CATEGORIES if category != COMMUNICATION]
    copy = [f"{COPY}/{kind}" for kind in _COPY_KINDS]
    return (*compute, GRAPH, *copy, COMMUNICATION, *(cause.entry for cause in IdleCause))


def metric_keys(digests: Sequence[Digest] = ()) -> list[str]:
    """List all keys but patterns, those of the captures' ledgers included."""
    keys = dict.fromkeys((*LIST, *JOB_LIST, COMPUTE, COPY, *entries(), *_ledgers(digests)))
    return [*keys, *(f"phase:{phase}" for phase in PHASES), *(f"finding:{r}" for r in rules())]


def _ledgers(digests: Iterable[Digest]) -> list[str]:
    return list(dict.fromkeys(entry for digest in digests for entry in digest.ledger))


def _is_part(entry: str, key: str) -> bool:
    """Return whether an entry counts for a key: itself, or the group it is of."""
    return bool(key) and f"{entry}/".startswith(f"{key}/")


def _communication(digest: Digest) -> tuple[Reals, Reals]:
    """Return the exposed communication and the step time; of a job, both means over its ranks."""
    if digest.job is not None:
        return np.array(digest.job.communication_ns), np.array(digest.job.step_ns)
    return _of_ledger(digest, COMMUNICATION), np.array(digest.step_ns, float)


def _of_ledger(digest: Digest, key: str) -> Reals:
    return summed((ns for entry, ns in digest.ledger.items() if _is_part(entry, key)), digest)


def _unless_graphs(digest: Digest, series: Sequence[Sequence[float]]) -> Reals | None:
    """Sum series of kernels; None where CUDA graphs hide some of them."""
    return None if GRAPH in digest.ledger else summed(series, digest)


def _bytes(digest: Digest, *, up: bool) -> Reals | None:
    """Sum the bytes of H2D copies (`up`) or D2H copies; unified memory paging is neither."""
    if "copies" in digest.missing and not digest.copies:
        return None
    return summed([c.bytes for c in digest.copies if crosses(c.operation, up=up)], digest)


def crosses(operation: str, *, up: bool) -> bool:
    """Return whether a copy is H2D (`up`) or D2H; unified memory paging is neither."""
    if operation.startswith(_PAGING):
        return False
    source, _, target = operation.partition("-to-")
    ends = (source, target) if up else (target, source)
    return ends[0] == "Host" and ends[1] not in ("", "Host")


_METRICS: dict[str, tuple[str, Fmt, Callable[[Digest], Reals | float | None]]] = {
    "step_time": ("Step time", Fmt.TIME, lambda d: np.array(d.step_ns, float)),
    "between_steps": ("Between steps", Fmt.TIME, lambda d: np.array(d.between_ns, float)),
    "kernel_time": ("Kernel time", Fmt.TIME, lambda d: _unless_graphs(d, [d.kernel_ns])),
    "busy": (
        "GPU busy",
        Fmt.TIME,
        lambda d: summed((ns for entry, ns in d.ledger.items() if not _is_part(entry, IDLE)), d),
    ),
    "idle": ("GPU idle", Fmt.TIME, lambda d: _of_ledger(d, IDLE)),
    "launches": (
        "Kernel launches",
        Fmt.COUNT,
        lambda d: _unless_graphs(d, [k.calls for k in d.kernels]),
    ),
    "memory_peak": (
        "Peak memory",
        Fmt.BYTES,
        lambda d: float(max(d.memory_peak.values())) if d.memory_peak else None,
    ),
    "h2d_bytes": ("H2D bytes", Fmt.BYTES, lambda d: _bytes(d, up=True)),
    "d2h_bytes": ("D2H bytes", Fmt.BYTES, lambda d: _bytes(d, up=False)),
    "findings": (
        "Findings",
        Fmt.COUNT,
        lambda d: None if "findings" in d.missing else float(len(fixes(d))),
    ),
}
_METRICS |= {
    "exposed_communication": ("Exposed communication", Fmt.TIME, lambda d: _communication(d)[0]),
    COMMUNICATION_SHARE: (
        "Exposed communication",
        Fmt.SHARE,
        lambda d: _communication(d)[0] / np.maximum(1.0, _communication(d)[1]),
    ),
    "wait_for_ranks": (
        "Wait for other ranks",
        Fmt.TIME,
        lambda d: None if d.job is None or d.job.wait_ns is None else np.array(d.job.wait_ns),
    ),
    "straggler": (
        "Largest straggler",
        Fmt.SHARE,
        lambda d: None if d.job is None else d.job.straggler_share,
    ),
}
_TIMES = ("step_time", "between_steps", "kernel_time", "launches")
_NEEDS = {
    **dict.fromkeys(_TIMES, (KERNELS,)),  # a step ends when its GPU work is done
    **dict.fromkeys(("busy", "idle"), (KERNELS, COPIES)),
    **dict.fromkeys(("exposed_communication", COMMUNICATION_SHARE), (KERNELS,)),
    "findings": (KERNELS, COPIES, API),
    **dict.fromkeys(("h2d_bytes", "d2h_bytes"), (COPIES,)),
}
"""Sources that a metric is summed over: where one was lost, the metric is missing."""


def _entry_needs(key: str) -> tuple[str, ...]:
    """Return the sources that an entry of the ledger, or a group of entries, is made of."""
    if key == COPY:
        return (COPIES, MEMSETS)
    if key == f"{COPY}/memset":
        return (MEMSETS,)
    if key.startswith(f"{COPY}/"):
        return (COPIES,)
    return (KERNELS, COPIES, API) if _is_part(key, IDLE) else (KERNELS,)


_PART_OF = {
    "h2d_bytes": "copies",
    "d2h_bytes": "copies",
    "kernel_time": "graph",
    "launches": "graph",
    **dict.fromkeys(("wait_for_ranks", "straggler"), "ranks"),
}
