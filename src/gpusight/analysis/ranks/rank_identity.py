"""Which ranks a capture holds: a process is a rank, or each GPU of a process that uses several."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.selection import GPU_WORK

if TYPE_CHECKING:
    from gpusight.trace.trace import Trace


MIN_WORK_SHARE = 0.1
"""Part of the GPU time of the busiest process, or GPU, that another one must have to be a rank."""
METADATA, NVTX, FILE_NAME, ORDER = (
    "trace metadata",
    "NCCL's NVTX ranges",
    "file name",
    "order of processes",
)
"""Where the number of a rank can come from."""
_IN_NAME = (
    re.compile(r"(?i)(?:^|[^a-z0-9])ranks?[^a-z0-9]?(\d+)(?![0-9])"),
    re.compile(r"(?i)(?:^|[^a-z0-9])(?:worker|proc|local)[^a-z0-9]?(\d+)(?![0-9])"),
)
_COMM_INIT = re.compile(r"^p?ncclCommInitRank")


@dataclass(frozen=True, slots=True)
class RankUnit:
    """A rank of a capture."""

    process: int | None
    """Key of its process; None where the capture does not say."""
    pid: int | None
    device: int
    """Its GPU; the one with most work, if it uses several."""
    rank: int | None
    """None where the number follows from the order of files."""
    rank_from: str
    """Where the number comes from, as above; empty for none."""
    host: int | None = None
    """Which machine of the capture."""
    by_device: bool = False
    """The process has other GPUs that are ranks too."""


def rank_units(trace: Trace) -> tuple[RankUnit, ...]:
    """List the ranks of a capture, in order of their numbers; none where no GPU was used."""
    work = _gpu_work(trace)
    if work.is_empty():
        return ()
    units = _units(trace, work)
    if len(units) == 1:
        return (_single(trace, units[0]),)
    known = _nccl_ranks(trace)
    numbers = [known.get((unit.process, unit.device if unit.by_device else None)) for unit in units]
    if all(n is not None for n in numbers) and len(set(numbers)) == len(numbers):
        pairs = sorted(zip(numbers, units, strict=True), key=lambda pair: pair[0] or 0)
        return tuple(_numbered(unit, number, NVTX) for number, unit in pairs)
    return tuple(_numbered(unit, number, ORDER) for number, unit in enumerate(units))


def rank_in_name(path: str) -> int | None:
    """Return the rank that a file name holds: `trace.rank3.json`, `rank_3/profile.nsys-rep`."""
    file = PurePath(path)
    texts = [file.name, file.parent.name]
    matches = (match for text in texts for pattern in _IN_NAME if (match := pattern.search(text)))
    match = next(matches, None)
    return None if match is None else int(match[1])


def without_rank(path: str) -> str:
    """Return a path without the number of its rank: equal for all captures of one job."""
    file = PurePath(path)
    for text in (file.name, file.parent.name):
        for pattern in _IN_NAME:
            if match := pattern.search(text):
                plain = f"{text[: match.start(1)]}#{text[match.end(1) :]}"
                parent = file.parent if text == file.name else file.parent.with_name(plain)
                return str(parent / (plain if text == file.name else file.name))
    return path


def _gpu_work(trace: Trace) -> pl.DataFrame:
    """Sum the GPU time by process and GPU."""
    parts = [
        trace.table(table, ["process", "device", "start_ns", "end_ns"]).select(
            "process", "device", ns=pl.col("end_ns") - pl.col("start_ns")
        )
        for table in GPU_WORK
        if trace.has(table)
    ]
    if not parts:
        return pl.DataFrame(schema={"process": pl.Int64, "device": pl.Int64, "ns": pl.Int64})
    return pl.concat(parts).group_by("process", "device").agg(pl.col("ns").sum())


def _units(trace: Trace, work: pl.DataFrame) -> list[RankUnit]:
    """Return processes, or GPUs of them, with much work, in order of process and GPU number."""
    totals = work.group_by("process").agg(pl.col("ns").sum()).rename({"ns": "total"})
    large = totals.filter(pl.col("total") >= MIN_WORK_SHARE * pl.col("total").max())
    names = trace.table("processes", ["process", "pid", "host"]).unique("process", keep="first")
    rows = work.join(large, on="process", nulls_equal=True).join(
        names, on="process", how="left", nulls_equal=True
    )
    units: list[RankUnit] = []
    one_rank = trace.meta.rank is not None and large.height == 1
    order = rows.sort("host", "pid", "process", nulls_last=True)
    for (process,), own in order.group_by("process", maintain_order=True):
        of_gpus = own.sort("ns", "device", descending=[True, False])
        used = of_gpus.filter(pl.col("ns") >= MIN_WORK_SHARE * pl.col("ns").max())
        devices = used["device"].to_list()[:1] if one_rank else sorted(used["device"])
        by_device = len(devices) > 1 and _collectives_on(trace, process)
        key = None if process is None else int(str(process))
        for device in devices if by_device else used["device"].to_list()[:1]:
            pid, host = own["pid"][0], own["host"][0]
            units.append(RankUnit(key, pid, device, None, "", host, by_device))
    return units


def _collectives_on(trace: Trace, process: object) -> bool:
    """Return whether several GPUs of a process run communication: then each is a rank."""
    from gpusight.naming.kernel_names import classify

    kernels = trace.table("kernels", ["name", "process", "device"])
    codes = [
        code
        for code, name in enumerate(names_of(kernels["name"]))
        if classify(name).category == "communication"
    ]
    own = kernels.filter(pl.col("name").to_physical().is_in(codes))
    if process is not None:
        own = own.filter(pl.col("process") == process)
    return own["device"].n_unique() > 1


def _single(trace: Trace, unit: RankUnit) -> RankUnit:
    """Number the only rank of a capture."""
    if trace.meta.rank is not None:
        return _numbered(unit, trace.meta.rank, METADATA)
    known = _nccl_ranks(trace).get((unit.process, None))
    if known is not None:
        return _numbered(unit, known, NVTX)
    named = rank_in_name(trace.meta.path)
    return unit if named is None else _numbered(unit, named, FILE_NAME)


def _numbered(unit: RankUnit, rank: int | None, rank_from: str) -> RankUnit:
    return RankUnit(unit.process, unit.pid, unit.device, rank, rank_from, unit.host, unit.by_device)


def _nccl_ranks(trace: Trace) -> dict[tuple[int | None, int | None], int]:
    """Return the rank of each process, or GPU of one, in its largest NCCL communicator."""
    if not trace.has("ranges", "payload_text"):
        return {}
    from gpusight.analysis.ranks.collective_table import payload_facts

    frame = trace.table("ranges", ["name", "process", "payload_text"])
    codes = [c for c, name in enumerate(names_of(frame["name"])) if _COMM_INIT.match(name)]
    rows = frame.filter(pl.col("name").to_physical().is_in(codes))
    largest: dict[tuple[int | None, int | None], tuple[int, int]] = {}
    for process, text in rows.select("process", "payload_text").iter_rows():
        facts = payload_facts(text)
        rank = facts.get("rank")
        if not isinstance(rank, int):
            continue
        size, device = (facts.get(name) for name in ("no. of ranks", "cuda device"))
        size_and_rank = (size if isinstance(size, int) else 0, rank)
        for key in ((process, None), (process, device if isinstance(device, int) else None)):
            if key not in largest or size_and_rank[0] > largest[key][0]:
                largest[key] = size_and_rank
    return {key: rank for key, (_, rank) in largest.items()}
