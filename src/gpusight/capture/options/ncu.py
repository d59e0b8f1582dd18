"""Options, sections and sets of `ncu` that gpusight uses.

Checked against the help of 2020.3.1, 2022.3.0, 2024.1.1 and 2025.3.1, and NVIDIA's release notes.
"""

from __future__ import annotations

from gpusight.capture.options.spelling import Option, Spelling, option
from gpusight.capture.versions import Version

_RENAMED = Version(2021, 1)

EXPORT = option("--export", short="-o")
OVERWRITE = option("--force-overwrite", short="-f")
CLOCKS = option("--clock-control")
PROCESSES = option("--target-processes")
SET = option("--set")
SECTION = Option((Spelling("--section"),), repeats=True)
SASS = option("--import-sass", since=Version(2025, 1))
KERNEL = Option(
    (
        Spelling("--kernel-name", since=_RENAMED),
        Spelling("--kernel-regex", until=_RENAMED),
    ),
    short="-k",
)
KERNEL_BASE = Option(
    (
        Spelling("--kernel-name-base", since=_RENAMED),
        Spelling("--kernel-regex-base", until=_RENAMED),
    )
)
SKIP = option("--launch-skip", short="-s")
COUNT = option("--launch-count", short="-c")
NVTX = option("--nvtx")
NVTX_INCLUDE = Option((Spelling("--nvtx-include"),), repeats=True)
NVTX_SCOPE = option("--nvtx-push-pop-scope", since=Version(2025, 1))
FROM_START = option("--profile-from-start")
KILL = option("--kill", since=Version(2020, 2))

EVERY = (
    EXPORT,
    OVERWRITE,
    CLOCKS,
    PROCESSES,
    SET,
    SECTION,
    SASS,
    KERNEL,
    KERNEL_BASE,
    SKIP,
    COUNT,
    NVTX,
    NVTX_INCLUDE,
    NVTX_SCOPE,
    FROM_START,
    KILL,
)

BASIC_SECTIONS = ("LaunchStats", "Occupancy", "SpeedOfLight")
"""Of the set that ncu takes by itself; that set is called `default`, later `basic`."""
RULE_SECTIONS = (
    *BASIC_SECTIONS,
    "ComputeWorkloadAnalysis",
    "InstructionStats",
    "MemoryWorkloadAnalysis",
    "MemoryWorkloadAnalysis_Tables",
    "SchedulerStats",
    "SourceCounters",
    "SpeedOfLight_RooflineChart",
    "WarpStateStats",
)
"""What our rules and the roofline ask for: a test compares it with the counters they name."""
ARITHMETIC_SECTIONS = (
    "SpeedOfLight_HierarchicalHalfRooflineChart",
    "SpeedOfLight_HierarchicalTensorRooflineChart",
)
"""Counters of FP16 and tensor core operations; not in the set `full` before 2025."""
HAS_ARITHMETIC = Version(2021, 3)
