"""What `gpusight utilisation` gives: its facts, and the fields of its tables."""

from __future__ import annotations

from gpusight.result import Field, Fmt

SHARES = (
    Field("busy_share", "Busy", Fmt.SHARE, "Part in which anything ran"),
    Field("compute_share", "Computing", Fmt.SHARE, "Part in which kernels ran"),
    Field("copy_share", "Copying", Fmt.SHARE, "Part in which only copies or fills ran"),
    Field("communication_share", "Comm", Fmt.SHARE, "Part in which only communication ran"),
    Field("idle_share", "Idle", Fmt.SHARE, "Part in which nothing ran"),
)
BIN_FIELDS = (
    Field("device", "GPU", Fmt.ID, "Which GPU"),
    Field("start_ns", "Time", Fmt.TIME, "When the bin begins"),
    Field("duration_ns", "Length", Fmt.TIME, "How long it is", shown=False),
    *SHARES,
    Field("kernels", "Kernels", Fmt.COUNT, "Kernels that began in it"),
    Field("compute_ns", "Compute time", Fmt.TIME, "Time in which kernels ran", shown=False),
    Field("copy_ns", "Copy time", Fmt.TIME, "Time in which only copies or fills ran", shown=False),
    Field(
        "communication_ns", "Comm time", Fmt.TIME, "Time of nothing but communication", shown=False
    ),
    Field("idle_ns", "Idle time", Fmt.TIME, "Time in which nothing ran", shown=False),
)
GPU_FIELDS = (
    Field("device", "GPU", Fmt.ID, "Which GPU"),
    Field("name", "Name", Fmt.NAME, "What it is called"),
    *SHARES,
    Field("kernels", "Kernels", Fmt.COUNT, "Kernels that began"),
    Field("longest_idle_ns", "Longest idle", Fmt.TIME, "Longest stretch in which nothing ran"),
    Field("longest_idle_at_ns", "At", Fmt.TIME, "When that began"),
)
STEP_FIELDS = (
    Field("number", "Step", Fmt.ID, "Number of the step"),
    Field("start_ns", "Began", Fmt.TIME, "When it began on the host"),
    Field("duration_ns", "Took", Fmt.TIME, "How long it took on the host"),
    Field("busy_share", "Busy", Fmt.SHARE, "Part of it in which anything ran, mean of the GPUs"),
    Field("name", "Name", Fmt.NAME, "Name of the range that is the step", shown=False),
)
FACTS = (
    Field("window_ns", "Window", Fmt.TIME, "Time that is looked at"),
    Field("steps", "Steps", Fmt.COUNT, "Steps inside"),
    Field("gpus", "GPU", Fmt.TEXT, "GPUs that did work"),
    Field("busy_share", "GPU busy", Fmt.SHARE, "Part in which anything ran, mean of the GPUs"),
    *SHARES[1:],
    Field("busiest", "Busiest", Fmt.TEXT, "The busiest of several GPUs"),
    Field("least_busy", "Least busy", Fmt.TEXT, "The least busy of several GPUs"),
    Field("longest_idle_ns", "Longest idle", Fmt.TIME, "Longest time in which a GPU did nothing"),
    Field("longest_idle_at_ns", "That began at", Fmt.TIME, "When that began"),
    Field("longest_idle_device", "On GPU", Fmt.ID, "Which of several GPUs that was"),
    Field("bin_ns", "A bin", Fmt.TIME, "How long a bin is, about"),
)
