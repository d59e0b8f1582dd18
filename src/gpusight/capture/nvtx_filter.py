"""NVTX ranges as Nsight Compute's filter wants them written.

`domain@name/` is a push/pop range, `domain@name` a start/end range; the default domain is left
out. Letters that mean something there are marked by a backslash, a backslash itself by three more.
"""

from __future__ import annotations

import re

from gpusight.errors import UsageError

_QUANTIFIERS = re.compile(r"([@,\[\]/*+])")
_AMBIGUOUS = re.compile(r"\\[@,\[\]/*+]|\\$")
"""A backslash before such a letter cannot be written: ncu would take it for the mark of one."""
_REGEX = "regex:"


def of_range(text: str) -> tuple[str, ...]:
    """Write the filters for a range `NAME` or `NAME@DOMAIN`, of either kind; one must fit."""
    name, _, domain = text.partition("@")
    found = either_kind(name, domain=domain)
    if not found:
        raise UsageError(
            f"Nsight Compute cannot be told of a range {text!r}",
            hint="rename it, or record between cudaProfilerStart and Stop: --steps",
        )
    return found


def either_kind(name: str, *, domain: str | None) -> tuple[str, ...]:
    """Write filters for a range that may be of either kind; none where no filter can name it.

    ncu measures what fits any of several filters.
    """
    kinds = (include(name, domain=domain, push_pop=push_pop) for push_pop in (True, False))
    return tuple(text for text in kinds if text is not None)


def include(name: str, *, domain: str | None, push_pop: bool) -> str | None:
    """Write a filter for a range; None where no filter can name it."""
    if not name.strip() or (domain or name).startswith(_REGEX):
        return None
    for text in (name, domain or ""):
        if not text.isprintable() or _AMBIGUOUS.search(text):
            return None
    where = f"{_quoted(domain)}@" if domain else ""
    return f"{where}{_quoted(name)}{'/' if push_pop else ''}"


def _quoted(text: str) -> str:
    return _QUANTIFIERS.sub(r"\\\1", text.replace("\\", "\\" * 4))
