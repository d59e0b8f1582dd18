"""Tables of launches that were measured with hardware counters, and of what was measured."""

from __future__ import annotations

from gpusight.model.tables.columns import (
    PROCESS,
    THREAD,
    Column,
    Kind,
    Table,
    int_column,
    name_column,
    real_column,
)

BETWEEN_STACKS = "; "
"""Stands between the ranges of several domains in `profiles.ranges`."""
LAUNCH = int_column("launch", "Key into `profiles`", required=True)
METRIC = name_column(
    "metric", "What was measured, as today's Nsight Compute names it", required=True
)
_VALUE = real_column("value", "What it came to, in base units; null when it is a text")
_TEXT = Column("text", Kind.TEXT, "What it came to, where that is a text")

PROFILES = Table(
    "profiles",
    "A launch that was measured with hardware counters, alone and perhaps several times over",
    (
        int_column("launch", "Key: the profiler's number of the launch, from 0", required=True),
        name_column("kind", "`kernel`, `range`, `graph` or `command list`", required=True),
        name_column("name", "Kernel name with template arguments, demangled", required=True),
        name_column(
            "base_name", "Function name without namespace, template arguments or parameters"
        ),
        name_column("mangled_name", "Name as the compiler wrote it"),
        int_column("device", "Key into `devices`"),
        int_column("context", "CUDA context"),
        int_column("stream", "CUDA stream"),
        PROCESS,
        THREAD,
        int_column("grid_x", "Blocks in x"),
        int_column("grid_y", "Blocks in y"),
        int_column("grid_z", "Blocks in z"),
        int_column("block_x", "Threads a block in x"),
        int_column("block_y", "Threads a block in y"),
        int_column("block_z", "Threads a block in z"),
        real_column("duration_ns", "Time that the GPU needed for it", "ns"),
        int_column("compute_major", "Compute capability of its GPU, major"),
        int_column("compute_minor", "Compute capability of its GPU, minor"),
        Column(
            "ranges",
            Kind.TEXT,
            "NVTX ranges open at the launch, outermost first, as `domain:outer/inner`; "
            "the default domain has no name",
        ),
        int_column("binary", "Key into `source_files` and `code_lines`: the code that it ran"),
        int_column(
            "address",
            "Where that code lay: `counter_instances.instance` of an instruction minus "
            "this is its `code_lines.offset`",
        ),
    ),
)

COUNTERS = Table(
    "counters",
    "A value that was measured for one launch, or known about it",
    (
        LAUNCH,
        METRIC,
        _VALUE,
        _TEXT,
        name_column("unit", "Unit of the value: `byte`, `ns`, `%`, `inst/cycle`, …"),
        name_column("label", "What the file calls the metric, where that is something else"),
        int_column("instances", "Parts of the value in `counter_instances`; null for none"),
    ),
)

COUNTER_INSTANCES = Table(
    "counter_instances",
    "One part of a counter: of an instruction, a unit, a moment or a kind of operation",
    (
        LAUNCH,
        METRIC,
        int_column(
            "instance",
            "What it is a part of: an instruction's address, a moment in nanoseconds, a number",
        ),
        name_column("key", "The same, where the profiler names it by a text"),
        _VALUE,
        _TEXT,
    ),
)

RULE_RESULTS = Table(
    "rule_results",
    "What the profiler's own rules said of a launch",
    (
        LAUNCH,
        name_column("rule", "The rule's identifier, such as `SOLBottleneck`", required=True),
        name_column("title", "The rule's name for people"),
        name_column("section", "Section of the report that it stands in"),
        name_column("kind", "`ok`, `information`, `warning`, `error` or `optimization`"),
        Column("message", Kind.TEXT, "What it said, in the profiler's words"),
        name_column("speedup_kind", "`global` of the whole launch, or `local` of the part meant"),
        real_column("speedup_percent", "Gain that the profiler estimates", "%"),
    ),
)

SOURCE_FILES = Table(
    "source_files",
    "A source file that the capture holds, or names",
    (
        int_column("binary", "Which code was compiled from it", required=True),
        Column("path", Kind.TEXT, "Where it lay when compiled, without the user's home"),
        Column("content", Kind.TEXT, "Its text; null when the capture only names it"),
    ),
)

CODE_LINES = Table(
    "code_lines",
    "Which source line a machine instruction was compiled from",
    (
        int_column("binary", "Which code it is part of", required=True),
        name_column("function", "Kernel or device function, as the compiler wrote it"),
        int_column("offset", "Instruction, in bytes from the function's start", required=True),
        Column("path", Kind.TEXT, "Source file, without the user's home"),
        int_column("line", "Line in it, from 1"),
    ),
)
