"""Operations counted from machine instructions, where a capture counts those by kind.

The name of a tensor-core instruction holds the size of the product it makes, so the operations are
known exactly: `HMMA.16816.F32` multiplies a 16x16 by a 16x8 matrix. The four warps of a warp group
execute one `HGMMA` together, and each counts it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.roofline.arithmetic import (
    FP32,
    FP32_WEIGHTS,
    FP64,
    FP64_WEIGHTS,
    HALF_FMA,
    HALF_OTHER,
    KINDS,
    Arithmetic,
)

if TYPE_CHECKING:
    from gpusight.model.trace import Trace

WARPS = "sass__inst_executed_per_opcode_with_modifier_all"
THREADS = "sass__thread_inst_executed_true_per_opcode_with_modifier_all"
SECTION = "InstructionStats"
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
_LANES = {
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
UNTOLD = "untold"
_COLUMNS = (
    FP64.key,
    FP32.key,
    HALF_FMA,
    HALF_OTHER,
    *(kind.key for kind in KINDS if kind.tensor),
)


def lanes_of(opcode: str) -> tuple[str, float] | None:
    """Say what an instruction of ordinary lanes does: kind, and operations of a thread."""
    return _LANES.get(opcode.partition(".")[0].removesuffix("_32I").removesuffix("32I"))


def matrix_of(opcode: str) -> tuple[str, float] | None:
    """Say what a tensor-core instruction does: kind, and operations of a warp."""
    found = _MATRIX.match(opcode)
    if found is None:
        return None
    letter, group, size, rest = found.groups()
    modifiers = rest.split(".")
    sides = tuple(map(int, size.split("x"))) if "x" in size else _SIZES.get(size)
    if sides is None:
        return None
    rows, columns, depth = sides
    flops = 2.0 * rows * columns * depth / (_WARPS_PER_GROUP if group else 1)
    if letter == "H" and size == _VOLTA_HALVES and "F32" not in modifiers:
        flops *= 2  # two steps make what four do with FP32 sums
    return Arithmetic(_format(letter, modifiers), tensor=True).key, flops


def _format(letter: str, modifiers: list[str]) -> str:
    if letter == "H":
        return next((m.lower() for m in modifiers if m in {"BF16", "TF32"}), "fp16")
    if letter == "I" and {"S4", "U4"} & set(modifiers):
        return "int4"
    return _LETTERS[letter]


def counted_by_opcode(trace: Trace) -> pl.DataFrame:
    """Give one row for each launch whose instructions were counted, a column for each kind.

    `untold` says that it executed tensor-core instructions whose names hold no size.
    """
    return trace.derive("roofline-opcodes-1", lambda: _count(trace))


def _count(trace: Trace) -> pl.DataFrame:
    rows = trace.table("counter_instances", ("launch", "metric", "key", "value"))
    rows = rows.filter(rows["metric"].cast(pl.String).is_in([WARPS, THREADS]))
    rows = rows.with_columns(pl.col("metric", "key").cast(pl.String)).drop_nulls("key")
    known = pl.DataFrame(
        [(metric, key, *_meaning(metric, key)) for metric, key in _kinds_in(rows)],
        schema={"metric": pl.String, "key": pl.String, "kind": pl.String, "each": pl.Float64},
        orient="row",
    )
    counted = rows.join(known, on=["metric", "key"], how="left").with_columns(
        (pl.col("value") * pl.col("each")).alias("flops")
    )
    launches = rows.select(pl.col("launch").unique().sort())
    each = [pl.col("flops").filter(pl.col("kind") == key).sum().alias(key) for key in _COLUMNS]
    untold = ((pl.col("kind") == UNTOLD) & (pl.col("value") > 0)).any().alias(UNTOLD)
    return launches.join(
        counted.group_by("launch").agg(*each, untold), on="launch", maintain_order="left"
    )


def _kinds_in(rows: pl.DataFrame) -> list[tuple[str, str]]:
    return rows.select("metric", "key").unique().rows()


def _meaning(metric: str, opcode: str) -> tuple[str | None, float | None]:
    found = lanes_of(opcode) if metric == THREADS else matrix_of(opcode)
    if found is None and metric == WARPS and _ANY_MATRIX.match(opcode):
        return UNTOLD, None
    return found or (None, None)
