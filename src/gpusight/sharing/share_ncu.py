"""Sanitized copies of Nsight Compute's reports: protobuf messages copied field by field."""

from __future__ import annotations

import contextlib
import re
import secrets
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from gpusight.errors import DamagedCaptureError
from gpusight.readers.file_blocks import zstd_module
from gpusight.readers.ncu.ncu_container import read_container, read_content
from gpusight.readers.protobuf_wire import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    WireError,
    integer,
    parse,
    read_span,
    read_varint,
)
from gpusight.sharing.hashed_names import hash_kernel, hash_range, hash_text
from gpusight.sharing.known_words import described, is_metric_text
from gpusight.sharing.leak_report import Category, LeakTally, Treatment, without_homes
from gpusight.sharing.ncu_allow_list import (
    COUNTER,
    RESULTS,
    SECTION,
    SESSION,
    SOURCE,
    VALUE,
    FieldKind,
    RemovedField,
)
from gpusight.sniff import NCU_REPORT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import IO

    from gpusight.readers.ncu.ncu_container import (
        MessageSpan,
        NcuContainer,
        ReportProcess,
    )
    from gpusight.sharing.leak_report import LeakScan, ShareOptions
    from gpusight.sharing.ncu_allow_list import Spec


_SIZES = {FIXED64: 8, FIXED32: 4}


class MessageField(NamedTuple):
    """The position of a field: its tag, its value, and whether that is bytes or a number."""

    number: int
    first: int
    """Where its tag begins."""
    start: int
    end: int
    is_bytes: bool


def fields_of(data: bytes) -> Iterator[MessageField]:
    """Find the fields of a message."""
    at, end = 0, len(data)
    while at < end:
        first = at
        tag, at = read_varint(data, at, end)
        kind = tag & 7
        if kind == BYTES:
            start, at = read_span(data, at, end)
            yield MessageField(tag >> 3, first, start, at, is_bytes=True)
            continue
        start = at
        if kind == VARINT:
            _, at = read_varint(data, at, end)
        elif kind in _SIZES:
            at += _SIZES[kind]
            if at > end:
                raise WireError("a fixed-width number is cut off")
        else:
            raise WireError(f"wire type {kind} does not exist")
        yield MessageField(tag >> 3, first, start, at, is_bytes=False)


def varint(value: int) -> bytes:
    """Write a number; one below zero as the unsigned one that has the same bits."""
    value &= (1 << 64) - 1
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def number(field: int, value: int) -> bytes:
    """Write a field that holds a number."""
    return varint(field << 3 | VARINT) + varint(value)


def sized_block(field: int, content: bytes) -> bytes:
    """Write a field that holds a text or a message."""
    return varint(field << 3 | BYTES) + varint(len(content)) + content


_VARINT = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_VALUE = (
    rb"(?:\x05\x15.{4}|\x09\x19.{8}|[\x02-\x06]\x20" + _VARINT + rb"|[\x02-\x0b]\x28" + _VARINT
) + rb"|\x00)"
_PART = rb"\x1a[\x00-\x7f](?:\x0a" + _VALUE + rb")?\x12" + _VALUE
_PLAIN = re.compile(
    rb"\x08"
    + _VARINT
    + rb"(?:\x12"
    + _VALUE
    + rb")?(?:"
    + _PART
    + rb")*(?:\x20"
    + _VARINT
    + rb")?",
    re.DOTALL,
)
"""A counter that holds numbers alone: as nearly all do, and they may have thousands of parts."""
_IDENTIFYING = re.compile(r"uuid|attribute_pci_|serial|luid|board_id", re.IGNORECASE)
_KERNEL_NAME = "launch__kernel_name"
_DISPLAY_NAME = re.compile(r"display_name|device_name")
_RELEASE = re.compile(
    rb"\d[\d.]{0,30}(?: \(build \d{1,10}\))?(?: \((?:public|internal)-release\))?"
)
_DEFAULT_DOMAIN = "<default domain>"
_MAX_SECTIONS = 1024
_MAX_TEXT_BYTES = 1 << 16
"""Of what may be a text; binaries are longer."""


class MessageWriter:
    """Writes messages by the description of their fields."""

    def __init__(self, options: ShareOptions, tally: LeakTally, strings: Sequence[str]) -> None:
        self._hashed = options.hash_names
        self._salt = options.salt or secrets.token_bytes(32)
        self._tally = tally
        self._strings = strings
        self._known = frozenset(strings)
        self._sections: dict[bytes, bytes] = {}
        self._writers: Mapping[FieldKind, Callable[[bytes], bytes | None]] = {
            FieldKind.KERNEL: lambda raw: self._name(raw, FieldKind.KERNEL),
            FieldKind.RANGE: lambda raw: self._name(raw, FieldKind.RANGE),
            FieldKind.MACHINE: self._machine,
            FieldKind.VERSION: lambda raw: raw if _RELEASE.fullmatch(raw) else self._machine(raw),
            FieldKind.METRIC: self._mention,
            FieldKind.LABEL: self._label,
            FieldKind.COUNTER: self._counter,
            FieldKind.ATTRIBUTE: self._attribute,
            FieldKind.SECTION: self._section,
        }

    def cleaned(self, data: bytes, spec: Spec) -> bytes:
        """Write a message with the fields that its description has."""
        written: list[bytes] = []
        for number, first, start, end, is_bytes in fields_of(data):
            rule = spec.get(number)
            if rule is FieldKind.NUMBERS and not is_bytes:
                written.append(data[first:end])
            elif isinstance(rule, RemovedField):
                self._remove(rule, data[start:end], is_text=is_bytes)
            elif not is_bytes or rule is None or rule is FieldKind.NUMBERS:
                self._tally.add(Category.UNKNOWN, "fields", Treatment.REMOVED, (number, *spec))
            else:
                content = self._content(data[start:end], rule)
                if content is not None:
                    written.append(sized_block(number, content))
        return b"".join(written)

    def _remove(self, rule: RemovedField, data: bytes, *, is_text: bool) -> None:
        self._tally.add(rule.category, rule.where, Treatment.REMOVED, data)
        if is_text and len(data) < _MAX_TEXT_BYTES:
            # A command line names metrics, and those stand in the copy.
            words = (word for word in _text(data).split() if not is_metric_text(word))
            self._tally.hide(rule.category, " ".join(words))

    def _content(self, data: bytes, rule: FieldKind | Spec) -> bytes | None:
        """Write the value of a field; None where nothing of it is kept, or it is damaged."""
        try:
            if not isinstance(rule, dict):
                return self._writers[rule](data)
            cleaned = self.cleaned(data, rule)
        except WireError:
            self._tally.add(Category.UNKNOWN, "damaged fields", Treatment.REMOVED, data)
            return None
        return cleaned if cleaned or not data else None

    def metric(self, name: str) -> str:
        """Write the name of a metric: the profiler's own, unless someone defined one."""
        if is_metric_text(name):
            return name
        self._tally.add(Category.PROGRAM_TEXTS, "names of metrics", self._name_treatment(), name)
        return hash_text(name, self._salt) if self._hashed else name

    def _name_treatment(self) -> Treatment:
        return Treatment.HASHED if self._hashed else Treatment.KEPT

    # Texts ----------------------------------------------------------------------------------------

    def _name(self, raw: bytes, kind: FieldKind) -> bytes:
        """Write the name of a kernel or of a range."""
        is_kernel = kind is FieldKind.KERNEL
        name = _text(raw)
        if not name or (name == _DEFAULT_DOMAIN and not is_kernel):
            return raw
        category = Category.KERNEL_NAMES if is_kernel else Category.PROGRAM_TEXTS
        self._tally.add(category, kind.value, self._name_treatment(), name)
        if self._hashed:
            return (hash_kernel if is_kernel else hash_range)(name, self._salt).encode()
        kept = without_homes(name)
        self._tally.keep(kept)
        return raw if kept == name else kept.encode()

    def _machine(self, raw: bytes) -> bytes:
        text = _text(raw)
        kept = described(text)
        treatment = Treatment.KEPT if kept == text else Treatment.SHORTENED
        self._tally.add(Category.MACHINE, FieldKind.MACHINE.value, treatment, text)
        return kept.encode()

    def _mention(self, raw: bytes) -> bytes:
        """Write the name of a metric where it is only spoken of: if the report has such a one."""
        name = _text(raw)
        return self.metric(name).encode() if name in self._known else self._label(raw)

    def _label(self, raw: bytes) -> bytes:
        label = _text(raw)
        if is_metric_text(label):
            return raw
        self._tally.add(Category.PROFILER, FieldKind.LABEL.value, Treatment.HASHED, label)
        return hash_text(label, self._salt).encode()

    # Counters -------------------------------------------------------------------------------------

    def _counter(self, raw: bytes) -> bytes | None:
        name = ""
        if raw[:1] == b"\x08":  # the number of its name comes first
            number, _ = read_varint(raw, 1, len(raw))
            name = self._strings[number] if number < len(self._strings) else ""
        if _is_identifying(name):
            self._tally.add(Category.HARDWARE_IDS, "counters", Treatment.REMOVED, name)
            return None
        if _PLAIN.fullmatch(raw):
            return raw
        return self.cleaned(raw, _with_texts(COUNTER, _kind_of_texts(name)))

    def _attribute(self, raw: bytes) -> bytes | None:
        name = next((_text(raw[f.start : f.end]) for f in fields_of(raw) if f.number == 1), "")
        if _is_identifying(name):
            self._tally.add(Category.HARDWARE_IDS, "attributes of devices", Treatment.REMOVED, name)
            return None
        value = _with_texts(VALUE, _kind_of_texts(name))
        return self.cleaned(raw, {1: FieldKind.METRIC, 2: value})

    def _section(self, raw: bytes) -> bytes:
        """Write a section; those of the launches of a report are alike."""
        if raw not in self._sections:
            if len(self._sections) >= _MAX_SECTIONS:
                self._sections.clear()
            self._sections[raw] = self.cleaned(raw, SECTION)
        return self._sections[raw]


@lru_cache(maxsize=1 << 14)
def _is_identifying(name: str) -> bool:
    """Return whether a metric identifies the very GPU or slot."""
    return _IDENTIFYING.search(name) is not None


def _kind_of_texts(name: str) -> FieldKind:
    """Return what the texts of a counter are."""
    if name == _KERNEL_NAME:
        return FieldKind.KERNEL
    return FieldKind.MACHINE if _DISPLAY_NAME.search(name) else FieldKind.LABEL


def _with_texts(spec: Spec, kind: FieldKind) -> Spec:
    """Return the description of a counter whose texts are of a kind."""
    if kind is FieldKind.LABEL:
        return spec
    return {
        number: kind
        if rule is FieldKind.LABEL
        else _with_texts(rule, kind)
        if isinstance(rule, dict)
        else rule
        for number, rule in spec.items()
    }


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def counter_name_ids(data: bytes, field: int) -> set[int]:
    """Return the numbers of the names that the counters of a result have."""
    ids = set()
    for number, _, start, end, is_bytes in fields_of(data):
        if number == field and is_bytes and data[start : start + 1] == b"\x08":
            ids.add(read_varint(data, start + 1, end)[0])
    return ids


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

    def scan(self, options: ShareOptions) -> LeakScan:
        """Count what the report holds, and how a copy would treat it."""
        return self._walk(options, lambda _data: None)

    def write(self, output: Path, options: ShareOptions, *, name: str = "") -> LeakScan:
        """Write the copy, packed where its name ends in .ncu-repz."""
        with output.open("xb") as file, _packing(file, name or output.name) as packed:
            return self._walk(options, packed.write)

    def _walk(self, options: ShareOptions, put: Callable[[bytes], Any]) -> LeakScan:
        tally = LeakTally()
        content = read_content(self._path)
        container = read_container(str(self._path), content.data)
        problem = content.problem or container.problem
        if problem and not container.results:
            raise DamagedCaptureError(
                f"{self._path} has no complete launch", why=problem, hint="copy or capture it again"
            )
        writing = _Writing(content.data, container, options, tally)
        try:
            for data in writing.report():
                put(data)
        except WireError as error:
            raise DamagedCaptureError(
                f"{self._path} cannot be decoded",
                why=str(error),
                hint="data that cannot be read cannot be sanitized: copy or record it again",
            ) from error
        # After an error its traceback still holds pieces of the file, and lets go of it later.
        content.close()
        notes = []
        if problem:
            notes.append(f"the report is damaged: {problem}; the copy has the data before that")
        if writing.undecoded:
            notes.append(
                f"launches that cannot be decoded and were not copied: {writing.undecoded:,}"
            )
        return tally.scan(notes)


class _Writing:
    """One walk through a report."""

    def __init__(
        self, data: memoryview, container: NcuContainer, options: ShareOptions, tally: LeakTally
    ) -> None:
        self._data = data
        self._container = container
        self._tally = tally
        self._messages = MessageWriter(options, tally, container.strings)
        pids = {result.process.pid for result in container.results if result.process}
        self._numbers = {pid: number for number, pid in enumerate(sorted(pids), 1)}
        self.undecoded = 0
        """Results that do not follow the format."""

    def report(self) -> Iterator[bytes]:
        """Write the copy chunk by chunk."""
        yield NCU_REPORT + _sized(number(1, _VERSION))
        for message in self._container.session:
            # From the fields that the reader split the description of the session into.
            fields = (
                number(field, value) if isinstance(value, int) else sized_block(field, value)
                for field, values in message.items()
                for value in values
            )
            if session := self._messages.cleaned(b"".join(fields), SESSION):
                yield _block(sized_block(_SESSION, session), "source", [])
        # What is left of the binaries; the profiler refuses two that are the same.
        written = (self._messages.cleaned(self._bytes(s), SOURCE) for s in self._container.sources)
        sources = {integer(parse(source), 1): source for source in written if source}
        strings = sized_block(_STRINGS, self._strings())
        yield _block(strings, "source", list(sources.values()))
        yield from self._results()

    def _results(self) -> Iterator[bytes]:
        """Write results in blocks of one kind and process, of some megabytes."""
        waiting: list[bytes] = []
        size = 0
        owner: tuple[str, ReportProcess | None] = ("", None)
        for result in self._container.results:
            kind_and_process = (result.kind, result.process)
            if waiting and (kind_and_process != owner or size > _BLOCK_BYTES):
                yield self._block_of(waiting, *owner)
                waiting, size = [], 0
            owner = kind_and_process
            try:
                cleaned = self._messages.cleaned(self._bytes(result.span), RESULTS[result.kind])
            except WireError:
                self.undecoded += 1
                continue
            if cleaned:
                waiting.append(cleaned)
                size += len(cleaned)
        if waiting:
            yield self._block_of(waiting, *owner)

    def _block_of(self, messages: list[bytes], kind: str, process: ReportProcess | None) -> bytes:
        header = b""
        if process is not None:
            header = sized_block(_PROCESS, number(1, self._numbers[process.pid]))
            self._tally.add(
                Category.PROCESS_NUMBERS, "numbers of processes", Treatment.RENUMBERED, process.pid
            )
            if process.name:
                where = "names and hosts of processes"
                self._tally.add(Category.PROCESSES, where, Treatment.REMOVED, process.name)
                self._tally.hide(Category.PROCESSES, process.name)
        return _block(header, kind, messages)

    def _strings(self) -> bytes:
        """Write the names of metrics; each keeps its place, for counters refer to it by number."""
        used: set[int] = set()
        for result in self._container.results:
            with contextlib.suppress(WireError):
                used |= counter_name_ids(self._bytes(result.span), _COUNTERS[result.kind])
        names = enumerate(self._container.strings)
        written = []
        for at, text in names:
            name = b""
            # One that no counter has stays only where it is the profiler's own.
            if at in used or is_metric_text(text):
                name = self._messages.metric(text).encode()
            else:
                self._tally.add(Category.UNKNOWN, "unused strings", Treatment.REMOVED, text)
            written.append(sized_block(1, name))
        return b"".join(written)

    def _bytes(self, span: MessageSpan) -> bytes:
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
    with zstd_module().ZstdFile(file, "wb") as packed:
        yield packed
