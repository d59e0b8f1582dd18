"""The functions of the compiled core on NumPy arrays, with their types.

Each returns None without the core: then its caller does the same with NumPy. That is the
reference; tests compare the two on generated input.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from gpusight.core.library import BAD_INPUT, NO_MEMORY, core_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

_COUNT, _BUFFER = ctypes.c_int64, ctypes.c_void_p
_HOST_TIME = (*[_COUNT, _BUFFER] * 2, *[_BUFFER] * 2, _COUNT, *[_BUFFER] * 2, *[_COUNT] * 2)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "enclosing": (None, _COUNT, *[_BUFFER] * 4),
    "host_spent": (ctypes.c_int, *_HOST_TIME, _COUNT, *[_BUFFER] * 4),
    "innermost": (ctypes.c_int, _COUNT, *[_BUFFER] * 3, _COUNT, _BUFFER, _COUNT, *[_BUFFER] * 4),
    "find_keys": (ctypes.c_int, _COUNT, *[_BUFFER] * 2, *[_COUNT] * 2, *[_BUFFER] * 3),
    "inside": (None, _COUNT, *[_BUFFER] * 2, _COUNT, _BUFFER, _COUNT, _BUFFER),
    "ledger_sums": (
        ctypes.c_int,
        *_HOST_TIME,
        *(_COUNT, *[_BUFFER] * 3),
        *(_COUNT, *[_BUFFER] * 5),
        *(_COUNT, _COUNT, _BUFFER),
    ),
    "most_spent": (ctypes.c_int, _COUNT, _BUFFER, _COUNT, _BUFFER, _BUFFER),
    "move_times": (ctypes.c_int, _COUNT, *[_BUFFER] * 2, _COUNT, *[_BUFFER] * 2),
    "project": (
        *(ctypes.c_int, _COUNT, *[_BUFFER] * 6),
        *(_COUNT, *[_BUFFER] * 2, _COUNT, _BUFFER),
    ),
    "sum_launches": (ctypes.c_int, _COUNT, *[_BUFFER] * 3, _COUNT, *[_BUFFER] * 4),
    "outer_calls": (ctypes.c_int, _COUNT, *[_BUFFER] * 3, _COUNT, *[_BUFFER] * 2),
    "replay": (
        ctypes.c_int,
        *(_COUNT, *[_BUFFER] * 8),
        *(_COUNT, *[_BUFFER] * 10),
        *(_COUNT, _COUNT, _COUNT, _COUNT),
        *[_BUFFER] * 6,
    ),
    "running_spent": (ctypes.c_int, _COUNT, _BUFFER, _BUFFER, _COUNT, _BUFFER),
    "search": (None, _COUNT, _BUFFER, _COUNT, _BUFFER, _COUNT, _BUFFER),
    "unite": (_COUNT, _COUNT, *[_BUFFER] * 4),
    "nested_lines": (_COUNT, _COUNT, *[_BUFFER] * 4),
    "group_lines": (_COUNT, _COUNT, *[_BUFFER] * 3, _COUNT, *[_BUFFER] * 3),
    "line_events": (*(_COUNT, _COUNT, *[_BUFFER] * 4, _COUNT, _BUFFER, _COUNT, *[_BUFFER] * 5),),
}
"""Result and arguments of every function."""


@cache
def _function(name: str) -> Callable[..., Any] | None:
    result, *arguments = _SIGNATURES[name]
    return core_function(name, result, arguments)


def _call(function: Callable[..., Any], *arguments: int | NDArray[Any]) -> None:
    """Call a function of the core with the addresses of arrays, which stay alive meanwhile."""
    result = function(*(a if isinstance(a, int) else a.ctypes.data for a in arguments))
    if result == NO_MEMORY:
        raise MemoryError
    if result == BAD_INPUT:
        raise ValueError(f"{function.__name__}: an index is out of bounds")


def _ints(array: NDArray[Any], length: int) -> Ints:
    """Give a column as the core reads it; its length is what keeps C within the buffer."""
    # Floats are refused: their nanoseconds are rounded already.
    column = array.astype(np.int64, order="C", casting="same_kind", copy=False)
    if column.shape != (length,):
        raise ValueError(f"columns of {length} values are needed, one has {column.shape}")
    return column


def outer_calls(starts: Ints, ends: Ints, threads: Ints) -> tuple[NDArray[np.bool_], Ints] | None:
    """Find the calls in no earlier call of their thread, and the last such call up to each."""
    function = _function("outer_calls")
    if function is None:
        return None
    n, count = len(starts), int(threads.max(initial=-1)) + 1
    is_outer, around = np.empty(n, np.bool_), np.empty(n, np.int64)
    columns = [_ints(column, n) for column in (starts, ends, threads)]
    _call(function, n, *columns, count, is_outer, around)
    return is_outer, around


# Intervals ----------------------------------------------------------------------------------------


def enclosing(starts: Ints, ends: Ints, threads: Ints) -> Ints | None:
    """Find the position of the interval around each, -1 for none; sorted by thread and start."""
    function = _function("enclosing")
    if function is None:
        return None
    n = len(starts)
    outer = np.empty(n, np.int64)
    _call(function, n, _ints(starts, n), _ints(ends, n), _ints(threads, n), outer)
    return outer


def innermost(
    intervals: tuple[Ints, Ints, Ints], first: Ints, codes: Ints, times: Ints
) -> tuple[Ints, NDArray[np.bool_]] | None:
    """Find the innermost interval open at each time on a thread, and whether that was reached.

    `intervals` are start, end and the position of the one around; `first` is where each thread
    begins among them, and where the last one ends.
    """
    function = _function("innermost")
    if function is None:
        return None
    n, m = len(intervals[0]), len(times)
    places, is_found = np.empty(m, np.int64), np.empty(m, np.bool_)
    columns = [_ints(column, n) for column in intervals]
    wanted = [_ints(column, m) for column in (codes, times)]
    threads = len(first) - 1
    _call(function, n, *columns, threads, _ints(first, threads + 1), m, *wanted, places, is_found)
    return places, is_found


def search(values: Ints, times: Ints, *, right: bool) -> Ints | None:
    """Find where times would be among rising values; fast where times rise as well."""
    function = _function("search")
    if function is None:
        return None
    n, m = len(values), len(times)
    positions = np.empty(m, np.int64)
    _call(function, n, _ints(values, n), m, _ints(times, m), int(right), positions)
    return positions


def inside(starts: Ints, ends: Ints, times: Ints, *, right: bool) -> NDArray[np.bool_] | None:
    """Find which times lie in sorted spans; on the left: the instant before each."""
    function = _function("inside")
    if function is None:
        return None
    n, m = len(starts), len(times)
    found = np.empty(m, np.bool_)
    _call(function, n, _ints(starts, n), _ints(ends, n), m, _ints(times, m), int(right), found)
    return found


def unite(starts: Ints, ends: Ints) -> tuple[Ints, Ints] | None:
    """Unite spans; None also where they are not in order of start."""
    function = _function("unite")
    if function is None:
        return None
    n = len(starts)
    united_starts, united_ends = np.empty(n, np.int64), np.empty(n, np.int64)
    columns = (_ints(starts, n), _ints(ends, n), united_starts, united_ends)
    count = function(n, *(column.ctypes.data for column in columns))
    if count == BAD_INPUT:
        return None
    # Copies, so that a few spans do not keep long arrays.
    return united_starts[:count].copy(), united_ends[:count].copy()


# The ledger ---------------------------------------------------------------------------------------


class SpentMoments(NamedTuple):
    """`HostTime` as the core reads it."""

    time_ns: Ints
    threads: Ints
    """The host threads, rising, and the first and last moment of each."""
    first: Ints
    last: Ints
    causes: Ints
    """Those that have a column."""
    spent_ns: Ints
    """A row a moment, a column a cause."""
    cause_count: int
    unknown: int
    """The cause of time that nothing is known of."""

    def arguments(self) -> list[int | NDArray[Any]]:
        """Return what functions of the core are called with."""
        moments, threads, kinds = len(self.time_ns), len(self.threads), len(self.causes)
        spent = np.ascontiguousarray(self.spent_ns, np.int64)
        if spent.shape != (moments, kinds):
            raise ValueError(f"{moments} rows of {kinds} columns are needed, not {spent.shape}")
        keys = (_ints(column, threads) for column in (self.threads, self.first, self.last))
        times, causes = _ints(self.time_ns, moments), _ints(self.causes, kinds)
        known = (self.cause_count, int(self.unknown))
        return [moments, times, threads, *keys, kinds, causes, spent, *known]


def host_spent(host: SpentMoments, threads: Ints, starts: Ints, ends: Ints) -> Ints | None:
    """Return the ns of each cause that host threads spent in spans, one row a span."""
    function = _function("host_spent")
    if function is None:
        return None
    m = len(threads)
    spans = (_ints(column, m) for column in (threads, starts, ends))
    spent = np.empty((m, host.cause_count), np.int64)
    _call(function, *host.arguments(), m, *spans, spent)
    return spent


def running_spent(times: Ints, columns: Ints, count: int) -> Ints | None:
    """Return what was spent on each of `count` causes until each time; -1 counts for none."""
    function = _function("running_spent")
    if function is None:
        return None
    n = len(times)
    spent = np.empty((n, count), np.int64)
    of_stretches = _ints(columns, max(n - 1, 0))
    _call(function, n, _ints(times, n), of_stretches, count, spent)
    return spent


def most_spent(threads: Ints, spent_ns: Ints) -> Ints | None:
    """Return the column that grew most from each moment of a thread to the next; -1 for none."""
    function = _function("most_spent")
    if function is None:
        return None
    n, kinds = spent_ns.shape
    spent = np.ascontiguousarray(spent_ns, np.int64)
    columns = np.empty(max(n - 1, 0), np.int64)
    _call(function, n, _ints(threads, n), kinds, spent, columns)
    return columns


def ledger_sums(
    host: SpentMoments,
    gaps: tuple[Ints, ...],
    spans: tuple[Ints, ...],
    labels: int,
    parts: int,
) -> Ints | None:
    """Add up spans of a GPU by part and by what they count for: labels, then causes.

    `gaps` are host thread, when it had launched, and the cause of the rest; `spans` are start,
    end, label (-1 for idle ones), gap and part.
    """
    function = _function("ledger_sums")
    if function is None:
        return None
    n, m = len(gaps[0]), len(spans[0])
    sums = np.zeros((parts, labels + host.cause_count), np.int64)
    of_gaps = [_ints(column, n) for column in gaps]
    of_spans = [_ints(column, m) for column in spans]
    _call(function, *host.arguments(), n, *of_gaps, m, *of_spans, labels, parts, sums)
    return sums


# The replay ---------------------------------------------------------------------------------------


def replay(
    calls: tuple[Ints, ...],
    ops: tuple[Ints, ...],
    is_removed: NDArray[np.bool_],
    start_ns: int,
    streams_of_devices: tuple[Ints, Ints],
) -> tuple[Ints, Ints, Ints, Ints] | None:
    """Simulate a program; returns starts and ends of calls, then those of GPU activities.

    `calls` and `ops` are columns of `ReplayProgram` in the order of `core/replay.c`; `is_removed`
    is that of activities. The devices and streams are pairs.
    """
    function = _function("replay")
    if function is None:
        return None
    n, m, pairs = len(calls[0]), len(ops[0]), len(streams_of_devices[0])
    of_calls = [_ints(column, n) for column in calls]
    of_ops = [_ints(column, m) for column in ops]
    removed = np.ascontiguousarray(is_removed, np.bool_)
    if removed.shape != (m,):
        raise ValueError(f"columns of {m} values are needed, one has {removed.shape}")
    threads, streams = (int(c.max(initial=-1)) + 1 for c in (calls[0], ops[2]))
    of_devices = [_ints(column, pairs) for column in streams_of_devices]
    call_start, call_end = np.empty(n, np.int64), np.empty(n, np.int64)
    op_start, op_end = np.empty(m, np.int64), np.zeros(m, np.int64)
    times = call_start, call_end, op_start, op_end
    _call(
        function,
        n,
        *of_calls,
        m,
        *of_ops[:7],
        removed,
        *of_ops[7:],
        threads,
        streams,
        start_ns,
        pairs,
        *of_devices,
        *times,
    )
    return times


def move_times(before: Ints, after: Ints, times: Ints) -> Ints | None:
    """Move times by rising moments and where these are moved to; None also beyond 2^53 ns."""
    function = _function("move_times")
    if function is None:
        return None
    n, m = len(before), len(times)
    moved = np.empty(m, np.int64)
    columns = (n, _ints(before, n), _ints(after, n), m, _ints(times, m), moved)
    result = function(*(c if isinstance(c, int) else c.ctypes.data for c in columns))
    return None if result == BAD_INPUT else moved


def nested_lines(starts: Ints, ends: Ints) -> Ints | None:
    """Count the events that are open where each begins; None also where two events cross."""
    function = _function("nested_lines")
    if function is None:
        return None
    n = len(starts)
    lines, still_open = np.empty(n, np.int64), np.empty(n, np.int64)
    columns = (_ints(starts, n), _ints(ends, n), still_open, lines)
    result = function(n, *(column.ctypes.data for column in columns))
    return None if result == BAD_INPUT else lines


class GroupLines(NamedTuple):
    """The lines that events of some groups are drawn on."""

    first_event: Ints
    """Of each group."""
    first_line: Ints
    """Of each group; at the end, how many lines there are."""
    events: NDArray[np.uint32]
    """Positions of the events, line by line."""
    events_of: Ints
    busy_ns: Ints
    start_ns: Ints
    end_ns: Ints
    """Of each line."""


def group_lines(starts: Ints, ends: Ints, codes: Ints, groups: int) -> GroupLines | None:
    """Lay out events in order of start, with the numbers of their groups.

    None also where events of a group cross, or an inner one comes before its outer one.
    """
    place, collect = _function("group_lines"), _function("line_events")
    if place is None or collect is None:
        return None
    n = len(starts)
    columns = [_ints(column, n) for column in (starts, ends, codes)]
    lines, counts, firsts = np.empty(n, np.int32), *np.empty((2, groups), np.int64)
    of_events = [n, *(column.ctypes.data for column in columns)]
    result = place(*of_events, groups, *(a.ctypes.data for a in (lines, counts, firsts)))
    if result == BAD_INPUT:
        return None
    if result == NO_MEMORY:
        raise MemoryError
    first_line = np.append(np.int64(0), np.cumsum(counts))
    events, sums = np.empty(n, np.uint32), np.empty((4, int(first_line[-1])), np.int64)
    of_lines = (groups, first_line, int(first_line[-1]), events, *sums)
    _call(collect, n, *columns, lines, *of_lines)
    return GroupLines(firsts, first_line, events, *sums)


# Launches -----------------------------------------------------------------------------------------


def find_keys(
    rows: tuple[Ints, Ints], wanted: tuple[Ints, Ints], span: int
) -> NDArray[np.int32] | None:
    """Find the first row of each process and key; None also where rows are of several processes.

    `span` is more than the greatest key of the rows.
    """
    function = _function("find_keys")
    if function is None:
        return None
    n, m = len(rows[0]), len(wanted[0])
    found = np.empty(m, np.int32)
    columns = [_ints(column, n) for column in rows]
    others = [_ints(column, m) for column in wanted]
    addresses = [column.ctypes.data for column in (*columns, *others)]
    result = function(n, *addresses[:2], span, m, *addresses[2:], found.ctypes.data)
    if result == NO_MEMORY:
        raise MemoryError
    return None if result == BAD_INPUT else found


class LaunchSums(NamedTuple):
    """What each of some API calls launched."""

    first_ns: Ints
    last_ns: Ints
    busy_ns: Ints
    ops: NDArray[np.int32]


def sum_launches(launch: NDArray[np.int32], starts: Ints, ends: Ints, sums: LaunchSums) -> bool:
    """Add GPU work to the sums of the calls that launched it; False without the core."""
    function = _function("sum_launches")
    if function is None:
        return False
    n, m = len(launch), len(sums.ops)
    calls = np.ascontiguousarray(launch, np.int32)
    _call(function, n, calls, _ints(starts, n), _ints(ends, n), m, *sums)
    return True


def project(
    launches: tuple[Ints, Ints], work: LaunchSums, starts: Ints, ends: Ints, sums: Ints
) -> bool:
    """Add the work of the launches inside of ranges to their sums; False without the core.

    `sums` has five rows: launches, ops, busy time, first start and last end, with a column for each
    range; it may be a part of more columns.
    """
    function = _function("project")
    if function is None:
        return False
    n, m = len(launches[0]), len(starts)
    if not m:
        return True
    if sums.shape != (5, m) or sums.dtype != np.int64 or sums.strides[1] != sums.itemsize:
        raise ValueError(f"5 rows of {m} sums are needed, not {sums.shape}")
    of_launches = [_ints(column, n) for column in (*launches, *work[:3])]
    ops = np.ascontiguousarray(work.ops, np.int32)
    if ops.shape != (n,):
        raise ValueError(f"columns of {n} values are needed, one has {ops.shape}")
    of_ranges = (_ints(starts, m), _ints(ends, m))
    _call(function, n, *of_launches, ops, m, *of_ranges, sums.strides[0] // 8, sums)
    return True
