"""The launches in a printed file, the NVTX ranges around them, the columns of the source page."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.naming.kernel_name_parts import take_apart
from gpusight.readers.name_columns import NAMELESS, demangle_names, file_name
from gpusight.readers.ncu.report_messages import in_domain
from gpusight.trace.schema_gpu import BETWEEN_STACKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


_ENTRY = re.compile(r'"([^"]*)"')
_DETAILS = 6
"""Fields behind a range's name: kind and value of its payload, its colour and its message."""


def nvtx_ranges(row: Mapping[str, str]) -> str | None:
    """Give the ranges of a launch as `outer/inner`, `domain:outer/inner`; None where none was open.

    Ranges of the launching thread come first; those that cross threads (start/end) follow.
    """
    pushed = (_parts(entry) for entry in _ENTRY.findall(row.get("push_pop", "")))
    started = (_parts(entry, 1) for entry in _ENTRY.findall(row.get("start_stop", "")))
    found = [*stacks(pushed), *(in_domain(domain, name) for domain, name in started)]
    within = _ENTRY.findall(row.get("range", "")) or [row.get("range", "")]
    names = "/".join(_name(entry.split(":")) for entry in within)
    found.append(in_domain(row.get("domain", ""), names) if names else "")
    return BETWEEN_STACKS.join(entry for entry in found if entry) or None


def stacks(entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Join the ranges of each domain, outermost first."""
    domains: dict[str, list[str]] = {}
    for domain, name in entries:
        domains.setdefault(domain, []).append(name)
    return (in_domain(domain, "/".join(names)) for domain, names in domains.items())


def _parts(entry: str, before: int = 0) -> tuple[str, str]:
    """Take `domain:name:none:…` apart; `before` fields stand in front of the domain."""
    domain, *rest = entry.split(":")[before:] or [""]
    return domain, _name(rest)


def _name(fields: list[str]) -> str:
    """Drop what follows a name; the name itself may hold colons."""
    return ":".join(fields[:-_DETAILS] if len(fields) > _DETAILS else fields)


_ABOUT = (
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
_WHERE = ("x", "y", "z")
_KINDS = {"graph": "graph", "range": "range"}
"""What stands for a kernel's name where a whole graph or range was measured at once."""


@dataclass
class PrintedLaunches:
    """Launches in order of appearance; `rows` says of each what its lines said first."""

    rows: list[dict[str, str]] = field(default_factory=list)
    _numbers: dict[tuple[str, ...], int] = field(default_factory=dict)

    def add(self, about: Mapping[str, str | None], key: Iterable[str] = ()) -> int:
        """Give the number of a launch; a further key tells apart what else looks the same."""
        said = {name: text for name in _ABOUT if (text := (about.get(name) or "").strip())}
        keys = _KEYS if "id" in said else _KEYS_WITHOUT_ID
        number = self._numbers.setdefault(
            (*(said.get(name, "") for name in keys), *key), len(self.rows)
        )
        if number == len(self.rows):
            self.rows.append(said)
        return number

    def numbers(self, frame: pl.DataFrame) -> pl.Series:
        """Number the launches of a table's rows; rows of a launch need not follow each other."""
        known = [name for name in _ABOUT if name in frame.columns]
        keys = [name for name in known if name in _KEYS_WITHOUT_ID]
        begins = pl.any_horizontal([pl.col(k).ne_missing(pl.col(k).shift()) for k in keys])
        # Rows of a launch mostly do, so that only the first of each run is looked up.
        first = begins if keys else pl.lit(value=False)
        runs = frame.select(*known, first.alias("begins")).with_columns(
            begins=pl.col("begins") | (pl.int_range(pl.len()) == 0)
        )
        heads = runs.filter("begins").drop("begins")
        codes = pl.Series([self.add(row) for row in heads.iter_rows(named=True)], dtype=pl.UInt32)
        return codes.gather(runs.get_column("begins").cum_sum() - 1).alias("launch")

    def keys(self) -> tuple[list[int], bool]:
        """Give each launch its key: the profiler's own number, unless several have the same.

        Tells whether some do, so that all were numbered anew.
        """
        own = [row.get("id", "") for row in self.rows]
        is_unique = len(set(own)) == len(own)
        if is_unique and all(_INTEGER.fullmatch(text) for text in own):
            return [int(text) for text in own], False
        return list(range(len(own))), any(own) and not is_unique


def profile_rows(
    launches: PrintedLaunches, processes: Mapping[tuple[str, str], int]
) -> pl.DataFrame:
    """Give the columns of `profiles` that the launches' own lines fill."""
    keys, _ = launches.keys()
    rows = [_profile(key, row, processes) for key, row in zip(keys, launches.rows, strict=True)]
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
    **{f"{size}_{axis}": pl.Int64 for size in ("grid", "block") for axis in _WHERE},
    "compute_major": pl.Int64,
    "compute_minor": pl.Int64,
    "ranges": pl.String,
}


def _profile(
    key: int, row: Mapping[str, str], processes: Mapping[tuple[str, str], int]
) -> dict[str, Any]:
    written = row.get("kernel") or row.get("function") or row.get("mangled")
    name = demangle_names(written) if written else NAMELESS
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
        "device": integer(row.get("device", "")),
        "context": integer(row.get("context", "")),
        "stream": integer(row.get("stream", "")),
        "process": processes.get(process_of(row)),
        **_sizes("grid", row.get("grid", "")),
        **_sizes("block", row.get("block", "")),
        "compute_major": major,
        "compute_minor": minor,
        "ranges": row.get("ranges") or nvtx_ranges(row),
    }


def integer(text: str) -> int | None:
    """Read a number that may have marks between thousands; None where it is none."""
    if not _WHOLE.fullmatch(text.strip()):
        return None
    digits = re.sub(r"\D", "", text)
    return int(digits) if len(digits) <= 18 else None


def capability(text: str) -> tuple[int | None, int | None]:
    """Read a compute capability, `9.0`."""
    match = _CAPABILITY.fullmatch(text.strip())
    return (int(match[1]), int(match[2])) if match else (None, None)


def process_of(row: Mapping[str, str]) -> tuple[str, str]:
    """Give number and name of a launch's process; the name without its folder."""
    name = row.get("process", "")
    both = _GUI_PROCESS.fullmatch(name)
    pid, name = (both["pid"], both["name"]) if both else (row.get("pid", ""), name)
    return pid, file_name(name)


def process_rows(launches: PrintedLaunches) -> pl.DataFrame:
    """Give the processes that the launches name, in order of appearance."""
    found = dict.fromkeys(process_of(row) for row in launches.rows)
    known = [(pid, name) for pid, name in found if _INTEGER.fullmatch(pid)]
    return pl.DataFrame(
        {
            "process": pl.Series(range(len(known)), dtype=pl.Int64),
            "pid": pl.Series([int(pid) for pid, _ in known], dtype=pl.Int64),
            "host": pl.Series([0] * len(known), dtype=pl.Int64),
            "name": pl.Series([name or None for _, name in known], dtype=pl.String),
        }
    )


def process_keys(launches: PrintedLaunches) -> dict[tuple[str, str], int]:
    """Number the processes as `process_rows` does."""
    found = dict.fromkeys(process_of(row) for row in launches.rows)
    return {p: at for at, p in enumerate(p for p in found if _INTEGER.fullmatch(p[0]))}


def _sizes(name: str, text: str) -> dict[str, int | None]:
    """Read `(32, 16, 1)`, `32, 16, 1`, `32 x 16 x 1` or `32`."""
    found: Sequence[str] = re.findall(r"\d{1,10}", text)
    if not 1 <= len(found) <= len(_WHERE):
        return {f"{name}_{axis}": None for axis in _WHERE}
    full = [int(size) for size in found] + [1] * (len(_WHERE) - len(found))
    return {f"{name}_{axis}": size for axis, size in zip(_WHERE, full, strict=True)}


_COLUMNS = {
    "# samples": "smsp__pcsamp_sample_count",
    "instructions executed": "inst_executed",
    "thread instructions executed": "thread_inst_executed",
    "predicated-on thread instructions executed": "thread_inst_executed_true",
    "avg. threads executed": "derived__avg_thread_executed",
    "avg. predicated-on threads executed": "derived__avg_thread_executed_true",
    "address space": "memory_type",
    "access operation": "memory_access_type",
    "access size": "memory_access_size_type",
    "l2 theoretical sectors global excessive": (
        "derived__memory_l2_theoretical_sectors_global_excessive"
    ),
    "l1 wavefronts shared excessive": "derived__memory_l1_wavefronts_shared_excessive",
    "l1 conflicts shared n-way": "derived__memory_l1_conflicts_shared_nway",
}
_MEMORY = re.compile(r"l[12] (?:tag requests|wavefronts|theoretical sectors) [a-z ]+")
_STALL = re.compile(r"stall_(?P<why>[a-z_]+)(?P<waiting> \(not issued\))?")
_WHY = {
    "barrier": "barrier",
    "branch_resolving": "branch_resolving",
    "dispatch": "dispatch_stall",
    "drain": "drain",
    "gmma": "gmma",
    "imc": "imc_miss",
    "lg": "lg_throttle",
    "long_sb": "long_scoreboard",
    "math": "math_pipe_throttle",
    "membar": "membar",
    "mio": "mio_throttle",
    "misc": "misc",
    "no_inst": "no_instructions",
    "not_selected": "not_selected",
    "selected": "selected",
    "short_sb": "short_scoreboard",
    "sleep": "sleeping",
    "sleeping": "sleeping",
    "tex": "tex_throttle",
    "wait": "wait",
}
_NOT_SUMS = ("derived__avg_", "memory_type", "memory_access_", "derived__memory_l1_conflicts")


def source_metric(column: str) -> str | None:
    """Give the metric that a column shows the parts of; None where it is not known."""
    name = column.strip().casefold()
    stall = _STALL.fullmatch(name)
    if stall and stall["why"] in _WHY:
        waiting = "_not_issued" if stall["waiting"] else ""
        return f"smsp__pcsamp_warps_issue_stalled_{_WHY[stall['why']]}{waiting}"
    if name in _COLUMNS:
        return _COLUMNS[name]
    return f"memory_{name.replace(' ', '_')}" if _MEMORY.fullmatch(name) else None


def is_sum(metric: str) -> bool:
    """Tell whether the whole of a metric is the sum of its parts: counts are, averages are not."""
    return not metric.startswith(_NOT_SUMS)
