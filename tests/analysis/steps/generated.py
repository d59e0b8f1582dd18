"""Programs put together at random: a step of any length, with what real programs have around it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

from tests.analysis.steps.programs import ADAM, FILL, GEMMS, Recorder
from tests.traces import build_trace

if TYPE_CHECKING:
    from gpusight.trace.trace import Trace

WAIT, READ, FEED, UPDATE, PAUSE, NOTHING = "wait", "read", "feed", "update", "pause", "nothing"
"""What comes once in a step besides its kernels."""
OTHER_PROCESS = 2


@dataclass(frozen=True)
class Plan:
    """What a program does. Every kernel of its step has a name of its own, but in inner loops."""

    seed: int
    steps: int
    kernels: int
    once: str = NOTHING
    inner: tuple[int, ...] = ()
    """Repetitions of a loop inside each step, and of one inside that."""
    tail_every: int = 0
    """After so many steps something else is done."""
    changing_grids: bool = False
    changing_tiles: bool = False
    """Whether kernels have other names in each step, which differ in numbers only."""
    setup: int = 0
    """Kernels and copies before the first step."""
    autotuned: int = 0
    """Candidates that are loaded and timed before the first step."""
    streams: int = 1
    threads: int = 1
    """Kernels come from several threads, whose order varies."""
    processes: int = 1
    dropped: float = 0.0
    """Part of the GPU work that the capture lost."""


@dataclass
class _Program:
    plan: Plan
    recorder: Recorder = field(init=False)

    def __post_init__(self) -> None:
        self.recorder = Recorder(np.random.default_rng(self.plan.seed))

    def run(self) -> None:
        plan, r = self.plan, self.recorder
        for number in range(plan.setup):
            r.h2d(3000 + 64 * number)
            r.kernel(f"initialize_{number % 7}_weights", 1 + number)
        for number in range(plan.autotuned):
            r.load(80)
            for _ in range(3):
                r.kernel(f"candidate_{number}_gemm", 40 + number)
            r.sync()
        for number in range(plan.steps):
            r.step()
            self._step(number)
            if plan.tail_every and (number + 1) % plan.tail_every == 0:
                r.kernels("metric_sum", "metric_count", "metric_mean", FILL)
                r.d2h(64)
        r.sync()

    def _step(self, number: int) -> None:
        plan, r = self.plan, self.recorder
        if plan.once == FEED:
            r.h2d(1 << 18)
        if plan.once == PAUSE:
            r.host(60 * r.launch_us)
        if plan.threads == 1:
            self._kernels(number, range(plan.kernels))
        else:
            self._two_threads(number)
        self._inner_loops()
        if plan.once == UPDATE:
            r.kernels(ADAM, ADAM, grid=300)
        if plan.once == READ:
            r.d2h()
        if plan.once == WAIT:
            r.sync()

    def _inner_loops(self) -> None:
        r = self.recorder
        outer, inner = (*self.plan.inner, 0, 0)[:2]
        for _ in range(outer):
            for part in ("first", "second", "third"):
                r.kernel(f"cell_{part}", 32)
            for _ in range(inner):
                for part in ("load", "solve", "store"):
                    r.kernel(f"relax_{part}", 16)

    def _kernels(self, number: int, which: range | list[int]) -> None:
        plan, r = self.plan, self.recorder
        for k in which:
            tile = f"{64 << number % 3}x{32 << number % 2}" if plan.changing_tiles else "64x64"
            name = f"{_word(k)}_{tile}_kernel"
            grid = 8 + k % 50 + (7 * number if plan.changing_grids else 0)
            r.kernel(name if k % 4 else f"{GEMMS[k // 4 % 4]}_{name}", grid, 5 + k % 9)

    def _two_threads(self, number: int) -> None:
        """Launch from two threads at a time: the order within each is fixed."""
        plan, r = self.plan, self.recorder
        half = plan.kernels // 2
        ahead = [0, half]
        while ahead[0] < half or ahead[1] < plan.kernels:
            second = ahead[0] == half or (ahead[1] < plan.kernels and r.rng.random() < 0.5)
            r.thread = 12 if second else 11
            self._kernels(number, [ahead[second]])
            ahead[second] += 1
        r.thread = 11


def _word(number: int) -> str:
    """Name a number by letters, as digits in names of kernels mean nothing."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    word = ""
    while True:
        number, digit = divmod(number, 26)
        word += letters[digit]
        if not number:
            return f"op{word}"


def trace_of(plan: Plan) -> Trace:
    """Record a program."""
    tables: dict[str, list[dict[str, Any]]] = {}
    rng = np.random.default_rng([plan.seed, 1])
    for process in range(1, plan.processes + 1):
        program = _Program(plan)
        if process == OTHER_PROCESS:  # does less, and at the same time
            program.recorder.speed = 0.5
        program.run()
        for table, rows in {"api_calls": program.recorder.calls, **program.recorder.work}.items():
            for number, row in enumerate(rows):
                own = {**row, "process": process}
                if table == "api_calls":
                    own["thread"] = row["thread"] + 100 * process
                else:
                    own["stream"] = 7 + number % plan.streams
                    if rng.random() < plan.dropped:
                        continue
                tables.setdefault(table, []).append(own)
    return build_trace(None, **tables)


@st.composite
def plans(draw: st.DrawFn, max_kernels: int = 60) -> Plan:
    """Choose what a program does, so that what its step is remains certain."""
    once = draw(st.sampled_from((WAIT, READ, FEED, UPDATE, PAUSE, NOTHING)))
    inner = draw(st.sampled_from(((), (), (12,), (6, 5))))

    def number(first: int, last: int) -> int:
        """Draw from a range: `integers` also tries constants of the modules that are loaded."""
        return draw(st.sampled_from(range(first, last + 1)))

    # What is done every few steps is part of none where steps are marked as those of training.
    tails = st.sampled_from((0, 3, 4)) if once == UPDATE else st.just(0)
    return Plan(
        seed=number(0, 10_000),
        steps=number(5, 12),
        kernels=number(5, max_kernels),
        once=once,
        inner=inner,
        tail_every=draw(tails),
        changing_grids=draw(st.booleans()),
        changing_tiles=draw(st.booleans()),
        setup=draw(st.sampled_from((0, 10, 40))),
        autotuned=draw(st.sampled_from((0, 0, 8))),
        streams=number(1, 3),
        threads=number(1, 2),
        processes=number(1, 2),
        dropped=draw(st.sampled_from((0.0, 0.0, 0.01))),
    )
