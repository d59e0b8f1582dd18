"""One module a command; each has SUMMARY, DESCRIPTION, EXAMPLES, `add_arguments` and `run`.

These modules import nothing heavy: what a command needs is imported inside its `run`, so that
`gpusight --help` answers at once.
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
    """What it answers, in a sentence or two."""
    EXAMPLES: tuple[str, ...]
    """Command lines to start from."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Do it; gives the exit code."""
        ...


_MODULES = {
    "doctor": "doctor",
    "record": "record",
    "info": "info",
    "summary": "summary",
    "steps": "steps",
    "ledger": "ledger",
    "utilisation": "utilization",
    "timeline": "timeline",
    "kernels": "kernels",
    "ops": "ops",
    "launches": "launches",
    "ranges": "ranges",
    "api": "api_calls",
    "copies": "copies",
    "memory": "memory",
    "flops": "flops",
    "diagnose": "diagnose",
    "report": "report",
    "serve": "serve",
    "whatif": "whatif",
    "compare": "compare",
    "gate": "gate",
    "baseline": "baseline",
    "questions": "questions",
    "counters": "counters",
    "roofline": "roofline",
    "occupancy": "occupancy",
    "join": "join",
    "drill": "drill",
    "orion": "orion",
    "stats": "stats",
    "sql": "sql",
    "export": "export",
    "share": "share",
    "demo": "demo",
    "cache": "cache",
}
"""Every command with its module, in the order that help lists them: capturing, a first look, then
the details."""
COMMANDS: dict[str, Command] = {
    name: cast("Command", import_module(f"{__name__}.{module}"))
    for name, module in _MODULES.items()
}
