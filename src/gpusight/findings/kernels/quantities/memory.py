"""Accesses to global, shared and local memory, and to the caches."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.counters.quantity import (
    SHARE,
    Formula,
    Quantity,
    metric,
    percent,
    ratio,
    total,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_SPEED = "SpeedOfLight"
_TABLES = "MemoryWorkloadAnalysis_Tables"
_SOURCE = "SourceCounters"
_ELAPSED = "pct_of_peak_sustained_elapsed"


_GLOBAL_SECTORS = (
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
)
_USED = "smsp__sass_average_data_bytes_per_sector_mem_global_op_{}.{}"


def _used(form: str, whole: float) -> Formula:
    """Multiply the sectors of loads and of stores by the part of each that was asked for."""
    names = (*_GLOBAL_SECTORS, _USED.format("ld", form), _USED.format("st", form))
    return Formula(names, lambda v: (_part(v[0], v[2]) + _part(v[1], v[3])) / whole)


def _loads_used(*sectors: str) -> Formula:
    """Do the same for loads alone, all of the stores being needed as far as is known."""
    names = (*sectors, _USED.format("ld", "pct"))
    return Formula(names, lambda v: reduce(add, v[1:-1], _part(v[0], v[-1]) / 100))


def _part(sectors: pl.Expr, used: pl.Expr) -> pl.Expr:
    """Take a part of some sectors; of no sectors there is no part, which is no gap in the data."""
    return pl.when(sectors == 0).then(0.0).otherwise(sectors * used)


SECTORS_MOVED = Quantity(
    "sectors_moved",
    "",
    "Sectors of 32 bytes that global loads and stores touched",
    (
        metric("memory_l2_theoretical_sectors_global"),
        total(*_GLOBAL_SECTORS),
        metric(_GLOBAL_SECTORS[0]),
    ),
    _SOURCE,
)
SECTORS_NEEDED = Quantity(
    "sectors_needed",
    "",
    "Sectors of 32 bytes that would have held what global loads and stores asked for",
    (
        metric("memory_l2_theoretical_sectors_global_ideal"),
        _used("pct", 100),
        _used("ratio", 32),
        _loads_used(*_GLOBAL_SECTORS),
        _loads_used(_GLOBAL_SECTORS[0]),
    ),
    _SOURCE,
)
LOAD_REQUESTS = Quantity(
    "load_requests",
    "",
    "Global loads that warps executed",
    (
        metric("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"),
        metric("smsp__sass_inst_executed_op_global_ld.sum"),
        metric("smsp__inst_executed_op_global_ld.sum"),
    ),
    _TABLES,
)
STORE_REQUESTS = Quantity(
    "store_requests",
    "",
    "Global stores that warps executed",
    (
        metric("l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"),
        metric("smsp__sass_inst_executed_op_global_st.sum"),
        metric("smsp__inst_executed_op_global_st.sum"),
    ),
    _TABLES,
)
LOAD_SECTORS = Quantity(
    "load_sectors",
    "",
    "Sectors of 32 bytes that global loads touched",
    (metric(_GLOBAL_SECTORS[0]),),
    _TABLES,
)
TEXTURE_SECTORS = Quantity(
    "texture_sectors",
    "",
    "Sectors of 32 bytes that texture reads touched",
    (metric("l1tex__t_sectors_pipe_tex_mem_texture.sum"),),
    _TABLES,
)
TEXTURE_REQUESTS = Quantity(
    "texture_requests",
    "",
    "Texture reads of eight threads each",
    (metric("l1tex__t_requests_pipe_tex_mem_texture.sum"),),
    _TABLES,
)
L2_SECTORS = Quantity(
    "l2_sectors",
    "",
    "Sectors of 32 bytes that the SMs asked of L2",
    (
        metric("lts__t_sectors_srcunit_tex.sum"),
        total("lts__t_sectors_srcunit_tex_op_read.sum", "lts__t_sectors_srcunit_tex_op_write.sum"),
    ),
    _TABLES,
)
L2_READ_HITS = Quantity(
    "l2_read_hits",
    SHARE,
    "Sectors read from the L2 cache that were there",
    (
        percent("lts__t_sector_op_read_hit_rate.pct"),
        ratio(
            "lts__t_sectors_srcunit_tex_op_read_lookup_hit.sum",
            "lts__t_sectors_srcunit_tex_op_read.sum",
        ),
    ),
    _TABLES,
)
DRAM_READ = Quantity(
    "dram_read_bytes",
    "byte",
    "Bytes read from the GPU's memory",
    (metric("dram__bytes_read.sum"), metric("dram__sectors_read.sum", 32)),
    _TABLES,
)
ACCESSIBLE = Quantity(
    "accessible_bytes",
    "byte",
    "Memory that the program had allocated",
    (metric("profiler__replayer_bytes_mem_accessible.avg"),),
    _SPEED,
)
SHARED_WAVEFRONTS = Quantity(
    "shared_wavefronts",
    "",
    "Steps that shared-memory accesses took",
    (
        metric("memory_l1_wavefronts_shared"),
        metric("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"),
        total(
            "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
            "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
        ),
    ),
    _TABLES,
)
SHARED_EXCESS = Quantity(
    "shared_excess",
    "",
    "Steps of shared-memory accesses that bank conflicts added",
    (
        Formula(
            ("memory_l1_wavefronts_shared", "memory_l1_wavefronts_shared_ideal"),
            lambda values: values[0] - values[1],
        ),
        metric("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"),
        total(
            "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
            "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
        ),
    ),
    _TABLES,
)
SHARED_INSTRUCTIONS = Quantity(
    "shared_instructions",
    "",
    "Shared-memory instructions that warps executed",
    (
        metric("smsp__sass_inst_executed_op_shared.sum"),
        total(
            "smsp__sass_inst_executed_op_shared_ld.sum", "smsp__sass_inst_executed_op_shared_st.sum"
        ),
        total("smsp__inst_executed_op_shared_ld.sum", "smsp__inst_executed_op_shared_st.sum"),
        total("sass__inst_executed_shared_loads", "sass__inst_executed_shared_stores"),
    ),
    _TABLES,
)
SHARED_SHARE = Quantity(
    "shared_data",
    SHARE,
    "Part of the data pipe of L1 that shared memory took",
    (percent(f"l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.{_ELAPSED}"),),
    _TABLES,
)


def _known_total(*names: str) -> Formula:
    """Add up those of these counters that there are; one of them is enough."""

    def compute(values: Sequence[pl.Expr]) -> pl.Expr:
        some = pl.any_horizontal([v.is_not_null() for v in values])
        return pl.when(some).then(reduce(add, [v.fill_null(0.0) for v in values]))

    return Formula(names, compute)


LOCAL_INSTRUCTIONS = Quantity(
    "local_instructions",
    "",
    "Instructions that read or wrote local memory, where spilled registers go",
    (
        total(
            "smsp__sass_inst_executed_op_local_ld.sum", "smsp__sass_inst_executed_op_local_st.sum"
        ),
        total("smsp__inst_executed_op_local_ld.sum", "smsp__inst_executed_op_local_st.sum"),
        total(
            "l1tex__t_requests_pipe_lsu_mem_local_op_ld.sum",
            "l1tex__t_requests_pipe_lsu_mem_local_op_st.sum",
        ),
        total("sass__inst_executed_local_loads", "sass__inst_executed_local_stores"),
    ),
    _SOURCE,
)
LOCAL_SECTORS = Quantity(
    "local_sectors",
    "",
    "Sectors of 32 bytes that accesses to local memory touched",
    (
        total(
            "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
            "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
        ),
        metric("memory_l2_theoretical_sectors_local"),
    ),
    _TABLES,
)
LOCAL_MISSES = Quantity(
    "local_misses",
    "",
    "Sectors of local memory that were not in L1",
    (
        total(
            "l1tex__t_sectors_pipe_lsu_mem_local_op_ld_lookup_miss.sum",
            "l1tex__t_sectors_pipe_lsu_mem_local_op_st_lookup_miss.sum",
        ),
    ),
    _TABLES,
)
SPILL_REQUESTS = Quantity(
    "spill_requests",
    "",
    "Accesses to local memory that the compiler added to spill registers",
    (metric("derived__local_spilling_requests"),),
    _SOURCE,
)
SPILL_SHARE = Quantity(
    "spill_share",
    SHARE,
    "Part of the accesses to L1 that the compiler added to spill registers",
    (percent("derived__local_spilling_requests_pct"),),
    _SOURCE,
)
GLOBAL_ATOMICS = Quantity(
    "global_atomics",
    "",
    "Atomic instructions on global memory that warps executed",
    (
        _known_total(
            "l1tex__t_requests_pipe_lsu_mem_global_op_atom.sum",
            "l1tex__t_requests_pipe_lsu_mem_global_op_red.sum",
        ),
        _known_total(
            "smsp__inst_executed_op_global_red.sum",
            "smsp__inst_executed_op_generic_atom_dot_alu.sum",
            "smsp__inst_executed_op_generic_atom_dot_cas.sum",
        ),
        total("lts__t_requests_srcunit_tex_op_red.sum"),
    ),
    _TABLES,
)
L2_ATOMIC_SECTORS = Quantity(
    "l2_atomic_sectors",
    "",
    "Atomic operations that reached L2, in sectors of 32 bytes",
    (
        _known_total(
            "lts__t_sectors_srcunit_tex_op_red.sum",
            "lts__t_sectors_srcunit_tex_op_atom_dot_alu.sum",
            "lts__t_sectors_srcunit_tex_op_atom_dot_cas.sum",
        ),
    ),
    _TABLES,
)
SHARED_ATOMICS = Quantity(
    "shared_atomics",
    "",
    "Atomic instructions on shared memory that warps executed",
    (metric("smsp__inst_executed_op_shared_atom.sum"),),
    _TABLES,
)
SHARED_ATOMIC_WAVEFRONTS = Quantity(
    "shared_atomic_wavefronts",
    "",
    "Steps that atomic accesses to shared memory took",
    (metric("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_atom.sum"),),
    _TABLES,
)
