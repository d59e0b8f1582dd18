"""What a trace calls its processes and threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gpusight.readers.chrome.cutting import NOT_JSON
from gpusight.readers.chrome.rows import number_of

if TYPE_CHECKING:
    from collections.abc import Iterable


def process_labels(settings: Iterable[Any]) -> dict[int | None, str]:
    """Give the name of each process, by its number; the last one said counts."""
    return {
        number_of(event.pid): name
        for event in settings
        if event.name == "process_name" and (name := _name(event)) is not None
    }


def thread_labels(settings: Iterable[Any]) -> dict[tuple[int | None, int | None], str]:
    """Give the name of each thread, by the numbers of its process and its own."""
    return {
        (number_of(event.pid), number_of(event.tid)): name
        for event in settings
        if event.name == "thread_name" and (name := _name(event)) is not None
    }


def _name(event: Any) -> str | None:
    try:
        arguments = msgspec.json.decode(bytes(event.args).decode("utf-8", "replace"))
    except NOT_JSON:
        return None
    name = arguments.get("name") if isinstance(arguments, dict) else None
    return name if isinstance(name, str) else None
