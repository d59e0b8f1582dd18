"""One module per command; each has SUMMARY, DESCRIPTION, EXAMPLES, `add_arguments` and `run`.

These modules import nothing heavy: what a command needs is imported inside its `run`, which
keeps `gpusight --help` fast. A module is imported when its command is looked up.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


class Command(Protocol):
    """What a command module provides."""

    SUMMARY: str
    """A few words for the list of commands."""
    DESCRIPTION: str
    """What it does, in a few sentences."""
    EXAMPLES: tuple[str, ...]
    """Example command lines."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Run the command; returns the exit code."""
        ...


GROUPS = {
    "Start": ("diagnose", "explain", "serve", "report", "demo"),
    "Record": ("record", "drill", "doctor"),
    "Compare and CI": ("compare", "gate", "baseline", "whatif", "ranks"),
    "Inspect": (
        "summary",
        "kernels",
        "ops",
        "launches",
        "ranges",
        "api",
        "copies",
        "memory",
        "flops",
        "steps",
        "ledger",
        "hotspots",
        "utilization",
        "timeline",
    ),
    "Nsight Compute": ("counters", "roofline", "occupancy", "join"),
    "Data": ("info", "stats", "sql", "export", "share", "cache"),
    "More": ("mcp", "questions", "orion", "completion"),
}
"""Every command, in the groups and the order in which help lists them."""
_MODULES = {"api": "api_calls"}
"""Commands whose module has another name."""


class _Commands(Mapping[str, Command]):
    """The commands by name; a module is imported when its command is used."""

    def __getitem__(self, name: str) -> Command:
        if name not in _NAMES:
            raise KeyError(name)
        return cast("Command", import_module(f"{__name__}.{_MODULES.get(name, name)}"))

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


_NAMES = dict.fromkeys(name for names in GROUPS.values() for name in names)
COMMANDS = _Commands()
