"""What a user wishes to be different, read from what was typed."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.analyses.select import near_matches
from gpusight.errors import UsageError
from gpusight.model.kernel_names import CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

KERNEL, RANGE = "kernel:", "range:"
"""Before a pattern that kernels, or the ranges that launched work, are matched with."""
KERNELS, COPIES, HOST = "kernels", "copies", "host"
SYNC, INPUT, ALLOC, OVERHEAD = "sync", "input", "alloc", "overhead"
_PATTERNS = (KERNEL, RANGE)
_FACTOR = re.compile(r"(?P<number>\d{1,6}(?:\.\d{1,6})?)\s*[xX]?")


class Verb(enum.Enum):
    """What is to become of a target."""

    SPEEDUP = "speedup"
    REMOVE = "remove"
    GRAPH = "graph"
    FUSE = "fuse"
    OVERLAP = "overlap"
    APPLY = "apply"
    PRECISION = "precision"


TARGETS: dict[Verb, tuple[str, ...]] = {
    Verb.SPEEDUP: (*CATEGORIES, KERNELS, COPIES, HOST),
    Verb.REMOVE: (SYNC, INPUT, ALLOC, COPIES, OVERHEAD, *CATEGORIES),
    Verb.FUSE: ("elementwise", "optimizer", "attention"),
    Verb.OVERLAP: (COPIES, "communication"),
    Verb.PRECISION: ("tf32", "bf16", "fp16"),
}
"""The words that each verb knows."""
RULES_OF = {
    "elementwise": "elementwise-chain",
    "optimizer": "unfused-optimizer",
    "attention": "unfused-attention",
}
"""The rule that knows what can be fused, and into what."""


@dataclass(frozen=True, slots=True)
class Wish:
    """One thing that is to be different."""

    verb: Verb
    target: str = ""
    factor: float = 1.0
    """How many times faster, of a speed-up."""

    @property
    def text(self) -> str:
        """Say it in words, as tables show it."""
        name = self.target
        for prefix in _PATTERNS:
            name = name.replace(prefix, f"{prefix[:-1]} ", 1) if name.startswith(prefix) else name
        return {
            Verb.SPEEDUP: f"{name} {self.factor:g}x faster",
            Verb.REMOVE: f"no {name}",
            Verb.GRAPH: "launches as CUDA graphs",
            Verb.FUSE: f"{name} fused",
            Verb.OVERLAP: f"{name} beside computation",
            Verb.APPLY: f"fix of {name}",
            Verb.PRECISION: f"FP32 products in {name.upper()}",
        }[self.verb]


def read_wish(verb: Verb, text: str = "") -> Wish:
    """Read one wish: `matmul=4x` of a speed-up, else the target alone."""
    if verb is Verb.GRAPH:
        return Wish(verb)
    if verb is Verb.SPEEDUP:
        target, _, factor = text.rpartition("=")
        return Wish(verb, _target(verb, target or text), _factor(text, factor if target else ""))
    return Wish(verb, _target(verb, text))


def wishes(
    *,
    speedup: Mapping[str, float] | None = None,
    precision: str | None = None,
    remove: Iterable[str] = (),
    fuse: Iterable[str] = (),
    overlap: Iterable[str] = (),
    apply: Iterable[str] = (),
    graph: bool = False,
) -> list[Wish]:
    """Make wishes of named arguments; graphs come last, so that they hold what is left."""
    found = [
        Wish(Verb.SPEEDUP, _target(Verb.SPEEDUP, target), _factor(f"{target}={factor}", factor))
        for target, factor in (speedup or {}).items()
    ]
    for verb, targets in (
        (Verb.PRECISION, () if precision is None else precision),
        (Verb.REMOVE, remove),
        (Verb.FUSE, fuse),
        (Verb.OVERLAP, overlap),
        (Verb.APPLY, apply),
    ):
        found += [read_wish(verb, target) for target in _each(targets)]
    return [*found, Wish(Verb.GRAPH)] if graph else found


def _each(targets: Iterable[str]) -> Iterable[str]:
    return [targets] if isinstance(targets, str) else targets


def _target(verb: Verb, text: str) -> str:
    """Give a target that the verb knows; rules are known to those who ask them."""
    target = text.strip()
    patterns = verb in {Verb.SPEEDUP, Verb.REMOVE}
    if verb is Verb.APPLY or target in TARGETS[verb]:
        return target
    if patterns and any(target.startswith(p) and len(target) > len(p) for p in _PATTERNS):
        return target
    near = near_matches(target, list(TARGETS[verb]))
    more = ", or kernel:GLOB or range:GLOB" if patterns else ""
    raise UsageError(
        f"cannot {verb.value} {target!r}",
        why=f"near it is {near}",
        hint=f"known are {', '.join(TARGETS[verb])}{more}",
    )


def _factor(text: str, factor: str | float) -> float:
    """Read how many times faster; slower is not a thing that a fix does."""
    found = _FACTOR.fullmatch(str(factor).strip())
    if found is None or float(found["number"]) < 1:
        raise UsageError(
            f"{text!r} says no speed-up",
            why="it needs a number from 1 after the last equals sign",
            hint="write for example matmul=4x or 'kernel:*gemm*=2x'",
        )
    return float(found["number"])
