"""Numbers that a capture holds only in the sentences of the profiler's own rules.

The printed details of Nsight Compute leave out many counters, but its rules state the numbers that
they rest on: "29360128 excessive sectors (88% of the total 33554432 sectors)".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from gpusight.findings.kernels import quantities as q

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.model.trace import Trace

_TOLD = "excessive|highest-utilized|being stalled|peak performance|non-fused"
"""Words of the sentences that hold numbers."""
_EXCESS = re.compile(
    r"(\d{1,18}) excessive (sectors|wavefronts) \(\d+% of (?:the )?total (\d{1,18}) "
)
_PIPE = re.compile(r"^(\w+)[^.%]{0,60} is the highest-utilized pipeline \((\d{1,3}(?:\.\d+)?)%\)")
_SUB_PIPE = re.compile(r"dominated by its (\w+)[^.]{0,40} sub-pipeline")
_PEAKS = re.compile(
    r"achieved\s+(?:close to )?(\d{1,3})% of this device's fp32 peak performance and\s+"
    r"(?:close to )?(\d{1,3})% of its fp64",
    re.IGNORECASE,
)
_FUSED = re.compile(r"executes (\d{1,18}) fused and (\d{1,18}) non-fused FP(32|64) instructions")
_STALLED = re.compile(r"represents about (\d{1,3}(?:\.\d+)?)% of the total")
_PIPES = {
    "ALU": q.ALU,
    "FMA": q.FMA,
    "FP16": q.FP16,
    "FP64": q.FP64,
    "LSU": q.LSU,
    "Tensor": q.TENSOR,
    "XU": q.XU,
}
_STALLS = {
    "scoreboard dependency on a L1TEX": "long_scoreboard",
    "scoreboard dependency on an L1TEX": "long_scoreboard",
    "scoreboard dependency on a MIO": "short_scoreboard",
    "scoreboard dependency on an MIO": "short_scoreboard",
    "instruction queue for local and global": "lg_throttle",
    "instruction queue for texture": "tex_throttle",
    "(memory input/output) instruction queue": "mio_throttle",
    "sibling warps at a CTA barrier": "barrier",
    "fixed latency execution dependency": "wait",
    "execution pipe to be available": "math_pipe_throttle",
    "immediate constant cache": "imc_miss",
    "instruction cache miss": "no_instruction",
    "micro scheduler to select": "not_selected",
    "after EXIT": "drain",
    "memory barrier": "membar",
    "branch target": "branch_resolving",
}
"""What the sentence about a wait says, and its reason."""
_WARP = 32
_MOST_WAITS = 60.0
"""Percent of the warps' time that the sentences must speak of, to tell what warps wait for."""
_LONGEST = 2_000
"""What of a message is looked at."""


def numbers_said(trace: Trace) -> dict[int, dict[str, float]]:
    """Give by launch the quantities that the profiler's rules state."""
    if not trace.has("rule_results"):
        return {}
    rows = trace.table("rule_results", ("launch", "rule", "message")).drop_nulls()
    told = rows.filter(pl.col("message").str.contains(_TOLD))
    said: dict[int, dict[str, float]] = {}
    for launch, rule, message in told.iter_rows():
        numbers = said.setdefault(launch, {})
        for key, value in _numbers(str(rule), message[:_LONGEST]).items():
            numbers[key] = max(value, numbers.get(key, value))
    return {launch: _all_waits_or_none(numbers) for launch, numbers in said.items()}


def _numbers(rule: str, message: str) -> Mapping[str, float]:
    if "excessive" in message:
        return _accesses(rule, message)
    if "being stalled" in message:
        return _wait(message)
    if "highest-utilized" in message:
        return _pipe(message)
    return _arithmetic(message)


def _accesses(rule: str, message: str) -> Mapping[str, float]:
    found = _EXCESS.search(message)
    if found is None:
        return {}
    excess, whole = float(found[1]), float(found[3])
    if found[2] == "sectors" and "Global" in rule:
        return {q.SECTORS_MOVED.key: whole, q.SECTORS_NEEDED.key: max(0.0, whole - excess)}
    if found[2] == "wavefronts" and "Shared" in rule:
        return {q.SHARED_WAVEFRONTS.key: whole, q.SHARED_EXCESS.key: excess}
    return {}


def _wait(message: str) -> Mapping[str, float]:
    """Read the part of their time that warps spend in one wait."""
    found = _STALLED.search(message)
    reason = next((reason for words, reason in _STALLS.items() if words in message), None)
    if found is None or reason is None:
        return {}
    return {q.STALL_QUANTITIES[reason].key: float(found[1])}


def _all_waits_or_none(numbers: dict[str, float]) -> dict[str, float]:
    """Make the waits the whole of the warps' time; drop them where most of it is not spoken of.

    The profiler speaks of the largest waits only: a rule about one of the others would take it for
    none at all.
    """
    waits = {stall.key for stall in q.STALL_QUANTITIES.values()} & numbers.keys()
    said = sum(numbers[key] for key in waits)
    if said < _MOST_WAITS:
        return {key: value for key, value in numbers.items() if key not in waits}
    return {**numbers, q.STALL_QUANTITIES["misc"].key: max(0.0, 100.0 - said)}


def _pipe(message: str) -> Mapping[str, float]:
    """Read how busy the busiest pipe was; a pipe of several goes by the one that dominates it."""
    found = _PIPE.search(message)
    if found is None:
        return {}
    part = _SUB_PIPE.search(message)
    pipe = _PIPES.get(part[1] if part else found[1])
    return {} if pipe is None else {pipe.key: float(found[2]) / 100}


def _arithmetic(message: str) -> Mapping[str, float]:
    """Read the share of the peak rates that was reached, and the instructions that did."""
    peaks, fused = _PEAKS.search(message), _FUSED.search(message)
    if peaks is not None:
        return {q.FP32_SHARE.key: float(peaks[1]) / 100, q.FP64.key: float(peaks[2]) / 100}
    if fused is None:
        return {}
    both, other = float(fused[1]) * _WARP, float(fused[2]) * _WARP
    if fused[3] == "64":
        return {q.FP64_OPERATIONS.key: both + other}
    return {q.FFMA.key: both, q.FP32_OTHER.key: other}
