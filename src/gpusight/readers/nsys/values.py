"""Numbers that nsys and CUPTI store, and the words for them.

SQLite exports carry most of these as ENUM tables, but old exports and native reports do not, so
they are written down here once.
"""

from __future__ import annotations

COPY_KINDS = {
    0: "Unknown",
    1: "Host-to-Device",
    2: "Device-to-Host",
    3: "Host-to-Array",
    4: "Array-to-Host",
    5: "Array-to-Array",
    6: "Array-to-Device",
    7: "Device-to-Array",
    8: "Device-to-Device",
    9: "Host-to-Host",
    10: "Peer-to-Peer",
    11: "Unified Host-to-Device",
    12: "Unified Device-to-Host",
    13: "Unified Device-to-Device",
}
MEMORY_KINDS = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device Static",
    6: "Managed Static",
    7: "Unknown",
}
MIGRATION_CAUSES = {
    0: "unknown",
    1: "user prefetch",
    2: "page fault",
    3: "speculative prefetch",
    4: "eviction",
    5: "access counters",
}
ACCESS_KINDS = {0: "unknown", 1: "read", 2: "write", 3: "atomic", 4: "prefetch"}
SYNC_KINDS = {0: "unknown", 1: "event", 2: "stream waits for event", 3: "stream", 4: "context"}
MEMORY_OPERATIONS = {0: "allocation", 1: "deallocation"}
SEVERITIES = {0: "information", 1: "information", 2: "warning", 3: "error", 4: "information"}
RANGE_KINDS = {34: "mark", 59: "push_pop", 60: "start_end", 70: "push_pop", 71: "start_end"}

OS_CALL = 27
"""Class of a call; 31 and 32 mark when the profiler began and stopped watching."""

NVTX_CATEGORY, NVTX_MARK, NVTX_DOMAIN = 33, 34, 75

PROCESS_SHIFT = 1 << 24
"""A global thread id over this is its process: machine, virtual machine and pid, in 40 bits."""
PROCESS_MASK = (1 << 40) - 1
PID_MASK = (1 << 24) - 1
NO_PROCESS = -144_115_188_075_855_872
THREE_BYTES = 1 << 24
FOREVER = 1 << 60
"""No capture lasts this long: a later end marks a range that was never closed."""

# TARGET_INFO_SYSTEM_ENV also holds the environment, host and user; only these rows are ever read.
SYSTEM_FACTS = {
    "NvDriverVersion": "driver_version",
    "CudaDriverVersion": "cuda_version",
    "OsDescription": "os",
    "CpuDescription": "cpu",
}
