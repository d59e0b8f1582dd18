"""The tables of an nsys capture of which a copy has parts: who ran where, with which versions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from gpusight.readers.nsys.strings import Strings
from gpusight.readers.nsys.values import SYSTEM_FACTS
from gpusight.sharing.nsys_texts import THREADS, diagnosis, product, thread_name, version
from gpusight.sharing.profiler_words import described
from gpusight.sharing.report import Category, Fate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpusight.readers.nsys.raw import RawTables
    from gpusight.sharing.nsys_survey import Survey
    from gpusight.sharing.tally import Tally

_EXPORTED: dict[str, Callable[[str], str | None]] = {
    "EXPORT_PRODUCT_NAME": product,
    "EXPORT_PRODUCT_VERSION": version,
    "EXPORT_SCHEMA_VERSION": version,
    "EXPORT_SCHEMA_VERSION_MAJOR": version,
    "EXPORT_SCHEMA_VERSION_MINOR": version,
    "EXPORT_SCHEMA_VERSION_MICRO": version,
}
_MACHINE: dict[str, Callable[[str], str | None]] = {
    "NvDriverVersion": version,
    "CudaDriverVersion": version,
    "OsDescription": described,
    "CpuDescription": described,
}
assert _MACHINE.keys() == SYSTEM_FACTS.keys()
_NAMED = (
    (re.compile(r"ENVIRONMENT", re.IGNORECASE), Category.ENVIRONMENT),
    (re.compile(r"COMMAND|ARGUMENT"), Category.COMMAND_LINES),
    (re.compile(r"WORKING_DIR|PATH|FILE|InstallDir", re.IGNORECASE), Category.FILE_PATHS),
    (re.compile(r"USER"), Category.USER_NAMES),
    (re.compile(r"HOST|DEVICE_DISPLAY_NAME|^DEVICE_ID$", re.IGNORECASE), Category.HOST_NAMES),
    (re.compile(r"TIME_UTC|TIME_LOCAL|EXPORT_TIME$|_DATE$"), Category.CAPTURE_TIME),
    (re.compile(r"_PID$|NamespacePID"), Category.PROCESSES),
    (re.compile(r"UUID|UID|GpuInfo|SESSION_ID"), Category.HARDWARE_IDS),
    (re.compile(r"Nic", re.IGNORECASE), Category.NETWORK),
)
"""What a property tells, by its name."""
_SETTING = re.compile(r"Has|Supports?|Is[A-Z]|Cpu|Linux|Software|Kernel|Export|EXPORT_|Event|Gpu")
"""Properties that say what nsys can do, of versions and sizes: they tell of nobody."""
_ENVIRONMENT = re.compile(r"(?:^|[\0;\n])[A-Za-z_][A-Za-z0-9_]{0,80}=")
_ENTRIES = re.compile(r"[\0;\n]")


def category_of(name: str) -> Category | None:
    """Say what a property of the session or machine tells; None for what is only a setting."""
    return next((category for pattern, category in _NAMED if pattern.search(name)), None)


class About:
    """Cleans the tables that need more than a look at each column."""

    def __init__(self, raw: RawTables, survey: Survey, tally: Tally) -> None:
        self._raw, self._survey, self._tally = raw, survey, tally
        self._strings = Strings(raw)
        self._threads = _read(raw, "ThreadNames", {"globalTid": pl.Int64, "nameId": pl.Int64})

    def tables(self) -> Iterator[tuple[str, pl.DataFrame]]:
        """Give what the copy has of each."""
        for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
            yield table, self._properties(table, _EXPORTED, ("name", "value"))
        machine = self._properties(
            "TARGET_INFO_SYSTEM_ENV", _MACHINE, ("globalVid", "name", "nameEnum", "value")
        )
        yield "TARGET_INFO_SYSTEM_ENV", machine
        self._properties("META_DATA_CAPTURE", {}, ("name", "value"))
        yield "DIAGNOSTIC_EVENT", self._diagnostics()
        yield "PROCESSES", self._processes()

    def _properties(
        self, table: str, wanted: dict[str, Callable[[str], str | None]], columns: tuple[str, ...]
    ) -> pl.DataFrame:
        """Keep the properties that are wanted, of the shape that they must have."""
        types = {c: pl.String if c in ("name", "value") else pl.Int64 for c in columns}
        rows = _read(self._raw, table, {**types, "devStateName": pl.String})
        kept = []
        for row in rows.iter_rows(named=True):
            name, value = row["name"] or "", row["value"] or ""
            cleaned = wanted[name](value) if name in wanted else None
            if cleaned is not None:
                kept.append({c: row[c] for c in columns} | {"value": cleaned})
            self._note(table, name, value, cleaned)
            self.hide(Category.HOST_NAMES, f"{table}.devStateName", row["devStateName"])
        return pl.DataFrame(kept, schema=types)

    def _note(self, table: str, name: str, value: str, cleaned: str | None) -> None:
        if cleaned is not None and cleaned == value:
            return
        category = category_of(name)
        if category is not None:
            self.hide(category, f"{table}.value", value)
        elif value and not _SETTING.match(name):
            # A switch of the profiler: what it is set to are words that stand anywhere.
            self._tally.add(Category.COMMAND_LINES, f"{table}.value", Fate.REMOVED, value)

    def hide(self, category: Category, where: str, value: str | None) -> None:
        """Count a value that is left out, and remember it."""
        if not value:
            return
        self._tally.add(category, where, Fate.REMOVED, value)
        for entry in _ENTRIES.split(value) if category is Category.ENVIRONMENT else (value,):
            self._tally.hide(category, entry)

    def _diagnostics(self) -> pl.DataFrame:
        columns = {
            "timestamp": pl.Int64,
            "timestampType": pl.Int64,
            "source": pl.Int64,
            "severity": pl.Int64,
            "text": pl.String,
        }
        rows = _read(self._raw, "DIAGNOSTIC_EVENT", columns)
        texts = rows.get_column("text").fill_null("").to_list()
        self._tally.add_all(
            Category.PROGRAM_OUTPUT, "DIAGNOSTIC_EVENT.text", Fate.SHORTENED, set(texts)
        )
        told = pl.Series("text", [diagnosis(text) for text in texts], dtype=pl.String)
        times = self._survey.shifted(rows.get_column("timestamp"))
        return rows.with_columns(times, told)

    def _processes(self) -> pl.DataFrame:
        """Keep processes that have events, each called by its number."""
        rows = _read(self._raw, "PROCESSES", {"globalPid": pl.Int64, "name": pl.String})
        for name in rows.get_column("name").unique().drop_nulls().to_list():
            self.hide(Category.PROCESSES, "PROCESSES.name", name)
        own = rows.filter(self._survey.own(rows.get_column("globalPid")))
        ids = self._survey.renumbered(own.get_column("globalPid"))
        own = pl.DataFrame({"globalPid": ids}).with_columns(
            pid=pl.col("globalPid") // (1 << 24) % (1 << 24)
        )
        return own.with_columns(name=pl.format("process {}", "pid"))

    def thread_names(self) -> list[int]:
        """Give the ids of the texts that threads are called by; they are counted as such."""
        return self._threads.get_column("nameId").unique().drop_nulls().to_list()

    def threads(self, first_id: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Keep the threads of processes that have events, and give the texts of their names."""
        rows = self._threads
        names = self._strings.texts(rows.get_column("nameId")).fill_null("")
        known = {name: THREADS.fullmatch(name) for name in names.unique().to_list()}
        for fate in (Fate.KEPT, Fate.REMOVED):
            some = (n for n, fits in known.items() if n and bool(fits) is (fate is Fate.KEPT))
            self._tally.add_all(Category.THREAD_NAMES, "ThreadNames.nameId", fate, some)
        rows = rows.with_columns(name=pl.Series([thread_name(n) for n in names], dtype=pl.String))
        rows = rows.filter(self._survey.own(rows.get_column("globalTid")))
        texts = rows.select(value=pl.col("name").unique(maintain_order=True)).with_row_index("id")
        texts = texts.select(pl.col("id").cast(pl.Int64) + first_id, "value")
        named = rows.join(
            texts, left_on="name", right_on="value", how="left", maintain_order="left"
        )
        ids = self._survey.renumbered(named.get_column("globalTid"))
        return named.select(pl.col("id").alias("nameId"), ids), texts

    def unused(self, texts: pl.Series) -> None:
        """Count texts that nothing of the copy refers to, by what they look like."""
        for text in texts.drop_nulls().to_list():
            if _ENVIRONMENT.search(text):
                self.hide(Category.ENVIRONMENT, "StringIds.value", text)
            elif text.startswith("/"):
                self.hide(Category.FILE_PATHS, "StringIds.value", text)
            elif text:
                self._tally.add(Category.CODE, "StringIds.value", Fate.REMOVED, text)


def _read(raw: RawTables, table: str, columns: dict[str, type[pl.DataType]]) -> pl.DataFrame:
    """Read columns of a small table; those that it lacks are null."""
    have = [column for column in columns if column in raw.columns(table)]
    if not have:
        return pl.DataFrame(schema=columns)
    rows = raw.read(table, have)
    return rows.select(
        pl.col(c).cast(dtype, strict=False) if c in have else pl.lit(None, dtype).alias(c)
        for c, dtype in columns.items()
    )
