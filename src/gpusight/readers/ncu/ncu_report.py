"""A Nsight Compute report (`.ncu-rep`) as a trace source: launches, counters, rules."""

from __future__ import annotations

import contextlib
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from gpusight.errors import DamagedCaptureError
from gpusight.naming.metric_names import canonical, unit_of
from gpusight.naming.name_parts import demangle_if_mangled
from gpusight.readers.ncu.counter_values import (
    count_instances,
    has_instances,
    plausible_duration,
    read_counters,
    read_instances,
)
from gpusight.readers.ncu.cubin_lines import ReportBinaries
from gpusight.readers.ncu.ncu_container import read_container, read_content
from gpusight.readers.ncu.report_messages import (
    device_row,
    read_attributes,
    read_launch,
    read_meta,
    rule_rows,
)
from gpusight.readers.protobuf_wire import WireError
from gpusight.readers.tables import as_table, encode_names, file_name
from gpusight.trace.schema import TABLES
from gpusight.trace.trace import TraceSource
from gpusight.units import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from gpusight.readers.ncu.ncu_container import NcuContainer
    from gpusight.readers.ncu.report_messages import ReportLaunch
    from gpusight.trace.trace import Meta


_ATTRIBUTE = "device__attribute_"
_DURATION = "gpu__time_duration.sum"
_DEVICE = ("launch__device_id", f"{_ATTRIBUTE}device_index")
_MAJOR, _MINOR = f"{_ATTRIBUTE}compute_capability_major", f"{_ATTRIBUTE}compute_capability_minor"
_BLOCKS = "launch__grid_size"
_WANTED = (_DURATION, *_DEVICE, _MAJOR, _MINOR, _BLOCKS)
_INSTANCE_COUNT = "instances"
"""A column of `counters` that takes a walk through all their instances."""


class NcuSource(TraceSource):
    """Tables of a report; each is built when it is needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content = read_content(path)
        self._data = self._content.data
        self._container: NcuContainer = read_container(str(path), self._data)
        self._left_out: dict[str, None] = {}
        # The profiler numbers launches process by process, however they took turns.
        results = sorted(self._container.results, key=lambda r: r.process.pid if r.process else 0)
        launches = [read_launch(self._data, number, r) for number, r in enumerate(results)]
        self._launches = [launch for launch in launches if launch is not None]
        self._undecoded = len(launches) - len(self._launches)
        self._code = ReportBinaries(self._data, self._container.sources)
        self._cut = self._content.problem or self._container.problem
        if self._cut and not self._launches:
            raise DamagedCaptureError(
                f"{path} has no complete launch", why=self._cut, hint="copy or capture it again"
            )
        self._built: dict[str, pl.DataFrame] = {}
        self._any_instances: bool | None = None

    @contextlib.contextmanager
    def _decoding(self) -> Iterator[None]:
        """Raise `DamagedCaptureError` for a message that cannot be decoded."""
        try:
            yield
        except (WireError, OverflowError) as error:
            raise DamagedCaptureError(
                f"{self._path} cannot be decoded",
                why=str(error),
                hint="print it with the ncu that made it, and pass that: "
                f"ncu --import {self._path.name} --page raw --csv > report.csv",
            ) from error

    def close(self) -> None:
        """Release the file; tables that were read stay readable."""
        self._content.close()

    @cached_property
    def meta(self) -> Meta:
        """What is known about the capture as a whole."""
        notes, problems = [], []
        locked = {launch.locked for launch in self._launches}
        if False in locked:
            notes.append("GPU clocks were not locked while profiling: durations vary")
        if self._cut:
            count = len(self._launches)
            launches = "one launch" if count == 1 else f"{format_count(count)} launches"
            problems.append(f"the report is damaged: {self._cut}; whole before that: {launches}")
        if self._undecoded:
            undecoded = format_count(self._undecoded)
            problems.append(f"launches of the report that cannot be decoded: {undecoded}")
        with self._decoding():
            meta = read_meta(str(self._path), self._container.session, notes, "; ".join(problems))
        known = False in locked or locked == {True}
        return msgspec.structs.replace(meta, clocks_locked=False not in locked if known else None)

    def warnings(self) -> tuple[str, ...]:
        """Count values that were left out; what the walk through the file found is in `meta`."""
        return tuple(self._left_out)

    def _warn(self, count: int, what: str) -> None:
        if count:
            warning = f"the report has {what}, which are left out: {format_count(count)}"
            self._left_out[warning] = None

    def has(self, table: str) -> bool:
        """Return whether the table has rows."""
        if table != "counter_instances":
            return self.row_count(table) > 0
        if self._any_instances is None:
            with self._decoding():
                self._any_instances = has_instances(self._data, self._launches)
        return self._any_instances

    def has_column(self, table: str, column: str) -> bool:
        """Return whether the capture can fill this column."""
        if not self.has(table):
            return False
        if (table, column) == ("counters", _INSTANCE_COUNT):
            return self.has("counter_instances")
        if table == "counter_instances":
            return True  # each row fills what it needs, and there are very many
        return self._table(table).get_column(column).null_count() < self.row_count(table)

    def row_count(self, table: str) -> int:
        """Count rows; instances of counters without decoding them."""
        if table == "counter_instances" and table not in self._built:
            with self._decoding():
                return int(self._instance_counts.sum())
        return self._table(table).height if table in _BUILDERS else 0

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Return these columns."""
        if table not in _BUILDERS:
            return pl.DataFrame([TABLES[table].column(c).empty() for c in columns])
        frame = self._table(table)
        if _INSTANCE_COUNT in columns and table == "counters":
            with self._decoding():
                frame = frame.with_columns(self._instance_counts.alias(_INSTANCE_COUNT))
        return frame.select(columns)

    def _table(self, name: str) -> pl.DataFrame:
        if name not in self._built:
            with self._decoding():
                frame = _BUILDERS[name](self)
            empty = pl.DataFrame([c.empty() for c in TABLES[name].columns])
            self._built[name] = as_table(name, frame) if frame.height else empty
        return self._built[name]

    # Tables -------------------------------------------------------------------------------------

    def _profiles(self) -> pl.DataFrame:
        known = self._known
        rows = [self._profile(launch, known.get(launch.number, {})) for launch in self._launches]
        frame = pl.DataFrame(rows, infer_schema_length=None)
        if not rows:
            return frame
        usable = frame.with_columns(plausible_duration(pl.col("duration_ns")))
        unusable = usable["duration_ns"].null_count() - frame["duration_ns"].null_count()
        self._warn(unusable, "durations of zero, below zero or over 11 days")
        return usable

    def _profile(self, launch: ReportLaunch, known: dict[str, float]) -> dict[str, Any]:
        grid = _grid_blocks(launch, known.get(_BLOCKS)) or (None, None, None)
        block = launch.block or (None, None, None)
        capability = (
            (int(known[_MAJOR]), int(known.get(_MINOR, 0)))
            if _MAJOR in known
            else self._code.capability(launch.source)
        )
        major, minor = capability or (None, None)
        return {
            "launch": launch.number,
            "kind": launch.kind,
            "name": demangle_if_mangled(launch.name),
            "base_name": launch.function,
            "mangled_name": launch.mangled,
            "device": _device(known),
            "context": launch.context,
            "stream": launch.stream,
            "process": launch.process.pid if launch.process else None,
            "thread": launch.thread,
            **dict(zip(("grid_x", "grid_y", "grid_z"), grid, strict=True)),
            **dict(zip(("block_x", "block_y", "block_z"), block, strict=True)),
            "duration_ns": known.get(_DURATION),
            "compute_major": major,
            "compute_minor": minor,
            "ranges": launch.ranges,
            "binary": self._code.numbers.get(launch.source) if launch.source else None,
            "address": self._code.addresses.get((launch.source or 0, launch.mangled or "")),
        }

    @cached_property
    def _known(self) -> dict[int, dict[str, float]]:
        """Counters that describe the launch itself, by its number."""
        wanted = [i for i, name in enumerate(self._names) if name in _WANTED]
        rows = self._counters.filter(pl.col("name").is_in(wanted), pl.col("value").is_finite())
        known: dict[int, dict[str, float]] = {}
        for launch, name, value in rows.select("launch", "name", "value").iter_rows():
            known.setdefault(launch, {}).setdefault(self._names[name], value)
        return known

    def _all_counters(self) -> pl.DataFrame:
        units = [unit_of(name) or None for name in self._names]
        names = zip(self._container.strings, self._names, strict=True)
        labels = [written if written != name else None for written, name in names]
        frame = self._counters
        return self._with_metric(
            frame.with_columns(
                self._by_name("unit", units, frame), self._by_name("label", labels, frame)
            )
        )

    @cached_property
    def _instance_counts(self) -> pl.Series:
        """The number of instances of every counter, in the order of `counters`."""
        return count_instances(self._data, self._launches).filter(self._is_named)

    def _instances(self) -> pl.DataFrame:
        instances = read_instances(self._data, self._launches)
        is_named = pl.col("name").is_between(0, len(self._names) - 1)
        return self._with_metric(instances.filter(is_named))

    def _rules(self) -> pl.DataFrame:
        schema = {
            "launch": pl.Int64, "rule": pl.String, "title": pl.String, "section": pl.String,
            "kind": pl.String, "message": pl.String, "speedup_kind": pl.String,
            "speedup_percent": pl.Float64,
        }  # fmt: skip
        rows = [
            row
            for launch in self._launches
            for start, end in launch.rules
            for row in rule_rows(launch.number, bytes(self._data[start:end]))
        ]
        return pl.DataFrame(rows, schema=schema)

    def _devices(self) -> pl.DataFrame:
        """Describe the GPUs, from the session and from the attributes among the counters."""
        # Older sessions have none, but the first launch on each GPU does.
        first: dict[int, int] = {}
        for launch, known in self._known.items():
            first.setdefault(_device(known) or 0, launch)
        attributes = [i for i, name in enumerate(self._names) if name.startswith(_ATTRIBUTE)]
        counters = self._counters.filter(pl.col("name").is_in(attributes))
        by_launches = {
            device: {
                self._names[name].removeprefix(_ATTRIBUTE): value if text is None else text
                for _, name, value, text in counters.filter(pl.col("launch") == launch).iter_rows()
            }
            for device, launch in first.items()
        }
        by_session = read_attributes(self._container.session)
        rows = [
            device_row(number, {**by_launches.get(number, {}), **by_session.get(number, {})})
            for number in sorted({*by_launches, *by_session})
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    def _processes(self) -> pl.DataFrame:
        """Return the processes that launched something; of their paths only the file name."""
        processes = (launch.process for launch in self._launches)
        paths = {process.pid: process.name or "" for process in processes if process is not None}
        rows = [
            {"process": pid, "pid": pid, "host": 0, "name": file_name(path.rstrip("\0")) or None}
            for pid, path in paths.items()
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    def _threads(self) -> pl.DataFrame:
        threads = {
            launch.thread: launch.process.pid if launch.process else None
            for launch in self._launches
            if launch.thread is not None
        }
        rows = [{"thread": tid, "process": pid, "tid": tid} for tid, pid in threads.items()]
        return pl.DataFrame(rows, infer_schema_length=None)

    def _diagnostics(self) -> pl.DataFrame:
        """Return what of the binaries in the report cannot be read."""
        texts = pl.Series("text", sorted(set(self._code.problems())), dtype=pl.String)
        return texts.to_frame().with_columns(severity=pl.lit("warning"))

    # Names ----------------------------------------------------------------------------------------

    @cached_property
    def _names(self) -> list[str]:
        return [canonical(name) for name in self._container.strings]

    @cached_property
    def _decoded(self) -> pl.DataFrame:
        return read_counters(self._data, self._launches)

    @cached_property
    def _is_named(self) -> pl.Series:
        """Which counters have a name: in a truncated report it may be missing."""
        named = self._decoded.get_column("name").is_between(0, len(self._names) - 1)
        self._warn(int((~named).sum()), "counters without a name")
        return named

    @cached_property
    def _counters(self) -> pl.DataFrame:
        return self._decoded.filter(self._is_named)

    def _by_name(self, column: str, texts: Sequence[str | None], frame: pl.DataFrame) -> pl.Series:
        """Return a column with the text that belongs to each counter's name."""
        encoded = encode_names(pl.Series(column, texts, dtype=pl.String))
        return encoded.gather(frame.get_column("name"))

    def _with_metric(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(self._by_name("metric", self._names, frame)).drop("name")


def _device(known: dict[str, float]) -> int | None:
    return next((int(known[name]) for name in _DEVICE if name in known), None)


def _grid_blocks(launch: ReportLaunch, blocks: float | None) -> tuple[int, int, int] | None:
    """Return the size of the grid in blocks; reports up to 2020.2 hold it in threads."""
    if launch.grid is None or launch.block is None or blocks is None:
        return launch.grid
    if prod(launch.grid) == blocks or not all(launch.block):
        return launch.grid
    x, y, z = (size // own for size, own in zip(launch.grid, launch.block, strict=True))
    return (x, y, z) if x * y * z == blocks else launch.grid


_BUILDERS: dict[str, Callable[[NcuSource], pl.DataFrame]] = {
    "profiles": NcuSource._profiles,
    "counters": NcuSource._all_counters,
    "counter_instances": NcuSource._instances,
    "rule_results": NcuSource._rules,
    "source_files": lambda source: source._code.files(),
    "code_lines": lambda source: source._code.lines(),
    "diagnostics": NcuSource._diagnostics,
    "devices": NcuSource._devices,
    "processes": NcuSource._processes,
    "threads": NcuSource._threads,
}
