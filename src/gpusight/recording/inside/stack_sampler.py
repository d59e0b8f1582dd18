"""Samples the Python stacks of this process from a thread of its own, and streams them to a file.

Standard library only, nothing of gpusight, and only what Python 3.8 can read. docs/formats.md
describes the file.
"""

from __future__ import annotations

import _thread
import array
import atexit
import json
import mmap
import os
import random
import signal
import struct
import sys
import threading
import time
import zlib
from collections import deque
from typing import TYPE_CHECKING, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType


MAGIC = b"gpusight stacks\n"
VERSION = 1
PART_MARK = ".stacks-"
"""In the name of the file of one process, until `gpusight record` puts them together."""
SUFFIX = ".stacks"
CLOCK_MESSAGE = "gpusight.stacks "
"""How the NVTX mark begins that ties a capture to its samples; JSON follows."""
METADATA_KEY = "gpusight_stacks"
"""The same in the metadata of a torch.profiler trace."""
SESSION_VARIABLE = "GPUSIGHT_RECORD_SESSION"

LAUNCHING, ALL_THREADS = "launching", "all"
THREADS = (LAUNCHING, ALL_THREADS)
MIN_HZ, DEFAULT_HZ, MAX_HZ = 50, 200, 500
MAX_DEPTH = 100

PROCESS, CLOCK, THREAD, FRAMES, NODES, SAMPLES = b"P", b"C", b"T", b"F", b"N", b"D"
RATE, RESET, CAPTURE, END = b"R", b"Z", b"X", b"E"
HEADER = struct.Struct("<cII")
"""Of a chunk: kind, bytes, CRC-32 of kind and bytes."""
MAX_CHUNK = 1 << 24
MAX_CHUNKS = 1_000_000
"""Of a process: four a second are usual."""
NO_PARENT, CUT_OFF = 0xFFFFFFFF, 0xFFFFFFFE
"""Parents of outermost frames; of the second, frames further out were left out."""
SAMPLE = struct.Struct("<IIII")
"""Offset from the chunk's time in ns, lateness in µs, thread, node."""

_TARGET_COST, _COMFORTABLE_COST = 0.015, 0.006
"""Shares of a core: above the first sampling slows down, below the second it speeds up again."""
_MIN_HZ = 1.0
_WATCHED_TICKS = 16
"""So often the cost is looked at."""
_FLUSH_NS, _CLOCK_NS = 250_000_000, 2_000_000_000
_JITTER = 0.25
"""Part of the period by which samples vary, or they would keep pace with the steps."""
_LOOK_AROUND = 8
"""One tick in so many looks whether another thread has begun to launch work."""
_SHORT_WAIT_S = 0.0001
"""How long we wait until Python requests the GIL from the program. Its own 5 ms are longer than
most programs keep it, so samples would only be taken where they let go of it: at their waits."""
_HELD_NS = 1_000_000
"""A sample that comes so much later waited for a call that kept the GIL."""
_SET_TIMER_SLACK = 29
_MAX_FRAMES, _MAX_NODES = 50_000, 100_000
_MAX_BYTES = 1 << 30
_HIGH_NUMBER = 512
"""Of our file. The limit of open files is 1,024 or more, as a rule."""
_IDLE_S = 0.05
_LAUNCHES = (
    "/torch/nn/modules/",
    "/torch/optim/",
    "/torch/autograd/",
    "/torch/_ops.py",
    "/torch/_dynamo/",
    "/torch/_inductor/",
    "/torch/cuda/",
    "/cupy/",
    "/jax/",
    "/numba/cuda/",
    "/triton/",
)
"""Files whose frames show that a thread launches GPU work."""
_COMPILER = ("/torch/_dynamo/convert_frame.py", "_compile", "code")
"""The function of torch.compile that compiles, and its variable that has the code of a function."""
_WAITING, _SAMPLING, _OVER = 0, 1, 2
_WARNS_OF_THREADS = sys.platform == "linux" and sys.version_info >= (3, 12)
"""Such a Python counts the threads right after `os.fork`, and warns where there are others. Ours
must be gone before, and come back after that."""

# A program may replace these (gevent does).
_monotonic_ns, _thread_time_ns, _wall_ns = time.monotonic_ns, time.thread_time_ns, time.time_ns
_sleep = time.sleep
_start_thread, _allocate_lock = _thread.start_new_thread, _thread.allocate_lock
_get_ident = _thread.get_ident


def chunk(kind: bytes, body: bytes) -> bytes:
    """Write a chunk."""
    return HEADER.pack(kind, len(body), zlib.crc32(body, zlib.crc32(kind))) + body


def json_chunk(kind: bytes, value: object) -> bytes:
    """Write a chunk of JSON."""
    return chunk(kind, json.dumps(value, separators=(",", ":")).encode("ascii"))


def processes(data: bytes) -> Iterator[tuple[list[tuple[bytes, bytes]], bool]]:
    """Read the chunks of each process, kind and body, and whether that is all of it.

    What follows a damaged chunk is left out, up to the next process.
    """
    at = 0
    while data.startswith(MAGIC, at):
        at += len(MAGIC)
        found: list[tuple[bytes, bytes]] = []
        while at + HEADER.size <= len(data) and not data.startswith(MAGIC, at):
            kind, size, check = HEADER.unpack_from(data, at)
            body = data[at + HEADER.size : at + HEADER.size + size]
            if (
                size > MAX_CHUNK
                or len(body) < size
                or len(found) == MAX_CHUNKS
                or zlib.crc32(body, zlib.crc32(kind)) != check
            ):
                break
            found.append((kind, body))
            at += HEADER.size + size
        is_whole = at == len(data) or data.startswith(MAGIC, at)
        yield found, is_whole
        if not is_whole:
            at = data.find(MAGIC, at)
            if at < 0:
                return


class StackTable:
    """Gives every frame and every stack a number, and keeps what the file does not have yet.

    A stack is a node of a tree: its innermost frame and the node of its caller.
    """

    def __init__(self) -> None:
        self._by_place: dict[tuple[int, int], int] = {}
        self._by_line: dict[tuple[int, int], int] = {}
        self._codes: dict[int, CodeType] = {}
        """Kept, or another code could get the address of one that is gone."""
        self._nodes: dict[int, int] = {}
        self._launching: set[int] = set()
        self._compiling: set[int] = set()
        """Frames of torch.compile that compile a function."""
        self.new_frames: list[tuple[str, str, str, int]] = []
        self.new_nodes = array.array("I")

    @property
    def is_full(self) -> bool:
        """Return whether numbers should begin again, before they take too much memory."""
        return len(self._by_place) > _MAX_FRAMES or len(self._nodes) > _MAX_NODES

    def node(self, frame: FrameType | None) -> tuple[int, list[int]]:
        """Return the node of a stack, and its frames."""
        known = self._by_place
        numbers: list[int] = []
        while frame is not None and len(numbers) < MAX_DEPTH:
            code = frame.f_code
            number = known.get((id(code), frame.f_lasti))
            if number is None:
                number = self._number(frame, code)
            if number in self._compiling:
                number = self._compiled(frame, number)
            numbers.append(number)
            frame = frame.f_back
        nodes, node = self._nodes, NO_PARENT if frame is None else CUT_OFF
        for number in reversed(numbers):
            key = node << 32 | number
            found = nodes.get(key)
            if found is None:
                self.new_nodes.extend((node, number))
                found = nodes[key] = len(nodes)
            node = found
        return node, numbers

    def launch(self, numbers: list[int]) -> bool:
        """Return whether these frames are those of a thread that launches GPU work."""
        return not self._launching.isdisjoint(numbers)

    def _number(self, frame: FrameType, code: CodeType) -> int:
        line = frame.f_lineno or code.co_firstlineno
        number = self._by_line.get((id(code), line))
        if number is None:
            number = self._by_line[id(code), line] = len(self._by_line)
            self._codes[id(code)] = code
            module = frame.f_globals.get("__name__")
            name = getattr(code, "co_qualname", code.co_name)
            file = code.co_filename
            self.new_frames.append((file, name, module if type(module) is str else "", line))
            path = file.replace("\\", "/")
            if any(part in path for part in _LAUNCHES):
                self._launching.add(number)
            if path.endswith(_COMPILER[0]) and code.co_name == _COMPILER[1]:
                self._compiling.add(number)
        self._by_place[id(code), frame.f_lasti] = number
        return number

    def _compiled(self, frame: FrameType, number: int) -> int:
        """Give a frame that compiles a function a number that names the function."""
        function = frame.f_locals.get(_COMPILER[2])
        if not isinstance(function, type(frame.f_code)):
            return number
        key = id(function), -1 - number
        found = self._by_line.get(key)
        if found is None:
            found = self._by_line[key] = len(self._by_line)
            self._codes[id(function)] = function
            name = getattr(function, "co_qualname", function.co_name)
            file = function.co_filename.replace("\\", "/").rpartition("/")[2]
            named = f"{_COMPILER[1]} {name} ({file}:{function.co_firstlineno})"
            compiler = frame.f_code.co_filename, named, frame.f_globals.get("__name__") or ""
            self.new_frames.append((*compiler, frame.f_lineno or 0))
            if number in self._launching:
                self._launching.add(found)
        return found


class StackFile:
    """The file of this process. It is made with the first samples, so short children leave none.

    A program may close all files, and open its own under the number that ours had. So ours has a
    high number, and is opened again where it is gone.
    """

    def __init__(self, base: str, session: str) -> None:
        self._base, self._session = base, session
        self._fd: int | None = None
        self._identity: tuple[int, int] | None = None
        self.path: str | None = None
        self._bytes = 0

    def write(self, data: bytes, about: dict[str, Any]) -> None:
        """Append; `about` becomes the beginning of the file, when it is made."""
        flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        if self.path is None:
            self._keep(self._create(flags | os.O_CREAT | os.O_EXCL))
            head = {"version": VERSION, "session": self._session, **about}
            data = MAGIC + json_chunk(PROCESS, head) + data
        if self._bytes + len(data) > _MAX_BYTES:
            raise OSError("the file of stacks has reached 1 GiB")
        view = memoryview(data)
        while view:
            if not self._is_open():
                self._keep(os.open(self.path or "", flags))
            assert self._fd is not None
            view = view[os.write(self._fd, view) :]
        self._bytes += len(data)

    def close(self) -> None:
        """Close it."""
        if self._fd is not None and self._is_open():
            os.close(self._fd)
        self._fd = None

    def _is_open(self) -> bool:
        try:
            about = os.fstat(-1 if self._fd is None else self._fd)
        except OSError:
            return False
        return (about.st_dev, about.st_ino) == self._identity

    def _keep(self, fd: int) -> None:
        about = os.fstat(fd)
        self._fd, self._identity = fd, (about.st_dev, about.st_ino)
        try:
            self._fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH_NUMBER)
        except (AttributeError, OSError):  # Windows has no fcntl; a low limit of files
            return
        os.close(fd)

    def _create(self, flags: int) -> int:
        for number in range(1000):  # exec keeps the process id
            again = f".{number}" if number else ""
            name = f"{self._base}{PART_MARK}{self._session}-{os.getpid()}{again}.part"
            try:
                fd = os.open(name, flags, 0o644)
            except FileExistsError:
                continue
            self.path = name
            return fd
        raise OSError("no name is free for the file of stacks")


def append_capture(path: str, capture: str) -> None:
    """Note the name of the capture that the samples of a file belong to."""
    with open(path, "ab") as file:  # noqa: PTH123 - the file of a sampler that has ended
        file.write(json_chunk(CAPTURE, {"capture": capture}))


class SwitchInterval:
    """Has Python request the GIL soon, where ours is the only thread that waits for it.

    Threads of the program that share the GIL would change places more often as well, which costs
    time: where two or more of them run, the program's own interval stays.
    """

    def __init__(self) -> None:
        self._own_s = sys.getswitchinterval()
        self._wait_s = _SHORT_WAIT_S
        self._set_s: float | None = None
        """What we have set."""
        self._places: dict[int, tuple[int, int]] = {}
        self._looks = 0

    def look(self, frames: dict[int, FrameType], own: int) -> None:
        """See which threads have moved since the last look."""
        places = {ident: (id(f), f.f_lasti) for ident, f in frames.items() if ident != own}
        moved = sum(self._places.get(ident) != place for ident, place in places.items())
        self._places, self._looks = places, self._looks + 1
        if len(places) == 1 or (moved < 2 and self._looks > 1):
            self._set(self._wait_s)
        else:
            self.give_back()

    def wait_longer(self, late_ns: int) -> bool:
        """Wait longer where a program often keeps the GIL: each time the wait ends, it costs."""
        if self._set_s is None or self._wait_s >= self._own_s or late_ns < 4e9 * self._wait_s:
            return False
        self._wait_s = min(self._own_s, self._wait_s * 2)
        self._set(self._wait_s)
        return True

    def wait_shorter(self) -> None:
        """Wait less long again."""
        self._wait_s = max(_SHORT_WAIT_S, self._wait_s / 2)

    def give_back(self) -> None:
        """Set what the program had, unless it has changed that itself."""
        if self._set_s is not None:
            if sys.getswitchinterval() == self._set_s:
                sys.setswitchinterval(self._own_s)
            self._set_s = None

    def _set(self, seconds: float) -> None:
        now_s = sys.getswitchinterval()
        if self._set_s is None or now_s != self._set_s:
            self._own_s = now_s
        if seconds < self._own_s and seconds != self._set_s:
            sys.setswitchinterval(seconds)
            self._set_s = sys.getswitchinterval()


def _wake_exactly() -> None:
    """Have Linux wake this thread within microseconds; it may take 50 of them otherwise."""
    if sys.platform == "linux":
        import ctypes

        ctypes.PyDLL(None).prctl(_SET_TIMER_SLACK, ctypes.c_ulong(1), 0, 0, 0)


class StackSampler:
    """Samples this process between `start` and `stop`, in forks too, as planned.

    Forks made while nothing is sampled wait for the process that made them: the workers of a
    loader often begin before the recorded steps.
    """

    def __init__(
        self,
        base: str,
        session: str,
        hz: float = DEFAULT_HZ,
        threads: str = LAUNCHING,
        log: Callable[[str], None] = print,
    ) -> None:
        self._base, self._session = base, session
        self._hz = self._wanted_hz = float(min(MAX_HZ, max(MIN_HZ, hz)))
        self._all = threads == ALL_THREADS
        self._log = log
        self._state = mmap.mmap(-1, 1)  # shared with forks
        self._is_child = self._is_over = False
        self._main = threading.main_thread().ident
        self._launching = {self._main}
        self._wake: Any = None
        self._ended: Any = None
        self._native: int | None = None
        """The number that the system has for our thread."""
        self._later: Any = None
        """What Python calls after a fork."""
        self._forking: FrameType | None = None
        self._forks_at = 0
        self._switching = SwitchInterval()
        self._fresh()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before_fork, after_in_parent=self._resume, after_in_child=self._forked
            )

    def _fresh(self) -> None:
        """Begin with nothing: this is a new process."""
        self._table = StackTable()
        self._file = StackFile(self._base, self._session)
        self._thread_numbers: dict[int, int] = {}
        self._next_thread = 0
        self._pending: deque[bytes] = deque()
        """Any thread may append."""
        self._rows = bytearray()
        self._base_ns = self._flushed_ns = self._synced_ns = self._began_ns = 0
        self._samples = self._late = self._missed = self._ticks = 0
        self._cost_ns = self._watched_late_ns = 0
        self._lowest_hz = self._hz

    @property
    def path(self) -> str | None:
        """The file, once there is one."""
        return self._file.path

    def start(self) -> None:
        """Sample from here on."""
        if self._is_child and not self._is_over:  # it waited for its parent, and records on its own
            self._pause()
            self._is_child, self._state = False, mmap.mmap(-1, 1)
        if self._is_over or self._state[0] != _WAITING:
            return
        if not hasattr(sys, "_current_frames"):
            self._log("no stacks are sampled: this Python has no sys._current_frames")
            return
        self._state[0] = _SAMPLING
        atexit.register(self.stop)
        self._begin()

    def stop(self) -> None:
        """Sample no more, and write the rest."""
        if self._is_over:
            return
        was_sampling = self._state[0] == _SAMPLING or self._is_child
        if not self._is_child:
            self._state[0] = _OVER
        self._pause()
        self._is_over = True
        if was_sampling and (self._samples or not self._is_child):
            self._guarded(self._finish)
        self._file.close()
        self._table = StackTable()
        atexit.unregister(self.stop)

    def mark(self, kind: str, read: Callable[[str], int | None]) -> None:
        """Note what another clock shows now, between two readings of ours.

        `read` gets a text that names this moment; where it returns no time, a capture has the text.
        """
        before = _monotonic_ns()
        about = {"session": self._session, "pid": os.getpid(), "time": before}
        value = read(CLOCK_MESSAGE + json.dumps(about, separators=(",", ":")))
        after = _monotonic_ns()
        self._pending.append(
            json_chunk(CLOCK, {"kind": kind, "before": before, "value": value, "after": after})
        )

    def launches(self) -> None:
        """Note that this thread launches GPU work."""
        self._launching.add(_get_ident())

    # The thread -----------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._wake, self._ended = _allocate_lock(), _allocate_lock()
        self._wake.acquire()
        self._ended.acquire()
        _start_thread(self._run, (self._wake, self._ended))

    def _pause(self) -> None:
        """End the thread, and wait for that: nothing of it is in a fork."""
        wake, ended, self._wake = self._wake, self._ended, None
        if wake is not None:
            wake.release()
            ended.acquire()
            ended.release()
            self._switching.give_back()
            if _WARNS_OF_THREADS:
                for _ in range(100):  # it has little left to do
                    if not os.access(f"/proc/self/task/{self._native}", os.F_OK):
                        break
                    _sleep(0.0001)

    def _before_fork(self) -> None:
        self._pause()
        if _WARNS_OF_THREADS:
            self._forking = sys._getframe(1)
            self._forks_at = self._forking.f_lasti

    def _resume(self) -> None:
        if self._state[0] != _SAMPLING or self._is_over or self._is_child:
            return
        if not _WARNS_OF_THREADS or _get_ident() != self._main:
            self._begin()
            return
        import ctypes

        if self._later is None:
            self._later = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._begin_later)
        ctypes.pythonapi.Py_AddPendingCall(self._later, None)

    def _begin_later(self, _: object) -> int:
        """Go on once `os.fork` has returned. Python calls this between two instructions."""
        frame: FrameType | None = sys._getframe(1)
        if frame is not self._forking:
            while frame is not None and frame is not self._forking:
                frame = frame.f_back
            if frame is not None and frame.f_lasti == self._forks_at:  # in what a fork calls
                import ctypes

                ctypes.pythonapi.Py_AddPendingCall(self._later, None)
                return 0
        self._forking = None
        if self._wake is None and self._state[0] == _SAMPLING and not self._is_over:
            self._begin()
        return 0

    def _forked(self) -> None:
        """Sample this fork too, into a file of its own, as long as its parent is sampled."""
        self._file.close()
        self._is_child, was_over = True, self._is_over
        self._main = _get_ident()
        self._launching = {self._main}
        self._fresh()
        if was_over or self._state[0] == _OVER:
            self._is_over = True
            return
        atexit.register(self.stop)
        self._begin()

    def _run(self, wake: Any, ended: Any) -> None:
        self._native = threading.get_native_id()
        try:
            self._guarded(lambda: self._loop(wake))
        finally:
            ended.release()

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the program must not feel that we failed
            self._is_over = True
            text = " ".join(str(error).split()) or type(error).__name__
            self._log(f"sampling stacks ended in process {os.getpid()}: {text}")

    def _loop(self, wake: Any) -> None:
        if hasattr(signal, "pthread_sigmask"):  # signals are for the program's threads
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        own, state = _get_ident(), self._state
        while state[0] == _WAITING:
            if wake.acquire(True, _IDLE_S):
                return
        due_ns = _monotonic_ns()
        self._began_ns = self._began_ns or due_ns
        watched_ns, watched_cost_ns = due_ns, _thread_time_ns()
        jitter = random.Random(os.getpid()).random  # noqa: S311 - not a secret
        _wake_exactly()
        while state[0] == _SAMPLING:
            wait_s = max(0, due_ns - _monotonic_ns()) / 1e9
            if wake.acquire(True, wait_s):
                return
            now_ns = self._sample(own, due_ns)
            self._ticks += 1
            if self._ticks % _WATCHED_TICKS == 0:
                cost_ns = _thread_time_ns()
                self._cost_ns += cost_ns - watched_cost_ns
                self._adapt((cost_ns - watched_cost_ns) / max(1, now_ns - watched_ns), now_ns)
                watched_ns, watched_cost_ns = now_ns, cost_ns
            if now_ns - self._flushed_ns > _FLUSH_NS:
                self._flush(now_ns)
            period_ns = int(1e9 / self._hz * (1 + _JITTER * (jitter() - 0.5)))
            due_ns += period_ns
            if due_ns < now_ns:
                self._missed += (now_ns - due_ns) // period_ns
                due_ns = now_ns + period_ns
        if self._is_child and self._samples:
            self._switching.give_back()
            self._finish()
            self._is_over = True

    def _sample(self, own: int, due_ns: int) -> int:
        """Take one sample of each thread; returns when."""
        if self._table.is_full:
            self._close_rows()
            self._pending.append(chunk(RESET, b""))
            self._table = StackTable()
        frames = sys._current_frames()
        now_ns = _monotonic_ns()
        if now_ns - self._base_ns >= 1 << 32:
            self._close_rows()
            self._base_ns = now_ns
        late_ns = max(0, now_ns - due_ns)
        times = now_ns - self._base_ns, min(late_ns // 1000, 0xFFFFFFFF)
        looks = self._ticks % _LOOK_AROUND == 0
        if looks:
            self._switching.look(frames, own)
        looks |= self._all
        for ident, frame in frames.items():
            if ident != own and (looks or ident in self._launching):
                if late_ns > _HELD_NS and ident == self._main:
                    frame = _interrupted(frame)  # noqa: PLW2901
                self._note(ident, frame, times)
        self._samples += 1
        self._late += late_ns * self._hz > 1e9
        self._watched_late_ns += late_ns
        return now_ns

    def _note(self, ident: int, frame: FrameType, times: tuple[int, int]) -> None:
        """Keep the stack of a thread, if it launches GPU work."""
        node, numbers = self._table.node(frame)
        if not (self._all or ident in self._launching):
            if not self._table.launch(numbers):
                return
            self._launching.add(ident)
        thread = self._thread_numbers.get(ident)
        if thread is None:
            thread = self._name_thread(ident)
        self._rows += SAMPLE.pack(*times, thread, node)

    def _adapt(self, cost: float, now_ns: int) -> None:
        """Sample less often where that costs too much, and more often again where it does not."""
        mean_late_ns, self._watched_late_ns = self._watched_late_ns // _WATCHED_TICKS, 0
        if cost > _TARGET_COST and self._switching.wait_longer(mean_late_ns):
            return
        hz = self._hz
        if cost > _TARGET_COST:
            hz = max(_MIN_HZ, hz * max(0.25, _TARGET_COST / cost))
        elif cost < _COMFORTABLE_COST:
            hz = min(self._wanted_hz, hz * 1.25)
            if hz == self._hz:
                self._switching.wait_shorter()
        if hz != self._hz:
            self._hz, self._lowest_hz = hz, min(hz, self._lowest_hz)
            self._pending.append(json_chunk(RATE, {"time": now_ns, "hz": hz, "cost": cost}))

    def _name_thread(self, ident: int) -> int:
        number = self._thread_numbers[ident] = self._next_thread
        self._next_thread += 1
        known = getattr(threading, "_active", {}).get(ident)  # enumerate() takes a lock
        native = getattr(known, "native_id", None)
        if ident == self._main and sys.platform == "linux":
            native = os.getpid()  # after a fork, Python still has the one from before
        about = {
            "number": number,
            "ident": ident,
            "native": native,
            "name": getattr(known, "_name", None),
        }
        self._pending.append(json_chunk(THREAD, about))
        return number

    # The file -------------------------------------------------------------------------------------

    def _close_rows(self) -> None:
        if self._rows:
            self._take_new()
            self._pending.append(chunk(SAMPLES, struct.pack("<q", self._base_ns) + self._rows))
            self._rows = bytearray()

    def _take_new(self) -> None:
        table = self._table
        if table.new_frames:
            self._pending.append(json_chunk(FRAMES, table.new_frames))
            table.new_frames = []
        if table.new_nodes:
            nodes, table.new_nodes = table.new_nodes, array.array("I")
            if sys.byteorder == "big":
                nodes.byteswap()
            self._pending.append(chunk(NODES, nodes.tobytes()))

    def _flush(self, now_ns: int) -> None:
        self._close_rows()
        self._base_ns = self._flushed_ns = now_ns
        if now_ns - self._synced_ns > _CLOCK_NS:
            self._synced_ns = now_ns
            self._thread_numbers.clear()  # another thread may have got the id of one that ended
            self._sync()
        data = b"".join(self._pending.popleft() for _ in range(len(self._pending)))
        if data:
            self._file.write(data, self._about())

    def _sync(self) -> None:
        """Compare the wall clock with ours; the closest of three readings counts."""
        readings = [(_monotonic_ns(), _wall_ns(), _monotonic_ns()) for _ in range(3)]
        before, value, after = min(readings, key=lambda reading: reading[2] - reading[0])
        self._pending.append(
            json_chunk(CLOCK, {"kind": "wall", "before": before, "value": value, "after": after})
        )

    def _about(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "is_fork": self._is_child,
            "began": self._began_ns,
            "hz": self._wanted_hz,
            "threads": ALL_THREADS if self._all else LAUNCHING,
            "python": ".".join(map(str, sys.version_info[:3])),
            "folder": _folder(),
            "libraries": sorted({os.__file__.rpartition(os.sep)[0], sys.prefix, sys.base_prefix}),
        }

    def _finish(self) -> None:
        now_ns = _monotonic_ns()
        self._synced_ns = now_ns
        self._close_rows()
        self._sync()
        about = {
            "time": now_ns,
            "samples": self._samples,
            "late": self._late,
            "missed": self._missed,
            "cost": self._cost_ns,
            "lowest_hz": self._lowest_hz,
        }
        self._pending.append(json_chunk(END, about))
        self._flush(now_ns)


def _interrupted(frame: FrameType) -> FrameType:
    """Return what a signal handler that has just begun interrupts.

    When a call ends that kept the GIL, Python runs handlers before it gives the GIL to us.
    """
    if hasattr(signal, "valid_signals") and frame.f_back is not None:
        for number in signal.valid_signals():
            if getattr(signal.getsignal(number), "__code__", None) is frame.f_code:
                return frame.f_back
    return frame


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - pathlib is slow to import
    except OSError:  # it is gone
        return ""
