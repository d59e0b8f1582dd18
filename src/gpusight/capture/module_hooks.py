"""What happens when a module of PyTorch is called, and when it returns."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpusight.capture import nvtx
from gpusight.capture.backward_ranges import BackwardRanges, Call
from gpusight.capture.opening import Opened, close_range, compiling, listened, open_range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

_DEEPEST = 5
"""How far into nested outputs tensors are looked for."""


class Hook:
    """A hook that is copied and pickled with its model, though what it does cannot be."""

    def __init__(self, act: Callable[..., None]) -> None:
        self._act = act

    def __call__(self, *given: Any) -> None:
        """Let it act; it gives nothing, so nothing is changed."""
        self._act(*given)

    def __deepcopy__(self, memory: object) -> Self:
        """Mark what the copy does, too."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Do nothing in another process, or where the model is loaded again."""
        return Hook, (_nothing,)


def _nothing(*_: object) -> None:
    """Stand in for what a hook did where it was pickled."""


class _Entered:
    """A call that has not returned."""

    __slots__ = ("call", "nodes", "opened", "owner")

    def __init__(self, owner: object, call: Call, opened: Opened | None, nodes: list[Any]) -> None:
        self.owner, self.call, self.opened = owner, call, opened
        self.nodes = nodes
        """What made the inputs, in autograd's graph; an output from there is no work of ours."""


class Entered(threading.local):
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
        entered: Entered,
        backward: BackwardRanges | None,
    ) -> None:
        self._name = f"{path or 'forward'} ({kind})"
        self._backward_name = f"{path} ({kind}) backward" if path else f"backward ({kind})"
        self._domain = domain
        self._entered, self._backward = entered, backward

    def enter(self, _module: object, *given: object) -> None:
        """Open the forward range, and note what the call was given."""
        heard = listened()
        if not heard and (compiling() or not self._entered.calls):
            return
        calls = self._entered.calls
        call = Call(self._backward_name, calls[-1].call if calls else None)
        opened = open_range(self._name, self._domain) if heard else None
        nodes = []
        if self._backward is not None and nvtx.backend() is not None:
            inputs = list(_with_gradient(given))
            nodes = [tensor.grad_fn for tensor in inputs]
            self._backward.watch_inputs(call, inputs)
        calls.append(_Entered(self, call, opened, nodes))

    def leave(self, _module: object, *given: object) -> None:
        """Close it, and whatever an exception left open inside."""
        if compiling():
            return
        calls = self._entered.calls
        own = next((i for i in reversed(range(len(calls))) if calls[i].owner is self), None)
        if own is None:
            return
        if self._backward is not None and nvtx.backend() is not None:
            nodes = calls[own].nodes
            made = [out for out in _with_gradient(given[-1]) if not _among(out.grad_fn, nodes)]
            self._backward.watch_outputs(calls[own].call, made)
        self._entered.leave(own)

    def reset(self, *_: object) -> None:
        """Forget calls that never returned; for a PyTorch that does not tell of exceptions."""
        if not compiling():
            self._entered.leave(0)


def _among(node: object, nodes: list[Any]) -> bool:
    return any(node is known for known in nodes)


def _with_gradient(value: object) -> Iterator[Any]:
    """Give the tensors in a value that autograd computes a gradient for and then lets go.

    A leaf, such as a parameter that is passed along, lives on, and so would hooks on it.
    """
    for tensor in _tensors(value, sys.modules["torch"].Tensor, _DEEPEST):
        if tensor.requires_grad and tensor.grad_fn is not None:
            yield tensor


def _tensors(value: object, kind: type, deepest: int) -> Iterator[Any]:
    """Give the tensors in tuples, lists, mappings and dataclasses."""
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
    for each in inner if deepest else ():
        yield from _tensors(each, kind, deepest - 1)
