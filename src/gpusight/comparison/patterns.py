"""Quantities that a pattern names: `kernel:GLOB`, `range:GLOB`, `phase:NAME`, `finding:RULE`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpusight.analyses.completeness import COPIES, KERNELS
from gpusight.analyses.ledger.labels import GRAPH
from gpusight.analyses.select import matcher, near_matches
from gpusight.analyses.steps.phase_names import PHASES
from gpusight.comparison.quantities import API, Quantity, measured, summed
from gpusight.errors import UsageError
from gpusight.result import Fmt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusight.comparison.digest import Calls, Digest
    from gpusight.comparison.quantities import Floats

_LONGEST_NAME = 2_000
"""What a pattern looks at: a hostile name of a megabyte could keep a regex busy for hours."""


def _kernels(digests: Sequence[Digest], key: str, pattern: str) -> Quantity:
    matches = _matcher(pattern)
    rows = [[k for k in d.kernels if matches(k.name) or matches(k.short)] for d in digests]
    of = {id(d): summed((k.ns for k in r), d) for d, r in zip(digests, rows, strict=True)}

    def value(digest: Digest) -> Floats | None:
        return None if GRAPH in digest.ledger else of[id(digest)]

    return measured(digests, key, key, Fmt.TIME, value, "graph", needs=(KERNELS,), found=any(rows))


def _ranges(digests: Sequence[Digest], key: str, pattern: str) -> Quantity:
    return _calls(digests, key, pattern, "ranges", lambda d: d.ranges, lambda c: c.host_ns)


def _range_work(digests: Sequence[Digest], key: str, pattern: str) -> Quantity:
    needs = (KERNELS, COPIES)
    return _calls(
        digests, key, pattern, "ranges", lambda d: d.ranges, lambda c: c.gpu_ns, needs=needs
    )


def _api(digests: Sequence[Digest], key: str, pattern: str) -> Quantity:
    return _calls(digests, key, pattern, "api", lambda d: d.api, lambda c: c.host_ns)


def _calls(
    digests: Sequence[Digest],
    key: str,
    pattern: str,
    part: str,
    rows: Callable[[Digest], tuple[Calls, ...]],
    series: Callable[[Calls], tuple[float, ...] | None],
    *,
    needs: Sequence[str] = (),
) -> Quantity:
    matches = _matcher(pattern)

    def value(digest: Digest) -> Floats | None:
        if part in digest.missing and not rows(digest):
            return None
        mine = [series(one) for one in rows(digest) if matches(one.name)]
        known = [one for one in mine if one is not None]
        return None if mine and not known else summed(known, digest)

    found = any(matches(one.name) for digest in digests for one in rows(digest))
    return measured(digests, key, key, Fmt.TIME, value, part, needs=needs, found=found)


def _phase(digests: Sequence[Digest], key: str, phase: str) -> Quantity:
    if phase not in PHASES:
        raise UsageError(f"no phase is called {phase!r}", why=f"phases are {', '.join(PHASES)}")

    def value(digest: Digest) -> Floats | None:
        if not digest.phases:
            return None
        return summed([digest.phases[phase]] if phase in digest.phases else [], digest)

    return measured(digests, key, key, Fmt.TIME, value, "phases", needs=(KERNELS, COPIES))


def _finding(digests: Sequence[Digest], key: str, rule: str) -> Quantity:
    known = {*rules(), *(found.rule for digest in digests for found in digest.findings)}
    if rule not in known:
        near = near_matches(rule, sorted(known))
        hint = "see: gpusight diagnose --list-rules"
        raise UsageError(f"no rule is called {rule!r}", why=f"near ones are {near}", hint=hint)

    def value(digest: Digest) -> float | None:
        if "findings" in digest.missing or rule in digest.not_evaluated:
            return None
        mine = [found.step_ns for found in digest.findings if found.rule == rule]
        return None if None in mine else float(sum(ns for ns in mine if ns is not None))

    sources = (KERNELS, COPIES, API)
    found = measured(digests, key, key, Fmt.TIME, value, "findings", needs=sources)
    reasons = (f"{d.label}: {d.not_evaluated[rule]}" for d in digests if rule in d.not_evaluated)
    return found if found.lost else replace(found, missing=next(reasons, found.missing))


PATTERNS = {
    "kernel": _kernels,
    "range": _ranges,
    "range_gpu": _range_work,
    "api": _api,
    "phase": _phase,
    "finding": _finding,
}


def _matcher(pattern: str) -> Callable[[str], bool]:
    """Match whole names by a glob, or any part by a regular expression written /…/."""
    if not pattern:
        raise UsageError("a pattern is missing after the colon", hint="such as kernel:'*gemm*'")
    matches = matcher(pattern)
    return lambda name: name == pattern or bool(matches(name[:_LONGEST_NAME]))


def names_of(kind: str, digests: Sequence[Digest]) -> list[str]:
    """List what names of a kind there are to match, the most expensive first."""
    every: list[str] = []
    for digest in digests:
        if kind == "kernel":
            every += (kernel.short for kernel in digest.kernels)
        else:
            every += (one.name for one in (digest.api if kind == "api" else digest.ranges))
    return [name for name in dict.fromkeys(every) if name]


def rules() -> list[str]:
    """List the rules of `diagnose`."""
    from gpusight.findings.timeline.rules import RULES

    return [rule.id for rule in RULES.values()]
