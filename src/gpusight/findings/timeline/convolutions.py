"""Convolution kernels by how they were chosen: rules about them must not name one twice."""

from __future__ import annotations

import polars as pl

TENSOR_SHARE = 0.2
"""Part of the time of convolutions that runs on tensor cores from which on the program allows it:
what does not is then the choice of an algorithm."""
# Lowered to a matrix in memory, written without a library, or one thread for each element.
_PLAIN = r"^im\d?d?2col|^col2im|^vol2col|^col2vol|naive_conv|grouped_direct|^depthwise"
_IS = pl.col("category") == "convolution"


def plain() -> pl.Expr:
    """Tell kernels of algorithms that a library beats, in a frame of kernels."""
    return (_IS & pl.col("label").str.contains(_PLAIN)).fill_null(value=False)


def without_tensor_cores() -> pl.Expr:
    """Tell the other kernels that compute in FP32 on ordinary lanes."""
    lanes = (pl.col("precision") == "fp32") & ~pl.col("tensor_core")
    return (_IS & lanes & ~plain()).fill_null(value=False)


def tensor_cores_allowed(kernels: pl.DataFrame) -> bool:
    """Tell whether a good part of the convolutions runs on tensor cores."""
    convolutions = kernels.filter(_IS)
    on_tensor_cores = int(convolutions.filter(pl.col("tensor_core"))["duration_ns"].sum())
    return on_tensor_cores > TENSOR_SHARE * int(convolutions["duration_ns"].sum())


def badly_chosen(kernels: pl.DataFrame) -> pl.DataFrame:
    """Give the convolutions for which another algorithm would be faster."""
    chosen = plain() | without_tensor_cores() if tensor_cores_allowed(kernels) else plain()
    return kernels.filter(chosen)
