"""What is worked out after the timeline is there, as frontend/src/timeline/types.ts declares it.

Ledger, findings and comparison each have a state: `computing`, `ready` or `failed`, and a message
that says what is being done, or why it failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analyses.timeline.window import Spot

COMPUTING, READY, FAILED, NONE = "computing", "ready", "failed", "none"


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """One entry of the ledger."""

    entry: str
    ns: int
    share: float | None


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The ledger of one GPU."""

    device: int
    name: str
    entries: Sequence[EntryInfo]


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """The ledger of the judged steps, or why there is none."""

    state: str
    """`computing`, `ready` or `failed`."""
    message: str
    steps: int = 0
    devices: Sequence[DeviceInfo] = ()


@dataclass(frozen=True, slots=True)
class ShownEvidence:
    """One number that a finding rests on, as people read it."""

    value: str
    meaning: str


@dataclass(frozen=True, slots=True)
class ShownPlace:
    """Where a finding happens."""

    label: str
    start_ns: int
    end_ns: int
    spot: Spot | None


@dataclass(frozen=True, slots=True)
class FindingInfo:
    """One finding."""

    rule: str
    title: str
    recoverable_ns_per_step: float | None
    share: float | None
    confidence: str
    why: str
    fix: str
    code: str
    evidence: Sequence[ShownEvidence]
    places: Sequence[ShownPlace]


@dataclass(frozen=True, slots=True)
class Findings:
    """All findings, or why there are none yet."""

    state: str
    """`computing`, `ready` or `failed`."""
    message: str
    step_ns: float | None = None
    steps: int = 0
    findings: Sequence[FindingInfo] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """One quantity before and after, as people read it."""

    name: str
    before: str
    after: str
    change: str
    verdict: str


@dataclass(frozen=True, slots=True)
class CompareInfo:
    """What changed from the first capture to the second, and why."""

    state: str
    """`computing`, `ready`, `failed`, or `none` where there are no two captures."""
    message: str
    explanation: Sequence[str] = ()
    metrics: Sequence[MetricInfo] = ()
    notes: Sequence[str] = ()
