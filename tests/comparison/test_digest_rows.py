"""Names that mean the same in every capture, and tell nothing about the machine."""

from __future__ import annotations

import polars as pl
import pytest

from gpusight.comparison.digest_rows import MAX_NAME_CHARS, family, plain


@pytest.mark.parametrize(
    ("range_name", "wanted"),
    [
        ("step_0", "step_#"),
        ("ProfilerStep#12", "ProfilerStep#"),
        ("layers.3.attn", "layers.#.attn"),
        ("h0", "h#"),
        ("conv2d", "conv2d"),
        ("copy h2d 17", "copy h2d #"),
        ("at 0x7f3a91c0", "at #"),
        ("aten::mm, seq = 12, op_id = 7", "aten::mm"),
        ("1_2_3", "#_#_#"),
        ("forward", "forward"),
        (
            "## Call CompiledFxGraph fa4pa4mrx2nggomtew6kvq5cnvyujguoraux6r572lxtrj77r7aj ##",
            "# Call CompiledFxGraph # #",
        ),
        ("graph 0123456789abcdef0123456789abcdef", "graph #"),
        ("request 1b4e28ba-2fa1-11d2-883f-0016d3cca427", "request #"),
        (
            "Thunk:#name=jit(f)/dot,hlo_op=gemm_fusion_dot.31,unique_hlo_op_id=4294967329#",
            "Thunk:#name=jit(f)/dot,hlo_op=gemm_fusion_dot.#,unique_hlo_op_id=#",
        ),
        ("scaled_dot_product_attention", None),
        ("fullyconnectedlayernormalizationforwardandbackwardpass", None),
        ("defaced facade", None),
    ],
)
def test_numbers_that_count_are_taken_off(range_name: str, wanted: str | None) -> None:
    """None: the name itself."""
    assert family(pl.Series([range_name])).to_list() == [wanted or range_name]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/home/alice/work/train.py(12): step", "train.py(12): step"),
        (r"C:\Users\alice\train.py", "train.py"),
        ("lambda at /srv/x/k.cu:3", "lambda at k.cu:3"),
        ("encoder/layer/attention", "encoder/layer/attention"),
        ("jit(f)/jit(main)/dot", "jit(f)/jit(main)/dot"),
        ("tokens/s", "tokens/s"),
    ],
)
def test_folders_are_left_out_of_names(text: str, wanted: str) -> None:
    assert plain(text) == wanted


def test_long_names_stay_apart() -> None:
    one, other = plain("x" * 5_000 + "a"), plain("x" * 5_000 + "b")
    assert len(one) == len(other) == MAX_NAME_CHARS
    assert one != other
