"""Stacks that `gpusight record` sampled, from the file next to a capture.

The file is checked as an untrusted one: one that is damaged, or of another run, is left out with a
note, and the capture is read without it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import numpy as np
import polars as pl

from gpusight.naming.source_files import FRAMEWORKS, is_library_file
from gpusight.readers.tables import as_table, concat_tables, shown_file
from gpusight.recording.inside import stack_sampler as stacks
from gpusight.trace.trace import Meta, Outline, TraceSource
from gpusight.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    Ints: TypeAlias = npt.NDArray[np.int64]


TABLES_OF_STACKS = ("stack_samples", "stack_frames", "processes", "threads")
"""The last two only have what the capture lacks: processes that its own ones started."""
MAX_BYTES = 1 << 30
_MAX_SAMPLES, _MAX_ROWS = 20_000_000, 20_000_000
_MAX_PROCESSES, _MAX_FRAMES = 4_096, 5_000_000
"""Of a file, so that a hostile one takes no more memory than a large one."""
_MAX_PERIODS = 1.5
"""A sample stands for the time since it was due, and for so much more."""
_SLACK_NS = 5_000_000_000
"""Clocks of a capture without a session may differ by this much from those of the samples."""
_WALL_ERROR_NS = 100_000
"""Where only the wall clock ties both: how well tools know it when they begin."""
_Number = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
_Text = Annotated[str, msgspec.Meta(max_length=4_096)]


class _Process(msgspec.Struct):
    version: int
    session: _Text
    pid: _Number
    hz: Annotated[float, msgspec.Meta(gt=0, le=1e6)]
    parent: _Number | None = None


class _Clock(msgspec.Struct):
    kind: _Text
    before: _Number
    after: _Number
    value: _Number | None = None


class _Thread(msgspec.Struct):
    number: Annotated[int, msgspec.Meta(ge=0, le=2**32)]
    native: _Number | None = None


class _Rate(msgspec.Struct):
    time: _Number
    hz: Annotated[float, msgspec.Meta(gt=0, le=1e6)]


class _Mark(msgspec.Struct):
    session: _Text
    pid: _Number
    time: _Number


_Frames = list[tuple[_Text, _Text, _Text, _Number]]


@dataclass
class SampleEpoch:
    """Frames and nodes whose numbers belong together, and the samples that use them."""

    frames: _Frames = field(default_factory=list)
    nodes: list[Ints] = field(default_factory=list)
    samples: list[tuple[int, Ints]] = field(default_factory=list)
    """The base time of each chunk, and its rows."""


@dataclass
class SampledProcess:
    """What was sampled of one process."""

    about: _Process
    is_whole: bool
    chunks: int
    epochs: list[SampleEpoch] = field(default_factory=lambda: [SampleEpoch()])
    threads: dict[int, int] = field(default_factory=dict)
    clocks: list[_Clock] = field(default_factory=list)
    rates: list[_Rate] = field(default_factory=list)

    @classmethod
    def read(cls, chunks: Sequence[tuple[bytes, bytes]], is_whole: bool) -> SampledProcess:
        """Read the chunks of one process; raises ValueError where they make no sense."""
        if not chunks or chunks[0][0] != stacks.PROCESS:
            raise ValueError("a process does not begin with what it is")
        about = msgspec.json.decode(chunks[0][1], type=_Process)
        process = cls(about, is_whole, len(chunks))
        if process.about.version != stacks.VERSION:
            raise ValueError(f"version {process.about.version} is not known")
        for kind, body in chunks[1:]:
            process._add(kind, body)
        return process

    def _add(self, kind: bytes, body: bytes) -> None:
        epoch = self.epochs[-1]
        if kind == stacks.FRAMES:
            epoch.frames += msgspec.json.decode(body, type=_Frames)
            if sum(len(other.frames) for other in self.epochs) > _MAX_FRAMES:
                raise ValueError(f"it has more than {_MAX_FRAMES:,} frames")
        elif kind == stacks.NODES:
            epoch.nodes.append(_words(body, 2))
        elif kind == stacks.SAMPLES:
            (base_ns,) = struct.unpack_from("<q", body)
            epoch.samples.append((base_ns, _words(body[8:], 4)))
        elif kind == stacks.THREAD:
            thread = msgspec.json.decode(body, type=_Thread)
            if thread.native is not None:
                self.threads[thread.number] = thread.native
        elif kind == stacks.CLOCK:
            self.clocks.append(msgspec.json.decode(body, type=_Clock))
        elif kind == stacks.RATE:
            self.rates.append(msgspec.json.decode(body, type=_Rate))
        elif kind == stacks.RESET:
            self.epochs.append(SampleEpoch())

    @property
    def sample_count(self) -> int:
        """How many stacks were seen."""
        return sum(len(rows) for epoch in self.epochs for _, rows in epoch.samples)

    def samples(self) -> pl.DataFrame:
        """Return `time` on the sampler's clock, `late_ns`, `tid`, `weight_ns`, `epoch`, `node`."""
        parts = []
        for number, epoch in enumerate(self.epochs):
            for base_ns, rows in epoch.samples:
                times = base_ns + rows[:, 0]
                parts.append((times, rows[:, 1] * 1000, rows[:, 2], rows[:, 3], number))
        if not parts:
            return pl.DataFrame(schema=dict.fromkeys(_SAMPLE_COLUMNS, pl.Int64))
        columns = [np.concatenate([part[index] for part in parts]) for index in range(4)]
        epochs = np.repeat([part[4] for part in parts], [len(part[0]) for part in parts])
        tids = pl.Series(columns[2]).replace_strict(
            self.threads, default=None, return_dtype=pl.Int64
        )
        frame = pl.DataFrame(
            {
                "time": columns[0],
                "late_ns": columns[1],
                "tid": tids,
                "node": columns[3],
                "epoch": epochs,
            }
        ).sort("time", maintain_order=True)
        changes = np.array([rate.time for rate in self.rates], dtype=np.int64)
        periods = np.array([1e9 / hz for hz in (self.about.hz, *(rate.hz for rate in self.rates))])
        index = np.searchsorted(changes, frame["time"].to_numpy(), "right")
        longest = frame["late_ns"] + pl.Series(_MAX_PERIODS * periods[index]).cast(pl.Int64)
        gap = pl.col("time").diff().over("tid").fill_null(1 << 62)
        return frame.with_columns(weight_ns=pl.min_horizontal(gap, longest))


_SAMPLE_COLUMNS = ("time", "late_ns", "tid", "node", "epoch", "weight_ns")


def _words(body: bytes, columns: int) -> Ints:
    if len(body) % (4 * columns):
        raise ValueError("a table is cut off")
    return np.frombuffer(body, dtype="<u4").reshape(-1, columns).astype(np.int64)


def read_processes(path: Path) -> list[SampledProcess]:
    """Read a file of stacks; raises ValueError where it is none that we can read."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError("it is larger than 1 GiB")
    data = path.read_bytes()
    if not data.startswith(stacks.MAGIC):
        raise ValueError("it does not begin as one")
    sampled: list[SampledProcess] = []
    for process in stacks.processes(data):
        sampled.append(SampledProcess.read(*process))
        chunks = sum(other.chunks for other in sampled)
        if len(sampled) > _MAX_PROCESSES or chunks > stacks.MAX_CHUNKS:
            raise ValueError("it has more processes or chunks than we read")
    if sum(process.sample_count for process in sampled) > _MAX_SAMPLES:
        raise ValueError(f"it has more than {_MAX_SAMPLES:,} samples")
    return sampled


class StackedSource(TraceSource):
    """A capture with the stacks that were sampled while it was recorded."""

    def __init__(self, inner: TraceSource, path: Path) -> None:
        self._inner, self._path = inner, path

    @property
    def meta(self) -> Meta:
        """What is known about the capture as a whole."""
        meta = self._inner.meta
        return msgspec.structs.replace(meta, notes=(*meta.notes, *self._joined.notes))

    def outline(self) -> Outline | None:
        """Return what is in the file, if knowing that takes a pass over all of it; else None."""
        outline = self._inner.outline()
        if outline is None:
            return None
        rows, columns = dict(outline.rows), dict(outline.columns)
        for table, frame in self._joined.frames.items():
            rows[table] = rows.get(table, 0) + frame.height
            columns[table] = [*dict.fromkeys((*columns.get(table, ()), *frame.columns))]
        return Outline(meta=self.meta, rows=rows, columns=columns)

    def has(self, table: str) -> bool:
        """Return whether the table has rows."""
        return self._inner.has(table) or (
            table in TABLES_OF_STACKS and not self._joined.frames[table].is_empty()
        )

    def has_column(self, table: str, column: str) -> bool:
        """Return whether the capture can fill this column."""
        return self._inner.has_column(table, column) or (
            table in TABLES_OF_STACKS and self._joined.frames[table][column].count() > 0
        )

    def row_count(self, table: str) -> int:
        """Count rows."""
        own = self._joined.frames[table].height if table in TABLES_OF_STACKS else 0
        return own + self._inner.row_count(table)

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read these columns."""
        if table not in TABLES_OF_STACKS or self._joined.frames[table].is_empty():
            return self._inner.load(table, columns)
        own = self._joined.frames[table]
        if not self._inner.has(table):
            return own.select(columns)
        theirs = self._inner.load(table, own.columns)
        if table in ("processes", "threads"):
            return concat_tables([theirs, own.cast(theirs.schema)]).select(columns)
        shift = self._inner.load("stack_frames", ["stack"])["stack"].max()
        assert isinstance(shift, int)
        own = own.with_columns(pl.col("stack") + shift + 1)
        merged = concat_tables([theirs, own])
        key = "time_ns" if table == "stack_samples" else None
        return (merged if key is None else merged.sort(key, maintain_order=True)).select(columns)

    def prepare(self, tables: Iterable[str]) -> None:
        """Announce which tables will be read."""
        self._inner.prepare(tables)

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about rows and values left out so far."""
        return self._inner.warnings()

    def close(self) -> None:
        """Close the file."""
        self._inner.close()

    @cached_property
    def _joined(self) -> JoinedStacks:
        try:
            return join_stacks(self._inner, read_processes(self._path))
        except (ValueError, OSError, struct.error, MemoryError, RecursionError) as error:
            why = " ".join(str(error).split())[:200] or type(error).__name__
            return JoinedStacks.none(f"the sampled stacks are left out: {why}")


@dataclass(frozen=True)
class JoinedStacks:
    """The tables of stacks on the clock of a capture."""

    frames: dict[str, pl.DataFrame]
    notes: tuple[str, ...] = ()

    @classmethod
    def none(cls, note: str) -> JoinedStacks:
        """Return tables without rows, and why."""
        samples = pl.DataFrame(schema=dict.fromkeys(_TIMED, pl.Int64)).with_columns(
            source=pl.lit("gpusight")
        )
        rows = pl.DataFrame(
            schema={
                **dict.fromkeys(("stack", "depth", "line"), pl.Int64),
                **dict.fromkeys(("file", "function", "module", "kind"), pl.String),
                "is_library": pl.Boolean,
            }
        )
        tables = {"stack_samples": samples, "stack_frames": rows}
        tables |= {"processes": _NO_PROCESSES, "threads": _NO_THREADS}
        return cls({name: as_table(name, frame) for name, frame in tables.items()}, (note,))


_TIMED = ("time_ns", "process", "thread", "stack", "weight_ns", "late_ns")
_NO_PROCESSES = pl.DataFrame(schema=dict.fromkeys(("process", "pid"), pl.Int64))
_NO_THREADS = pl.DataFrame(schema=dict.fromkeys(("thread", "process", "tid"), pl.Int64))


def join_stacks(source: TraceSource, sampled: Sequence[SampledProcess]) -> JoinedStacks:
    """Put samples on the clock of a capture; raises ValueError where they are not of its run."""
    samples, rows, errors_ns = [], [], []
    first_stack, left_out = 0, sum(process.sample_count for process in sampled)
    aligned = list(aligned_processes(source, sampled))
    workers = list(_workers(source, sampled, aligned))
    for own in (*aligned, *workers):
        taken = own.process.samples()
        known = taken.join(own.threads, on="tid", how="inner", maintain_order="left")
        left_out -= known.height
        if known.is_empty():
            continue
        stacks_of, frames_of = _stacks(own.process, known, first_stack)
        first_stack += frames_of["stack"].n_unique()
        times = own.clock.times(known["time"].to_numpy())
        columns = {"time_ns": times, "process": np.full(len(times), own.key), "stack": stacks_of}
        timed = known.select("thread", "weight_ns", "late_ns").with_columns(**_series(columns))
        samples.append(timed.select(_TIMED))
        rows.append(frames_of)
        errors_ns.append(own.clock.error_ns)
    if not samples:
        raise ValueError("the capture has none of the threads that were sampled")
    frame = pl.concat(samples).with_columns(source=pl.lit("gpusight"))
    late = int((frame["late_ns"] > 5_000_000).sum())
    counts = f"{frame.height:,} sampled stacks, {late:,} of them over 5 ms late"
    notes = [f"{counts}; their times are within {format_time(max(errors_ns))} of the capture's"]
    if left_out:
        notes.append(f"{left_out:,} sampled stacks are of threads that the capture does not have")
    if not all(process.is_whole for process in sampled):
        notes.append("the file of sampled stacks is damaged: some of them are left out")
    tables = {
        "stack_samples": frame,
        "stack_frames": pl.concat(rows),
        "processes": pl.concat([_NO_PROCESSES, *(worker.row for worker in workers)]),
        "threads": pl.concat(
            [
                _NO_THREADS,
                *(
                    w.threads.select("thread", process=pl.lit(w.key, pl.Int64), tid="tid")
                    for w in workers
                ),
            ]
        ),
    }
    return JoinedStacks({n: as_table(n, table) for n, table in tables.items()}, tuple(notes))


@dataclass(frozen=True)
class AlignedProcess:
    """What was sampled of a process, and where it belongs in a capture."""

    process: SampledProcess
    key: int
    """Of the process in the capture."""
    clock: CaptureClock
    threads: pl.DataFrame
    """`thread` and `tid` of those that the capture has."""

    @property
    def row(self) -> pl.DataFrame:
        """Its row of the table `processes`."""
        return pl.DataFrame({"process": [self.key], "pid": [self.process.about.pid]})


def aligned_processes(
    source: TraceSource, sampled: Sequence[SampledProcess]
) -> Iterator[AlignedProcess]:
    """Find sampled processes in a capture; raises ValueError where they are not of its run."""
    processes = _loaded(source, "processes", ("process", "pid"))
    threads = _loaded(source, "threads", ("thread", "process", "tid"))
    marks = _marks(source)
    _check_run(source.meta, sampled, marks, processes)
    for process in sampled:
        clock = CaptureClock.of(process, marks, source.meta)
        keys = processes.filter(pl.col("pid") == process.about.pid)["process"].to_list()
        if clock is not None and keys:
            own = threads.filter(pl.col("process") == keys[0]).select("thread", "tid")
            yield AlignedProcess(process, keys[0], clock, own.unique("tid"))


def _workers(
    source: TraceSource, sampled: Sequence[SampledProcess], known: Sequence[AlignedProcess]
) -> Iterator[AlignedProcess]:
    """Find processes that known ones started and the capture lacks: the workers of a DataLoader,
    where only the process that trains was profiled. Their clock is that of the one that started
    them; they get numbers that the capture does not use."""
    clocks = {own.process.about.pid: own.clock for own in known}
    keys, threads = (
        1 + int(_loaded(source, table, (key,))[key].max() or 0)  # type: ignore[arg-type]
        for table, key in (("processes", "process"), ("threads", "thread"))
    )
    for process in sampled:
        clock = clocks.get(process.about.parent) if process.about.parent is not None else None
        if clock is None or process.about.pid in clocks or not process.threads:
            continue
        clocks[process.about.pid] = clock
        tids = sorted(set(process.threads.values()))
        numbers = range(threads, threads + len(tids))
        yield AlignedProcess(
            process, keys, clock, pl.DataFrame({"thread": list(numbers), "tid": tids})
        )
        keys, threads = keys + 1, threads + len(tids)


def _series(columns: dict[str, Ints]) -> dict[str, pl.Series]:
    return {name: pl.Series(values, dtype=pl.Int64) for name, values in columns.items()}


def _loaded(source: TraceSource, table: str, columns: Sequence[str]) -> pl.DataFrame:
    if source.has(table):
        return source.load(table, list(columns))
    return pl.DataFrame(schema=dict.fromkeys(columns, pl.Int64))


def _marks(source: TraceSource) -> dict[tuple[str, int, int], int]:
    """Return when the capture has each moment that a sampler marked in it."""
    if not source.has("ranges"):
        return {}
    ranges = source.load("ranges", ["name", "start_ns"]).filter(
        pl.col("name").cast(pl.String).str.starts_with(stacks.CLOCK_MESSAGE)
    )
    marks = {}
    for name, start_ns in ranges.with_columns(pl.col("name").cast(pl.String)).iter_rows():
        try:
            mark = msgspec.json.decode(name.removeprefix(stacks.CLOCK_MESSAGE), type=_Mark)
        except msgspec.DecodeError:
            continue
        marks[mark.session, mark.pid, mark.time] = start_ns
    return marks


def _check_run(
    meta: Meta,
    sampled: Sequence[SampledProcess],
    marks: dict[tuple[str, int, int], int],
    processes: pl.DataFrame,
) -> None:
    """Raise where samples are of another run than the capture."""
    sessions = {process.about.session for process in sampled}
    known = {session for session, _, _ in marks} | ({meta.session} if meta.session else set())
    if known and not sessions & known:
        raise ValueError("they are of another run than the capture")
    if known:
        return
    pids = set(processes["pid"].to_list())
    if not any(process.about.pid in pids for process in sampled):
        raise ValueError("they are of other processes than the capture")
    begin_ns = meta.start_utc_ns
    if begin_ns is None and all(c.kind == "capture" for p in sampled for c in p.clocks):
        return  # a sanitized copy, which has no date
    if begin_ns is None:
        raise ValueError("the capture has neither the session nor the time of its run")
    end_ns = begin_ns + (meta.duration_ns or 0)
    walls = [c.value for p in sampled for c in p.clocks if c.kind == "wall" and c.value is not None]
    if not walls or min(walls) > end_ns + _SLACK_NS or max(walls) < begin_ns - _SLACK_NS:
        raise ValueError("they were taken at another time than the capture")


@dataclass(frozen=True)
class CaptureClock:
    """Turns times of the sampler into times of the capture."""

    at: Ints
    ahead: Ints
    """How far the capture's clock is ahead at these times."""
    error_ns: int

    @classmethod
    def of(
        cls, process: SampledProcess, marks: dict[tuple[str, int, int], int], meta: Meta
    ) -> CaptureClock | None:
        """Use what is closest to the capture: its own clock, marks in it, or the wall clock."""
        about = process.about
        pairs: dict[str, list[tuple[int, int, int]]] = {"capture": [], "mark": [], "wall": []}
        for clock in process.clocks:
            value = clock.value
            if clock.kind == "mark":
                value = marks.get((about.session, about.pid, clock.before))
            elif clock.kind == "wall" and value is not None:
                value = None if meta.start_utc_ns is None else value - meta.start_utc_ns
            if value is not None and clock.kind in pairs:
                middle = (clock.before + clock.after) // 2
                error = (clock.after - clock.before + 1) // 2
                error += _WALL_ERROR_NS if clock.kind == "wall" else 0
                pairs[clock.kind].append((middle, value - middle, error))
        best = next((pairs[kind] for kind in pairs if pairs[kind]), None)
        if best is None:
            return None
        table = np.array(sorted(best), dtype=np.int64)
        errors = table[:, 2]
        # The first mark of a tool may wait for it to load: the closest ones are those that count.
        table = table[errors <= max(10 * int(errors.min()), 20_000)]
        return cls(table[:, 0], table[:, 1], int(table[:, 2].max()))

    def times(self, own: Ints) -> Ints:
        """Return times of the capture."""
        base = int(self.ahead[0])
        drift = np.interp(own, self.at, (self.ahead - base).astype(float))
        times: Ints = own + base + np.rint(drift).astype(np.int64)
        return times


def _stacks(process: SampledProcess, taken: pl.DataFrame, first: int) -> tuple[Ints, pl.DataFrame]:
    """Return the stack of each sample, and the frames of these stacks, numbered from `first`."""
    pairs = taken.select("epoch", "node")
    used = pairs.unique(maintain_order=True).with_columns(
        stack=pl.int_range(first, first + pl.len(), dtype=pl.Int64)
    )
    of_sample = pairs.join(used, on=["epoch", "node"], how="left", maintain_order="left")["stack"]
    frames, rows = [], 0
    for number, epoch in enumerate(process.epochs):
        own = used.filter(pl.col("epoch") == number)
        if own.is_empty():
            continue
        table = _frame_table(epoch.frames)
        nodes = np.concatenate(epoch.nodes) if epoch.nodes else np.empty((0, 2), dtype=np.int64)
        # A forked process inherits frames of the one that started it, which no longer run.
        begins = np.array([_begins_process(frame) for frame in epoch.frames], np.bool_)
        at, stack = own["node"].to_numpy(), own["stack"].to_numpy()
        for depth in range(stacks.MAX_DEPTH):
            if (at >= len(nodes)).any() or (nodes[at, 1] >= table.height).any():
                raise ValueError("a stack has frames that are not there")
            place = {"stack": stack, "depth": np.full(len(at), depth)}
            frames.append(table[nodes[at, 1]].with_columns(**_series(place)))
            rows += len(at)
            if rows > _MAX_ROWS:
                raise ValueError(f"its stacks have more than {_MAX_ROWS:,} frames")
            parents = nodes[at, 0]
            if ((parents >= at) & (parents < stacks.CUT_OFF)).any():
                raise ValueError("a stack calls itself")
            inner = (parents < stacks.CUT_OFF) & ~begins[nodes[at, 1]]
            at, stack = parents[inner], stack[inner]
            if not len(at):
                break
    frame = pl.concat(frames).sort("stack", "depth")
    return of_sample.to_numpy(), frame


def _begins_process(frame: tuple[str, str, str, int]) -> bool:
    _, function, module, _ = frame
    return module == "multiprocessing.process" and function.endswith("_bootstrap")


def _is_library(file: str, module: str) -> bool:
    return is_library_file(file) or module.partition(".")[0] in FRAMEWORKS


def _frame_table(frames: _Frames) -> pl.DataFrame:
    """Return what is known about each frame."""
    files = [shown_file(file) or file for file, *_ in frames]
    columns = {
        "file": pl.Series(files, dtype=pl.String),
        "line": pl.Series([line for *_, line in frames], dtype=pl.Int64),
        "function": pl.Series([name for _, name, _, _ in frames], dtype=pl.String),
        "module": pl.Series([module or None for _, _, module, _ in frames], dtype=pl.String),
        "kind": pl.Series(["python"] * len(frames), dtype=pl.String),
        "is_library": pl.Series(
            [_is_library(file, module) for file, _, module, _ in frames], dtype=pl.Boolean
        ),
    }
    return pl.DataFrame(columns)
