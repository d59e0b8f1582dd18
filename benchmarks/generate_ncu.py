"""Make a report of Nsight Compute of any size, laid out as the profiler lays out its own.

    python -m benchmarks.generate_ncu 100 report.ncu-rep

A quarter of its bytes are counters (1,500 a launch, a hundred of them with parts for each
instruction) and the rest binaries, as in reports of PyTorch programs. NVIDIA's ncu opens it.
"""

from __future__ import annotations

import argparse
import random
import struct
from pathlib import Path

METRICS = 1_500
WITH_PARTS = 100
PARTS = 30
LAUNCHES_A_BINARY = 2
_UNITS = ("sm", "smsp", "l1tex", "lts", "dram", "gpc", "idc")
_COUNTERS = ("cycles_active", "inst_executed", "t_sectors", "t_requests", "warps_active")
_ROLLUPS = ("sum", "avg", "max", "min")
_SUFFIXES = ("", ".per_second", ".per_cycle_elapsed", ".pct_of_peak_sustained_elapsed")


def varint(value: int) -> bytes:
    """Write a number as protobuf does."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def whole(number: int, value: int) -> bytes:
    """Write a field that holds a whole number."""
    return varint(number << 3) + varint(value)


def part(number: int, content: bytes) -> bytes:
    """Write a field that holds bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def text(number: int, words: str) -> bytes:
    """Write a field that holds a text."""
    return part(number, words.encode())


def real(number: int, value: float) -> bytes:
    """Write a field that holds a real number."""
    return varint(number << 3 | 1) + struct.pack("<d", value)


def names() -> list[str]:
    """Name the counters: those that commands read first, then as many others as it takes."""
    known = [
        "gpu__time_duration.sum",
        "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "sm__warps_active.avg.pct_of_peak_sustained_active",
        "launch__registers_per_thread",
        "launch__waves_per_multiprocessor",
    ]
    others = (
        f"{unit}__{counter}_{n}.{rollup}{suffix}"
        for n in range(METRICS)
        for unit in _UNITS
        for counter in _COUNTERS
        for rollup in _ROLLUPS
        for suffix in _SUFFIXES
    )
    while len(known) < METRICS:
        known.append(next(others))
    return known


def launch(seed: int, address: int) -> bytes:
    """Write the result of one launch."""
    rng = random.Random(seed)
    size = b"".join(whole(axis, 1 + rng.randrange(64)) for axis in (1, 2, 3))
    name = f"kernel_{seed % 50}"
    fields = [whole(n, 1 + seed) for n in (1, 2, 3, 4)]
    fields += [text(5, f"_Z{len(name)}{name}Pf"), text(6, name), text(7, f"{name}(float *)")]
    fields += [whole(8, 3), part(9, size), part(10, size), part(11, size)]
    fields += [part(13, counter(number, rng, address)) for number in range(METRICS)]
    fields += [part(15, whole(1, 1 + seed // LAUNCHES_A_BINARY)), whole(22, 1), whole(23, 7)]
    return b"".join(fields)


def counter(number: int, rng: random.Random, address: int) -> bytes:
    """Write one counter; every fifteenth has parts."""
    message = whole(1, number) + part(2, real(3, rng.random() * 1e6))
    if number % (METRICS // WITH_PARTS) == 1:
        for i in range(PARTS):
            key = part(1, whole(5, address + 16 * i))
            message += part(3, key + part(2, whole(5, rng.randrange(1 << 20))))
    return message


def sized(message: bytes) -> bytes:
    """Put the length of a message in front of it."""
    return struct.pack("<I", len(message)) + message


def block(header: bytes, *messages: bytes) -> bytes:
    """Write a block: its header, then its messages."""
    payload = b"".join(map(sized, messages))
    process = part(6, whole(1, 4242) + text(2, "127.0.0.1") + text(3, "/opt/demo/program"))
    return sized(header + whole(5, len(payload)) + process) + payload


def generate(megabytes: int, path: Path) -> int:
    """Write a report of about this size; gives its launches."""
    table = part(4, b"".join(text(1, name) for name in names()))
    rng = random.Random(0)
    count = 0
    with path.open("wb") as file:
        file.write(b"NVR\0" + sized(whole(1, 7)))
        file.write(block(whole(1, 0) + whole(2, 0) + part(3, whole(2, 1_700_000_000)) + table))
        own = len(launch(0, 1 << 40))
        while file.tell() < megabytes * 1_000_000:
            if count % LAUNCHES_A_BINARY == 0:
                reference = whole(1, 1 + count // LAUNCHES_A_BINARY)
                binary = part(4, b"\x7fELF" + rng.randbytes(LAUNCHES_A_BINARY * 3 * own))
                source = reference + binary + whole(6, 9 << 16)
                file.write(block(whole(1, 1) + whole(2, 0), source))
            file.write(block(whole(1, 0) + whole(2, 1), launch(count, 1 << 40)))
            count += 1
    return count


def main() -> None:
    """Make one report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("megabytes", type=int)
    parser.add_argument("path", type=Path)
    arguments = parser.parse_args()
    print(f"{generate(arguments.megabytes, arguments.path):,} launches")


if __name__ == "__main__":
    main()
