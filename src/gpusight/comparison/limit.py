"""What the time from one step to the next goes to most, told from its ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.analyses.ledger.causes import IDLE, Cause
from gpusight.analyses.ledger.labels import COMMUNICATION, COMPUTE, COPY

if TYPE_CHECKING:
    from collections.abc import Mapping

GPU, HOST = "gpu", "host"
NOTHING = "unknown"
_HOST_CAUSES = (Cause.LAUNCHING, Cause.FRAMEWORK, Cause.OTHER)
"""What a faster host, or less for it to do, would shorten."""
_GPU_GROUPS = (COMPUTE, COPY, COMMUNICATION)
_IN_WORDS = {
    GPU: "GPU work",
    COMPUTE: "computing on the GPU",
    COPY: "copies",
    COMMUNICATION: "communication",
    HOST: "the host",
    "input": "input",
    "synchronising": "waiting for the GPU",
    "allocating": "allocating memory",
    "queued": "queues on the GPU",
    "profiler": "the profiler",
    "unknown": "something that the captures do not tell",
}


def limit(ledger: Mapping[str, float]) -> str:
    """Name what holds the step up most: `gpu` where it works for half of the step or more.

    Else the largest group of idle time: `host`, or a cause of its own.
    """
    groups = idle_groups(ledger)
    idle = sum(groups.values())
    if idle * 2 <= sum(ledger.values()):
        return GPU if ledger else NOTHING
    return max(groups, key=lambda group: groups[group])


def gpu_part(ledger: Mapping[str, float]) -> str:
    """Name what the GPU does most: `compute`, `copy` or `communication`."""
    return max(_GPU_GROUPS, key=lambda group: group_of(ledger, group))


def idle_groups(ledger: Mapping[str, float]) -> dict[str, float]:
    """Sum idle time by what it is spent on; what the host does itself is one group."""
    groups: dict[str, float] = {}
    for cause in Cause:
        name = HOST if cause in _HOST_CAUSES else cause.name.lower()
        groups[name] = groups.get(name, 0.0) + ledger.get(cause.entry, 0.0)
    return groups


def group_of(ledger: Mapping[str, float], group: str) -> float:
    """Sum the entries of a group."""
    return sum(ns for entry, ns in ledger.items() if f"{entry}/".startswith(f"{group}/"))


def busy_share(ledger: Mapping[str, float]) -> float | None:
    """Give the part of the step in which the GPU worked; None where that took no time."""
    total = sum(ledger.values())
    return (total - group_of(ledger, IDLE)) / total if total else None


def in_words(what: str) -> str:
    """Call a limit what a sentence calls it."""
    return _IN_WORDS.get(what, what)
