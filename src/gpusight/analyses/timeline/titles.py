"""What to call GPUs, streams, processes and threads, as people know them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.devices import device_names
from gpusight.analyses.timeline.looks import one_line

if TYPE_CHECKING:
    from gpusight.model.trace import Trace

NO_THREAD = "thread not recorded"


class Titles:
    """The names that a capture gives to what it saw."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def gpu(self, device: int | None) -> str:
        """Name a GPU: `GPU 0 · NVIDIA H200`."""
        number = "GPU" if device is None else f"GPU {device}"
        name = None if device is None else self._gpus.get(device)
        return one_line(f"{number} · {name}") if name else number

    def process(self, process: int | None) -> str:
        """Name a process: `python3 (pid 4711)`."""
        pid, name = self._processes.get(process, (process, None))
        if pid is None or pid < 0:  # profilers file their own work under a process that is none
            return "Host"
        return one_line(f"{name} (pid {pid})") if name else f"Process {pid}"

    def thread(self, thread: int | None) -> str:
        """Name a thread: `python3 (4711)`."""
        tid, name = self._threads.get(thread, (thread, None))
        if tid is None or tid < 0:
            return NO_THREAD
        if not name:
            return f"Thread {tid}"
        return one_line(name if str(tid) in name else f"{name} ({tid})")

    def stream(self, process: int | None, stream: int | None) -> str:
        """Name a stream: `Stream 7`, with the name that the program gave it where it did."""
        if stream is None:
            return "No stream"
        name = self._streams.get((process, stream))
        return one_line(f"Stream {stream} · {name}") if name else f"Stream {stream}"

    @cached_property
    def _gpus(self) -> dict[int, str | None]:
        return device_names(self._trace)

    @cached_property
    def _processes(self) -> dict[int | None, tuple[int | None, str | None]]:
        frame = self._texts("processes", ["process", "pid", "name"])
        return {key: (pid, name) for key, pid, name in frame.iter_rows()}

    @cached_property
    def _threads(self) -> dict[int | None, tuple[int | None, str | None]]:
        frame = self._texts("threads", ["thread", "tid", "name"])
        return {key: (tid, name) for key, tid, name in frame.iter_rows()}

    @cached_property
    def _streams(self) -> dict[tuple[int | None, int], str]:
        frame = self._texts("streams", ["process", "stream", "name"]).filter(
            pl.col("name").str.len_chars() > 0
        )
        return {(process, stream): name for process, stream, name in frame.iter_rows()}

    def _texts(self, table: str, columns: list[str]) -> pl.DataFrame:
        return self._trace.table(table, columns).with_columns(pl.col("name").cast(pl.String))
