"""The backward pass of the training step, node by node, and the update of the parameters.

In a node `g` is the gradient that comes in; `a`, `b` and `c` are the tensors that were passed to
the operator in the forward pass. `accumulate` adds to the gradient of a parameter.
"""

from __future__ import annotations

from benchmarks.torch_trace.script import parse

BACKWARD = {
    name: parse(text)
    for name, text in {
        "AddBackward0": "",
        "AddmmBackward0": """
aten::t | c
  aten::transpose | c 0 1
    aten::as_strided | c [c'] <c'> _
aten::mm | g c' | +b !zero !attributes @gemm_nn_wide
aten::t | b
  aten::transpose | b 0 1
    aten::as_strided | b [b'] <b'> _
aten::mm | b' g | +c !zero @sgemm_nt_wide:c
aten::sum | g [0] True _ | +a !zero @sum
aten::view | a [a]
accumulate | a
""",
        "BmmBackward0": """
aten::transpose | a 1 2
  aten::as_strided | a [a'] <a'> _
aten::bmm | a' g | +b @gemm_nt:b
aten::transpose | b 1 2
  aten::as_strided | b [b'] <b'> _
aten::bmm | g b' | +a @gemm_nn_small:a
""",
        "CloneBackward0": "",
        "DivBackward0": "+8\naten::div | g scalar | +g @div\n-8",
        "EmbeddingBackward0": """
aten::embedding_backward | g b 10000 -1 False False
  aten::embedding_dense_backward | g b 10000 -1 False
    aten::zeros | [a] 6 0 0 False
      aten::empty | [a] 6 0 0 False _ | +a
      aten::zero_ | a
        aten::fill_ | a 0 | @fill
    @embedding_backward:a
accumulate | a
""",
        "ExpandBackward0": "",
        "GeluBackward0": "aten::gelu_backward | g a _ | +a @gelu_backward",
        "LogSoftmaxBackward0": """
aten::_log_softmax_backward_data | g g 1 6 | +g @log_softmax_backward
""",
        "MaskedFillBackward0": """
aten::masked_fill | g b 0
  aten::expand | b [g] False
    aten::as_strided | b [g] [0,0,512,1] _
  aten::clone | g 0
    aten::empty_like | g 6 0 _ _ 0
      aten::empty | [g] 6 0 _ _ 0 | +g
    aten::copy_ | g g False | !copy:g
  aten::masked_fill_ | g b 0 | @masked_fill
""",
        "MmBackward0": """
aten::t | a
  aten::transpose | a 0 1
    aten::as_strided | a [a'] <a'> _
aten::mm | a' g | +b @sgemm_nt:b @split_k:b
aten::t | b
  aten::transpose | b 0 1
    aten::as_strided | b [b'] <b'> _
aten::t | b'
  aten::transpose | b' 0 1
    aten::as_strided | b' [b] <b> _
aten::mm | g b' | +a !zero @gemm_nn:a
""",
        "NativeLayerNormBackward0": """
aten::native_layer_norm_backward | g x [gamma] statistic statistic gamma beta [True,True,True]
  aten::empty | [x] 6 0 _ _ 0 | +x
  aten::empty | [gamma] 6 0 _ _ 0 | +gamma
  aten::empty | [beta] 6 0 _ _ 0 | +beta
  @layer_norm_backward:x
  @gamma_beta:x
aten::add_ | x x 1 | @add
accumulate | gamma
accumulate | beta
""",
        "NllLossBackward0": """
aten::nll_loss_backward | g a b _ 1 -100 g | +a
  aten::zero_ | a
    aten::fill_ | a 0 | @fill
  @nll_loss_backward:a
""",
        "PermuteBackward0": """
aten::permute | g [1,3,0,2,4]
  aten::as_strided | g [a] <a> _
""",
        "SoftmaxBackward0": """
aten::_softmax_backward_data | g g -1 6 | +g @softmax_backward
  aten::mul | g g | +g @mul_tensors
""",
        "TBackward0": """
aten::t | g
  aten::transpose | g 0 1
    aten::as_strided | g [a] <a> _
accumulate | a
""",
        "TransposeBackward0": """
aten::transpose | g -2 -1
  aten::as_strided | g [a] <a> _
""",
        "UnbindBackward0": """
aten::stack | g g g 0
  aten::cat | g g g 0 | +split @cat:split
""",
        "UnsafeViewBackward0": "aten::reshape | g [a]\n  aten::view | g [a]",
        "ViewBackward0": "aten::reshape | g [a]\n  aten::view | g [a]",
    }.items()
}

# One parameter of AdamW, as it is updated without `foreach` or `fused`.
UPDATE = parse(
    """
py torch/compiler/__init__.py(442): is_compiling
  py torch/_jit_internal.py(103): is_scripting
+8
aten::add_ | scalar scalar 1
  aten::to | scalar 6 False False _
    aten::_to_copy | scalar 6 _ _ _ False _
      aten::empty_strided | [] [] 6 0 _ False | +4
      aten::copy_ | scalar scalar False
  -4
-8
py <built-in method mul_ of Parameter object at 0x7f8cb599f0c0>
  +8
  aten::mul_ | p scalar | @mul
  -8
py <built-in method is_complex of type object at 0x7f8c2e53e180>
py <built-in method lerp_ of Tensor object at 0x7f8bc38a01e0>
  aten::lerp_ | p p 0.099999999999999978 | @lerp
py <built-in method mul_ of Tensor object at 0x7f8bc2819c70>
  +8
  aten::mul_ | p scalar | @mul
  -8
py <built-in method addcmul_ of Tensor object at 0x7f8bc2819c70>
  aten::addcmul_ | p p p 0.0010000000000000009 | @addcmul
py torch/optim/optimizer.py(91): _get_value
  py torch/_jit_internal.py(103): is_scripting
  py torch/compiler/__init__.py(442): is_compiling
    py torch/_jit_internal.py(103): is_scripting
  py <built-in function isinstance>
  py <built-in method item of Tensor object at 0x7f8bc2717e80>
    aten::item | scalar
      aten::_local_scalar_dense | scalar
py <built-in method sqrt of Tensor object at 0x7f8bc2819c70>
  aten::sqrt | p | +p @sqrt
+8
aten::div | p scalar | +p @div
-8
-p
py <built-in method add_ of Tensor object at 0x7f8bc1e202d0>
  +8
  aten::add_ | p 1e-08 1 | @add_scalar
  -8
py <built-in method addcdiv_ of Parameter object at 0x7f8cb599f0c0>
  aten::addcdiv_ | p p p -0.00029078220412910734 | @addcdiv
-p
"""
)

# What AdamW does for each parameter before it updates the first.
GROUP = parse(
    """
py torch/_tensor.py(1225): __hash__
  py <built-in function id>
py <built-in method append of list object at 0x7f8bc27dadc0>
py <built-in function len>
"""
)

ITEM = parse(
    """
py <built-in method item of Tensor object at 0x7f8bc2717e80>
  aten::item | loss
    aten::_local_scalar_dense | loss | !download:loss !synchronize
"""
)
