"""The forward pass of the training step, from the batch to the loss."""

from __future__ import annotations

from benchmarks.torch_trace.script import BUCKET_LAYERS, LAYERS, Line, parse, within


def module(kind: str, forward: str, text: str | tuple[Line, ...]) -> tuple[Line, ...]:
    """Call an nn.Module, which looks up two of its parameters first."""
    body = parse(text) if isinstance(text, str) else text
    look_up = parse("py torch/nn/modules/module.py(1955): __getattr__") * 2
    return within(f"module {kind}", f"py {forward}: forward", body=look_up + body)


def method(name: str, text: str, of: str = "Tensor object at 0x7f8bc1e1d270") -> tuple[Line, ...]:
    """Call a method of a tensor from Python."""
    return within(f"py <built-in method {name} of {of}>", body=parse(text))


TORCH = "type object at 0x7f8c2e53e180"


def layer_norm() -> tuple[Line, ...]:
    """Normalise x."""
    body = method(
        "layer_norm",
        """
aten::layer_norm | x [gamma] gamma beta 1e-05 True
  aten::native_layer_norm | x [gamma] gamma beta 1e-05 | ~NativeLayerNormBackward0:x
    aten::empty | [x] 6 0 _ _ 0 | +x
    aten::empty | [ids1] 6 0 _ _ _ | +ids1
    aten::empty | [ids1] 6 0 _ _ _ | +ids1
    @layer_norm:x
    aten::view | ids1 [statistic]
    aten::view | ids1 [statistic]
""",
        TORCH,
    )
    asks = parse(
        """
py <built-in function _has_torch_function_variadic>
py torch/backends/__init__.py(41): __get__
  py <built-in function _get_cudnn_enabled>
"""
    )
    inner = within("py torch/nn/functional.py(2914): layer_norm", body=asks + body)
    return module("LayerNorm", "torch/nn/modules/normalization.py(228)", inner)


def linear(x: str, weight: str, y: str, kernel: str) -> tuple[Line, ...]:
    """Multiply by a weight, without a bias."""
    text = f"""
py <built-in function linear>
  aten::linear | {x} {weight} _
    aten::t | {weight} | ~TBackward0:{weight}'
      aten::transpose | {weight} 0 1
        aten::as_strided | {weight} [{weight}'] <{weight}'> _
    aten::matmul | {x} {weight}'
      aten::reshape | {x} [{x}2]
        aten::view | {x} [{x}2] | ~ViewBackward0:{x}2
      aten::mm | {x}2 {weight}' | +{y}2 @{kernel}:{y}2 ~MmBackward0:{y}2
      aten::_unsafe_view | {y}2 [{y}] | ~UnsafeViewBackward0:{y}
"""
    return module("Linear", "torch/nn/modules/linear.py(130)", text)


def linear_bias(x: str, weight: str, bias: str, y: str, kernel: str) -> tuple[Line, ...]:
    """Multiply by a weight and add a bias."""
    text = f"""
py <built-in function linear>
  aten::linear | {x} {weight} {bias}
    aten::view | {x} [{x}2] | ~ViewBackward0:{x}2
    aten::t | {weight} | ~TBackward0:{weight}'
      aten::transpose | {weight} 0 1
        aten::as_strided | {weight} [{weight}'] <{weight}'> _
    aten::addmm | {bias} {x}2 {weight}' 1 1 | +{y}2 @{kernel}:{y}2 ~AddmmBackward0:{y}2
    aten::view | {y}2 [{y}] | ~ViewBackward0:{y}
"""
    return module("Linear", "torch/nn/modules/linear.py(130)", text)


def contiguous(tensor: str, copy: str, shape: str) -> str:
    """Reshape a tensor that has to be copied for it."""
    return f"""
aten::reshape | {tensor} [{shape}]
  aten::clone | {tensor} 0 | ~CloneBackward0:{copy}
    aten::empty_like | {tensor} 6 0 _ _ 0
      aten::empty | [{copy}] 6 0 _ _ 0 | +{copy}
    aten::copy_ | {copy} {tensor} False | @copy
  aten::_unsafe_view | {copy} [{shape}] | ~UnsafeViewBackward0:{shape}
"""


def expand(tensor: str) -> str:
    """Expand a tensor to the shape it has."""
    return f"""
aten::expand | {tensor} [{tensor}] False | ~ExpandBackward0:{tensor}
  aten::as_strided | {tensor} [{tensor}] <{tensor}> _
"""


def attention() -> tuple[Line, ...]:
    """Attend: scores, mask, softmax and the weighted values, each written out."""
    heads = method("view", "aten::view | qkv [heads] | ~ViewBackward0:heads") + parse(
        """
py <built-in method permute of Tensor object at 0x7f8bc1e1d040>
  aten::permute | heads [2,0,3,1,4] | ~PermuteBackward0:split
    aten::as_strided | heads [split] <split> _
py <built-in method unbind of Tensor object at 0x7f8bc1e1d040>
  aten::unbind | split 0 | ~UnbindBackward0:q
"""
        + "    aten::select | split 0 0\n      aten::as_strided | split [q] <q> 0\n" * 3
        + """
py <built-in method transpose of Tensor object at 0x7f8bc1e1d040>
  aten::transpose | q -2 -1 | ~TransposeBackward0:q'
    aten::as_strided | q [q'] <q'> _
"""
    )
    scores = within(
        "aten::matmul | q q'",
        body=parse(expand("q") + contiguous("q", "head", "q3") + expand("q'"))
        + parse(contiguous("q'", "head'", "q3'"))
        + parse("aten::bmm | q3 q3' | +s3 @sgemm_nn:s3 ~BmmBackward0:s3")
        + parse("aten::_unsafe_view | s3 [s] | ~UnsafeViewBackward0:s"),
    )
    values = within(
        "aten::matmul | s q",
        body=parse(
            expand("s") + "aten::reshape | s [s3]\n  aten::view | s [s3] | ~ViewBackward0:s3"
        )
        + parse(expand("q") + contiguous("q", "head", "q3"))
        + parse("aten::bmm | s3 q3 | +q3 @gemm_nn_small:q3 ~BmmBackward0:q3")
        + parse("aten::_unsafe_view | q3 [head] | ~UnsafeViewBackward0:head"),
    )
    merge = method(
        "transpose",
        """
aten::transpose | head 1 2 | ~TransposeBackward0:token
  aten::as_strided | head [token] <token> _
""",
    ) + method("reshape", contiguous("token", "token", "x"))
    weigh = heads + scores + softmax() + values + merge
    body = linear("x", "wq", "qkv", "gemm_tn_small") + weigh + linear("x", "wo", "x", "gemm_tn")
    return module("Attention", "model.py(11)", body)


def softmax() -> tuple[Line, ...]:
    """Scale the scores, hide what lies ahead and take the softmax."""
    return parse(
        """
+8
aten::div | s scalar | +s @div ~DivBackward0:s
-8
py <built-in method ones of type object at 0x7f8c2e53e180>
  aten::ones | [mask] 11 _ _ False
    aten::empty | [mask] 11 _ _ False _ | +mask
    aten::fill_ | mask 1. | @fill_bool
py <built-in method tril of Tensor object at 0x7f8bc1e1d270>
  aten::tril | mask 0 | +mask @tril
py <built-in method bitwise_not of Tensor object at 0x7f8bc1e1d270>
  aten::bitwise_not | mask | +mask @not
py <built-in method masked_fill of Tensor object at 0x7f8bc1e1d270>
  aten::masked_fill | s mask -inf | ~MaskedFillBackward0:s
    aten::expand | s [s] False
      aten::as_strided | s [s] <s> _
    aten::expand | mask [s] False
      aten::as_strided | mask [s] [0,0,512,1] _
    aten::clone | s 0
      aten::empty_like | s 6 0 _ _ 0
        aten::empty | [s] 6 0 _ _ 0 | +s
      aten::copy_ | s s False | !copy:s
    aten::masked_fill_ | s mask -inf | @masked_fill
      aten::expand | mask [s] False
        aten::as_strided | mask [s] [0,0,512,1] _
py <built-in method softmax of type object at 0x7f8c2e53e180>
  aten::softmax | s -1 _
    aten::_softmax | s -1 False | +s @softmax ~SoftmaxBackward0:s
"""
    )


def block() -> tuple[Line, ...]:
    """Run one layer of the transformer."""
    residual = parse("aten::add | x x 1 | +x @add ~AddBackward0:x")
    gelu = within(
        "py <built-in function gelu>", body=parse("aten::gelu | h _ | +h @gelu ~GeluBackward0:h")
    )
    widen = linear_bias("x", "w1", "b1", "h", "gemm_tn_tall")
    narrow = linear_bias("h", "w2", "b2", "x", "gemm_tn")
    feed_forward = layer_norm() + widen + gelu + narrow
    body = layer_norm() + attention() + residual + feed_forward + residual
    return module("Block", "model.py(29)", body)


def embedding(indices: str, flat: str, table: str, rows: str, out: str) -> tuple[Line, ...]:
    """Look up the rows of a table."""
    text = f"""
aten::embedding | {table} {indices} -1 False False | ~EmbeddingBackward0:{out}
  aten::reshape | {indices} [-1]
    aten::view | {indices} [-1]
  aten::index_select | {table} 0 {flat}
    aten::empty | [0] 6 _ _ False _
    aten::resize_ | {rows} [{rows}] _ | +{rows}
    aten::expand | {flat} [{rows}] False
      aten::as_strided | {flat} [{rows}] [1,0] _
    aten::gather | {table} 0 {flat} False {rows} | @gather:{rows}
  aten::view | {rows} [{out}]
"""
    inner = within("py torch/nn/functional.py(2455): embedding", body=method("embedding", text))
    return module("Embedding", "torch/nn/modules/sparse.py(188)", inner)


def loss() -> tuple[Line, ...]:
    """Compute the loss from the logits."""
    return parse(
        """
py torch/nn/functional.py(3481): cross_entropy
  py <built-in function cross_entropy_loss>
    aten::view | logits [logits2] | ~ViewBackward0:logits2
    aten::cross_entropy_loss | logits2 ids1 _ 1 -100 0.
      aten::log_softmax | logits2 1 _
        aten::_log_softmax | logits2 1 False | +logits2 @log_softmax ~LogSoftmaxBackward0:logits2
      aten::nll_loss_nd | logits2 ids1 _ 1 -100
        aten::nll_loss | logits2 ids1 _ 1 -100
          aten::nll_loss_forward | logits2 ids1 _ 1 -100 | +loss @nll_loss ~NllLossBackward0:loss
"""
    )


def forward() -> tuple[Line, ...]:
    """Run the model on a batch and compute the loss."""
    words = embedding("ids", "ids1", "words", "x2", "x")
    places = embedding("places", "places", "position", "position", "position")
    start = parse("aten::arange | 512 4 0 _ False | +places @arange:places")
    add = parse("aten::add | x position 1 | +x @add_broadcast ~AddBackward0:x")
    layers: tuple[Line, ...] = ()
    for i in range(LAYERS):
        layers += (parse("bucket") if i % BUCKET_LAYERS == 0 else ()) + block()
    head = layer_norm() + linear("x", "words", "logits", "gemm_tn")
    model = module("GPT", "model.py(38)", words + start + places + add + layers + head)
    wrapped = module(
        "DistributedDataParallel",
        "torch/nn/parallel/distributed.py(1637)",
        within("annotate DistributedDataParallel.forward", body=model),
    )
    return parse(LOAD) + wrapped + loss()


LOAD = """
py torch/utils/data/dataloader.py(732): __next__
  py torch/utils/data/dataloader.py(788): _next_data
    py torch/utils/data/_utils/fetch.py(47): fetch
py <built-in method to of Tensor object at 0x7f8bc1e1d270>
  aten::to | ids [0] 0 False False _
    aten::_to_copy | ids 4 0 0 _ False _
      aten::empty_strided | [ids] <ids> 4 0 0 _ | +ids
      aten::copy_ | ids ids False | !upload:ids
"""
