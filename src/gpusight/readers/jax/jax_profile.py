"""JAX profiles: `.xplane.pb` files (XSpace) and Chrome traces, and the tables of their planes."""

from __future__ import annotations

import mmap
import re
from array import array
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.errors import CaptureError, DamagedCaptureError, NotACaptureError
from gpusight.readers import chrome_source
from gpusight.readers.chrome_columns import (
    ArgumentColumn,
    TextBuilder,
    process_labels,
    thread_labels,
)
from gpusight.readers.file_blocks import FileBlocks
from gpusight.readers.jax import device_events, host_events
from gpusight.readers.jax.device_events import device_number, read_device
from gpusight.readers.jax.host_events import HostThreads, read_host
from gpusight.readers.jax.plane_events import (
    EventBatch,
    EventStats,
    PlaneTables,
    batches,
    enumerated,
)
from gpusight.readers.jax.xspace import (
    PLANE,
    PlaneLine,
    XPlane,
    XSpace,
    fields,
    looks_like_plane,
    parts,
    read_space,
)
from gpusight.readers.protobuf_wire import BYTES, VARINT, WireError, read_varint
from gpusight.readers.tables import EPOCH_NS, FrameSource, concat_tables
from gpusight.sniff import GZIP, not_a_capture
from gpusight.trace.schema import TABLES
from gpusight.trace.trace import Meta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from typing import TypeAlias

    from gpusight.readers.chrome_source import EventSorter
    from gpusight.readers.jax.xspace import ReferencedNames, StatValue
    from gpusight.trace.trace import TraceSource

    Contents: TypeAlias = tuple[Meta, dict[str, pl.DataFrame]]
    Decode: TypeAlias = Callable[[XPlane], Iterable[EventBatch]]


_SCOPES = "/host:__ScopeRangeCallStack__"
_MAX_COUNT = 4 * 10**18
"""Beyond any count, the nanoseconds since 1970 included."""
_JAX_CALL = "PjitFunction("
_HOST = "/host:"
_HOST_WORD = re.compile(r"(?P<after>(?<=dropped on ))?(?P<word>\w[\w.-]*\w|\w)")


def _stat(space: XSpace, name: str) -> StatValue | None:
    """Return a stat of the first plane that has it."""
    return next((plane.stats[name] for plane in space.planes if name in plane.stats), None)


def _integer(value: StatValue | None) -> int | None:
    """Return a stat as an integer, if it is a plausible count."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value):
        return int(value)
    return value if isinstance(value, int) and 0 <= value < _MAX_COUNT else None


def _origin_ns(space: XSpace) -> int:
    """Return the time that the profile began, where its lines count from 1970; else 0.

    The profiler lets them count from its own start, but not all of its versions do.
    """
    absolute = [
        line.timestamp_ns
        for plane in space.planes
        for line in plane.lines
        if line.events and line.timestamp_ns > EPOCH_NS
    ]
    if not absolute:
        return 0
    start_ns = _integer(_stat(space, "profile_start_time"))
    return min(absolute) if start_ns is None else min(start_ns, *absolute)


def _meta(space: XSpace, path: Path, source: str, notes: Iterable[str]) -> Meta:
    start, stop = (_integer(_stat(space, f"profile_{end}_time")) for end in ("start", "stop"))
    version = _stat(space, "jax_version") or _stat(space, "jaxlib_version")
    cuda = _integer(_stat(space, "cuda_driver_version") or _stat(space, "cuda_version"))
    kinds = (name for plane in space.planes for name in plane.kinds.texts)
    # TensorFlow has the same format.
    is_jax_profile = version or any(name.startswith(_JAX_CALL) for name in kinds)
    return Meta(
        path=str(path),
        source=source,
        tool="JAX profiler" if is_jax_profile else "XLA profiler",
        tool_version=version if isinstance(version, str) else None,
        start_utc_ns=start or _origin_ns(space) or None,
        duration_ns=stop - start if start and stop and stop > start else None,
        cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        notes=tuple(notes),
        warnings=tuple(_left_out(space)),
    )


def _diagnostics(space: XSpace) -> pl.DataFrame:
    """Return errors and warnings of the profiler, without the names of machines."""
    messages = [
        *(("error", text) for text in space.errors),
        *(("warning", text) for text in space.warnings),
    ]
    for plane in space.planes:
        dropped = _integer(plane.stats.get("dropped_traces"))
        if dropped:
            messages.append(("warning", f"{dropped:,} records of {plane.name} were dropped"))
    hosts = {*space.hostnames, *(name.partition(".")[0] for name in space.hostnames)}

    def hide(match: re.Match[str]) -> str:
        is_host = match["after"] is not None or match["word"] in hosts
        return "this host" if is_host else match[0]

    rows = [(severity, _HOST_WORD.sub(hide, text)) for severity, text in messages if text]
    return pl.DataFrame(rows, schema={"severity": pl.String, "text": pl.String}, orient="row")


def _devices(space: XSpace) -> pl.DataFrame:
    """List the devices that were profiled."""
    stats: dict[int, dict[str, StatValue]] = {}
    for plane in space.planes:
        number = device_number(plane)
        if number is not None:
            stats.setdefault(number, {}).update(plane.stats)
    rows = [_device(number, own) for number, own in stats.items()]
    schema = {name: pl.String if name == "name" else pl.Int64 for name in _device(0, {})}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _device(number: int, stats: dict[str, StatValue]) -> dict[str, int | str | None]:
    name = stats.get("gpu_device_name") or stats.get("device_type_string") or ""
    clock_khz = _integer(stats.get("clock_rate"))
    hbm = stats.get("peak_hbm_bw_gigabytes_per_second")
    bandwidth = _integer(stats.get("memory_bandwidth"))
    if bandwidth is None and isinstance(hbm, int | float) and 0 < hbm < 10**6:
        bandwidth = int(hbm * 10**9)
    return {
        "device": number,
        "name": str(name),
        "compute_major": _integer(stats.get("compute_cap_major")),
        "compute_minor": _integer(stats.get("compute_cap_minor")),
        "sm_count": _integer(stats.get("core_count")),
        "clock_hz": clock_khz * 1000 if clock_khz and clock_khz < 10**9 else None,
        "memory_bytes": _integer(stats.get("memory_size")),
        "memory_bandwidth": bandwidth,
    }


def profile_tables(
    path: Path, source: str, space: XSpace, decode: Decode, notes: Iterable[str] = ()
) -> Contents:
    """Read the tables of each plane, and those about the profile as a whole."""
    process = _integer(_stat(space, "process_id"))  # not in older profiles
    threads = HostThreads(process)
    frames, plane_notes = _read_planes(space, decode, threads)
    processes = [] if process is None else [(process, process)]
    frames.append(
        {
            "devices": _devices(space),
            "processes": pl.DataFrame(
                processes, schema={"process": pl.Int64, "pid": pl.Int64}, orient="row"
            ),
            "threads": threads.table(),
            "diagnostics": _diagnostics(space),
        }
    )
    names = dict.fromkeys(name for tables in frames for name in tables)
    meta = _meta(space, path, source, [*notes, *plane_notes])
    return meta, {name: _joined(name, frames) for name in names}


def _left_out(space: XSpace) -> Iterator[str]:
    """Count events without a usable time; a profile where most have none is damaged."""
    for plane in space.planes:
        total = sum(line.events for line in plane.lines)
        count = f"{plane.untimed:,} of {total:,} events of {plane.name}"
        if plane.untimed * 2 > total:
            raise WireError(f"{count} have no usable time or duration")
        if plane.untimed:
            yield f"{count} left out: no usable time or duration"


def _joined(name: str, planes: list[dict[str, pl.DataFrame]]) -> pl.DataFrame:
    """Concatenate a table of all planes in order of time, column by column to save memory."""
    frames = [tables.pop(name) for tables in planes if name in tables]
    columns = concat_tables([f for f in frames if f.height] or frames[:1]).get_columns()
    frames.clear()
    times = next((c for c in columns if c.name == TABLES[name].sort_column), None)
    if times is None or times.is_sorted():
        return pl.DataFrame(columns)
    order = pl.Series(np.argsort(times.to_numpy(), kind="stable").astype(np.uint32))
    columns.reverse()
    return pl.DataFrame([columns.pop().gather(order) for _ in range(len(columns))])


def _read_planes(
    space: XSpace, decode: Decode, threads: HostThreads
) -> tuple[list[dict[str, pl.DataFrame]], list[str]]:
    """Return the tables of each plane, and notes."""
    # Each scope that the host opened, and the one around it.
    scopes = {
        inner: outer
        for plane in space.planes
        if plane.name == _SCOPES
        for inner, outer in plane.numbered_stats
        if isinstance(outer, int) and not plane.words.of(inner)
    }
    vendor = str(_stat(space, "device_vendor") or "")
    tables: list[dict[str, pl.DataFrame]] = []
    notes: list[str] = []
    unread: list[str] = []
    for plane in space.planes:
        if device_number(plane) is not None:
            read = read_device(plane, decode(plane), threads.process, scopes)
        elif plane.name.startswith(_HOST):
            read = read_host(plane, decode(plane), threads, vendor)
        else:
            read = PlaneTables({}, [])
            unread += [plane.name] if any(line.events for line in plane.lines) else []
        tables.append(read.tables)
        notes += read.notes
        if plane.left_out:
            notes.append(
                f"not read: {plane.left_out:,} events of {plane.name} without a name of their own"
            )
    if unread:
        notes.append(f"not read: planes {enumerated(unread)}")
    return tables, list(dict.fromkeys(notes))


_MAX_UNPACKED_BYTES = 1 << 30
_PLANE_TAG = PLANE << 3 | BYTES
_PACKETS = 64
"""Packets of a Perfetto trace that are enough to recognize it."""
_TIMESTAMP, _SEQUENCE = 8, 10
"""Fields that nearly every packet of a Perfetto trace has."""


def xplane_source(path: Path) -> TraceSource:
    """Open a profile; raise where the file is something else."""
    with _content(path) as data:
        _check(path, data)
    return FrameSource(lambda: _read(path))


@contextmanager
def _content(path: Path) -> Iterator[memoryview]:
    """Yield the bytes of a file, unpacked where it is packed."""
    with path.open("rb") as file:
        head = file.read(len(GZIP))
        if head == GZIP or not head:  # what is empty cannot be mapped
            yield memoryview(_unpacked(path) if head else b"")
            return
        with (
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as data,
        ):
            yield data


def _unpacked(path: Path) -> bytes:
    blocks = FileBlocks(path)
    content = bytearray()
    for block in blocks:
        content += block
        if len(content) > _MAX_UNPACKED_BYTES:
            raise CaptureError(
                f"{path} holds more than {_MAX_UNPACKED_BYTES >> 30} GB",
                hint="unpack it first with: gzip -d",
            )
    if blocks.problem:
        raise DamagedCaptureError(
            f"{path} cannot be unpacked", why=blocks.problem, hint="copy it again"
        )
    return bytes(content)


def _check(path: Path, data: memoryview) -> None:
    """Refuse files that begin like a profile but are something else, or are truncated."""
    if not _begins_with_plane(data):
        if _is_perfetto(data):
            raise NotACaptureError(
                f"{path} is a Perfetto trace (protobuf)",
                hint="gpusight reads the Chrome-format JSON traces of PyTorch and JAX, "
                "and JAX's .xplane.pb",
            )
        raise not_a_capture(path)
    try:
        for _ in parts(data):
            pass
    except WireError as error:
        raise DamagedCaptureError(
            f"{path} is cut off", why=str(error), hint="copy or capture it again"
        ) from error


def _begins_with_plane(data: memoryview) -> bool:
    """Check the first plane that is not empty, which may be truncated."""
    at = 0
    try:
        while data[at] == _PLANE_TAG:
            length, at = read_varint(data, at + 1, len(data))
            if length:
                return looks_like_plane(data, at, min(at + length, len(data)))
    except (WireError, IndexError):
        pass
    return False


def _is_perfetto(data: memoryview) -> bool:
    packets = 0
    try:
        for number, packet in enumerate(fields(data, 0, len(data))):
            if packet.number != 1 or packet.kind != BYTES:
                return False
            numbers = {
                part.number
                for part in fields(data, packet.start, packet.end)
                if part.kind == VARINT
            }
            packets += not numbers.isdisjoint((_TIMESTAMP, _SEQUENCE))
            if number == _PACKETS:
                break
    except WireError:
        pass
    return packets > 0


def _read(path: Path) -> Contents:
    try:
        with _content(path) as data:
            space = read_space(data)
            origin_ns = _origin_ns(space)

            def decode(plane: XPlane) -> Iterator[EventBatch]:
                times_ns = np.array([line.timestamp_ns for line in plane.lines], np.int64)
                line_origins = np.where(times_ns > EPOCH_NS, times_ns - origin_ns, times_ns)
                yield from batches(data, plane, line_origins)
                plane.marks = array("q")

            return profile_tables(path, "jax-xplane", space, decode)
    except (WireError, pl.exceptions.PolarsError, OverflowError) as error:
        raise DamagedCaptureError(
            f"{path} is damaged",
            why=str(error).splitlines()[0],
            hint="copy or capture it again",
        ) from error


# Chrome traces: planes and lines are processes and threads ---------------------------------------

_PLANE_NAME = re.compile(r"/(?:device:(?:GPU|TPU):\d+$|host:)")
_STATS = tuple(dict.fromkeys((*device_events.STATS, *host_events.STATS)))


def is_jax(events: EventSorter) -> bool:
    """Return whether a trace is of JAX, by the names of its processes."""
    return any(_PLANE_NAME.match(name) for name in process_labels(events.settings).values())


def json_tables(path: Path, events: EventSorter, notes: Iterable[str]) -> Contents:
    """Read the tables of such a trace."""
    rows = events.of(chrome_source.PLAIN)
    names, threads = process_labels(events.settings), thread_labels(events.settings)
    # All stats are extracted as text, at once.
    stats = rows.arguments.columns([ArgumentColumn((name,), TextBuilder) for name in _STATS])
    frame = pl.DataFrame(
        {
            "pid": rows.pid,
            "tid": rows.tid,
            "code": rows.codes,
            "start_ns": rows.start_ns,
            "end_ns": rows.start_ns + rows.duration_ns,
            **{f"stat {name}": column for name, column in zip(_STATS, stats, strict=True)},
        }
    )
    by_pid = {pid: part for (pid,), part in frame.group_by("pid", maintain_order=True)}
    texts = rows.distinct_names
    planes = {pid: XPlane(name) for pid, name in names.items()}
    for pid, plane in planes.items():
        part = by_pid.get(pid)
        if part is not None:
            for code in part["code"].unique().sort():
                plane.kinds.put(code, texts[code])
            for tid, count in part.group_by("tid").len().sort("tid").iter_rows():
                thread = threads.get((pid, tid), "")
                plane.lines.append(PlaneLine(id=tid, name=thread, events=count))
    pid_of = {id(plane): pid for pid, plane in planes.items()}

    def decode(plane: XPlane) -> Iterator[EventBatch]:
        part = by_pid.get(pid_of[id(plane)])
        if part is not None:
            yield _batch(plane, part)

    space = XSpace(list(planes.values()), [], [], [])
    return profile_tables(path, "jax-chrome", space, decode, notes)


def _batch(plane: XPlane, part: pl.DataFrame) -> EventBatch:
    lines = {line.id: number for number, line in enumerate(plane.lines)}
    events = part.select(
        pl.col("tid").replace_strict(lines, return_dtype=pl.Int32).alias("line"),
        pl.Series("kind", plane.kinds.places(part["code"].cast(pl.Int64).to_numpy())),
        "start_ns",
        "end_ns",
    )
    stats = {name: part[f"stat {name}"] for name in _STATS}
    return EventBatch(events, _JsonStats(stats, plane.words))


class _JsonStats(EventStats):
    """Texts of JSON."""

    def __init__(self, columns: dict[str, pl.Series], words: ReferencedNames) -> None:
        self._columns = columns
        self._words = words

    def has(self, *names: str) -> pl.Series:
        frame = pl.DataFrame({name: self._columns[name] for name in names})
        return frame.select(pl.any_horizontal(pl.all().is_not_null())).to_series()

    def integers(self, name: str) -> pl.Series:
        return self._columns[name].cast(pl.String).cast(pl.Int64, strict=False)

    def reals(self, name: str) -> pl.Series:
        return self._columns[name].cast(pl.String).cast(pl.Float64, strict=False)

    def texts(self, name: str) -> pl.Series:
        texts = self._columns[name].cast(pl.String)
        distinct = texts.drop_nulls().unique(maintain_order=True)
        places = {text: self._words.add(text) for text in distinct}
        return texts.replace_strict(places, default=None, return_dtype=pl.Int32)

    def any_number(self) -> pl.Series:
        """Return nulls: counters are not exported to this format."""
        height = len(next(iter(self._columns.values())))
        return pl.Series("value", [None], dtype=pl.Float64).new_from_index(0, height)
