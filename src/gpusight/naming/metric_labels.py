"""The metric that a label in a report's section stands for: by table, pattern, variant."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from gpusight.naming.metric_label_table import LABELS, ROOFLINE_SECTIONS, SECTION_NAMES
from gpusight.naming.metric_names import canonical, scale_of, unit_of

if TYPE_CHECKING:
    from collections.abc import Iterable


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
SAMPLED_STALLS = {
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
"""Stall reasons that labels abbreviate."""

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
    """Return the metric of `L1: Data Bank Reads`, a part of a throughput."""
    match = _BREAKDOWN.fullmatch(label)
    unit = _BREAKDOWN_UNITS.get(match[1].lower()) if match else None
    if match is None or unit is None:
        return None
    counter = _snake(match[2])
    return f"{'fbpa' if counter == 'dram_sectors' else unit}__{counter}{_PEAK}elapsed"


def arithmetic(label: str) -> str | None:
    """Return the metric of `Predicated-On FFMA Operations Per Cycle`.

    Operations of half precision are left out: some versions count two and others four of them for
    an instruction under one label.
    """
    match = _ARITHMETIC.fullmatch(label)
    if match is None:
        return None
    unit = "sm" if match[1] else "smsp"
    counter = f"{unit}__sass_thread_inst_executed_op_{match[2].lower()}_pred_on"
    if match[3].lower() == "operations":
        return None if match[2].lower().startswith("h") else f"derived__{counter}_x2"
    return f"{counter}.sum.{'peak_sustained' if match[1] else 'per_cycle_elapsed'}"


def stall(label: str) -> str | None:
    """Return the metric of `Stall Long Scoreboard`, cycles that a warp is stalled for a reason."""
    match = _STALL.fullmatch(label)
    if match is None:
        return None
    return f"smsp__average_warps_issue_stalled_{_snake(match[1])}_per_issue_active.ratio"


def sampled_stall(label: str) -> str | None:
    """Return the metric of `stall_long_sb (Not Issued)`, samples of stalled warps."""
    match = _SAMPLED_STALL.fullmatch(label)
    if match is None:
        return None
    reason = match[1].lower()
    suffix = "_not_issued" if match[2] else ""
    return f"smsp__pcsamp_warps_issue_stalled_{SAMPLED_STALLS.get(reason, reason)}{suffix}"


def pipe(label: str, item: str, compute: int, *, is_recent: bool) -> str | None:
    """Return the metric of `ALU` in a chart of pipes; None where two charts may be meant."""
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
        f"{_PIPE_CYCLES[name]}_cycles_active"
        if by_cycles
        else f"inst_executed_pipe_{_PIPE_INSTRUCTIONS[name]}"
    )
    if compute >= 100:  # Blackwell
        counter = counter.replace("tensor_op_", "tensor_subpipe_")
    version = "_v2" if compute == 89 and is_recent and "tensor" in name else ""
    return f"sm__{counter}{version}{_PEAK}{'elapsed' if 'elapsed' in chart else 'active'}"


def distributed(label: str, nth: int) -> str | None:
    """Return the metric of the nth of four rows of one label: average, largest, smallest, sum."""
    counter = _DISTRIBUTED.get(label.lower())
    return f"{counter}.{_ROLLUPS[nth]}" if counter and nth < len(_ROLLUPS) else None


def _snake(words: str) -> str:
    return "_".join(words.lower().split())


class LabelVariant(NamedTuple):
    """Another meaning of a label, and the conditions for it."""

    metric: str
    unit: str = ""
    """Base unit of the value."""
    item: str = ""
    """Word in the name of the label's chart or table."""
    compute: tuple[int, int] = (0, 0)
    """First and last compute capability of the GPU, times ten."""
    is_recent: bool = False
    """The report is of 2025.3 or later."""


RECENT = frozenset({"Local Memory Spilling Requests", "L2 Persisting Size"})
"""Labels that came with 2025.3, when other labels changed their meaning."""

_HOPPER_UP = (90, 999)
_VOLTA_DOWN = (1, 72)
_PASCAL_DOWN = (1, 69)


_WRITEBACK_BYTES = "derived__l1tex__lsu_writeback_bytes"
_ROOFLINE_VARIANTS = {
    "SM Frequency": (LabelVariant("smsp__cycles_elapsed.avg.per_second", item="achieved"),),
    **{
        label: (
            LabelVariant(f"{_WRITEBACK_BYTES}.sum.{rollup}", compute=_VOLTA_DOWN),
            LabelVariant(f"{_WRITEBACK_BYTES}_mem_lgds.sum.{rollup}", compute=_HOPPER_UP),
        )
        for label, rollup in (
            ("L1 Cache Bandwidth (Global/Local)", "per_second"),
            ("Theoretical L1/TEX Cache Bytes Accessible", "peak_sustained"),
        )
    },
    "L1/TEX active local/global writeback cycles per second": (
        LabelVariant("l1tex__lsu_writeback_active_mem_lgds.sum.per_second", compute=_HOPPER_UP),
    ),
    "L1/TEX peak local/global writeback cycles": (
        LabelVariant("l1tex__lsu_writeback_active_mem_lgds.sum.peak_sustained", compute=_HOPPER_UP),
    ),
}
_ILC_SUCCESS = "lrc__average_ilc_input_sector_success_rate.pct"

VARIANTS: dict[tuple[str, str], tuple[LabelVariant, ...]] = {
    ("ComputeWorkloadAnalysis", "Issue Slots Busy"): (
        LabelVariant("sm__inst_issued.avg.pct_of_peak_sustained_elapsed", is_recent=True),
    ),
    ("ComputeWorkloadAnalysis", "Max. Issued Slots Busy"): (
        LabelVariant("sm__inst_issued.max.pct_of_peak_sustained_elapsed", is_recent=True),
    ),
    ("ComputeWorkloadAnalysis", "SM Busy"): (
        LabelVariant(
            "sm__instruction_throughput.avg.pct_of_peak_sustained_elapsed", is_recent=True
        ),
    ),
    ("SpeedOfLight", "SM Active Cycles"): (
        LabelVariant("sm__cycles_elapsed.avg", compute=_PASCAL_DOWN),
    ),
    ("MemoryWorkloadAnalysis", "Mem Pipes Busy"): (
        LabelVariant(
            "sm__inst_executed_pipes_mem.avg.pct_of_peak_sustained_active", compute=_PASCAL_DOWN
        ),
    ),
    ("MemoryWorkloadAnalysis", "L2 Compression Input Sectors"): (
        LabelVariant("lrc__ilc_input_sectors.sum", compute=(90, 109)),
    ),
    ("MemoryWorkloadAnalysis", "L2 Compression Ratio"): (
        LabelVariant("lrc__average_ilc_output_sector_compression_achieved_rate.pct", unit="%"),
    ),
    ("MemoryWorkloadAnalysis", "L2 Compression Success Rate"): (
        LabelVariant(_ILC_SUCCESS, compute=(90, 109), is_recent=True),
    ),
    ("MemoryWorkloadAnalysis_Chart", "L2 Compression Success Rate"): (
        LabelVariant(_ILC_SUCCESS, compute=_HOPPER_UP),
    ),
    **{
        (
            "MemoryWorkloadAnalysis_Chart",
            f"Missed L2 Cache Sectors For TEX Accessing {memory} Memory",
        ): tuple(
            LabelVariant(
                f"syslts__t_sectors_srcunit_tex_aperture_{word}_lookup_miss.sum", compute=gpus
            )
            for gpus in ((100, 103), (120, 120))
        )
        for memory, word in (("Peer", "peer"), ("System", "sysmem"))
    },
    ("Occupancy", "Warp Occupancy"): (
        LabelVariant("launch__occupancy_per_register_count", item="register"),
        LabelVariant("launch__occupancy_per_shared_mem_size", item="shared"),
    ),
    ("PmSampling", "Maximum Sampling Interval"): (
        LabelVariant("profiler__pmsampler_interval_time", unit="ns"),
    ),
    **{
        (section, label): variants
        for section in ROOFLINE_SECTIONS
        for label, variants in _ROOFLINE_VARIANTS.items()
    },
}
"""Labels that mean something else in some reports than `LABELS` has."""


_METRIC_NAME = re.compile(r"[\w.:]*[a-z0-9]__[\w.]+")
_NAMED = re.compile(r".* \(([\w.:]*[a-z0-9]__[\w.]+)\)", re.DOTALL)
_METRIC_LIKE = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+(?:\.[a-z0-9_]+)*")
_WITH_UNIT = re.compile(r"(.*\S)\s*\[[^\[\]]*\]")


def _squeeze(text: str) -> str:
    """Return what all spellings of a section's name share."""
    return "".join(char for char in text.lower() if char.isalnum())


def _fold(label: str) -> str:
    return " ".join(label.lower().split())


_SECTIONS = {
    _squeeze(name): identifier
    for identifier, names in SECTION_NAMES.items()
    for name in (identifier, *names)
}
_METRICS = {
    (section, _fold(label)): metric
    for section, labels in LABELS.items()
    for label, metric in labels.items()
}
_VARIANTS = {(section, _fold(label)): variants for (section, label), variants in VARIANTS.items()}
_ANYWHERE: dict[str, dict[str, None]] = {}
for (_, _label), _metric in _METRICS.items():
    _ANYWHERE.setdefault(_label, {})[_metric] = None


def section_of(name: str) -> str | None:
    """Return the identifier of a section (`SpeedOfLight`) by any name it ever had."""
    return _SECTIONS.get(_squeeze(name))


def is_recent(labels: Iterable[str]) -> bool:
    """Return whether a file's labels show that ncu 2025.3 or later wrote it."""
    return not RECENT.isdisjoint(labels)


@lru_cache(maxsize=8192)
def metric_for(
    section: str,
    label: str,
    unit: str = "",
    *,
    item: str = "",
    compute: tuple[int, int] | None = None,
    recent: bool = False,
    nth: int = 0,
) -> str | None:
    """Return the metric that a label stands for; None when that is not known.

    `section` is a section's name or identifier; when it is empty or not known, the unit decides
    between sections. `item` is the chart or table within the section (`Body Item Label`),
    `compute` the GPU's compute capability, `recent` the result of `is_recent` for the file, and
    `nth` counts earlier rows of the same launch, section, item and label.
    """
    text = " ".join(label.split())
    if _METRIC_NAME.fullmatch(text):
        return canonical(text)
    if named := _NAMED.fullmatch(text):  # SM Busy (sm__instruction_throughput.avg…)
        return canonical(named[1])
    context = _LabelContext(
        section_of(section) or "",
        item.lower(),
        scale_of(unit)[1],
        compute[0] * 10 + compute[1] if compute else 0,
        recent,
        nth,
    )
    metric = _look_up(text, context) or _look_up(_WITH_UNIT.sub(r"\1", text), context)
    return metric or (canonical(text) if _METRIC_LIKE.fullmatch(text) else None)


class _LabelContext(NamedTuple):
    """Where a label appears, as far as its meaning depends on it."""

    section: str
    """Identifier; empty when not known."""
    item: str
    """Chart or table in the section, in lower case."""
    unit: str
    gpu: int
    """Compute capability times ten; 0 when not known."""
    recent: bool
    nth: int


def _look_up(label: str, context: _LabelContext) -> str | None:
    return _by_rule(label, context) or _in_section(label, context) or _anywhere(label, context)


def _by_rule(label: str, context: _LabelContext) -> str | None:
    if context.section == "ComputeWorkloadAnalysis":
        return pipe(label, context.item, context.gpu, is_recent=context.recent)
    if context.section in ("WorkloadDistribution", "LaunchStats"):
        return distributed(label, context.nth)
    return breakdown(label) or arithmetic(label) or sampled_stall(label) or stall(label)


def _in_section(label: str, context: _LabelContext) -> str | None:
    key = (context.section, _fold(label))
    for variant in _VARIANTS.get(key, ()):
        first, last = variant.compute
        if (
            variant.unit in ("", context.unit)
            and variant.item in context.item
            and (not last or first <= context.gpu <= last)
            and (context.recent or not variant.is_recent)
        ):
            return variant.metric
    return _METRICS.get(key)


def _anywhere(label: str, context: _LabelContext) -> str | None:
    """Return the meaning of a label in other sections, if its unit is the one printed.

    A label that is new to a section must mean the same in all others.
    """
    metrics = _ANYWHERE.get(_fold(label), {})
    unit = context.unit
    fitting = [metric for metric in metrics if not unit or unit_of(metric) in ("", unit)]
    return fitting[0] if fitting and (len(metrics) == 1 or not context.section) else None
