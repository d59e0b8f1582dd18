"""What one training step of a 12-layer GPT does, written as an indented script.

    aten::mm | x2 wq' | +qkv2 @gemm_tn ~MmBackward0:qkv2

is an operator, its inputs and what happens inside it; lines further in happen inside it too.

| input | is |
|---|---|
| `x` / `x'` | the tensor of that name in TENSORS / with its last two dimensions swapped |
| `[x]` / `<x>` | its shape / its strides, passed as a list |
| `_` | nothing; anything else is a number or a list as it stands |

| inside | happens |
|---|---|
| `+x` / `-x` | memory for `x` is taken / given back; a number is that many bytes of the host |
| `@sum` | the kernel of that name runs over the first tensor among the inputs |
| `!zero` | a call that is not a kernel, see CALLS in torch_training.py |
| `~Node:x` | autograd notes that `Node` will run backward, from the gradient of `x` |

Lines that start with `py`, `module` and `annotate` are a Python function, a call of an nn.Module
and a range that the user marked; `bucket` is where the backward pass sends gradients to others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from benchmarks.torch_trace.recorder import Tensor

LAYERS, BUCKET_LAYERS = 12, 3

TENSORS = {
    "ids": Tensor((4, 512), "long int"),
    "ids1": Tensor((2048,), "long int"),
    "places": Tensor((512,), "long int"),
    "words": Tensor((10000, 768)),
    "position": Tensor((512, 768)),
    "x": Tensor((4, 512, 768)),
    "x2": Tensor((2048, 768)),
    "gamma": Tensor((768,)),
    "beta": Tensor((768,)),
    "statistic": Tensor((4, 512, 1)),
    "wq": Tensor((2304, 768)),
    "qkv2": Tensor((2048, 2304)),
    "qkv": Tensor((4, 512, 2304)),
    "heads": Tensor((4, 512, 3, 12, 64)),
    "split": Tensor((3, 4, 12, 512, 64), strides=(768, 1179648, 64, 2304, 1)),
    "q": Tensor((4, 12, 512, 64), strides=(1179648, 64, 2304, 1)),
    "head": Tensor((4, 12, 512, 64)),
    "token": Tensor((4, 512, 12, 64)),
    "q3": Tensor((48, 512, 64)),
    "s3": Tensor((48, 512, 512)),
    "s": Tensor((4, 12, 512, 512)),
    "mask": Tensor((512, 512), "bool"),
    "wo": Tensor((768, 768)),
    "w1": Tensor((3072, 768)),
    "b1": Tensor((3072,)),
    "h2": Tensor((2048, 3072)),
    "h": Tensor((4, 512, 3072)),
    "w2": Tensor((768, 3072)),
    "b2": Tensor((768,)),
    "logits2": Tensor((2048, 10000)),
    "logits": Tensor((4, 512, 10000)),
    "loss": Tensor(()),
    "scalar": Tensor((), "double"),
}

LAYER_PARAMETERS = ("gamma", "beta", "wq", "wo", "gamma", "beta", "w1", "b1", "w2", "b2")
PARAMETERS = ("words", "position", *LAYER_PARAMETERS * LAYERS, "gamma", "beta", "words")


@dataclass(frozen=True)
class Line:
    """A line of the script with the lines further in."""

    head: str
    inputs: str = ""
    effects: str = ""
    body: tuple[Line, ...] = ()

    def has_gradient(self) -> bool:
        """Say whether it or anything inside it notes a node for the backward pass."""
        return "~" in self.effects or any(line.has_gradient() for line in self.body)


def parse(text: str) -> tuple[Line, ...]:
    """Read a script by its indentation."""
    rows = [line for line in text.splitlines() if line.strip()]
    starts = [i for i, row in enumerate(rows) if not row.startswith(" ")]
    lines = []
    for start, end in pairwise([*starts, len(rows)]):
        head, inputs, effects = ([part.strip() for part in rows[start].split("|")] + ["", ""])[:3]
        inner = "\n".join(row[2:] for row in rows[start + 1 : end])
        lines.append(Line(head, inputs, effects, parse(inner)))
    return tuple(lines)


def within(*heads: str, body: tuple[Line, ...]) -> tuple[Line, ...]:
    """Put lines inside nested ones."""
    for head in reversed(heads):
        body = (replace(parse(head)[0], body=body),)
    return body
