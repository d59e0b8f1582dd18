"""Ranges for every module of a PyTorch model, forward and backward: `gs.annotate_model`."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import threading
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpusight.errors import RecordError, UsageError
from gpusight.recording.inside import nvtx_backend
from gpusight.recording.inside.annotate import (
    OpenRange,
    close_range,
    compiling,
    is_recording,
    open_range,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self


class ModuleCall:
    """One call of a module in the forward pass."""

    __slots__ = ("awaited", "inputs", "name", "outer")

    def __init__(self, name: str, outer: ModuleCall | None) -> None:
        self.name = name
        """Of its backward."""
        self.outer = outer
        """The call that it was part of."""
        self.inputs = 0
        """How many of its inputs get a gradient."""
        self.awaited = 0
        """How many of them have none yet in this backward pass."""

    def path(self) -> list[ModuleCall]:
        """List the calls around it, outermost first, and itself."""
        calls: list[ModuleCall] = []
        call: ModuleCall | None = self
        while call is not None:
            calls.append(call)
            call = call.outer
        return calls[::-1]


class _Pass:
    """One backward pass on a thread; another may run inside it (reentrant checkpoints)."""

    def __init__(self, task: int, base: int) -> None:
        self.task = task
        self.base = base
        """How many ranges were open when it began."""
        self.over = False


class _Thread(threading.local):
    """What is open on one of autograd's threads."""

    def __init__(self) -> None:
        self.open: list[tuple[ModuleCall, Callable[[], None]]] = []
        self.passes: list[_Pass] = []


class BackwardRanges:
    """Opens and closes ranges as gradients arrive."""

    def __init__(self, domain: str, *, stacked: bool) -> None:
        self._domain = domain
        self._stacked = stacked
        """Ranges lie on the stack of the thread; not where several threads share a pass."""
        self._thread = _Thread()

    def begin(self, call: ModuleCall) -> None:
        """Open the call's range and those around it; close what has no part in it."""
        base = self._current_pass().base
        open_now = self._thread.open
        if self._depth(call, base) is not None:
            return  # the gradient of another of its outputs
        path = call.path()
        while len(open_now) > base and open_now[-1][0] not in path:
            open_now.pop()[1]()
        known = [opened for opened, _ in open_now[base:]]
        for outer in path:
            if outer not in known:
                outer.awaited = outer.inputs
                open_now.append((outer, self._open(outer.name)))

    def receive(self, call: ModuleCall) -> None:
        """Close the call's range and those inside, if it is open and this was the last input.

        A gradient that other calls add to is complete later than the call; the next begins before.
        """
        depth = self._depth(call, self._current_pass().base)
        call.awaited -= 1
        if depth is not None and call.awaited <= 0:
            self._close_to(self._thread.open, depth)

    def _depth(self, call: ModuleCall, base: int) -> int | None:
        """Return at which depth of the stack the call is open."""
        open_now = self._thread.open
        return next((i for i in range(base, len(open_now)) if open_now[i][0] is call), None)

    def _open(self, name: str) -> Callable[[], None]:
        """Open a range; returns what closes it."""
        backend = nvtx_backend.backend()
        if backend is None:
            return lambda: None
        if self._stacked:
            backend.push(nvtx_backend.NvtxEvent(name, self._domain))
            return lambda: backend.pop(self._domain)
        handle = backend.start(nvtx_backend.NvtxEvent(name, self._domain))
        return lambda: backend.end(handle)

    def _current_pass(self) -> _Pass:
        """Return the backward pass that runs; at its first gradient, register for its end."""
        passes, torch = self._thread.passes, sys.modules["torch"]
        graph_task = getattr(torch._C, "_current_graph_task_id", None)
        task = 0 if graph_task is None else int(graph_task())  # PyTorch 1 has no numbers
        # Where a pass further out goes on, the innermost has ended without notice.
        while passes and (
            passes[-1].over
            or (passes[-1].task != task and any(outer.task == task for outer in passes[:-1]))
        ):
            self._close_to(self._thread.open, passes.pop().base)
        if not passes or passes[-1].task != task:
            passes.append(_Pass(task, len(self._thread.open)))
            self._finish_later(passes[-1])
        return passes[-1]

    def _finish_later(self, done: _Pass) -> None:
        """Close what is open when the pass ends.

        The callback runs on the thread that did the last of the pass. Where that is another one,
        it must leave our stack alone, and our next gradient clears up.
        """
        passes, open_now, thread = self._thread.passes, self._thread.open, threading.get_ident()

        def finish() -> None:
            done.over = True
            if self._stacked and threading.get_ident() != thread:
                return
            self._close_to(open_now, done.base)
            if done in passes:
                del passes[passes.index(done) :]

        sys.modules["torch"].autograd.Variable._execution_engine.queue_callback(finish)

    @staticmethod
    def _close_to(open_now: list[tuple[ModuleCall, Callable[[], None]]], depth: int) -> None:
        while len(open_now) > depth:
            open_now.pop()[1]()


_DEEPEST = 5
"""How far into nested outputs tensors are looked for."""


class ModuleHook:
    """A hook that is copied and pickled with its model, though what it does cannot be."""

    def __init__(self, act: Callable[..., None]) -> None:
        self._act = act

    def __call__(self, *arguments: Any) -> None:
        """Let it act; it returns nothing, so nothing is changed."""
        self._act(*arguments)

    def __deepcopy__(self, memory: object) -> Self:
        """Mark what the copy does, too."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Do nothing in another process, or where the model is loaded again."""
        return ModuleHook, (_nothing,)


def _nothing(*_: object) -> None:
    """Stand in for what a hook did where it was pickled."""


class _Entered:
    """A call that has not returned."""

    __slots__ = ("call", "nodes", "opened", "owner")

    def __init__(
        self, owner: object, call: ModuleCall, opened: OpenRange | None, nodes: list[Any]
    ) -> None:
        self.owner, self.call, self.opened = owner, call, opened
        self.nodes = nodes
        """What made the inputs, in autograd's graph; the call did not compute their outputs."""


class EnteredModules(threading.local):
    """The calls that a thread is in, outermost first."""

    def __init__(self) -> None:
        self.calls: list[_Entered] = []

    def leave(self, depth: int) -> None:
        """Close the ranges of all calls from this depth on."""
        while len(self.calls) > depth:
            close_range(self.calls.pop().opened)


class ModuleHooks:
    """The ranges of one module."""

    def __init__(
        self,
        path: str,
        kind: str,
        domain: str | None,
        entered: EnteredModules,
        backward: BackwardRanges | None,
    ) -> None:
        self._name = f"{path or 'forward'} ({kind})"
        self._backward_name = f"{path} ({kind}) backward" if path else f"backward ({kind})"
        self._domain = domain
        self._entered, self._backward = entered, backward

    def enter(self, _module: object, *arguments: object) -> None:
        """Open the forward range; end the backward one when all inputs have their gradients."""
        recording = is_recording()
        if not recording and (compiling() or not self._entered.calls):
            return
        calls = self._entered.calls
        call = ModuleCall(self._backward_name, calls[-1].call if calls else None)
        opened = open_range(self._name, self._domain) if recording else None
        nodes, backward = [], self._backward
        if backward is not None and nvtx_backend.backend() is not None:
            for tensor in _with_gradient(arguments):
                nodes.append(tensor.grad_fn)
                tensor.register_hook(lambda _: backward.receive(call))
            call.inputs = len(nodes)
        calls.append(_Entered(self, call, opened, nodes))

    def leave(self, _module: object, *arguments: object) -> None:
        """Close it, and whatever an exception left open inside."""
        if compiling():
            return
        calls = self._entered.calls
        own = next((i for i in reversed(range(len(calls))) if calls[i].owner is self), None)
        if own is None:
            return
        backward, call = self._backward, calls[own].call
        if backward is not None and nvtx_backend.backend() is not None:
            for output in _with_gradient(arguments[-1]):
                if not any(output.grad_fn is node for node in calls[own].nodes):
                    output.register_hook(lambda _: backward.begin(call))
        self._entered.leave(own)

    def reset(self, *_: object) -> None:
        """Forget calls that never returned; for a PyTorch without hooks on exceptions."""
        if not compiling():
            self._entered.leave(0)


def _with_gradient(value: object) -> list[Any]:
    """List the tensors in a value that autograd computes a gradient for and then lets go.

    A leaf, such as a parameter that is passed along, lives on, and so would hooks on it.
    """
    tensors = _tensors(value, sys.modules["torch"].Tensor, _DEEPEST)
    return [tensor for tensor in tensors if tensor.requires_grad and tensor.grad_fn is not None]


def _tensors(value: object, kind: type, deepest: int) -> Iterator[Any]:
    """Yield the tensors in tuples, lists, mappings and dataclasses."""
    if isinstance(value, kind):
        yield value
        return
    inner: Any = ()
    if isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, (tuple, list)):
        inner = value
    elif dataclasses.is_dataclass(value):
        inner = (getattr(value, field.name) for field in dataclasses.fields(value))
    for item in inner if deepest else ():
        yield from _tensors(item, kind, deepest - 1)


class ModelRanges:
    """The ranges of a model, until they are removed; a context manager removes them at its end."""

    def __init__(self) -> None:
        self._hooks: list[Any] = []
        self._operations: Any = None

    def __enter__(self) -> Self:
        """Keep them until the end of the `with`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove them."""
        self.remove()

    def remove(self) -> None:
        """Remove all hooks."""
        while self._hooks:
            self._hooks.pop().remove()
        if self._operations is not None:
            self._operations.__exit__(None, None, None)
            self._operations = None

    def add_module(self, module: Any, hooks: ModuleHooks, *, is_root: bool) -> None:
        """Follow a module's calls, with what this PyTorch offers."""
        pre, post = module.register_forward_pre_hook, module.register_forward_hook
        has_keywords = "with_kwargs" in inspect.signature(pre).parameters
        has_exceptions = "always_call" in inspect.signature(post).parameters
        if is_root and not has_exceptions:
            self._hooks.append(pre(ModuleHook(hooks.reset)))
        first = {"prepend": True, "with_kwargs": True} if has_keywords else {}
        self._hooks.append(pre(ModuleHook(hooks.enter), **first))
        always = {"always_call": True} if has_exceptions else {}
        self._hooks.append(post(ModuleHook(hooks.leave), **always))

    def add_optimizer(self, optimizer: Any, domain: str | None) -> None:
        """Mark an optimizer's steps."""
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise UsageError(
                f"{type(optimizer).__name__} has no hooks on its steps",
                hint="optimizers of PyTorch 2.0 and later have",
            )
        hooks = ModuleHooks(
            "optimizer.step", type(optimizer).__name__, domain, EnteredModules(), None
        )

        def begin(*_: object) -> None:
            hooks.reset()  # a step that raised has called no hook at its end
            hooks.enter(optimizer)

        self._hooks.append(optimizer.register_step_pre_hook(ModuleHook(begin)))
        self._hooks.append(optimizer.register_step_post_hook(ModuleHook(hooks.leave)))

    def add_operations(self) -> None:
        """Mark every operation that this thread runs, and its backward, if a tool listens."""
        if nvtx_backend.backend() is None:
            return
        torch = sys.modules["torch"]
        if not torch.cuda.is_available():
            raise RecordError(
                "operations cannot be annotated", why="PyTorch supports that only with a GPU"
            )
        self._operations = torch.autograd.profiler.emit_nvtx()
        self._operations.__enter__()


_ANNOTATED: weakref.WeakKeyDictionary[Any, ModelRanges] = weakref.WeakKeyDictionary()
"""What marks each model now: a notebook's cell is run more than once."""


def annotate_model(
    model: Any,
    *,
    depth: int | None = None,
    backward: bool = True,
    include: str | Callable[[str, Any], bool] | None = None,
    domain: str | None = None,
    optimizer: Any = None,
    ops: bool = False,
) -> ModelRanges:
    """Mark the forward and backward pass of a model and of every module in it.

    >>> ranges = gs.annotate_model(model, depth=2, optimizer=optimizer)
    >>> ranges.remove()

    The model's own ranges are `forward (GPT)` and `backward (GPT)`, those of its modules
    `layers.0.mlp (MLP)` and `layers.0.mlp (MLP) backward`. The backward pass is marked for tools
    that hear NVTX only, in the domain `gpusight` unless `domain` names one.

    `depth` is how many levels below the model are marked, `include` a regular expression that
    paths must contain, or a function of path and module. `optimizer` (one or a list) marks its
    steps. `ops` marks every operation and its backward, too, as `emit_nvtx` of PyTorch does: two
    ranges for each. Steps of a small model under nsys took about half as much again (16 ms, not
    11); without a tool that listens it does nothing.

    A model has one set of ranges: marking it again replaces the former.

    Inside functions that `torch.compile` compiles nothing is marked, and no graph is broken. A
    model goes into `torch.cuda.make_graphed_callables` only without the ranges.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"a {type(model).__name__} is not a module of PyTorch",
            hint="gs.annotate works in any program",
        )
    wanted = _module_filter(include)
    former = _ANNOTATED.pop(model, None)
    if former is not None:
        former.remove()
    ranges = _ANNOTATED[model] = ModelRanges()
    entered = EnteredModules()
    backward_ranges = None
    if backward:
        stacked = _on_one_thread(model)
        backward_ranges = BackwardRanges(domain or nvtx_backend.DOMAIN, stacked=stacked)
    for path, module in model.named_modules():  # a shared one once, by the first of its paths
        level = path.count(".") + 1 if path else 0
        if (depth is None or level <= depth) and wanted(path, module):
            hooks = ModuleHooks(path, type(module).__name__, domain, entered, backward_ranges)
            ranges.add_module(module, hooks, is_root=not path)
    for item in optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]:
        if item is not None:
            ranges.add_optimizer(item, domain)
    if ops:
        ranges.add_operations()
    return ranges


def _module_filter(include: str | Callable[[str, Any], bool] | None) -> Callable[[str, Any], bool]:
    if include is None:
        return lambda _path, _module: True
    if callable(include):
        return include
    try:
        pattern = re.compile(include)
    except re.error as error:
        raise UsageError(
            f"include={include!r} is not a regular expression", why=str(error)
        ) from None
    return lambda path, _module: pattern.search(path) is not None


def _on_one_thread(model: Any) -> bool:
    """Return whether one thread runs the backward pass: autograd has one for each device."""
    torch = sys.modules["torch"]
    if any(isinstance(module, torch.nn.DataParallel) for module in model.modules()):
        return False
    return len({parameter.device for parameter in model.parameters()}) <= 1
