"""Reads the options that a tool's own help lists, and the values that each takes.

Only names are kept. Options whose values are free, or listed nowhere, have none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpusight.capture.request import Tool

if TYPE_CHECKING:
    from gpusight.capture.options.spelling import Told

_NSYS_OPTION = re.compile(r"^\t?\s?(?:\(\w+\) )?(?:-\w, )?(--[a-zA-Z][\w-]*)", re.MULTILINE)
_NSYS_VALUES = re.compile(
    r"(?:Possible|Optional) (?:"
    r"formats are:?([^\n]*)|values(?: for <granularity>)? are:?(.*?)(?:\.\s|\Z))",
    re.DOTALL,
)
_QUOTED = re.compile(r"'([a-zA-Z][\w-]*)")
_WORD = re.compile(r"\b[a-zA-Z][\w-]*\b")
_OPEN_ENDED = re.compile(r"integers|comma|list of|number|example|range@|`")
_JOINING = frozenset({"or", "and"})

_NCU_OPTION = re.compile(r"^  (?:-\w \[ )?(--[a-z][\w-]*)", re.MULTILINE)
# Prose goes on in column 40, values stand further in, alone or before a colon that explains them.
_NCU_VALUES = re.compile(
    r"^ {42,46}([a-z][a-z/-]*)(?: \(default\))?(?:\.?\s*|\s*: .*)$", re.MULTILINE
)


def read_help(tool: Tool, text: str) -> Told:
    """Read what `nsys profile --help` or `ncu --help` printed."""
    if tool is Tool.NSYS:
        return {name: _nsys_values(block) for name, block in _blocks(_NSYS_OPTION, text)}
    return {name: _ncu_values(block) for name, block in _blocks(_NCU_OPTION, text)}


def _blocks(start: re.Pattern[str], text: str) -> list[tuple[str, str]]:
    """Give each option with the text up to the next one."""
    found = list(start.finditer(text))
    ends = [*(match.start() for match in found), len(text)][1:]
    return [(match[1], text[match.end() : end]) for match, end in zip(found, ends, strict=True)]


def _nsys_values(block: str) -> frozenset[str]:
    found = _NSYS_VALUES.search(block)
    listed = (found[1] or found[2]) if found else ""
    words = [] if _OPEN_ENDED.search(listed) else _WORD.findall(listed)
    return frozenset(_QUOTED.findall(listed) or words) - _JOINING


def _ncu_values(block: str) -> frozenset[str]:
    return frozenset(part for line in _NCU_VALUES.findall(block) for part in line.split("/"))
