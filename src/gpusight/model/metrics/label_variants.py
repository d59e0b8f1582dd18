"""Labels that mean one metric in most reports, and another in some."""

from __future__ import annotations

from typing import NamedTuple

from gpusight.model.metrics.label_table import ROOFLINE_SECTIONS


class Variant(NamedTuple):
    """Another meaning of a label, and all that must be the case for it."""

    metric: str
    unit: str = ""
    """Base unit that the value has."""
    item: str = ""
    """Word in the name of the chart or table that the label stands in."""
    compute: tuple[int, int] = (0, 0)
    """Compute capabilities of the GPU, ten times, from and to."""
    is_recent: bool = False
    """The report is of 2025.3 or later."""


RECENT = frozenset({"Local Memory Spilling Requests", "L2 Persisting Size"})
"""Labels that came with 2025.3, when other labels changed their meaning."""

_ACHIEVED = (Variant("smsp__cycles_elapsed.avg.per_second", item="achieved"),)
_HOPPER_UP = (90, 999)
_VOLTA_DOWN = (1, 72)
_PASCAL_DOWN = (1, 69)


def _l1_traffic(volta: str, hopper: str) -> tuple[Variant, ...]:
    return Variant(volta, compute=_VOLTA_DOWN), Variant(hopper, compute=_HOPPER_UP)


_ROOFLINE_VARIANTS = {
    "SM Frequency": _ACHIEVED,
    "L1 Cache Bandwidth (Global/Local)": _l1_traffic(
        "derived__l1tex__lsu_writeback_bytes.sum.per_second",
        "derived__l1tex__lsu_writeback_bytes_mem_lgds.sum.per_second",
    ),
    "Theoretical L1/TEX Cache Bytes Accessible": _l1_traffic(
        "derived__l1tex__lsu_writeback_bytes.sum.peak_sustained",
        "derived__l1tex__lsu_writeback_bytes_mem_lgds.sum.peak_sustained",
    ),
    "L1/TEX active local/global writeback cycles per second": (
        Variant("l1tex__lsu_writeback_active_mem_lgds.sum.per_second", compute=_HOPPER_UP),
    ),
    "L1/TEX peak local/global writeback cycles": (
        Variant("l1tex__lsu_writeback_active_mem_lgds.sum.peak_sustained", compute=_HOPPER_UP),
    ),
}
_ILC_SUCCESS = "lrc__average_ilc_input_sector_success_rate.pct"

VARIANTS: dict[tuple[str, str], tuple[Variant, ...]] = {
    ("ComputeWorkloadAnalysis", "Issue Slots Busy"): (
        Variant("sm__inst_issued.avg.pct_of_peak_sustained_elapsed", is_recent=True),
    ),
    ("ComputeWorkloadAnalysis", "Max. Issued Slots Busy"): (
        Variant("sm__inst_issued.max.pct_of_peak_sustained_elapsed", is_recent=True),
    ),
    ("ComputeWorkloadAnalysis", "SM Busy"): (
        Variant("sm__instruction_throughput.avg.pct_of_peak_sustained_elapsed", is_recent=True),
    ),
    ("SpeedOfLight", "SM Active Cycles"): (
        Variant("sm__cycles_elapsed.avg", compute=_PASCAL_DOWN),
    ),
    ("MemoryWorkloadAnalysis", "Mem Pipes Busy"): (
        Variant(
            "sm__inst_executed_pipes_mem.avg.pct_of_peak_sustained_active", compute=_PASCAL_DOWN
        ),
    ),
    ("MemoryWorkloadAnalysis", "L2 Compression Input Sectors"): (
        Variant("lrc__ilc_input_sectors.sum", compute=(90, 109)),
    ),
    ("MemoryWorkloadAnalysis", "L2 Compression Ratio"): (
        Variant("lrc__average_ilc_output_sector_compression_achieved_rate.pct", unit="%"),
    ),
    ("MemoryWorkloadAnalysis", "L2 Compression Success Rate"): (
        Variant(_ILC_SUCCESS, compute=(90, 109), is_recent=True),
    ),
    ("MemoryWorkloadAnalysis_Chart", "L2 Compression Success Rate"): (
        Variant(_ILC_SUCCESS, compute=_HOPPER_UP),
    ),
    **{
        (
            "MemoryWorkloadAnalysis_Chart",
            f"Missed L2 Cache Sectors For TEX Accessing {memory} Memory",
        ): tuple(
            Variant(f"syslts__t_sectors_srcunit_tex_aperture_{word}_lookup_miss.sum", compute=gpus)
            for gpus in ((100, 103), (120, 120))
        )
        for memory, word in (("Peer", "peer"), ("System", "sysmem"))
    },
    ("Occupancy", "Warp Occupancy"): (
        Variant("launch__occupancy_per_register_count", item="register"),
        Variant("launch__occupancy_per_shared_mem_size", item="shared"),
    ),
    ("PmSampling", "Maximum Sampling Interval"): (
        Variant("profiler__pmsampler_interval_time", unit="ns"),
    ),
    **{
        (section, label): variants
        for section in ROOFLINE_SECTIONS
        for label, variants in _ROOFLINE_VARIANTS.items()
    },
}
"""Labels that mean something else in some reports; otherwise it is as in `LABELS`."""
