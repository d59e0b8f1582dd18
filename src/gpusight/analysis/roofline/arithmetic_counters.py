"""Kinds of arithmetic of a GPU, and the metrics and opcodes that count each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from operator import add
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.counters.launch_quantities import (
    DURATION,
    SM_CLOCKS,
    LaunchQuantity,
    QuantityFormula,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from gpusight.trace.trace import Trace


SECTION = "SpeedOfLight_RooflineChart"
TENSOR_SECTION = "SpeedOfLight_HierarchicalTensorRooflineChart"
CYCLES = "smsp__cycles_elapsed.avg"
SECONDS = pl.coalesce(pl.col(DURATION) * 1e-9, pl.lit(1.0))
"""Duration of a launch. Without one, rates are still known: amounts are then those of a second."""


@dataclass(frozen=True, slots=True)
class ArithmeticKind:
    """One kind of arithmetic: a number format, on CUDA cores or on Tensor Cores."""

    precision: str
    """Number format, as the GPU table names it where that knows it."""
    tensor: bool

    @property
    def key(self) -> str:
        """Name in columns: `fp32`, `tensor_bf16`."""
        return f"tensor_{self.precision}" if self.tensor else self.precision

    @property
    def text(self) -> str:
        """Name for people: `fp32`, `tensor bf16`."""
        return self.key.replace("_", " ")


FP64, FP32, FP16 = (
    ArithmeticKind(precision, tensor=False) for precision in ("fp64", "fp32", "fp16")
)
TENSOR_PRECISIONS = ("fp64", "tf32", "bf16", "fp16", "fp8", "fp4", "int8", "int4", "int1")
KINDS = (FP64, FP32, FP16, *(ArithmeticKind(p, tensor=True) for p in TENSOR_PRECISIONS))
"""Every kind there is a counter for."""

HALF_FMA, HALF_OTHER = "half_fma", "half_other"
"""FP16 FMAs are counted apart: compilers use them to load constants."""

# Instruction -> operations of one thread. The 2 stands for a pair of numbers in one register.
FP64_WEIGHTS = {"dadd": 1, "dmul": 1, "dfma": 2}
FP32_WEIGHTS = {"fadd": 1, "fmul": 1, "ffma": 2, "fadd2": 2, "fmul2": 2, "ffma2": 4}
_ESSENTIAL = {"fp64": "dfma", "fp32": "ffma"}
_CUDA_CORE_WEIGHTS = {
    FP64.key: FP64_WEIGHTS,
    FP32.key: FP32_WEIGHTS,
    HALF_FMA: {"hfma": 4},
    HALF_OTHER: {"hadd": 2, "hmul": 2},
}


@dataclass(frozen=True, slots=True)
class TensorPath:
    """The parts of the name of a counter of Tensor Core operations."""

    scope: str
    op: str | None
    source: str
    target: str | None
    sparsity: str | None
    form: str

    @property
    def coarseness(self) -> int:
        """How much the name leaves open: the coarsest counters hold the most."""
        return (self.op, self.target, self.sparsity).count(None)

    @property
    def base(self) -> str:
        """The name without what follows the first dot."""
        parts = (("op", self.op), ("src", self.source), ("dst", self.target))
        named = "".join(f"_{word}_{value}" for word, value in parts if value)
        sparse = f"_sparsity_{self.sparsity}" if self.sparsity else ""
        return f"{self.scope}__ops_path_tensor{named}{sparse}"

    @property
    def precision(self) -> str | None:
        """The format that it multiplies; of several on one path, the one that sets its rate."""
        names = ["fp8" if name == "fp6" else name for name in self.source.split("_")]
        return next((p for p in ("fp8", "fp16", *TENSOR_PRECISIONS) if p in names), None)

    def shares_nothing_with(self, other: TensorPath) -> bool:
        """Return whether the two can have no operation in common."""
        own = (self.op, self.target, self.sparsity)
        pairs = zip(own, (other.op, other.target, other.sparsity), strict=True)
        differs = any(a is not None and b is not None and a != b for a, b in pairs)
        return differs or self.source != other.source


_PATH = re.compile(
    r"(smsp|sm)__ops_path_tensor(?:_op_([a-z0-9]+))?_src_([a-z]+\d+(?:_[a-z]+\d+)*?)"
    r"(?:_dst_([a-z0-9]+))?(?:_sparsity_(on|off))?"
    r"\.(sum|sum\.per_second|sum\.per_cycle_elapsed|sum\.peak_sustained)"
)
PEAK = "sum.peak_sustained"
"""Form of a counter that holds the most its GPU does per cycle."""


def paths(present: Iterable[str]) -> list[TensorPath]:
    """Parse the names of Tensor Core counters; all other names are left out."""
    matches = (_PATH.fullmatch(name) for name in present)
    return [TensorPath(*match.groups()) for match in matches if match is not None]


def cuda_core_quantities(present: Collection[str]) -> Iterator[LaunchQuantity]:
    """Return the FLOPs of CUDA cores in each format that this capture counted."""
    for key, weights in _CUDA_CORE_WEIGHTS.items():
        parts = [
            (formula, weight)
            for op, weight in weights.items()
            if (formula := _instruction_counter(op, present))
        ]
        essential = _ESSENTIAL.get(key)
        if parts and (essential is None or _instruction_counter(essential, present)):
            yield LaunchQuantity(key, "", f"FLOPs of {key}", (_weighted_sum(parts),), SECTION)


def uncounted(present: Collection[str]) -> list[str]:
    """Return the FP32 and FP64 instructions that are missing from what was counted."""
    return [
        op
        for weights in (FP64_WEIGHTS, FP32_WEIGHTS)
        for op in weights
        if not op.endswith("2")
        and any(_instruction_counter(other, present) for other in weights)
        and not _instruction_counter(op, present)
    ]


def tensor_quantities(present: Collection[str]) -> Iterator[LaunchQuantity]:
    """Return the operations of Tensor Cores that this capture counted; none is counted twice."""

    def rank(path: TensorPath) -> tuple[object, ...]:
        of_one_op = path.op is not None
        return -path.coarseness, of_one_op, path.scope != "sm", _FORMS.index(path.form), path.base

    # Counters that overlap nowhere, the coarsest first; of one in two forms the sum.
    chosen: list[TensorPath] = []
    for path in sorted((p for p in paths(present) if p.form != PEAK), key=rank):
        if all(path.shares_nothing_with(other) for other in chosen):
            chosen.append(path)
    for precision in TENSOR_PRECISIONS:
        parts = [(_counter(p.base, p.form), 1) for p in chosen if p.precision == precision]
        if parts:
            key = ArithmeticKind(precision, tensor=True).key
            meaning = f"Operations of tensor cores on {precision}"
            yield LaunchQuantity(key, "", meaning, (_weighted_sum(parts),), TENSOR_SECTION)


_FORMS = ("sum", "sum.per_second", "sum.per_cycle_elapsed")


def _instruction_counter(op: str, present: Collection[str]) -> QuantityFormula | None:
    """Find the counter of an instruction in whichever scope and form the capture has it."""
    for form in _FORMS:
        for scope in ("smsp", "sm"):
            name = f"{scope}__sass_thread_inst_executed_op_{op}_pred_on"
            if f"{name}.{form}" in present:
                return _counter(name, form)
    return None


def _counter(base: str, form: str) -> QuantityFormula:
    """Turn a counter of any form into an amount over the whole launch."""
    name = f"{base}.{form}"
    if form == "sum.per_second":
        return in_seconds(name)
    if form == "sum.per_cycle_elapsed":
        return QuantityFormula((name, CYCLES, *SM_CLOCKS), _over_cycles)
    return timed(QuantityFormula((name,), lambda values: values[0]))


def _over_cycles(values: Sequence[pl.Expr]) -> pl.Expr:
    per_cycle, cycles, *clocks = values
    of_launch = pl.when(pl.col(DURATION).is_not_null()).then(cycles)
    return per_cycle * pl.coalesce(of_launch, pl.coalesce(clocks) * SECONDS)


def timed(formula: QuantityFormula) -> QuantityFormula:
    """Leave an amount out where the launch has no duration: all amounts are then of a second."""
    known = pl.col(DURATION).is_not_null()
    return QuantityFormula(
        formula.metrics, lambda values: pl.when(known).then(formula.compute(values))
    )


def in_seconds(*rates: str) -> QuantityFormula:
    """Turn rates into amounts over the launch, or over a second where it has no duration."""
    return QuantityFormula(rates, lambda values: reduce(add, values) * SECONDS)


def positive(value: pl.Expr | str) -> pl.Expr:
    """Return null for a peak of 0, which reports write for what they do not know."""
    value = pl.col(value) if isinstance(value, str) else value
    return pl.when(value > 0).then(value)


def _weighted_sum(parts: Sequence[tuple[QuantityFormula, float]]) -> QuantityFormula:
    """Return the weighted sum of formulas."""
    names = tuple(name for formula, _ in parts for name in formula.metrics)

    def compute(values: Sequence[pl.Expr]) -> pl.Expr:
        total: pl.Expr = pl.lit(0.0)
        own = iter(values)
        for formula, weight in parts:
            total = total + formula.compute(list(islice(own, len(formula.metrics)))) * weight
        return total

    return QuantityFormula(names, compute)


WARPS = "sass__inst_executed_per_opcode_with_modifier_all"
THREADS = "sass__thread_inst_executed_true_per_opcode_with_modifier_all"
_WARPS_PER_GROUP = 4
_SIZES = {
    "884": (8, 8, 4),
    "1684": (16, 8, 4),
    "1688": (16, 8, 8),
    "16816": (16, 8, 16),
    "16832": (16, 8, 32),
    "16864": (16, 8, 64),
    "168128": (16, 8, 128),
    "168256": (16, 8, 256),
    "8816": (8, 8, 16),
    "8832": (8, 8, 32),
    "88128": (8, 8, 128),
}
_OPCODE_WEIGHTS = {
    **{op.upper(): (FP64.key, weight) for op, weight in FP64_WEIGHTS.items()},
    **{op.upper(): (FP32.key, weight) for op, weight in FP32_WEIGHTS.items()},
    "HADD2": (HALF_OTHER, 2),
    "HMUL2": (HALF_OTHER, 2),
    "HFMA2": (HALF_FMA, 4),
}
_MATRIX = re.compile(r"([DHIQOB])(G?)MMA\.(?:SP\.)?(\d+x\d+x\d+|\d+)((?:\.\w+)*)")
_ANY_MATRIX = re.compile(r"(?:UTC)?[DHIQOB]G?MMA\b")
_LETTERS = {"D": "fp64", "Q": "fp8", "O": "fp4", "I": "int8", "B": "int1"}
_VOLTA_HALVES = "884"
UNSIZED = "unsized"
_COLUMNS = (*_CUDA_CORE_WEIGHTS, *(kind.key for kind in KINDS if kind.tensor))


def cuda_core_flops(opcode: str) -> tuple[str, float] | None:
    """Return what an instruction of CUDA cores does: kind, and operations per thread."""
    return _OPCODE_WEIGHTS.get(opcode.partition(".")[0].removesuffix("_32I").removesuffix("32I"))


def tensor_core_flops(opcode: str) -> tuple[str, float] | None:
    """Return what a Tensor Core instruction does: kind, and operations per warp."""
    match = _MATRIX.match(opcode)
    if match is None:
        return None
    letter, group, size, rest = match.groups()
    modifiers = rest.split(".")
    sides = tuple(map(int, size.split("x"))) if "x" in size else _SIZES.get(size)
    if sides is None:
        return None
    rows, columns, depth = sides
    flops = 2.0 * rows * columns * depth / (_WARPS_PER_GROUP if group else 1)
    if letter == "H" and size == _VOLTA_HALVES and "F32" not in modifiers:
        flops *= 2  # two steps make what four do with FP32 sums
    if letter == "H":
        precision = next((m.lower() for m in modifiers if m in {"BF16", "TF32"}), "fp16")
    elif letter == "I" and {"S4", "U4"} & set(modifiers):
        precision = "int4"
    else:
        precision = _LETTERS[letter]
    return ArithmeticKind(precision, tensor=True).key, flops


def counted_by_opcode(trace: Trace) -> pl.DataFrame:
    """Return one row for each launch whose instructions were counted, a column for each kind.

    `unsized`: it executed Tensor Core instructions whose names hold no size.
    """
    return trace.derive("roofline-opcodes-2", lambda: _count(trace))


def _count(trace: Trace) -> pl.DataFrame:
    rows = trace.table("counter_instances", ("launch", "metric", "key", "value"))
    rows = rows.filter(rows["metric"].cast(pl.String).is_in([WARPS, THREADS]))
    rows = rows.with_columns(pl.col("metric", "key").cast(pl.String)).drop_nulls("key")
    meanings = []
    for metric, opcode in rows.select("metric", "key").unique().iter_rows():
        unknown = UNSIZED if metric == WARPS and _ANY_MATRIX.match(opcode) else None
        flops_of = cuda_core_flops if metric == THREADS else tensor_core_flops
        meanings.append((metric, opcode, *(flops_of(opcode) or (unknown, None))))
    known = pl.DataFrame(
        meanings,
        schema={"metric": pl.String, "key": pl.String, "kind": pl.String, "each": pl.Float64},
        orient="row",
    )
    counted = rows.join(known, on=["metric", "key"], how="left").with_columns(
        (pl.col("value") * pl.col("each")).alias("flops")
    )
    launches = rows.select(pl.col("launch").unique().sort())
    each = [pl.col("flops").filter(pl.col("kind") == key).sum().alias(key) for key in _COLUMNS]
    unsized = ((pl.col("kind") == UNSIZED) & (pl.col("value") > 0)).any().alias(UNSIZED)
    return launches.join(
        counted.group_by("launch").agg(*each, unsized), on="launch", maintain_order="left"
    )
