"""How much slower a job runs than the same job in which all workers take equally long.

The job is simulated twice: with the durations that were measured, and with ideal ones. An ideal
duration is the mean of all operations of a type where they compute, and the median of the transfer
times where they communicate. S = T / T_ideal. What operations, stages or workers cost comes from
the same simulation: with only those as measured (S_t, S_w), or only those made ideal (M_S, M_W).
The definitions are those of Lin et al., "Understanding Stragglers in Large Model Training Using
What-if Analysis" (OSDI 2025), so figures can be compared with published ones.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.ranks.job_schedule import (
    BACKWARD,
    FORWARD,
    TRANSFERS,
    JobSchedule,
    ScheduleError,
    build_schedule,
    is_communication,
)
from gpusight.results import Field, Fmt, NotApplicable, TableResult
from gpusight.units import plural

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import numpy.typing as npt

    from gpusight.analysis.ranks.job_schedule import Floats, Worker

WORST_SHARE = 0.03
"""Part of the workers that counts as the worst ones, rounded up."""
_MIN_LOSS = 1e-9
"""Smaller slowdowns have no causes: they are rounding."""
_WORKER = ["dp_rank", "stage"]
_KEY = [*_WORKER, "operation", "sequence"]


@dataclass(frozen=True, slots=True)
class ExplainedSlowdown:
    """What part of a slowdown a set of workers explains."""

    ranks: tuple[int, ...]
    """Their global ranks."""
    fixed_ns: float
    """Mean step time with these workers ideal and all others as measured."""
    alone_ns: float
    """Mean step time with these workers as measured and all others ideal."""
    share: float | None
    """Part of the loss that disappears with them (M_S, M_W); None where there is no loss."""
    alone_share: float | None
    """Part of the loss that remains where only they are as measured."""


@dataclass(frozen=True, slots=True)
class JobSlowdown:
    """The slowdown of a job and its causes; figures above 1 are slower than ideal."""

    steps: tuple[int, ...]
    skipped_steps: tuple[int, ...]
    """Steps whose operations are not those of the others, such as incomplete ones."""
    stages: int
    dp_ranks: int
    measured_ns: tuple[float, ...]
    simulated_ns: tuple[float, ...]
    """By step, without launch delays."""
    ideal_ns: float
    blocking: float
    """S: simulated over ideal time."""
    launch: float
    """Measured over simulated time."""
    by_operation: Mapping[str, float]
    """S_t, largest first."""
    by_stage: Mapping[int, float]
    by_dp_rank: Mapping[int, float]
    by_rank: Mapping[int, float]
    """S_w by global rank: the smaller one of its stage and its data-parallel rank."""
    last_stage: ExplainedSlowdown
    """M_S: the last stage also computes the loss, so it is often the longest."""
    worst_workers: ExplainedSlowdown
    """M_W: the 3% of workers with the largest S_w."""
    balanced_stages_ns: float = 0.0
    """Mean step time if the compute of a microbatch took equally long on all stages."""

    def document(self) -> dict[str, object]:
        """Return what the key `slowdown` of `gpusight ranks` holds."""
        return {
            "blocking": self.blocking,
            "launch": self.launch,
            "worst_workers": self.worst_workers.share,
            "worst_ranks": list(self.worst_workers.ranks),
            "last_stage": self.last_stage.share,
            "ideal_ns": self.ideal_ns,
            "balanced_stages_ns": self.balanced_stages_ns,
            "step_ns": float(np.mean(self.measured_ns)),
            "by_operation": dict(self.by_operation),
            "by_stage": {str(stage): value for stage, value in self.by_stage.items()},
            "by_dp_rank": {str(rank): value for rank, value in self.by_dp_rank.items()},
            "steps": len(self.steps),
            "skipped_steps": len(self.skipped_steps),
        }


FIELDS = (
    Field("part", "Part", Fmt.TEXT, "What is as measured while everything else is ideal"),
    Field("name", "Name", Fmt.NAME, "Which one of these: an operation, a stage, or ranks"),
    Field("slowdown", "Slowdown", Fmt.REAL, "Step time with only this as measured over ideal time"),
    Field("cost_ns", "Cost/step", Fmt.TIME, "What that adds to the ideal step time"),
    Field(
        "share", "Explains", Fmt.SHARE, "Part of the job's loss that disappears where this is ideal"
    ),
)
_MAX_ROWS_OF_PART = 5
"""Operations, stages and data-parallel ranks in the table: the worst ones; JSON has all."""


def slowdown_table(slowdown: JobSlowdown) -> TableResult:
    """List what slows a job down, whole job first."""
    loss_ns = (slowdown.blocking - 1) * slowdown.ideal_ns
    delay_ns = float(np.mean(slowdown.measured_ns) - np.mean(slowdown.simulated_ns))
    rows: list[tuple[str, str, float, float, float | None]] = [
        ("job", "all operations", slowdown.blocking, loss_ns, None),
        ("job", "launch delays", slowdown.launch, delay_ns, None),
    ]
    for part, chosen in (
        ("last stage", slowdown.last_stage),
        ("worst workers", slowdown.worst_workers),
    ):
        cost_ns = chosen.alone_ns - slowdown.ideal_ns
        factor = chosen.alone_ns / slowdown.ideal_ns
        rows.append((part, _ranks_text(chosen.ranks), factor, cost_ns, chosen.share))
    for part, figures in (
        ("operation", slowdown.by_operation),
        ("stage", slowdown.by_stage),
        ("data-parallel rank", slowdown.by_dp_rank),
    ):
        worst = sorted(figures.items(), key=lambda item: -item[1])[:_MAX_ROWS_OF_PART]
        rows += [(part, str(name), s, (s - 1) * slowdown.ideal_ns, None) for name, s in worst]
    columns = {"part": pl.String, "name": pl.String} | dict.fromkeys(
        ("slowdown", "cost_ns", "share"), pl.Float64
    )
    frame = pl.DataFrame(rows, schema=columns, orient="row").with_columns(
        pl.col("cost_ns").round().cast(pl.Int64)
    )
    notes = ["Clocks between workers matter for transfer times only, not for compute times."]
    if slowdown.skipped_steps:
        skipped = len(slowdown.skipped_steps)
        steps = skipped + len(slowdown.steps)
        notes.insert(0, f"{skipped} of {steps} steps have other operations and were left out.")
    return TableResult(
        "ranks", "Slowdown of the job", FIELDS, frame, meta=slowdown.document(), notes=tuple(notes)
    )


def _ranks_text(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ranks[:_MAX_ROWS_OF_PART]))
    more = len(ranks) - _MAX_ROWS_OF_PART
    return f"{plural('rank', len(ranks))} {shown}" + (f" and {more} more" if more > 0 else "")


def job_slowdown(operations: pl.DataFrame) -> JobSlowdown | NotApplicable:
    """Compute the slowdown of a job from its table (`JOB_COLUMNS` of `readers.job_trace`)."""
    if operations.is_empty():
        return NotApplicable("ranks", "the job trace has no operations")
    used, skipped = _comparable_steps(operations)
    try:
        return _JobModel(used).slowdown(skipped)
    except ScheduleError as error:
        return NotApplicable("ranks", f"the job cannot be simulated: {error}")


def _comparable_steps(operations: pl.DataFrame) -> tuple[pl.DataFrame, tuple[int, ...]]:
    """Choose the steps that have the same operations as most others; list the rest."""
    keyed = operations.with_columns(key=pl.struct(_KEY).rank("dense"))
    sets = {
        int(step): (keys.len(), hash(tuple(keys)))
        for step, keys in keyed.group_by("step").agg(pl.col("key").sort()).iter_rows()
        for keys in [pl.Series(keys)]
    }
    counts = Counter(sets.values())
    # Of equally frequent ones the largest.
    usual = max(counts, key=lambda kinds: (counts[kinds], kinds))
    kept = sorted(step for step, kinds in sets.items() if kinds == usual)
    skipped = tuple(sorted(set(sets) - set(kept)))
    return operations.filter(pl.col("step").is_in(kept)), skipped


class _JobModel:
    """The schedule of a job with measured and ideal durations, in arrays by operation and step."""

    def __init__(self, used: pl.DataFrame) -> None:
        self.steps = tuple(sorted(used["step"].unique().to_list()))
        self.rows = (
            used.group_by(_KEY)
            .agg(
                pl.col("rank", "chunk", "microbatch").first().fill_null(-1),
                pl.col("start_ns", "end_ns").sort_by("step"),
                order=pl.col("start_ns").median(),
                order_end=pl.col("end_ns").median(),
            )
            .sort(*_WORKER, "order", "order_end", "operation", "sequence")
        )
        start, end = (
            np.array(self.rows[name].to_list(), np.float64) for name in ("start_ns", "end_ns")
        )
        self.measured_ns = end.max(axis=0) - start.min(axis=0)
        self.schedule = build_schedule(self.rows)
        self.durations = _work_durations(self.schedule, start, end)
        keys = [key for key, _ in self.schedule.operations]
        self.kinds = np.array([TRANSFERS.get(kind, kind) for _, _, kind, _ in keys])
        self.workers: list[Worker] = [(dp_rank, stage) for dp_rank, stage, _, _ in keys]
        self.ideal = np.empty_like(self.durations)
        for kind in np.unique(self.kinds):
            own = self.kinds == kind
            communicates = kind in TRANSFERS.values() or is_communication(str(kind))
            middle = np.median if communicates else np.mean
            self.ideal[own] = middle(self.durations[own])

    def step_ns(self, measured: npt.NDArray[np.bool_]) -> Floats:
        """Simulate with these operations as measured and all others ideal."""
        return self.schedule.simulate(np.where(measured[:, None], self.durations, self.ideal))

    def slowdown(self, skipped: tuple[int, ...]) -> JobSlowdown:
        everything = np.ones(len(self.kinds), bool)
        simulated = self.step_ns(everything)
        ideal_ns = float(self.step_ns(~everything).mean())
        if ideal_ns <= 0:
            raise ScheduleError("its operations take no time")
        of_dp_rank = np.array([dp_rank for dp_rank, _ in self.workers])
        of_stage = np.array([stage for _, stage in self.workers])

        def alone(labels: npt.NDArray[np.generic]) -> dict[object, float]:
            slowdowns = {
                label.item(): float(self.step_ns(labels == label).mean()) / ideal_ns
                for label in np.unique(labels)
            }
            return dict(sorted(slowdowns.items(), key=lambda item: -item[1]))

        by_stage, by_dp_rank = alone(of_stage), alone(of_dp_rank)
        by_worker = {
            worker: min(by_dp_rank[worker[0]], by_stage[worker[1]])
            for worker in sorted(set(self.workers))
        }
        worst = sorted(by_worker, key=lambda worker: (-by_worker[worker], worker))
        worst = worst[: math.ceil(WORST_SHARE * len(worst))]
        last = [worker for worker in by_worker if worker[1] == int(of_stage.max())]
        ranks = self._ranks()
        mean_ns = float(simulated.mean())
        return JobSlowdown(
            steps=self.steps,
            skipped_steps=skipped,
            stages=len(by_stage),
            dp_ranks=len(by_dp_rank),
            measured_ns=tuple(self.measured_ns.tolist()),
            simulated_ns=tuple(simulated.tolist()),
            ideal_ns=ideal_ns,
            blocking=mean_ns / ideal_ns,
            launch=float(self.measured_ns.mean()) / mean_ns,
            by_operation={str(key): value for key, value in alone(self.kinds).items()},
            by_stage={int(str(key)): value for key, value in by_stage.items()},
            by_dp_rank={int(str(key)): value for key, value in by_dp_rank.items()},
            by_rank={ranks[worker]: value for worker, value in by_worker.items()},
            last_stage=self._explained(last, mean_ns, ideal_ns),
            worst_workers=self._explained(worst, mean_ns, ideal_ns),
            balanced_stages_ns=self._balanced_stages_ns(of_stage),
        )

    def _balanced_stages_ns(self, of_stage: npt.NDArray[np.intp]) -> float:
        """Scale the passes of each stage to the mean of all stages; the sum stays."""
        durations = self.durations.copy()
        for kind in (FORWARD, BACKWARD):
            own = self.kinds == kind
            if not own.any():
                continue
            mean = durations[own].mean()
            for stage in np.unique(of_stage[own]):
                rows = own & (of_stage == stage)
                durations[rows] *= mean / max(1.0, durations[rows].mean())
        return float(self.schedule.simulate(durations).mean())

    def _explained(
        self, workers: Collection[Worker], mean_ns: float, ideal_ns: float
    ) -> ExplainedSlowdown:
        chosen = set(workers)
        own = np.array([worker in chosen for worker in self.workers])
        fixed_ns, alone_ns = (float(self.step_ns(mask).mean()) for mask in (~own, own))
        loss = mean_ns - ideal_ns
        has_loss = abs(loss) > _MIN_LOSS * ideal_ns
        ranks = self._ranks()
        return ExplainedSlowdown(
            ranks=tuple(ranks[worker] for worker in workers),
            fixed_ns=fixed_ns,
            alone_ns=alone_ns,
            share=(mean_ns - fixed_ns) / loss if has_loss else None,
            alone_share=(alone_ns - ideal_ns) / loss if has_loss else None,
        )

    def _ranks(self) -> dict[Worker, int]:
        own = self.rows.select(*_WORKER, "rank").unique(_WORKER, keep="first", maintain_order=True)
        return {(dp_rank, stage): rank for dp_rank, stage, rank in own.iter_rows()}


def _work_durations(schedule: JobSchedule, start: Floats, end: Floats) -> Floats:
    """Return durations of `[operation, step]`; of communication the part after the last arrival."""
    rows = [row for _, row in schedule.operations]
    durations: Floats = end[rows] - start[rows]
    for number, peers in schedule.peers:
        durations[number] = end[rows[number]] - start[peers].max(axis=0)
    return durations
