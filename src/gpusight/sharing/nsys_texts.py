"""What becomes of each kind of text of an nsys capture."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from gpusight.sharing.hidden import without_homes
from gpusight.sharing.names import hash_kernel, hash_range
from gpusight.sharing.nsys_schema import Role
from gpusight.sharing.profiler_words import described, is_call
from gpusight.sharing.report import Category, Fate

if TYPE_CHECKING:
    from gpusight.sharing.report import Options
    from gpusight.sharing.tally import Tally

CATEGORIES = {
    Role.KERNEL: Category.KERNEL_NAMES,
    Role.RANGE: Category.PROGRAM_TEXTS,
    Role.CALL: Category.CALLS,
    Role.SYSTEM: Category.CALLS,
    Role.OVERHEAD: Category.PROFILER,
    Role.METRIC: Category.PROFILER,
    Role.HARDWARE: Category.MACHINE,
}
THREADS = re.compile(
    r"python[\d.]{0,6}|cuda-EvtHandlr|cuda[0-9a-f]{8,12}|CUPTI worker thread|main"
    r"|\[NSys(?: Comms)?\]|nsys(?:-launcher|-tee)?"
    r"|pt(?:_(?:autograd|main|thread|data|worker|pin|nccl|watchdg|heartbt|elastic|tcpstore|uv|gloo"
    r"|runloop|pool|compile|inductor)){1,3}(?:_?\d{1,4})?"
    r"|(?:NCCL|nccl)(?:[ -]?(?:Progress|progress|Service|UDS|RAS|I/O|Thr|watchdog)){0,2} ?\d{0,4}"
)
"""Names of threads that frameworks, CUDA and profilers give."""
_OF_PROGRAMS = (Role.KERNEL, Role.RANGE)
_PATH = re.compile(r"[/\\]")
_ANY_THREAD = "thread"
_MESSAGES = """
    a all allocated analysis and application are asked at backtrace backtraces be been buffer
    buffers but by check collect collected collection common completed context control corrupt
    corrupted cpu cublas cuda cudaprofilerstart cudaprofilerstop cudnn cupti could data device did
    discarded drop dropped drops due dwarf enabling enough error event events every failed flushed
    for from gpu graph have holding in incomplete initialized injection insufficient invoked ip is
    it launch launched libraries library loaded lost memory metrics might missing more next nodes
    not number nvtx of on opengl os out overflow overflowed perf period process produced profiler
    profiling program running runtime sample samples sampling see session size some space
    started stopped stop successfully supported system target than that the this thread time to
    trace traced tracing trigger truncated unable unsupported used was were with
"""
_DIAGNOSES = frozenset(_MESSAGES.split())
_LETTERS = re.compile(r"[A-Za-z]+|\d{1,9}")
_NUMBERED = re.compile(
    r"\b((?:process|pid|thread|tid|task)s?(?: id)?)[ :#(]{1,3}\d+", re.IGNORECASE
)
_JOINED = re.compile(r"\d[.:,]\d")
_SHORT_VERSION = re.compile(r"\d{1,3}\.\d{1,3}\.?")
_LEFT_OUT = "…"
_VERSION = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,8}){0,5}(?:-[0-9]{1,12}v[0-9])?")
_PRODUCT = re.compile(r"(?:NVIDIA )?Nsight Systems|gpusight(?: record)?")


class Texts:
    """Cleans texts, each once: captures repeat theirs."""

    def __init__(self, options: Options, tally: Tally) -> None:
        self._options = options
        self._tally = tally
        self._done: dict[tuple[Role, str], str] = {}

    def fate(self, role: Role) -> Fate:
        """Say what becomes of the texts of a role."""
        if role in (Role.OVERHEAD, Role.HARDWARE):
            return Fate.SHORTENED
        return Fate.HASHED if self._options.hash_names else Fate.KEPT

    def clean(self, text: str, role: Role) -> str:
        """Give the text as it may be seen."""
        key = (role, text)
        if key not in self._done:
            self._done[key] = self._cleaned(text, role)
        return self._done[key]

    def clean_all(self, texts: pl.Series, role: Role) -> pl.Series:
        """Clean a column, looking at every different text once."""
        distinct = texts.unique().drop_nulls()
        cleaned = [self.clean(text, role) for text in distinct.to_list()]
        new = pl.Series(cleaned, dtype=pl.String)
        return texts.replace_strict(distinct, new, default=None, return_dtype=pl.String)

    def _cleaned(self, text: str, role: Role) -> str:
        salt = self._options.salt if self._options.hash_names else None
        if role is Role.HARDWARE:
            return described(text)
        if role is Role.OVERHEAD:
            # What follows is a file: dlopen(/home/…/libmine.so).
            text = text.partition("(")[0]
            salt = self._options.salt if _PATH.search(text) else salt
        if salt is None:
            return self._kept(text) if role in _OF_PROGRAMS else text
        if role is Role.KERNEL:
            return hash_kernel(text, salt)
        return text if role is Role.CALL and is_call(text) else hash_range(text, salt)

    def _kept(self, name: str) -> str:
        kept = without_homes(name)
        self._tally.keep(kept)
        return kept


def thread_name(name: str) -> str:
    """Give a thread's name where everybody's threads are called so."""
    return name if THREADS.fullmatch(name) and len(name) < 32 else _ANY_THREAD


def diagnosis(text: str) -> str:
    """Give a message of the profiler without what is no word of its own: paths, names, output."""
    told = _NUMBERED.sub(rf"\1 {_LEFT_OUT}", text[:2000])
    kept = [piece if _is_own(piece) else _LEFT_OUT for piece in told.split()]
    return re.sub(rf"(?:{_LEFT_OUT} ?)+", f"{_LEFT_OUT} ", " ".join(kept)).strip()


def _is_own(piece: str) -> bool:
    if not piece.isascii() or any(mark in piece for mark in "/\\@=_-"):
        return False
    if _JOINED.search(piece):  # an address, a date or a clock, unless it is a short version
        return _SHORT_VERSION.fullmatch(piece.strip("(),;:")) is not None
    return all(run.lower() in _DIAGNOSES or run.isdigit() for run in _LETTERS.findall(piece))


def version(text: str) -> str | None:
    """Give a version where it is nothing else."""
    return text if _VERSION.fullmatch(text) else None


def product(text: str) -> str | None:
    """Give the name of the program that exported the capture, where we know it."""
    return text if _PRODUCT.fullmatch(text) else None
