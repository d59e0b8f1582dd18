"""Properties of the machine: TARGET_INFO_SYSTEM_ENV.

The file numbers the properties; their names are known from nsys's exports. Most of them serve no
analysis, and some hold environments and host names: only those named here are decoded at all.
"""

from __future__ import annotations

from gpusight.readers.protobuf.wire import Message, child, children, integer, text

_NAMES = {
    13: "CpuDescription",
    205: "NvDriverVersion",
    605: "OsDescription",
    611: "CudaDriverVersion",
}


def system_env(system: Message) -> list[dict[str, int | str | None]]:
    """Give the rows of TARGET_INFO_SYSTEM_ENV that are decoded."""
    rows: list[dict[str, int | str | None]] = []
    for machine in children(system, 1):
        owner = {"globalVid": integer(machine, 3), "devStateName": text(machine, 1)}
        for prop in children(child(machine, 2), 1):
            number = integer(prop, 1) or 0
            if number in _NAMES:
                value = text(prop, 2) or ""
                rows.append({**owner, "name": _NAMES[number], "nameEnum": number, "value": value})
    return rows
