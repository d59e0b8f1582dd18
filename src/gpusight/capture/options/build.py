"""Puts options together for one installed tool, in its spelling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.errors import RecordError

if TYPE_CHECKING:
    from gpusight.capture.options.spelling import Option
    from gpusight.capture.tools import InstalledTool


class Options:
    """Options of one command line, with notes on what this version of the tool cannot do.

    `extra` are the user's own: what they say, we do not say again, because the tools refuse an
    option that comes twice.
    """

    def __init__(self, installed: InstalledTool, extra: tuple[str, ...], *, joined: bool) -> None:
        self.installed = installed
        self.notes: list[str] = []
        self._extra = extra
        self._joined = joined
        self._argv: list[str] = []

    @property
    def argv(self) -> tuple[str, ...]:
        """Give ours, then the user's."""
        return (*self._argv, *self._extra)

    def add(self, option: Option, value: str | None = None, *, otherwise: str = "") -> bool:
        """Add an option if this version has it; where not, note what happens otherwise."""
        spelled = self.installed.spelling(option)
        if spelled is None:
            if otherwise:
                self.notes.append(f"{self.installed} {otherwise}")
            return False
        if option.repeats or not option.among(self._extra):
            self._argv += self._written(spelled, value)
        return True

    def need(self, option: Option, value: str) -> None:
        """Add an option without which something other than what was asked would be recorded."""
        if not self.add(option, value):
            name = option.spellings[0].text
            tool = self.installed.tool
            raise RecordError(
                f"{self.installed} has no option {name}, which this needs",
                hint=f"set GPUSIGHT_{tool.name} to another {tool.value}",
            )

    def _written(self, spelled: str, value: str | None) -> list[str]:
        if value is None:
            return [spelled]
        return [f"{spelled}={value}"] if self._joined else [spelled, value]
