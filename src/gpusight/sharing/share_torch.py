"""Sanitized copies of PyTorch's Chrome traces: events in their order, with the known keys."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from gpusight.errors import NotACaptureError
from gpusight.pace import METADATA_KEY, Pace
from gpusight.readers import chrome_source
from gpusight.readers.chrome_events import ChromeEvent, EventReader
from gpusight.readers.chrome_scan import NOT_JSON
from gpusight.readers.file_blocks import FileBlocks
from gpusight.recording.inside.stack_sampler import METADATA_KEY as METADATA_OF_STACKS
from gpusight.sharing.known_words import described, is_profiler_label
from gpusight.sharing.leak_report import TAKES, Category, LeakTally, Treatment
from gpusight.sharing.share_stacks import shared_session
from gpusight.sharing.torch_values import (
    ARGUMENTS,
    CATEGORIES,
    DEVICE_NUMBERS,
    EVENT,
    GROUP_NUMBERS,
    JOB_NUMBERS,
    NAMINGS,
    REMOVED_ARGUMENTS,
    REMOVED_TOP,
    TOP_NUMBERS,
    ValueRule,
    ValueWriter,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from gzip import GzipFile
    from pathlib import Path
    from typing import IO, TypeAlias

    from gpusight.sharing.leak_report import LeakScan, ShareOptions
    from gpusight.sharing.torch_values import Column

    Raw: TypeAlias = "dict[str, msgspec.Raw]"


_VERSION = re.compile(r"\d{1,9}(?:\.\d{1,9}){0,3}")
_MAX_GROUPS = 100_000


class TraceHeader:
    """Copies what is known of it, and counts the rest."""

    def __init__(self, values: ValueWriter, tally: LeakTally) -> None:
        self._values = values
        self._tally = tally

    def cleaned(self, header: dict[str, Any]) -> dict[str, Any]:
        """Return what may stand in the copy."""
        kept: dict[str, Any] = _numbers(header, TOP_NUMBERS)
        unit = str(header.get("displayTimeUnit", ""))
        if "displayTimeUnit" in header and is_profiler_label(unit):
            kept["displayTimeUnit"] = unit
        if "deviceProperties" in header:
            devices = header["deviceProperties"]
            rows = devices if isinstance(devices, list) else []
            kept["deviceProperties"] = [self._device(row) for row in rows if isinstance(row, dict)]
        if "distributedInfo" in header:
            kept["distributedInfo"] = self._job(header["distributedInfo"])
        with contextlib.suppress(ValueError):  # damaged: then it is removed as any unknown key
            kept[METADATA_KEY] = Pace.from_values(header.get(METADATA_KEY)).document()
        session = shared_session(header.get(METADATA_OF_STACKS), self._values.salt)
        if session is not None:
            kept[METADATA_OF_STACKS] = {"session": session}
        for key in (key for key in header if key not in kept):
            if key in REMOVED_TOP:
                value = header[key]
                self._tally.add(REMOVED_TOP[key], key, Treatment.REMOVED, key)
                self._tally.hide(REMOVED_TOP[key], value if isinstance(value, str) else "")
            else:
                self._tally.add(Category.UNKNOWN, "other keys of the file", Treatment.REMOVED, key)
        return kept

    def _device(self, device: dict[str, Any]) -> dict[str, Any]:
        kept = _numbers(device, DEVICE_NUMBERS)
        name = device.get("name")
        if isinstance(name, str):
            kept["name"] = described(name)
            treatment = Treatment.KEPT if kept["name"] == name else Treatment.SHORTENED
            self._tally.add(Category.MACHINE, "deviceProperties: name", treatment, name)
        self._leave("deviceProperties", device, kept)
        return kept

    def _job(self, job: Any) -> dict[str, Any]:
        if not isinstance(job, dict):
            return {}
        kept = _numbers(job, JOB_NUMBERS) | self._texts(job, ("backend",), ValueRule.WORD)
        groups = job.get("pg_config")
        if isinstance(groups, list):
            kept["pg_config"] = [
                self._group(group) for group in groups[:_MAX_GROUPS] if isinstance(group, dict)
            ]
        self._leave("distributedInfo", job, kept)
        return kept

    def _group(self, group: dict[str, Any]) -> dict[str, Any]:
        kept = (
            self._texts(group, ("pg_name",), ValueRule.GROUP, "Process Group Name")
            | self._texts(group, ("pg_desc",), ValueRule.GROUP, "Process Group Description")
            | self._texts(group, ("backend_config", "backend_type"), ValueRule.WORD)
            | _numbers(group, GROUP_NUMBERS)
        )
        self._leave("distributedInfo", group, kept)
        return kept

    def _texts(
        self, values: dict[str, Any], keys: tuple[str, ...], rule: ValueRule, where: str = ""
    ) -> dict[str, Any]:
        """Copy texts; those that arguments repeat are counted with them."""
        texts = {key: values[key] for key in keys if isinstance(values.get(key), str)}
        cleaned = {
            key: self._values.column(
                rule, f"args: {where}" if where else key, [msgspec.json.encode(text)]
            )
            for key, text in texts.items()
        }
        return {key: msgspec.json.decode(column[0] or b"null") for key, column in cleaned.items()}

    def _leave(self, where: str, values: dict[str, Any], kept: dict[str, Any]) -> None:
        removed = [key for key in values if key not in kept]
        self._tally.add_all(Category.UNKNOWN, f"{where}: other keys", Treatment.REMOVED, removed)


def _numbers(values: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """Keep the known keys whose value is a number, a version, or a list of integers."""

    def is_plain(value: Any) -> bool:
        if isinstance(value, list):
            return all(isinstance(item, int) for item in value)
        if isinstance(value, str):
            return _VERSION.fullmatch(value) is not None
        return isinstance(value, (int, float)) or value is None

    return {key: value for key, value in values.items() if key in known and is_plain(value)}


_ARGUMENTS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_CANONICAL = {
    chrome_source.RUNTIME: "cuda_runtime",
    chrome_source.DRIVER: "cuda_driver",
    chrome_source.KERNEL: "kernel",
}
_LABELS = {
    "process_name": ("name", Category.PROCESSES),
    "process_labels": ("labels", Category.PROCESSES),
    "thread_name": ("name", Category.THREAD_NAMES),
}
"""Events that name processes and threads, and the argument that does."""
_ORDERS = frozenset({"process_sort_index", "thread_sort_index"})


class EventSignature(NamedTuple):
    """What determines the kind of an event."""

    phase: str
    category: str | None
    name: str = ""
    track: str | None = None


@lru_cache(maxsize=1 << 14)
def kind_of(signature: EventSignature) -> str | None:
    """Classify an event as the reader does; None where it has no table for it."""
    event = ChromeEvent(
        ph=signature.phase, cat=signature.category, name=signature.name, pid=signature.track, ts=0.0
    )
    sorter = chrome_source.EventSorter()
    sorter.add([event], exact=False)
    if sorter.settings:
        return chrome_source.SETTING
    return None if sorter.unknown else next(iter(sorter.rows), chrome_source.SILENT)


class EventWriter:
    """Writes events some thousand at a time."""

    def __init__(self, values: ValueWriter, tally: LeakTally) -> None:
        self._values = values
        self._tally = tally
        self.kinds: set[str] = set()
        """Kinds of events that were there."""

    def cleaned(self, events: Sequence[Raw]) -> list[bytes]:
        """Write events in their order, without those that are removed."""
        written: list[bytes | None] = [None] * len(events)
        for (signature, keys), positions in _by_signature(events).items():
            kind = kind_of(signature)
            if kind is not None:
                self.kinds.add(kind)
            if not _is_known(kind, signature):
                if signature.phase:
                    key = (signature.phase, signature.category, signature.name, len(positions))
                    self._tally.add(Category.UNKNOWN, "kinds of events", Treatment.REMOVED, key)
                continue
            group = _Group(self._values, self._tally, str(kind), signature, keys)
            for position, text in group.written(events, positions):
                written[position] = text
        return [text for text in written if text is not None]


def _by_signature(events: Sequence[Raw]) -> dict[tuple[EventSignature, tuple[str, ...]], list[int]]:
    """Group the positions of events by kind and keys."""
    signatures: dict[tuple[bytes, ...], EventSignature] = {}
    groups: dict[tuple[EventSignature, tuple[str, ...]], list[int]] = defaultdict(list)
    for position, event in enumerate(events):
        raw: tuple[bytes, ...] = (bytes(event.get("ph", b"")), bytes(event.get("cat", b"")))
        signature = signatures.get(raw) or signatures.setdefault(raw, _signature(*raw))
        if not _is_known_by_category(signature):
            raw += (bytes(event.get("name", b"")), bytes(event.get("pid", b"")))
            signature = signatures.get(raw) or signatures.setdefault(raw, _signature(*raw))
        groups[signature, tuple(event)].append(position)
    return groups


@lru_cache(maxsize=1 << 10)
def _is_known_by_category(signature: EventSignature) -> bool:
    """Return whether phase and category determine the kind: in today's traces they do."""
    category = signature.category
    flow = signature.phase in ("s", "t", "f")
    return category is not None and (flow or signature.phase == "X") and category != "Operator"


def _signature(
    phase: bytes, category: bytes, name: bytes = b"", track: bytes = b""
) -> EventSignature:
    return EventSignature(
        text_of(phase) or "", text_of(category), text_of(name) or "", text_of(track)
    )


def _is_known(kind: str | None, signature: EventSignature) -> bool:
    """Return whether events of a kind are copied."""
    if kind == chrome_source.SETTING:
        return signature.name in _LABELS or signature.name in _ORDERS
    if kind == chrome_source.SILENT:
        flows = (
            signature.phase in ("s", "t", "f") and (signature.category or "").lower() in CATEGORIES
        )
        return flows or (signature.phase in ("i", "I", "X") and is_profiler_label(signature.name))
    return kind is not None and kind != chrome_source.PLAIN


class _Group:
    """Events of one kind with the same keys."""

    def __init__(
        self,
        values: ValueWriter,
        tally: LeakTally,
        kind: str,
        signature: EventSignature,
        keys: tuple[str, ...],
    ) -> None:
        self._values = values
        self._tally = tally
        self._kind = kind
        self._signature = signature
        self._keys = keys

    def written(
        self, events: Sequence[Raw], positions: Sequence[int]
    ) -> Iterable[tuple[int, bytes]]:
        """Write the events at these positions."""
        if "args" not in self._keys:
            yield from self._rows(
                [events[position] for position in positions], [{}] * len(positions), positions
            )
            return
        arguments = self._arguments([events[position]["args"] for position in positions])
        by_keys: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for at, keys in enumerate(arguments):
            by_keys[tuple(keys)].append(at)
        for members in by_keys.values():
            yield from self._rows(
                [events[positions[at]] for at in members],
                [arguments[at] for at in members],
                [positions[at] for at in members],
            )

    def _arguments(self, raw: list[msgspec.Raw]) -> list[Raw]:
        try:
            return _ARGUMENTS.decode(b"[%b]" % b",".join(raw))
        except NOT_JSON:
            return [self._decoded(value) for value in raw]

    def _decoded(self, raw: msgspec.Raw) -> Raw:
        text = bytes(raw).decode("utf-8", "replace").encode()
        try:
            return _ARGUMENTS.decode(b"[%b]" % text)[0]
        except NOT_JSON:
            self._tally.add(Category.UNKNOWN, "args that are no object", Treatment.REMOVED, text)
            return {}

    def _rows(
        self, events: list[Raw], arguments: list[Raw], positions: Sequence[int]
    ) -> Iterable[tuple[int, bytes]]:
        template: list[bytes] = []
        columns: list[Column] = []
        for key in self._keys:
            if key == "args":
                template.append(self._written_arguments(arguments, columns))
            else:
                template += self._written_key(key, events, columns)
        text = b"{" + b",".join(template) + b"}"
        rows = zip(*columns, strict=True) if columns else [()] * len(positions)
        for position, row in zip(positions, rows, strict=True):
            if None not in row:
                yield position, text % row

    def _written_key(self, key: str, events: list[Raw], columns: list[Column]) -> list[bytes]:
        if key == "ph":
            return [_literal(key, self._signature.phase)]
        if key == "cat":
            category = self._signature.category
            if category is not None and category.lower() not in CATEGORIES:
                category = _CANONICAL.get(self._kind, self._kind)
            return [_literal(key, category)]
        if key != "name" and key not in EVENT:
            self._tally.add(Category.UNKNOWN, "other keys of events", Treatment.REMOVED, key)
            return []
        raw = [event[key] for event in events]
        if key == "name" and self._kind == chrome_source.SETTING:
            return [_literal(key, self._signature.name)]
        if key == "name":
            columns.append(self._values.names(NAMINGS.get(self._kind), f"{self._kind}: {key}", raw))
        else:
            columns.append(self._values.column(EVENT[key], key, raw))
        return [_slot(key)]

    def _written_arguments(self, arguments: list[Raw], columns: list[Column]) -> bytes:
        slots = []
        for key in arguments[0]:
            column = self._argument(key, [values[key] for values in arguments])
            if column is not None:
                columns.append(column)
                slots.append(_slot(key))
        return b'"args":{' + b",".join(slots) + b"}"

    def _argument(self, key: str, raw: list[msgspec.Raw]) -> Column | None:
        """Write the values of an argument; None where it is removed."""
        if self._kind == chrome_source.SETTING:
            wanted, label_category = _LABELS.get(self._signature.name, ("", Category.UNKNOWN))
            if key == wanted:
                return self._values.labels(label_category, self._signature.name, raw)
            rule = ValueRule.NUMBERS if key == "sort_index" else None
            removed_as = None
        else:
            rule, removed_as = ARGUMENTS.get(key), REMOVED_ARGUMENTS.get(key)
        if rule is not None:
            return self._values.column(rule, f"args: {key}", raw)
        if removed_as is None:
            self._tally.add(Category.UNKNOWN, "args: other keys", Treatment.REMOVED, key)
        else:
            texts = map(bytes, raw)
            self._tally.add_all(removed_as, f"args: {key}", Treatment.REMOVED, texts)
        return None


def _literal(key: str, value: str | None) -> bytes:
    return b":".join(msgspec.json.encode(text).replace(b"%", b"%%") for text in (key, value))


def _slot(key: str) -> bytes:
    return msgspec.json.encode(key).replace(b"%", b"%%") + b":%b"


_DECODER = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
"""Reads events without deciding what their keys mean."""
_NOT_IDENTIFYING = frozenset({chrome_source.PLAIN, chrome_source.SETTING, chrome_source.SILENT})
"""Kinds of events that other programs write too."""
_GZIP_LEVEL = 6
_BETWEEN = b",\n"


class TorchCleaner:
    """Knows traces that torch.profiler wrote."""

    suffixes = (".json.gz", ".json")

    def __init__(self, path: Path) -> None:
        self._path = path

    def scan(self, options: ShareOptions) -> LeakScan:
        """Count what the trace holds, and how a copy would treat it."""
        return self._walk(options, lambda _text: None)

    def write(self, output: Path, options: ShareOptions, *, name: str = "") -> LeakScan:
        """Write the copy, packed where its name ends in .gz."""
        with output.open("xb") as file, _packing(file, name or output.name) as packed:
            return self._walk(options, packed.write)

    def _walk(self, options: ShareOptions, put: Callable[[bytes], Any]) -> LeakScan:
        tally = LeakTally()
        values = ValueWriter(options, tally)
        events = EventWriter(values, tally)
        blocks = FileBlocks(self._path)
        reader = EventReader(self._path, blocks, _DECODER)
        separator = b'{"traceEvents":[\n'
        for batch in reader:
            assert isinstance(batch, list)  # of the decoder that it was given
            written = events.cleaned(batch)
            if written:
                put(separator + _BETWEEN.join(written))
                separator = _BETWEEN
        if separator != _BETWEEN:
            put(separator)
        self._check_origin(events, reader.about)
        header = msgspec.json.encode(TraceHeader(values, tally).cleaned(reader.about))
        put(b"\n]" + (b"," + header[1:] if header != b"{}" else b"}") + b"\n")
        return tally.scan(_notes(reader, blocks))

    def _check_origin(self, events: EventWriter, header: dict[str, Any]) -> None:
        """Refuse traces that PyTorch did not write."""
        other_data = header.get("otherData")
        if isinstance(other_data, dict) and other_data.get("writer") == "gpusight":
            raise NotACaptureError(
                f"{self._path} is a timeline exported by gpusight",
                hint="share the original capture",
            )
        if chrome_source.TORCH_KEYS & header.keys() or events.kinds - _NOT_IDENTIFYING:
            return
        what, why = "is not a trace", "it holds no events"
        if events.kinds:
            what = "is a Chrome trace, but not one of PyTorch"
            why = "traces of other programs cannot be sanitized reliably"
        raise NotACaptureError(f"{self._path} {what}", why=why, hint=TAKES)


@contextlib.contextmanager
def _packing(file: IO[bytes], name: str) -> Iterator[IO[bytes] | GzipFile]:
    if not name.lower().endswith(".gz"):
        yield file
        return
    import gzip

    # Neither the name nor the time of the copy goes into the header.
    with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
        yield packed


def _notes(reader: EventReader, blocks: FileBlocks) -> Iterator[str]:
    if blocks.problem or reader.cut_off:
        why = blocks.problem or "it ends inside its list of events"
        yield f"the trace is cut off: {why}; the copy is a valid file with the first part"
    if reader.left_over:
        yield "data after the list of events was not copied"
    if reader.unreadable:
        yield f"{reader.unreadable:,} events are not valid JSON and were not copied"
