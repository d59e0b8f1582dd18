"""The result of `gpusight compare`, and the same as plain objects for JSON."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpusight.comparison.program_identity import KERNEL_COUNT, PROGRAM
from gpusight.comparison.significance import Basis

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.comparison.comparability import Difference
    from gpusight.comparison.significance import MeasuredChange
    from gpusight.results import Fmt


def confidence_of_rows(confidence: float) -> float:
    """Return the confidence for rows, of which there may be hundreds: 99% where it is 95%."""
    return 1 - (1 - confidence) / 5


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """One side of a comparison."""

    labels: tuple[str, ...]
    """Names of the captures."""
    tools: tuple[str, ...]
    gpus: tuple[str, ...]
    """Names of the GPUs of one capture, one for each that worked."""
    steps: tuple[int, ...]
    """Steps of each capture; 0 where none are known."""
    step_ns: tuple[float, ...]
    """Step time of each capture, as in `diagnose`: its window divided by its steps."""
    limit: str
    """The bottleneck of the step: `gpu`, `host`, `input`, …, in one word."""
    busy_share: float | None
    """Share of the window in which the GPU is busy."""
    host_share: float | None = None
    """Share of the step that the host needs even if GPU work takes no time; None if unknown."""
    recorded_step_ns: tuple[float, ...] = ()
    """Step time under the profiler of those captures that were corrected for it."""
    is_estimate: bool = False
    """The step time of a capture without the profiler is estimated."""
    process: str = ""
    """Of one capture: whose steps they are, where several processes used the GPU."""


@dataclass(frozen=True, slots=True)
class MetricChange:
    """One metric of the capture: step time, kernel time, memory peak."""

    key: str
    """What `gate --max` calls it."""
    label: str
    fmt: Fmt
    change: MeasuredChange
    missing: str = ""
    """Why a side lacks it."""


@dataclass(frozen=True, slots=True)
class EntryChange:
    """One entry of the ledger."""

    entry: str
    change: MeasuredChange
    part: float | None
    """Its change as a share of the total change; None where the total did not change."""


class KernelMatch(enum.Enum):
    """How kernels of the two sides were matched."""

    NAME = "name"
    ROLE = "role"
    """Different names at the same position: same range, order and category."""
    APPEARED = "appeared"
    VANISHED = "vanished"


@dataclass(frozen=True, slots=True)
class KernelChange:
    """GPU time per step of one kernel, or of those that replaced it."""

    before: tuple[str, ...]
    """Full names, the most expensive first; none where it appeared."""
    after: tuple[str, ...]
    short: str
    """Short name; `old -> new` where it was replaced."""
    category: str
    ranges: tuple[str, ...]
    """Ranges that it was launched in, the most expensive first."""
    match: KernelMatch
    ns: MeasuredChange
    calls_before: float
    calls_after: float

    @property
    def mean_ns(self) -> tuple[float | None, float | None]:
        """Time of one launch, before and after."""
        pairs = ((self.ns.before, self.calls_before), (self.ns.after, self.calls_after))
        before, after = (ns / calls if ns is not None and calls else None for ns, calls in pairs)
        return before, after


@dataclass(frozen=True, slots=True)
class CallChange:
    """Host time per step of ranges or API calls of one name."""

    name: str
    host_ns: MeasuredChange
    gpu_ns: MeasuredChange | None
    calls_before: float
    calls_after: float
    outer: bool = False
    """A range in no other range but the step: such times do not overlap."""
    calls: MeasuredChange | None = None
    """Their number, tested; None for ranges."""


@dataclass(frozen=True, slots=True)
class CopyChange:
    """Time per step of copies of one kind."""

    operation: str
    src_kind: str | None
    dst_kind: str | None
    ns: MeasuredChange
    bytes_before: float
    bytes_after: float
    calls_before: float
    calls_after: float
    calls: MeasuredChange | None = None
    """Their number, tested."""


class FindingStatus(enum.Enum):
    """How a finding changed."""

    FIXED = "fixed"
    """Every capture showed it before, none does after."""
    NEW = "new"
    STAYED = "stayed"
    """Anything else: some captures of a side may show it and others not."""
    NOT_EVALUATED_AFTER = "not evaluated after"
    """Only the captures before show it, but a capture after lacks the data of its rule."""
    NOT_EVALUATED_BEFORE = "not evaluated before"


@dataclass(frozen=True, slots=True)
class FindingChange:
    """A finding of one side or both."""

    rule: str
    title: str
    """Title on the later side, where that has the finding."""
    status: FindingStatus
    before_ns: float | None
    """Time per step that its fix alone would save; None where it is absent or has no estimate.

    Not what it saves after other fixes, as in the plan: of these the other side may have none.
    """
    after_ns: float | None
    captures_before: int
    """Captures that show it."""
    captures_after: int
    capture: str = ""
    """Name of the capture that `title` is of."""
    captures: tuple[int, int] = (1, 1)
    """Captures of either side that could be diagnosed."""
    not_evaluated: str | None = None
    """Why the rule was not evaluated on the side that does not show it; None where it was."""

    @property
    def shown_by(self) -> str:
        """How many captures show it, of how many: `1 of 3 -> 3 of 3`."""
        sides = zip((self.captures_before, self.captures_after), self.captures, strict=True)
        return " -> ".join(f"{having} of {captures}" for having, captures in sides)


@dataclass(frozen=True)
class Comparison:
    """Two sides, part by part."""

    before: ComparedSide
    after: ComparedSide
    metrics: tuple[MetricChange, ...]
    """`step_time` first."""
    ledger: tuple[EntryChange, ...]
    """Those that changed most first; they sum to the step on either side."""
    phases: tuple[tuple[str, MeasuredChange], ...]
    """GPU work by phase."""
    kernels: tuple[KernelChange, ...]
    """Those that changed most first; they sum to the kernel time on either side."""
    ranges: tuple[CallChange, ...]
    api: tuple[CallChange, ...]
    copies: tuple[CopyChange, ...]
    findings: tuple[FindingChange, ...]
    explanation: tuple[str, ...]
    """Why it changed, or did not, in sentences; the first is about the step time."""
    confidence: float
    """Of intervals; those of kernels, API calls, copies and inner ranges have `of_rows`."""
    least: float
    """Changes below this share count as none."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Limitations: few captures, other tools or GPUs, missing data."""
    differences: tuple[Difference, ...] = ()
    """What makes the captures not comparable: lost data, other GPUs, other work."""
    run_noise_ns: float = 0.0
    """By how much the step times of two runs of one program may differ."""
    command: str = "compare"
    title: str = "Before and after"

    @property
    def step(self) -> MeasuredChange:
        """The step time."""
        return self.headline.change

    @property
    def within_run_noise(self) -> bool:
        """Whether runs of one program may differ as much, of which each side has one only."""
        step = self.step
        return step.basis is Basis.STEPS and abs(step.delta or 0.0) <= self.run_noise_ns

    @property
    def other_program(self) -> str:
        """What shows that the sides are of different programs; empty where they may be of one."""
        texts = (row.text for row in self.differences if row.kind == PROGRAM)
        return next(texts, "").partition(": ")[2]

    @property
    def is_comparable(self) -> bool:
        """Whether more captures would show more: the same GPUs, steps, profiler and program.

        Another number of kernels may be the change whose effect is in question.
        """
        return all(row.whole or row.kind == KERNEL_COUNT for row in self.differences)

    @property
    def has_steps(self) -> bool:
        """Whether times are per step; else the whole window counts as one."""
        return any((*self.before.steps, *self.after.steps))

    @property
    def corrected(self) -> bool:
        """Whether all times are without the profiler."""
        sides = (self.before, self.after)
        return all(len(side.recorded_step_ns) == len(side.labels) for side in sides)

    @property
    def headline(self) -> MetricChange:
        """The metric that the verdict is about: step time."""
        return self.metrics[0]

    @property
    def of_rows(self) -> float:
        """Confidence of the intervals of kernels, API calls, copies and inner ranges."""
        return confidence_of_rows(self.confidence)

    def metric(self, key: str) -> MetricChange:
        """Return a metric by its key."""
        return next(metric for metric in self.metrics if metric.key == key)

    def document(self) -> dict[str, Any]:
        """Return the document that `--format json` writes; every part is there, empty or not."""
        return {
            "meta": {
                "command": self.command,
                "title": self.title,
                "before": _side(self.before),
                "after": _side(self.after),
                "confidence": self.confidence,
                "confidence_of_rows": round(self.of_rows, 6),
                "least_effect": self.least,
                **self.meta,
                "notes": list(self.notes),
            },
            "verdict": {
                self.headline.key: {
                    **self.step.document(),
                    "run_noise": self.run_noise_ns if self.step.basis is Basis.STEPS else None,
                }
            },
            "differences": [row.document() for row in self.differences],
            "explanation": list(self.explanation),
            "metrics": [
                {
                    "metric": metric.key,
                    "label": metric.label,
                    **metric.change.document(),
                    "missing": metric.missing or None,
                }
                for metric in self.metrics
            ],
            "ledger": [
                {"entry": row.entry, "part": row.part, **row.change.document()}
                for row in self.ledger
            ],
            "phases": [{"phase": name, **change.document()} for name, change in self.phases],
            "kernels": [_kernel(row) for row in self.kernels],
            "ranges": [_call(row) for row in self.ranges],
            "api_calls": [_call(row) for row in self.api],
            "copies": [_copy(row) for row in self.copies],
            "findings": [_finding(row) for row in self.findings],
        }


def _side(side: ComparedSide) -> dict[str, Any]:
    return {
        "labels": list(side.labels),
        "tools": list(side.tools),
        "gpus": list(side.gpus),
        "steps": list(side.steps),
        "step_ns": list(side.step_ns),
        "recorded_step_ns": list(side.recorded_step_ns),
        "estimated": side.is_estimate,
        "limit": side.limit,
        "busy_share": side.busy_share,
        "host_share": side.host_share,
    }


def _kernel(row: KernelChange) -> dict[str, Any]:
    mean_before, mean_after = row.mean_ns
    return {
        "kernel": row.short,
        "category": row.category,
        "match": row.match.value,
        "before_names": list(row.before),
        "after_names": list(row.after),
        "ranges": list(row.ranges),
        **row.ns.document(),
        "calls_before": row.calls_before,
        "calls_after": row.calls_after,
        "mean_ns_before": mean_before,
        "mean_ns_after": mean_after,
    }


def _call(row: CallChange) -> dict[str, Any]:
    return {
        "name": row.name,
        **row.host_ns.document(),
        "calls_before": row.calls_before,
        "calls_after": row.calls_after,
        "gpu": None if row.gpu_ns is None else row.gpu_ns.document(),
    }


def _copy(row: CopyChange) -> dict[str, Any]:
    return {
        "operation": row.operation,
        "src_kind": row.src_kind,
        "dst_kind": row.dst_kind,
        **row.ns.document(),
        "bytes_before": row.bytes_before,
        "bytes_after": row.bytes_after,
        "calls_before": row.calls_before,
        "calls_after": row.calls_after,
    }


def _finding(row: FindingChange) -> dict[str, Any]:
    return {
        "rule": row.rule,
        "title": row.title,
        "fate": row.status.value,
        "before_ns": row.before_ns,
        "after_ns": row.after_ns,
        "captures_before": row.captures_before,
        "captures_after": row.captures_after,
        "capture": row.capture,
        "not_evaluated": row.not_evaluated,
    }
