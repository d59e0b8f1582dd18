"""A first walk through an nsys capture: whose events it holds, which texts they refer to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from gpusight.sharing.nsys_rows import pieces_of
from gpusight.sharing.nsys_schema import EVENTS, KNOWN, LEFT_OUT, REWRITTEN, WORDS, Kind, Role
from gpusight.sharing.nsys_texts import CATEGORIES
from gpusight.sharing.report import Category, Fate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusight.readers.nsys.raw import RawTables
    from gpusight.sharing.nsys_schema import Column
    from gpusight.sharing.nsys_texts import Texts
    from gpusight.sharing.tally import Tally

NVTX = "NVTX_EVENTS"
_NAMED = (34, 59, 60, 70, 71, 33, 75)
"""Events of NVTX whose text is a name: ranges, marks, categories and domains."""
_BITS = (1 << 24) - 1
_WORD = (1 << 64) - 1
_LONGEST_NS = 1 << 55
"""More than a year: what begins later counts from 1970, not from the start of a capture."""
_NUMBERS = "numbers of processes and threads"
_ORDER = (Role.KERNEL, Role.CALL, Role.SYSTEM, Role.RANGE, Role.OVERHEAD)
"""Which role a text has that several columns refer to."""
_TABLE = re.compile(
    r"(?:CUPTI|ACTIVITY|KIND|CUDA|NVTX|MPI|P2P|COLLECTIVES?|START|WAIT|OTHER|OSHMEM|UCP|UCX|OPENACC"
    r"|OPENMP|OPENGL|VULKAN|DX11|DX12|D3D11|D3D12|WDDM|ETW|GPU|CPU|NVVIDEO|VIDEO|NVMEDIA|API|EVENTS?"
    r"|PIX|MARKER|KHR|DEBUG|RANGE|QUEUE|PACKET|CONTEXT|SWITCH|FECS|SYSCALL|PERF|METRICS?|SLI|DXGI"
    r"|VSYNC|DATA|LAUNCH|NCCL|NET|NIC|IB|SOC|PMU|TARGET|INFO|PYTHON|THREAD|TASK|TRACE|MEMORY|POOL"
    r"|UM|PAGE|FAULT|SUBMIT|COMMUNICATORS?|RANKS?|_)+"
)
"""Names of tables that nsys gives; those of others may tell something themselves."""


def with_names_only(table: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Empty the texts of NVTX events that are no names: those of payloads, threads and schemas."""
    texts = [c for c in ("text", "textId") if c in rows.columns]
    if table != NVTX or not texts or "eventType" not in rows.columns:
        return rows
    named = rows.get_column("eventType").cast(pl.Int64, strict=False).is_in(_NAMED)
    return rows.with_columns(pl.when(named).then(pl.col(c)).alias(c) for c in texts)


class Survey:
    """What has to be known of a capture before anything of it can be copied."""

    def __init__(self, raw: RawTables, texts: Texts, tally: Tally) -> None:
        self._raw, self._texts, self._tally = raw, texts, tally
        self.strings: dict[int, Role] = {}
        """Which texts of StringIds the copy needs, and as what."""
        self.processes: set[int] = set()
        """Processes that events belong to: machine and number of each."""
        self._numbers: set[int] = set()
        self._earliest: int | None = None
        raw.preload(sorted(KNOWN))
        for table in sorted(raw.tables()):
            self._look_at(table)
        self._add_threads()
        ranked = sorted(self._numbers - {0})
        self._ranks = dict(zip(ranked, range(1, len(ranked) + 1), strict=True)) | {0: 0}

    def shifted(self, times: pl.Series) -> pl.Series:
        """Count times that tell the date from the first event that has such a one."""
        dated = times > _LONGEST_NS
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
        new = pl.Series([self._ranks.get(number) for number in old.to_list()], dtype=pl.Int64)
        return pids.replace_strict(old, new, default=None, return_dtype=pl.Int64)

    def own(self, ids: pl.Series) -> pl.Series:
        """Tell which global ids belong to a process that has events."""
        known = [i for i in ids.unique().drop_nulls().to_list() if _process(i) in self.processes]
        return ids.is_in(known)

    def _renumber(self, number: int) -> int:
        bits = number & _WORD
        pid, tid = self._ranks[bits >> 24 & _BITS], self._ranks[bits & _BITS]
        new = bits >> 48 << 48 | pid << 24 | tid
        return new - (1 << 64) if new >> 63 else new

    def _look_at(self, table: str) -> None:
        if table in KNOWN:
            self._look_into(table, KNOWN[table])
        elif table in LEFT_OUT:
            self._count(LEFT_OUT[table], table, table)
        elif table not in REWRITTEN and not table.startswith(WORDS):
            name = table if _TABLE.fullmatch(table) else "tables that nsys does not write"
            self._count(Category.UNKNOWN, name, table)

    def _count(self, category: Category, where: str, table: str) -> None:
        # Only META_DATA_CAPTURE is looked into, elsewhere: rows are counted here.
        if table != "META_DATA_CAPTURE":
            rows = self._raw.row_count(table)
            self._tally.add_all(category, where, Fate.REMOVED, ((table, n) for n in range(rows)))

    def _look_into(self, table: str, columns: dict[str, Column]) -> None:
        have = self._raw.columns(table)
        unknown = sorted(have - columns.keys())
        self._tally.add_all(
            Category.UNKNOWN, f"{table}, unknown columns", Fate.REMOVED, range(len(unknown))
        )
        asked = {name: column for name, column in columns.items() if name in have}
        wanted = [name for name, column in asked.items() if _is_looked_at(name, column)]
        if not wanted or self._raw.is_empty(table):
            return
        typed = [] if table != NVTX or "eventType" not in have else ["eventType"]
        for rows in pieces_of(self._raw, table, [*wanted, *typed]):
            named = with_names_only(table, rows)
            for name in wanted:
                self._look_at_values(table, name, asked[name], named.get_column(name))

    def _look_at_values(self, table: str, name: str, column: Column, values: pl.Series) -> None:
        if column.kind is Kind.TIME:
            whole = values.cast(pl.Int64, strict=False)
            low = whole.filter(whole > _LONGEST_NS).min()
            if isinstance(low, int):
                self._earliest = low if self._earliest is None else min(self._earliest, low)
            return
        distinct = values.unique().drop_nulls().to_list()
        if column.kind is Kind.THREAD:
            self._add_owners(distinct, of_events=table in EVENTS)
        elif column.kind is Kind.PID:
            self._numbers.update(number & _BITS for number in distinct if isinstance(number, int))
        elif column.kind is Kind.STRING and column.role is not None:
            self._add_strings(distinct, column.role)
        self._report(f"{table}.{name}", column, distinct)

    def _report(self, where: str, column: Column, distinct: list[object]) -> None:
        if column.kind is Kind.GONE and column.category is not None:
            telling = (v for v in distinct if v not in ("", 0, 0.0))
            self._tally.add_all(column.category, where, Fate.REMOVED, telling)
        elif column.role is not None:
            fate, category = self._texts.fate(column.role), CATEGORIES[column.role]
            if column.kind is Kind.STRING:
                self._tally.add_all(category, where, fate, distinct)
                return
            for text in map(str, distinct):
                same = self._texts.clean(text, column.role) == text
                self._tally.add(category, where, Fate.KEPT if same else fate, text)
        elif column.kind in (Kind.THREAD, Kind.PID):
            self._tally.add_all(Category.PROCESS_NUMBERS, _NUMBERS, Fate.RENUMBERED, distinct)

    def _add_owners(self, ids: Iterable[object], *, of_events: bool) -> None:
        for number in ids:
            if isinstance(number, int):
                bits = number & _WORD
                self._numbers |= {bits >> 24 & _BITS, bits & _BITS}
                if of_events:
                    self.processes.add(_process(number))

    def _add_strings(self, ids: Iterable[object], role: Role) -> None:
        for number in ids:
            if isinstance(number, int):
                before = self.strings.get(number, role)
                self.strings[number] = min(role, before, key=_ORDER.index)

    def _add_threads(self) -> None:
        """Number the threads, too, that did nothing but belong to such a process."""
        if "globalTid" not in self._raw.columns("ThreadNames"):
            return
        threads = self._raw.read("ThreadNames", ["globalTid"]).get_column("globalTid")
        self._add_owners(threads.filter(self.own(threads)).unique().to_list(), of_events=False)


def _process(number: int) -> int:
    """Give machine and process of a global id."""
    return (number & _WORD) >> 24


def _is_looked_at(name: str, column: Column) -> bool:
    if column.kind is Kind.TIME:
        return name in ("start", "timestamp")
    return column.kind not in (Kind.WHOLE, Kind.REAL)
