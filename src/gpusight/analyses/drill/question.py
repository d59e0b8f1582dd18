"""What `drill` is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpusight.analyses.drill.pick import TOP
from gpusight.analyses.select import EVERYTHING
from gpusight.capture import names
from gpusight.capture.asked import one_of, words_of
from gpusight.capture.request import Level, Ranks
from gpusight.errors import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from gpusight.analyses.select import Selection


@dataclass(frozen=True)
class Question:
    """What to measure, and how."""

    selection: Selection = EVERYTHING
    top: int = TOP
    kernel: str | None = None
    level: Level = Level.QUICK
    program: tuple[str, ...] | None = None
    output: Path | None = None
    """The report to write; None: named after the program."""
    ranks: Ranks = field(default_factory=Ranks)
    overwrite: bool = False

    @classmethod
    def of(
        cls,
        *,
        selection: Selection = EVERYTHING,
        top: int = TOP,
        kernel: str | None = None,
        level: str = "quick",
        program: str | Sequence[str | os.PathLike[str]] | None = None,
        output: str | os.PathLike[str] | None = None,
        rank: str | int = "all",
        overwrite: bool = False,
    ) -> Question:
        """Make it of words and numbers; a program given as one text is split like a shell's."""
        words = words_of(program or ())
        if top < 0:
            raise UsageError(f"{top} kernels cannot be chosen", hint="0 chooses all that matter")
        return cls(
            selection,
            top,
            kernel,
            one_of(Level, level, "level"),
            words or None,
            None if output is None else names.output_path(str(output), words),
            Ranks.read(str(rank)),
            overwrite,
        )
