"""NVTX ranges that were open at a launch, out of the columns that print them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpusight.model.tables.counters import BETWEEN_STACKS
from gpusight.readers.ncu.nvtx import in_domain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_ENTRY = re.compile(r'"([^"]*)"')
_DETAILS = 6
"""Fields behind a range's name: kind and value of its payload, its colour and its message."""


def nvtx_ranges(row: Mapping[str, str]) -> str | None:
    """Give the ranges of a launch as `outer/inner`, `domain:outer/inner`; None where none was open.

    Ranges of the launching thread come first; those that cross threads (start/end) follow.
    """
    pushed = (_parts(entry) for entry in _ENTRY.findall(row.get("push_pop", "")))
    started = (_parts(entry, 1) for entry in _ENTRY.findall(row.get("start_stop", "")))
    found = [*stacks(pushed), *(in_domain(domain, name) for domain, name in started)]
    within = _ENTRY.findall(row.get("range", "")) or [row.get("range", "")]
    names = "/".join(_name(entry.split(":")) for entry in within)
    found.append(in_domain(row.get("domain", ""), names) if names else "")
    return BETWEEN_STACKS.join(entry for entry in found if entry) or None


def stacks(entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Join the ranges of each domain, outermost first."""
    domains: dict[str, list[str]] = {}
    for domain, name in entries:
        domains.setdefault(domain, []).append(name)
    return (in_domain(domain, "/".join(names)) for domain, names in domains.items())


def _parts(entry: str, before: int = 0) -> tuple[str, str]:
    """Take `domain:name:none:…` apart; `before` fields stand in front of the domain."""
    domain, *rest = entry.split(":")[before:] or [""]
    return domain, _name(rest)


def _name(fields: list[str]) -> str:
    """Drop what follows a name; the name itself may hold colons."""
    return ":".join(fields[:-_DETAILS] if len(fields) > _DETAILS else fields)
