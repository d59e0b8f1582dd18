"""Operations of the parts of attention: from recorded sizes, else from the model's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.attribution.attribute import attribute
from gpusight.analyses.flops.costs import Cost, cost_of
from gpusight.analyses.flops.costs.inputs import Inputs
from gpusight.analyses.questions.attention_parts import FUSED
from gpusight.analyses.questions.names import FINAL, SCORES, SOFTMAX
from gpusight.analyses.steps.step import shortened
from gpusight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.analyses.questions.attention_parts import Split

    Counted = tuple[dict[str, int], tuple[str, ...]]

EACH_SCORE = 5
"""Operations of softmax for a score: find the largest, subtract, exponentiate, add up, divide."""
FORMULA = (
    f"FLOPs: 2·B·H·S·S·D for each matrix product, {EACH_SCORE}·B·H·S·S for softmax (find the "
    "largest, subtract, exponentiate, add up, divide)"
)
_INPUTS = ["name", "shapes", "types", "concrete", "strides"]
_HINT = "give the sizes: --model BATCH,HEADS,SEQUENCE,HEAD_DIMENSION"
_MOST = 1 << 40
_MOST_FLOPS = (1 << 63) - 1


@dataclass(frozen=True)
class Sizes:
    """The sizes of attention."""

    batch: int
    heads: int
    sequence: int
    head: int
    """Width of one head."""

    @classmethod
    def of(cls, text: str) -> Sizes:
        """Read `B,H,S,D`."""
        parts = text.replace("x", ",").split(",")
        try:
            numbers = [int(part) for part in parts]
        except ValueError:
            numbers = []
        hint = "give batch, heads, sequence and head dimension: --model 4,12,512,64"
        shown = repr(shortened(text))
        if len(numbers) != 4 or not all(0 < number < _MOST for number in numbers):
            raise UsageError(f"{shown} is not the sizes of a model", hint=hint)
        sizes = cls(*numbers)
        if max(2 * sizes.product, EACH_SCORE * sizes.scores) > _MOST_FLOPS:
            raise UsageError(
                f"no model has the sizes {shown}", why="its FLOPs are beyond 64 bits", hint=hint
            )
        return sizes

    @property
    def scores(self) -> int:
        """How many scores one call computes."""
        return self.batch * self.heads * self.sequence**2

    @property
    def product(self) -> int:
        """Operations of one of the two matrix products."""
        return 2 * self.scores * self.head


def part_flops(found: Split, model: Sizes | None) -> Counted:
    """Give the operations of one call of each part, and what a reader must know."""
    recorded = {
        SCORES: _recorded(found, SCORES, _cost),
        SOFTMAX: _recorded(found, SOFTMAX, _softmax_cost),
        FINAL: _recorded(found, FINAL, _cost),
    }
    counted = {part: value for part, value in recorded.items() if value is not None}
    if len(counted) == len(recorded):
        return counted, _source(model, counted)
    if model is None:
        return {}, (f"FLOPs are not known: no sizes were recorded; {_HINT}",)
    given = {SCORES: model.product, SOFTMAX: EACH_SCORE * model.scores, FINAL: model.product}
    return given, ("FLOPs are those of the sizes given",)


def _source(model: Sizes | None, counted: dict[str, int]) -> tuple[str, ...]:
    said = "FLOPs are those of the sizes that the profiler recorded"
    if model is not None and model.product != counted[SCORES]:
        said += ", which are not those given"
    return (said,)


def fused_flops(found: Split, model: Sizes | None) -> Counted:
    """Give the operations of one call of fused attention: its two products."""
    recorded = _recorded(found, FUSED, _cost)
    if recorded is not None:
        return {FUSED: recorded}, ("FLOPs are those of the sizes that the profiler recorded",)
    if model is None:
        return {}, (f"FLOPs are not known: no sizes were recorded; {_HINT}",)
    return {FUSED: 2 * model.product}, ("FLOPs are those of the sizes given",)


def _recorded(
    found: Split, part: str, count: Callable[[tuple[str | None, ...]], int | None]
) -> int | None:
    """Average the operations of the operators that launched a part; None where one is unknown."""
    trace = found.trace
    if not trace.has("cpu_ops", "shapes"):
        return None
    rows = found.kernels.filter(pl.col("role") == part)["row"]
    ops = attribute(trace).frames["kernels"]["op"].gather(rows).unique()
    if ops.null_count() or ops.is_empty():
        return None
    inputs = trace.table("cpu_ops", _INPUTS)[ops].select(pl.col(_INPUTS).cast(pl.String))
    distinct = inputs.group_by(_INPUTS).len()
    total = 0
    for *inputs_of_one, often in distinct.iter_rows():
        flops = count(tuple(inputs_of_one))
        if flops is None:
            return None
        total += flops * int(often)
    average = round(total / len(ops))
    return average if average <= _MOST_FLOPS else None


def _cost(inputs: tuple[str | None, ...]) -> int | None:
    name, *rest = inputs
    cost = cost_of(str(name), *rest)
    return cost.flops if isinstance(cost, Cost) else None


def _softmax_cost(inputs: tuple[str | None, ...]) -> int | None:
    parsed = Inputs.parse(*inputs[1:])
    scores = None if parsed is None else parsed.tensor(0)
    return None if scores is None else EACH_SCORE * scores.elements
