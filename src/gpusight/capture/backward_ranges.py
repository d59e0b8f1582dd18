"""Ranges for the backward pass of modules, from the gradients that arrive.

Autograd works through a graph in the reverse of the order in which it was made, so the calls of
modules come back last to first, and nested as they were. A call's backward begins when the
gradient of an output arrives. It ends when the gradients of its inputs are complete, when a call
that is not inside it begins, or with the backward pass, whichever is first. That needs hooks on
tensors only: nothing is put into the graph, so views, changes in place and checkpoints work.

The ranges have a domain of their own. Tools that mark every operation of autograd do it on the
same thread, around our hooks, and on a common stack each would close the other's ranges.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from gpusight.capture import nvtx

if TYPE_CHECKING:
    from collections.abc import Callable


class Call:
    """One call of a module in the forward pass."""

    __slots__ = ("awaited", "inputs", "name", "outer")

    def __init__(self, name: str, outer: Call | None) -> None:
        self.name = name
        """Of its backward."""
        self.outer = outer
        """The call that it was part of."""
        self.inputs = 0
        """How many of its inputs get a gradient."""
        self.awaited = 0
        """How many of them have none yet in this backward pass."""

    def path(self) -> list[Call]:
        """List the calls around it, outermost first, and itself."""
        found: list[Call] = []
        call: Call | None = self
        while call is not None:
            found.append(call)
            call = call.outer
        return found[::-1]


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
        self.open: list[tuple[Call, Callable[[], None]]] = []
        self.passes: list[_Pass] = []


class BackwardRanges:
    """Opens and closes ranges as gradients arrive."""

    def __init__(self, domain: str, *, stacked: bool) -> None:
        self._domain = domain
        self._stacked = stacked
        """Ranges lie on the stack of the thread; not where several threads share a pass."""
        self._thread = _Thread()

    def watch_outputs(self, call: Call, tensors: list[Any]) -> None:
        """Begin the call's backward when a gradient of these arrives."""
        for tensor in tensors:
            tensor.register_hook(lambda _: self._begin(call))

    def watch_inputs(self, call: Call, tensors: list[Any]) -> None:
        """End the call's backward when the gradients of all of these are complete.

        One that other calls use as well is complete later than the call; the next begins before.
        """
        call.inputs = len(tensors)
        for tensor in tensors:
            tensor.register_hook(lambda _: self._receive(call))

    def _begin(self, call: Call) -> None:
        """Open the call's range and those around it; close what has no part in it."""
        base = self._current_pass().base
        open_now = self._thread.open
        if self._depth(call, base) is not None:
            return  # the gradient of another of its outputs
        path = call.path()
        while len(open_now) > base and open_now[-1][0] not in path:
            open_now.pop()[1]()
        known = [opened for opened, _ in open_now[base:]]
        for each in path:
            if each not in known:
                each.awaited = each.inputs
                open_now.append((each, self._open(each.name)))

    def _receive(self, call: Call) -> None:
        """Close the call's range and those inside, if it is open and this was the last input."""
        depth = self._depth(call, self._current_pass().base)
        call.awaited -= 1
        if depth is not None and call.awaited <= 0:
            self._close_to(self._thread.open, depth)

    def _depth(self, call: Call, base: int) -> int | None:
        """Tell at which depth of the stack the call is open."""
        open_now = self._thread.open
        return next((i for i in range(base, len(open_now)) if open_now[i][0] is call), None)

    def _open(self, name: str) -> Callable[[], None]:
        """Open a range; gives what closes it."""
        speaker = nvtx.backend()
        if speaker is None:
            return lambda: None
        if self._stacked:
            speaker.push(nvtx.Event(name, self._domain))
            return lambda: speaker.pop(self._domain)
        handle = speaker.start(nvtx.Event(name, self._domain))
        return lambda: speaker.end(handle)

    def _current_pass(self) -> _Pass:
        """Give the backward pass that runs; at its first gradient, ask to be told of its end."""
        thread, task = self._thread, _graph_task()
        while thread.passes and (thread.passes[-1].over or _is_outer(thread.passes, task)):
            self._close_to(thread.open, thread.passes.pop().base)
        if not thread.passes or thread.passes[-1].task != task:
            thread.passes.append(_Pass(task, len(thread.open)))
            self._finish_later(thread.passes[-1])
        return thread.passes[-1]

    def _finish_later(self, done: _Pass) -> None:
        """Close what is open when the pass ends.

        The end is told on the thread that did the last of its work. Where that is another one, its
        hands are off our stack, and our next gradient clears up.
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
    def _close_to(open_now: list[tuple[Call, Callable[[], None]]], depth: int) -> None:
        while len(open_now) > depth:
            open_now.pop()[1]()


def _is_outer(passes: list[_Pass], task: int) -> bool:
    """Tell whether a pass further out goes on, so that the innermost is over unheard."""
    return passes[-1].task != task and any(known.task == task for known in passes[:-1])


def _graph_task() -> int:
    """Number the backward pass that runs on this thread; PyTorch 1 cannot tell them apart."""
    ask = getattr(sys.modules["torch"]._C, "_current_graph_task_id", None)
    return int(ask()) if ask is not None else 0
