"""Time a range in a program that nobody listens to; under nsys, in one that is recorded.

    python -m benchmarks.annotate
    nsys profile --trace=nvtx python -m benchmarks.annotate

Each line is the best of several runs, less an empty call. The `nvtx` package stands beside ours
where it is installed, and the modules of a PyTorch model where that is.
"""

from __future__ import annotations

import importlib
import importlib.util
import timeit
from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.recording.inside import nvtx_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CALLS = 1_000
RUNS = 200


def nanoseconds(call: Callable[[], object]) -> float:
    """Give the time of one call."""
    return min(timeit.repeat(call, number=CALLS, repeat=RUNS)) / CALLS * 1e9


def nothing() -> None:
    """Do what every call below does besides."""


def with_new(make: Callable[[str], object]) -> Callable[[], object]:
    def run() -> None:
        with make("range"):  # type: ignore[attr-defined] # any context manager
            pass

    return run


def ours() -> Iterator[tuple[str, Callable[[], object]]]:
    yield 'with gs.annotate("range")', with_new(gs.annotate)
    shared = gs.annotate("range")
    yield "with a range made before", with_new(lambda _: shared)
    yield "a function under @gs.annotate", gs.annotate(nothing)
    yield "gs.mark", lambda: gs.mark("mark")
    yield "with gs.step()", with_new(lambda _: gs.step())


def theirs() -> Iterator[tuple[str, Callable[[], object]]]:
    if importlib.util.find_spec("nvtx") is not None:
        package = importlib.import_module("nvtx")
        yield 'with nvtx.annotate("range")', with_new(package.annotate)
        yield "a function under @nvtx.annotate", package.annotate()(nothing)


def modules() -> Iterator[tuple[str, Callable[[], object]]]:
    if importlib.util.find_spec("torch") is not None:
        torch = importlib.import_module("torch")
        plain, marked = torch.nn.Identity(), torch.nn.Identity()
        yield "a call of nn.Identity", lambda: plain(None)
        gs.annotate_model(marked)
        yield "the same under gs.annotate_model", lambda: marked(None)


def main() -> None:
    empty = nanoseconds(nothing)
    print(f"a tool listens: {nvtx_backend.backend() is not None}")
    for group in (ours, theirs, modules):
        for name, call in group():
            print(f"{nanoseconds(call) - empty:8,.0f} ns  {name}")


if __name__ == "__main__":
    main()
