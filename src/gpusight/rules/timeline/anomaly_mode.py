"""anomaly-mode: each backward operator checks its results for NaN, and reads the answer back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.replay.changes import free_calls, remove, without_host_time
from gpusight.analysis.replay.simulation import owners
from gpusight.rules.context import memoize
from gpusight.rules.finding import Confidence
from gpusight.rules.formatting import called_from, largest, summed_locations
from gpusight.rules.locations import groups
from gpusight.rules.patterns.fusable_kernels import parts_of
from gpusight.rules.patterns.host_gaps import host_unknown, waits
from gpusight.rules.patterns.kernel_groups import backward_threads, kernels_unseen, total_ns
from gpusight.rules.rule import CLEAN, RuleMatch, RuleVerdict, Threshold, TimelineRule

if TYPE_CHECKING:
    from gpusight.analysis.replay.changes import Change
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.trace.intervals import Ints


MIN_CHECKS_PER_STEP = Threshold(
    10, "checks per step in the backward pass; a gradient scaler has one, clipping a few"
)
MAX_ANSWER_BYTES = Threshold(8, "bytes of an answer: a boolean, or a number")
MIN_SYNC_SHARE = Threshold(
    0.5, "share of all blocking syncs in these checks, above which host-sync has the same cause"
)
_CHECKS = r"^elementwise (?:compare|ne\b|isnan|isinf)|^reduce (?:or|any)|^\[memset\]"
_ANSWERS = r"^reduce (?:or|any)"
_MIN_OPERATOR_NS = 5_000
"""Least host time between the launches of two operators, in any framework; less is within one."""
_MAX_NS = np.iinfo(np.int64).max
_MAX_PARTS = 3
"""Activities of a check before its answer: a comparison, a memset, a reduction."""


class AnomalyMode(TimelineRule):
    """NaN checks of autograd."""

    id = "anomaly-mode"
    detects = (
        "Looks for values of a few bytes that autograd's thread reads back after a reduction. "
        "Anomaly detection checks the result of each backward operator for NaN like this."
    )
    why = (
        "Anomaly detection is a setting for debugging. It compares each gradient, reduces the "
        "result, copies it to the host and waits. It also records a traceback for each forward "
        "operator."
    )
    fix = "Turn anomaly detection off."
    code = """\
torch.autograd.set_detect_anomaly(False)       # also: with torch.autograd.detect_anomaly()
Trainer(detect_anomaly=False)                  # Lightning
"""
    verify = "`gpusight copies` shows no D2H copies of 1 byte; `gpusight api` shows fewer syncs."
    caveats = "Hooks of the program that check gradients one by one look the same."
    estimate = (
        "Simulation without the checks: their kernels, copies and syncs. Without tracebacks, the "
        "host takes as long for a launch in the forward pass as in the backward pass."
    )
    effort = "one line"
    thresholds: ClassVar = {
        "min_checks_per_step": MIN_CHECKS_PER_STEP,
        "max_answer_bytes": MAX_ANSWER_BYTES,
        "min_sync_share": MIN_SYNC_SHARE,
    }
    min_share = None
    removes_work = True

    def check(self, context: RuleContext) -> RuleVerdict:
        """Count the answers that autograd's thread reads back."""
        if (unknown := host_unknown(context) or kernels_unseen(context)) is not None:
            return unknown
        checks = _checks(context)
        if checks.count < MIN_CHECKS_PER_STEP.value * context.per_step:
            return CLEAN
        rows = checks.rows
        blocking = waits(context).filter(~pl.col("large"))
        own = blocking.filter(
            pl.col("calls").list.eval(pl.element().is_in(checks.calls.tolist())).list.any()
        )
        where = largest(
            *called_from(context, rows).values(), summed_locations(rows, "kernel", "label")
        )
        same = own.height >= MIN_SYNC_SHARE.value * max(1, blocking.height)
        return RuleMatch(
            title=f"Anomaly detection: {context.count_per_step(checks.count, 'NaN check')}",
            evidence=(
                context.evidence("checks", checks.count, "", "NaN checks in backward"),
                context.evidence("check_ns", total_ns(rows), "ns", "GPU time of the checks"),
                context.evidence("syncs", own.height, "", "Blocking syncs of the checks"),
            ),
            confidence=Confidence.MEDIUM,
            confidence_reason="the checks were measured; the time of forward tracebacks is "
            "estimated",
            change=(
                free_calls(checks.calls),
                remove(rows["op"].to_numpy()),
                _without_tracebacks(context, checks),
            ),
            fix=f"Autograd's thread compares gradients and reads "
            f"{context.count_per_step(checks.count, 'answer')} back, as "
            "torch.autograd.set_detect_anomaly(True) does. Turn it off once the NaN is found, then "
            "record again: other findings may change.",
            where=where,
            also=(
                "launch-bound",
                "graph-candidate",
                "host-bound",
                *(("host-sync",) if same else ()),
            ),
        )

    def locate(self, context: RuleContext, _: TimelineFinding) -> pl.DataFrame:
        """Find the checks."""
        rows = _checks(context).rows
        number = np.full(context.ops.height, -1, np.int64)
        number[rows["op"].to_numpy()] = rows["check"].to_numpy()
        return groups(context, number)


def _without_tracebacks(context: RuleContext, checks: _NanChecks) -> Change:
    """Let the host take no longer between launches of the forward pass than of the backward pass.

    The time before a call counts where it is the framework's: not data loading, not the optimizer.
    Time before the small calls that lead to a launch, such as queries, is of that launch.
    """
    program, schedule = context.replay.program, context.schedule
    owner = owners(program)
    leading = np.flatnonzero(owner >= 0)
    host_ns = np.bincount(owner[leading], program.movable_ns[leading], len(owner)).astype(np.int64)
    autograd = backward_threads(context)
    # GEMMs clear their result by a memset first.
    launches = context.calls.filter(pl.col("kind").cast(pl.String).is_in(("launch", "memset")))
    in_backward = pl.col("thread").is_in(autograd)
    of_checks = schedule.ops.call[checks.rows["op"].to_numpy()]
    # One operator launches several kernels in a row: the time between those is not an operator's.
    backward = np.setdiff1d(launches.filter(in_backward)["call"].to_numpy(), of_checks)
    between_ns = host_ns[backward][host_ns[backward] >= _MIN_OPERATOR_NS]
    optimizer = schedule.ops.call[parts_of(context).optimizer.group >= 0]
    forward = np.setdiff1d(launches.filter(~in_backward)["call"].to_numpy(), optimizer)
    usual_ns = int(np.median(between_ns)) if len(between_ns) else _MAX_NS
    kept = np.minimum(1, usual_ns / np.maximum(host_ns, 1))
    in_forward = leading[np.isin(owner[leading], forward)]
    removed_ns = (program.movable_ns * (1 - kept[owner]))[in_forward].astype(np.int64)
    return without_host_time(in_forward, removed_ns)


@dataclass(frozen=True)
class _NanChecks:
    rows: pl.DataFrame
    """Rows of `RuleContext.ops`, with the number of their `check`."""
    calls: Ints
    """Copy calls and synchronizing calls of the answers."""
    count: int


@memoize
def _checks(context: RuleContext) -> _NanChecks:
    """Find copies of answers in autograd's thread, and the activities that lead to them."""
    calls = context.calls.filter(pl.col("thread").is_in(backward_threads(context)))
    rows = context.ops.join(calls.select("call"), on="call").sort("call", "op")
    answer = (
        (pl.col("kind") == "copy")
        & (pl.col("direction") == "Device-to-Host")
        & (pl.col("bytes") <= MAX_ANSWER_BYTES.value)
        & pl.col("label").shift(1).str.contains(_ANSWERS)
    )
    is_answer = rows.select(answer.fill_null(value=False)).to_series().to_numpy()
    leads = rows["label"].str.contains(_CHECKS).fill_null(value=False).to_numpy()
    number = np.full(len(is_answer), -1, np.int64)
    at = np.flatnonzero(is_answer)
    number[at] = np.arange(len(at))
    before, going_on = at, np.ones(len(at), np.bool_)
    for _ in range(_MAX_PARTS):
        before = before - 1
        going_on = going_on & (before >= 0) & leads[before]
        number[before[going_on]] = np.flatnonzero(going_on)
    checks = rows.with_columns(pl.Series("check", number)).filter(pl.Series(number >= 0))
    # The synchronizing call right after the copy waits for the answer.
    follows = calls.with_columns(pl.col("call").shift(1).alias("previous"))
    copies = rows.filter(pl.Series(is_answer))["call"]
    syncs = follows.filter(
        pl.col("previous").is_in(copies.implode()), pl.col("kind").cast(pl.String) == "sync"
    )["call"]
    of_answers: Ints = np.union1d(copies.to_numpy(), syncs.to_numpy())
    return _NanChecks(checks, of_answers, len(at))
