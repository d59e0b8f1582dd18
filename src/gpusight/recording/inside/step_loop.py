"""Steps that a program marks itself: `gs.step`."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from gpusight.errors import UsageError
from gpusight.recording.inside.annotate import (
    Annotation,
    OpenRange,
    close_range,
    is_recording,
    open_range,
)
from gpusight.recording.inside.step_hub import HUB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from typing_extensions import Self

    Function = TypeVar("Function", bound=Callable[..., Any])


Batch = TypeVar("Batch")
STEP = "step"
INPUT = "input"
"""The range of a step in which it waits for its data."""


class StepScope:
    """A step, begun and ended any number of times; each time is the next one.

    A step within a step, also one of a callback or of `gs.torch_profile`, is a range without a
    number and is not counted. On a function, each call is a step.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.number: int | None = None
        """Of the one begun last, counted from 0 in this process; None within another step."""
        self._open: list[tuple[int | None, OpenRange | None]] = []

    def __enter__(self) -> Self:
        """Begin it: recorders first, so that they see its range."""
        number = HUB.begin_step()
        text = self.name if number is None else f"{self.name} {number}"
        self._open.append((number, open_range(text) if is_recording() else None))
        self.number = number
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        number, opened = self._open.pop()
        close_range(opened)
        HUB.end_step(number)

    def __call__(self, function: Function) -> Function:
        """Make each call of a function a step."""
        kinds = (
            inspect.iscoroutinefunction,
            inspect.isgeneratorfunction,
            inspect.isasyncgenfunction,
        )
        if any(is_kind(function) for is_kind in kinds):
            raise UsageError("gs.step cannot decorate a generator or coroutine")

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with StepScope(self.name):
                return function(*args, **kwargs)

        return cast("Function", run)


class StepLoop(Generic[Batch]):
    """Goes through batches and makes a step of each.

    A step goes from getting its batch to having the next one, so that the wait for data is in a
    step and the end of the data makes no empty one. The wait for the first batch, which often
    starts workers, comes before the first step.
    """

    def __init__(self, batches: Iterable[Batch], name: str) -> None:
        self._batches = batches
        self._name = name

    def __iter__(self) -> Iterator[Batch]:
        """Go through them."""
        batches = iter(self._batches)
        fetch = Annotation(INPUT)
        fetched: list[Batch] = []  # left empty while the loop's body runs: it may free its batch
        try:
            with fetch:
                fetched.append(next(batches))
            while True:
                with StepScope(self._name):
                    yield fetched.pop()
                    with fetch:
                        fetched.append(next(batches))
        except StopIteration:
            return

    def __len__(self) -> int:
        """Return the number of batches, where they have one."""
        return len(self._batches)  # type: ignore[arg-type] # raises what len() of them raises

    def __getattr__(self, name: str) -> Any:
        """Pass on other attributes, such as `close` or a loader's `sampler`."""
        if name.startswith("__") or name == "_batches":  # of ourselves, while a copy is made
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._batches, name)


@overload
def step(*, name: str = STEP) -> StepScope: ...


@overload
def step(batches: Function) -> Function: ...


@overload
def step(batches: Iterable[Batch], *, name: str = STEP) -> StepLoop[Batch]: ...


def step(batches: Any = None, *, name: str = STEP) -> Any:
    """Say what a step is: each turn of a loop, the body of a `with`, or a call of a function.

    >>> for batch in gs.step(loader):
    ...     train(batch)
    >>> while running:
    ...     with gs.step():
    ...         serve()
    >>> @gs.step
    ... def train(batch): ...

    Steps are ranges `step 0`, `step 1` and so on, counted through the whole process whatever
    their `name`. In a loop, waiting for the next batch is a range `input` within the step.
    """
    if batches is None:
        return StepScope(name)
    if hasattr(batches, "__iter__") or hasattr(batches, "__getitem__"):
        return StepLoop(batches, name)
    if callable(batches):
        return StepScope(name)(batches)
    raise UsageError(
        f"gs.step cannot iterate over a {type(batches).__name__}",
        hint="pass a data loader, or write `with gs.step():`",
    )
