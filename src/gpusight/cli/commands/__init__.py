"""One module per command; each has SUMMARY, DESCRIPTION, EXAMPLES, `add_arguments` and `run`.

These modules import nothing heavy: what a command needs is imported inside its `run`, which
keeps `gpusight --help` fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    import argparse


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
COMMANDS: dict[str, Command] = {
    name: cast("Command", import_module(f"{__name__}.{_MODULES.get(name, name)}"))
    for names in GROUPS.values()
    for name in names
}
