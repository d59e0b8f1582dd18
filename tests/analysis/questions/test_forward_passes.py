"""What programs call a forward pass, and the parts of attention."""

from __future__ import annotations

import pytest

from gpusight.analysis.questions.forward_passes import attention_part, family, forward_rank


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("forward", 0),
        ("Forward Pass", 0),
        ("forward_pass", 0),
        ("forwardPass", 0),
        ("FWD", 0),
        ("## forward ##", 0),
        ("forward-step-3", 0),
        ("DistributedDataParallel.forward", 0),
        ("[param|pytorch.model.alex_net|0|0|0|measure|forward]", 1),
        ("attn_forward", 1),
        ("model_inference", 2),
        ("backward", None),
        ("forward_backward", None),
        ("fwd_bwd", None),
        ("forward::op", None),
        ("aten::linear, op_id = 12", None),
        ("optimizer", None),
        ("straightforward", None),
        ("step_3", None),
        ("", None),
    ],
)
def test_forward_passes(name: str, rank: int | None) -> None:
    assert forward_rank(name) == rank


def test_passes_of_one_family() -> None:
    assert family("forward_0") == family("Forward pass 12") == family("model.fwd") == "forward"
    assert family("attn_forward") != family("forward")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("computing_attention_scores", "scores"),
        ("computing attention scores", "scores"),
        ("ComputeAttentionScores", "scores"),
        ("QK^T", "scores"),
        ("qk_matmul", "scores"),
        ("query-key product", "scores"),
        ("attention logits", "scores"),
        ("computing_softmax", "softmax"),
        ("computing softmax", "softmax"),
        ("Softmax", "softmax"),
        ("attention_softmax", "softmax"),
        ("final_matmul", "final"),
        ("final matmul", "final"),
        ("attn @ V", "final"),
        ("attention scores v matmul", "final"),
        ("value_matmul", "final"),
        ("weighted sum", "final"),
        ("log_softmax", None),
        ("qkv_proj", None),
        ("output projection matmul", None),
        ("SoftmaxBackward0, seq = 12", None),
        ("aten::softmax, op_id = 4", None),
        ("scores", None),
        ("attn", None),
        ("mlp", None),
    ],
)
def test_parts_of_attention(name: str, part: str | None) -> None:
    assert attention_part(name) == part
