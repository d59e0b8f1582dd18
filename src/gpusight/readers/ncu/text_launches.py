"""The launches in a printed file: their processes, sizes and the NVTX ranges around them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.naming.name_parts import demangle_if_mangled, take_apart
from gpusight.readers.ncu.report_messages import in_domain
from gpusight.readers.tables import NAMELESS, file_name
from gpusight.trace.schema_gpu import BETWEEN_STACKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


_ENTRY = re.compile(r'"([^"]*)"')
_DETAILS = 6
"""Fields behind a range's name: kind and value of its payload, its color and its message."""


def nvtx_ranges(row: Mapping[str, str]) -> str | None:
    """Return the ranges of a launch as `outer/inner`, `domain:outer/inner`; None without any.

    Ranges of the launching thread come first; those that cross threads (start/end) follow.
    """
    pushed = (
        _domain_and_name(entry.split(":")) for entry in _ENTRY.findall(row.get("push_pop", ""))
    )
    started = (
        _domain_and_name(entry.split(":")[1:])
        for entry in _ENTRY.findall(row.get("start_stop", ""))
    )
    ranges = [*stacks(pushed), *(in_domain(domain, name) for domain, name in started)]
    within = _ENTRY.findall(row.get("range", "")) or [row.get("range", "")]
    names = "/".join(_name(entry.split(":")) for entry in within)
    ranges.append(in_domain(row.get("domain", ""), names) if names else "")
    return BETWEEN_STACKS.join(entry for entry in ranges if entry) or None


def stacks(entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Join the ranges of each domain, outermost first."""
    domains: dict[str, list[str]] = {}
    for domain, name in entries:
        domains.setdefault(domain, []).append(name)
    return (in_domain(domain, "/".join(names)) for domain, names in domains.items())


def _domain_and_name(fields: list[str]) -> tuple[str, str]:
    """Read the fields of `domain:name:none:…`."""
    domain, *rest = fields or [""]
    return domain, _name(rest)


def _name(fields: list[str]) -> str:
    """Drop what follows a name; the name itself may hold colons."""
    return ":".join(fields[:-_DETAILS] if len(fields) > _DETAILS else fields)


_ROLES = (
    "id", "pid", "process", "kernel", "function", "mangled", "context", "stream", "block", "grid",
    "device", "device_name", "cc", "invocations", "push_pop", "start_stop", "domain", "range",
    "ranges",
)  # fmt: skip
_KEYS = ("id", "pid", "kernel", "function")
_KEYS_WITHOUT_ID = (*_KEYS, "process", "block", "grid", "device", "domain", "range")
_INTEGER = re.compile(r"\d{1,18}")
_WHOLE = re.compile(r"\d[\d.,'\s]{0,30}")
_CAPABILITY = re.compile(r"(\d{1,3})[.,](\d{1,2})")
_GUI_PROCESS = re.compile(r"\[(?P<pid>\d{1,10})\]\s*(?P<name>.*)")
_KINDS = {"graph": "graph", "range": "range"}
"""What stands for a kernel's name where a whole graph or range was measured at once."""


@dataclass
class PrintedLaunches:
    """Launches in order of appearance; `rows` holds what the first lines of each say of it."""

    rows: list[dict[str, str]] = field(default_factory=list)
    _numbers: dict[tuple[str, ...], int] = field(default_factory=dict)

    def add(self, cells: Mapping[str, str | None], extra_key: Iterable[str] = ()) -> int:
        """Return the number of a launch; `extra_key` separates launches with equal cells."""
        row = {role: text for role in _ROLES if (text := (cells.get(role) or "").strip())}
        keys = _KEYS if "id" in row else _KEYS_WITHOUT_ID
        key = (*(row.get(role, "") for role in keys), *extra_key)
        number = self._numbers.setdefault(key, len(self.rows))
        if number == len(self.rows):
            self.rows.append(row)
        return number

    def numbers(self, frame: pl.DataFrame) -> pl.Series:
        """Number the launches of a table's rows; rows of a launch need not be adjacent."""
        roles = [name for name in _ROLES if name in frame.columns]
        keys = [name for name in roles if name in _KEYS_WITHOUT_ID]
        # They mostly are, so that only the first of each run is looked up.
        differs = [pl.col(key).ne_missing(pl.col(key).shift()) for key in keys]
        begins = pl.any_horizontal([pl.int_range(pl.len()) == 0, *differs])
        runs = frame.select(*roles, begins.alias("begins"))
        heads = runs.filter("begins").drop("begins")
        codes = pl.Series([self.add(row) for row in heads.iter_rows(named=True)], dtype=pl.UInt32)
        return codes.gather(runs.get_column("begins").cum_sum() - 1).alias("launch")

    def keys(self) -> tuple[list[int], bool]:
        """Return the key of each launch: the profiler's own number, unless several share one.

        Then all are numbered anew, and the second value is true.
        """
        ids = [row.get("id", "") for row in self.rows]
        is_unique = len(set(ids)) == len(ids)
        if is_unique and all(_INTEGER.fullmatch(text) for text in ids):
            return [int(text) for text in ids], False
        return list(range(len(ids))), any(ids) and not is_unique


def profile_rows(launches: PrintedLaunches) -> pl.DataFrame:
    """Return the columns of `profiles` that the launches' own lines fill."""
    keys, _ = launches.keys()
    numbers = {process: number for number, process in enumerate(_processes(launches))}
    rows = [
        _profile(key, row, numbers.get(_process_of(row)))
        for key, row in zip(keys, launches.rows, strict=True)
    ]
    return pl.DataFrame(rows, schema=_SCHEMA)


_SCHEMA: dict[str, type[pl.DataType]] = {
    "launch": pl.Int64,
    "kind": pl.String,
    "name": pl.String,
    "base_name": pl.String,
    "mangled_name": pl.String,
    "device": pl.Int64,
    "context": pl.Int64,
    "stream": pl.Int64,
    "process": pl.Int64,
    **{f"{size}_{axis}": pl.Int64 for size in ("grid", "block") for axis in "xyz"},
    "compute_major": pl.Int64,
    "compute_minor": pl.Int64,
    "ranges": pl.String,
}


def _profile(key: int, row: Mapping[str, str], process: int | None) -> dict[str, Any]:
    written = row.get("kernel") or row.get("function") or row.get("mangled")
    name = demangle_if_mangled(written) if written else NAMELESS
    major, minor = capability(row.get("cc", ""))
    kind = _KINDS.get(name, "kernel")
    if kind != "kernel":  # whose printed sizes are those of one of the kernels in it
        name, row = f"({name})", {**row, "grid": "", "block": ""}
    return {
        "launch": key,
        "kind": kind,
        "name": name,
        "base_name": take_apart(name).base or None if kind == "kernel" else None,
        "mangled_name": row.get("mangled") or (written if name != written else None),
        "device": _integer(row.get("device", "")),
        "context": _integer(row.get("context", "")),
        "stream": _integer(row.get("stream", "")),
        "process": process,
        **_sizes("grid", row.get("grid", "")),
        **_sizes("block", row.get("block", "")),
        "compute_major": major,
        "compute_minor": minor,
        "ranges": row.get("ranges") or nvtx_ranges(row),
    }


def _integer(text: str) -> int | None:
    """Read a number that may have marks between thousands; None where it is none."""
    if not _WHOLE.fullmatch(text.strip()):
        return None
    digits = re.sub(r"\D", "", text)
    return int(digits) if len(digits) <= 18 else None


def capability(text: str) -> tuple[int | None, int | None]:
    """Read a compute capability, `9.0`."""
    match = _CAPABILITY.fullmatch(text.strip())
    return (int(match[1]), int(match[2])) if match else (None, None)


def _process_of(row: Mapping[str, str]) -> tuple[str, str]:
    """Return number and name of a launch's process; the name without its folder."""
    name = row.get("process", "")
    both = _GUI_PROCESS.fullmatch(name)
    pid, name = (both["pid"], both["name"]) if both else (row.get("pid", ""), name)
    return pid, file_name(name)


def _processes(launches: PrintedLaunches) -> list[tuple[str, str]]:
    """List the processes that the launches name, in order of appearance."""
    processes = dict.fromkeys(_process_of(row) for row in launches.rows)
    return [(pid, name) for pid, name in processes if _INTEGER.fullmatch(pid)]


def process_rows(launches: PrintedLaunches) -> list[dict[str, Any]]:
    """Return the rows of `processes` for the processes that the launches name."""
    return [
        {"process": number, "pid": int(pid), "host": 0, "name": name or None}
        for number, (pid, name) in enumerate(_processes(launches))
    ]


def _sizes(name: str, text: str) -> dict[str, int | None]:
    """Read `(32, 16, 1)`, `32, 16, 1`, `32 x 16 x 1` or `32`."""
    sizes: list[int | None] = [int(size) for size in re.findall(r"\d{1,10}", text)]
    sizes = [*sizes, 1, 1][:3] if 1 <= len(sizes) <= 3 else [None] * 3
    return {f"{name}_{axis}": size for axis, size in zip("xyz", sizes, strict=True)}
