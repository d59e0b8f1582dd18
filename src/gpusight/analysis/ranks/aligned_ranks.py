"""The captures of several ranks as one trace on one clock, for timelines and exports.

Every rank is a GPU of that trace, numbered by the rank. Processes and threads get new keys, so that
those of different captures stay apart; times are moved to the clock of the first rank.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from gpusight.analysis.ranks.match_collectives import ABSENT, match_collectives
from gpusight.analysis.ranks.rank_identity import rank_units
from gpusight.analysis.ranks.rank_steps import AlignedClocks
from gpusight.trace.schema import TABLES
from gpusight.trace.schema_columns import ColumnKind
from gpusight.trace.trace import NO_RANK, RANKS, TIMES, Meta, Trace, TraceSource
from gpusight.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusight.analysis.ranks.job_ranks import JobRanks
    from gpusight.analysis.ranks.match_collectives import MatchedCollectives
    from gpusight.trace.intervals import Ints


_PROCESS_KEYS, _THREAD_KEYS = ("process",), ("thread", "end_thread")
_DEVICE_KEYS = ("device", "src_device", "dst_device")
_BEYOND_PIDS = 10_000_000
"""No operating system gives out larger numbers of processes."""
_NUMBERED = ("callchain", "stack")
"""Columns whose numbers are of one capture alone, without a process."""
_PEER = frozenset(_DEVICE_KEYS[1:])


class AlignedTrace(Trace):
    """The captures of several ranks as one."""

    def __init__(self, source: AlignedRanksSource) -> None:
        super().__init__(source)
        self.source = source


def align_ranks(job: JobRanks, traces: Sequence[Trace]) -> AlignedTrace:
    """Join the captures of ranks; those of ranks that are not part of the job are left out."""
    return AlignedTrace(AlignedRanksSource(job, traces))


class AlignedRanksSource(TraceSource):
    """Serves the tables of all ranks as those of one capture."""

    def __init__(self, job: JobRanks, traces: Sequence[Trace]) -> None:
        self.job = job
        self.matched = match_collectives(job.digests)
        clocks = self.clocks = AlignedClocks(job.digests, self.matched, job.clocks)
        place = {(digest.file, digest.place): n for n, digest in enumerate(job.digests)}
        beyond = max((rank.rank for rank in job.ranks), default=-1) + 1
        free = _Numbers(beyond)
        keys = {name: _Numbers(beyond) for name in (*_PROCESS_KEYS, "thread", *_NUMBERED)}
        self.parts: list[RankCapture] = []
        for trace in traces:
            numbers = {
                at: place[trace.meta.path, at]
                for at in range(len(rank_units(trace)))
                if (trace.meta.path, at) in place
            }
            if numbers:
                number = len(self.parts)
                self.parts.append(RankCapture(number, trace, numbers, job, clocks, free, keys))
        pids = Counter(
            pid
            for part in self.parts
            for pid in set(part.trace.table("processes", ["pid"])["pid"].to_list())
        )
        for part in self.parts:
            part.shared_pids = frozenset(pid for pid, count in pids.items() if count > 1)

    @cached_property
    def meta(self) -> Meta:
        """What is known about the job as a whole."""
        first = self.parts[0].trace.meta
        notes = (f"{len(self.ranks)} ranks on one clock, aligned by {self.alignment}",)
        tools = dict.fromkeys(part.trace.meta.tool for part in self.parts)
        return Meta(
            path=str(PurePath(first.path).parent),
            source=RANKS,
            tool=" and ".join(tools),
            tool_version=first.tool_version if len(tools) == 1 else None,
            world_size=self.job.meta.get("world_size"),
            backend=first.backend,
            notes=notes,
            warnings=tuple(dict.fromkeys(w for part in self.parts for w in part.warnings)),
        )

    @property
    def alignment(self) -> str:
        """How the clocks were aligned, and how well."""
        if self.clocks.error_ns is None:
            return self.clocks.how
        return f"{self.clocks.how} within {format_time(self.clocks.error_ns, digits=2)}"

    def clock_metadata(self) -> dict[str, Any]:
        """Return how times were moved: what was added where each capture begins, and the clocks."""
        known = {clock.rank: clock.document() for clock in self.job.clocks}
        added = []
        for part in self.parts:
            start_ns = min(s.start_ns for s in self.job.digests[part.places[0]].steps)
            moved_ns = int(part.times(np.array([start_ns]))[0]) - start_ns
            added += [{"rank": r, "added_ns": moved_ns, "clock": known.get(r)} for r in part.ranks]
        return {"aligned_by": self.alignment, "ranks": added}

    @property
    def ranks(self) -> list[int]:
        """The ranks of the captures, in order."""
        return sorted(rank for part in self.parts for rank in part.ranks)

    def has(self, table: str) -> bool:
        """Return whether any rank has rows of the table."""
        return any(part.trace.has(table) for part in self.parts)

    def has_column(self, table: str, column: str) -> bool:
        """Return whether any rank has the column."""
        return any(part.trace.has(table, column) for part in self.parts)

    def row_count(self, table: str) -> int:
        """Count the rows of all ranks."""
        if table == "devices":
            return self.load(table, ["device"]).height
        return sum(part.trace.row_count(table) for part in self.parts)

    def prepare(self, tables: Iterable[str]) -> None:
        """Announce which tables will be read."""
        names = list(tables)
        for part in self.parts:
            part.trace.prepare(*names)

    def warnings(self) -> tuple[str, ...]:
        """Return what the captures lack, each with its name."""
        return tuple(dict.fromkeys(w for part in self.parts for w in part.losses))

    def close(self) -> None:
        """Close all captures."""
        for part in self.parts:
            part.trace.close()

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read these columns of all ranks, in order of time."""
        key = TABLES[table].sort_column
        wanted = list(dict.fromkeys((*columns, *([key] if key else []))))
        frames = [part.load(table, wanted) for part in self.parts if part.trace.has(table)]
        if not frames:
            return pl.DataFrame([TABLES[table].column(c).empty() for c in columns])
        joined = pl.DataFrame([_joined([frame[c] for frame in frames], table, c) for c in wanted])
        ordered = joined if key is None else joined.sort(key, maintain_order=True)
        return ordered.select(columns)


def _joined(parts: list[pl.Series], table: str, column: str) -> pl.Series:
    """Put a column of several captures together; names get one dictionary."""
    if TABLES[table].column(column).kind is not ColumnKind.NAME:
        return pl.concat(parts)
    known = [part.dtype.categories for part in parts if isinstance(part.dtype, pl.Enum)]
    common = pl.Enum(pl.concat(known).unique(maintain_order=True))
    return pl.concat([part.cast(pl.String).cast(common) for part in parts])


class _Numbers:
    """New numbers for keys of captures, given out as they are met."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._known: dict[tuple[int, int | None], int] = {}
        self._turn = threading.Lock()

    def of(self, part: int, key: int | None) -> int:
        """Return the number of a key of a capture."""
        with self._turn:
            return self._known.setdefault((part, key), self._first + len(self._known))

    def set(self, part: int, key: int | None, number: int) -> None:
        """Give a key a number below the first one; the first number that it gets stays."""
        with self._turn:
            self._known.setdefault((part, key), number)


class RankCapture:
    """A capture with one or more of the ranks."""

    def __init__(
        self,
        number: int,
        trace: Trace,
        places: Mapping[int, int],
        job: JobRanks,
        clocks: AlignedClocks,
        free: _Numbers,
        keys: Mapping[str, _Numbers],
    ) -> None:
        self.trace = trace
        self._number = number
        self.places = sorted(places.values())
        self._clocks = clocks
        self._free, self._keys = free, keys
        self.ranks = tuple(job.ranks[place].rank for place in self.places)
        units = rank_units(trace)
        self.shared_pids: frozenset[int] = frozenset()
        """Numbers that processes of several captures have."""
        self._of_device: dict[int, set[int]] = {}
        self._of_both: dict[tuple[int | None, int], int] = {}
        for at, place in places.items():
            unit, rank = units[at], job.ranks[place].rank
            self._of_device.setdefault(unit.device, set()).add(rank)
            self._of_both[unit.process, unit.device] = rank
            keys["process"].set(number, unit.process, rank)
        # Keys are given out in the order of these tables, whatever is read first.
        for name, table in (("process", "processes"), ("thread", "threads")):
            for value in trace.table(table, [name])[name].unique().sort().to_list():
                self._key(name, value)

    @property
    def warnings(self) -> list[str]:
        """Why the capture is incomplete."""
        return [self._named(text) for text in self.trace.meta.warnings]

    @property
    def losses(self) -> list[str]:
        """What is missing from it."""
        return [self._named(text) for text in self.trace.losses]

    def _named(self, text: str) -> str:
        name = PurePath(self.trace.meta.path).name
        return text if name in text else f"{name}: {text}"

    def _key(self, name: str, value: int | None) -> int:
        return self._keys[name].of(self._number, value)

    def times(self, own_ns: Ints) -> Ints:
        """Move times to the common clock."""
        return self._clocks.times(self.places[0], own_ns)

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read columns with the keys and times of the job."""
        if table == "devices":
            return self._devices(columns)
        need = list(columns)
        has_process = "process" in TABLES[table].column_names
        if any(c in _DEVICE_KEYS for c in columns) and has_process and "process" not in need:
            need.append("process")
        frame = self.trace.table(table, need)
        changed = [self._column(table, frame, name) for name in columns]
        return pl.DataFrame(changed)

    def _column(self, table: str, frame: pl.DataFrame, name: str) -> pl.Series:
        column = frame[name]
        if name in TIMES:
            moved = self.times(column.fill_null(0).to_numpy())
            return pl.Series(name, moved).set(column.is_null(), None)
        if name in _PROCESS_KEYS:
            return self._mapped(column, "process", keep_null=self.trace.has("processes"))
        if name in _THREAD_KEYS:
            return self._mapped(column, "thread", keep_null=True)
        if name in _NUMBERED and TABLES[table].column(name).kind is ColumnKind.INT:
            return self._mapped(column, name, keep_null=True)
        if name in _DEVICE_KEYS:
            return self._device(frame, name)
        if table == "processes" and name == "name":
            return self._process_names(column)
        if table == "processes" and name == "pid":
            return self._unique_pids(column)
        return column

    def _mapped(self, column: pl.Series, key: str, *, keep_null: bool) -> pl.Series:
        """Replace numbers by those of the job; without processes, all rows are of one."""
        values = [v for v in column.unique().sort().to_list() if v is not None or not keep_null]
        new = [self._key(key, value) for value in values]
        new_keys = pl.DataFrame(
            {"old": values, "new": new}, schema={"old": pl.Int64, "new": pl.Int64}
        )
        rows = pl.DataFrame({"old": column})
        joined = rows.join(new_keys, on="old", how="left", nulls_equal=True, maintain_order="left")
        return joined["new"].rename(column.name)

    def _device(self, frame: pl.DataFrame, name: str) -> pl.Series:
        """Replace GPUs by ranks; one that is of no rank, or of several, gets a number behind."""
        process = "process" in frame.columns and name not in _PEER
        of = frame.select(
            pl.col("process") if process else pl.lit(None, pl.Int64).alias("process"),
            pl.col(name).alias("device"),
        )
        pairs = of.unique().sort("process", "device")
        new = [self._rank_of(*pair) for pair in pairs.iter_rows()]
        new_keys = pairs.with_columns(pl.Series("new", new, pl.Int64))
        keys = ["process", "device"]
        return of.join(new_keys, on=keys, how="left", nulls_equal=True, maintain_order="left")[
            "new"
        ].rename(name)

    def _rank_of(self, process: int | None, device: int | None) -> int | None:
        if device is None:
            return None
        known = self._of_both.get((process, device))
        if known is None and len(self._of_device.get(device, ())) == 1:
            (known,) = self._of_device[device]
            own = {p for p, d in self._of_both if d == device}
            # Another process on the GPU of a rank is not that rank.
            known = known if process is None or None in own or process in own else None
        return self._free.of(self._number, device) if known is None else known

    def _devices(self, columns: Sequence[str]) -> pl.DataFrame:
        """Give a row for each rank, with what is known of its GPU; then GPUs of no one rank."""
        frame = self.trace.table("devices", list(dict.fromkeys(("device", *columns))))
        if "name" in columns:
            frame = frame.with_columns(pl.col("name").cast(pl.String))
        of_one_rank = sorted((rank, device) for (_, device), rank in self._of_both.items())
        several = {device for device, ranks in self._of_device.items() if len(ranks) > 1}
        others = [d for d in frame["device"].to_list() if d in several or d not in self._of_device]
        rows = [
            frame.filter(pl.col("device") == device).with_columns(device=pl.lit(rank, pl.Int64))
            for rank, device in of_one_rank
        ]
        for device in others:
            row = frame.filter(pl.col("device") == device)
            number = pl.lit(self._free.of(self._number, device), pl.Int64)
            row = row.with_columns(device=number)
            if "name" in columns:
                row = row.with_columns(
                    pl.format("{} GPU {}, {}", "name", pl.lit(device), pl.lit(NO_RANK))
                )
            rows.append(row)
        known = pl.concat(rows).select(columns)
        if "name" not in columns:
            return known
        names = known["name"].unique(maintain_order=True)
        return known.with_columns(pl.col("name").cast(pl.Enum(names.drop_nulls())))

    def _unique_pids(self, column: pl.Series) -> pl.Series:
        """Separate processes of different machines or containers that have one number."""
        keys = self._process_keys()
        pids = column.to_list()
        unique = [
            pid + key * _BEYOND_PIDS if pid in self.shared_pids else pid
            for pid, key in zip(pids, keys, strict=True)
        ]
        return pl.Series(column.name, unique, pl.Int64)

    def _process_keys(self) -> list[int]:
        own = self.trace.table("processes", ["process"])["process"]
        return self._mapped(own, "process", keep_null=True).to_list()

    def _process_names(self, column: pl.Series) -> pl.Series:
        """Name processes by their ranks."""
        recorded = column.cast(pl.String).to_list()
        names = [
            (f"Rank {key} · {name}" if name else f"Rank {key}") if key in self.ranks else name
            for key, name in zip(self._process_keys(), recorded, strict=True)
        ]
        texts = pl.Series(column.name, names, pl.String)
        return texts.cast(pl.Enum(texts.drop_nulls().unique(maintain_order=True)))


# The same collective on several ranks -------------------------------------------------------------


class RankEvent(NamedTuple):
    """A collective on the timeline of a rank."""

    rank: int
    table: str
    row: int


@dataclass(frozen=True)
class RankLinks:
    """Rows of an aligned trace that are the same collective."""

    members: Mapping[int, tuple[RankEvent, ...]]
    """Events by the number of the collective, in order of ranks."""
    collective: Mapping[tuple[str, int], int]
    """Number of the collective of a row."""
    kinds: tuple[str, ...]
    """What each collective is, by its number."""

    @classmethod
    def of(cls, source: AlignedRanksSource, trace: Trace) -> RankLinks:
        """Find the rows of matched collectives by rank, start and end; `trace` reads them."""
        wanted = collective_instances(source)
        matched: dict[int, list[RankEvent]] = {}
        for table in ("kernels", "collectives", "ranges"):
            if not trace.has(table) or wanted.is_empty():
                continue
            rows = _placed(trace, table)
            hits = wanted.join(rows, on=["rank", "start_ns", "end_ns"], how="inner").unique(
                ["at", "rank"], keep="first", maintain_order=True
            )
            for at, rank, row in hits.select("at", "rank", "row").iter_rows():
                matched.setdefault(at, []).append(RankEvent(rank, table, row))
            wanted = wanted.join(hits, on=["at", "rank"], how="anti")
        members = {at: tuple(sorted(events)) for at, events in sorted(matched.items())}
        of = {(e.table, e.row): at for at, events in members.items() for e in events}
        return cls(members, of, tuple(key.kind for key in source.matched.keys))

    def others(self, table: str, row: int) -> list[RankEvent]:
        """Return the same collective on the other ranks."""
        at = self.collective.get((table, row))
        events = () if at is None else self.members[at]
        return [event for event in events if (event.table, event.row) != (table, row)]


def collective_instances(source: AlignedRanksSource) -> pl.DataFrame:
    """Return rank, start and end, on the common clock, of all matched collectives."""
    matched: MatchedCollectives = source.matched
    parts = [pl.DataFrame(schema=dict.fromkeys(("at", "rank", "start_ns", "end_ns"), pl.Int64))]
    for part in source.parts:
        for place, rank in zip(part.places, part.ranks, strict=True):
            at = np.flatnonzero(matched.row[:, place] != ABSENT)
            times = (part.times(t[at, place]) for t in (matched.start_ns, matched.end_ns))
            start, end = (pl.Series(t, dtype=pl.Int64) for t in times)
            parts.append(
                pl.DataFrame(
                    {"at": pl.Series(at, dtype=pl.Int64), "start_ns": start, "end_ns": end}
                ).select("at", pl.lit(rank, pl.Int64).alias("rank"), "start_ns", "end_ns")
            )
    return pl.concat(parts)


def _placed(trace: Trace, table: str) -> pl.DataFrame:
    """Return the rows of a table by rank, which GPUs and processes have the numbers of."""
    by = "device" if table == "kernels" else "process"
    frame = trace.table(table, ["start_ns", "end_ns", by]).rename({by: "rank"})
    return frame.with_columns(row=pl.int_range(pl.len(), dtype=pl.Int64))
