"""What API calls are for, told by their names."""

from __future__ import annotations

import re

from gpusight.analyses.schedule.schedule import CallKind

_VENDOR = r"^(?:cu|cuda|hip|hipExt|mu|musa)"
_KINDS = (
    (CallKind.GRAPH, re.compile(rf"{_VENDOR}GraphLaunch")),
    (CallKind.LAUNCH, re.compile(rf"{_VENDOR}(?:Module|Ext|Multi)?Launch(?!HostFunc)")),
    (CallKind.SYNC, re.compile(rf"{_VENDOR}(?:Device|Stream|Event|Ctx|Context|Thread)Synchronize")),
    (CallKind.COPY, re.compile(rf"{_VENDOR}Memcpy")),
    (CallKind.FILL, re.compile(rf"{_VENDOR}Memset")),
    (CallKind.RECORD, re.compile(rf"{_VENDOR}EventRecord")),
    (CallKind.WAIT_EVENT, re.compile(rf"{_VENDOR}StreamWaitEvent")),
    (
        CallKind.FREE,
        re.compile(rf"{_VENDOR}(?:Mem)?(?:Free|HostFree|HostUnregister|Unmap|Release|AddressFree)"),
    ),
    (
        CallKind.ALLOCATE,
        re.compile(
            rf"{_VENDOR}(?:Mem)?"
            r"(?:Malloc|Alloc|HostAlloc|HostRegister|HostMalloc|Create$|Map$|AddressReserve"
            r"|SetAccess|PoolCreate)"
        ),
    ),
)
HOST_FUNCTION = re.compile(rf"{_VENDOR}LaunchHostFunc")
"""Puts a function of the host into a stream: how JAX learns that work is done."""


def kind_of(name: str) -> CallKind:
    """Say what a call is for."""
    return next((kind for kind, names in _KINDS if names.search(name)), CallKind.OTHER)
