"""(e) Inside attention: the kernels of its parts, their time and their FLOPs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.aggregates import schema_of, shown_if_filled
from gpusight.analysis.attribution.work_causes import attribute
from gpusight.analysis.flops.operator_cost import cost_of
from gpusight.analysis.flops.operator_inputs import OperatorCost, OperatorInputs
from gpusight.analysis.questions.forward_passes import (
    FINAL,
    PARTS,
    SCORES,
    SOFTMAX,
    attention_part,
    hold,
    line_for,
    named_ranges,
    outermost,
)
from gpusight.analysis.questions.question_program import QuestionAnswer, times
from gpusight.analysis.steps.step_list import shortened
from gpusight.errors import UsageError
from gpusight.naming.kernel_names import classify
from gpusight.results import Field, Fmt, NotApplicable, TableResult
from gpusight.units import format_count, format_real, format_time, join_words

if TYPE_CHECKING:
    from gpusight.analysis.questions.question_program import QuestionProgram
    from gpusight.trace.trace import Trace


AROUND, FUSED = "around", "fused"
_BETWEEN = ("elementwise", "copy", "random", "reduction", "embedding")
"""What may run between the GEMMs and softmax: scaling, masking, dropout, layout."""
_RANGE_NAMES = {
    SCORES: "computing attention scores",
    SOFTMAX: "computing softmax",
    FINAL: "final matmul",
}
"""Names of ranges that `attention_part` knows."""
_SPLIT = re.compile(r"split-k reduce")
"""Label of the kernel that adds up the partial results of the GEMM before it."""
_ORDERED = (
    "no ranges name the parts of attention: they are found by the order of kernels (matmul, "
    "softmax, matmul)"
)


@dataclass(frozen=True)
class AttentionSplit:
    """The kernels of attention in the forward passes, with the part that each is."""

    trace: Trace
    kernels: pl.DataFrame
    """Those of `QuestionProgram.kernels` with their `role`."""
    calls: dict[str, int]
    """Number of runs of each part."""
    passes: int
    """Forward passes that these are of; 0 where none are known."""
    how: str
    range_ns: dict[str, float]
    """Kernel time of one range of each part, with all that it launched; none without ranges."""

    @property
    def fused(self) -> bool:
        """Whether all of attention is one kernel."""
        return FUSED in self.calls


def split_attention(program: QuestionProgram) -> AttentionSplit | NotApplicable:
    """Find the parts of attention."""
    known = not isinstance(program.passes, NotApplicable)
    kernels = program.forward() if known else program.kernels.filter(pl.col("part") == "other")
    if kernels.is_empty():
        where = "inside a forward pass" if known else "in the window"
        return NotApplicable("attention", f"not applicable: no kernel was launched {where}")

    def result(
        roles: pl.Series, calls: dict[str, int], how: str, range_ns: dict[str, float]
    ) -> AttentionSplit:
        own = kernels.with_columns(roles.alias("role")).filter(pl.col("role").is_not_null())
        return AttentionSplit(program.trace, own, calls, program.runs, how, range_ns)

    missing: list[str] = list(PARTS)
    if program.trace.has("ranges"):
        roles, calls, range_ns = _by_ranges(program.trace, kernels)
        missing = [part for part in PARTS if part not in calls]
        if not missing:
            return result(
                roles, calls, "the parts of attention are ranges of the program", range_ns
            )
    roles, calls = _by_order(program, kernels)
    if SOFTMAX in calls:
        return result(roles, calls, _ORDERED, {})
    fused = kernels["category"] == "attention"
    if fused.any():
        how = "kernels of fused attention are known by their names"
        roles = pl.select(pl.when(fused).then(pl.lit(FUSED))).to_series()
        return result(roles, {FUSED: int(fused.sum())}, how, {})
    if len(missing) == len(PARTS):
        reason = "no ranges and no kernels of attention found"
    else:
        reason = f"no kernels were launched in a range of attention's {join_words(missing)}"
    ranges = join_words([repr(_RANGE_NAMES[part]) for part in missing])
    hint = f"{line_for(program.trace, _RANGE_NAMES[missing[0]])} for {ranges}"
    return NotApplicable("attention", reason, hint)


# By ranges ----------------------------------------------------------------------------------------


def _by_ranges(
    trace: Trace, kernels: pl.DataFrame
) -> tuple[pl.Series, dict[str, int], dict[str, float]]:
    """Return each kernel's role by the range around its launch, and counts and times of ranges.

    Where ranges of parts are nested, softmax takes precedence, then the final GEMM.
    """
    named = named_ranges(trace, attention_part)
    role = pl.lit(None, pl.String)
    calls: dict[str, int] = {}
    range_ns: dict[str, float] = {}
    for part in (SCORES, FINAL, SOFTMAX):
        ranges = named.filter(pl.col("read") == part)
        if ranges.is_empty():
            continue
        around = hold(outermost(ranges), kernels, "launch_ns")
        launched = kernels.filter(around.is_not_null())
        if launched.is_empty():
            continue
        calls[part] = around.drop_nulls().n_unique()
        range_ns[part] = float(launched["duration_ns"].sum()) / calls[part]
        has_gemms = (launched["category"] == "matmul").any() and part != SOFTMAX
        own = (pl.col("category") == "matmul") if has_gemms else pl.lit(value=True)
        inside = pl.when(own).then(pl.lit(part)).otherwise(pl.lit(AROUND))
        role = pl.when(around.is_not_null()).then(inside).otherwise(role)
    return kernels.select(role.alias("role"))["role"], calls, range_ns


# By order -----------------------------------------------------------------------------------------


def _by_order(program: QuestionProgram, kernels: pl.DataFrame) -> tuple[pl.Series, dict[str, int]]:
    """Return roles by what runs before and after each softmax on its stream."""
    chain = _chain(program, kernels)
    kind = pl.col("kind")
    gemm = pl.when(kind == "matmul").then("at")
    barrier = pl.when(kind.is_in(["wall", "softmax"])).then("at")
    softmaxes = chain.with_columns(
        gemm.forward_fill().shift(1).over("stream_id").alias("before"),
        gemm.backward_fill().shift(-1).over("stream_id").alias("after"),
        barrier.forward_fill().shift(1).over("stream_id").alias("lower"),
        barrier.backward_fill().shift(-1).over("stream_id").alias("upper"),
    ).filter(
        kind == "softmax",
        pl.col("before") > pl.col("lower").fill_null(-1),
        pl.col("after") < pl.col("upper").fill_null(chain.height),
    )
    return _roles(chain, softmaxes.unique("before", keep="last"))


def _chain(program: QuestionProgram, kernels: pl.DataFrame) -> pl.DataFrame:
    """Order kernels by stream and start, with what each can be in attention."""
    names = program.names
    labels = {code: classify(names[code]).short for code in kernels["code"].unique()}
    label = pl.col("code").replace_strict(labels, return_dtype=pl.String)
    category = pl.col("category")
    others = label.str.starts_with("log_softmax") | label.str.contains(" bwd")
    kind = (
        pl.when(label.str.contains(_SPLIT.pattern))
        .then(pl.lit("rest"))
        .when(category == "matmul")
        .then(pl.lit("matmul"))
        .when((category == "softmax") & ~others)
        .then(pl.lit("softmax"))
        .when(category.is_in(_BETWEEN))
        .then(pl.lit("between"))
        .otherwise(pl.lit("wall"))
    )
    return (
        kernels.with_row_index("place")
        .select("place", "start_ns", "stream_id", "pass", kind.alias("kind"))
        .sort("stream_id", "start_ns")
        .with_row_index("at")
        .with_columns(pl.col("at").cast(pl.Int64))
    )


def _roles(chain: pl.DataFrame, softmaxes: pl.DataFrame) -> tuple[pl.Series, dict[str, int]]:
    """Mark the softmaxes, the GEMMs around them, and what runs from one GEMM to the other."""
    marks = pl.concat(
        [
            softmaxes.select(pl.col(column).alias("at"), pl.lit(role).alias("role"))
            for column, role in (("before", SCORES), ("at", SOFTMAX), ("after", FINAL))
        ]
    ).unique("at", keep="first")
    marked = chain.join(marks, on="at", how="left", maintain_order="left").with_columns(
        pl.col("role").forward_fill().over("stream_id").alias("last")
    )
    rest = pl.col("kind") == "rest"
    open_ = pl.col("last").is_in([SCORES, SOFTMAX]) & (pl.col("kind") == "between")
    follows = rest & (pl.col("role").shift(1).over("stream_id").is_in([SCORES, FINAL]))
    role = pl.when(follows).then("last").when(open_).then(pl.lit(AROUND)).otherwise("role")
    calls = dict.fromkeys(PARTS, softmaxes.height) if softmaxes.height else {}
    return marked.with_columns(role.alias("role")).sort("place")["role"], calls


EACH_SCORE = 5
"""FLOPs of softmax per score: maximum, subtract, exponentiate, sum, divide."""
FORMULA = (
    f"FLOPs: 2·B·H·S·S·D for each matmul, {EACH_SCORE}·B·H·S·S for softmax (find the "
    "largest, subtract, exponentiate, add up, divide)"
)
_INPUTS = ["name", "shapes", "types", "concrete", "strides"]
_HINT = "add the sizes: --model BATCH,HEADS,SEQUENCE,HEAD_DIMENSION"
_MAX_SIZE = 1 << 40
_MAX_FLOPS = (1 << 63) - 1


@dataclass(frozen=True)
class AttentionSizes:
    """The sizes of attention."""

    batch: int
    heads: int
    sequence: int
    head: int
    """Width of one head."""

    @classmethod
    def of(cls, text: str) -> AttentionSizes:
        """Parse `B,H,S,D`."""
        parts = text.replace("x", ",").split(",")
        try:
            numbers = [int(part) for part in parts]
        except ValueError:
            numbers = []
        hint = "pass batch, heads, sequence and head dimension: --model 4,12,512,64"
        shown = repr(shortened(text))
        if len(numbers) != 4 or not all(0 < number < _MAX_SIZE for number in numbers):
            raise UsageError(f"{shown} is not the sizes of a model", hint=hint)
        sizes = cls(*numbers)
        if max(2 * sizes.product, EACH_SCORE * sizes.scores) > _MAX_FLOPS:
            raise UsageError(
                f"no model has the sizes {shown}", why="its FLOPs are beyond 64 bits", hint=hint
            )
        return sizes

    @property
    def scores(self) -> int:
        """Scores that one call computes."""
        return self.batch * self.heads * self.sequence**2

    @property
    def product(self) -> int:
        """FLOPs of one of the two GEMMs."""
        return 2 * self.scores * self.head


def part_flops(split: AttentionSplit, model: AttentionSizes | None) -> tuple[dict[str, int], str]:
    """Return the FLOPs of one call of each part, or of fused attention, and where they are from."""
    parts = (FUSED,) if split.fused else PARTS
    recorded = {part: _mean_flops(split, part) for part in parts}
    flops = {part: value for part, value in recorded.items() if value is not None}
    if len(flops) == len(parts):
        note = "FLOPs are those of the sizes that the profiler recorded"
        if model is not None and not split.fused and model.product != flops[SCORES]:
            note += ", which are not those given"
        return flops, note
    if model is None:
        return {}, f"FLOPs are not known: no sizes were recorded; {_HINT}"
    given = {
        SCORES: model.product,
        SOFTMAX: EACH_SCORE * model.scores,
        FINAL: model.product,
        FUSED: 2 * model.product,
    }
    return {part: given[part] for part in parts}, "FLOPs are those of the sizes given"


def _mean_flops(split: AttentionSplit, part: str) -> int | None:
    """Average the FLOPs of the operators that launched a part; None where one is unknown."""
    trace = split.trace
    if not trace.has("cpu_ops", "shapes"):
        return None
    rows = split.kernels.filter(pl.col("role") == part)["row"]
    ops = attribute(trace).frames["kernels"]["op"].gather(rows).unique()
    if ops.null_count() or ops.is_empty():
        return None
    inputs = trace.table("cpu_ops", _INPUTS)[ops].select(pl.col(_INPUTS).cast(pl.String))
    distinct = inputs.group_by(_INPUTS).len()
    total = 0
    for name, *recorded, calls in distinct.iter_rows():
        if part == SOFTMAX:
            parsed = OperatorInputs.parse(*recorded)
            scores = None if parsed is None else parsed.tensor(0)
            flops = None if scores is None else EACH_SCORE * scores.elements
        else:
            cost = cost_of(str(name), *recorded)
            flops = cost.flops if isinstance(cost, OperatorCost) else None
        if flops is None:
            return None
        total += flops * int(calls)
    average = round(total / len(ops))
    return average if average <= _MAX_FLOPS else None


FIELDS = (
    Field("part", "Part", Fmt.TEXT, "`scores`, `softmax`, `final`, `around` or `fused`"),
    Field("share", "Share", Fmt.SHARE, "Part of the time of all of them"),
    Field("pass_ns", "Per pass", Fmt.TIME, "Kernel time in one forward pass"),
    Field("calls", "Count", Fmt.COUNT, "Executions in one forward pass"),
    Field("call_ns", "Each", Fmt.TIME, "Kernel time of one"),
    Field("range_ns", "Its range", Fmt.TIME, "The same of all that the range of the part launched"),
    Field("flops", "FLOPs each", Fmt.COUNT, "Floating-point operations of one; null if unknown"),
    Field("tflop_per_s", "TFLOP/s", Fmt.REAL, "Achieved TFLOP/s"),
    Field("means", "What it is", Fmt.NAME, "What is counted", shown=False),
)
_MEANS = {
    SCORES: "queries times keys: the matmul only",
    SOFTMAX: "softmax of the scores, with the other kernels of its range",
    FINAL: "weights times values: the matmul only",
    AROUND: "scaling, masking, dropout and copies among them",
    FUSED: "all of it in one kernel",
}
_CAUSAL = "a fused kernel may skip what a causal mask hides, up to half of these FLOPs"


def attention(
    program: QuestionProgram, model: AttentionSizes | None
) -> QuestionAnswer | NotApplicable:
    """Compare softmax with the two GEMMs of attention: time and FLOPs."""
    parts = split_attention(program)
    if isinstance(parts, NotApplicable):
        return parts
    flops, flops_note = part_flops(parts, model)
    rows = _rows(parts, flops)
    schema = schema_of(FIELDS, pl.Float64()) | {"flops": pl.Int64()}
    frame = pl.DataFrame(rows, schema=schema)
    title = "(e) Inside attention" + (", in a forward pass" if parts.passes else "")
    table = TableResult("attention", title, shown_if_filled(FIELDS, frame), frame)
    notes = (parts.how, flops_note)
    if parts.fused:
        return QuestionAnswer(_fused(rows[0]), rows[0], (table,), (*notes, _CAUSAL))
    numbers = _numbers({row["part"]: row for row in rows})
    formula = (FORMULA,) if numbers["flops_ratio"] is not None else ()
    return QuestionAnswer(_sentence(numbers), numbers, (table,), (*notes, *formula))


def _rows(split: AttentionSplit, flops_by_part: dict[str, int]) -> list[dict[str, Any]]:
    """Sum up each part, for one pass and for one call."""
    total_ns = float(split.kernels["duration_ns"].sum())
    passes = split.passes
    rows = []
    for part in (*PARTS, AROUND, FUSED):
        kernels = split.kernels.filter(pl.col("role") == part)
        if kernels.is_empty():
            continue
        part_ns, calls = float(kernels["duration_ns"].sum()), split.calls.get(part)
        call_ns = part_ns / calls if calls else None
        flops = flops_by_part.get(part)
        rows.append({
            "part": part,
            "share": part_ns / total_ns if total_ns else None,
            "pass_ns": part_ns / passes if passes else None,
            "calls": calls / passes if calls and passes else calls,
            "call_ns": call_ns,
            "range_ns": split.range_ns.get(part),
            "flops": flops,
            "tflop_per_s": flops / call_ns / 1e3 if flops and call_ns else None,
            "means": _MEANS[part],
        })  # fmt: skip
    return rows


def _numbers(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Compare softmax with one of the two GEMMs (their average), and with both together."""
    gemms = [rows[part] for part in (SCORES, FINAL)]
    softmax = rows[SOFTMAX]
    numbers: dict[str, Any] = {
        f"{part}_{key}": rows[part][key]
        for part in PARTS
        for key in ("call_ns", "pass_ns", "calls", "flops")
    }
    for key, name in (("call_ns", "time"), ("flops", "flops")):
        known = [row[key] for row in gemms]
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
        f"Softmax takes {ratio:.3g} times as long as one of attention's two"
        f" matmuls ({format_time(numbers['softmax_time'])} against"
        f" {format_time(numbers['matmul_time'])} per call)"
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
    text = "Attention runs as one fused kernel: softmax and matmuls cannot be separated"
    if row["pass_ns"] is None:
        return f"{text}; it takes {format_time(row['call_ns'])}."
    rate = row["tflop_per_s"]
    reached = "" if rate is None else f" ({format_real(rate)} TFLOP/s)"
    return (
        f"{text}; it takes {format_time(row['call_ns'])}{reached}, {times(row['calls'])} per pass:"
        f" {format_time(row['pass_ns'])}."
    )
