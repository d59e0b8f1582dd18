"""Ranges for every module of a PyTorch model: `gs.annotate_model`."""

from __future__ import annotations

import inspect
import re
import sys
import weakref
from typing import TYPE_CHECKING, Any

from gpusight.capture import nvtx
from gpusight.capture.backward_ranges import BackwardRanges
from gpusight.capture.module_hooks import Entered, Hook, ModuleHooks
from gpusight.errors import RecordError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self


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
        """Take all hooks away again."""
        while self._hooks:
            self._hooks.pop().remove()
        if self._operations is not None:
            self._operations.__exit__(None, None, None)
            self._operations = None

    def add_module(self, module: Any, hooks: ModuleHooks, *, is_root: bool) -> None:
        """Follow a module's calls, with what this PyTorch offers."""
        pre, post = module.register_forward_pre_hook, module.register_forward_hook
        tells_keywords = "with_kwargs" in inspect.signature(pre).parameters
        tells_exceptions = "always_call" in inspect.signature(post).parameters
        if is_root and not tells_exceptions:
            self._hooks.append(pre(Hook(hooks.reset)))
        first = {"prepend": True, "with_kwargs": True} if tells_keywords else {}
        self._hooks.append(pre(Hook(hooks.enter), **first))
        always = {"always_call": True} if tells_exceptions else {}
        self._hooks.append(post(Hook(hooks.leave), **always))

    def add_optimizer(self, optimizer: Any, domain: str | None) -> None:
        """Mark an optimizer's steps."""
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise UsageError(
                f"{type(optimizer).__name__} has no hooks on its steps",
                hint="optimizers of PyTorch 2.0 and later have",
            )
        hooks = ModuleHooks("optimizer.step", type(optimizer).__name__, domain, Entered(), None)

        def begin(*_: object) -> None:
            hooks.reset()  # a step that failed has told nobody of its end
            hooks.enter(optimizer)

        self._hooks.append(optimizer.register_step_pre_hook(Hook(begin)))
        self._hooks.append(optimizer.register_step_post_hook(Hook(hooks.leave)))

    def add_operations(self) -> None:
        """Mark every operation that this thread runs, and its backward, if a tool listens."""
        if nvtx.backend() is None:
            return
        torch = sys.modules["torch"]
        if not torch.cuda.is_available():
            raise RecordError(
                "operations cannot be marked", why="PyTorch does that on machines with a GPU only"
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
    _check_model(model)
    wanted = _wanted(include)
    former = _ANNOTATED.pop(model, None)
    if former is not None:
        former.remove()
    ranges = _ANNOTATED[model] = ModelRanges()
    entered = Entered()
    following = None
    if backward:
        following = BackwardRanges(domain or nvtx.DOMAIN, stacked=_on_one_thread(model))
    for path, module in _modules(model, depth):
        if wanted(path, module):
            hooks = ModuleHooks(path, type(module).__name__, domain, entered, following)
            ranges.add_module(module, hooks, is_root=not path)
    for each in optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]:
        if each is not None:
            ranges.add_optimizer(each, domain)
    if ops:
        ranges.add_operations()
    return ranges


def _check_model(model: Any) -> None:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"a {type(model).__name__} is not a module of PyTorch",
            hint="gs.annotate marks parts of any program",
        )


def _modules(model: Any, depth: int | None) -> Iterator[tuple[str, Any]]:
    """Give each module once, by the first of its paths; shared ones have several."""
    for path, module in model.named_modules():
        if depth is None or len(path.split(".") if path else []) <= depth:
            yield path, module


def _wanted(include: str | Callable[[str, Any], bool] | None) -> Callable[[str, Any], bool]:
    if include is None:
        return lambda _path, _module: True
    if callable(include):
        return include
    try:
        pattern = re.compile(include)
    except re.error as error:
        raise UsageError(f"include={include!r} is no regular expression", why=str(error)) from None
    return lambda path, _module: pattern.search(path) is not None


def _on_one_thread(model: Any) -> bool:
    """Tell whether one thread runs the backward pass: autograd has one for each device."""
    torch = sys.modules["torch"]
    if any(isinstance(module, torch.nn.DataParallel) for module in model.modules()):
        return False
    return len({parameter.device for parameter in model.parameters()}) <= 1
