"""What `gpusight record` tells the recorder inside the program, through the environment."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields

from gpusight.errors import RecordError

VARIABLE = "GPUSIGHT_RECORD"
PROFILER_API = "profiler-api"
"""The recorder is another tool around us, which cudaProfilerStart and Stop switch on and off."""
TORCH = "torch"
CUPTI = "cupti"


@dataclass(frozen=True)
class Plan:
    """What to record in this process, and when."""

    recorder: str
    """`torch`, `cupti`, or `profiler-api` for nsys and ncu."""
    output: str
    """Where to, absolute, without the suffix; ranks and further processes add to the name."""
    first_step: int | None = None
    last_step: int | None = None
    range_name: str | None = None
    delay_s: float | None = None
    duration_s: float | None = None
    ranks: tuple[int, ...] | None = None
    """None: all."""
    memory: bool = False
    python_stacks: bool = False
    stop: bool = False
    overwrite: bool = False

    def to_text(self) -> str:
        """Write it for the environment."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Plan:
        """Read what `to_text` wrote; what this version does not know is left out."""
        known = {field.name for field in fields(cls)}
        told = {key: value for key, value in json.loads(text).items() if key in known}
        if told.get("ranks") is not None:
            told["ranks"] = tuple(told["ranks"])
        return cls(**told)


def current_plan() -> Plan | None:
    """Give the plan of this process, if `gpusight record` started it."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    try:
        return Plan.from_text(text)
    except (ValueError, TypeError, AttributeError) as error:  # not JSON, or not what we write
        raise RecordError(
            f"the variable {VARIABLE} holds no plan of gpusight record",
            hint=f"unset {VARIABLE}, unless gpusight record started this",
        ) from error
