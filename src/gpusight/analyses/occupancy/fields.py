"""What the rows and facts of `occupancy` mean."""

from __future__ import annotations

from gpusight.result import Fact, Field, Fmt

FACTS = tuple(
    Fact(key, label, None, fmt, meaning)
    for key, label, fmt, meaning in (
        ("gpus", "GPU", Fmt.TEXT, "GPUs that the kernels ran on, or the one asked about"),
        ("launches", "Launches", Fmt.COUNT, "Launches looked at"),
        ("total_ns", "GPU time", Fmt.TIME, "Sum of their durations"),
        (
            "theoretical",
            "Theoretical occupancy",
            Fmt.SHARE,
            "Warps that fit an SM at once, of those that it can hold; by time",
        ),
        (
            "achieved",
            "Achieved occupancy",
            Fmt.SHARE,
            "Warps that an active SM did hold, of those that it can hold; by time",
        ),
    )
)
"""The facts at the top, without their values; those that are not known are left out."""

FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of the time of all launches"),
    Field("theoretical", "Theory", Fmt.SHARE, "Warps that fit an SM, of those that it can hold"),
    Field("achieved", "Achieved", Fmt.SHARE, "Warps that an active SM held, by time"),
    Field("limiters", "Limited by", Fmt.TEXT, "What keeps the next block off: all of these"),
    Field("short_name", "Kernel", Fmt.NAME, "Readable label made from the name"),
    Field("blocks", "Blocks", Fmt.COUNT, "Blocks that fit an SM"),
    Field("waves", "Waves", Fmt.REAL, "Times that the grid fills the GPU, by time"),
    Field("calls", "Calls", Fmt.COUNT, "Launches of the kernel in this shape"),
    Field("total_ns", "Total", Fmt.TIME, "Sum of the launches' durations", shown=False),
    Field("remark", "Remark", Fmt.NAME, "Whether it matters, and why less was achieved", False),
    Field("change", "Change", Fmt.TEXT, "Most effective change that would raise it", shown=False),
    Field("block_threads", "Block", Fmt.COUNT, "Threads of a block", shown=False),
    Field("registers", "Regs", Fmt.COUNT, "Registers of each thread", shown=False),
    Field("shared_bytes", "Shared", Fmt.BYTES, "Shared memory of a block, as asked for", False),
    Field("static_shared_bytes", "Static", Fmt.BYTES, "Fixed at compile time", shown=False),
    Field("dynamic_shared_bytes", "Dynamic", Fmt.BYTES, "Asked for at launch", shown=False),
    Field("shared_config_bytes", "Carve-out", Fmt.BYTES, "Set aside on each SM", shown=False),
    Field("barriers", "Barriers", Fmt.COUNT, "Barriers that the code uses", shown=False),
    Field("cluster_blocks", "Cluster", Fmt.COUNT, "Blocks of a cluster", shown=False),
    Field("warps", "Warps/SM", Fmt.COUNT, "Warps of these blocks", shown=False),
    *(
        Field(f"limit_{name}", label, Fmt.COUNT, f"Blocks that {what} alone would allow", False)
        for name, label, what in (
            ("warps", "By warps", "the warps of an SM"),
            ("blocks", "By blocks", "the blocks of an SM"),
            ("registers", "By regs", "registers"),
            ("shared_memory", "By shared", "shared memory"),
            ("barriers", "By barriers", "barriers"),
        )
    ),
    Field("reported", "Reported", Fmt.SHARE, "Theoretical, as the profiler says", shown=False),
    Field("change_theoretical", "After it", Fmt.SHARE, "Theoretical after the change", False),
    Field("block_for_more", "Block for more", Fmt.COUNT, "Nearest better block size", False),
    Field("registers_for_more", "Regs for more", Fmt.COUNT, "Registers that admit more", False),
    Field("shared_for_more_bytes", "Shared for more", Fmt.BYTES, "The same, a block", shown=False),
    Field("sm_share", "SM", Fmt.SHARE, "How busy the SMs were, by time", shown=False),
    Field("memory_share", "Memory", Fmt.SHARE, "How busy the memory system was", shown=False),
    Field("device", "GPU", Fmt.ID, "GPU that it ran on", shown=False),
    Field("name", "Full name", Fmt.NAME, "Name with template arguments", shown=False),
)
LIMITER_FIELDS = (
    Field("limiters", "Limited by", Fmt.TEXT, "What keeps the next block off an SM"),
    Field("share", "Share", Fmt.SHARE, "Part of the time of all launches"),
    Field("total_ns", "Total", Fmt.TIME, "Sum of the launches' durations"),
    Field("calls", "Calls", Fmt.COUNT, "Launches"),
    Field("theoretical", "Theory", Fmt.SHARE, "Theoretical occupancy, by time"),
    Field("achieved", "Achieved", Fmt.SHARE, "Achieved occupancy, by time"),
)
ADVICE_FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of the time of all launches"),
    Field("theoretical", "Theory", Fmt.SHARE, "Theoretical occupancy as it is"),
    Field("after", "After", Fmt.SHARE, "Theoretical occupancy after the change"),
    Field("advice", "Change, or what else matters", Fmt.TEXT, "What to change, or to know"),
    Field("short_name", "Kernel", Fmt.NAME, "Readable label made from the name"),
    Field("kind", "Kind", Fmt.TEXT, "`change` or `remark`", shown=False),
    Field("name", "Full name", Fmt.NAME, "Name with template arguments", shown=False),
)
