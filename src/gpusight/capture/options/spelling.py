"""How an option is spelled in one version of a tool and another.

A table of versions is never complete: releases come out that nobody here has seen. So the tool's
own help decides where it could be read, and the table where it could not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpusight.capture.versions import Version

Told = Mapping[str, frozenset[str]]
"""Options that a tool's help lists, each with its values; none where the help lists no values."""
UNDATED = Version(9999, 0)
"""First version of an option that no version we know has: only the tool's own help can tell."""


@dataclass(frozen=True)
class Spelling:
    """One way to write an option, and the versions that take it."""

    text: str
    since: Version | None = None
    """First version that surely takes it; None: all we know of."""
    until: Version | None = None
    """First version that does not take it any more."""

    def fits(self, version: Version) -> bool:
        """Tell whether this version takes it."""
        after = self.since is None or version >= self.since
        return after and (self.until is None or version < self.until)


@dataclass(frozen=True)
class Option:
    """Something to ask of a tool, whichever way its version spells it."""

    spellings: tuple[Spelling, ...]
    """The newest first."""
    short: str | None = None
    """The same in one letter, to be found among options that the user gave."""
    repeats: bool = False
    """The tool takes it several times; others it refuses the second time."""

    def spelled(self, version: Version, told: Told | None) -> str | None:
        """Write it for a tool of this version whose help listed `told`; None: it has no such."""
        for spelling in self.spellings:
            listed = spelling.fits(version) if told is None else spelling.text in told
            if listed:
                return spelling.text
        return None

    def among(self, arguments: tuple[str, ...]) -> bool:
        """Tell whether the user gave it too, in any spelling."""
        names = {spelling.text for spelling in self.spellings} | {self.short}
        return any(argument.partition("=")[0] in names for argument in arguments)


def option(text: str, *, short: str | None = None, since: Version | None = None) -> Option:
    """Declare an option that was never respelled."""
    return Option((Spelling(text, since),), short=short)
