"""A command line that is ready to run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class Command:
    """What to run, with what added to the environment, and the file that comes of it."""

    argv: tuple[str, ...]
    produces: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What was asked for and this version of the tool cannot do, and what is done instead."""

    def __str__(self) -> str:
        """Write it as it can be pasted into a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.argv)])
