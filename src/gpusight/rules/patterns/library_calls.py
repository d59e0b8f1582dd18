"""Calls that a library makes inside its own functions: what its user can change about them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.attribution.call_sites import is_frame, is_own_code
from gpusight.analysis.attribution.nested_intervals import NestedIntervals, optional

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext


@dataclass(frozen=True, slots=True)
class LibrarySyncs:
    """A part of a library that synchronizes, and what its user can change."""

    pattern: str
    """Matches the Python frame, or the range that PyTorch opens around it."""
    name: str
    advice: str
    code: str = ""


_KNOWN = (
    LibrarySyncs(
        r"torch/optim/lbfgs\.py|Optimizer\.step#LBFGS\b",
        "torch.optim.LBFGS",
        "It reads the loss and the gradient back in each of its iterations. Use fewer iterations "
        "per step (max_iter, max_eval, no line search), or an optimizer that does not read back, "
        "such as AdamW.",
        "optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)   # 20 is the default\n"
        "optimizer = torch.optim.AdamW(model.parameters(), fused=True)   # or: no readbacks\n",
    ),
    LibrarySyncs(
        r"transformers/generation/",
        "generate() of transformers",
        "It reads back after each token whether all sequences have ended. Generate more sequences "
        "per call, or use an inference server that keeps that check off the critical path.",
        "inputs = tokenizer(prompts, padding=True, return_tensors='pt').to('cuda')\n"
        "outputs = model.generate(**inputs)  # all prompts: as many syncs as for one\n",
    ),
    LibrarySyncs(
        r"torch/(?:cuda/)?amp/grad_scaler\.py",
        "torch.amp.GradScaler",
        "It reads back once per step whether a gradient is infinite. BF16 needs no scaler.",
        'with torch.autocast("cuda", dtype=torch.bfloat16):   # instead of float16 and GradScaler\n'
        "    loss = loss_of(model(inputs), targets)\n",
    ),
    LibrarySyncs(
        r"torch/nn/utils/clip_grad\.py",
        "torch.nn.utils.clip_grad_norm_",
        "It reads the norm back with error_if_nonfinite=True, and where your code uses the norm.",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=False)\n",
    ),
)
_OPTIMIZER = re.compile(
    r"Optimizer\.step#(\w+)\.step|torch/optim/(?!optimizer\.py|lr_scheduler)(\w+)\.py"
)
_PACKAGES = re.compile(
    r"(?:^|/)(?:site|dist)-packages/(?!torch/)([\w.]+?)/|^(transformers|accelerate|lightning"
    r"|pytorch_lightning|diffusers|deepspeed|timm|torchvision|torchaudio|torchmetrics|peft|trl)/"
)


def library_of(name: str) -> LibrarySyncs | None:
    """Return the library that a Python frame or a range is of; None for code of the program."""
    for known in _KNOWN:
        if re.search(known.pattern, name):
            return known
    if match := _OPTIMIZER.search(name):
        advice = "Use its fused form or capturable=True, and give it numbers as learning rates."
        return LibrarySyncs("", f"torch.optim.{match[1] or match[2]}", advice)
    if match := _PACKAGES.search(name.replace("\\", "/")):
        package = match[1] or match[2]
        advice = "Look for an option that turns it off, call it less often, or on larger inputs."
        return LibrarySyncs("", package, advice)
    return None


def library_behind(context: RuleContext, calls: pl.DataFrame) -> LibrarySyncs | None:
    """Return the library that makes most of these calls inside its own functions.

    The frame that decides is the innermost one of a library or of the program; without stacks, the
    range that PyTorch opens around a step of an optimizer. None where the capture shows neither.
    """
    times, threads = calls["start_ns"].to_numpy(), calls["thread"]
    names = pl.Series([None] * calls.height, dtype=pl.String)
    for table, test in (
        ("python_calls", lambda name: is_frame(name) and (library_of(name) or is_own_code(name))),
        ("ranges", lambda name: library_of(name) is not None),
    ):
        events = context.trace.table(table, ["start_ns", "end_ns", "name", "thread"])
        if events.is_empty():
            continue
        nested = NestedIntervals.of_table(events)
        place = nested.innermost(times, threads)
        nearest = np.append(nested.nearest(nested.marked(events["name"], test)), -1)[place]
        nearest_names = events["name"].gather(optional(nested.rows_at(nearest))).cast(pl.String)
        names = pl.select(pl.coalesce(names, nearest_names)).to_series()
    libraries = {name: library_of(name) for name in names.drop_nulls().unique()}
    makers = [libraries[name] for name in names if name is not None]
    counts = {maker: makers.count(maker) for maker in makers if maker is not None}
    most = max(counts, key=lambda maker: counts[maker], default=None)
    return most if most is not None and 2 * counts[most] > calls.height else None
