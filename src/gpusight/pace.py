"""The pace of a program: how long its steps take while no profiler records them.

`gpusight record` measures it and stores it with the capture, as the text of `Pace.to_text`:

- nsys and CUPTI: NVTX marks of the domain `gpusight` whose text is `MESSAGE` and the JSON
- torch.profiler: the key `METADATA_KEY` of the trace
- programs that nothing of ours runs in: a file next to the capture (`sidecar_path`)

Only the standard library is used: recorders inside a program import this.
"""

from __future__ import annotations

import contextlib
import json
import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


VERSION = 1
MESSAGE = "gpusight.pace "
"""How the NVTX mark begins; the JSON follows."""
METADATA_KEY = "gpusight_pace"
SIDECAR_SUFFIX = ".pace.json"
AS_RECORDED = (
    "times are as recorded, with the overhead of the profiler; the step time in the headline is "
    "without it"
)
"""Note of answers whose times are never corrected."""
WITHOUT_OVERHEAD = (
    "times of ranges and API calls are without the profiler's overhead; gpusight ranges and api "
    "show them as recorded"
)
"""Note of answers that have some of the same rows in corrected times."""
_SIDECAR_BYTES = 16_384
"""Read of a file next to a capture; ours have hundreds."""

GS_STEP, OPTIMIZER, MODULE, GRAPH = "gs.step", "optimizer", "module", "graph"
WHOLE_PROGRAM = "program"
"""What a step is: marked by `gs.step`, one step of the first torch optimizer, one call of the
outermost `nn.Module` on the GPU, one replay of a `torch.cuda.CUDAGraph` outside of such calls, or
the whole run. Recorded steps are the same unit."""
STEP_SOURCES = (GS_STEP, OPTIMIZER, MODULE, GRAPH, WHOLE_PROGRAM)
BEFORE, SECOND_RUN, GIVEN = "before", "second run", "given"
"""How it was measured: in the recorded run, before the recorded steps; in a run of its own without
a profiler; or the user gave it."""
HOW = (BEFORE, SECOND_RUN, GIVEN)
ESTIMATED = "estimated"
"""From what recording usually costs; never stored."""
_MAX_NUMBER = 2.0**62
"""Larger than any time or count in a capture."""


@dataclass(frozen=True)
class Pace:
    """Step time without a profiler. A step goes from its begin to the begin of the next one."""

    steps: int
    """How many were timed."""
    mean_ns: float
    """Of all of them, from an idle GPU to an idle GPU."""
    median_ns: float
    spread: float
    """Interquartile range of the step times, relative to their median."""
    how: str
    """`before`, `second run`, `given` or `estimated`."""
    step_source: str
    """One of `STEP_SOURCES`."""

    @classmethod
    def of(cls, total_ns: float, times_ns: Sequence[float], *, how: str, source: str) -> Pace:
        """Summarize steps: `total_ns` of them all, `times_ns` of each."""
        steps = len(times_ns)
        median_ns = statistics.median(times_ns)
        quartiles = statistics.quantiles(times_ns, n=4) if steps > 1 else [median_ns] * 3
        spread = (quartiles[2] - quartiles[0]) / median_ns if median_ns > 0 else 0.0
        return cls(steps, round(total_ns / steps), round(median_ns), round(spread, 4), how, source)

    @property
    def text(self) -> str:
        """Say how it is known, and from how many steps."""
        if self.how in {GIVEN, ESTIMATED}:
            return self.how
        when = "before the recording" if self.how == BEFORE else "in a second run"
        return f"measured {when}, {self.steps:,} steps"

    @property
    def option(self) -> str:
        """Return the option that gives it again; empty where it is known from the capture."""
        return f" --pace {self.mean_ns / 1e6:g}ms" if self.how == GIVEN else ""

    @classmethod
    def given(cls, step_ns: float) -> Pace:
        """Make one of a step time that the user measured."""
        return cls(0, step_ns, step_ns, 0.0, GIVEN, "")

    @classmethod
    def estimated(cls, step_ns: float) -> Pace:
        """Make one of a step time that nobody measured."""
        return cls(0, step_ns, step_ns, 0.0, ESTIMATED, "")

    def to_text(self) -> str:
        """Write it as one line of JSON."""
        return json.dumps(self.document(), separators=(",", ":"))

    def document(self) -> dict[str, Any]:
        """Return it as plain objects, for JSON."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_text(cls, text: str) -> Pace:
        """Read what `to_text` wrote; raises ValueError for anything else."""
        return cls.from_values(json.loads(text))

    @classmethod
    def from_values(cls, values: object) -> Pace:
        """Read the JSON object of `to_text`; raises ValueError for anything else."""
        if not isinstance(values, dict) or values.get("version") != VERSION:
            raise ValueError(f"not a pace of version {VERSION}")
        how, source = values.get("how"), values.get("step_source")
        if how not in HOW or source not in STEP_SOURCES:
            raise ValueError(f"unknown pace: how {how!r}, step_source {source!r}")
        steps, mean_ns = int(_number(values, "steps")), _number(values, "mean_ns")
        if not (steps and mean_ns):
            raise ValueError("a pace needs steps that took time")
        median_ns, spread = _number(values, "median_ns"), _number(values, "spread")
        return cls(steps, mean_ns, median_ns, spread, how, source)


def _number(values: dict[str, Any], name: str) -> float:
    number = values.get(name)
    if not isinstance(number, (int, float)) or not 0 <= number <= _MAX_NUMBER:
        raise ValueError(f"{name} of a pace is no number")
    return number


def sidecar_path(capture: Path) -> Path:
    """Return where the pace of a capture is, if it is not in the capture itself."""
    return capture.with_name(capture.name + SIDECAR_SUFFIX)


def read_sidecar(capture: Path) -> Pace | None:
    """Read what is next to a capture; None where there is nothing, or it is no pace."""
    path = sidecar_path(capture)
    # A name that is too long, or a damaged file: the capture is read without it.
    with contextlib.suppress(OSError, ValueError, RecursionError), path.open("rb") as file:
        return Pace.from_text(file.read(_SIDECAR_BYTES).decode())
    return None
