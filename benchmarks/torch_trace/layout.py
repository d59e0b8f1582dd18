"""Write what was recorded of a step in the layout of a Kineto trace, as templates."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from benchmarks.torch_trace.kernels import SMS
from benchmarks.torch_trace.recorder import (
    AUTOGRAD,
    COMMUNICATION,
    COMPUTE,
    MAIN,
    Allocation,
    Call,
    Frame,
    Op,
    Recorder,
    Span,
    Tensor,
    Work,
)
from benchmarks.torch_trace.template import Clock, Filler, Template

PID = 4570
TIDS = (PID, PID + 21)
RANKS = 8
RESERVED_BYTES = 6_643_777_536
FIRST_SEQUENCE, FIRST_CORRELATION, ROOT_FRAMES = 1689, 41, 2
CALLBACKS = {
    "cuLaunchKernel": 307,
    "cudaDeviceGetAttribute": 200,
    "cudaEventRecord": 135,
    "cudaFuncGetAttributes": 15,
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaStreamSynchronize": 131,
    "cudaStreamWaitEvent": 147,
}
COLLECTIVE = (
    '"Collective name": "allreduce", "In msg nelems": {0}, "Out msg nelems": {0},'
    f' "Group size": {RANKS}, "dtype": "Float", "In split size": "[]", "Out split size": "[]",'
    ' "Process Group Name": "0", "Process Group Description": "default_pg",'
    f' "Process Group Ranks": "{list(range(RANKS))}"'
)


@dataclass(frozen=True)
class Parts:
    """The parts of the file; the root frames of Python come before `python`."""

    first_root: int
    host: list[Filler]
    python: list[Filler]
    gpu: list[Filler]


@dataclass
class Layout:
    """The parts of the file, in their order, for a run of so many steps."""

    record: Recorder
    steps: int
    _spans: list[Span] = field(default_factory=list)
    _bytes: list[int] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)
    _events: int = 0

    def parts(self) -> tuple[Clock, Parts]:
        """Make the templates, and the clock that fills them."""
        host = [
            self._operators(AUTOGRAD),
            self._memory(AUTOGRAD),
            self._operators(MAIN),
            self._memory(MAIN),
        ]
        first_root = self._events
        self._events += ROOT_FRAMES
        python = [self._python()]
        gpu = [self._calls(MAIN), self._calls(AUTOGRAD), self._annotations()]
        clock, spans = Clock(self._spans, self._bytes), len(self._spans)
        done = [[part.filler(spans) for part in parts] for parts in (host, python, gpu)]
        return clock, Parts(first_root, *done)

    def _number(self, span: Span) -> int:
        """Number a span for the clock, once."""
        if id(span) not in self._numbers:
            self._numbers[id(span)] = len(self._spans)
            self._spans.append(span)
            self._bytes.append(span.bytes if isinstance(span, Work) else 0)
        return self._numbers[id(span)]

    def _external_id(self, part: Template, op: Op) -> str:
        before = self.steps * len(self.record.ops[MAIN]) if op.thread == AUTOGRAD else 0
        return part.counter(1 + before + op.index, len(self.record.ops[op.thread]))

    def _event_index(self, part: Template, of: int) -> str:
        part.count += 1
        return part.counter(self._events + part.count - 1, of)

    def _name(self, part: Template, op: Op) -> str:
        return op.name + (part.counter(1, 1) if op.name.endswith("#") else "")

    def _operators(self, thread: int) -> Template:
        part = Template()
        flows = {id(flow[thread]): i for i, flow in enumerate(self.record.flows, start=1)}
        ops = self.record.ops[thread]
        for op in ops:
            category = "user_annotation" if op.is_annotation else "cpu_op"
            head = _head(category, self._name(part, op), (PID, TIDS[thread]))
            number = self._number(op)
            part.add(head + _times(part, number))
            arguments = f'"External id": {self._external_id(part, op)},{self._described(part, op)}'
            part.add(f'{arguments}, "Ev Idx": {self._event_index(part, len(ops))}' + _END)
            if id(op) in flows:
                flow = part.counter(flows[id(op)], len(self.record.flows))
                ends = thread == AUTOGRAD
                part.add(_flow(part, "fwdbwd", flow, (PID, TIDS[thread]), number, ends=ends))
        self._events += self.steps * part.count
        return part

    def _described(self, part: Template, op: Op) -> str:
        record = '"Record function id": 0'
        if op.message:
            return f"{record}, {COLLECTIVE.format(op.message.elements)}"
        sequence = ""
        if op.sequence is not None:
            number = part.counter(FIRST_SEQUENCE + op.sequence, self.record.sequences)
            sequence = f'"Sequence number": {number}, "Fwd thread id": {op.thread}'
        if op.inputs is None:
            return f"{record}, {sequence}" if sequence else record
        return ", ".join(filter(None, (sequence, record, _inputs(op.inputs))))

    def _memory(self, thread: int) -> Template:
        part = Template()
        blocks = self.record.allocations[thread]
        for block in blocks:
            part.add(
                '  {\n    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",\n'
                f'    "pid": {PID}, "tid": {TIDS[thread]},\n'
                f'    "ts": {part.start(self._number(block))},\n    "args": {{\n      '
            )
            part.add(f'{_block(block)}, "Ev Idx": {self._event_index(part, len(blocks))}' + _END)
        self._events += self.steps * part.count
        return part

    def _python(self) -> Template:
        part = Template()
        frames = self.record.frames
        for frame in frames:
            part.add(_head("python_function", frame.name, (PID, PID)))
            part.add(_times(part, self._number(frame)))
            part.add(self._python_ids(part, frame, len(frames)))
            part.add(f', "Ev Idx": {self._event_index(part, len(frames))}' + _END)
        self._events += self.steps * part.count
        return part

    def _python_ids(self, part: Template, frame: Frame, a_step: int) -> str:
        first = ROOT_FRAMES + 1
        root = frame.parent is None
        parent = ROOT_FRAMES if frame.parent is None else first + frame.parent
        ids = f'"Python parent id": {part.counter(parent, 0 if root else a_step)}'
        ids += f', "Python id": {part.counter(first + frame.index, a_step)}'
        return ids + (f', "Python module id": {frame.module}' if frame.module is not None else "")

    def _calls(self, thread: int) -> Template:
        part = Template()
        for call in self.record.calls:
            if call.thread == thread:
                if call.work:
                    self._work(part, call, call.work)
                self._call(part, call)
        return part

    def _correlation(self, part: Template, call: Call) -> str:
        return part.counter(FIRST_CORRELATION + call.index, len(self.record.calls))

    def _external(self, part: Template, call: Call) -> str:
        return f'"External id": {self._external_id(part, call.op)},' if call.op else ""

    def _work(self, part: Template, call: Call, work: Work) -> None:
        kind = "kernel" if work.kernel else "gpu_" + work.name.partition(" ")[0].lower()
        number, place = self._number(work), (0, work.stream)
        part.add(_head(kind, work.name, place) + _times(part, number))
        external, gap = self._external(part, call), " " * 6
        queued = '"queued": 0, ' if work.kernel else ""
        where = f'"device": 0, "context": 1,{gap}"stream": {work.stream}'
        part.add(f'{external}{gap}{queued}{where}, "correlation": {self._correlation(part, call)}')
        bandwidth = '"memory bandwidth (GB/s)": '
        if work.kernel:
            part.add(_launch(work) + _END)
        else:
            part.add(f',{gap}"bytes": {work.bytes}, {bandwidth}{part.rate(number)}' + _END)
        part.add(_flow(part, "ac2g", self._correlation(part, call), place, number, ends=True))

    def _call(self, part: Template, call: Call) -> None:
        kind = "cuda_driver" if call.name.startswith("cuL") else "cuda_runtime"
        number, place = self._number(call), (PID, TIDS[call.thread])
        part.add(_head(kind, call.name, place) + _times(part, number))
        external = self._external(part, call)
        callback = f'{external}      "cbid": {CALLBACKS[call.name]}'
        part.add(f'{callback}, "correlation": {self._correlation(part, call)}' + _END)
        starts = call.work is not None or call.name.endswith("Synchronize")
        flow = self._correlation(part, call)
        part.add(_flow(part, "ac2g", flow, place, number, ends=not starts))

    def _annotations(self) -> Template:
        """Lay the user's annotations over the GPU work that was launched inside them."""
        part = Template()
        for op in (op for ops in self.record.ops for op in ops if op.is_annotation):
            for stream in (COMPUTE, COMMUNICATION):
                covered = self._covered(op, stream)
                if covered:
                    head = _head("gpu_user_annotation", self._name(part, op), (0, stream))
                    part.add(head + _times(part, self._number(covered)))
                    part.add(f'"External id": {self._external_id(part, op)}' + _END)
        return part

    def _covered(self, op: Op, stream: int) -> Span | None:
        inside = [
            call.work
            for call in self.record.calls
            if call.work and call.work.stream == stream and call.thread == op.thread
            if op.start <= call.start < op.end
        ]
        if not inside:
            return None
        return Span(op.name, inside[0].start, inside[-1].end)


_END = "\n    }\n  },\n"


def _head(category: str, name: str, place: tuple[int, int]) -> str:
    pid, tid = place
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
    )


def _times(part: Template, span: int) -> str:
    start, duration = part.start(span), part.duration(span)
    return f'    "ts": {start}, "dur": {duration},\n    "args": {{\n      '


def _flow(
    part: Template, kind: str, flow: str, place: tuple[int, int], span: int, *, ends: bool
) -> str:
    pid, tid = place
    phase, close = ("f", ', "bp": "e"') if ends else ("s", "")
    return (
        f'  {{\n    "ph": "{phase}", "id": {flow}, "pid": {pid}, "tid": {tid},'
        f' "ts": {part.start(span)},\n    "cat": "{kind}", "name": "{kind}"{close}\n  }},\n'
    )


def _inputs(inputs: list[Tensor | str | None]) -> str:
    concrete = [value if isinstance(value, str) else "" for value in inputs]
    shapes = [list(value.shape) if isinstance(value, Tensor) else [] for value in inputs]
    strides = [list(value.steps()) if isinstance(value, Tensor) else [] for value in inputs]
    types = [_type(value) for value in inputs]
    return (
        f'"Concrete Inputs": {json.dumps(concrete)}, "Input type": {json.dumps(types)},'
        f' "Input Strides": {strides}, "Input Dims": {shapes}'
    )


def _type(value: Tensor | str | None) -> str:
    if isinstance(value, Tensor):
        return value.type
    if value is None:
        return ""
    return "ScalarList" if value.startswith("[") else "Scalar"


def _block(block: Allocation) -> str:
    reserved, device, kind = (RESERVED_BYTES, 0, 1) if block.on_gpu else (0, -1, 0)
    return (
        f'"Total Reserved": {reserved}, "Total Allocated": {block.total}, "Bytes": {block.bytes},'
        f' "Device Id": {device}, "Device Type": {kind}, "Addr": {block.address},'
        ' "finished": false'
    )


def _launch(work: Work) -> str:
    kernel = work.kernel
    assert kernel is not None
    x, y, z = kernel.block
    blocks = work.grid / SMS
    warps = blocks * (x * y * z / 32)
    collective = f", {COLLECTIVE.format(work.message.elements)}" if work.message else ""
    gap = " " * 6
    return (
        f',{gap}"registers per thread": {kernel.registers},'
        f'{gap}"shared memory": {kernel.shared_bytes},{gap}"blocks per SM": {blocks:.6f},'
        f'{gap}"warps per SM": {warps:.6f},{gap}"grid": [{work.grid}, 1, 1],'
        f'{gap}"block": [{x}, {y}, {z}],'
        f'{gap}"est. achieved occupancy %": {kernel.occupancy}{collective}'
    )
