"""What is kept, what is let go of, and that nothing is built twice at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from gpusight.viewer.timeline_view import LruCache


@dataclass
class Thing:
    nbytes: int


def test_what_was_not_used_for_longest_goes_first() -> None:
    shelf, built = LruCache(100), list[str]()

    def build(key: str) -> Thing:
        built.append(key)
        return Thing(40)

    for key in ("a", "b", "a", "c", "a", "b"):
        shelf.take(key, partial(build, key))
    assert built == ["a", "b", "c", "b"], "`b` had to go for `c`, `c` for `b`"
    assert shelf.nbytes == 80


def test_what_is_larger_than_all_that_fits_is_kept_alone() -> None:
    shelf = LruCache(100)
    shelf.take("small", lambda: Thing(10))
    shelf.take("huge", lambda: Thing(1_000))
    assert shelf.nbytes == 1_000


def test_two_threads_do_not_build_the_same() -> None:
    shelf, built, begun = LruCache(100), list[int](), threading.Barrier(4)

    def build() -> Thing:
        built.append(1)
        return Thing(1)

    def take(_: int) -> Thing:
        begun.wait()
        return shelf.take("a", build)

    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(take, range(4)))
    assert len(built) == 1
    assert all(thing is taken[0] for thing in taken)


def test_what_is_there_can_be_taken_while_something_else_is_built() -> None:
    shelf, building, done = LruCache(100), threading.Event(), threading.Event()
    shelf.take("there", lambda: Thing(1))

    def build_slowly() -> Thing:
        building.set()
        assert done.wait(5)
        return Thing(1)

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(shelf.take, "slow", build_slowly)
        assert building.wait(5)
        assert shelf.take("there", lambda: Thing(2)).nbytes == 1
        done.set()
        assert slow.result(5).nbytes == 1
