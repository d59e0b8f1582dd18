"""Which CUDA API calls belong into a capture.

A kernel launch of PyTorch's is some twenty calls: which device is this, was there an error, and the
driver's calls inside each runtime call. What starts, waits, moves or allocates is kept, with
whatever any GPU work came from; nsys leaves the same out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from gpusight.capture.inside.cupti.library import DRIVER_CALLS, RUNTIME_CALLS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from gpusight.capture.inside.cupti.library import Cupti
    from gpusight.capture.inside.cupti.texts import Texts

_RUNTIME_NOISE = re.compile(
    r"_*cuda(Get|Set(Device|DoubleFor)|Peek|Occupancy|FuncGet|FuncSet|DeviceGet(?!GraphMem)|"
    r"DeviceCanAccess|DriverGet|RuntimeGet|PointerGet|PushCall|PopCall|StreamGet|StreamIs|"
    r"StreamQuery|EventQuery|EventElapsed|ThreadExchange|CtxResetPersisting|Choose|"
    r"CreateChannelDesc|KernelSetAttribute|LibraryGet)"
)
_DRIVER_WORK = re.compile(
    r"cu(Launch|Memcpy|Memset|MemAlloc|MemFree|MemHost|MemCreate|MemRelease|MemMap|MemUnmap|"
    r"MemAddress|MemPrefetch|MemPool(Create|Destroy|Trim)|CtxSynchronize|CtxCreate|CtxDestroy|"
    r"Stream(Synchronize|WaitEvent|Create|Destroy|BeginCapture|EndCapture|WaitValue|WriteValue|"
    r"BatchMemOp|AddCallback|AttachMem)|Event(Record|Synchronize|Create|Destroy)|"
    r"Graph(Launch|Instantiate|Upload|ExecUpdate)|ModuleLoad|ModuleUnload|LibraryLoad|"
    r"LibraryUnload|Link|ProfilerStart|ProfilerStop|ArrayCreate|Array3DCreate|Init$)"
)
_LAST_FUNCTION = 4000
_MISSES = 32
"""Numbers without a name in a row, after which there are no more functions."""
_DRIVER = 1


def is_wanted(domain: int, name: str) -> bool:
    """Tell whether a call of this function is worth a row of its own."""
    if domain == RUNTIME_CALLS:
        return _RUNTIME_NOISE.match(name) is None
    return _DRIVER_WORK.match(name) is not None


def unwanted_functions(cupti: Cupti) -> list[tuple[int, int]]:
    """List the functions that need not be recorded, each with its domain."""
    unwanted = []
    for domain in (RUNTIME_CALLS, DRIVER_CALLS):
        missed = 0
        for function in range(1, _LAST_FUNCTION):
            name = cupti.function_name(domain, function)
            missed = 0 if name else missed + 1
            if missed > _MISSES:
                break
            if name and not is_wanted(domain, name):
                unwanted.append((domain, function))
    return unwanted


class _Call(NamedTuple):
    kind: int
    function: int
    start: int
    end: int
    thread: int
    correlation: int
    result: int
    has_work: int


_ORDERED = """
SELECT class, function, start, end, thread, calls.correlation, result,
       work.correlation IS NOT NULL
FROM calls LEFT JOIN work ON work.correlation = calls.correlation
ORDER BY thread, start, end DESC, class
"""
_WORK = """
INSERT OR IGNORE INTO work SELECT correlationId FROM {table} WHERE correlationId IS NOT NULL
"""
_WORK_TABLES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "CUDA_GPU_MEMORY_USAGE_EVENTS",
)
_INSERT = """
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME
(start, end, eventClass, globalTid, correlationId, nameId, returnValue) VALUES (?,?,?,?,?,?,?)
"""


def write_calls(database: sqlite3.Connection, cupti: Cupti, texts: Texts) -> None:
    """Put the calls that matter into the capture's own table."""
    database.execute("CREATE TEMP TABLE work (correlation INTEGER PRIMARY KEY)")
    for table in _WORK_TABLES:
        database.execute(_WORK.format(table=table))
    rows = map(_Call._make, database.execute(_ORDERED))
    database.executemany(_INSERT, _kept(rows, cupti, texts))


def _kept(calls: Iterator[_Call], cupti: Cupti, texts: Texts) -> Iterator[tuple[int, ...]]:
    known: dict[tuple[int, int], tuple[int, bool]] = {}
    around: _Call | None = None
    for call in calls:
        key = (call.kind, call.function)
        if key not in known:
            known[key] = _known(*key, cupti, texts)
        name, wanted = known[key]
        if call.kind != _DRIVER:
            around = call
            keep = wanted or bool(call.has_work)
        elif around and around.thread == call.thread and call.end <= around.end:
            keep = bool(call.has_work) and not around.has_work
        else:
            keep = wanted or bool(call.has_work)
        if keep:
            yield (
                call.start,
                call.end,
                call.kind,
                call.thread,
                call.correlation,
                name,
                call.result,
            )


def _known(kind: int, function: int, cupti: Cupti, texts: Texts) -> tuple[int, bool]:
    domain = DRIVER_CALLS if kind == _DRIVER else RUNTIME_CALLS
    name = cupti.function_name(domain, function)
    if name is None:
        return texts.number(f"{'cu' if kind == _DRIVER else 'cuda'}[{function}]"), True
    return texts.number(name), is_wanted(domain, name)
