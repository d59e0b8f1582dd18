"""Profiles of JAX: `.xplane.pb` files (XSpace), and the tables and facts of a profile."""

from __future__ import annotations

import mmap
import re
from array import array
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np
import polars as pl

from gpusight.errors import CaptureError, DamagedCaptureError, NotACaptureError
from gpusight.readers.file_blocks import FileBlocks
from gpusight.readers.frame_source import EPOCH_NS, FrameSource, concat_tables
from gpusight.readers.jax.device_events import device_number, read_device
from gpusight.readers.jax.host_events import HostThreads, read_host
from gpusight.readers.jax.plane_events import PlaneTables, batches, enumerated
from gpusight.readers.jax.xspace import PLANE, fields, looks_like_plane, parts, read_space
from gpusight.readers.protobuf_wire import BYTES, VARINT, WireError, read_varint
from gpusight.sniff import GZIP, not_a_capture
from gpusight.trace.schema import TABLES
from gpusight.trace.trace import Meta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from gpusight.readers.jax.plane_events import EventBatch
    from gpusight.readers.jax.xspace import StatValue, XPlane, XSpace
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import TraceSource

    Decode = Callable[[XPlane], Iterable[EventBatch]]


_SCOPES = "/host:__ScopeRangeCallStack__"
_MAX_WHOLE = 4 * 10**18
"""Beyond any count, the nanoseconds since 1970 included."""
_JAX_CALL = "PjitFunction("


def stat(space: XSpace, name: str) -> StatValue | None:
    """Find what the first plane that says so says about the profile."""
    return next((plane.stats[name] for plane in space.planes if name in plane.stats), None)


def whole_stat(value: StatValue | None) -> int | None:
    """Take a stat for a whole number, if it is one that something can be counted by."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value):
        return int(value)
    return value if isinstance(value, int) and 0 <= value < _MAX_WHOLE else None


def process_of(space: XSpace) -> int | None:
    """Give the number of the process that was profiled; older profiles do not say."""
    return whole_stat(stat(space, "process_id"))


def scopes_of(space: XSpace) -> dict[int, int]:
    """Give, for each scope that the host opened, the one around it."""
    return {
        inner: outer
        for plane in space.planes
        if plane.name == _SCOPES
        for inner, outer in plane.numbered_stats
        if isinstance(outer, int) and not plane.words.of(inner)
    }


def origin_of(space: XSpace) -> int:
    """Find the time that the profile began, where its lines count from 1970; else 0.

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
    start = whole_stat(stat(space, "profile_start_time"))
    return min(absolute) if start is None else min(start, *absolute)


def line_origins(plane: XPlane, origin: int) -> Ints:
    """Give the time that each line's events count from, in nanoseconds of the profile."""
    times = np.array([line.timestamp_ns for line in plane.lines], np.int64)
    return np.where(times > EPOCH_NS, times - origin, times)


def profile_meta(space: XSpace, path: Path, source: str, notes: list[str]) -> Meta:
    """Sum up what is known about the profile as a whole."""
    start, stop = (whole_stat(stat(space, f"profile_{what}_time")) for what in ("start", "stop"))
    version = stat(space, "jax_version") or stat(space, "jaxlib_version")
    cuda = whole_stat(stat(space, "cuda_driver_version") or stat(space, "cuda_version"))
    return Meta(
        path=str(path),
        source=source,
        tool="JAX profiler" if _is_jax(space) else "XLA profiler",
        tool_version=version if isinstance(version, str) else None,
        start_utc_ns=start or origin_of(space) or None,
        duration_ns=stop - start if start and stop and stop > start else None,
        cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        notes=tuple(notes),
    )


def _is_jax(space: XSpace) -> bool:
    """Tell JAX's profiles from TensorFlow's, which have the same form."""
    if stat(space, "jax_version") or stat(space, "jaxlib_version"):
        return True
    return any(name.startswith(_JAX_CALL) for p in space.planes for name in p.kinds.texts)


def diagnostics(space: XSpace) -> pl.DataFrame:
    """Give what the profiler complained about, without the names of machines."""
    said = [
        *(("error", text) for text in space.errors),
        *(("warning", text) for text in space.warnings),
    ]
    for plane in space.planes:
        dropped = whole_stat(plane.stats.get("dropped_traces"))
        if dropped:
            said.append(("warning", f"{dropped:,} records of {plane.name} were dropped"))
    hosts = {*space.hostnames, *(name.partition(".")[0] for name in space.hostnames)}
    rows = [(severity, _without_hosts(text, hosts)) for severity, text in said if text]
    return pl.DataFrame(rows, schema={"severity": pl.String, "text": pl.String}, orient="row")


def _without_hosts(text: str, hosts: set[str]) -> str:
    def hide(match: re.Match[str]) -> str:
        named = match["after"] is not None or match["word"] in hosts
        return "this host" if named else match[0]

    return re.sub(r"(?P<after>(?<=dropped on ))?(?P<word>\w[\w.-]*\w|\w)", hide, text)


def devices(space: XSpace) -> pl.DataFrame:
    """List the devices that were profiled."""
    said: dict[int, dict[str, StatValue]] = {}
    for plane in space.planes:
        number = device_number(plane)
        if number is not None:
            said.setdefault(number, {}).update(plane.stats)
    rows = [_device(number, stats) for number, stats in said.items()]
    return pl.DataFrame(rows, schema=_DEVICE_COLUMNS, orient="row")


_DEVICE_COLUMNS = {
    "device": pl.Int64,
    "name": pl.String,
    "compute_major": pl.Int64,
    "compute_minor": pl.Int64,
    "sm_count": pl.Int64,
    "clock_hz": pl.Int64,
    "memory_bytes": pl.Int64,
    "memory_bandwidth": pl.Int64,
}


def _device(number: int, stats: dict[str, StatValue]) -> dict[str, int | str | None]:
    name = stats.get("gpu_device_name") or stats.get("device_type_string") or ""
    clock_khz = whole_stat(stats.get("clock_rate"))
    hbm = stats.get("peak_hbm_bw_gigabytes_per_second")
    bandwidth = whole_stat(stats.get("memory_bandwidth"))
    if bandwidth is None and isinstance(hbm, int | float) and 0 < hbm < 10**6:
        bandwidth = int(hbm * 10**9)
    return {
        "device": number,
        "name": str(name),
        "compute_major": whole_stat(stats.get("compute_cap_major")),
        "compute_minor": whole_stat(stats.get("compute_cap_minor")),
        "sm_count": whole_stat(stats.get("core_count")),
        "clock_hz": clock_khz * 1000 if clock_khz and clock_khz < 10**9 else None,
        "memory_bytes": whole_stat(stats.get("memory_size")),
        "memory_bandwidth": bandwidth,
    }


def processes(process: int | None) -> pl.DataFrame:
    """List the process that was profiled, if it is known."""
    known = [] if process is None else [(process, process)]
    return pl.DataFrame(known, schema={"process": pl.Int64, "pid": pl.Int64}, orient="row")


Contents: TypeAlias = tuple[Meta, dict[str, pl.DataFrame]]
_HOST = "/host:"


def profile_tables(
    path: Path, source: str, space: XSpace, decode: Decode, notes: Iterable[str] = ()
) -> Contents:
    """Read the tables of each plane, and those about the profile as a whole."""
    threads = HostThreads(process_of(space))
    found, said = _read_planes(space, decode, threads)
    about = {
        "devices": devices(space),
        "processes": processes(threads.process),
        "threads": threads.table(),
        "diagnostics": diagnostics(space),
    }
    found.append(about)
    names = dict.fromkeys(name for tables in found for name in tables)
    meta = profile_meta(space, path, source, [*notes, *said])
    meta = msgspec.structs.replace(meta, warnings=tuple(_left_out(space)))
    return meta, {name: _joined(name, found) for name in names}


def _left_out(space: XSpace) -> Iterator[str]:
    """Name events without a usable time; a profile of which most have none is damaged."""
    for plane in space.planes:
        total = sum(line.events for line in plane.lines)
        count = f"{plane.untimed:,} of {total:,} events of {plane.name}"
        if plane.untimed * 2 > total:
            raise WireError(f"{count} have no usable time or duration")
        if plane.untimed:
            yield f"{count} left out: no usable time or duration"


def _joined(name: str, found: list[dict[str, pl.DataFrame]]) -> pl.DataFrame:
    """Take a table of all planes and put its rows in order, column by column to save memory."""
    frames = [tables.pop(name) for tables in found if name in tables]
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
    scopes = scopes_of(space)
    vendor = str(stat(space, "device_vendor") or "")
    found: list[dict[str, pl.DataFrame]] = []
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
        found.append(read.tables)
        notes += read.notes
        if plane.left_out:
            notes.append(
                f"not read: {plane.left_out:,} events of {plane.name} without a name of their own"
            )
    if unread:
        notes.append(f"not read: planes {enumerated(unread)}")
    return found, list(dict.fromkeys(notes))


_MAX_UNPACKED_BYTES = 1 << 30
_PLANE_TAG = PLANE << 3 | BYTES
_PACKETS = 64
"""So many packets of a Perfetto trace are enough to know it."""
_TIMESTAMP, _SEQUENCE = 8, 10
"""Fields that nearly every packet of a Perfetto trace has."""


def xplane_source(path: Path) -> TraceSource:
    """Open a profile; raises where the file is something else."""
    with _content(path) as data:
        _check(path, data)
    return FrameSource(lambda: _read(path))


@contextmanager
def _content(path: Path) -> Iterator[memoryview]:
    """Give the bytes of a file, unpacked where it is packed."""
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
    """Refuse files that begin like a profile but are something else, or are cut off."""
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
    """Look at the first plane that is not empty, of which there may be only the beginning."""
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
    found = 0
    try:
        for place, packet in enumerate(fields(data, 0, len(data))):
            if packet.number != 1 or packet.kind != BYTES:
                return False
            numbers = {
                part.number
                for part in fields(data, packet.start, packet.end)
                if part.kind == VARINT
            }
            found += not numbers.isdisjoint((_TIMESTAMP, _SEQUENCE))
            if place == _PACKETS:
                break
    except WireError:
        pass
    return found > 0


def _read(path: Path) -> Contents:
    try:
        with _content(path) as data:
            return _tables(path, data)
    except (WireError, pl.exceptions.PolarsError, OverflowError) as error:
        raise DamagedCaptureError(
            f"{path} is damaged",
            why=str(error).splitlines()[0],
            hint="copy or capture it again",
        ) from error


def _tables(path: Path, data: memoryview) -> Contents:
    space = read_space(data)
    origin = origin_of(space)

    def decoded(plane: XPlane) -> Iterator[EventBatch]:
        yield from batches(data, plane, line_origins(plane, origin))
        plane.marks = array("q")

    return profile_tables(path, "jax-xplane", space, decoded)
