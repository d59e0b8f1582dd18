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
    listed,
    times,
)
from gpusight.naming.kernel_names import classify
from gpusight.results import Field, Fmt, NotApplicable, TableResult
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from gpusight.analysis.questions.question_program import QuestionProgram


_KERNEL_FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of the kernel time of that part of the program"),
    Field("pass_ns", "A pass", Fmt.TIME, "GPU time in one pass or step"),
    Field("launches", "Launches", Fmt.COUNT, "Launches in one pass or step"),
    Field("mean_ns", "Mean", Fmt.TIME, "Average duration of a launch"),
    Field("total_ns", "Total", Fmt.TIME, "GPU time in all of them", shown=False),
    Field("calls", "Launches in all", Fmt.COUNT, "Launches in all of them", shown=False),
    Field("category", "Category", Fmt.TEXT, "What the kernel does, from its name"),
    Field("kernel", "Kernel", Fmt.NAME, "Readable label made from the name"),
    Field("name", "Full name", Fmt.NAME, "Name with template arguments", shown=False),
)
TOP_FIELDS = (
    Field("part", "Part", Fmt.TEXT, "`forward`, `forward+backward` or `step`"),
    *_KERNEL_FIELDS,
    Field("capture", "Capture", Fmt.TEXT, "Which capture it was seen in", shown=False),
)
OTHER_FIELDS = _KERNEL_FIELDS
MATMUL = "matmul"
_TOP = 3
_NAMED = 3
_LONGEST_NAME = 200
_UNKNOWN = "no forward pass is known, see forward_time"
_ALL_OF_IT = "for the kernels of the whole capture: gpusight kernels FILE"
_TRIVIAL = 0.01
"""Kernels with less of a pass than this are not named in the answer."""


def by_name(program: QuestionProgram, kernels: pl.DataFrame, count: int) -> pl.DataFrame:
    """Sum up kernels by name, the most expensive first, with what one of `count` passes has."""
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
    known = [classify(names[code]) for code in frame["code"]]
    return frame.with_columns(
        pl.Series("kernel", [k.short for k in known], pl.String),
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
    return QuestionAnswer(
        _top_sentence(tops),
        {top["part"]: {k: top[k] for k in _SAID} for top in tops},
        (TableResult("top_kernels", title, TOP_FIELDS, frame),),
        (*_in_full(tops), *_uneven(program)),
    )


_SAID = ("name", "kernel", "pass_ns", "launches", "share", "total_ns", "calls", "capture")


def _parts(program: QuestionProgram) -> list[tuple[str, QuestionProgram, pl.DataFrame, int]]:
    """List the parts of a program that have kernels, with how often each ran."""
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
        f"In a forward pass, {first['kernel']} takes most GPU time: {_amount(first)}, launched"
        f" {times(first['launches'])} a pass"
    )
    for top in rest:
        what = "in a whole step" if top["part"] == "step" else "with the backward pass"
        same = "the same kernel" if top["name"] == first["name"] else top["kernel"]
        text += f"; {what} it is {same}: {_amount(top)}, {times(top['launches'])}"
    return text + "."


def _in_full(tops: list[dict[str, Any]]) -> tuple[str, ...]:
    """Give the names behind the labels, as the profiler writes them."""
    names = {top["kernel"]: top["name"] for top in tops if top["name"] != top["kernel"]}
    return tuple(f"{label} is {_cut(name)}" for label, name in names.items())


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _amount(top: dict[str, Any]) -> str:
    return f"{format_time(top['pass_ns'])} ({format_share(top['share'])})"


def _uneven(program: QuestionProgram) -> tuple[str, ...]:
    """Say that passes do not launch the same number of kernels, so that means hide something."""
    counts = program.forward().group_by("pass").len()["len"]
    if counts.n_unique() <= 1:
        return ()
    least, *_, most = counts.sort()
    return (f"forward passes launch from {least:,} to {most:,} kernels: launches are averages",)


def no_forward_kernels(program: QuestionProgram) -> NotApplicable | None:
    """Explain why nothing can be said of the kernels of a forward pass, where that is so."""
    if isinstance(program.passes, NotApplicable):
        return NotApplicable("passes", _UNKNOWN, _ALL_OF_IT)
    if program.forward().is_empty():
        return NotApplicable("passes", "no kernel was launched inside a forward pass")
    return None


# (c) ----------------------------------------------------------------------------------------------


def other_kernels(program: QuestionProgram) -> QuestionAnswer | NotApplicable:
    """Rank the kernels of a forward pass that are no matrix products."""
    absent = no_forward_kernels(program)
    if absent is not None:
        return absent
    frame = by_name(program, program.forward(), program.runs)
    rest = frame.filter(pl.col("category") != MATMUL)
    share = float(rest["share"].sum())
    alike = rest.group_by("kernel", maintain_order=True).agg(pl.col("share").sum())
    most = alike.filter(pl.col("share") >= _TRIVIAL).sort("share", descending=True).head(_NAMED)
    named = [f"{kernel} ({format_share(spent)})" for kernel, spent in most.iter_rows()]
    total = format_time(float(rest["pass_ns"].sum()))
    text = f"{format_share(share)} of a forward pass's kernel time ({total}) is no matrix product"
    text += f"; most of it goes to {listed(named)}." if named else "."
    by = rest.group_by("category", maintain_order=True).agg(pl.col("share").sum())
    title = "(c) Kernels of a forward pass that are no matrix products"
    return QuestionAnswer(
        text,
        {"share": share, "matmul_share": 1 - share, "categories": dict(by.iter_rows())},
        (TableResult("other_kernels", title, OTHER_FIELDS, rest),),
    )


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
MATMUL_SHARE, OTHER, NORMS = "matmul", "other", "softmax and normalisation"
_GROUPS = {
    "matmul": MATMUL_SHARE,
    "convolution": "convolution",
    "attention": "fused attention",
    "softmax": NORMS,
    "normalisation": NORMS,
    "optimizer": OPTIMIZER,
    "communication": "communication",
    "generated": "generated code",
}
"""Categories of kernels -> groups; what is not here is other."""
_ALWAYS = (MATMUL_SHARE, NORMS, OPTIMIZER, OTHER)
_ORDER = (MATMUL_SHARE, "convolution", "fused attention", NORMS, OPTIMIZER, "communication",
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


def shares(
    program: QuestionProgram, other: QuestionProgram | None
) -> QuestionAnswer | NotApplicable:
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


def _untrained(program: QuestionProgram, other: QuestionProgram | None) -> NotApplicable:
    seen = "neither capture shows" if other is not None else "the capture shows no"
    what = "a backward pass or an optimizer" if other is not None else "backward pass or optimizer"
    mark = line_for(program.trace, "backward")
    hint = f"give a capture of training: --compare FILE2; where this one trains, {mark}"
    return NotApplicable("shares", f"{seen} {what} to compare with", hint)


def _forward(program: QuestionProgram) -> _Side:
    return _Side(program.forward(), program.runs, program.label)


def _step(program: QuestionProgram) -> _Side:
    return _Side(program.step(), program.steps or program.runs or 1, program.label)


_CALLED = {
    MATMUL_SHARE: "matrix products",
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
