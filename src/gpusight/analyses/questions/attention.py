"""(e) Inside attention: the time of its parts against the operations that they need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analyses.questions.answer import Answer, times
from gpusight.analyses.questions.attention_flops import FORMULA, Sizes, fused_flops, part_flops
from gpusight.analyses.questions.attention_parts import AROUND, FUSED, Split, split
from gpusight.analyses.questions.names import FINAL, PARTS, SCORES, SOFTMAX
from gpusight.analyses.statistics import shown_if_filled
from gpusight.result import Field, Fmt, NotApplicable, TableResult
from gpusight.units import format_count, format_real, format_time

if TYPE_CHECKING:
    from gpusight.analyses.questions.program import Program

FIELDS = (
    Field("part", "Part", Fmt.TEXT, "`scores`, `softmax`, `final`, `around` or `fused`"),
    Field("share", "Share", Fmt.SHARE, "Part of the time of all of them"),
    Field("pass_ns", "A pass", Fmt.TIME, "Kernel time in one forward pass"),
    Field("calls", "Times", Fmt.COUNT, "How often it ran in one forward pass"),
    Field("call_ns", "Each", Fmt.TIME, "Kernel time of one"),
    Field("range_ns", "Its range", Fmt.TIME, "The same of all that the range of the part launched"),
    Field("flops", "FLOPs each", Fmt.COUNT, "Floating-point operations of one; null if unknown"),
    Field("tflop_per_s", "TFLOP/s", Fmt.REAL, "10¹² operations a second reached"),
    Field("means", "What it is", Fmt.NAME, "What is counted", shown=False),
)
_MEANS = {
    SCORES: "queries times keys: the matrix product alone",
    SOFTMAX: "softmax of the scores, with what its range launches beside it",
    FINAL: "weights times values: the matrix product alone",
    AROUND: "scaling, masking, dropout and copies among them",
    FUSED: "all of it in one kernel",
}
_TITLE = "(e) Inside attention"
_CAUSAL = "a fused kernel may skip what a causal mask hides, up to half of these FLOPs"


def attention(program: Program, model: Sizes | None) -> Answer | NotApplicable:
    """Compare softmax with the two matrix products of attention: time, and FLOPs."""
    found = split(program)
    if isinstance(found, NotApplicable):
        return found
    counted, notes = fused_flops(found, model) if found.fused else part_flops(found, model)
    rows = _rows(found, counted)
    frame = pl.DataFrame(rows, schema=_SCHEMA)
    title = _TITLE + (", in a forward pass" if found.passes else "")
    table = TableResult("attention", title, shown_if_filled(FIELDS, frame), frame)
    said = (found.how, *notes)
    if found.fused:
        return Answer(_fused(rows[0]), rows[0], (table,), (*said, _CAUSAL))
    numbers = _numbers({row["part"]: row for row in rows})
    formula = (FORMULA,) if numbers["flops_ratio"] is not None else ()
    return Answer(_sentence(numbers), numbers, (table,), (*said, *formula))


_SCHEMA = {f.key: pl.Float64() for f in FIELDS} | {
    "part": pl.String(), "flops": pl.Int64(), "means": pl.String()
}  # fmt: skip


def _rows(found: Split, counted: dict[str, int]) -> list[dict[str, Any]]:
    """Sum up each part, for one pass and for one call."""
    total = float(found.kernels["duration_ns"].sum())
    rows = []
    for part in (*PARTS, AROUND, FUSED):
        kernels = found.kernels.filter(pl.col("role") == part)
        if kernels.is_empty():
            continue
        spent, calls = float(kernels["duration_ns"].sum()), found.calls.get(part)
        each = None if not calls else spent / calls
        flops = counted.get(part)
        rows.append({
            "part": part,
            "share": spent / total if total else None,
            "pass_ns": spent / found.passes if found.passes else None,
            "calls": calls / found.passes if calls and found.passes else calls,
            "call_ns": each,
            "range_ns": found.range_ns.get(part),
            "flops": flops,
            "tflop_per_s": flops / each / 1e3 if flops and each else None,
            "means": _MEANS[part],
        })  # fmt: skip
    return rows


def _numbers(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Relate softmax to one of the two products (their average), and to both together."""
    products = [rows[part] for part in (SCORES, FINAL)]
    softmax = rows[SOFTMAX]
    numbers: dict[str, Any] = {
        f"{part}_{key}": rows[part][key]
        for part in PARTS
        for key in ("call_ns", "pass_ns", "calls", "flops")
    }
    for key, name in (("call_ns", "time"), ("flops", "flops")):
        known = [row[key] for row in products]
        both = None if None in known or not sum(known) else float(sum(known))
        value = softmax[key]
        numbers[f"matmul_{name}"] = None if both is None else both / 2
        numbers[f"softmax_{name}"] = value
        numbers[f"{name}_ratio"] = None if both is None or value is None else 2 * value / both
        numbers[f"{name}_ratio_both"] = None if both is None or value is None else value / both
    return numbers


def _sentence(numbers: dict[str, Any]) -> str:
    ratio = numbers["time_ratio"]
    text = (
        f"Softmax takes {format_real(ratio)} times as long as one of attention's two matrix"
        f" products ({format_time(numbers['softmax_time'])} against"
        f" {format_time(numbers['matmul_time'])} a call)"
    )
    flops = numbers["flops_ratio"]
    if flops is None:
        return f"{text}; their FLOPs are not known."
    many, few = format_count(round(numbers["matmul_flops"])), format_count(numbers["softmax_flops"])
    return (
        f"{text}, for 1/{1 / flops:,.1f} of its FLOPs ({few} against {many}): a FLOP of softmax"
        f" takes {ratio / flops:,.1f} times as long."
    )


def _fused(row: dict[str, Any]) -> str:
    text = "Attention runs as one fused kernel, so softmax cannot be told from its matrix products"
    if row["pass_ns"] is None:
        return f"{text}; it takes {format_time(row['call_ns'])}."
    rate = row["tflop_per_s"]
    reached = "" if rate is None else f" ({format_real(rate)} TFLOP/s)"
    return (
        f"{text}; it takes {format_time(row['call_ns'])}{reached}, {times(row['calls'])} a pass:"
        f" {format_time(row['pass_ns'])}."
    )
