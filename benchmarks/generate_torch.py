"""Write a torch.profiler trace of any size, shaped like that of a real training run.

    python -m benchmarks.generate_torch 200 benchmarks/out/200m.json
    python -m benchmarks.generate_torch 2000 benchmarks/out/2g.json.gz

A size in MB (of the uncompressed JSON) and a file. Each step trains a 12-layer GPT on one of eight
ranks: operators with shapes, strides, types and values, backward nodes on a thread of their own,
runtime calls, kernels on two streams, copies, allocations, Python functions and the flows between
them, laid out as Kineto of torch 2.11 lays them out. Steps differ in all times and ids, never in
what they do. The same size gives the same bytes; memory stays at that of a step or two.
"""

from __future__ import annotations

import gzip
import sys
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.torch_trace.edges import header, overheads, root_frames, trailer
from benchmarks.torch_trace.layout import Layout
from benchmarks.torch_trace.training import Training

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.torch_trace.template import Clock, Filler

ORIGIN_NS = 3_848_581_129_720_452
STEPS_A_BUFFER = 40


def generate(megabytes: float, path: Path) -> None:
    """Write the trace; an existing file of that name is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name.removesuffix(".gz")
    unfinished = path.with_name(f".{path.name}")
    packed = path.suffix == ".gz"
    # No time of writing in it: the same size gives the same bytes.
    with gzip.GzipFile(unfinished, "wb", mtime=0) if packed else unfinished.open("wb") as file:
        for chunk in chunks(count_steps(megabytes), name):
            file.write(chunk)
    unfinished.replace(path)


def count_steps(megabytes: float) -> int:
    """Say how many steps come nearest to a size; ids get longer when there are more."""
    steps = 1
    for _ in range(3):
        clock, parts = Layout(Training().step(), steps).parts()
        middle = clock.quantities(steps // 2, ORIGIN_NS)
        fillers = parts.host + parts.python + parts.gpu
        a_step = sum(len(part.fill(steps // 2, middle)) for part in fillers)
        steps = max(1, round(megabytes * 1e6 / a_step))
    return steps


def chunks(steps: int, name: str) -> Iterator[bytes]:
    """Write the file piece by piece."""
    clock, parts = Layout(Training().step(), steps).parts()
    origins = list(accumulate((clock.length(i) for i in range(steps)), initial=ORIGIN_NS))
    yield header()
    yield from _filled(parts.host, clock, origins)
    yield root_frames(parts.first_root, ORIGIN_NS, origins[-1])
    yield from _filled(parts.python, clock, origins)
    yield overheads(origins[:-1:STEPS_A_BUFFER])
    yield from _filled(parts.gpu, clock, origins)
    yield trailer(name, ORIGIN_NS, origins[-1])


def _filled(parts: list[Filler], clock: Clock, origins: list[int]) -> Iterator[bytes]:
    """Write parts one after the other, each for all steps."""
    for part in parts:
        for step, origin in enumerate(origins[:-1]):
            yield part.fill(step, clock.quantities(step, origin))


if __name__ == "__main__":
    generate(float(sys.argv[1]), Path(sys.argv[2]))
