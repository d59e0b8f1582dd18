"""Host time from what `perf script` prints: samples of native and Python functions."""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from gpusight.readers.stacks.imported_stacks import file_content, stack_tables
from gpusight.readers.tables import FrameSource, file_name, shown_file
from gpusight.trace.trace import Meta

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from gpusight.readers.stacks.imported_stacks import Frames, Stack
    from gpusight.trace.trace import TraceSource


_SAMPLE = re.compile(
    r"(?P<name>\S.{0,100}?)\s+(?:\d{1,10}/)?(?P<tid>\d{1,10})\s+(?:\[\d{1,5}\]\s+)?(?:\S{4,6}\s+)??"
    r"(?P<seconds>\d{1,9})\.(?P<fraction>\d{6,9}):\s+(?:(?P<period>\d{1,18})\s+)?"
    r"(?P<event>[\w/.,:=-]{1,100}):\s*"
)
"""The line before the frames of a sample: `python 4711 [003] 12.345678: 5000000 cpu-clock:`."""
_FRAME = re.compile(r"\s+[0-9a-f]{1,16} (?P<symbol>.+) \((?P<module>[^()]*)(?: \(deleted\))?\)\s*")
_PYTHON = re.compile(r"py::(?P<function>.+):(?P<file>[^:]+)")
"""How Python names its functions for perf (`python -X perf`)."""
_OFFSET = re.compile(r"\+0x[0-9a-f]+$")
_UNKNOWN, _INLINED = "[unknown]", "inlined"
_CLOCKS = ("cpu-clock", "task-clock")
"""Events whose period is a time in nanoseconds."""
_MAX_DEPTH = 500
_NOTE = "times are those of perf, not of a capture"


def is_perf_script(text: bytes) -> bool:
    """Whether a text begins as `perf script` writes it: a sample, then its frames."""
    lines = text.decode("utf-8", "replace").split("\n")
    content = [line[:1_000] for line in lines if line.strip() and not line.startswith("#")][:2]
    return (
        len(content) == 2
        and _SAMPLE.fullmatch(content[0]) is not None
        and _FRAME.fullmatch(content[1]) is not None
    )


def perf_source(path: Path) -> TraceSource:
    """Open what `perf script` printed."""
    return FrameSource(partial(_read, path))


class _Samples:
    """The samples of a text, in its order."""

    def __init__(self) -> None:
        self.frames: Frames = {}
        self.modules: dict[str, str] = {}
        self.threads: dict[str, int] = {}
        self.rows: list[tuple[int, int, int | None, Stack]] = []
        """Thread, time, time that it stands for, stack."""
        self.left_out = 0

    def add(self, head: re.Match[str], frames: list[str]) -> None:
        """Add a sample; the frames in the text are innermost first."""
        name = f"{head['name']} ({head['tid']})"
        thread = self.threads.setdefault(name, len(self.threads) + 1)
        time_ns = int(head["seconds"]) * 10**9 + int(head["fraction"].ljust(9, "0"))
        is_time = head["event"].startswith(_CLOCKS) and head["period"]
        stack, module = [], _UNKNOWN
        for line in reversed(frames[:_MAX_DEPTH]):
            match = _FRAME.fullmatch(line)
            if match is None:
                self.left_out += 1
                continue
            if match["module"] != _INLINED:  # else it is in the binary of the frame around it
                module = file_name(match["module"])
            name = self._frame(_OFFSET.sub("", match["symbol"]), module)
            stack += [name] if name else []
        period = int(head["period"]) if is_time else None
        self.rows.append((thread, time_ns, period, tuple(stack)))

    def _frame(self, symbol: str, module: str) -> str:
        """Return the name of a frame; empty for an address that nobody knows."""
        python = _PYTHON.fullmatch(symbol)
        if python is not None:
            self.frames[symbol] = (shown_file(python["file"]), None, python["function"])
            return symbol
        if symbol == _UNKNOWN and module == _UNKNOWN:
            return ""
        name = f"{symbol} [{module}]"
        self.frames[name] = (None, None, f"[{module}]" if symbol == _UNKNOWN else symbol)
        self.modules[name] = module
        return name

    def weights(self) -> list[float]:
        """Return the time of each sample: what perf reports, else the usual one between two."""
        times: dict[int, list[int]] = {}
        for thread, time_ns, _, _ in self.rows:
            times.setdefault(thread, []).append(time_ns)
        usual = {
            thread: median([after - at for at, after in pairwise(sorted(of))] or [0])
            for thread, of in times.items()
        }
        return [usual[thread] if ns is None else ns for thread, _, ns, _ in self.rows]


def _read(path: Path) -> tuple[Meta, dict[str, pl.DataFrame]]:
    samples = _Samples()
    head: re.Match[str] | None = None
    frames: list[str] = []
    for line in (*file_content(path).decode("utf-8", "replace").split("\n"), ""):
        if line.strip() and head is not None:
            frames.append(line[:4_000])
        elif line.strip() and not line.startswith("#"):
            head = _SAMPLE.fullmatch(line[:1_000])
            samples.left_out += head is None
        elif head is not None and not line.strip():
            samples.add(head, frames)
            head, frames = None, []
    left_out = samples.left_out
    warnings = (f"{left_out:,} lines are not those of perf script, left out",) if left_out else ()
    kept = [row for row in zip(samples.rows, samples.weights(), strict=True) if row[0][3]]
    first_ns = min((row[1] for row, _ in kept), default=0)
    stacks = [(thread, stack, weight) for (thread, _, _, stack), weight in kept]
    times = [row[1] - first_ns for row, _ in kept]
    tables = stack_tables(
        path, "perf", stacks, samples.frames, list(samples.threads), samples.modules, times
    )
    meta = Meta(path=str(path), source="perf", tool="perf", notes=(_NOTE,), warnings=warnings)
    return meta, tables
