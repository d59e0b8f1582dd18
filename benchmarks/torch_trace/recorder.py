"""A make-believe GPU run: clocks that advance as operators, calls and kernels are recorded.

Time is in nanoseconds from the start of the step. The host has two threads that take turns (the
one that runs Python and the one that runs the backward pass), the GPU has streams on which work
starts when it was launched and what came before it is done.
"""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.torch_trace.kernels import KERNELS, Kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

MAIN, AUTOGRAD = 0, 1
COMPUTE, COMMUNICATION = 7, 20
ENTER_NS, LEAVE_NS, FRAME_NS, CALL_NS, QUEUE_NS = 1_800, 900, 400, 6_400, 1_300
ELEMENT_BYTES = {"float": 4, "double": 8, "long int": 8, "bool": 1}
FIRST_ADDRESS = {True: 140_227_105_521_664, False: 1_398_069_568}
WEIGHTS_BYTES = 1_613_000_704


@dataclass(frozen=True)
class Tensor:
    """What a trace says of a tensor that is passed to an operator."""

    shape: tuple[int, ...]
    type: str = "float"
    strides: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        """Count its elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Say how much memory it takes."""
        return self.elements * ELEMENT_BYTES[self.type]

    def steps(self) -> tuple[int, ...]:
        """Give the strides; those of a tensor without gaps where none were given."""
        return self.strides or tuple(math.prod(self.shape[i + 1 :]) for i in range(len(self.shape)))

    def flipped(self) -> Tensor:
        """Give the view of it with the last two dimensions swapped."""
        shape, steps = self.shape, self.steps()
        return Tensor((*shape[:-2], *shape[:-3:-1]), self.type, (*steps[:-2], *steps[:-3:-1]))


@dataclass
class Span:
    """Something that takes time."""

    name: str
    start: int
    end: int = 0


@dataclass
class Op(Span):
    """An operator, or an annotation by the user."""

    thread: int = MAIN
    index: int = 0
    inputs: list[Tensor | str | None] | None = None
    sequence: int | None = None
    is_annotation: bool = False
    message: Tensor | None = None


@dataclass
class Frame(Span):
    """A Python function."""

    index: int = 0
    parent: int | None = None
    module: int | None = None


@dataclass
class Allocation(Span):
    """An allocation (bytes > 0) or its end; `end` is `start`."""

    thread: int = MAIN
    bytes: int = 0
    address: int = 0
    total: int = 0
    on_gpu: bool = True


@dataclass
class Call(Span):
    """A call of the CUDA runtime or driver."""

    thread: int = MAIN
    index: int = 0
    op: Op | None = None
    work: Work | None = None


@dataclass
class Work(Span):
    """Something that the GPU did."""

    stream: int = COMPUTE
    bytes: int = 0
    kernel: Kernel | None = None
    grid: int = 0
    message: Tensor | None = None


@dataclass
class Recorder:
    """Everything that happened in one step."""

    ops: list[list[Op]] = field(default_factory=lambda: [[], []])
    allocations: list[list[Allocation]] = field(default_factory=lambda: [[], []])
    frames: list[Frame] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    flows: list[tuple[Op, Op]] = field(default_factory=list)
    sequences: int = 0
    clock: int = 0
    thread: int = MAIN
    _open_ops: list[Op] = field(default_factory=list)
    _open_frames: list[Frame] = field(default_factory=list)
    _free_at: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    _live: dict[bool, int] = field(default_factory=lambda: {True: WEIGHTS_BYTES, False: 0})
    _top: dict[bool, int] = field(default_factory=lambda: dict(FIRST_ADDRESS))
    _holes: dict[tuple[bool, int], list[int]] = field(default_factory=lambda: defaultdict(list))

    @contextmanager
    def op(self, op: Op) -> Iterator[Op]:
        """Record an operator around what is done inside."""
        op.thread, op.start, op.index = self.thread, self.clock, len(self.ops[self.thread])
        self.ops[self.thread].append(op)
        self._open_ops.append(op)
        self.clock += ENTER_NS
        yield op
        self.clock += LEAVE_NS
        op.end = self.clock
        self._open_ops.pop()
        self.clock += LEAVE_NS

    @contextmanager
    def frame(self, name: str, module: int | None = None) -> Iterator[None]:
        """Record a Python function around what is done inside."""
        parent = self._open_frames[-1].index if self._open_frames else None
        frame = Frame(name, self.clock, index=len(self.frames), parent=parent, module=module)
        self.frames.append(frame)
        self._open_frames.append(frame)
        self.clock += FRAME_NS
        yield
        frame.end = self.clock
        self._open_frames.pop()
        self.clock += FRAME_NS

    def allocate(self, size: int, *, on_gpu: bool = True) -> Allocation:
        """Record that memory was taken."""
        holes = self._holes[on_gpu, size]
        if not holes:
            holes.append(self._top[on_gpu])
            self._top[on_gpu] += -(-size // 512) * 512
        return self._memory(size, holes.pop(), on_gpu)

    def free(self, block: Allocation) -> None:
        """Record that memory was given back."""
        self._memory(-block.bytes, block.address, block.on_gpu)
        self._holes[block.on_gpu, block.bytes].append(block.address)

    def launch(self, name: str, elements: int, message: Tensor | None = None) -> None:
        """Launch a kernel; what a library asks first depends on whose kernel it is."""
        kernel = KERNELS[name]
        if kernel.api == "cuLaunchKernel":
            self.call("cudaDeviceGetAttribute")
        stream = COMMUNICATION if message else COMPUTE
        work = Work(kernel.name, 0, kernel=kernel, grid=kernel.blocks(elements), stream=stream)
        work.message = message
        self.call(kernel.api, work, kernel.duration_ns(elements))

    def transfer(self, name: str, size: int) -> None:
        """Copy or clear memory on the GPU."""
        api = "cudaMemsetAsync" if name.startswith("Memset") else "cudaMemcpyAsync"
        self.call(api, Work(name, 0, bytes=size), 900 + size // 2_000)

    def call(self, name: str, work: Work | None = None, duration: int = 0) -> None:
        """Call into CUDA, which may start work."""
        op = next((op for op in reversed(self._open_ops) if not op.is_annotation), None)
        call = Call(name, self.clock, thread=self.thread, index=len(self.calls), op=op, work=work)
        self.calls.append(call)
        self.clock += CALL_NS if work else CALL_NS // 4
        call.end = self.clock
        if work:
            work.start = max(self._free_at[work.stream], call.end + QUEUE_NS)
            work.end = work.start + duration
            self._free_at[work.stream] = work.end + QUEUE_NS // 2
        self.clock += LEAVE_NS

    def join_streams(self) -> None:
        """Let the compute stream wait for the communication."""
        self.call("cudaStreamWaitEvent")
        self._free_at[COMPUTE] = max(self._free_at.values())

    def synchronize(self) -> None:
        """Wait on the host until the GPU is done."""
        self.call("cudaStreamSynchronize")
        self.clock = max(self.clock, *self._free_at.values()) + QUEUE_NS
        self.calls[-1].end = self.clock
        self.clock += LEAVE_NS

    def _memory(self, size: int, address: int, on_gpu: bool) -> Allocation:
        self._live[on_gpu] += size
        total = self._live[on_gpu]
        block = Allocation("", self.clock, self.clock, self.thread, size, address, total, on_gpu)
        self.allocations[self.thread].append(block)
        self.clock += LEAVE_NS
        return block
