"""A Chrome trace of PyTorch or JAX.

Read once, events sorted by kind, then read as whichever it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from gpusight.errors import DamagedCaptureError, NotACaptureError
from gpusight.readers.chrome_columns import EventRows
from gpusight.readers.chrome_events import EventReader
from gpusight.readers.file_blocks import FileBlocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import polars as pl

    from gpusight.trace.trace import Meta, Outline, TraceSource


OPERATOR, ANNOTATION, PYTHON, MEMORY = "operator", "annotation", "python", "memory"
KERNEL, COPY, FILL, SYNC, GPU_ANNOTATION = "kernel", "copy", "fill", "sync", "gpu annotation"
RUNTIME, DRIVER, OVERHEAD, COLLECTIVE = "runtime", "driver", "overhead", "collective"
PLAIN, SETTING, SILENT = "plain", "setting", "silent"

HOST_KINDS = (OPERATOR, RUNTIME, DRIVER, ANNOTATION, PYTHON)
GPU_WORK_KINDS = (KERNEL, COPY, FILL)

_CATEGORIES = {
    "cpu_op": OPERATOR,
    "user_annotation": ANNOTATION,
    "gpu_user_annotation": GPU_ANNOTATION,
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "memcpy": COPY,
    "gpu_memset": FILL,
    "memset": FILL,
    "cuda_runtime": RUNTIME,
    "runtime": RUNTIME,
    "cuda_driver": DRIVER,
    "driver": DRIVER,
    "cuda_sync": SYNC,
    "python_function": PYTHON,
    "overhead": OVERHEAD,
    "trace": SILENT,
}
_INSTANT, _OLD_OPERATOR = "instant", "old operator"
_MEMORY = "[memory]"
_COLLECTIVE = b'"Collective name"'
# The profiler before 2021 had no categories: it named its tracks instead.
_OLD_TRACKS = {"CPU functions": OPERATOR, "CUDA functions": KERNEL}


class EventSorter:
    """Sorts events into rows by kind, and counts those that no table is made of."""

    def __init__(self) -> None:
        self.rows: dict[str, EventRows] = {}
        self.settings: list[Any] = []
        """Events that name processes and threads."""
        self.unknown: Counter[str] = Counter()
        """Categories and phases that no table is made of."""

    def add(self, events: Sequence[Any], *, exact: bool) -> None:
        """Take some more events."""
        alike: dict[tuple[str, str | None], list[Any]] = defaultdict(list)
        for event in events:
            alike[event.ph, event.cat].append(event)
        for (phase, category), members in alike.items():
            kind = _kind_of(phase, category)
            if kind not in _DECIDED_BY_EVENT:
                self._put(kind, members, exact=exact)
                continue
            apart: dict[str, list[Any]] = defaultdict(list)
            for event in members:
                apart[_DECIDED_BY_EVENT[kind](event)].append(event)
            for decided, some in apart.items():
                self._put(decided, some, exact=exact)

    def _put(self, kind: str | None, events: list[Any], *, exact: bool) -> None:
        if kind is None:
            self.unknown.update(event.cat or f"phase {event.ph!r}" for event in events)
        elif kind == SETTING:
            self.settings += events
        elif kind != SILENT:
            self._rows(kind).add(events, exact=exact, instant=kind == MEMORY)
            if kind in (OPERATOR, KERNEL):
                self._put_collectives(kind, events, exact=exact)

    def _put_collectives(self, kind: str, events: list[Any], *, exact: bool) -> None:
        """Take communications a second time, with what only they say of themselves."""
        rows = self._rows(kind)
        if rows.arguments.ends_with_mention(_COLLECTIVE):
            named = [event for event in events if _COLLECTIVE in bytes(event.args)]
            self._rows(f"{kind} {COLLECTIVE}").add(named, exact=exact)

    def left_out(self) -> Iterator[tuple[str, int, Counter[str]]]:
        """Give kinds with events that cannot be used: how many there are, and why how many."""
        for kind, rows in self.rows.items():
            if rows.left_out and not kind.endswith(COLLECTIVE):  # those were taken twice
                yield kind, rows.height + rows.left_out.total(), rows.left_out

    def _rows(self, kind: str) -> EventRows:
        return self.rows.setdefault(kind, EventRows())

    def of(self, kind: str) -> EventRows:
        """Give the rows of a kind, none where there are none."""
        return self.rows.get(kind) or EventRows()


def _kind_of(phase: str, category: str | None) -> str | None:
    if phase == "M":
        return SETTING
    if phase in ("i", "I"):
        return _INSTANT
    # Flows repeat correlation and sequence numbers; JAX ends its list with an empty object.
    if phase in ("s", "t", "f", ""):
        return SILENT
    if phase != "X":
        return None
    if category is None:
        return PLAIN
    return _OLD_OPERATOR if category == "Operator" else _complete_kind(category.lower())


def _complete_kind(category: str) -> str | None:
    """Place a category; those that only later or other builds of PyTorch write by their ending."""
    if category in _CATEGORIES:
        return _CATEGORIES[category]
    for ending, kind in (("_runtime", RUNTIME), ("_driver", DRIVER), ("kernel", KERNEL)):
        if category.endswith(ending):
            return kind
    return None


def _instant(event: Any) -> str:
    return MEMORY if event.name == _MEMORY else SILENT


def _operator_or_annotation(event: Any) -> str:
    """Tell apart what older traces put into one category: annotations carry a `#` in their name."""
    name = event.name or ""
    return ANNOTATION if "#" in name and "::" not in name else OPERATOR


def _plain(event: Any) -> str:
    return _OLD_TRACKS.get(event.pid, PLAIN) if isinstance(event.pid, str) else PLAIN


_DECIDED_BY_EVENT = {_INSTANT: _instant, _OLD_OPERATOR: _operator_or_annotation, PLAIN: _plain}


@dataclass(frozen=True)
class ScannedTrace:
    """Everything that one walk through the file found."""

    events: EventSorter
    about: dict[str, Any]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def scan_trace(path: Path) -> ScannedTrace:
    """Walk through a trace once."""
    blocks = FileBlocks(path)
    reader = EventReader(path, blocks)
    events = EventSorter()
    for some in reader:
        events.add(some, exact=reader.exact)
    warnings = (*_warnings(reader, blocks), *_left_out(path, events))
    return ScannedTrace(events, reader.about, tuple(_notes(events)), warnings)


def _warnings(reader: EventReader, blocks: FileBlocks) -> Iterable[str]:
    if blocks.problem or reader.cut_off:
        why = blocks.problem or "it ends inside its list of events, as after a killed job"
        yield f"the trace is cut off: {why}; shown is what is there"
    if reader.left_over:
        yield "what follows the list of events was not read: it belongs to no trace, or to another"
    if reader.unreadable:
        yield f"{reader.unreadable:,} events are not valid JSON and were left out"


def _left_out(path: Path, events: EventSorter) -> Iterable[str]:
    """Name events that cannot be used; a trace of which most cannot be is damaged."""
    for kind, total, why in events.left_out():
        counted = ((f"{n:,} {'has' if n == 1 else 'have'}", w) for w, n in why.most_common())
        reasons = ", ".join(f"{count} {reason}" for count, reason in counted)
        what = "events" if kind == PLAIN else f"{kind} events"
        count = f"{why.total():,} of {total:,} {what}"
        if why.total() * 2 > total:
            raise DamagedCaptureError(
                f"{path} is damaged",
                why=f"{count} cannot be used: {reasons}",
                hint="export it again",
            )
        yield f"{count} left out: {reasons}"


def _notes(events: EventSorter) -> Iterable[str]:
    if events.unknown:
        named = ", ".join(f"{name} ({n:,})" for name, n in events.unknown.most_common(8))
        yield f"not read: events of {named}"


class ChromeSource:
    """A source that learns at the first question what kind of trace it is."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _source(self) -> TraceSource:
        found = scan_trace(self._path)
        if _is_own_timeline(found.about):
            raise NotACaptureError(
                f"{self._path} is a timeline that gpusight exported",
                hint="open the capture that it was made from",
            )
        if found.events.rows.keys() - {PLAIN} or _is_torch(found):
            from gpusight.readers.torch.torch_source import TorchSource

            return TorchSource(self._path, found)
        return self._jax_source(found)

    def _jax_source(self, found: ScannedTrace) -> TraceSource:
        import polars as pl

        from gpusight.readers.frame_source import FrameSource
        from gpusight.readers.jax.jax_profile import is_jax, json_tables

        if not is_jax(found.events):
            raise NotACaptureError(
                f"{self._path} is a Chrome trace, but not one of PyTorch or JAX",
                why="none of its events is of a kind that their profilers write",
                hint="look at it in ui.perfetto.dev",
            )
        try:
            meta, tables = json_tables(self._path, found.events, found.notes)
            both = (*found.warnings, *meta.warnings)
            warned = msgspec.structs.replace(meta, warnings=both)
            return FrameSource.of(warned, tables)
        except (pl.exceptions.PolarsError, OverflowError) as error:
            raise DamagedCaptureError(
                f"{self._path} is damaged",
                why=str(error).splitlines()[0],
                hint="copy or capture it again",
            ) from error

    @property
    def meta(self) -> Meta:
        """What is known about the capture as a whole."""
        return self._source.meta

    def outline(self) -> Outline | None:
        """Say what is in the file."""
        return self._source.outline()

    def has(self, table: str) -> bool:
        """Tell whether the table has rows."""
        return self._source.has(table)

    def has_column(self, table: str, column: str) -> bool:
        """Tell whether the capture can fill this column."""
        return self._source.has_column(table, column)

    def row_count(self, table: str) -> int:
        """Count rows."""
        return self._source.row_count(table)

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read these columns; rows sorted by the table's time column, ties in file order."""
        return self._source.load(table, columns)

    def prepare(self, tables: Iterable[str]) -> None:
        """Have walked through the file for all tables at once."""

    def warnings(self) -> tuple[str, ...]:
        """Name rows and values that reading has left out so far."""
        # Where everything came from the cache, the file need not be walked through to say nothing.
        return self._source.warnings() if "_source" in self.__dict__ else ()

    def close(self) -> None:
        """Hold no file open."""


def _is_own_timeline(about: dict[str, Any]) -> bool:
    said = about.get("otherData")
    return isinstance(said, dict) and said.get("writer") == "gpusight"


def _is_torch(found: ScannedTrace) -> bool:
    """Tell a PyTorch trace without events from any other file, by what stands around them."""
    return bool({"schemaVersion", "deviceProperties", "distributedInfo"} & found.about.keys())
