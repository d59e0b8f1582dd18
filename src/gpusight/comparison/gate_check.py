"""A gate: limits on metrics, checked with the measured spread: PASS, FAIL or INCONCLUSIVE."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpusight.analysis.capture_completeness import KERNELS
from gpusight.comparison.comparability import (
    INCOMPLETE,
    ONE_CAPTURE,
    all_corrected,
    check_kinds,
    differences,
    each_once,
    other_parts,
)
from gpusight.comparison.compare_digests import check_confidence, compare
from gpusight.comparison.explain_change import explain
from gpusight.comparison.gate_limits import INCONCLUSIVE_POLICIES, LimitKind
from gpusight.comparison.named_metrics import (
    SUMS,
    ComparedQuantity,
    both,
    changes,
    fixes,
    run_noise,
    unmatched,
)
from gpusight.comparison.phrases import overlap_phrase, repeats_phrase
from gpusight.comparison.program_identity import PROFILER
from gpusight.comparison.significance import (
    CONFIDENCE,
    MIN_EFFECT,
    Basis,
    ChangeVerdict,
    MeasuredChange,
    SampledChange,
    repeats_to_settle,
)
from gpusight.errors import UsageError
from gpusight.results import Fmt, NotApplicable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.comparison.comparability import Difference
    from gpusight.comparison.comparison_result import Comparison
    from gpusight.comparison.digest import Digest
    from gpusight.comparison.gate_limits import GateLimit


class CheckStatus(enum.Enum):
    """Result of a check, and of the gate; `SKIPPED` is of checks only."""

    PASSED = "pass"
    """Within the limit."""
    FAILED = "fail"
    """Over the limit by more than noise."""
    INCONCLUSIVE = "inconclusive"
    """Noise, missing data or captures that are not comparable: see `Doubt`."""
    SKIPPED = "skipped"
    """The metric was not recorded, and `allow_missing` accepts that."""


class Doubt(enum.Enum):
    """Why a check is inconclusive."""

    NOISE = "noise"
    """Over the limit, but the interval includes the limit, or how much runs vary is unknown."""
    NOT_COMPARABLE = "not-comparable"
    """The sides differ in GPU, steps, processes or amount of work."""
    NOT_RECORDED = "not-recorded"
    LOST_DATA = "lost-data"


NO_DATA = (Doubt.NOT_RECORDED, Doubt.LOST_DATA)
"""Missing data: `--inconclusive pass` does not accept it."""
EXIT_PASS, EXIT_FAIL, EXIT_INCONCLUSIVE = 0, 1, 3


@dataclass(frozen=True, slots=True)
class GateCheck:
    """One metric against its limit."""

    limit: GateLimit
    label: str
    fmt: Fmt
    change: MeasuredChange
    most: float | None
    """The largest value that is within the limit; None where the baseline is not known."""
    low: float | None
    """Lower end of the interval: of the growth, or of the value itself under a ceiling."""
    high: float | None
    status: CheckStatus
    reason: str
    """Why data is missing, which captures do not count; or ""."""
    doubt: Doubt | None = None
    """Why it is inconclusive or skipped."""
    repeats: int | None = None
    """Estimate of the captures per side that would settle it; None where it is not noise, or
    more than `MAX_REPEATS`."""
    run_noise: float | None = None
    """By how much runs may differ that a single capture per side does not show; None where it is
    measured, or where the metric does not vary so."""

    @property
    def over(self) -> float | None:
        """By how much the value is over the limit; negative within it."""
        known = self.change.after is not None and self.most is not None
        return self.change.after - self.most if known else None  # type: ignore[operator]

    @property
    def reaches_limit(self) -> bool:
        """Whether it passed although its interval reaches over the limit."""
        if self.status is not CheckStatus.PASSED or self.high is None or self.most is None:
            return False
        ceiling = self.limit.kind is LimitKind.CEILING
        return self.high + (0.0 if ceiling else self.change.before or 0.0) > self.most

    @property
    def is_only_run_noise(self) -> bool:
        """Whether the interval settles it, and only the variation from run to run is unknown."""
        if self.run_noise is None or self.doubt is not Doubt.NOISE or self.low is None:
            return False
        if self.over is not None and self.over <= 0:
            return self.high is not None and self.high < 0
        before = 0.0 if self.limit.kind is LimitKind.CEILING else self.change.before or 0.0
        return self.most is not None and self.low + before > self.most

    @property
    def is_measured(self) -> bool:
        """Whether captures show how much runs differ: else no number of them can be estimated."""
        return self.low is not None and not self.is_only_run_noise

    @property
    def needs(self) -> str:
        """How many captures would settle it: `about 12 captures per side`."""
        sides = "captures" if self.limit.kind is LimitKind.CEILING else "captures per side"
        return repeats_phrase(self.repeats, sides, measured=self.is_measured)

    @property
    def settled_by(self) -> str:
        """What to record to settle it, in words."""
        return f"{self.needs} would settle it" if self.is_measured else f"record {self.needs}"

    def document(self) -> dict[str, Any]:
        """Return it as plain objects, for JSON."""
        return {
            "metric": self.limit.metric,
            "limit": self.limit.text,
            "kind": self.limit.kind.value,
            "status": self.status.value,
            "cause": None if self.doubt is None else self.doubt.value,
            "repeats": self.repeats,
            "run_noise": self.run_noise,
            "reaches_limit": self.reaches_limit,
            "most": self.most,
            "over": self.over,
            **self.change.document(),
            "low": self.low,
            "high": self.high,
            "reason": self.reason,
        }


def check_limits(
    before: Sequence[Digest],
    after: Sequence[Digest],
    limits: Sequence[GateLimit],
    confidence: float,
    obstacles: Sequence[Difference] = (),
    overlap: str = "",
) -> tuple[GateCheck, ...]:
    """Check captures against limits, in the order of these; `before` may be empty for ceilings.

    No check passes that one of the `obstacles` concerns. `overlap` is the phrase for kernels that
    only overlap more.
    """
    pairs = [both(before, after, limit.quantity) for limit in limits]
    for limit, (_, now) in zip(limits, pairs, strict=True):
        limit.check_unit(now.fmt)
    grown = changes(pairs, confidence=confidence, least=0.0)
    checks = []
    for limit, pair, change in zip(limits, pairs, grown, strict=True):
        noise = max(run_noise(before, pair[0]), run_noise(after, pair[1]))
        check = _check(limit, pair, change, confidence, noise)
        check = _with_context(check, unmatched(pair, (*before, *after)), after, overlap)
        checks.append(_unless_inconclusive(check, obstacles))
    return tuple(checks)


def _with_context(
    check: GateCheck, unmatched_text: str, after: Sequence[Digest], overlap: str
) -> GateCheck:
    """Add what a reader must know of a metric; what no capture has is missing, unless forbidden."""
    forbidden = check.limit.kind is LimitKind.CEILING and check.limit.value == 0
    if unmatched_text and not forbidden and check.doubt is None:
        check = replace(
            check,
            change=MeasuredChange(None, None, None, None, ChangeVerdict.UNCLEAR, Basis.NONE),
            most=check.most if check.limit.kind is LimitKind.CEILING else None,
            low=None,
            high=None,
            status=CheckStatus.INCONCLUSIVE,
            doubt=Doubt.NOT_RECORDED,
        )
    context = []
    is_open = check.status is CheckStatus.FAILED or check.doubt is Doubt.NOISE
    if is_open and check.fmt is Fmt.TIME and any(not digest.steps for digest in after):
        part = "window" if after[0].scope else "capture"
        context.append(f"no steps: {check.limit.metric} is of the whole {part}")
    if is_open and check.limit.metric == "findings":
        names = dict.fromkeys(finding.rule for digest in after for finding in fixes(digest))
        context.append(", ".join(names))
    if is_open and (check.limit.metric == "kernel_time" or check.limit.metric.startswith(SUMS)):
        context.append(overlap)
    reason = "; ".join(filter(None, (unmatched_text, *context, check.reason)))
    return replace(check, reason=reason)


def _unless_inconclusive(check: GateCheck, obstacles: Sequence[Difference]) -> GateCheck:
    """Let nothing pass that may come from lost data, or from another machine or amount of work.

    What fails, fails nevertheless, but for times with the profiler against times without it.
    """
    ceiling = check.limit.kind is LimitKind.CEILING
    concerning = [
        obstacle
        for obstacle in obstacles
        if (obstacle.data or not ceiling) and obstacle.concerns(check.limit.metric)
    ]
    failed = check.status is CheckStatus.FAILED
    if not concerning or check.doubt in NO_DATA:
        return check
    reason = "; ".join(filter(None, (*(row.text for row in concerning), check.reason)))
    if failed and not any(obstacle.kind == PROFILER for obstacle in concerning):
        return replace(check, reason=reason)
    lost = any(obstacle.kind == INCOMPLETE for obstacle in concerning)
    return replace(
        check,
        status=CheckStatus.INCONCLUSIVE,
        doubt=Doubt.LOST_DATA if lost else Doubt.NOT_COMPARABLE,
        repeats=None,
        reason=reason,
    )


def _check(
    limit: GateLimit,
    pair: tuple[ComparedQuantity, ComparedQuantity],
    change: MeasuredChange,
    confidence: float,
    run_noise: float,
) -> GateCheck:
    now = pair[1]
    ceiling = limit.kind is LimitKind.CEILING
    needed = (now,) if ceiling else pair
    most = None if change.before is None else limit.most(change.before)
    if ceiling:
        most = limit.value
    check = GateCheck(
        limit, now.label, now.fmt, change, most, None, None, CheckStatus.INCONCLUSIVE, ""
    )
    unknown = [side for side in needed if not side.known]
    if unknown:
        doubt = Doubt.LOST_DATA if any(side.lost for side in unknown) else Doubt.NOT_RECORDED
        return replace(check, reason=unknown[0].missing or "not in the captures", doubt=doubt)
    spread = _above(now, limit.value, confidence) if ceiling else change
    shift = limit.value if ceiling else 0.0
    if now.fmt is Fmt.TIME and spread.basis is Basis.STEPS:
        check = replace(check, run_noise=run_noise)
    status = _status(check, spread)
    # No time, size or count is negative.
    least = -shift if ceiling else -(change.before or 0.0)
    noise = status is CheckStatus.INCONCLUSIVE
    repeats = None
    if noise:
        # Low enough, but not significantly lower than the baseline: then 0 is in question.
        bound = _allowed(check) if (check.over or 0.0) > 0 else 0.0
        captures = [len(side.known) for side in needed]
        repeats = repeats_to_settle(spread, bound, captures, confidence)
    return replace(
        check,
        change=replace(change, basis=spread.basis),
        low=None if spread.low is None else max(spread.low, least) + shift,
        high=None if spread.high is None else spread.high + shift,
        status=status,
        doubt=Doubt.NOISE if noise else None,
        repeats=repeats,
        reason="; ".join(f"not counted: {side.missing}" for side in needed if side.missing),
    )


def _status(check: GateCheck, spread: MeasuredChange) -> CheckStatus:
    """Compare the mean with the limit, then its interval: over the limit, noise must not reach it.

    A time of which each side has one sample is never settled; counts and bytes hardly vary. The
    steps of one capture per side show too little: `run_noise` must not reach the limit either.
    """
    over = check.over
    assert over is not None
    appeared = spread.verdict is ChangeVerdict.APPEARED and check.run_noise is None
    beyond = over if over > 0 else -(spread.delta or 0.0)
    if spread.low is None or spread.high is None:
        settled = check.fmt is not Fmt.TIME or appeared
    elif over > 0:
        settled = spread.low > _allowed(check) or appeared
    else:
        settled = spread.high < 0  # of a required improvement: it must be significant
    settled = settled and beyond > (check.run_noise or 0.0)
    if over <= 0:
        needs_more = check.limit.improvement and not settled
        return CheckStatus.INCONCLUSIVE if needs_more else CheckStatus.PASSED
    return CheckStatus.FAILED if settled else CheckStatus.INCONCLUSIVE


def _allowed(check: GateCheck) -> float:
    """Return the largest change within the limit; under a ceiling, of the value above that."""
    if check.limit.kind is LimitKind.CEILING:
        return 0.0
    return (check.most or 0.0) - (check.change.before or 0.0)


def _above(now: ComparedQuantity, ceiling: float, confidence: float) -> MeasuredChange:
    """Compare a side with a value that does not vary; one end of the interval is of interest."""
    fixed = tuple(
        SampledChange(value.blocks, np.full_like(value.values, ceiling))
        if isinstance(value, SampledChange)
        else float(ceiling)
        for value in now.known
    )
    pair = replace(now, by_capture=fixed), replace(now, by_capture=now.known)
    return changes([pair], confidence=2 * confidence - 1, least=0.0)[0]


@dataclass(frozen=True)
class Gate:
    """All checks, and the outcome."""

    checks: tuple[GateCheck, ...]
    baseline: tuple[str, ...]
    """Names of the captures to compare with; none where all limits are ceilings."""
    captures: tuple[str, ...]
    confidence: float
    inconclusive: str | None = None
    """One of `INCONCLUSIVE_POLICIES`: what an inconclusive gate counts as."""
    allow_missing: bool = False
    differences: tuple[Difference, ...] = ()
    """What keeps the captures from being compared, also where that is accepted."""
    allow_changed: tuple[str, ...] = ()
    """Kinds of differences that are accepted."""
    comparison: Comparison | None = None
    corrected: bool = False
    """Whether all times are without the profiler."""
    notes: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    command: str = "gate"
    title: str = "Gate"

    @property
    def outcome(self) -> CheckStatus:
        """FAIL where a check fails, else INCONCLUSIVE where one is, else PASS."""
        statuses = {check.status for check in self.checks}
        for status in (CheckStatus.FAILED, CheckStatus.INCONCLUSIVE):
            if status in statuses:
                return status
        # A gate that measured nothing does not pass.
        measured = CheckStatus.PASSED in statuses
        return CheckStatus.PASSED if measured else CheckStatus.INCONCLUSIVE

    @property
    def exit_code(self) -> int:
        """0 PASS, 1 FAIL, 3 INCONCLUSIVE; `inconclusive` makes that 0 or 1."""
        if self.passed:
            return EXIT_PASS
        is_failure = self.outcome is CheckStatus.FAILED or self.inconclusive == "fail"
        return EXIT_FAIL if is_failure else EXIT_INCONCLUSIVE

    @property
    def passed(self) -> bool:
        """Whether the exit code is 0."""
        if self.outcome is not CheckStatus.INCONCLUSIVE:
            return self.outcome is CheckStatus.PASSED
        measured = any(check.status is not CheckStatus.SKIPPED for check in self.checks)
        return measured and not any(self.fails(check) for check in self.checks)

    def fails(self, check: GateCheck) -> bool:
        """Whether a check keeps the exit code from being 0; every output format uses this."""
        if check.status is CheckStatus.INCONCLUSIVE:
            return self.inconclusive != "pass" or check.doubt in NO_DATA
        return check.status is CheckStatus.FAILED

    def having(self, status: CheckStatus) -> list[GateCheck]:
        """Return the checks of one status."""
        return [check for check in self.checks if check.status is status]

    def document(self) -> dict[str, Any]:
        """Return it as plain objects, for JSON."""
        return {
            "meta": {
                "command": self.command,
                "title": self.title,
                "baseline": list(self.baseline),
                "captures": list(self.captures),
                "confidence": self.confidence,
                "inconclusive": self.inconclusive,
                "allow_missing": self.allow_missing,
                "allow_changed": list(self.allow_changed),
                "without_profiler": self.corrected,
                "notes": list(self.notes),
                **self.meta,
            },
            "passed": self.passed,
            "outcome": self.outcome.value,
            "exit_code": self.exit_code,
            "differences": [
                {**difference.document(), "allowed": difference.kind in self.allow_changed}
                for difference in self.differences
            ],
            "checks": [check.document() for check in self.checks],
            "explanation": list(self.comparison.explanation) if self.comparison else [],
        }


def gate(
    before: Sequence[Digest],
    after: Sequence[Digest],
    limits: Sequence[GateLimit],
    *,
    confidence: float = CONFIDENCE,
    least: float = MIN_EFFECT,
    inconclusive: str | None = None,
    allow_missing: bool = False,
    allow_changed: Sequence[str] = (),
) -> Gate | NotApplicable:
    """Check captures against limits; `before` is the baseline, and may be empty for ceilings.

    `least` applies to the explanation only: a limit has its own threshold. `inconclusive` is one of
    `INCONCLUSIVE_POLICIES`. `allow_changed` accepts kinds of `differences` by name.
    """
    check_policy(inconclusive)
    allowed = check_kinds(allow_changed)
    _check_request(before, after, limits, confidence)
    if absent := other_parts((*before, *after), "gate"):
        return absent
    comparison = compare(before, after, confidence=confidence, least=least) if before else None
    if isinstance(comparison, NotApplicable):
        if not any(KERNELS in digest.lost for digest in (*before, *after)):
            return comparison
        comparison = None  # lost kernels may hide the steps too: then the metrics are missing
    (before, _), (after, notes) = each_once(before), each_once(after)
    notes += [note for digest in after for note in digest.notes]
    if len(after) == 1:
        notes.append(f"{ONE_CAPTURE}: run-to-run variation is not measured; record 3 or more")
    found = differences(before, after)
    obstacles = [difference for difference in found if difference.kind not in allowed]
    overlap = overlap_phrase(comparison) if comparison else ""
    checks = check_limits(before, after, limits, confidence, obstacles, overlap)
    for check in checks:
        if comparison and check.limit.metric == "step_time" and check.doubt is Doubt.NOISE:
            settled_by = f"{check.needs} would settle the limit of {check.limit.text}"
            settled_by = settled_by if check.is_measured else check.settled_by
            comparison = replace(comparison, explanation=explain(comparison, settled_by))
    return Gate(
        _with_skipped(checks) if allow_missing else checks,
        tuple(digest.label for digest in before),
        tuple(digest.label for digest in after),
        confidence,
        inconclusive=inconclusive,
        allow_missing=allow_missing,
        differences=found,
        allow_changed=allowed,
        comparison=comparison,
        corrected=all_corrected((*before, *after)),
        notes=comparison.notes if comparison else tuple(dict.fromkeys(notes)),
    )


def check_policy(inconclusive: str | None) -> str | None:
    """Return what `--inconclusive` got; raise for an unknown word."""
    if inconclusive not in (None, *INCONCLUSIVE_POLICIES):
        what = f"{inconclusive!r} is not a value of inconclusive"
        raise UsageError(what, hint=f"write {' or '.join(INCONCLUSIVE_POLICIES)}")
    return inconclusive


def _with_skipped(checks: Sequence[GateCheck]) -> tuple[GateCheck, ...]:
    """Skip metrics that were not recorded, unless that leaves nothing measured."""
    if all(check.doubt in NO_DATA for check in checks):
        return tuple(checks)
    return tuple(
        replace(check, status=CheckStatus.SKIPPED) if check.doubt is Doubt.NOT_RECORDED else check
        for check in checks
    )


def _check_request(
    before: Sequence[Digest],
    after: Sequence[Digest],
    limits: Sequence[GateLimit],
    confidence: float,
) -> None:
    check_confidence(confidence)
    if not limits or not after:
        what = "capture" if limits else "limit"
        raise UsageError(f"no {what} was given", hint="a gate without one would always pass")
    relative = [limit for limit in limits if limit.kind is not LimitKind.CEILING]
    if relative and not before:
        raise UsageError(
            f"{str(relative[0])!r} needs a baseline, and none is given",
            hint="create one: gpusight baseline save CAPTURE… -o baseline.json, "
            "then add --baseline baseline.json",
        )
