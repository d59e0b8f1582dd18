"""A first walk through an nsys capture.

Whose events it holds, which texts, what each text becomes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from gpusight.pace import MESSAGE, Pace
from gpusight.readers.nsys.native_container import NsysContainer
from gpusight.readers.nsys.sqlite_export import SqliteTables
from gpusight.readers.protobuf_wire import child, children, integer, text
from gpusight.recording.inside.stack_sampler import CLOCK_MESSAGE
from gpusight.sharing.hashed_names import hash_kernel, hash_range
from gpusight.sharing.known_words import described, is_call
from gpusight.sharing.leak_report import Category, Treatment, without_homes
from gpusight.sharing.nsys_allow_list import (
    ENUM_PREFIXES,
    EVENTS,
    KNOWN,
    LEFT_OUT,
    REWRITTEN,
    SharedColumnKind,
    TextRole,
)
from gpusight.sharing.share_stacks import shared_mark

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpusight.readers.nsys.raw_tables import RawTables
    from gpusight.readers.protobuf_wire import Message
    from gpusight.sharing.leak_report import LeakTally, ShareOptions
    from gpusight.sharing.nsys_allow_list import SharedColumn


CATEGORIES = {
    TextRole.KERNEL: Category.KERNEL_NAMES,
    TextRole.RANGE: Category.PROGRAM_TEXTS,
    TextRole.CALL: Category.CALLS,
    TextRole.SYSTEM: Category.CALLS,
    TextRole.OVERHEAD: Category.PROFILER,
    TextRole.METRIC: Category.PROFILER,
    TextRole.HARDWARE: Category.MACHINE,
}
THREADS = re.compile(
    r"python[\d.]{0,6}|thread|cuda-EvtHandlr|cuda[0-9a-f]{8,12}|CUPTI worker thread|main"
    r"|\[NSys(?: Comms)?\]|nsys(?:-launcher|-tee)?"
    r"|pt(?:_(?:autograd|main|thread|data|worker|pin|nccl|watchdg|heartbt|elastic|tcpstore|uv|gloo"
    r"|runloop|pool|compile|inductor)){1,3}(?:_?\d{1,4})?"
    r"|(?:NCCL|nccl)(?:[ -]?(?:Progress|progress|Service|UDS|RAS|I/O|Thr|watchdog)){0,2} ?\d{0,4}"
)
"""Names of threads that frameworks, CUDA and profilers give."""
_OF_PROGRAMS = (TextRole.KERNEL, TextRole.RANGE)
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
_VERSION_TEXT = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,8}){0,5}(?:-[0-9]{1,12}v[0-9])?")
_PRODUCT = re.compile(r"(?:NVIDIA )?Nsight Systems|gpusight(?: record)?")


class TextCleaner:
    """Cleans texts, each once: captures repeat theirs."""

    def __init__(self, options: ShareOptions, tally: LeakTally) -> None:
        self._options = options
        self._tally = tally
        self._done: dict[tuple[TextRole, str], str] = {}

    def treatment(self, role: TextRole) -> Treatment:
        """Return how the texts of a role are treated."""
        if role in (TextRole.OVERHEAD, TextRole.HARDWARE):
            return Treatment.SHORTENED
        return Treatment.HASHED if self._options.hash_names else Treatment.KEPT

    def clean(self, text: str, role: TextRole) -> str:
        """Return the text as it stands in the copy."""
        key = (role, text)
        if key not in self._done:
            self._done[key] = self._clean(text, role)
        return self._done[key]

    def clean_all(self, texts: pl.Series, role: TextRole) -> pl.Series:
        """Clean a column, each distinct text once."""
        distinct = texts.unique().drop_nulls()
        cleaned = [self.clean(text, role) for text in distinct.to_list()]
        new = pl.Series(cleaned, dtype=pl.String)
        return texts.replace_strict(distinct, new, default=None, return_dtype=pl.String)

    def _clean(self, text: str, role: TextRole) -> str:
        salt = self._options.salt if self._options.hash_names else None
        if role is TextRole.HARDWARE:
            return described(text)
        if text.startswith(MESSAGE) and (pace := _pace_mark(text)):
            return pace
        if text.startswith(CLOCK_MESSAGE) and (mark := shared_mark(text, self._options.salt)):
            return mark
        if role is TextRole.OVERHEAD:
            # What follows is a file: dlopen(/home/…/libmine.so).
            text = text.partition("(")[0]
            salt = self._options.salt if _PATH.search(text) else salt
        if salt is None:
            if role not in _OF_PROGRAMS:
                return text
            kept = without_homes(text)
            self._tally.keep(kept)
            return kept
        if role is TextRole.KERNEL:
            return hash_kernel(text, salt)
        return text if role is TextRole.CALL and is_call(text) else hash_range(text, salt)


def _pace_mark(text: str) -> str | None:
    """Write the step time without a profiler anew: numbers and known words, nothing else."""
    try:
        return MESSAGE + Pace.from_text(text.removeprefix(MESSAGE)).to_text()
    except (ValueError, RecursionError):  # a name of the program that only begins like it
        return None


def thread_name(name: str) -> str:
    """Return a thread's name where it is a common one."""
    return name if THREADS.fullmatch(name) and len(name) < 32 else _ANY_THREAD


def diagnosis(text: str) -> str:
    """Keep the profiler's own words of a message: no paths, names or output."""
    anonymous = _NUMBERED.sub(rf"\1 {_LEFT_OUT}", text[:2000])
    kept = [piece if _is_profiler_text(piece) else _LEFT_OUT for piece in anonymous.split()]
    return re.sub(rf"(?:{_LEFT_OUT} ?)+", f"{_LEFT_OUT} ", " ".join(kept)).strip()


def _is_profiler_text(piece: str) -> bool:
    if not piece.isascii() or any(mark in piece for mark in "/\\@=_-"):
        return False
    if _JOINED.search(piece):  # an address, a date or a clock, unless it is a short version
        return _SHORT_VERSION.fullmatch(piece.strip("(),;:")) is not None
    return all(run.lower() in _DIAGNOSES or run.isdigit() for run in _LETTERS.findall(piece))


def version(text: str) -> str | None:
    """Return a version; None for anything else."""
    return text if _VERSION_TEXT.fullmatch(text) else None


def product(text: str) -> str | None:
    """Return the name of the program that exported the capture; None for an unknown one."""
    return text if _PRODUCT.fullmatch(text) else None


def pieces_of(raw: RawTables, table: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Read columns in file order, some rows at a time where the form of the capture allows."""
    if isinstance(raw, SqliteTables):
        yield from raw.pieces(table, columns)
    else:
        yield raw.read(table, columns)


NVTX = "NVTX_EVENTS"
_NAMED = (34, 59, 60, 70, 71, 33, 75)
"""Events of NVTX whose text is a name: ranges, marks, categories and domains."""
_BITS = (1 << 24) - 1
_WORD = (1 << 64) - 1
_MAX_DURATION_NS = 1 << 55
"""More than a year: what begins later counts from 1970, not from the start of a capture."""
_NUMBERS = "numbers of processes and threads"
_ORDER = (TextRole.KERNEL, TextRole.CALL, TextRole.SYSTEM, TextRole.RANGE, TextRole.OVERHEAD)
"""Which role a text has that several columns refer to."""
_TABLE = re.compile(
    r"(?:CUPTI|ACTIVITY|KIND|CUDA|NVTX|MPI|P2P|COLLECTIVES?|START|WAIT|OTHER|OSHMEM|UCP|UCX|OPENACC"
    r"|OPENMP|OPENGL|VULKAN|DX11|DX12|D3D11|D3D12|WDDM|ETW|GPU|CPU|NVVIDEO|VIDEO|NVMEDIA|API|EVENTS?"
    r"|PIX|MARKER|KHR|DEBUG|RANGE|STREAM_KEY|PACKET|CONTEXT|SWITCH|FECS|SYSCALL|PERF|METRICS?|SLI|DXGI"
    r"|VSYNC|DATA|LAUNCH|NCCL|NET|NIC|IB|SOC|PMU|TARGET|INFO|PYTHON|THREAD|TASK|TRACE|MEMORY|POOL"
    r"|UM|PAGE|FAULT|SUBMIT|COMMUNICATORS?|RANKS?|_)+"
)
"""Names of tables that nsys gives; those of others may be private themselves."""


def with_names_only(table: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Empty the texts of NVTX events that are no names: those of payloads, threads and schemas."""
    texts = [c for c in ("text", "textId") if c in rows.columns]
    if table != NVTX or not texts or "eventType" not in rows.columns:
        return rows
    named = rows.get_column("eventType").cast(pl.Int64, strict=False).is_in(_NAMED)
    return rows.with_columns(pl.when(named).then(pl.col(c)).alias(c) for c in texts)


class NsysSurvey:
    """What has to be known of a capture before anything of it can be copied."""

    def __init__(self, raw: RawTables, texts: TextCleaner, tally: LeakTally) -> None:
        self._raw, self._texts, self._tally = raw, texts, tally
        self.strings: dict[int, TextRole] = {}
        """Which texts of StringIds the copy needs, and as what."""
        self.processes: set[int] = set()
        """Processes that events belong to: machine and number of each."""
        self._numbers: set[int] = set()
        self._earliest: int | None = None
        raw.preload(sorted(KNOWN))
        for table in sorted(raw.tables()):
            self._scan_table(table)
        self._add_threads()
        ranked = sorted(self._numbers - {0})
        self.numbers = dict(zip(ranked, range(1, len(ranked) + 1), strict=True)) | {0: 0}
        """What processes and threads are called in the copy."""

    def shifted(self, times: pl.Series) -> pl.Series:
        """Count times that reveal the date from the first event that has such a time."""
        dated = times > _MAX_DURATION_NS
        if not dated.any():
            return times
        return pl.select(pl.when(~dated).then(times).otherwise(times - self._earliest)).to_series()

    def renumbered(self, ids: pl.Series) -> pl.Series:
        """Replace process and thread numbers in global ids; their order and equality stay."""
        old = ids.unique().drop_nulls()
        new = pl.Series([self._renumber(number) for number in old.to_list()], dtype=pl.Int64)
        return ids.replace_strict(old, new, default=None, return_dtype=pl.Int64)

    def pid(self, pids: pl.Series) -> pl.Series:
        """Replace the numbers of processes."""
        old = pids.unique().drop_nulls()
        new = pl.Series([self.numbers.get(number) for number in old.to_list()], dtype=pl.Int64)
        return pids.replace_strict(old, new, default=None, return_dtype=pl.Int64)

    def own(self, ids: pl.Series) -> pl.Series:
        """Return which global ids belong to a process that has events."""
        known = [i for i in ids.unique().drop_nulls().to_list() if _process(i) in self.processes]
        return ids.is_in(known)

    def _renumber(self, number: int) -> int:
        bits = number & _WORD
        pid, tid = self.numbers[bits >> 24 & _BITS], self.numbers[bits & _BITS]
        new = bits >> 48 << 48 | pid << 24 | tid
        return new - (1 << 64) if new >> 63 else new

    def _scan_table(self, table: str) -> None:
        if table in KNOWN:
            self._scan_columns(table, KNOWN[table])
        elif table in LEFT_OUT:
            self._count(LEFT_OUT[table], table, table)
        elif table not in REWRITTEN and not table.startswith(ENUM_PREFIXES):
            name = table if _TABLE.fullmatch(table) else "tables that nsys does not write"
            self._count(Category.UNKNOWN, name, table)

    def _count(self, category: Category, where: str, table: str) -> None:
        # Only META_DATA_CAPTURE is looked into, elsewhere: rows are counted here.
        if table != "META_DATA_CAPTURE":
            rows = self._raw.row_count(table)
            self._tally.add_all(
                category, where, Treatment.REMOVED, ((table, n) for n in range(rows))
            )

    def _scan_columns(self, table: str, columns: dict[str, SharedColumn]) -> None:
        present = self._raw.columns(table)
        unknown = sorted(present - columns.keys())
        self._tally.add_all(
            Category.UNKNOWN, f"{table}, unknown columns", Treatment.REMOVED, range(len(unknown))
        )
        known = {name: column for name, column in columns.items() if name in present}
        wanted = [name for name, column in known.items() if _is_scanned(name, column)]
        if not wanted or self._raw.is_empty(table):
            return
        event_type = [] if table != NVTX or "eventType" not in present else ["eventType"]
        for rows in pieces_of(self._raw, table, [*wanted, *event_type]):
            named = with_names_only(table, rows)
            for name in wanted:
                self._scan_values(table, name, known[name], named.get_column(name))

    def _scan_values(self, table: str, name: str, column: SharedColumn, values: pl.Series) -> None:
        if column.kind is SharedColumnKind.TIME:
            times = values.cast(pl.Int64, strict=False)
            earliest = times.filter(times > _MAX_DURATION_NS).min()
            if isinstance(earliest, int):
                self._earliest = (
                    earliest if self._earliest is None else min(self._earliest, earliest)
                )
            return
        distinct = values.unique().drop_nulls().to_list()
        if column.kind is SharedColumnKind.THREAD:
            self._add_owners(distinct, of_events=table in EVENTS)
        elif column.kind is SharedColumnKind.PID:
            self._numbers.update(number & _BITS for number in distinct if isinstance(number, int))
        elif column.kind is SharedColumnKind.STRING and column.role is not None:
            self._add_strings(distinct, column.role)
        self._report(f"{table}.{name}", column, distinct)

    def _report(self, where: str, column: SharedColumn, distinct: list[object]) -> None:
        if column.kind is SharedColumnKind.GONE and column.category is not None:
            private_values = (v for v in distinct if v not in ("", 0, 0.0))
            self._tally.add_all(column.category, where, Treatment.REMOVED, private_values)
        elif column.role is not None:
            treatment, category = self._texts.treatment(column.role), CATEGORIES[column.role]
            if column.kind is SharedColumnKind.STRING:
                self._tally.add_all(category, where, treatment, distinct)
                return
            for text in map(str, distinct):
                same = self._texts.clean(text, column.role) == text
                self._tally.add(category, where, Treatment.KEPT if same else treatment, text)
        elif column.kind in (SharedColumnKind.THREAD, SharedColumnKind.PID):
            self._tally.add_all(Category.PROCESS_NUMBERS, _NUMBERS, Treatment.RENUMBERED, distinct)

    def _add_owners(self, ids: Iterable[object], *, of_events: bool) -> None:
        for number in ids:
            if isinstance(number, int):
                bits = number & _WORD
                self._numbers |= {bits >> 24 & _BITS, bits & _BITS}
                if of_events:
                    self.processes.add(_process(number))

    def _add_strings(self, ids: Iterable[object], role: TextRole) -> None:
        for number in ids:
            if isinstance(number, int):
                previous = self.strings.get(number, role)
                self.strings[number] = min(role, previous, key=_ORDER.index)

    def _add_threads(self) -> None:
        """Number the threads, too, that did nothing but belong to such a process."""
        if "globalTid" not in self._raw.columns("ThreadNames"):
            return
        threads = self._raw.read("ThreadNames", ["globalTid"]).get_column("globalTid")
        self._add_owners(threads.filter(self.own(threads)).unique().to_list(), of_events=False)


def _process(number: int) -> int:
    """Return machine and process of a global id."""
    return (number & _WORD) >> 24


def _is_scanned(name: str, column: SharedColumn) -> bool:
    if column.kind is SharedColumnKind.TIME:
        return name in ("start", "timestamp")
    return column.kind not in (SharedColumnKind.WHOLE, SharedColumnKind.REAL)


_PROPERTIES = {
    600: Category.HARDWARE_IDS,
    610: Category.ENVIRONMENT,
    619: Category.HOST_NAMES,
    721: Category.HARDWARE_IDS,
    897: Category.HARDWARE_IDS,
}
"""Properties of the machine, by number."""
_PROCESS = {10: Category.COMMAND_LINES, 11: Category.COMMAND_LINES, 12: Category.FILE_PATHS}
_UI = {
    4: Category.CAPTURE_TIME,
    5: Category.HOST_NAMES,
    22: Category.CAPTURE_TIME,
    24: Category.HOST_NAMES,
    25: Category.COMMAND_LINES,
}
_SessionValue = tuple[Category, str, str]


def session_values(raw: RawTables) -> Iterator[_SessionValue]:
    """Return what a native report holds of its session; other formats have it in tables."""
    if raw.source != "nsys-rep":
        return
    container = NsysContainer(raw.path)
    try:
        yield from _fields(container.ui, _UI, "UI Data")
        for machine in children(container.raw.system, 1):
            yield from _machine(machine)
        for process in children(child(container.raw.system, 2), 26):
            yield from _fields(process, _PROCESS, "capture options")
            for variable in children(process, 30):
                value = text(variable, 2)
                if value:
                    yield Category.ENVIRONMENT, "capture options", value
    finally:
        container.close()


def _machine(machine: Message) -> Iterator[_SessionValue]:
    if name := text(machine, 1):
        yield Category.HOST_NAMES, "system information", name
    for entry in children(child(machine, 2), 1):
        category = _PROPERTIES.get(integer(entry, 1) or 0)
        value = text(entry, 2)
        if category is Category.ENVIRONMENT and value:
            for variable in value.replace("\0", ";").split(";"):
                if setting := variable.partition("=")[2]:
                    yield category, "system information", setting
        elif category is not None and value:
            yield category, "system information", value


def _fields(message: Message, wanted: dict[int, Category], where: str) -> Iterator[_SessionValue]:
    for number, category in wanted.items():
        for value in message.get(number, ()):
            if isinstance(value, bytes) and value:
                yield category, where, value.decode("utf-8", "replace")
