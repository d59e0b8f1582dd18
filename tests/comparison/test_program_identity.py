"""Captures of different programs are recognized; what an optimization changes is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpusight.comparison.compare_digests import compare
from gpusight.comparison.comparison_result import Comparison
from gpusight.comparison.program_identity import other_program
from tests.comparison.digests import digest, kernel, steady
from tests.shared import SHARED, needs_shared

if TYPE_CHECKING:
    from gpusight.comparison.digest import Digest


def launching(*rows: tuple[str, str, float]) -> Digest:
    """Give a step of these kernels: category, name, launches."""
    kernels = tuple(kernel(category, (1e6, 1e6), name, calls) for category, name, calls in rows)
    return digest({"compute/matmul": [len(rows), len(rows)]}, kernels=kernels)


GPT = launching(("matmul", "sgemm", 231), ("elementwise", "add", 900), ("softmax", "softmax", 26))


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (launching(("matmul", "hgemm", 219), ("optimizer", "fused_adam", 8)), ""),
        (launching(("matmul", "hgemm", 130), ("attention", "flash_fwd", 24)), ""),
        (launching(("generated", "triton_poi_fused", 300)), ""),
        # Batched GEMMs: everything else is as it was.
        (launching(("matmul", "bmm", 20), ("elementwise", "add", 900), ("softmax", "x", 26)), ""),
        # Twice as many steps in a window.
        (launching(("matmul", "sgemm", 693), ("elementwise", "add", 2700)), ""),
        (launching(("matmul", "sgemm", 6)), "231 GEMMs per step before, 6 GEMMs after"),
        (launching(("elementwise", "vec", 9)), "before, no GEMMs or convolutions after"),
        (
            launching(("convolution", "conv_fprop", 87), ("matmul", "sgemm", 200)),
            "convolutions: none before, 50.0% of kernel time after",
        ),
        (launching(("custom", "stencil_step", 3)), "231 GEMMs per step before"),
    ],
)
def test_what_shows_another_program(other: Digest, why: str) -> None:
    assert (why in other_program([GPT, other])) if why else not other_program([GPT, other])
    assert bool(other_program([other, GPT])) == bool(why)


def test_hand_written_kernels_are_known_by_their_names() -> None:
    naive = launching(("custom", "transposeNaive", 1))
    assert not other_program([naive, launching(("custom", "transpose_tiled", 1))])
    assert other_program([naive, launching(("custom", "nbody_forces", 1))])


def test_that_programs_differ_comes_first() -> None:
    """A rewrite of a program may look like another one: the numbers stay."""
    before, after = steady("a", compute_convolution=10), steady("b", compute_matmul=5)
    comparison = compare([before], [after])
    assert isinstance(comparison, Comparison)
    verdict = comparison.explanation[0]
    why = "convolutions: 100.0% of kernel time before, none after"
    assert verdict.startswith(f"Probably different programs, or a rewritten one ({why}). Step time")
    assert "record" not in " ".join((verdict, *comparison.notes))  # more would not settle it


@needs_shared
@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("gpt_small_train.sqlite", "gpt_small_train_bf16_fused.sqlite", True),
        ("gpt_tiny_train_r1.sqlite", "gpt_tiny_train_tf32_r2.sqlite", True),
        ("graph.sqlite", "graph_node.sqlite", True),
        ("dataload.sqlite", "conv.sqlite", False),
        ("item.sqlite", "healthy.sqlite", False),
        ("gpt_small_train.sqlite", "gpt_small_forward.sqlite", False),
    ],
)
def test_recorded_programs(before: str, after: str, same: bool) -> None:
    import gpusight as gs

    view = gs.compare(SHARED / "nsys" / before, SHARED / "nsys" / after)
    assert bool(view.answer.other_program) is not same
