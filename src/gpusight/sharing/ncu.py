"""Copies of Nsight Compute's reports without what tells about machine, users and code.

The copy is a new report: what is known of the session, the names of the metrics that occur, and
the results one after the other, in blocks of their own.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from gpusight.errors import DamagedCaptureError
from gpusight.evidence import NCU_REPORT
from gpusight.readers.ncu.container import read_container
from gpusight.readers.ncu.unpacked import read_content
from gpusight.readers.protobuf.wire import WireError, integer, parse
from gpusight.sharing.ncu_fields import RESULTS, SESSION, SOURCE
from gpusight.sharing.ncu_messages import Messages, used_names
from gpusight.sharing.ncu_wire import block, number
from gpusight.sharing.ncu_words import is_metric_text
from gpusight.sharing.report import Category, Fate
from gpusight.sharing.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import IO

    from gpusight.readers.ncu.container import Container, Process, Result, Span
    from gpusight.readers.protobuf.wire import Message
    from gpusight.sharing.report import Found, Options

_VERSION = 7
_COUNTERS = {"kernel": 13, "range": 4, "command list": 4, "graph": 4}
"""Fields of results that hold counters."""
_COUNTS = {"source": 1, "kernel": 2, "range": 7, "command list": 8, "graph": 9}
"""Fields of a block's header that count what it holds."""
_SESSION, _STRINGS, _PAYLOAD, _PROCESS = 3, 4, 5, 6
_BLOCK_BYTES = 8 << 20


class NcuCleaner:
    """Knows native reports, packed or not."""

    suffixes = (".ncu-rep", ".ncu-repz")

    def __init__(self, path: Path) -> None:
        self._path = path

    def look(self, options: Options) -> Found:
        """Say what the report holds, and what would become of it."""
        return self._walk(options, lambda _data: None)

    def write(self, output: Path, options: Options, *, name: str = "") -> Found:
        """Write the copy, packed where its name ends in .ncu-repz."""
        with output.open("xb") as file, _packing(file, name or output.name) as packed:
            return self._walk(options, packed.write)

    def _walk(self, options: Options, put: Callable[[bytes], Any]) -> Found:
        tally = Tally()
        content = read_content(self._path)
        container = read_container(str(self._path), content.data)
        problem = content.problem or container.problem
        if problem and not container.results:
            raise DamagedCaptureError(
                f"{self._path} holds no whole launch", why=problem, hint="copy or capture it again"
            )
        writing = _Writing(content.data, container, options, tally)
        try:
            for data in writing.report():
                put(data)
        except WireError as error:
            raise DamagedCaptureError(
                f"{self._path} cannot be decoded",
                why=str(error),
                hint="what cannot be read cannot be cleaned: copy or capture it again",
            ) from error
        # After an error its traceback still holds pieces of the file, and lets go of it later.
        content.close()
        return tally.found(_notes(problem, writing.undecoded))


class _Writing:
    """One walk through a report."""

    def __init__(
        self, data: memoryview, container: Container, options: Options, tally: Tally
    ) -> None:
        self._data = data
        self._container = container
        self._tally = tally
        self._messages = Messages(options, tally, container.strings)
        pids = {result.process.pid for result in container.results if result.process}
        self._numbers = {pid: number for number, pid in enumerate(sorted(pids), 1)}
        self.undecoded = 0
        """Results that are not what the format says."""

    def report(self) -> Iterator[bytes]:
        """Give the copy, piece after piece."""
        yield NCU_REPORT + _sized(number(1, _VERSION))
        sessions = [self._session(said) for said in self._container.session]
        for session in filter(None, sessions):
            yield _block(block(_SESSION, session), "source", [])
        yield _block(block(_STRINGS, self._strings()), "source", self._sources())
        yield from self._results()

    def _sources(self) -> list[bytes]:
        """Write what is left of the binaries; the profiler refuses two that are the same."""
        written = (self._messages.cleaned(self._bytes(s), SOURCE) for s in self._container.sources)
        return list({integer(parse(source), 1): source for source in written if source}.values())

    def _results(self) -> Iterator[bytes]:
        """Put results together that are of one kind and process, some megabytes at a time."""
        waiting: list[bytes] = []
        size = 0
        owner: tuple[str, Process | None] = ("", None)
        for result in self._container.results:
            same = (result.kind, result.process)
            if waiting and (same != owner or size > _BLOCK_BYTES):
                yield self._block_of(waiting, *owner)
                waiting, size = [], 0
            owner = same
            cleaned = self._result(result)
            if cleaned:
                waiting.append(cleaned)
                size += len(cleaned)
        if waiting:
            yield self._block_of(waiting, *owner)

    def _block_of(self, messages: list[bytes], kind: str, process: Process | None) -> bytes:
        header = b""
        if process is not None:
            header = block(_PROCESS, number(1, self._numbers[process.pid]))
            self._tally.add(
                Category.PROCESS_NUMBERS, "numbers of processes", Fate.RENUMBERED, process.pid
            )
            if process.name:
                where = "names and hosts of processes"
                self._tally.add(Category.PROCESSES, where, Fate.REMOVED, process.name)
                self._tally.hide(Category.PROCESSES, process.name)
        return _block(header, kind, messages)

    def _result(self, result: Result) -> bytes:
        try:
            return self._messages.cleaned(self._bytes(result.span), RESULTS[result.kind])
        except WireError:
            self.undecoded += 1
            return b""

    def _session(self, said: Message) -> bytes:
        """Write what is said of the session, from the fields that the reader split it into."""
        fields = (
            number(field, value) if isinstance(value, int) else block(field, value)
            for field, values in said.items()
            for value in values
        )
        return self._messages.cleaned(b"".join(fields), SESSION)

    def _strings(self) -> bytes:
        """Write the names of metrics; each keeps its place, for counters tell theirs by number."""
        used: set[int] = set()
        for result in self._container.results:
            with contextlib.suppress(WireError):
                used |= used_names(self._bytes(result.span), _COUNTERS[result.kind])
        names = enumerate(self._container.strings)
        return b"".join(block(1, self._string(text, used=at in used)) for at, text in names)

    def _string(self, text: str, *, used: bool) -> bytes:
        """Write a name; one that no counter has stays only where it is the profiler's own."""
        if used or is_metric_text(text):
            return self._messages.metric(text).encode()
        self._tally.add(Category.UNKNOWN, "unused strings", Fate.REMOVED, text)
        return b""

    def _bytes(self, span: Span) -> bytes:
        return bytes(self._data[span.start : span.end])


def _block(header: bytes, kind: str, messages: list[bytes]) -> bytes:
    payload = b"".join(map(_sized, messages))
    sizes = number(_COUNTS[kind], len(messages)) + number(_PAYLOAD, len(payload))
    return _sized(header + sizes) + payload


def _sized(message: bytes) -> bytes:
    return len(message).to_bytes(4, "little") + message


@contextlib.contextmanager
def _packing(file: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    if not name.lower().endswith("z"):
        yield file
        return
    import zstandard

    with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as packed:
        yield packed


def _notes(problem: str | None, undecoded: int) -> Iterator[str]:
    if problem:
        yield f"the report is damaged: {problem}; the copy holds what lies before that"
    if undecoded:
        yield f"launches that cannot be decoded and were left behind: {undecoded:,}"
