"""A Chrome trace of PyTorch or JAX: read in one pass, its events sorted by kind."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from gpusight.errors import DamagedCaptureError, NotACaptureError
from gpusight.naming.collective_names import host_collective_kind
from gpusight.readers.chrome_columns import EventRows, number_of
from gpusight.readers.chrome_events import EventReader
from gpusight.readers.file_blocks import FileBlocks
from gpusight.trace.trace import TraceSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    from gpusight.readers.chrome_scan import ScannedEvents, ScannedRows
    from gpusight.trace.trace import Meta, Outline


OPERATOR, ANNOTATION, PYTHON, MEMORY = "operator", "annotation", "python", "memory"
KERNEL, COPY, MEMSET, SYNC, GPU_ANNOTATION = "kernel", "copy", "memset", "sync", "gpu annotation"
RUNTIME, DRIVER, OVERHEAD, COLLECTIVE = "runtime", "driver", "overhead", "collective"
PLAIN, SETTING, SILENT = "plain", "setting", "silent"

HOST_KINDS = (OPERATOR, RUNTIME, DRIVER, ANNOTATION, PYTHON)
GPU_WORK_KINDS = (KERNEL, COPY, MEMSET)

_CATEGORIES = {
    "cpu_op": OPERATOR,
    "user_annotation": ANNOTATION,
    "gpu_user_annotation": GPU_ANNOTATION,
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "memcpy": COPY,
    "gpu_memset": MEMSET,
    "memset": MEMSET,
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
TORCH_KEYS = frozenset({"schemaVersion", "deviceProperties", "distributedInfo"})
"""Top-level keys that only PyTorch writes."""
# The profiler before 2021 had no categories: it named its tracks instead.
_OLD_TRACKS = {"CPU functions": OPERATOR, "CUDA functions": KERNEL}


class EventSorter:
    """Sorts events into rows by kind, and counts those that belong to no table."""

    def __init__(self) -> None:
        self.rows: dict[str, EventRows] = {}
        self.settings: list[Any] = []
        """Events that name processes and threads."""
        self.unknown: Counter[str] = Counter()
        """Categories and phases that belong to no table."""

    def add_all(self, reader: EventReader) -> None:
        """Add the events of a trace."""
        for chunk in reader.chunks(sorted_events):
            if isinstance(chunk, list):
                self.add(chunk, exact=reader.exact)
            else:
                self.add_sorted(chunk)

    def add(self, events: Sequence[Any], *, exact: bool) -> None:
        """Add more events."""
        by_kind: dict[str | None, list[Any]] = defaultdict(list)
        kinds: dict[tuple[str, str | None], str | None] = {}
        for event in events:
            key = event.ph, event.cat
            if key not in kinds:
                kinds[key] = _kind_of(*key)
            kind = kinds[key]
            decide = _DECIDED_BY_EVENT.get(kind)
            by_kind[decide(event) if decide else kind].append(event)
        for kind, group in by_kind.items():
            self._put(kind, group, exact=exact)

    def add_sorted(self, events: SortedEvents) -> None:
        """Add events that the core has decoded."""
        self.unknown.update(events.unknown)
        self.settings += events.settings
        for kind, scanned in events.rows.items():
            self._rows(kind).add_scanned(scanned)

    def _put(self, kind: str | None, events: list[Any], *, exact: bool) -> None:
        if kind is None:
            self.unknown.update(event.cat or f"phase {event.ph!r}" for event in events)
        elif kind == SETTING:
            self.settings += events
        elif kind != SILENT:
            rows = self.rows.setdefault(kind, EventRows())
            rows.add(events, exact=exact, instant=kind == MEMORY)
            if kind in (OPERATOR, KERNEL) and rows.arguments.ends_with_mention(_COLLECTIVE):
                # Collectives are added a second time, for the arguments that only they have.
                collectives = [event for event in events if _COLLECTIVE in bytes(event.args)]
                self._rows(f"{kind} {COLLECTIVE}").add(collectives, exact=exact)
            if kind == ANNOTATION:
                on_host = [event for event in events if host_collective_kind(event.name or "")]
                if on_host:
                    self._rows(f"{kind} {COLLECTIVE}").add(on_host, exact=exact)

    def _rows(self, kind: str) -> EventRows:
        return self.rows.setdefault(kind, EventRows())

    def of(self, kind: str) -> EventRows:
        """Return the rows of a kind; an empty table if there are none."""
        return self.rows.get(kind) or EventRows()


class SortedEvents(NamedTuple):
    """Events of a trace that the core has decoded, by kind."""

    rows: dict[str, ScannedRows]
    settings: list[Any]
    unknown: dict[str, int]


def sorted_events(
    events: ScannedEvents, decode: Callable[[bytes], list[Any]]
) -> SortedEvents | None:
    """Sort events by kind; None if some are unusual. `decode` turns JSON into events."""
    types: dict[str | None, list[int]] = defaultdict(list)
    for number, (phase, category) in enumerate(events.types):
        types[_kind_of(phase, category)].append(number)
    found: dict[str, ScannedRows] = {}
    for kind, numbers in types.items():
        if kind is None or kind in (SETTING, SILENT):
            continue
        rows = events.rows_of(numbers)
        if kind == _OLD_OPERATOR or (kind == PLAIN and events.have_text_as_process(rows)):
            return None
        if kind == _INSTANT:
            kind, rows = MEMORY, events.named(rows, _MEMORY.__eq__)  # noqa: PLW2901
        if not len(rows):
            continue
        scanned = events.select(rows, number_of, instant=kind == MEMORY)
        if scanned is None:
            return None
        found[kind] = scanned
        collectives = events.select(_collectives(events, kind, rows), number_of)
        if collectives is not None:
            found[f"{kind} {COLLECTIVE}"] = collectives
    settings = []
    if SETTING in types:
        settings = decode(events.texts_of(events.rows_of(types[SETTING])))
    return SortedEvents(found, settings, _unknown(events, types.get(None, [])))


def _unknown(events: ScannedEvents, types: list[int]) -> Counter[str]:
    unknown: Counter[str] = Counter()
    for number in types:
        phase, category = events.types[number]
        unknown[category or f"phase {phase!r}"] += events.count(number)
    return unknown


def _collectives(events: ScannedEvents, kind: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find collectives, which are added a second time, for the arguments that only they have."""
    if kind in (OPERATOR, KERNEL):
        return events.with_key(rows, _COLLECTIVE[1:-1])
    return events.named(rows, host_collective_kind) if kind == ANNOTATION else rows[:0]


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
    if category == "Operator":
        return _OLD_OPERATOR
    category = category.lower()
    if category in _CATEGORIES:
        return _CATEGORIES[category]
    # Categories that only later or other builds of PyTorch write are recognized by their ending.
    endings = (("_runtime", RUNTIME), ("_driver", DRIVER), ("kernel", KERNEL))
    return next((kind for ending, kind in endings if category.endswith(ending)), None)


def _operator_or_annotation(event: Any) -> str:
    """Separate what older traces put into one category: annotations have a `#` in their name."""
    name = event.name or ""
    return ANNOTATION if "#" in name and "::" not in name else OPERATOR


_DECIDED_BY_EVENT: dict[str | None, Callable[[Any], str]] = {
    _INSTANT: lambda event: MEMORY if event.name == _MEMORY else SILENT,
    _OLD_OPERATOR: _operator_or_annotation,
    PLAIN: lambda event: _OLD_TRACKS.get(event.pid, PLAIN) if isinstance(event.pid, str) else PLAIN,
}


@dataclass(frozen=True)
class ScannedTrace:
    """The result of one pass over the file."""

    events: EventSorter
    about: dict[str, Any]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def scan_trace(path: Path) -> ScannedTrace:
    """Read a trace in one pass."""
    blocks = FileBlocks(path)
    reader = EventReader(path, blocks)
    events = EventSorter()
    events.add_all(reader)
    warnings = []
    if blocks.problem or reader.cut_off:
        why = blocks.problem or "it ends inside its list of events, as after a killed job"
        warnings.append(f"the trace is cut off: {why}; only the first part is shown")
    if reader.left_over:
        warnings.append("data after the list of events was skipped")
    if reader.unreadable:
        warnings.append(f"{reader.unreadable:,} events are not valid JSON and were skipped")
    warnings += _left_out(path, events)
    notes: tuple[str, ...] = ()
    if events.unknown:
        named = ", ".join(f"{name} ({n:,})" for name, n in events.unknown.most_common(8))
        notes = (f"not read: events of {named}",)
    return ScannedTrace(events, reader.about, notes, tuple(warnings))


def _left_out(path: Path, events: EventSorter) -> Iterable[str]:
    """Yield warnings about unusable events; a trace of mostly unusable ones is damaged."""
    for kind, rows in events.rows.items():
        why = rows.left_out
        if not why or kind.endswith(COLLECTIVE):  # those were added twice
            continue
        total = rows.height + why.total()
        reasons = ", ".join(
            f"{n:,} {'has' if n == 1 else 'have'} {reason}" for reason, n in why.most_common()
        )
        what = "events" if kind == PLAIN else f"{kind} events"
        count = f"{why.total():,} of {total:,} {what}"
        if why.total() * 2 > total:
            raise DamagedCaptureError(
                f"{path} is damaged",
                why=f"{count} cannot be used: {reasons}",
                hint="export it again",
            )
        yield f"{count} left out: {reasons}"


class ChromeSource(TraceSource):
    """A source that reads the file, and finds out whose trace it is, when first used."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _source(self) -> TraceSource:
        trace = scan_trace(self._path)
        other = trace.about.get("otherData")
        if isinstance(other, dict) and other.get("writer") == "gpusight":
            raise NotACaptureError(
                f"{self._path} is a timeline exported by gpusight",
                hint="open the original capture",
            )
        # A PyTorch trace without events is recognized by the keys next to them.
        if trace.events.rows.keys() - {PLAIN} or TORCH_KEYS & trace.about.keys():
            from gpusight.readers.torch.torch_source import TorchSource

            return TorchSource(self._path, trace)
        import polars as pl

        from gpusight.readers.jax.jax_profile import is_jax, json_tables
        from gpusight.readers.tables import FrameSource

        if not is_jax(trace.events):
            raise NotACaptureError(
                f"{self._path} is a Chrome trace, but not one of PyTorch or JAX",
                why="it has no events of these profilers",
                hint="open it in ui.perfetto.dev",
            )
        try:
            meta, tables = json_tables(self._path, trace.events, trace.notes)
            meta = msgspec.structs.replace(meta, warnings=(*trace.warnings, *meta.warnings))
            return FrameSource.of(meta, tables)
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
        """Return what is in the file."""
        return self._source.outline()

    def has(self, table: str) -> bool:
        """Return whether the table has rows."""
        return self._source.has(table)

    def has_column(self, table: str, column: str) -> bool:
        """Return whether the capture can fill this column."""
        return self._source.has_column(table, column)

    def row_count(self, table: str) -> int:
        """Count rows."""
        return self._source.row_count(table)

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read these columns; rows sorted by the table's time column, ties in file order."""
        return self._source.load(table, columns)

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about rows and values left out so far."""
        # If everything came from the cache, the file need not be read for this.
        return self._source.warnings() if "_source" in self.__dict__ else ()
