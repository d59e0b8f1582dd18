"""What programs call a forward pass and the parts of attention, however they spell it.

`forward_pass`, `Forward pass`, `forwardPass` and `## forward-pass ##` are the same words.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[a-z]+")
_LONGEST_NAME = 200
_OPERATOR = re.compile(r"::|\bop_id\b|\bseq = ")
"""What names of operators have that frameworks emit as ranges by themselves."""

_FORWARD = frozenset({"forward", "fwd"})
_BACKWARD = frozenset({"backward", "backwards", "bwd", "backprop", "grad", "grads", "gradient"})
_OPTIMIZER = frozenset({"optimizer", "optimiser", "optim", "opt", "adam", "adamw", "sgd"})
_INFERENCE = frozenset({"inference", "infer", "predict", "prediction", "generate", "prefill"})
_OF_THE_WHOLE = frozenset((
    "the", "a", "of", "in", "pass", "passes", "step", "steps", "iter", "iteration", "iterations",
    "batch", "model", "net", "network", "nn", "module", "full", "whole", "run", "total", "time",
    "phase", "train", "training", "eval", "evaluation", "validation", "measure", "measured",
    "benchmark", "bench", "timed", "distributed", "data", "parallel", "ddp", "fsdp", "gpt", "llm",
    "transformer", "start",
))  # fmt: skip
"""Words beside `forward` that do not make it the forward of a layer."""

_SCORES = frozenset({"scores", "score", "logits", "qk", "qkt", "similarity"})
_ABOUT_ATTENTION = frozenset({"attention", "attn", "att", "qk", "qkt", "query", "key", "dot"})
_PRODUCT = frozenset({"matmul", "mm", "bmm", "gemm", "product", "multiply", "multiplication"})
_LAST = frozenset({"final", "value", "values", "v"})
_PROJECTION = frozenset({"proj", "projection", "linear", "qkv"})
"""What goes around attention's own products, and is none of them."""
_WEIGHTS = frozenset({"attention", "attn", "scores", "probs", "weights", "weighted"})
_VALUES = frozenset({"v", "value", "values"})
_WEIGHING = ({"weighted", "sum"}, {"apply", "attention"}, {"apply", "attn"}, {"av"}, {"pv"})

SCORES, SOFTMAX, FINAL = "scores", "softmax", "final"
PARTS = (SCORES, SOFTMAX, FINAL)
"""The parts of attention, in the order in which they run."""


def words(name: str) -> list[str]:
    """Split a name into lower-case words; numbers and marks only separate them."""
    return _WORD.findall(_CAMEL.sub(" ", name[:_LONGEST_NAME]).lower())


def forward_rank(name: str) -> int | None:
    """Rank a range's name as a forward pass: 0 the surest; None for something else."""
    found = frozenset(words(name))
    if _OPERATOR.search(name) or found & (_BACKWARD | _OPTIMIZER):
        return None
    if found & _FORWARD:
        return 0 if found <= _FORWARD | _OF_THE_WHOLE else 1
    return 2 if found & _INFERENCE else None


def family(name: str) -> str:
    """Give what ranges have in common that differ only in numbers and in words of no meaning."""
    found = [word for word in words(name) if word not in _OF_THE_WHOLE]
    return " ".join("forward" if word in _FORWARD else word for word in found)


def attention_part(name: str) -> str | None:
    """Tell which part of attention a range is; None for something else."""
    found = frozenset(words(name))
    if _OPERATOR.search(name) or found & (_BACKWARD | _PROJECTION):
        return None
    return next((part for part, fits in _FITS if fits(found)), None)


def _is_softmax(found: frozenset[str]) -> bool:
    return "softmax" in found and "log" not in found


def _is_scores(found: frozenset[str]) -> bool:
    scored = bool(found & _SCORES and found & _ABOUT_ATTENTION)
    named = {"query", "key"} <= found or {"q", "k"} <= found
    return scored or (named and not found & {"v", "value"})


def _is_final(found: frozenset[str]) -> bool:
    weighs = bool(found & _WEIGHTS and found & _VALUES)
    named = any(pair <= found for pair in _WEIGHING)
    return weighs or named or bool(found & _PRODUCT and found & _LAST)


_FITS: tuple[tuple[str, Callable[[frozenset[str]], bool]], ...] = (
    (SOFTMAX, _is_softmax),
    (FINAL, _is_final),
    (SCORES, _is_scores),
)
"""In the order of certainty: `attention scores v matmul` is the last product, not the scores."""
