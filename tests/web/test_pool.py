"""Work for requests: a few at a time, none for pages that have gone."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from starlette.requests import Request
from starlette.types import Message

from gpusight.web import pool as module
from gpusight.web.pool import BusyError, GoneError, Pool


def _request(receive: Callable[[], Awaitable[Message]]) -> Request:
    return Request({"type": "http", "headers": []}, receive)


async def _waiting() -> Message:
    await anyio.sleep_forever()
    raise AssertionError


async def _gone() -> Message:
    return {"type": "http.disconnect"}


def test_work_runs_elsewhere_and_gives_its_result() -> None:
    async def call() -> str:
        return await Pool().run(_request(_waiting), lambda: threading.current_thread().name)

    assert anyio.run(call) != threading.current_thread().name


def test_errors_pass_as_they_are() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    async def call() -> None:
        await Pool().run(_request(_waiting), broken)

    with pytest.raises(ZeroDivisionError):
        anyio.run(call)


def test_few_run_at_once_and_those_whose_page_has_gone_do_not_run_at_all() -> None:
    go_on, begun, results = threading.Event(), [], []

    def work() -> None:
        begun.append(1)
        assert go_on.wait(10)

    async def ask(pool: Pool, receive: Callable[[], Awaitable[Message]]) -> None:
        try:
            await pool.run(_request(receive), work)
            results.append("done")
        except GoneError:
            results.append("gone")

    async def call() -> None:
        pool = Pool()
        async with anyio.create_task_group() as group:
            for _ in range(module._AT_ONCE + 2):
                group.start_soon(ask, pool, _waiting)
            while len(begun) < module._AT_ONCE:
                await anyio.sleep(0.001)
            for _ in range(5):
                group.start_soon(ask, pool, _gone)
            while results.count("gone") < 5:
                await anyio.sleep(0.001)
            assert len(begun) == module._AT_ONCE
            go_on.set()

    anyio.run(call)
    assert len(begun) == results.count("done") == module._AT_ONCE + 2


def test_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_WAITING", 2)
    go_on = threading.Event()

    async def call() -> None:
        pool = Pool()
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(pool.run, _request(_waiting), lambda: go_on.wait(10))
            await anyio.sleep(0.01)
            with pytest.raises(BusyError):
                await pool.run(_request(_waiting), lambda: None)
            go_on.set()
        assert await pool.run(_request(_waiting), lambda: 7) == 7

    anyio.run(call)


def test_freed_memory_is_returned_once_after_several_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released: list[str] = []
    monkeypatch.setattr(module, "_RELEASE_AFTER_S", 0.05)
    monkeypatch.setattr(
        module, "release_memory", lambda: released.append(threading.current_thread().name)
    )

    async def ask() -> None:
        pool = Pool()
        for _ in range(2):
            for _ in range(3):
                await pool.run(_request(_waiting), lambda: None)
            before = len(released)
            with anyio.fail_after(10):
                while len(released) == before:
                    await anyio.sleep(0.01)

    anyio.run(ask)
    assert released == ["release-memory"] * 2


def test_releasing_memory_is_possible_everywhere() -> None:
    assert module.release_memory() in (True, False)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads /proc")
def test_large_arrays_leave_nothing_behind() -> None:
    """In a process of its own, whose C library is told to."""
    program = """
import os, re, sys
import numpy as np
from gpusight.web.pool import return_large_blocks
np.ones(2_000_000)  # the C library keeps blocks of this size from now on
if not return_large_blocks():
    sys.exit("0")
def resident():
    return int(re.search(r"Rss:\\s+(\\d+)", open("/proc/self/smaps_rollup").read())[1]) >> 10
before = resident()
arrays = [np.ones(1_000_000) for _ in range(20)]
kept = arrays[-1]
del arrays
print(resident() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 or done.stderr == "0\n", done.stderr
    assert int(done.stdout or 0) < 30, "one array of 8 MB is left of twenty"
