"""(b) The kernel with most GPU time in a pass, and (c) those that are no matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analyses.questions.answer import Answer, listed, times
from gpusight.analyses.questions.program import BACKWARD
from gpusight.analyses.statistics import share_of
from gpusight.model.kernel_names import classify
from gpusight.result import Field, Fmt, NotApplicable, TableResult
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from gpusight.analyses.questions.program import Program

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


def by_name(program: Program, kernels: pl.DataFrame, count: int) -> pl.DataFrame:
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


def top_kernels(program: Program, other: Program | None) -> Answer | NotApplicable:
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
    return Answer(
        _top_sentence(tops),
        {top["part"]: {k: top[k] for k in _SAID} for top in tops},
        (TableResult("top_kernels", title, TOP_FIELDS, frame),),
        (*_in_full(tops), *_uneven(program)),
    )


_SAID = ("name", "kernel", "pass_ns", "launches", "share", "total_ns", "calls", "capture")


def _parts(program: Program) -> list[tuple[str, Program, pl.DataFrame, int]]:
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


def _uneven(program: Program) -> tuple[str, ...]:
    """Say that passes do not launch the same number of kernels, so that means hide something."""
    counts = program.forward().group_by("pass").len()["len"]
    if counts.n_unique() <= 1:
        return ()
    least, *_, most = counts.sort()
    return (f"forward passes launch from {least:,} to {most:,} kernels: launches are averages",)


def no_forward_kernels(program: Program) -> NotApplicable | None:
    """Explain why nothing can be said of the kernels of a forward pass, where that is so."""
    if isinstance(program.passes, NotApplicable):
        return NotApplicable("passes", _UNKNOWN, _ALL_OF_IT)
    if program.forward().is_empty():
        return NotApplicable("passes", "no kernel was launched inside a forward pass")
    return None


# (c) ----------------------------------------------------------------------------------------------


def other_kernels(program: Program) -> Answer | NotApplicable:
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
    return Answer(
        text,
        {"share": share, "matmul_share": 1 - share, "categories": dict(by.iter_rows())},
        (TableResult("other_kernels", title, OTHER_FIELDS, rest),),
    )
