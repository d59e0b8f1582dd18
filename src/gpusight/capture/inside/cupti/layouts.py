"""Where CUPTI's records keep what we want of them.

Versions of CUPTI only ever lengthen a record (checked against the structures of CUDA 9 to 13.4), so
one list of offsets serves all; a field that lies beyond a version's record is null.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

MEMCPY, MEMSET, DRIVER, RUNTIME = 1, 2, 4, 5
DEVICE, CONTEXT, KERNEL, NAME = 8, 9, 10, 11
MARKER, MARKER_DATA, OVERHEAD, MEMCPY_PEER = 12, 13, 17, 22
CUDA_EVENT, STREAM, SYNCHRONIZATION, MEMORY = 36, 37, 38, 49

KIND_NAMES = {
    MEMCPY: "copies",
    MEMSET: "fills",
    DRIVER: "driver calls",
    RUNTIME: "runtime calls",
    DEVICE: "devices",
    CONTEXT: "contexts",
    KERNEL: "kernels",
    NAME: "names",
    MARKER: "NVTX ranges",
    MARKER_DATA: "NVTX attributes",
    OVERHEAD: "overhead",
    MEMCPY_PEER: "copies between GPUs",
    CUDA_EVENT: "CUDA events",
    STREAM: "streams",
    SYNCHRONIZATION: "synchronisation",
    MEMORY: "allocations",
}


_TEXTS = ("name", "domain")


class Field(NamedTuple):
    """One value in a record: its name, its offset and its `struct` code."""

    name: str
    offset: int
    code: str

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.offset + struct.calcsize("=" + self.code)


class Reader(NamedTuple):
    """Takes rows out of records of one size."""

    struct: struct.Struct
    missing: tuple[None, ...]

    def row(self, buffer: Any, at: int) -> tuple[Any, ...]:
        """Give the fields of the record that begins here."""
        return self.struct.unpack_from(buffer, at) + self.missing


@dataclass(frozen=True)
class Layout:
    """The fields of one kind of record, in the order in which they lie."""

    kind: int
    fields: tuple[Field, ...]

    @cached_property
    def parameters(self) -> dict[str, str]:
        """Name the SQL parameter of each field of a row."""
        return {field.name: f"?{number}" for number, field in enumerate(self.fields, 1)}

    @cached_property
    def texts(self) -> tuple[int, ...]:
        """Where the addresses of texts lie."""
        return tuple(field.offset for field in self.fields if field.name in _TEXTS)

    def reader(self, size: int) -> Reader:
        """Read records of `size` bytes; fields beyond it are null."""
        present = [field for field in self.fields if field.end <= size]
        codes, at = ["="], 0
        for field in present:
            codes.append(f"{field.offset - at}x{field.code}")
            at = field.end
        return Reader(struct.Struct("".join(codes)), (None,) * (len(self.fields) - len(present)))


def _layout(kind: int, text: str) -> Layout:
    """Read `name@offset:code` words. 64-bit numbers are read as signed: SQLite has no others."""
    fields = []
    for word in text.split():
        name, _, place = word.partition("@")
        offset, _, code = place.partition(":")
        fields.append(Field(name, int(offset), code or "I"))
    return Layout(kind, tuple(fields))


_CALL = "cbid@4 start@8:q end@16:q process@24 thread@28 correlation@32 result@36:i"

LAYOUTS: dict[int, Layout] = {
    layout.kind: layout
    for layout in (
        _layout(
            KERNEL,
            "cache@4:B registers@6:H start@16:q end@24:q device@40 context@44 stream@48 "
            "grid_x@52:i grid_y@56:i grid_z@60:i block_x@64:i block_y@68:i block_z@72:i "
            "static@76:i dynamic@80:i local@84 local_total@88 correlation@92 grid@96:q name@104:q "
            "launch_type@136:B shared_executed@140 graph_node@144:q shared_limit@152:i graph@156 "
            "cluster_x@176 cluster_y@180 cluster_z@184 local_total_long@192:q",
        ),
        _layout(
            MEMCPY,
            "copy_kind@4:B src_kind@5:B dst_kind@6:B bytes@8:q start@16:q end@24:q device@32 "
            "context@36 stream@40 correlation@44 graph_node@64:q copy_count@88:q",
        ),
        _layout(
            MEMCPY_PEER,
            "copy_kind@4:B src_kind@5:B dst_kind@6:B bytes@8:q start@16:q end@24:q device@32 "
            "context@36 stream@40 src_device@44 src_context@48 dst_device@52 dst_context@56 "
            "correlation@60 graph_node@72:q",
        ),
        _layout(
            MEMSET,
            "value@4 bytes@8:q start@16:q end@24:q device@32 context@36 stream@40 correlation@44 "
            "memory_kind@50:H graph_node@64:q",
        ),
        _layout(RUNTIME, _CALL),
        _layout(DRIVER, _CALL),
        _layout(
            SYNCHRONIZATION,
            "type@4:i start@8:q end@16:q correlation@24 context@28 stream@32 event@36 "
            "event_sync@40:q",
        ),
        _layout(
            CUDA_EVENT,
            "correlation@4 context@8 stream@12 event@16 event_sync@48:q",
        ),
        _layout(
            MEMORY,
            "operation@4:i memory_kind@8:i correlation@12 address@16:q bytes@24:q time@32:q "
            "pc@40:q device@52 context@56 stream@60 name@64:q pool@80:i pool_address@88:q "
            "pool_threshold@96:q pool_size@104:q pool_used@112:q",
        ),
        _layout(
            MARKER,
            "flags@4:i time@8:q id@16 object@20:i process@24 thread@28 name@40:q domain@48:q",
        ),
        _layout(MARKER_DATA, "flags@4:i id@8 payload_kind@12:i payload@16:q color@24 category@28"),
        _layout(OVERHEAD, "overhead@4:i object@8:i process@12 thread@16 start@24:q end@32:q"),
        _layout(NAME, "object@4:i process@8 thread@12 stream@16 name@24:q"),
        _layout(CONTEXT, "context@4 device@8 null_stream@14:H parent@16 green@20:B"),
        _layout(STREAM, "context@4 stream@8 priority@12 flag@16:i"),
        _layout(
            DEVICE,
            "bandwidth@8:q memory@16:q constant@24 l2@28 warp@32 clock@36 copy_engines@40 sms@44 "
            "max_ipc@48 max_warps@52 max_blocks@56 max_shared_sm@60 max_registers_sm@64 "
            "max_registers_block@68 max_shared_block@72 max_threads@76 block_x@80 block_y@84 "
            "block_z@88 grid_x@92 grid_y@96 grid_z@100 major@104 minor@108 id@112 uuid@120:16s "
            "name@136:q",
        ),
    )
}
