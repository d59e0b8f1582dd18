"""Texts in which the profiler packs several facts: `regs:32 static_shared:0 grid:4,1,1 …`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    Facts: TypeAlias = Mapping[str, int | float | str | None]

_WHOLE = re.compile(r"\d{1,18}")

MEMORY_KINDS = {
    "pageable": "Pageable",
    "pinned": "Pinned",
    "device": "Device",
    "array": "Array",
    "managed": "Managed",
    "device_static": "Device Static",
    "managed_static": "Managed Static",
}
PEER = "Peer-to-Peer"
COPY_KINDS = {
    "MemcpyH2D": "Host-to-Device",
    "MemcpyD2H": "Device-to-Host",
    "MemcpyD2D": "Device-to-Device",
    "MemcpyP2P": PEER,
}
"""What the name of a copy says; others have to be told by the memory on both sides."""
_SIDES = {"Pageable": "Host", "Pinned": "Host", "Device": "Device", "Device Static": "Device"}


def facts_of(text: str) -> dict[str, str]:
    """Take such a text apart."""
    facts = (word.partition(":") for word in text.split())
    return {name: value for name, _, value in facts}


def whole(text: str | None) -> int | None:
    """Read a whole number, if it is one."""
    return int(text) if text is not None and _WHOLE.fullmatch(text) else None


def spread(
    places: pl.Series, words: Sequence[str], read: Callable[[str], Facts], schema: pl.Schema
) -> pl.DataFrame:
    """Read each text that occurs once, and give every row the facts of its own text."""
    used = places.drop_nulls().unique().to_list()
    rows = [{"place": place, **read(words[place])} for place in used]
    known = pl.DataFrame(rows, schema={"place": places.dtype, **schema})
    joined = places.to_frame("place").join(known, on="place", how="left", maintain_order="left")
    return joined.drop("place")


_LAUNCH = (
    *(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"),
    "registers_per_thread",
    "static_shared_bytes",
    "dynamic_shared_bytes",
    "shared_bytes",
)
KERNEL_FACTS = pl.Schema(dict.fromkeys(_LAUNCH, pl.Int64))


def kernel_facts(text: str) -> Facts:
    """Read how a kernel was launched."""
    facts = facts_of(text)
    static, dynamic = whole(facts.get("static_shared")), whole(facts.get("dynamic_shared"))
    return {
        **_axes("grid", facts.get("grid")),
        **_axes("block", facts.get("block")),
        "registers_per_thread": whole(facts.get("regs")),
        "static_shared_bytes": static,
        "dynamic_shared_bytes": dynamic,
        "shared_bytes": None if static is None or dynamic is None else static + dynamic,
    }


def _axes(what: str, text: str | None) -> dict[str, int | None]:
    sizes = [whole(size) for size in (text or "").split(",")]
    if len(sizes) != 3:
        sizes = [None] * 3
    return {f"{what}_{axis}": size for axis, size in zip("xyz", sizes, strict=True)}


COPY_FACTS = pl.Schema(
    {
        "bytes": pl.Int64,
        "src_kind": pl.String,
        "dst_kind": pl.String,
        "destination": pl.Int64,
        "between": pl.String,
    }
)


def copy_facts(text: str) -> Facts:
    """Read what a copy moved; `between` is the direction that the kinds of memory tell."""
    facts = facts_of(text)
    source = _memory(facts.get("kind_src"))
    target = _memory(facts.get("kind_dst"))
    sides = [_SIDES.get(kind or "") for kind in (source, target)]
    return {
        "bytes": whole(facts.get("size")),
        "src_kind": source,
        "dst_kind": target,
        "destination": whole(facts.get("dest")),
        "between": "Unknown" if None in sides else "-to-".join(map(str, sides)),
    }


FILL_FACTS = pl.Schema({"bytes": pl.Int64, "memory_kind": pl.String})


def fill_facts(text: str) -> Facts:
    """Read what a memset filled."""
    facts = facts_of(text)
    return {"bytes": whole(facts.get("num_bytes")), "memory_kind": _memory(facts.get("kind"))}


def _memory(kind: str | None) -> str | None:
    return None if kind is None else MEMORY_KINDS.get(kind.lower(), "Unknown")


CONTEXT = pl.Schema({"context": pl.Int64})


def context_facts(text: str) -> Facts:
    """Read the number of a CUDA context, which is written as `$$1`."""
    return {"context": whole(text.removeprefix("$$"))}
