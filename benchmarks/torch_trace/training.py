"""Play the script of a training step to a recorder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.torch_trace.backward import BACKWARD, GROUP, ITEM, UPDATE
from benchmarks.torch_trace.forward import forward
from benchmarks.torch_trace.recorder import AUTOGRAD, MAIN, Allocation, Op, Recorder, Tensor
from benchmarks.torch_trace.script import LAYER_PARAMETERS, PARAMETERS, TENSORS, Line, within

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

Scope = Mapping[str, Tensor]

CALLS = {
    "attributes": "cudaFuncGetAttributes",
    "copy": "Memcpy DtoD (Device -> Device)",
    "download": "Memcpy DtoH (Device -> Pageable)",
    "upload": "Memcpy HtoD (Pageable -> Device)",
    "zero": "Memset (Device)",
}
KEPT_GRADIENTS = 4
ACCUMULATE = "torch::autograd::AccumulateGrad"


@dataclass
class Node:
    """A step of the backward pass, noted in the forward pass."""

    name: str
    sequence: int
    op: Op
    scope: Scope
    saved: list[Allocation]


@dataclass
class Training:
    """One step of training, as it is recorded."""

    record: Recorder = field(default_factory=Recorder)
    tape: list[Node | None] = field(default_factory=list)
    fresh: list[Allocation] = field(default_factory=list)
    gradients: list[Allocation] = field(default_factory=list)
    on_host: list[Allocation] = field(default_factory=list)
    modules: Counter[str] = field(default_factory=Counter)

    def step(self) -> Recorder:
        """Run forward, backward and the optimizer."""
        with self._annotation("ProfilerStep#"):
            self.play(forward(), TENSORS)
            with self.record.frame("torch/_tensor.py(561): backward"):
                self._backward()
            self._optimize()
            self.play(ITEM, TENSORS)
        return self.record

    def play(self, lines: tuple[Line, ...], scope: Scope) -> None:
        """Do what the lines say."""
        for line in lines:
            word, _, rest = line.head.partition(" ")
            if word == "py":
                with self.record.frame(rest):
                    self.play(line.body, scope)
            elif word == "module":
                self._module(rest, line.body, scope)
            elif word == "annotate":
                with self._annotation(rest):
                    self.play(line.body, scope)
            elif word == "bucket":
                self.tape.append(None)
            elif word == "accumulate":
                self._accumulate(_tensor(line.inputs, scope))
            elif word[0] in "@+-!":
                self._happen(word, [], scope)
            else:
                self._operator(line, scope)

    def _module(self, kind: str, body: tuple[Line, ...], scope: Scope) -> None:
        number = self.modules[kind]
        self.modules[kind] += 1
        with (
            self.record.frame(f"nn.Module: {kind}_{number}", module=number),
            self.record.frame("torch/nn/modules/module.py(1783): _call_impl"),
        ):
            with self.record.frame("<built-in method _get_tracing_state of PyCapsule object>"):
                pass
            self.play(body, scope)

    def _annotation(self, name: str) -> AbstractContextManager[Op]:
        return self.record.op(Op(name, 0, is_annotation=True))

    def _operator(self, line: Line, scope: Scope) -> None:
        inputs = [_input(token, scope) for token in line.inputs.split()]
        tensors = [value for value in inputs if isinstance(value, Tensor)]
        sequence = self.record.sequences if line.has_gradient() else None
        with self.record.op(Op(line.head, 0, inputs=inputs, sequence=sequence)) as op:
            for effect in line.effects.split():
                if not effect.startswith("~"):
                    self._happen(effect, tensors, scope)
            self.play(line.body, scope)
            if "~" in line.effects:
                self._note(line.effects.partition("~")[2], op, tensors, scope)

    def _note(self, effect: str, op: Op, tensors: list[Tensor], scope: Scope) -> None:
        name, _, result = effect.partition(":")
        names = dict(zip("abcd", tensors, strict=False))
        saved = {**scope, **names, "g": _tensor(result, scope)}
        self.tape.append(Node(name, self.record.sequences, op, saved, self.fresh))
        self.fresh = []
        self.record.sequences += 1

    def _happen(self, effect: str, tensors: list[Tensor], scope: Scope) -> None:
        sign, (what, _, over) = effect[0], effect[1:].partition(":")
        if sign == "@":
            tensor = _tensor(over, scope) if over else tensors[0]
            self.record.launch(what, tensor.elements)
        elif sign == "!":
            self._call(what, _tensor(over, scope).bytes if over else 3072)
        elif what.isdigit():
            self._host_memory(sign, int(what))
        elif sign == "+":
            self.fresh.append(self.record.allocate(_tensor(what, scope).bytes))
        else:
            self.record.free(self.fresh.pop(0))

    def _call(self, what: str, size: int) -> None:
        if what == "synchronize":
            self.record.synchronize()
        elif what == "attributes":
            self.record.call(CALLS[what])
        else:
            self.record.transfer(CALLS[what], size)

    def _host_memory(self, sign: str, size: int) -> None:
        if sign == "+":
            self.on_host.append(self.record.allocate(size, on_gpu=False))
        else:
            self.record.free(self.on_host.pop())

    def _backward(self) -> None:
        self.record.thread = AUTOGRAD
        for node in reversed(self.tape):
            if node is None:
                self._all_reduce()
            else:
                self._run(node)
        self._release(keep=0)
        self.record.thread = MAIN

    def _run(self, node: Node) -> None:
        evaluate = Op(f"autograd::engine::evaluate_function: {node.name}", 0)
        evaluate.sequence = node.sequence
        inner = Op(node.name, 0, inputs=[node.scope["g"]], sequence=node.sequence)
        body = BACKWARD[node.name]
        with self.record.op(evaluate):
            with self.record.op(inner):
                self.record.flows.append((node.op, inner))
                self.play(tuple(line for line in body if line.head != "accumulate"), node.scope)
            for block in node.saved:
                self.record.free(block)
            self._release(keep=KEPT_GRADIENTS)
        self.play(tuple(line for line in body if line.head == "accumulate"), node.scope)

    def _release(self, keep: int) -> None:
        while len(self.fresh) > keep:
            self.record.free(self.fresh.pop(0))

    def _accumulate(self, tensor: Tensor) -> None:
        own = [block for block in self.fresh if block.bytes == tensor.bytes]
        if own:
            self.fresh.remove(own[0])
            self.gradients.append(own[0])
        with (
            self.record.op(Op(f"autograd::engine::evaluate_function: {ACCUMULATE}", 0)),
            self.record.op(Op(ACCUMULATE, 0, inputs=[tensor])),
            self.record.op(Op("aten::detach", 0, inputs=[tensor])),
            self.record.op(Op("detach", 0, inputs=[tensor])),
        ):
            pass

    def _all_reduce(self) -> None:
        elements = 3 * sum(TENSORS[name].elements for name in LAYER_PARAMETERS)
        message = Tensor((elements,))
        with (
            self.record.op(Op("c10d::allreduce_", 0, inputs=[message, None, None, "-1"])),
            self.record.op(Op("record_param_comms", 0, message=message)),
        ):
            self.record.call("cudaEventRecord")
            self.record.call("cudaStreamWaitEvent")
            with self._annotation("nccl:all_reduce"):
                self.record.launch("all_reduce", elements, message)
            self.record.call("cudaEventRecord")

    def _optimize(self) -> None:
        self.record.join_streams()
        group = "py torch/optim/adamw.py(133): _init_group"
        with (
            self.record.frame("torch/optim/optimizer.py(502): wrapper"),
            self._annotation("Optimizer.step#AdamW.step"),
        ):
            self.play(within(group, body=GROUP * len(PARAMETERS)), TENSORS)
            with self.record.frame("torch/optim/adam.py(347): _single_tensor_adam"):
                for name in PARAMETERS:
                    self.play(UPDATE, {**TENSORS, "p": TENSORS[name]})
        with (
            self.record.frame("torch/optim/optimizer.py(973): zero_grad"),
            self._annotation("Optimizer.zero_grad#AdamW.zero_grad"),
        ):
            for block in self.gradients:
                self.record.free(block)


def _tensor(name: str, scope: Scope) -> Tensor:
    tensor = scope[name.rstrip("'")]
    return tensor.flipped() if name.endswith("'") else tensor


def _input(token: str, scope: Scope) -> Tensor | str | None:
    """Read an input: a tensor, the text of a number or a list, or nothing."""
    if token == "_":
        return None
    listed = re.fullmatch(r"([\[<])([a-z]\w*'?)[\]>]", token)
    if listed:
        tensor = _tensor(listed[2], scope)
        return str(list(tensor.shape if listed[1] == "[" else tensor.steps()))
    if token.rstrip("'") in scope:
        return _tensor(token, scope)
    return token.replace(",", ", ")
