"""What a profile says about the machine, the program and itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.model.trace import Meta
from gpusight.readers.frames import EPOCH_NS
from gpusight.readers.jax.device import device_number

if TYPE_CHECKING:
    from pathlib import Path

    from gpusight.readers.jax.columns import Ints
    from gpusight.readers.jax.space import Plane, Space, StatValue

_SCOPES = "/host:__ScopeRangeCallStack__"
_MOST = 4 * 10**18
"""Beyond any count, the nanoseconds since 1970 included."""
_JAX_CALL = "PjitFunction("


def stat(space: Space, name: str) -> StatValue | None:
    """Find what the first plane that says so says about the profile."""
    return next((plane.stats[name] for plane in space.planes if name in plane.stats), None)


def whole(value: StatValue | None) -> int | None:
    """Take a stat for a whole number, if it is one that something can be counted by."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value):
        return int(value)
    return value if isinstance(value, int) and 0 <= value < _MOST else None


def process_of(space: Space) -> int | None:
    """Give the number of the process that was profiled; older profiles do not say."""
    return whole(stat(space, "process_id"))


def scopes_of(space: Space) -> dict[int, int]:
    """Give, for each scope that the host opened, the one around it."""
    return {
        inner: outer
        for plane in space.planes
        if plane.name == _SCOPES
        for inner, outer in plane.numbered_stats
        if isinstance(outer, int) and not plane.words.of(inner)
    }


def origin_of(space: Space) -> int:
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
    start = whole(stat(space, "profile_start_time"))
    return min(absolute) if start is None else min(start, *absolute)


def line_origins(plane: Plane, origin: int) -> Ints:
    """Give the time that each line's events count from, in nanoseconds of the profile."""
    times = np.array([line.timestamp_ns for line in plane.lines], np.int64)
    return np.where(times > EPOCH_NS, times - origin, times)


def meta(space: Space, path: Path, source: str, notes: list[str]) -> Meta:
    """Sum up what is known about the profile as a whole."""
    start, stop = (whole(stat(space, f"profile_{what}_time")) for what in ("start", "stop"))
    version = stat(space, "jax_version") or stat(space, "jaxlib_version")
    cuda = whole(stat(space, "cuda_driver_version") or stat(space, "cuda_version"))
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


def _is_jax(space: Space) -> bool:
    """Tell JAX's profiles from TensorFlow's, which have the same form."""
    if stat(space, "jax_version") or stat(space, "jaxlib_version"):
        return True
    return any(name.startswith(_JAX_CALL) for p in space.planes for name in p.kinds.texts)


def diagnostics(space: Space) -> pl.DataFrame:
    """Give what the profiler complained about, without the names of machines."""
    said = [
        *(("error", text) for text in space.errors),
        *(("warning", text) for text in space.warnings),
    ]
    for plane in space.planes:
        dropped = whole(plane.stats.get("dropped_traces"))
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


def devices(space: Space) -> pl.DataFrame:
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
    clock_khz = whole(stats.get("clock_rate"))
    hbm = stats.get("peak_hbm_bw_gigabytes_per_second")
    bandwidth = whole(stats.get("memory_bandwidth"))
    if bandwidth is None and isinstance(hbm, int | float) and 0 < hbm < 10**6:
        bandwidth = int(hbm * 10**9)
    return {
        "device": number,
        "name": str(name),
        "compute_major": whole(stats.get("compute_cap_major")),
        "compute_minor": whole(stats.get("compute_cap_minor")),
        "sm_count": whole(stats.get("core_count")),
        "clock_hz": clock_khz * 1000 if clock_khz and clock_khz < 10**9 else None,
        "memory_bytes": whole(stats.get("memory_size")),
        "memory_bandwidth": bandwidth,
    }


def processes(process: int | None) -> pl.DataFrame:
    """List the process that was profiled, if it is known."""
    known = [] if process is None else [(process, process)]
    return pl.DataFrame(known, schema={"process": pl.Int64, "pid": pl.Int64}, orient="row")
