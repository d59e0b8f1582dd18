"""What one look at a machine found, and what follows from it for each tool."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpusight.capture.request import Tool


class State(str, enum.Enum):
    """How one thing is."""

    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"
    UNKNOWN = "unknown"


class Can(str, enum.Enum):
    """Whether a tool can capture."""

    YES = "yes"
    PARTLY = "partly"
    NO = "no"


@dataclass(frozen=True, slots=True)
class Effect:
    """What a finding does to one tool; with `YES` the tool works, but without what `why` names."""

    tool: Tool
    can: Can
    why: str


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    key: str
    """Stable name, for programs."""
    title: str
    state: State
    found: str
    means: str = ""
    """What that means for recording; empty where nothing follows."""
    fix: str = ""
    """What to do about it."""
    commands: tuple[str, ...] = ()
    """What to type for that."""
    effects: tuple[Effect, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all checks together say about one tool."""

    tool: Tool
    can: Can
    found: str
    """Version and place of what would be used; empty where there is none."""
    why: tuple[str, ...] = ()
    """Why it cannot, or only partly."""
    without: tuple[str, ...] = ()
    """What it does not give here, though it works."""


@dataclass(frozen=True, slots=True)
class Checkup:
    """Everything that was found about a machine."""

    checks: tuple[Check, ...]
    verdicts: tuple[Verdict, ...]
    record_uses: Tool | None
    """What `gpusight record` takes by itself; None where nothing can record."""

    def verdict(self, tool: Tool) -> Verdict:
        """Give what was found about one tool."""
        return next(verdict for verdict in self.verdicts if verdict.tool is tool)
