"""What a recording left on disk, and why there is nothing where that is so."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.capture.doctor.machine import ThisMachine
from gpusight.capture.doctor.permissions import Counters, counters
from gpusight.capture.launch import SIGNALLED
from gpusight.capture.names import family
from gpusight.capture.request import Request, Tool

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpusight.capture.launch import Ended


@dataclass(frozen=True)
class Snapshot:
    """The captures of a name at some moment."""

    base: Path
    suffix: str
    states: dict[Path, tuple[int, int]]

    @classmethod
    def take(cls, base: Path, suffix: str) -> Snapshot:
        """Look now."""
        return cls(base, suffix, _states(base, suffix))

    def written_since(self) -> list[Path]:
        """List the captures that were written since, ranks in order; empty files are none."""
        now = _states(self.base, self.suffix)
        return [p for p, state in now.items() if state != self.states.get(p) and state[1] > 0]


def _states(base: Path, suffix: str) -> dict[Path, tuple[int, int]]:
    found = {}
    for path in family(base, suffix):
        with contextlib.suppress(OSError):  # a link that leads nowhere is no capture
            status = path.stat()
            found[path] = (status.st_mtime_ns, status.st_size)
    return found


def why_nothing(
    request: Request,
    tool: Tool,
    base: Path,
    ended: Ended,
    damaged: Mapping[Path, str] | None = None,
) -> tuple[str, str]:
    """Say why a run left no capture, as far as that can be told, and what to do."""
    for path, fault in (damaged or {}).items():
        return (
            f"{path} was written, but is not a capture ({fault})",
            "messages above say why, if any; is the disk full?",
        )
    stream = base.with_name(base.name + ".qdstrm")
    if tool is Tool.NSYS and stream.exists():
        return (
            f"nsys left {stream} unfinished: its importer did not start",
            "see what it lacks: gpusight doctor",
        )
    never_came = _never_came(request, ended)
    if never_came is not None and ended.code != 0:
        return f"{never_came[0]}; it ended with exit code {ended.code}", never_came[1]
    if never_came is not None:
        return never_came
    if ended.code != 0:
        return _failed(tool, ended)
    if tool is Tool.NCU and counters(ThisMachine()) is Counters.CLOSED:
        return (
            "this user may not read the GPU's counters (ERR_NVGPUCTRPERM)",
            "see how to allow it: gpusight doctor",
        )
    return _MEANINGS[tool]


def _failed(tool: Tool, ended: Ended) -> tuple[str, str]:
    """Say that it failed; whether nsys or ncu refused to start the program is not known."""
    if ended.signalled or ended.code - SIGNALLED in set(signal.Signals):
        return f"the program was stopped (exit code {ended.code})", ""
    if tool in (Tool.NSYS, Tool.NCU):
        return (
            f"{tool.value} or the program failed with exit code {ended.code}",
            "messages above say why; or run the program alone",
        )
    return f"the program ended with exit code {ended.code}", "run it alone to see why"


def _never_came(request: Request, ended: Ended) -> tuple[str, str] | None:
    """Say what was waited for; None where recording was to begin at once."""
    if request.steps is not None:
        told = f"no recording came of step {request.steps.first}: the program told fewer or none"
        return (
            f"{told}, or recording could not be switched on (see above)",
            "steps are what gs.step() tells, else those of the first torch optimizer",
        )
    if request.range_name is not None:
        return (
            f"the program opened no range {request.range_name}",
            "record without --range, then list the names: gpusight ranges FILE",
        )
    if request.delay_s is not None and ended.seconds <= request.delay_s:
        return (
            f"the program took {ended.seconds:.1f} s, less than --delay {request.delay_s:g}",
            "give a shorter --delay",
        )
    return None


_MEANINGS = {
    Tool.NSYS: ("nsys wrote no report", "its own messages above say why; or: gpusight doctor"),
    Tool.NCU: (
        "Nsight Compute met no kernel to measure",
        "check --kernel, --launch-skip, and that the program uses the GPU",
    ),
    Tool.TORCH: (
        "no Python process below left a capture",
        "messages above say why, if any; it must use torch, and not end by os._exit or SIGKILL",
    ),
    Tool.CUPTI: (
        "no Python process below left a capture",
        "messages above say why, if any; it must use CUDA, and not end by os._exit or SIGKILL",
    ),
}
"""What it means when everything went well and still there is no capture."""
