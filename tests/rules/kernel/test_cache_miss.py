"""The rule `cache-miss` on launches built by hand."""

from __future__ import annotations

from gpusight.rules.rule import Clean
from tests.rules.kernel.rule_launches import matched
from tests.rules.launches import ELAPSED, STALLED, launch_of, verdict_of


def test_texture_reads_at_random_places_miss_the_cache() -> None:
    textures = {
        f"gpu__dram_throughput{ELAPSED}": 58,
        f"lts__throughput{ELAPSED}": 86,
        f"gpu__compute_memory_throughput{ELAPSED}": 58,
        STALLED.format("long_scoreboard"): 300,
        "l1tex__t_sectors_pipe_tex_mem_texture.sum": 8_000_000,
        "l1tex__t_requests_pipe_tex_mem_texture.sum": 1_000_000,
    }
    assert "random reads" in matched("cache-miss", textures).title
    in_order = {**textures, "l1tex__t_requests_pipe_tex_mem_texture.sum": 8_000_000}
    assert isinstance(verdict_of("cache-miss", launch_of(in_order)), Clean)
