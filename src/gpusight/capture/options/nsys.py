"""Options of `nsys profile` that gpusight uses.

Checked against the help of 2020.4.3, 2022.4.2, 2023.4.4 and 2025.3.1. Where an option came in
between, `since` is the earliest version that surely has it.
"""

from __future__ import annotations

from gpusight.capture.options.spelling import UNDATED, Option, Spelling, option
from gpusight.capture.versions import Version

TRACE = option("--trace", short="-t")
OSRT_THRESHOLD = option("--osrt-threshold")
OSRT_BACKTRACES = option("--osrt-backtrace-threshold")
SAMPLE = option("--sample", short="-s")
CONTEXT_SWITCHES = option("--cpuctxsw")
OUTPUT = option("--output", short="-o")
OVERWRITE = option("--force-overwrite", short="-f")
MEMORY = option("--cuda-memory-usage")
GRAPHS = option("--cuda-graph-trace", since=Version(2022, 2))
GPU_METRICS = Option(
    (
        Spelling("--gpu-metrics-devices", since=Version(2025, 1)),
        # Tools in between that have the newer one only take this as its abbreviation.
        Spelling("--gpu-metrics-device", since=Version(2021, 2)),
    )
)
PYTHON_STACKS = option("--python-backtrace", since=Version(2023, 4))
CUDA_STACKS = option("--cudabacktrace")
CAPTURE_RANGE = option("--capture-range", short="-c")
NVTX_CAPTURE = option("--nvtx-capture", short="-p")
RANGE_END = option("--capture-range-end", since=Version(2021, 3))
STOP_ON_RANGE_END = Option((Spelling("--stop-on-range-end", until=Version(2021, 3)),))
DELAY = option("--delay", short="-y")
DURATION = option("--duration", short="-d")
KILL = option("--kill")
DISCARD_ENVIRONMENT = option("--discard-environment", since=UNDATED)

EVERY = (
    TRACE,
    OSRT_THRESHOLD,
    OSRT_BACKTRACES,
    SAMPLE,
    CONTEXT_SWITCHES,
    OUTPUT,
    OVERWRITE,
    MEMORY,
    GRAPHS,
    GPU_METRICS,
    PYTHON_STACKS,
    CUDA_STACKS,
    CAPTURE_RANGE,
    NVTX_CAPTURE,
    RANGE_END,
    STOP_ON_RANGE_END,
    DELAY,
    DURATION,
    KILL,
    DISCARD_ENVIRONMENT,
)

TAKES_TENTHS = Version(2023, 4)
"""Of a second, for `--delay` and `--duration`, to which it rounds; 2022.4 refuses them."""
LONGEST_S = 1_000_000
"""More is refused as a duration, and as a delay taken for none; the bound lies below 3,000,000."""
GOES_ON_ALONE = Version(2021, 1)
"""With `--kill=none` nsys ends when the duration does, and leaves the program; 2020.4 waits."""
WRITES_NSYS_REP = Version(2021, 4)
"""Before, reports were called `.qdrep`."""
