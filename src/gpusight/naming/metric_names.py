"""Metrics of Nsight Compute: one name for all versions and GPUs, and the unit of each."""

from __future__ import annotations

import re
from functools import lru_cache

from gpusight.units import TIME_UNITS

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
"""Old names that no rule covers."""

_UNCHANGED = re.compile(r"(launch|device|derived|profiler|sass)__|sm(sp)?__maximum_warps_")
"""Current names that look like old ones."""

_RENAMING_RULES = [
    (re.compile(pattern), name)
    for pattern, name in (
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
]


@lru_cache(maxsize=65536)
def canonical(metric: str) -> str:
    """Return the current name of a metric; other names are returned unchanged."""
    if metric in _RENAMED:
        return _RENAMED[metric]
    if _UNCHANGED.match(metric):
        return metric
    for pattern, name in _RENAMING_RULES:
        metric = pattern.sub(name, metric)
    return metric


_COUNTED = (
    "block", "byte", "cluster", "cycle", "hz", "inst", "register", "request", "sample", "sector",
    "thread", "warp",
)  # fmt: skip
_SPELLINGS = {
    **{word: word for word in _COUNTED},
    **{f"{word}s": word for word in _COUNTED},
    "b": "byte",
    "branch": "branch",
    "branches": "branch",
    "instruction": "inst",
    "instructions": "inst",
    "pass": "pass",
    "passes": "pass",
    "sm": "SM",
}
_DECIMAL = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_BINARY = {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}
_PREFIXES = {**_DECIMAL, **_BINARY}
_TIMES_NS = {
    unit.removesuffix("s") + word: scale
    for unit, scale in TIME_UNITS.items()
    for word in ("s", "sec", "second", "seconds")
}
_AMOUNTS = {
    **{
        p + word: (scale, base)
        for p, scale in _PREFIXES.items()
        for word, base in _SPELLINGS.items()
    },
    **dict.fromkeys(("%", "percent", "pct"), (1.0, "%")),
    **{word: (scale, "ns") for word, scale in _TIMES_NS.items()},
}
_RATES = {("cycle", "s"): "hz", ("cycle", "cycle"): "", ("warp", "cycle"): "warp"}
"""Rates that have a unit of their own."""


@lru_cache(maxsize=4096)
def scale_of(unit: str) -> tuple[float, str]:
    """Return the factor from a printed unit to its base unit, and that base unit.

    4.2 `Kbyte` are 4.2 * 1000 `byte`. An unknown unit is kept.
    """
    amount, _, per = unit.strip().strip("[]").partition("/")
    scale, base = _amount(amount)
    per_scale, per_base = _amount(per)
    if per_base == "ns":
        return scale * (1e9 / per_scale), _rate(base, "s")
    return scale * per_scale, _rate(base, per_base)


def _amount(word: str) -> tuple[float, str]:
    return _AMOUNTS.get(word.strip().lower(), (1.0, word.strip()))


def _rate(amount: str, per: str) -> str:
    """Return the unit of a rate; without an amount there is none."""
    return _RATES.get((amount, per), f"{amount}/{per}" if per and amount else amount)


_EXACT = {
    "derived__avg_thread_executed": "thread",
    "derived__avg_thread_executed_true": "thread",
    "derived__avg_thread_unexecuted_true": "thread",
    "derived__derivative_avg_thread_executed_true": "thread",
    "launch__block_dim_x": "thread",
    "launch__block_dim_y": "thread",
    "launch__block_dim_z": "thread",
    "launch__cluster_max_active": "cluster",
    "launch__cluster_max_potential_size": "block",
    "launch__persisting_l2_cache_size": "byte",
    "launch__registers_per_thread": "register/thread",
    "launch__registers_per_thread_allocated": "register/thread",
    "launch__shared_mem_config_size": "byte",
    "launch__sm_count": "SM",
    "launch__thread_count": "thread",
    "smsp__sass_inst_executed_memdesc_explicit_evict_type": "",
}
"""Metrics whose name does not show their unit."""

_PREFIX_UNITS = {
    "device__attribute_": "",
    "derived__pct_": "%",
    "launch__occupancy_limit_": "block",
    "launch__shared_mem_per_block": "byte/block",
    "launch__": "",
    "numa__": "",
    "nvlink__": "",
    "c2clink__": "",
    "smsp__pcsamp_warps_issue_stalled_": "warp",
    "stall_": "warp",
}
"""Families of metrics that are not counters of a hardware unit; the longer prefix first."""

_NOUNS = {
    "bytes": "byte",
    "sectors": "sector",
    "requests": "request",
    "inst": "inst",
    "instructions": "inst",
    "time": "ns",
    "frequency": "hz",
    "cycles": "cycle",
    "warps": "warp",
    "ctas": "block",
    "cgas": "cluster",
    "threads": "thread",
    "passes": "pass",
    "samples": "sample",
}
"""What a counter counts, by the first of these words in its name."""


@lru_cache(maxsize=65536)
def unit_of(metric: str) -> str:
    """Return the base unit of a metric, by its name; empty where it has none."""
    # Without what precedes its counter: `TPC.TriageCompute.`, `group:`.
    parts = canonical(metric).rpartition(":")[2].split(".")
    start = next((at for at, part in enumerate(parts) if "__" in part), 0)
    counter, *rollups = parts[start:]
    if any(rollup.startswith("pct") for rollup in rollups) or counter.endswith("_pct"):
        return "%"
    if "ratio" in rollups or "max_rate" in rollups:
        return _unit_of_ratio(counter)
    last = rollups[-1] if rollups else ""
    if last.startswith("per_second"):
        per = "s"
    else:
        per = "cycle" if last.startswith("per_cycle") or last == "peak_sustained" else ""
    return _rate(_unit_of_counter(counter), per)


def _unit_of_counter(counter: str) -> str:
    if counter in _EXACT:
        return _EXACT[counter]
    for prefix, unit in _PREFIX_UNITS.items():
        if counter.startswith(prefix):
            return unit
    words = counter.rpartition("__")[2].split("_")
    if "branch" in words and "targets" in words:
        return "branch"
    noun = next((_NOUNS[word] for word in words if word in _NOUNS), None)
    return noun if noun is not None else "cycle" if "active" in words else ""


def _unit_of_ratio(counter: str) -> str:
    """Return the unit of `…average_sectors_per_request…`; empty where both amounts share one."""
    amount, _, rest = counter.rpartition("__")[2].partition("_per_")
    if amount.startswith("average_warp"):
        return "cycle"
    per = rest.partition("_")[0]
    return _rate(_unit_of_counter(amount), per) if per in ("request", "sector", "warp") else ""
