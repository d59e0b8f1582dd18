from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import gpusight as gs
from gpusight.errors import UsageError
from gpusight.recording.inside import nvtx_backend
from gpusight.recording.inside.annotate import range_recorder
from gpusight.recording.inside.step_hub import HUB
from gpusight.recording.inside.torch_recorder import profiler_runs
from tests.recording.inside.nvtx_log import NvtxLog, logged_nvtx
from tests.shared import tool


@pytest.fixture
def log() -> Iterator[NvtxLog]:
    with logged_nvtx() as listener:
        yield listener
        assert listener.open == []


class ListenerLog:
    """A recorder that logs what the hub announces."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def step_began(self, number: int) -> None:
        self.events.append(f"+step {number}")

    def step_ended(self, number: int) -> None:
        self.events.append(f"-step {number}")

    def range_began(self, name: str) -> None:
        self.events.append(f"+{name}")

    def range_ended(self, name: str) -> None:
        self.events.append(f"-{name}")


def test_ranges_nest(log: NvtxLog) -> None:
    with gs.annotate("outer"), gs.annotate("inner"):
        gs.mark("now")
    assert log.lines() == ["+outer", "+inner", "!now", "-inner", "-outer"]


def test_a_range_carries_its_attributes(log: NvtxLog) -> None:
    with gs.annotate("a", domain="d", category="c", color="#102030", payload=3):
        pass
    gs.mark("b", domain="d", category=4, color="red", payload=0.5)
    assert log.lines("d") == ["+a", "-a", "!b"]
    assert log.attributes == {"a": ("c", 0xFF102030, 3), "b": (4, 0xFFFF0000, 0.5)}


def test_an_exception_closes_the_range(log: NvtxLog) -> None:
    with pytest.raises(ValueError, match="x"), gs.annotate("a"):
        raise ValueError("x")
    assert log.lines() == ["+a", "-a"]


def test_one_range_is_used_again_inside_itself_and_on_other_threads(log: NvtxLog) -> None:
    shared, both = gs.annotate("a"), threading.Barrier(2)

    def work() -> None:
        with shared:
            both.wait()
            with shared:
                both.wait()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    by_thread = [[e.what for e in log.events if e.thread == t.ident] for t in threads]
    assert by_thread == [["push", "push", "pop", "pop"]] * 2


@pytest.mark.parametrize("bare", [True, False])
def test_a_function_gives_its_name(log: NvtxLog, *, bare: bool) -> None:
    def work(x: int) -> int:
        """Say so."""
        return x + 1

    marked = gs.annotate(work) if bare else gs.annotate()(work)
    assert marked(1) == 2
    assert marked.__doc__ == "Say so."
    qualified = "test_a_function_gives_its_name.<locals>.work"
    assert log.lines() == [f"+{qualified}", f"-{qualified}"]


def test_a_method_is_bound(log: NvtxLog) -> None:
    class Model:
        @gs.annotate("forward")
        def forward(self, x: int) -> int:
            return x

        @gs.annotate("failing")
        def fail(self) -> None:
            raise KeyError

    assert Model().forward(3) == 3
    with pytest.raises(KeyError):
        Model().fail()
    assert log.lines() == ["+forward", "-forward", "+failing", "-failing"]


def test_a_coroutine_has_a_range_off_the_stack(log: NvtxLog) -> None:
    @gs.annotate("task")
    async def task(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    async def main() -> list[int]:
        async with gs.annotate("all"):
            return list(await asyncio.gather(task(3), task(1)))

    assert asyncio.run(main()) == [3, 1]
    assert log.kinds() == {"start", "end"}
    assert log.lines() == ["+all", "+task", "+task", "-task", "-task", "-all"]


def test_a_generator_has_a_range_each_time_it_runs(log: NvtxLog) -> None:
    received: list[object] = []

    @gs.annotate("part")
    def parts() -> Generator[int, str, str]:
        try:
            received.append((yield 1))
            try:
                yield 2
            except KeyError:
                received.append("raised inside")
            return "end"
        finally:
            gs.mark("closed")

    running = parts()
    assert next(running) == 1
    gs.mark("outside")
    assert running.send("sent") == 2
    with pytest.raises(StopIteration, match="end"):
        running.throw(KeyError())
    assert received == ["sent", "raised inside"]
    assert log.lines() == [
        *("+part", "-part", "!outside", "+part", "-part"),
        *("+part", "!closed", "-part"),
    ]


def test_a_generator_that_is_closed_runs_its_end_in_the_range(log: NvtxLog) -> None:
    @gs.annotate("part")
    def parts() -> Iterator[int]:
        try:
            yield 1
        finally:
            gs.mark("closed")

    for _ in parts():
        break
    assert log.lines() == ["+part", "-part", "+part", "!closed", "-part"]


def test_an_asynchronous_generator_works_as_before(log: NvtxLog) -> None:
    @gs.annotate("part")
    async def parts() -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(0)
        yield 2

    async def main() -> list[int]:
        return [part async for part in parts()]

    assert asyncio.run(main()) == [1, 2]
    assert log.lines() == ["+part", "-part"] * 3


def test_listeners_hear_of_ranges_and_their_domain() -> None:
    listener_log = ListenerLog()
    HUB.listen(listener_log)
    try:
        with gs.annotate("a"), gs.annotate("b", domain="d"):
            pass
    finally:
        HUB.forget(listener_log)
    with gs.annotate("unheard"):
        pass
    assert listener_log.events == ["+a", "+b@d", "-b@d", "-a"]


def test_who_begins_to_listen_inside_a_range_is_not_told_of_its_end() -> None:
    listener_log, shared = ListenerLog(), gs.annotate("a")
    with shared:
        HUB.listen(listener_log)
        try:
            with shared:
                pass
        finally:
            HUB.forget(listener_log)
            with shared:
                pass
    assert listener_log.events == ["+a", "-a"]


def test_who_stops_listening_inside_a_range_is_asked_no_more(log: NvtxLog) -> None:
    shared = gs.annotate("a")
    with shared:
        nvtx_backend.CHOICE.make(None)
        with shared:
            pass
    assert log.lines() == ["+a", "-a"]


def test_the_profiler_of_pytorch_sees_ranges_and_marks() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        with gs.annotate("mine"):
            torch.ones(2)
        gs.mark("moment")
    names = {event.key for event in profiler.key_averages()}
    assert {"mine", "moment", "aten::ones"} <= names


@pytest.mark.parametrize(
    ("here", "everywhere", "kind", "records"),
    [
        (False, False, "NONE", False),
        (True, True, "KINETO", True),
        (False, True, "NONE", True),  # a profiler of all threads
        (True, True, "NVTX", False),  # emit_nvtx would repeat our own range
    ],
)
def test_which_profilers_of_pytorch_get_ranges(
    *, here: bool, everywhere: bool, kind: str, records: bool
) -> None:
    profiler = SimpleNamespace(_is_profiler_enabled=everywhere)
    autograd = SimpleNamespace(profiler=profiler, _profiler_enabled=lambda: here)
    fake_autograd = SimpleNamespace(_profiler_type=lambda: SimpleNamespace(name=kind))
    fake = SimpleNamespace(autograd=autograd, _C=SimpleNamespace(_autograd=fake_autograd))
    assert range_recorder(fake)() is records
    assert profiler_runs(fake) is (here or everywhere)


def test_a_pytorch_that_knows_profilers_of_one_thread_only() -> None:
    autograd = SimpleNamespace(profiler=SimpleNamespace(), _profiler_enabled=lambda: True)
    fake = SimpleNamespace(autograd=autograd, _C=SimpleNamespace(_autograd=SimpleNamespace()))
    assert range_recorder(fake)()
    assert profiler_runs(fake)


@pytest.mark.parametrize("loud", [True, False])
def test_a_compiled_function_stays_one_graph(*, loud: bool) -> None:
    @gs.annotate("inner")
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def outer(x: torch.Tensor) -> torch.Tensor:
        with gs.annotate("outer"):
            return inner(x) + 1

    torch._dynamo.reset()
    with logged_nvtx() as log:
        if not loud:
            nvtx_backend.CHOICE.make(None)
        compiled = torch.compile(outer, backend="eager", fullgraph=True)
        assert compiled(torch.ones(2)).tolist() == [3.0, 3.0]
    assert log.events == []


@pytest.mark.parametrize("color", ["mauve-ish", "#12", "112233", -1, 2**32])
def test_a_wrong_colour_is_refused_though_nobody_listens(color: str | int) -> None:
    with pytest.raises(UsageError, match="is not a color"):
        gs.annotate("a", color=color)


@pytest.mark.parametrize("payload", [2**63, "7"])
def test_a_wrong_payload_is_refused_though_nobody_listens(payload: float) -> None:
    with pytest.raises(UsageError, match="64 bits"):
        gs.mark("a", payload=payload)


def test_a_tool_that_cannot_be_loaded_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(nvtx_backend.PATH_VARIABLE, str(tmp_path / "none.so"))
    nvtx_backend.choose_again()
    try:
        with pytest.warns(nvtx_backend.NvtxUnavailableWarning, match="none.so"):
            gs.mark("a")
        gs.mark("b")
    finally:
        nvtx_backend.choose_again()


def test_nothing_is_imported_while_nobody_listens() -> None:
    code = (
        "import sys, gpusight as gs\n"
        "with gs.annotate('a'), gs.step(): gs.mark('b')\n"
        "print(sorted({'torch', 'nvtx', 'numpy', 'polars', 'ctypes'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


_PROGRAM = """
import sys, threading
import gpusight as gs

with gs.annotate("outer"):
    with gs.annotate("inner \\u00fc", domain="mine", category="kind", color="red", payload=7):
        gs.mark("here", domain="mine", category="other", color="#102030", payload=1.5)
for batch in gs.step([1, 2]):
    with gs.annotate("work"):
        pass

import asyncio
@gs.annotate("task", domain="mine")
async def task(): await asyncio.sleep(0)
asyncio.run(task())
"""


@pytest.mark.oracle
def test_nsight_systems_hears_us_without_any_package(tmp_path: Path) -> None:
    nsys = tool("nsys", "nsys/target-linux-x64/nsys")
    program, report = tmp_path / "program.py", tmp_path / "report.nsys-rep"
    program.write_text(_PROGRAM)
    options = ["--trace=nvtx", "--sample=none", "--cpuctxsw=none", "-o", str(report)]
    command = [nsys, "profile", *options, sys.executable, str(program)]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path, env=dict(os.environ))
    columns = ["name", "kind", "domain", "category", "color", "payload_int", "payload_real"]
    rows = {row[0]: row[1:] for row in gs.open(report).table("ranges", columns).iter_rows()}
    assert rows == {
        "outer": ("push_pop", "", None, None, None, None),
        "inner ü": ("push_pop", "mine", "kind", 0xFFFF0000, 7, None),
        "here": ("mark", "mine", "other", 0xFF102030, None, 1.5),
        "input": ("push_pop", "", None, None, None, None),
        "step 0": ("push_pop", "", None, None, None, None),
        "step 1": ("push_pop", "", None, None, None, None),
        "work": ("push_pop", "", None, None, None, None),
        "task": ("start_end", "mine", None, None, None, None),
    }
    steps = gs.steps(report)
    assert "step 0" in str(steps)


def test_the_layout_of_attributes_is_that_of_the_header() -> None:
    from gpusight.recording.inside.nvtx_direct import _Attributes

    assert ctypes.sizeof(_Attributes) == 48
    assert _Attributes.payload.offset == 24
    assert _Attributes.message.offset == 40
