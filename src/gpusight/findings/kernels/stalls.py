"""The reasons for which a warp waits: what each means, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stall:
    """One reason."""

    what: str
    """What warps wait for, as the end of a sentence."""
    fix: str


STALLS: dict[str, Stall] = {
    "long_scoreboard": Stall(
        "data from global or local memory",
        "Have more loads under way: issue several independent loads before the first use "
        "(unrolling, 16-byte vector loads, cp.async or TMA into shared memory), or keep what is "
        "read again in shared memory or registers.",
    ),
    "short_scoreboard": Stall(
        "shared memory or special functions",
        "Read from shared memory earlier than the value is needed, with wider loads; replace slow "
        "functions (division, sin, exp) by fast ones (__fdividef, __sinf, __expf) where the "
        "precision allows.",
    ),
    "barrier": Stall(
        "the other warps of their block, at a barrier",
        "Let warps reach __syncthreads() together: even out the work between barriers, use smaller "
        "blocks (several for each SM), or __syncwarp() where a warp is enough.",
    ),
    "wait": Stall(
        "the fixed latency of their own last instruction",
        "Give each thread independent work to interleave: several accumulators, unrolled loops.",
    ),
    "math_pipe_throttle": Stall(
        "an arithmetic pipe that is busy",
        "Use a mix of pipes, or fewer instructions on the busy one (FP32 for FP64, tensor cores, "
        "strength reduction).",
    ),
    "mio_throttle": Stall(
        "the queue of shared memory and special functions",
        "Issue fewer and wider shared-memory instructions, and fewer special functions.",
    ),
    "lg_throttle": Stall(
        "the queue of global and local memory",
        "Issue fewer and wider loads and stores: float4 for four floats, no spills.",
    ),
    "tex_throttle": Stall(
        "the queue of the texture unit",
        "Issue fewer texture or surface accesses; read through ordinary loads.",
    ),
    "drain": Stall(
        "their last stores, before they can end",
        "Write with whole, aligned sectors; let each block do more, so that fewer blocks end.",
    ),
    "membar": Stall(
        "a memory fence",
        "Use the narrowest fence that is right (block rather than device or system), less often.",
    ),
    "no_instruction": Stall(
        "instructions, which are not in the instruction cache",
        "Make the code smaller: less unrolling, fewer branches that jump far.",
    ),
    "imc_miss": Stall(
        "constants, which are not in the constant cache",
        "Read values that differ between threads through ordinary loads, not from __constant__.",
    ),
    "branch_resolving": Stall(
        "the target of a branch",
        "Have fewer branches in the inner loop: unroll it, use conditional assignments.",
    ),
    "dispatch_stall": Stall("the dispatcher", "Rarely in the way: look at the next reason."),
    "sleeping": Stall(
        "the end of their own __nanosleep",
        "Sleep for a shorter time, or wait on a barrier instead.",
    ),
    "gmma": Stall(
        "the tensor cores to finish a warp-group product",
        "Have more products under way: deeper pipelines, larger tiles.",
    ),
    "warpgroup_arrive": Stall(
        "their warp group", "Have more products under way: deeper pipelines, larger tiles."
    ),
    "misc": Stall("something else", "Look at the instructions in the source view."),
}
MEMORY_WAITS = ("long_scoreboard", "lg_throttle", "drain", "membar")
"""Waits for global and local memory."""
SHARED_WAITS = ("short_scoreboard", "mio_throttle")
"""Waits for shared memory, and for what shares its queue."""
THROTTLES = ("math_pipe_throttle", "mio_throttle", "lg_throttle", "tex_throttle")
"""Waits that more warps do not hide: a queue or a pipe is full."""
