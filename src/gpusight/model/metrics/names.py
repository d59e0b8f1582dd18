"""Names of metrics: one spelling for each, whatever the version and the GPU.

Until 2020 (and on Pascal) a name had its rollup behind an underscore and its words in another
order; some counters of the newest GPUs are renamed. `canonical` gives the spelling that the other
versions use. It joins names of one quantity on one scale only: counters that come close to each
other (SASS against hardware counts, an L1 cache against a texture cache's requests) stay apart.
"""

from __future__ import annotations

import re
from functools import lru_cache

_OF_PEAK = "pct_of_peak_sustained_elapsed"
_OF_PEAK_ACTIVE = "pct_of_peak_sustained_active"

_RENAMED = {
    "dram__bytes_per_sec": "dram__bytes.sum.per_second",
    "dram__frequency": "dram__cycles_elapsed.avg.per_second",
    "dram__read_bytes": "dram__bytes_read.sum",
    "dram__read_bytes_per_sec": "dram__bytes_read.sum.per_second",
    "dram__read_pct": f"dram__bytes_read.sum.{_OF_PEAK}",
    "dram__read_sectors": "dram__sectors_read.sum",
    "dram__write_bytes": "dram__bytes_write.sum",
    "dram__write_bytes_per_sec": "dram__bytes_write.sum.per_second",
    "dram__write_pct": f"dram__bytes_write.sum.{_OF_PEAK}",
    "dram__write_sectors": "dram__sectors_write.sum",
    "fbpa__sol_pct": f"gpu__dram_throughput.avg.{_OF_PEAK}",
    "gpc__frequency": "gpc__cycles_elapsed.avg.per_second",
    "gpu__compute_memory_request_utilization_pct": (
        f"gpu__compute_memory_request_throughput.avg.{_OF_PEAK}"
    ),
    "gpu__compute_memory_sol_pct": f"gpu__compute_memory_throughput.avg.{_OF_PEAK}",
    "gpu__time_duration": "gpu__time_duration.sum",
    "ltc__sol_pct": f"lts__throughput.avg.{_OF_PEAK}",
    "lts__request_total_sectors_hitrate_pct": "lts__t_sector_hit_rate.pct",
    "sm__sol_pct": f"sm__throughput.avg.{_OF_PEAK}",
    "smsp__inst_executed_per_warp": "smsp__average_inst_executed_per_warp.ratio",
    "smsp__inst_issued0_active_per_active_cycle_pct": f"smsp__issue_inst0.avg.{_OF_PEAK_ACTIVE}",
    "smsp__inst_issued_per_issue_active": "smsp__inst_issued_per_issue_active.ratio",
    "smsp__thread_inst_executed_not_pred_off_per_inst_executed": (
        "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio"
    ),
    "smsp__thread_inst_executed_not_pred_off_sum": "smsp__thread_inst_executed_pred_on.sum",
    "smsp__thread_inst_executed_per_inst_executed": (
        "smsp__thread_inst_executed_per_inst_executed.ratio"
    ),
    "smsp__warp_cycles_per_inst_executed": "smsp__average_warps_active_per_inst_executed.ratio",
    "smsp__warp_cycles_per_inst_issued": "smsp__average_warp_latency_per_inst_issued.ratio",
    "smsp__warp_cycles_per_issue_active": "smsp__average_warps_active_per_issue_active.ratio",
    "tex__hitrate_pct": "l1tex__t_sector_hit_rate.pct",
    "tex__sol_pct": f"l1tex__throughput.avg.{_OF_PEAK}",
}
"""Old names that no rule gives."""

_UNCHANGED = re.compile(r"(launch|device|derived|profiler|sass)__|sm(sp)?__maximum_warps_")
"""Names that look like old ones, and are today's."""

_RULES = (
    (
        r"^smsp__warp_cycles_per_issue_stall_(\w+)$",
        r"smsp__average_warps_issue_stalled_\1_per_issue_active.ratio",
    ),
    (r"^smsp__pcsamp_warp_stall_(\w+)$", r"smsp__pcsamp_warps_issue_stalled_\1"),
    (r"^(dram__(?:bytes|sectors))_op_(read|write)\b", r"\1_\2"),
    (r"__(active|elapsed)_cycles_", r"__cycles_\1_"),
    (r"__(active|eligible)_warps_", r"__warps_\1_"),
    (r"^(\w+)_(avg|max|min|sum)_per_(active|elapsed)_cycle$", r"\1.\2.per_cycle_\3"),
    (
        r"^(\w+?)(?:_avg)?_per_(active|elapsed)_cycle(?:_sol)?_pct$",
        r"\1.avg.pct_of_peak_sustained_\2",
    ),
    (r"^(\w+__\w+)_per_sec$", r"\1.sum.per_second"),
    (r"^(\w+__\w+)_(avg|max|min|sum)$", r"\1.\2"),
)
_COMPILED = tuple((re.compile(pattern), new) for pattern, new in _RULES)


@lru_cache(maxsize=65536)
def canonical(metric: str) -> str:
    """Give the one name of a metric; a name that is not known to be old stays as it is."""
    if metric in _RENAMED:
        return _RENAMED[metric]
    if _UNCHANGED.match(metric):
        return metric
    for pattern, new in _COMPILED:
        metric = pattern.sub(new, metric)
    return metric
