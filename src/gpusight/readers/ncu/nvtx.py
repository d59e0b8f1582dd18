"""NVTX ranges that were open when a kernel was launched, as one text."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from gpusight.model.tables.counters import BETWEEN_STACKS
from gpusight.readers.protobuf.wire import Message, children, integer, text

if TYPE_CHECKING:
    from collections.abc import Iterator

Domains: TypeAlias = "dict[int | None, str | None]"
"""Names by number."""

_DOMAINS, _THREADS, _START_END = 1, 2, 3
_DEFAULT = "<default domain>"


def open_ranges(state: Message, thread: int | None) -> str | None:
    """Give the ranges as `outer/inner`, `domain:outer/inner`; None where none was open.

    The ranges of the launching thread come first; those that cross threads (start/end) follow.
    """
    domains = {integer(d, 1): text(d, 2) for d in children(state, _DOMAINS)}
    found = [*_pushed(state, thread, domains), *_started(state, domains)]
    return BETWEEN_STACKS.join(found) or None


def _pushed(state: Message, thread: int | None, domains: Domains) -> Iterator[str]:
    own = [t for t in children(state, _THREADS) if integer(t, 1) == thread]
    for stack in (s for t in own for s in children(t, 2)):
        names = [text(r, 1) or "" for r in children(stack, 3)]
        if names:
            yield in_domain(domains.get(integer(stack, 1)), "/".join(names))


def _started(state: Message, domains: Domains) -> Iterator[str]:
    for domain in children(state, _START_END):
        for opened in children(domain, 3):
            yield in_domain(domains.get(integer(domain, 1)), text(opened, 2) or "")


def in_domain(domain: str | None, names: str) -> str:
    """Write a domain before its ranges, unless it is the default one."""
    return names if domain in (None, "", _DEFAULT) else f"{domain}:{names}"
