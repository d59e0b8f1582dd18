"""What real versions of nsys and ncu take, as `scripts/read-tool-options` wrote it down."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from gpusight.recording.request import Tool
from gpusight.recording.tools import InstalledTool, ToolVersion
from tests.shared import DATA


@dataclass(frozen=True)
class Facts:
    tool: Tool
    version: ToolVersion
    options: dict[str, frozenset[str]]
    sets: dict[str, list[str]]

    def __str__(self) -> str:
        return f"{self.tool.value}-{self.version}"

    @property
    def sections(self) -> set[str]:
        return {section for sections in self.sets.values() for section in sections}

    def installed(self, *, from_help: bool) -> InstalledTool:
        """Give that version, with its help read or not."""
        path = Path("/opt") / self.tool.value
        return InstalledTool(self.tool, path, self.version, self.options if from_help else None)

    def refused(self, options: dict[str, list[str]]) -> list[str]:
        """Name what this version does not take; values are checked where its help lists them."""
        return [
            f"{name} {value}"
            for name, values in options.items()
            for value in values or [""]
            if name not in self.options or not self._takes(name, value)
        ]

    def _takes(self, name: str, value: str) -> bool:
        listed = self.options[name]
        return not listed or all(part.split(":")[0] in listed for part in value.split(","))


def _read(path: Path) -> Facts:
    document = json.loads(path.read_text())
    version = ToolVersion.parse(document["version"])
    assert version is not None
    options = {name: frozenset(values) for name, values in document["options"].items()}
    return Facts(Tool(document["tool"]), version, options, document.get("sets", {}))


NSYS = {str(facts.version): facts for facts in map(_read, sorted(DATA.glob("tools/nsys-*.json")))}
NCU = {str(facts.version): facts for facts in map(_read, sorted(DATA.glob("tools/ncu-*.json")))}
