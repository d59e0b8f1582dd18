"""(b) Top kernel of a pass, (c) kernels other than GEMMs, (d) inference and training shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.aggregates import share_of
from gpusight.analysis.questions.forward_passes import line_for
from gpusight.analysis.questions.question_program import (
    BACKWARD,
    OPTIMIZER,
    QuestionAnswer,
    times,
)
from gpusight.naming.kernel_names import classify, unique_short_names
from gpusight.results import Field, Fmt, NotApplicable, TableResult
from gpusight.units import format_share, format_time, join_words

if TYPE_CHECKING:
    from gpusight.analysis.questions.question_program import QuestionProgram


_KERNEL_FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of the kernel time of that part of the program"),
    Field("pass_ns", "Per pass", Fmt.TIME, "GPU time in one pass or step"),
    Field("launches", "Launches", Fmt.COUNT, "Launches in one pass or step"),
    Field("mean_ns", "Mean", Fmt.TIME, "Average duration of a launch"),
    Field("total_ns", "Total", Fmt.TIME, "GPU time in all of them", shown=False),
    Field("calls", "Launches in all", Fmt.COUNT, "Launches in all of them", shown=False),
    Field("category", "Category", Fmt.TEXT, "What the kernel does, from its name"),
    Field("kernel", "Kernel", Fmt.NAME, "Short name"),
    Field("name", "Full name", Fmt.NAME, "Name with template arguments", shown=False),
)
TOP_FIELDS = (
    Field("part", "Part", Fmt.TEXT, "`forward`, `forward+backward` or `step`"),
    *_KERNEL_FIELDS,
    Field("capture", "Capture", Fmt.TEXT, "Which capture it was seen in", shown=False),
)
OTHER_FIELDS = _KERNEL_FIELDS
_TOP = 3
"""Kernels of each part that are listed."""
_NAMED = 3
_MAX_NAME_CHARS = 200
_MIN_NAMED_SHARE = 0.01
"""Kernels with a smaller share of a pass are not named in the answer."""


def by_name(program: QuestionProgram, kernels: pl.DataFrame, count: int) -> pl.DataFrame:
    """Sum up kernels by name, the most expensive first, also per one of `count` passes."""
    total = int(kernels["duration_ns"].sum())
    frame = (
        kernels.group_by("code", "category", maintain_order=True)
        .agg(
            pl.col("duration_ns").sum().alias("total_ns"),
            pl.len().cast(pl.Int64).alias("calls"),
            pl.col("duration_ns").mean().alias("mean_ns"),
        )
        .sort(["total_ns", "code"], descending=[True, False])
        .with_columns(
            share_of(pl.col("total_ns"), total).alias("share"),
            (pl.col("total_ns") / count).alias("pass_ns"),
            (pl.col("calls") / count).alias("launches"),
        )
    )
    names = program.names
    labels = unique_short_names(names)
    known = [classify(names[code]) for code in frame["code"]]
    return frame.with_columns(
        pl.Series("kernel", [labels[k.raw] for k in known], pl.String),
        pl.Series("name", [k.demangled for k in known], pl.String),
    ).select(f.key for f in _KERNEL_FIELDS)


# (b) ----------------------------------------------------------------------------------------------


def top_kernels(
    program: QuestionProgram, other: QuestionProgram | None
) -> QuestionAnswer | NotApplicable:
    """Find the kernel with most GPU time in a forward pass, and in what comes with it.

    What the capture itself lacks, such as a backward pass, is taken from the `other` one.
    """
    absent = no_forward_kernels(program)
    if absent is not None:
        return absent
    parts = _parts(program)
    if other is not None and not program.trains and other.trains:
        parts += [part for part in _parts(other) if part[0] != "forward"]
    tables = [
        by_name(owner, kernels, count)
        .head(_TOP)
        .select(pl.lit(part).alias("part"), pl.all(), pl.lit(owner.label).alias("capture"))
        for part, owner, kernels, count in parts
    ]
    tops = [table.row(0, named=True) for table in tables]
    frame = pl.concat(tables)
    title = "(b) Kernels with most GPU time, in one pass"
    notes = []
    for label, name in {t["kernel"]: t["name"] for t in tops if t["name"] != t["kernel"]}.items():
        cut = name if len(name) <= _MAX_NAME_CHARS else name[: _MAX_NAME_CHARS - 1] + "…"
        notes.append(f"{label} is {cut}")
    counts = program.forward().group_by("pass").len()["len"]
    if counts.n_unique() > 1:
        few, *_, many = counts.sort()
        notes.append(
            f"forward passes launch from {few:,} to {many:,} kernels: launches are averages"
        )
    return QuestionAnswer(
        _top_sentence(tops),
        {top["part"]: {key: top[key] for key in _TOP_KEYS} for top in tops},
        (TableResult("top_kernels", title, TOP_FIELDS, frame),),
        tuple(notes),
    )


_TOP_KEYS = ("name", "kernel", "pass_ns", "launches", "share", "total_ns", "calls", "capture")


def _parts(program: QuestionProgram) -> list[tuple[str, QuestionProgram, pl.DataFrame, int]]:
    """Return the parts of a program that have kernels: part, program, kernels, number of runs."""
    count = program.runs
    parts = [("forward", program, program.forward(), count)]
    if program.has(BACKWARD):
        parts.append(("forward+backward", program, program.both(), count))
    step = program.step()
    if program.trains and step.height != parts[-1][2].height:
        parts.append(("step", program, step, program.steps or count))
    return [part for part in parts if part[2].height]


def _top_sentence(tops: list[dict[str, Any]]) -> str:
    first, *rest = tops
    text = (
        f"In a forward pass, {first['kernel']} has the most GPU time: {_amount(first)}, launched"
        f" {times(first['launches'])} per pass"
    )
    for top in rest:
        what = "in a whole step" if top["part"] == "step" else "with the backward pass"
        same = "the same kernel" if top["name"] == first["name"] else top["kernel"]
        text += f"; {what} it is {same}: {_amount(top)}, {times(top['launches'])}"
    return text + "."


def _amount(top: dict[str, Any]) -> str:
    return f"{format_time(top['pass_ns'])} ({format_share(top['share'])})"


def no_forward_kernels(program: QuestionProgram) -> NotApplicable | None:
    """Return why the kernels of a forward pass are unknown; None where they are known."""
    if isinstance(program.passes, NotApplicable):
        hint = "for the kernels of the whole capture: gpusight kernels FILE"
        return NotApplicable("passes", "no forward pass is known, see forward_time", hint)
    if program.forward().is_empty():
        return NotApplicable("passes", "no kernel was launched inside a forward pass")
    return None


# (c) ----------------------------------------------------------------------------------------------


def other_kernels(program: QuestionProgram) -> QuestionAnswer | NotApplicable:
    """Rank the kernels of a forward pass that are no GEMMs."""
    absent = no_forward_kernels(program)
    if absent is not None:
        return absent
    frame = by_name(program, program.forward(), program.runs)
    rest = frame.filter(pl.col("category") != MATMUL)
    share = float(rest["share"].sum())
    by_label = rest.group_by("kernel", maintain_order=True).agg(pl.col("share").sum())
    large = by_label.filter(pl.col("share") >= _MIN_NAMED_SHARE).sort("share", descending=True)
    named = [f"{kernel} ({format_share(part)})" for kernel, part in large.head(_NAMED).iter_rows()]
    total = format_time(float(rest["pass_ns"].sum()))
    text = f"{format_share(share)} of a forward pass's kernel time ({total}) is not matmul"
    text += f"; most of it goes to {join_words(named)}." if named else "."
    by_category = rest.group_by("category", maintain_order=True).agg(pl.col("share").sum())
    title = "(c) Kernels of a forward pass other than matmuls"
    return QuestionAnswer(
        text,
        {"share": share, "matmul_share": 1 - share, "categories": dict(by_category.iter_rows())},
        (TableResult("other_kernels", title, OTHER_FIELDS, rest),),
    )


FIELDS = (
    Field("group", "Kernels", Fmt.TEXT, "What they do; the optimizer's whatever they do"),
    Field("inference_share", "Inference", Fmt.SHARE, "Part of the kernel time of forward passes"),
    Field("training_share", "Training", Fmt.SHARE, "Part of the kernel time of whole steps"),
    Field("change", "Change", Fmt.REAL, "Training less inference, in percentage points"),
    Field("inference_ns", "Per pass", Fmt.TIME, "Kernel time in one forward pass"),
    Field("training_ns", "Per step", Fmt.TIME, "Kernel time in one step"),
    Field("inference_launches", "Launches/pass", Fmt.COUNT, "In one forward pass", shown=False),
    Field("training_launches", "Launches/step", Fmt.COUNT, "In one step", shown=False),
)
MATMUL, OTHER, NORMS = "matmul", "other", "softmax and normalization"
_GROUPS = {
    "matmul": MATMUL,
    "convolution": "convolution",
    "attention": "fused attention",
    "softmax": NORMS,
    "normalization": NORMS,
    "optimizer": OPTIMIZER,
    "communication": "communication",
    "generated": "generated code",
}
"""Categories of kernels -> groups; what is not here is other."""
_ALWAYS = (MATMUL, NORMS, OPTIMIZER, OTHER)
_ORDER = (*dict.fromkeys(_GROUPS.values()), OTHER)


@dataclass(frozen=True)
class _Side:
    """Kernels of inference or training, and the number of passes or steps."""

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


def shares(
    program: QuestionProgram, other: QuestionProgram | None
) -> QuestionAnswer | NotApplicable:
    """Compare the forward passes with whole steps, of one capture or of two."""
    sides = _sides(program, other)
    if isinstance(sides, NotApplicable):
        return sides
    inference, training, notes = sides
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
    return QuestionAnswer(
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
    program: QuestionProgram, other: QuestionProgram | None
) -> tuple[_Side, _Side, tuple[str, ...]] | NotApplicable:
    """Choose which capture is inference and which is training, and note what was chosen."""
    programs = [program] if other is None else [program, other]
    trainers = [p for p in programs if p.trains]
    if not trainers:
        missing = "the capture shows no backward pass or optimizer"
        if other is not None:
            missing = "neither capture shows a backward pass or an optimizer"
        mark = line_for(program.trace, "backward")
        hint = f"pass a capture of training: --compare FILE2; if this one trains, {mark}"
        return NotApplicable("shares", f"{missing} to compare with", hint)
    trainer = trainers[0]
    notes: tuple[str, ...] = ()
    inference = next((p for p in programs if not p.trains and no_forward_kernels(p) is None), None)
    if inference is None:
        inference = trainer
        absent = no_forward_kernels(trainer)
        if absent is not None:
            return absent
        both = "both captures train: " if len(trainers) > 1 else ""
        notes = (f"{both}inference is the forward pass of the training step itself",)
    return (
        _Side(inference.forward(), inference.runs, inference.label),
        _Side(trainer.step(), trainer.steps or trainer.runs or 1, trainer.label),
        notes,
    )


_LABELS = {
    MATMUL: "matmuls",
    "convolution": "convolutions",
    NORMS: "softmax and normalization",
    OPTIMIZER: "the optimizer",
}


def _sentence(rows: dict[str, dict[str, Any]]) -> str:
    """Name the groups of the question that take any time, those of most first."""
    used = [rows[group] for group in _LABELS if group in rows and _largest(rows[group])]
    parts = [
        f"{_LABELS[row['group']]} {format_share(row['inference_share'])}"
        f" -> {format_share(row['training_share'])}"
        for row in sorted(used, key=_largest, reverse=True)
    ]
    text = join_words(parts) if parts else "all of it is other work"
    return f"Of the kernel time, from inference to training: {text}."


def _largest(row: dict[str, Any]) -> float:
    return float(max(row["inference_share"], row["training_share"]))
