"""The kinds of arithmetic a GPU does, and the counters that count each.

Ordinary lanes execute instructions, of which an FMA does two operations, and a packed one works on
two numbers at once. Tensor cores count operations themselves, under names that say what they
multiply: `sm__ops_path_tensor_op_hgmma_src_bf16_dst_fp32_sparsity_off`. The same operations may be
counted under several such names, coarse and fine, so names are taken apart and chosen from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.counters.quantities import SM_CLOCKS
from gpusight.analyses.counters.quantity import DURATION, Formula, Quantity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

SECTION = "SpeedOfLight_RooflineChart"
TENSOR_SECTION = "SpeedOfLight_HierarchicalTensorRooflineChart"
CYCLES = "smsp__cycles_elapsed.avg"
SECONDS = pl.coalesce(pl.col(DURATION) * 1e-9, pl.lit(1.0))
"""Time of a launch. Without one, rates are still known: everything is then counted for a second."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """One kind of arithmetic: a number format, on ordinary lanes or on tensor cores."""

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


FP64, FP32, FP16 = (Arithmetic(precision, tensor=False) for precision in ("fp64", "fp32", "fp16"))
TENSOR_PRECISIONS = ("fp64", "tf32", "bf16", "fp16", "fp8", "fp4", "int8", "int4", "int1")
KINDS = (FP64, FP32, FP16, *(Arithmetic(p, tensor=True) for p in TENSOR_PRECISIONS))
"""Every kind there is a counter for."""

HALF_FMA, HALF_OTHER = "half_fma", "half_other"
"""FP16 instructions are kept apart: compilers use FMAs of them to load constants."""

# Instruction -> operations of one thread. The 2 stands for a pair of numbers in one register.
FP64_WEIGHTS = {"dadd": 1, "dmul": 1, "dfma": 2}
FP32_WEIGHTS = {"fadd": 1, "fmul": 1, "ffma": 2, "fadd2": 2, "fmul2": 2, "ffma2": 4}
_ESSENTIAL = {"fp64": "dfma", "fp32": "ffma"}
_LANES = {
    FP64.key: FP64_WEIGHTS,
    FP32.key: FP32_WEIGHTS,
    HALF_FMA: {"hfma": 4},
    HALF_OTHER: {"hadd": 2, "hmul": 2},
}


@dataclass(frozen=True, slots=True)
class Path:
    """What the name of a counter of tensor-core operations says."""

    scope: str
    op: str | None
    source: str
    target: str | None
    sparsity: str | None
    form: str

    @property
    def coarseness(self) -> int:
        """How much is left open: the coarsest counters hold the most."""
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

    def is_apart(self, other: Path) -> bool:
        """Tell whether the two can have no operation in common."""
        if self.source != other.source:
            return True
        pairs = (
            (self.op, other.op),
            (self.target, other.target),
            (self.sparsity, other.sparsity),
        )
        return any(a is not None and b is not None and a != b for a, b in pairs)


_PATH = re.compile(
    r"(smsp|sm)__ops_path_tensor(?:_op_([a-z0-9]+))?_src_([a-z]+\d+(?:_[a-z]+\d+)*?)"
    r"(?:_dst_([a-z0-9]+))?(?:_sparsity_(on|off))?"
    r"\.(sum|sum\.per_second|sum\.per_cycle_elapsed|sum\.peak_sustained)"
)
PEAK = "sum.peak_sustained"
"""Form of a counter that says what its GPU does a cycle at best."""


def paths(present: Iterable[str]) -> list[Path]:
    """Take the names of tensor-core counters apart; all other names are left out."""
    found = (_PATH.fullmatch(name) for name in present)
    return [Path(*match.groups()) for match in found if match is not None]


def lane_quantities(present: Collection[str]) -> Iterator[Quantity]:
    """Give what ordinary lanes did, for what this capture counted: FLOPs of each format."""
    for key, weights in _LANES.items():
        parts = [
            (formula, weight)
            for op, weight in weights.items()
            if (formula := _counted(f"sass_thread_inst_executed_op_{op}_pred_on", present))
        ]
        essential = _ESSENTIAL.get(key)
        if parts and (essential is None or _is_counted(essential, present)):
            yield Quantity(key, "", f"FLOPs of {key}", (_weighted(parts),), SECTION)


def uncounted(present: Collection[str]) -> list[str]:
    """Name the FP32 and FP64 instructions that are missing from what was counted."""
    return [
        op
        for weights in (FP64_WEIGHTS, FP32_WEIGHTS)
        for op in weights
        if not op.endswith("2")
        and any(_is_counted(other, present) for other in weights)
        and not _is_counted(op, present)
    ]


def tensor_quantities(present: Collection[str]) -> Iterator[Quantity]:
    """Give what tensor cores did, for what this capture counted; nothing is counted twice."""
    chosen = _disjoint([p for p in paths(present) if p.form != PEAK])
    for precision in TENSOR_PRECISIONS:
        own = [p for p in chosen if p.precision == precision]
        parts = [(_counter(p.base, p.form), 1) for p in own]
        if parts:
            key = Arithmetic(precision, tensor=True).key
            meaning = f"Operations of tensor cores on {precision}"
            yield Quantity(key, "", meaning, (_weighted(parts),), TENSOR_SECTION)


def _disjoint(found: list[Path]) -> list[Path]:
    """Choose counters that overlap nowhere, the coarsest first; of one in two forms the sum."""
    forms = ("sum", "sum.per_second", "sum.per_cycle_elapsed")

    def rank(path: Path) -> tuple[object, ...]:
        of_one_op = path.op is not None
        return -path.coarseness, of_one_op, path.scope != "sm", forms.index(path.form), path.base

    chosen: list[Path] = []
    for path in sorted(found, key=rank):
        if all(path.is_apart(other) for other in chosen):
            chosen.append(path)
    return chosen


def _is_counted(op: str, present: Collection[str]) -> bool:
    return _counted(f"sass_thread_inst_executed_op_{op}_pred_on", present) is not None


def _counted(name: str, present: Collection[str]) -> Formula | None:
    """Find a counter in whichever scope and form the capture has it."""
    for form in ("sum", "sum.per_second", "sum.per_cycle_elapsed"):
        for scope in ("smsp", "sm"):
            if f"{scope}__{name}.{form}" in present:
                return _counter(f"{scope}__{name}", form)
    return None


def _counter(base: str, form: str) -> Formula:
    """Turn a counter of any form into an amount over the whole launch."""
    name = f"{base}.{form}"
    if form == "sum.per_second":
        return in_seconds(name)
    if form == "sum.per_cycle_elapsed":
        return Formula((name, CYCLES, *SM_CLOCKS), _over_cycles)
    return timed(Formula((name,), lambda values: values[0]))


def _over_cycles(values: Sequence[pl.Expr]) -> pl.Expr:
    each, cycles, *clocks = values
    whole = pl.when(pl.col(DURATION).is_not_null()).then(cycles)
    return each * pl.coalesce(whole, pl.coalesce(clocks) * SECONDS)


def timed(formula: Formula) -> Formula:
    """Keep an amount from launches without a duration, whose amounts are those of a second."""
    known = pl.col(DURATION).is_not_null()
    return Formula(formula.metrics, lambda values: pl.when(known).then(formula.compute(values)))


def in_seconds(*rates: str) -> Formula:
    """Turn rates into amounts over the launch, or over a second where it has no duration."""
    return Formula(rates, lambda values: reduce(add, values) * SECONDS)


def positive(value: pl.Expr | str) -> pl.Expr:
    """Keep what can be a peak: nothing has a peak of nothing, and reports may say so."""
    value = pl.col(value) if isinstance(value, str) else value
    return pl.when(value > 0).then(value)


def _weighted(parts: Sequence[tuple[Formula, float]]) -> Formula:
    """Add formulas up, each so many times."""
    names = tuple(name for formula, _ in parts for name in formula.metrics)

    def compute(values: Sequence[pl.Expr]) -> pl.Expr:
        total: pl.Expr = pl.lit(0.0)
        at = 0
        for formula, weight in parts:
            end = at + len(formula.metrics)
            total = total + formula.compute(values[at:end]) * weight
            at = end
        return total

    return Formula(names, compute)
