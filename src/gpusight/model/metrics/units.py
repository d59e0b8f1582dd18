"""Units of metrics: what a printed unit comes to, and which unit a metric's name implies.

A report holds numbers without units; a printed page holds them scaled. Both end in base units,
spelled one way whatever the version prints:

- `byte`, `ns`, `hz`, `%`, `inst`, `cycle`, `sector`, `request`, `warp`, `thread`, `block`, … for
  amounts, always in the singular (`sectors` and `branches` become `sector` and `branch`);
- `byte/s`, `sector/s`, … a second and `inst/cycle`, … a cycle (`byte/second` becomes `byte/s`; a
  cycle a second, be it `cycle/nsecond` or `Ghz`, becomes `hz`; the warps that are there in a cycle
  are `warp`, which 2019 and 2020 print as `warp/cycle`);
- `register/thread`, `byte/block`, `byte/sector`, `%/byte`, … for other rates;
- nothing for plain numbers.

A time is in nanoseconds where it is an amount, and in seconds where something is counted in it.
Prefixes are decimal in all versions: 102400 bytes are printed as 102.40 Kbyte. One that stands
below the line scales the number as if it stood above: 3350 `%/byte` are printed as 3.35 `%/Kbyte`.

`unit_of` reads the name's grammar, `unit__counter.rollup.submetric`. It agrees with what ncu prints
but for three kinds of names:

- ncu guesses the unit of its own derived metrics from a part of the name, and guesses wrongly:
  samples of the stall reasons `membar`, `branch_resolving` and `no_instructions` are printed as
  bytes, branches and instructions, accesses of `memory_l1_*` and `memory_l2_*` as bytes or sectors,
  requests to the instruction caches as cycles, cycles between two instructions of a warp as
  instructions, threads in a dimension of a block as blocks, `derived__…bytes.sum.per_second` as
  bytes. Here they are what they are. The scale is the same.
- Versions differ for requests to the L1 caches (`request` or nothing), for `derived__…_x2` (`inst`
  or `thread`) and a few more; here the same noun always has the same unit.
- Instructions by opcode, and occupancy by block size or registers, are tables whose unit ncu leaves
  out or makes up (`%/register`); here they are `inst` and `%`.
"""

from __future__ import annotations

from functools import lru_cache

from gpusight.model.metrics.names import canonical

_COUNTED = (
    "block",
    "byte",
    "cluster",
    "cycle",
    "hz",
    "inst",
    "register",
    "request",
    "sample",
    "sector",
    "thread",
    "warp",
)
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
    prefix + word: scale
    for prefix, scale in {"n": 1.0, "u": 1e3, "µ": 1e3, "μ": 1e3, "m": 1e6, "": 1e9}.items()
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
"""Rates that have a name of their own."""


def to_base(value: float, unit: str) -> tuple[float, str]:
    """Turn a printed value into base units: `(4.2, "Kbyte")` is `(4200.0, "byte")`.

    A unit that is not known stays as it is, and so does its value.
    """
    scale, base = scale_of(unit)
    return value * scale, base


@lru_cache(maxsize=4096)
def scale_of(unit: str) -> tuple[float, str]:
    """Give what to multiply a value of this printed unit by, and the base unit that it then has."""
    amount, _, per = unit.strip().strip("[]").partition("/")
    scale, base = _amount(amount)
    per_scale, per_base = _amount(per)
    if per_base == "ns":
        return scale * (1e9 / per_scale), _rate(base, "s")
    return scale * per_scale, _rate(base, per_base)


def _amount(word: str) -> tuple[float, str]:
    return _AMOUNTS.get(word.strip().lower(), (1.0, word.strip()))


def _rate(amount: str, per: str) -> str:
    """Give the unit of an amount for each of something; of nothing, when nothing is counted."""
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
"""Metrics whose name says nothing of their unit, or something else."""

_BEGINNINGS = {
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
"""Families of metrics that are not counters of a hardware unit; the longer beginning first."""

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

_PER = {"request": "request", "sector": "sector", "warp": "warp"}


@lru_cache(maxsize=65536)
def unit_of(metric: str) -> str:
    """Give the base unit of a metric, by its name; empty where it has none."""
    counter, *rollups = _parts(canonical(metric))
    if any(r.startswith("pct") for r in rollups) or counter.endswith("_pct"):
        return "%"
    if "ratio" in rollups or "max_rate" in rollups:
        return _unit_of_ratio(counter)
    unit = _unit_of_counter(counter)
    return _rate(unit, _counted_in(rollups))


def _parts(metric: str) -> list[str]:
    """Split a name, without what stands before its counter (`TPC.TriageCompute.`, `group:`)."""
    parts = metric.rpartition(":")[2].split(".")
    start = next((at for at, part in enumerate(parts) if "__" in part), 0)
    return parts[start:]


def _counted_in(rollups: list[str]) -> str:
    """Give what the last part of a name counts in: seconds, cycles, or nothing."""
    last = rollups[-1] if rollups else ""
    if last.startswith("per_second"):
        return "s"
    return "cycle" if last.startswith("per_cycle") or last == "peak_sustained" else ""


def _unit_of_counter(counter: str) -> str:
    if counter in _EXACT:
        return _EXACT[counter]
    for beginning, unit in _BEGINNINGS.items():
        if counter.startswith(beginning):
            return unit
    words = counter.rpartition("__")[2].split("_")
    if "branch" in words and "targets" in words:
        return "branch"
    noun = next((_NOUNS[word] for word in words if word in _NOUNS), None)
    return noun if noun is not None else "cycle" if "active" in words else ""


def _unit_of_ratio(counter: str) -> str:
    """Give the unit of `…average_sectors_per_request…`; of one amount by the same, nothing."""
    over, _, under = counter.rpartition("__")[2].partition("_per_")
    if over.startswith("average_warp"):
        return "cycle"
    per = _PER.get(under.partition("_")[0], "")
    return _rate(_unit_of_counter(over), per) if per else ""
