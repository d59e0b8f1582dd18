"""Versions of NVIDIA's tools: a year, a release of that year, a patch."""

from __future__ import annotations

import re
from typing import NamedTuple

_VERSION = re.compile(r"\b(20\d\d)\.(\d{1,4})(?:\.(\d{1,4}))?")


class Version(NamedTuple):
    """A version, comparable; what follows the patch (a build, a hash) is left out."""

    year: int
    minor: int
    patch: int = 0

    @classmethod
    def parse(cls, text: str) -> Version | None:
        """Find the version in what a tool prints, or in what a report says made it."""
        found = _VERSION.search(text)
        return cls(*(int(part or 0) for part in found.groups())) if found else None

    def __str__(self) -> str:
        """Write it as NVIDIA does."""
        return f"{self.year}.{self.minor}.{self.patch}"
