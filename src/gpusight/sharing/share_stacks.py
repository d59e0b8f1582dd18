"""Sampled stacks for a sanitized copy: on its clock, with its processes, without folders."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from gpusight.naming.source_files import is_library_file
from gpusight.readers.open import capture_source, stacks_path
from gpusight.readers.stacks.sampled_stacks import aligned_processes, read_processes
from gpusight.recording.inside import stack_sampler as stacks
from gpusight.sharing.hashed_names import hash_range, hash_text
from gpusight.sharing.leak_report import Category, LeakTally, Treatment, without_homes
from gpusight.sharing.torch_values import hidden_path, short_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gpusight.readers.stacks.sampled_stacks import AlignedProcess, SampleEpoch
    from gpusight.sharing.leak_report import LeakScan, ShareOptions


_WHERE = "sampled stacks"
_FRAMES_AT_ONCE, _NODES_AT_ONCE = 1_000, 1_000_000
"""In a chunk, whose size is limited."""
_LIBRARY = "lib/site-packages/"
"""Stands for the folder of a library whose name is left out."""
_LEFT_OUT = "the sampled stacks were not copied: {}"
_OF_OTHERS = "{:,} sampled stacks of processes that the capture lacks were not copied"


def shared_session(about: object, salt: bytes) -> str | None:
    """Return what ties a copy to its stacks, from what the capture has for that."""
    session = about.get("session") if isinstance(about, dict) else None
    return hash_text(session, salt) if isinstance(session, str) and session else None


def shared_mark(text: str, salt: bytes) -> str | None:
    """Write the mark of the sampler anew, without process and time; None where it is not one."""
    try:
        about = json.loads(text.removeprefix(stacks.CLOCK_MESSAGE))
    except (ValueError, RecursionError):  # a name of the program that only begins like it
        return None
    session = shared_session(about, salt)
    if session is None:
        return None
    return stacks.CLOCK_MESSAGE + json.dumps({"session": session, "pid": 0, "time": 0})


def stacks_copy(
    capture: Path, options: ShareOptions, numbers: Mapping[int, int] | None
) -> tuple[bytes, LeakScan] | None:
    """Return the stacks for a copy, and what was treated how; None where there are none.

    `numbers`: what processes and threads are called in the copy.
    """
    path = stacks_path(capture)
    if not path.is_file():
        return None
    tally = LeakTally()
    try:
        source = capture_source(capture, cache=False)
        sampled = read_processes(path)
        aligned = list(aligned_processes(source, sampled))
        data = b"".join(_Process(own, options, numbers, tally).data() for own in aligned)
        source.close()
    except (ValueError, OSError, struct.error) as error:
        return b"", tally.scan((_LEFT_OUT.format(" ".join(str(error).split())[:200]),))
    if not data:
        return b"", tally.scan((_LEFT_OUT.format("they are of other processes"),))
    others = sum(process.sample_count for process in sampled)
    others -= sum(own.process.sample_count for own in aligned)
    return data, tally.scan((_OF_OTHERS.format(others),) if others else ())


class _Process:
    """The part of one process."""

    def __init__(
        self,
        aligned: AlignedProcess,
        options: ShareOptions,
        numbers: Mapping[int, int] | None,
        tally: LeakTally,
    ) -> None:
        self._process, self._clock = aligned.process, aligned.clock
        self._salt = options.salt
        self._hashes = options.hash_names
        self._tally = tally
        self._begin_ns = int(self._clock.at[0])
        tids = set(aligned.threads["tid"].to_list())
        self._threads = {
            number: native if numbers is None else numbers[native]
            for number, native in self._process.threads.items()
            if native in tids and (numbers is None or native in numbers)
        }
        pid = self._process.about.pid
        self._pid = pid if numbers is None else numbers.get(pid)

    def data(self) -> bytes:
        """Write it; nothing where the copy has none of it."""
        kept = list(self._threads)
        rows = (rows for epoch in self._process.epochs for _, rows in epoch.samples)
        if self._pid is None or not any(np.isin(r[:, 2], kept).any() for r in rows):
            return b""
        return stacks.MAGIC + b"".join(self._chunks())

    def _chunks(self) -> Iterator[bytes]:
        about, begin_ns, error_ns = self._process.about, self._begin_ns, self._clock.error_ns
        session = hash_text(about.session, self._salt)
        head = {"version": stacks.VERSION, "session": session, "pid": self._pid, "hz": about.hz}
        yield stacks.json_chunk(stacks.PROCESS, head)
        for at, ahead in zip(self._clock.at.tolist(), self._clock.ahead.tolist(), strict=True):
            own_ns = at - begin_ns
            clock = {"before": own_ns - error_ns, "after": own_ns + error_ns, "value": at + ahead}
            yield stacks.json_chunk(stacks.CLOCK, {"kind": "capture", **clock})
        for number, native in self._threads.items():
            yield stacks.json_chunk(stacks.THREAD, {"number": number, "native": native})
        for rate in self._process.rates:
            yield stacks.json_chunk(stacks.RATE, {"time": rate.time - begin_ns, "hz": rate.hz})
        for index, epoch in enumerate(self._process.epochs):
            if index:
                yield stacks.chunk(stacks.RESET, b"")
            yield from self._samples(epoch)

    def _samples(self, epoch: SampleEpoch) -> Iterator[bytes]:
        kept = np.array(list(self._threads))
        for at in range(0, len(epoch.frames), _FRAMES_AT_ONCE):
            frames = [self._frame(*f) for f in epoch.frames[at : at + _FRAMES_AT_ONCE]]
            yield stacks.json_chunk(stacks.FRAMES, frames)
        for nodes in epoch.nodes:
            for at in range(0, len(nodes), _NODES_AT_ONCE):
                yield stacks.chunk(stacks.NODES, _packed(nodes[at : at + _NODES_AT_ONCE]))
        for base_ns, rows in epoch.samples:
            own = rows[np.isin(rows[:, 2], kept)]
            if len(own):
                base = struct.pack("<q", base_ns - self._begin_ns)
                yield stacks.chunk(stacks.SAMPLES, base + _packed(own))

    def _frame(self, file: str, function: str, module: str, line: int) -> tuple[Any, ...]:
        """Clean a frame; what is a library's stays one."""
        shown = short_path(file)
        if shown != file:
            folders = Category.FILE_PATHS
            self._tally.add(folders, f"{_WHERE}: files", Treatment.SHORTENED, file)
            self._tally.hide(Category.PYTHON_FUNCTIONS, file)  # the users that it names
        if self._hashes:
            shown = hidden_path(shown, self._salt)
            function, module = hash_range(function, self._salt), self._hidden_module(module)
        else:
            function, module = without_homes(function), without_homes(module)
            self._tally.keep(function)
        treatment = Treatment.HASHED if self._hashes else Treatment.KEPT
        self._tally.add(Category.PYTHON_FUNCTIONS, _WHERE, treatment, (file, function))
        if is_library_file(file) and not is_library_file(shown):
            shown = _LIBRARY + shown
        return shown, function, module, line

    def _hidden_module(self, module: str) -> str:
        return hidden_path(module.replace(".", "/"), self._salt).replace("/", ".")


def _packed(table: Any) -> bytes:
    packed: bytes = table.astype("<u4").tobytes()
    return packed
