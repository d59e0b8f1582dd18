"""Convolution kernels by how they were chosen: rules about them must not name one twice."""

from __future__ import annotations

import polars as pl

TENSOR_SHARE = 0.2
"""Part of the time of convolutions that runs on tensor cores from which on the program allows it:
what does not is then the choice of an algorithm."""
# Lowered to a matrix in memory, written without a library, or one thread for each element.
_PLAIN = r"^im\d?d?2col|^col2im|^vol2col|^col2vol|naive_conv|grouped_direct|^depthwise"
# Transforms of cuDNN's convolutions by FFT; the products in between are of complex numbers.
_FFT = r"\bDSE::|fft2d_|cudnn\w*::fft"
_BETWEEN_FFT = r"^gemm complex|^region_transform"
_TURNS = r"cudnn.*genericTranspose"
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


def by_fft(kernels: pl.DataFrame) -> pl.Expr:
    """Tell kernels of convolutions by FFT, in a frame of kernels with these."""
    fft = pl.col("name").str.contains(_FFT).fill_null(value=False)
    if not kernels.filter(fft).height:
        return fft
    return fft | pl.col("label").str.contains(_BETWEEN_FFT).fill_null(value=False)


def badly_chosen(kernels: pl.DataFrame) -> pl.DataFrame:
    """Give the convolutions for which another algorithm would be faster, with what they turn."""
    if not tensor_cores_allowed(kernels):
        return kernels.filter(plain())
    chosen = plain() | without_tensor_cores() | by_fft(kernels)
    turns = pl.col("name").str.contains(_TURNS).fill_null(value=False)
    beside = [chosen.shift(n).over("queue").fill_null(value=False) for n in (1, -1)]
    return kernels.filter(chosen | (turns & pl.any_horizontal(beside)))
