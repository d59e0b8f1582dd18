"""What the profiler's own rules said, one row a message."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any

from gpusight.readers.protobuf.wire import Message, child, children, integer, parse, text

if TYPE_CHECKING:
    from collections.abc import Iterator

_KINDS = {0: "information", 1: "ok", 2: "warning", 3: "error", 4: "optimization"}
_SPEEDUPS = {1: "local", 2: "global"}
_MESSAGE, _SPEEDUP = 1, 10
_LINK = re.compile(r"@(?:section|url|source|metric|rule):(?P<what>[^@:]*):(?P<shown>[^@]*)@")
_ADDRESS = re.compile(r"@url:(?P<shown>[^@:]*):(?P<what>[^@]*)@")


def rule_rows(launch: int, data: bytes) -> Iterator[dict[str, Any]]:
    """Give the messages of one rule; a rule that found nothing to say gives none."""
    rule = parse(data)
    about = {
        "launch": launch,
        "rule": text(rule, 1) or "",
        "title": text(rule, 2),
        "section": text(rule, 4) or None,
    }
    for item in children(child(rule, 3), 1):
        message = child(item, _MESSAGE)
        said = text(message, 1)
        if said is not None:
            kind = _KINDS.get(integer(message, 2) or 0, "information")
            yield {**about, "kind": kind, "message": readable(said), **_speedup(item)}


def readable(message: str) -> str:
    """Replace links, which only the profiler's own window can follow, by their text."""
    return _LINK.sub(lambda m: m["shown"], _ADDRESS.sub(lambda m: m["shown"], message)).strip()


def _speedup(item: Message) -> dict[str, Any]:
    estimate = child(item, _SPEEDUP)
    value = integer(estimate, 2)
    if value is None:
        return {"speedup_kind": None, "speedup_percent": None}
    (percent,) = struct.unpack("<d", struct.pack("<q", value))
    return {"speedup_kind": _SPEEDUPS.get(integer(estimate, 1) or 0), "speedup_percent": percent}
