"""Records every CUDA program that runs in a Python process, through CUPTI's activity records."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from gpusight.capture import nvtx
from gpusight.capture.inside.cupti import layouts, machine
from gpusight.capture.inside.cupti.buffers import Buffers
from gpusight.capture.inside.cupti.calls import unwanted_functions
from gpusight.capture.inside.cupti.library import load_cupti
from gpusight.capture.inside.cupti.texts import Texts
from gpusight.capture.inside.cupti.walk import Walker
from gpusight.capture.inside.cupti.write import Recorded, write_capture
from gpusight.capture.inside.driver import driver_version, wait_for_gpus
from gpusight.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpusight.capture.inside.cupti.library import Cupti
    from gpusight.capture.inside.plan import Plan

_ALWAYS = (layouts.DEVICE, layouts.CONTEXT, layouts.STREAM, layouts.NAME)
_NEEDED = (layouts.KERNEL, layouts.MEMCPY, layouts.MEMSET, layouts.RUNTIME)
_WISHED = (
    layouts.DRIVER,
    layouts.MEMCPY_PEER,
    layouts.SYNCHRONIZATION,
    layouts.MARKER,
    layouts.MARKER_DATA,
    layouts.OVERHEAD,
    layouts.CUDA_EVENT,
)
_WORK = (
    layouts.KERNEL,
    layouts.MEMCPY,
    layouts.MEMCPY_PEER,
    layouts.MEMSET,
    layouts.RUNTIME,
    layouts.DRIVER,
)


class CuptiRecorder:
    """Switches CUPTI on and off, and writes what it recorded in the layout of an nsys export.

    Kernels of CUDA graphs are always recorded one by one, with or without `--graph-nodes`: CUPTI's
    record of whole graphs (GRAPH_TRACE of CUDA 13.0) crashes a program that launches a graph which
    was instantiated before the recording.
    """

    suffix = ".sqlite"
    on_main_thread = False

    def __init__(self, plan: Plan, load: Callable[[], Cupti] = load_cupti) -> None:
        self._plan = plan
        self._cupti = load()
        self._walker = Walker(self._cupti)
        self._texts = Texts()
        self._buffers = Buffers(self._walker, self._texts)
        self._process = os.getpid()
        self._start_ns = self._end_ns = self._start_utc_ns = 0
        self._system_ids = False
        self._prepared = False
        self._unwanted: list[tuple[int, int]] = []
        self._threads: dict[int, str] = {}
        self._warnings: list[str] = []
        self._lead_nvtx()

    def prepare(self) -> None:
        """Register buffers; devices, contexts and streams are recorded from here on."""
        self._prepared = True
        self._system_ids = self._cupti.use_system_thread_ids()
        self._cupti.register(self._buffers.request, self._buffers.complete)
        for kind in _ALWAYS:
            self._enable(kind)
        self._unwanted = unwanted_functions(self._cupti)

    def cancel(self) -> None:
        """Have all buffers back: CUPTI must not call us after Python has ended."""
        self._disable()
        self._cupti.flush(forced=True)

    def start(self) -> None:
        """Record from here on."""
        if not self._prepared:
            self.prepare()
        self._start_ns, self._start_utc_ns = self._cupti.time_ns(), time.time_ns()
        try:
            for kind in self._kinds():
                self._enable(kind)
        except RecordError:
            self._disable()
            raise
        for domain, function in self._unwanted:
            self._cupti.switch_off(domain, function)

    def step_began(self, number: int) -> None:
        """Do nothing: steps are told through NVTX."""

    def step_ended(self, number: int) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Record no more; wait for the GPUs, and have all buffers back."""
        try:
            self._end_ns = self._cupti.time_ns()
            wait_for_gpus()
            self._threads = machine.thread_names()
        finally:
            self.cancel()

    def is_empty(self) -> bool:
        """Tell whether the process did nothing with CUDA while it was recorded."""
        return not any(self._buffers.counts[kind] for kind in _WORK)

    def why_empty(self) -> str:
        """Say what did not happen."""
        return "it did nothing with CUDA meanwhile"

    def write(self, path: Path) -> None:
        """Write what was recorded to a new file."""
        if self._buffers.unkept:
            self._warnings.append(self._buffers.unkept)
        write_capture(
            Recorded(
                cupti=self._cupti,
                walker=self._walker,
                texts=self._texts,
                buffers=self._buffers,
                process=self._process,
                start_ns=self._start_ns,
                end_ns=self._end_ns,
                start_utc_ns=self._start_utc_ns,
                facts=machine.facts(driver_version()),
                process_name=machine.process_name(),
                thread_names=self._threads,
                thread_ids=None if self._system_ids else machine.python_thread_ids(),
                warnings=self._warnings,
            ),
            path,
        )
        self._buffers.close()

    def forget(self) -> None:
        """Let go without touching CUPTI: this is a forked child, it is the parent's."""
        self._buffers.forget()

    def _kinds(self) -> tuple[int, ...]:
        return (*_NEEDED, *_WISHED, *((layouts.MEMORY,) if self._plan.memory else ()))

    def _enable(self, kind: int) -> None:
        """Have a kind recorded; without some there is no capture worth having."""
        why = self._cupti.enable(kind)
        if not why:
            return
        what = layouts.KIND_NAMES[kind]
        if kind in _NEEDED:
            raise RecordError(
                f"CUPTI cannot record {what}", why=why, hint="another profiler may be in its place"
            )
        self._warnings.append(f"CUPTI cannot record {what}: {why}")

    def _disable(self) -> None:
        for kind in (*self._kinds(), *_ALWAYS):
            self._cupti.disable(kind)

    def _lead_nvtx(self) -> None:
        """Have NVTX, when the program first uses it, tell its ranges to our copy of CUPTI."""
        if self._cupti.path is None:
            return
        taken = os.environ.setdefault(nvtx.PATH_VARIABLE, str(self._cupti.path))
        nvtx.look_again()
        if taken != str(self._cupti.path):
            self._warnings.append(
                f"{nvtx.PATH_VARIABLE} already led NVTX to another tool: ranges may be missing, "
                "and CUPTI serves one tool at a time"
            )
