"""Process and thread numbers, thread names and device names beside the rows they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.devices import device_names

if TYPE_CHECKING:
    from gpusight.model.trace import Trace


def add_owner(
    trace: Trace, frame: pl.DataFrame, pid: str = "PID", tid: str = "TID"
) -> pl.DataFrame:
    """Add the operating system's numbers of each row's `process` and `thread`."""
    processes = trace.table("processes", ["process", "pid"]).rename({"pid": pid})
    threads = trace.table("threads", ["thread", "tid"]).rename({"tid": tid})
    return _beside(_beside(frame, processes, "process"), threads, "thread")


def add_thread_name(trace: Trace, frame: pl.DataFrame, name: str) -> pl.DataFrame:
    """Add the name of each row's `thread`."""
    names = trace.table("threads", ["thread", "name"]).rename({"name": name})
    return _beside(frame, names.with_columns(pl.col(name).cast(pl.String)), "thread")


def add_device_label(trace: Trace, frame: pl.DataFrame, label: str) -> pl.DataFrame:
    """Add name and number of each row's `device`, such as `NVIDIA H200 (0)`."""
    names = {d: f"{name or 'GPU'} ({d})" for d, name in device_names(trace).items()}
    labels = pl.DataFrame(
        {"device": list(names), label: list(names.values())},
        schema={"device": pl.Int64, label: pl.String},
    )
    return _beside(frame, labels, "device")


def _beside(frame: pl.DataFrame, other: pl.DataFrame, key: str) -> pl.DataFrame:
    return frame.join(other.unique(key), on=key, how="left", maintain_order="left")
