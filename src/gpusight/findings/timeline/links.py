"""How fast copies between host and GPU can be: as measured, else as the link allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gpusight.findings.timeline.moves import WORDS
from gpusight.findings.verdict import Limit
from gpusight.units import format_rate

if TYPE_CHECKING:
    from gpusight.findings.timeline.timeline import Timeline

LINK_EFFICIENCY = Limit(
    0.8, "part of a link's rate that copies from pinned memory reach; 0.8 to 0.9 are usual"
)
_TELLING_BYTES = 1_000_000
"""Copies from which a rate is read: below, setting up takes a good part of the time."""
_KINDS = {"h2d": "Host-to-Device", "d2h": "Device-to-Host"}
_LINKS = {"PCIe 3": 15.75e9, "PCIe 4": 31.5e9, "PCIe 5": 63e9}
"""Bytes a second and direction of the links, 16 lanes wide."""
_LINK_OF = {
    "Pascal": "PCIe 3",
    "Volta": "PCIe 3",
    "Turing": "PCIe 3",
    "Ampere": "PCIe 4",
    "Ada Lovelace": "PCIe 4",
    "Hopper": "PCIe 5",
    "Blackwell": "PCIe 5",
    "Blackwell Ultra": "PCIe 5",
    "CDNA": "PCIe 4",
    "CDNA 2": "PCIe 4",
    "CDNA 3": "PCIe 5",
    "CDNA 4": "PCIe 5",
    "RDNA 3": "PCIe 4",
    "RDNA 4": "PCIe 5",
}
"""The link that GPUs of an architecture have."""
_USUAL_LINK = "PCIe 4"


@dataclass(frozen=True, slots=True)
class LinkRate:
    """How fast copies of pinned memory run, and how that is known."""

    bytes_s: float
    how: str
    measured: bool


def pinned_rate(timeline: Timeline, way: str) -> LinkRate:
    """Give the rate that pinned memory would have in a direction."""
    seen = _measured_rate(timeline, way)
    if seen is not None:
        return LinkRate(seen, f"as pinned copies {WORDS[way]} reach in this capture", measured=True)
    gpu = timeline.gpu
    known = None if gpu is None else _LINK_OF.get(gpu.architecture)
    link = known or _USUAL_LINK
    of = f"{link} x16 ({format_rate(_LINKS[link])})"
    assumed = "" if known else ", assumed because the GPU is not known"
    how = f"{LINK_EFFICIENCY.value:.0%} of {of}{assumed}"
    return LinkRate(LINK_EFFICIENCY.value * _LINKS[link], how, measured=False)


def _measured_rate(timeline: Timeline, way: str) -> float | None:
    """Take the median rate of large pinned copies of a direction, anywhere in the capture."""
    columns = ["start_ns", "end_ns", "bytes", "kind", "src_kind", "dst_kind"]
    table = timeline.trace.table("copies", columns)
    end = pl.col("src_kind" if way == "h2d" else "dst_kind").cast(pl.String)
    took = pl.col("end_ns") - pl.col("start_ns")
    seen = table.filter(
        pl.col("kind").cast(pl.String) == _KINDS[way],
        end == "Pinned",
        pl.col("bytes") >= _TELLING_BYTES,
        took > 0,
    )
    rate = seen.select((pl.col("bytes") * 1e9 / took).median()).item()
    return None if rate is None else float(rate)
