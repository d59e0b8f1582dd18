"""Labels that follow a pattern: which metric they stand for, without a table."""

from __future__ import annotations

import re

_PEAK = ".avg.pct_of_peak_sustained_"
_BREAKDOWN = re.compile(r"(?:SOL )?(\w+): (\w[\w ]*)", re.IGNORECASE)
_BREAKDOWN_UNITS = {
    **{unit: unit for unit in ("dram", "fbpa", "gpu", "idc", "lrc", "sm", "smsp", "syslts")},
    "l1": "l1tex",
    "l2": "lts",
}

_ARITHMETIC = re.compile(
    r"(Theoretical )?Predicated-On (\w+) (Thread Instructions Executed|Operations)( Per Cycle)?",
    re.IGNORECASE,
)
_STALL = re.compile(r"(?:Stall )?(Selected|(?<=Stall )[\w ]+)", re.IGNORECASE)
_SAMPLED_STALL = re.compile(r"stall_(\w+?)( \(Not Issued\))?", re.IGNORECASE)
_SAMPLED_STALLS = {
    "dispatch": "dispatch_stall",
    "gmma": "gmma",
    "imc": "imc_miss",
    "lg": "lg_throttle",
    "long_sb": "long_scoreboard",
    "math": "math_pipe_throttle",
    "mio": "mio_throttle",
    "no_inst": "no_instructions",
    "short_sb": "short_scoreboard",
    "sleep": "sleeping",
    "tex": "tex_throttle",
}

_PIPE_CYCLES = {
    "alu": "pipe_alu",
    "fma": "pipe_fma",
    "fp64": "pipe_fp64",
    "shared (fp16+tensor)": "pipe_shared",
    "shared (fp64+fp16+tensor)": "pipe_shared",
    "shared (fp64+tensor)": "pipe_shared",
    "tc": "pipe_tc",
    "tensor (all)": "pipe_tensor",
    "tensor (dp)": "pipe_tensor_op_dmma",
    "tensor (fp)": "pipe_tensor_op_hmma",
    "tensor (int)": "pipe_tensor_op_imma",
    "tma": "pipe_tma",
    "tmem (tensor memory)": "mem_tensor",
}
_PIPE_INSTRUCTIONS = {
    **{p: p for p in ("adu", "alu", "cbu", "fma", "fp16", "fp64", "lsu", "tc", "tex")},
    **{p: p for p in ("tma", "tmem", "uniform", "xu")},
    "fma (fp16)": "fma_type_fp16",
    "fp64 (dmma)": "fp64_op_dmma",
    "fp64 (fp64)": "fp64_op_fp64",
    "tensor (dp)": "tensor_op_dmma",
    "tensor (fp)": "tensor_op_hmma",
    "tensor (int)": "tensor_op_imma",
    "tensor (warp group)": "tensor_op_gmma",
    "workid/clc": "workid",
}
_CYCLES_IN_2021 = ("alu", "fma")
"""Pipes whose cycles, not instructions, the one chart of 2020 and 2021 shows."""

_DISTRIBUTED = {
    **{f"{unit} active cycles": f"{unit}__cycles_active" for unit in ("dram", "sm", "smsp")},
    "l1 active cycles": "l1tex__cycles_active",
    "l2 active cycles": "lts__cycles_active",
    "mc channel active cycles": "mcc__cycles_active",
    **{
        f"{name} requests{ending}": f"gr__workids_{word}"
        for name in ("workid", "workid/clc")
        for ending, word in (
            ("", "requested"),
            (" granted", "granted"),
            (" granted as ctas", "granted_as_ctas"),
        )
    },
}
_ROLLUPS = ("avg", "max", "min", "sum")


def breakdown(label: str) -> str | None:
    """Give the metric of `L1: Data Bank Reads`, a part of a throughput."""
    found = _BREAKDOWN.fullmatch(label)
    unit = _BREAKDOWN_UNITS.get(found[1].lower()) if found else None
    if found is None or unit is None:
        return None
    counter = _snake(found[2])
    return f"{'fbpa' if counter == 'dram_sectors' else unit}__{counter}{_PEAK}elapsed"


def arithmetic(label: str) -> str | None:
    """Give the metric of `Predicated-On FFMA Operations Per Cycle`.

    Operations of half precision are left out: some versions count two and others four of them for
    an instruction under one label.
    """
    found = _ARITHMETIC.fullmatch(label)
    if found is None:
        return None
    unit = "sm" if found[1] else "smsp"
    counter = f"{unit}__sass_thread_inst_executed_op_{found[2].lower()}_pred_on"
    if found[3].lower() == "operations":
        return None if found[2].lower().startswith("h") else f"derived__{counter}_x2"
    return f"{counter}.sum.{'peak_sustained' if found[1] else 'per_cycle_elapsed'}"


def stall(label: str) -> str | None:
    """Give the metric of `Stall Long Scoreboard`, cycles that a warp waits for a reason."""
    found = _STALL.fullmatch(label)
    if found is None:
        return None
    return f"smsp__average_warps_issue_stalled_{_snake(found[1])}_per_issue_active.ratio"


def sampled_stall(label: str) -> str | None:
    """Give the metric of `stall_long_sb (Not Issued)`, samples of warps that wait for a reason."""
    found = _SAMPLED_STALL.fullmatch(label)
    if found is None:
        return None
    reason = found[1].lower()
    ending = "_not_issued" if found[2] else ""
    return f"smsp__pcsamp_warps_issue_stalled_{_SAMPLED_STALLS.get(reason, reason)}{ending}"


def pipe(label: str, item: str, compute: int, *, is_recent: bool) -> str | None:
    """Give the metric of `ALU` in a chart of pipes; None where two charts may be meant."""
    name, chart = label.lower(), item.lower()
    by_cycles, by_instructions = name in _PIPE_CYCLES, name in _PIPE_INSTRUCTIONS
    if "instructions" in chart:
        by_cycles = False
    elif "cycles" in chart:
        by_instructions = False
    elif chart and by_cycles and by_instructions:
        by_cycles = name in _CYCLES_IN_2021
        by_instructions = not by_cycles
    if by_cycles == by_instructions:
        return None
    is_recent = is_recent or "elapsed" in chart or " over " in chart
    counter = (
        f"{_of_gpu(_PIPE_CYCLES[name], compute)}_cycles_active"
        if by_cycles
        else f"inst_executed_pipe_{_of_gpu(_PIPE_INSTRUCTIONS[name], compute)}"
    )
    version = "_v2" if compute == 89 and is_recent and "tensor" in name else ""
    return f"sm__{counter}{version}{_PEAK}{'elapsed' if 'elapsed' in chart else 'active'}"


def distributed(label: str, nth: int) -> str | None:
    """Give the metric of the nth of four rows of one label: average, largest, smallest, sum."""
    counter = _DISTRIBUTED.get(label.lower())
    return f"{counter}.{_ROLLUPS[nth]}" if counter and nth < len(_ROLLUPS) else None


def _of_gpu(pipe_name: str, compute: int) -> str:
    """Name a part of the tensor pipe as the counters of Blackwell do."""
    return pipe_name.replace("tensor_op_", "tensor_subpipe_") if compute >= 100 else pipe_name


def _snake(words: str) -> str:
    return "_".join(words.lower().split())
