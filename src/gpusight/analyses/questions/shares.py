"""(d) What kernel time goes to in inference, and in training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analyses.questions.answer import Answer, listed
from gpusight.analyses.questions.kernels import no_forward_kernels
from gpusight.analyses.questions.passes import line_for
from gpusight.analyses.questions.program import OPTIMIZER
from gpusight.result import Field, Fmt, NotApplicable, TableResult
from gpusight.units import format_share

if TYPE_CHECKING:
    from gpusight.analyses.questions.program import Program

FIELDS = (
    Field("group", "Kernels", Fmt.TEXT, "What they do; the optimizer's whatever they do"),
    Field("inference_share", "Inference", Fmt.SHARE, "Part of the kernel time of forward passes"),
    Field("training_share", "Training", Fmt.SHARE, "Part of the kernel time of whole steps"),
    Field("change", "Change", Fmt.REAL, "Training less inference, in percentage points"),
    Field("inference_ns", "A pass", Fmt.TIME, "Kernel time in one forward pass"),
    Field("training_ns", "A step", Fmt.TIME, "Kernel time in one step"),
    Field("inference_launches", "Launches a pass", Fmt.COUNT, "In one forward pass", shown=False),
    Field("training_launches", "Launches a step", Fmt.COUNT, "In one step", shown=False),
)
MATMUL, OTHER, NORMS = "matmul", "other", "softmax and normalisation"
_GROUPS = {
    "matmul": MATMUL,
    "convolution": "convolution",
    "attention": "fused attention",
    "softmax": NORMS,
    "normalisation": NORMS,
    "optimizer": OPTIMIZER,
    "communication": "communication",
    "generated": "generated code",
}
"""Categories of kernels -> groups; what is not here is other."""
_ALWAYS = (MATMUL, NORMS, OPTIMIZER, OTHER)
_ORDER = (MATMUL, "convolution", "fused attention", NORMS, OPTIMIZER, "communication",
          "generated code", OTHER)  # fmt: skip


@dataclass(frozen=True)
class _Side:
    """Kernels of one kind of run, and how often it ran."""

    kernels: pl.DataFrame
    count: int
    capture: str

    def sums(self, prefix: str) -> pl.DataFrame:
        """Sum up by group."""
        total = max(1, int(self.kernels["duration_ns"].sum()))
        category = pl.col("category").replace_strict(_GROUPS, default=OTHER)
        group = pl.when(pl.col("part") == OPTIMIZER).then(pl.lit(OPTIMIZER)).otherwise(category)
        spent = pl.col("duration_ns").sum()
        return self.kernels.group_by(group.alias("group")).agg(
            (spent / total).alias(f"{prefix}_share"),
            (spent / self.count).alias(f"{prefix}_ns"),
            (pl.len() / self.count).alias(f"{prefix}_launches"),
        )


def shares(program: Program, other: Program | None) -> Answer | NotApplicable:
    """Compare the forward passes with whole steps, of one capture or of two."""
    found = _sides(program, other)
    if isinstance(found, NotApplicable):
        return found
    inference, training, notes = found
    frame = (
        pl.DataFrame({"group": _ORDER})
        .join(inference.sums("inference"), on="group", how="left", maintain_order="left")
        .join(training.sums("training"), on="group", how="left", maintain_order="left")
        .filter(
            pl.col("group").is_in(_ALWAYS)
            | pl.col("inference_share").is_not_null()
            | pl.col("training_share").is_not_null()
        )
        .with_columns(pl.exclude("group").fill_null(0.0))
        .with_columns(
            ((pl.col("training_share") - pl.col("inference_share")) * 100).alias("change")
        )
        .select(f.key for f in FIELDS)
    )
    title = "(d) Kernel time by what kernels do: inference against training"
    rows = {row["group"]: row for row in frame.iter_rows(named=True)}
    return Answer(
        _sentence(rows),
        {
            "inference": {group: row["inference_share"] for group, row in rows.items()},
            "training": {group: row["training_share"] for group, row in rows.items()},
            "inference_capture": inference.capture,
            "training_capture": training.capture,
        },
        (TableResult("shares", title, FIELDS, frame),),
        notes,
    )


def _sides(
    program: Program, other: Program | None
) -> tuple[_Side, _Side, tuple[str, ...]] | NotApplicable:
    """Choose which capture is inference and which is training, and say what was chosen."""
    seen = [program] if other is None else [program, other]
    training = [p for p in seen if p.trains]
    inference = [p for p in seen if not p.trains and no_forward_kernels(p) is None]
    if not training:
        return _untrained(program, other)
    trainer = training[0]
    if inference:
        return _forward(inference[0]), _step(trainer), ()
    absent = no_forward_kernels(trainer)
    if absent is not None:
        return absent
    both = "both captures train: " if len(training) > 1 else ""
    note = f"{both}inference is the forward pass of the training step itself"
    return _forward(trainer), _step(trainer), (note,)


def _untrained(program: Program, other: Program | None) -> NotApplicable:
    seen = "neither capture shows" if other is not None else "the capture shows no"
    what = "a backward pass or an optimizer" if other is not None else "backward pass or optimizer"
    mark = line_for(program.trace, "backward")
    hint = f"give a capture of training: --compare FILE2; where this one trains, {mark}"
    return NotApplicable("shares", f"{seen} {what} to compare with", hint)


def _forward(program: Program) -> _Side:
    return _Side(program.forward(), program.runs, program.label)


def _step(program: Program) -> _Side:
    return _Side(program.step(), program.steps or program.runs or 1, program.label)


_CALLED = {
    MATMUL: "matrix products",
    "convolution": "convolutions",
    NORMS: "softmax and normalisation",
    OPTIMIZER: "the optimizer",
}


def _sentence(rows: dict[str, dict[str, Any]]) -> str:
    """Name the groups of the question that take any time, those of most first."""
    seen = [rows[group] for group in _CALLED if group in rows and _largest(rows[group])]
    parts = [
        f"{_CALLED[row['group']]} {format_share(row['inference_share'])}"
        f" -> {format_share(row['training_share'])}"
        for row in sorted(seen, key=_largest, reverse=True)
    ]
    told = listed(parts) if parts else "all of it is other work"
    return f"Of the kernel time, from inference to training: {told}."


def _largest(row: dict[str, Any]) -> float:
    return float(max(row["inference_share"], row["training_share"]))
