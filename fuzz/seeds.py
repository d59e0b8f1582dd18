"""The corpus: the smallest capture of each format and version, and every input that once failed.

`python -m fuzz.seeds` builds `fuzz/corpus/` from the project's own captures. Where the wider set of
public captures lies beside the repository, it is reduced at run time and never written here.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import pickle
import re
import sqlite3
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from fuzz.mutate import protobuf as pb
from gpusight.readers.file_blocks import zstd_module
from gpusight.readers.nsys.nsys_machine import USED_RAW_TABLES
from gpusight.readers.nsys.table_mapping import PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fuzz.formats import Files

REPOSITORY = Path(__file__).resolve().parents[1]
CORPUS = REPOSITORY / "fuzz" / "corpus"
FAILURES = CORPUS / "failures"
NOT_OURS = REPOSITORY / "fuzz" / "out"
"""Where inputs are saved that were made of public captures; git ignores it."""
DATA = REPOSITORY / "tests" / "data"
SHARED = REPOSITORY.parent / "shared" / "data"
_ROWS, _EVENTS, _METRICS, _STRINGS = 3, 2, 12, 60
_LARGEST = 40_000_000
"""Captures beyond this are not reduced at run time: reading them takes too long."""


def load(name: str) -> list[Files]:
    """Read the committed seeds of a format."""
    return [files_of(path) for path in sorted((CORPUS / name).iterdir())]


def failures(name: str) -> list[Files]:
    """Read the inputs of a format that once failed."""
    return [files_of(path) for path in sorted(FAILURES.glob(f"{name}-*"))]


def files_of(path: Path) -> Files:
    """Read a file, or the files of a folder."""
    inside = sorted(path.iterdir()) if path.is_dir() else [path]
    return {file.name: file.read_bytes() for file in inside}


def write(files: Files, path: Path) -> None:
    """Write a file of any name, or a folder of several files."""
    if len(files) == 1 and path.suffix != ".dir":
        path.write_bytes(next(iter(files.values())))
        return
    path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (path / name).write_bytes(content)


def public(name: str) -> list[Files]:
    """Reduce the public captures of a format, where they are beside the repository."""
    reduce, patterns = PUBLIC.get(name, (None, ()))
    if reduce is None:
        return []
    paths = [p for pattern in patterns for p in sorted(SHARED.glob(pattern))]
    return [made for p in paths if p.stat().st_size < _LARGEST for made in _attempt(reduce, p)]


def _attempt(reduce: Callable[[Path], Files], path: Path) -> Iterable[Files]:
    try:
        return [reduce(path)]
    except Exception as error:  # noqa: BLE001 - a seed less; a run says which
        print(f"fuzz: {path.name} gives no seed: {error!r}", file=sys.stderr)
        return []


# Reducing captures --------------------------------------------------------------------------------


def unpacked(path: Path) -> bytes:
    """Read a file, inflated where its name says that it is packed."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".ncu-repz":
        return bytes(zstd_module().decompress(data))
    return data


def small_sqlite(path: Path) -> Files:
    """Keep a few rows of each table that is read, and the strings that they name."""
    tables = _raw_tables(path)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "small.sqlite"
        connection = sqlite3.connect(target)
        connection.execute("PRAGMA page_size = 512")
        for name, (sql, rows) in tables.items():
            connection.execute(sql)
            marks = ", ".join("?" * len(rows[0]))
            connection.executemany(f'INSERT INTO "{name}" VALUES ({marks})', rows)
        connection.commit()
        connection.execute("VACUUM")
        connection.close()
        return {"capture.sqlite": target.read_bytes()}


def _raw_tables(path: Path) -> dict[str, tuple[str, list[tuple[Any, ...]]]]:
    source = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    source.text_factory = lambda raw: raw.decode("utf-8", "replace")
    wanted = {part.raw for parts in PARTS.values() for part in parts} | USED_RAW_TABLES
    query = "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
    tables: dict[str, tuple[str, list[tuple[Any, ...]]]] = {}
    for name, sql in source.execute(query).fetchall():
        if name in wanted and name != "StringIds":
            rows = source.execute(f'SELECT * FROM "{name}" LIMIT {_ROWS}').fetchall()
            if rows:
                tables[name] = (sql, rows)
    used = {
        value
        for _, rows in tables.values()
        for row in rows
        for value in row
        if isinstance(value, int)
    }
    strings = [row for row in source.execute("SELECT * FROM StringIds") if row[0] in used][
        :_STRINGS
    ]
    sql = source.execute("SELECT sql FROM sqlite_master WHERE name = 'StringIds'").fetchone()[0]
    source.close()
    return tables | ({"StringIds": (sql, strings)} if strings else {})


def parquet_folder(path: Path) -> Files:
    """Write the tables of a small export as `nsys export --type parquetdir` does."""
    return {f"{name}.parquet": _written(frame, "parquet") for name, frame in _frames(path).items()}


def arrow_folder(path: Path) -> Files:
    """Write the tables of a small export as Arrow files, half of them streams."""
    kinds = ("stream", "file")
    frames = _frames(path)
    return {
        f"{name}.arrow": _written(frame, kinds[i % 2])
        for i, (name, frame) in enumerate(frames.items())
    }


def _frames(path: Path) -> dict[str, pl.DataFrame]:
    types = {"INTEGER": pl.Int64, "TEXT": pl.String, "REAL": pl.Float64}
    frames = {}
    for name, (sql, rows) in _raw_tables(path).items():
        columns = dict(re.findall(r"(\w+)\s+(INTEGER|TEXT|REAL)", sql.partition("(")[2]))
        frame = pl.DataFrame(rows, schema={c: types[k] for c, k in columns.items()}, orient="row")
        wide = [c for c in ("globalPid", "globalTid") if c in columns]
        frames[name] = frame.with_columns(pl.col(wide).reinterpret(signed=False))
    return frames


def arrow_file(path: Path) -> Files:
    """Write the tables as `nsys export --type arrow` does: streams that name their table."""
    import pyarrow as pa

    target = io.BytesIO()
    for name, frame in _frames(path).items():
        table = frame.to_arrow().replace_schema_metadata({"table_name": name})
        with pa.ipc.new_stream(target, table.schema) as stream:
            stream.write_table(table)
    return {"capture.arrow": target.getvalue()}


def _written(frame: pl.DataFrame, kind: str) -> bytes:
    target = io.BytesIO()
    if kind == "parquet":
        frame.write_parquet(target, compression="snappy", statistics=False)
    elif kind == "stream":
        frame.write_ipc_stream(target, compat_level=pl.CompatLevel.oldest())
    else:
        frame.write_ipc(target)
    return target.getvalue()


def small_nsys_report(path: Path) -> Files:
    """Keep a few events of each kind, and the strings that they name."""
    report = pb.read_nsys_report(path.read_bytes())
    kept: list[pb.Field] = []
    counts: Counter[tuple[int, ...]] = Counter()
    for block in report.blocks:
        for event in pb.parse(block, depth=6):
            shape = tuple(f.number for f in event.value) if isinstance(event.value, list) else ()
            kind = (event.number, *shape, _first(event))
            counts[kind] += 1
            if counts[kind] <= _EVENTS:
                kept.append(event)
    report.blocks = [pb.write(kept[: len(kept) // 2]), pb.write(kept[len(kept) // 2 :])]
    used = set(_numbers(kept))
    strings = pb.parse(report.strings)
    for at, field in enumerate(strings):
        if at not in used and isinstance(field.value, bytes) and len(field.value) > 8:
            field.value = b""
    report.strings = pb.write(strings)
    for name in report.sections:
        if name not in ("UI Data", "Sampling Data Offsets"):
            report.sections[name] = report.sections[name][:2000]
    report.header = _with_count(report.header, 1, sum(f.number == 1 for f in kept), len(kept))
    return {"capture.nsys-rep": pb.write_nsys_report(report)}


def _first(event: pb.Field) -> int:
    """Give the class of a trace event, which stands first in the last message of it."""
    inner = event.value[-1].value if isinstance(event.value, list) and event.value else None
    if not isinstance(inner, list):
        return 0
    return next((f.value for f in inner if f.number == 7 and isinstance(f.value, int)), 0)


def _numbers(fields: Iterable[pb.Field]) -> Iterable[int]:
    for field in fields:
        if isinstance(field.value, int):
            yield field.value
        elif isinstance(field.value, list):
            yield from _numbers(field.value)


def _with_count(header: bytes, number: int, events: int, every: int) -> bytes:
    fields = pb.parse(header)
    for field in fields:
        if field.number == number and isinstance(field.value, int):
            field.value = events
        elif field.number == 15 and isinstance(field.value, int):
            field.value = every - events
    return pb.write(fields)


def small_ncu_report(path: Path) -> Files:
    """Keep two results with a few metrics each, and no binaries."""
    head, blocks = pb.read_ncu_report(unpacked(path))
    few: list[pb.NcuBlock] = []
    for block in blocks[:4]:
        header = [f for f in block.header if f.number != 1]
        sources = sum(f.value for f in block.header if f.number == 1 and isinstance(f.value, int))
        messages = block.messages[sources:]
        for field in header:
            if field.number in (2, 7, 8, 9) and isinstance(field.value, int):
                field.value = min(field.value, len(messages), 1)
            elif field.number == 4 and isinstance(field.value, bytes):
                field.value = pb.write(pb.parse(field.value)[: 20 * _METRICS])
        few.append(pb.NcuBlock(header, [_small_result(m) for m in messages[:1]]))
    return {"capture.ncu-rep": pb.write_ncu_report(head, few)}


def _small_result(message: bytes) -> bytes:
    counts: Counter[int] = Counter()
    kept = []
    for field in pb.parse(message):
        counts[field.number] += 1
        if counts[field.number] <= (_METRICS if field.number in (4, 13) else _EVENTS):
            kept.append(field)
    return pb.write(kept)


def small_xspace(path: Path) -> Files:
    """Keep a few lines of each plane, a few events of each line, and the names that they use."""
    planes = pb.parse(path.read_bytes(), depth=6)
    for plane in planes:
        if not isinstance(plane.value, list):
            continue
        for line in [f for f in plane.value if f.number == 3][4:]:
            plane.value.remove(line)
        for line in plane.value:
            if line.number == 3 and isinstance(line.value, list):
                events = [f for f in line.value if f.number == 4]
                line.value = [f for f in line.value if f.number != 4] + events[: 2 * _EVENTS]
        used = set(_numbers(f for f in plane.value if f.number in (3, 6)))
        plane.value = [f for f in plane.value if f.number not in (4, 5) or _key(f) in used]
        plane.value = [f for f in plane.value if f.number != 6][:400] + [
            f for f in plane.value if f.number == 6
        ][:8]
    return {"capture.xplane.pb": pb.write(planes)}


def _key(entry: pb.Field) -> int | None:
    if not isinstance(entry.value, list):
        return None
    return next((f.value for f in entry.value if f.number == 1 and isinstance(f.value, int)), 0)


def small_trace(path: Path) -> Files:
    """Keep a few events of each kind."""
    trace = json.loads(unpacked(path))
    events = trace if isinstance(trace, list) else trace["traceEvents"]
    counts: Counter[tuple[object, ...]] = Counter()
    kept = []
    for event in events:
        plain = "cat" not in event
        keys = ("ph", "pid", "tid") if plain else ("ph", "cat")
        kind = tuple(event.get(key) for key in keys)
        counts[kind] += 1
        if counts[kind] <= _EVENTS:
            kept.append(event)
    small = kept if isinstance(trace, list) else {**trace, "traceEvents": kept}
    return {"capture.json": json.dumps(small, separators=(",", ":")).encode()}


def small_snapshot(path: Path) -> Files:
    """Keep a few segments and the start of each history."""
    value = pickle.loads(path.read_bytes())
    value["segments"] = value["segments"][:2]
    for segment in value["segments"]:
        segment["blocks"] = segment["blocks"][:3]
    value["device_traces"] = [trace[:5] for trace in value["device_traces"][:2]]
    for entry in [e for t in value["device_traces"] for e in t] + [
        b for s in value["segments"] for b in s["blocks"]
    ]:
        entry["frames"] = entry.get("frames", [])[:2]
    return {"capture.pickle": pickle.dumps(value, 2)}


def small_text(path: Path) -> Files:
    """Keep the first lines of a table, and the last ones, where totals stand."""
    lines = unpacked(path).split(b"\n")
    wide = max(map(len, lines[:3])) > 8000
    if wide:  # the raw page of ncu: keep the first columns
        lines = [b",".join(line.split(b",")[:40]) for line in lines[:5]]
    return {"capture.csv": b"\n".join([*lines[:25], *lines[-6:]] if len(lines) > 31 else lines)}


def baseline(path: Path) -> Files:
    """Sum a capture up."""
    import gpusight as gs

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "baseline.json"
        gs.baseline(path, file)
        document = json.loads(file.read_bytes())
    for digest in document["digests"]:
        for key in ("ranges", "api", "copies", "findings"):  # kernels sum to a total
            digest[key] = digest[key][:3]
        digest["order"] = digest["order"][:20]
    return {"capture.json": json.dumps(document, indent=0).encode()}


PUBLIC: dict[str, tuple[Callable[[Path], Files], tuple[str, ...]]] = {
    "nsys-sqlite": (small_sqlite, ("nsys/*.sqlite", "public/nsys/*.sqlite")),
    "nsys-rep": (small_nsys_report, ("nsys_rep/*", "public/nsys/*rep", "ranks/*2.nsys-rep")),
    "ncu-rep": (small_ncu_report, ("public/ncu/*",)),
    "ncu-text": (small_text, ("ncu/*.csv.xz", "ncu/*.txt.xz", "public/ncu_csv/*.csv")),
    "torch-json": (
        small_trace,
        ("torch/*.json.gz", "public/torch/*.json*", "public/graphs/*.json.gz"),
    ),
}
_NCU_TEXTS = (
    "kernels_full.raw.csv",
    "gpt_fwd.details.csv",
    "gpt_fwd.details.txt",
    "resnet18_details_live.csv",
)
_OWN: dict[str, tuple[Callable[[Path], Files], tuple[str, ...]]] = {
    "nsys-sqlite": (
        small_sqlite,
        tuple(f"{n}.sqlite" for n in ("graph_node", "gpt_tiny_osrt", "odd_cpu")),
    ),
    "nsys-parquet": (parquet_folder, ("graph_node.sqlite",)),
    "nsys-arrow": (arrow_folder, ("graph_node.sqlite",)),
    "nsys-arrow-file": (arrow_file, ("graph_node.sqlite",)),
    "nsys-rep": (small_nsys_report, ("odd_cpu.nsys-rep", "odd_node.nsys-rep")),
    "ncu-rep": (small_ncu_report, ("graph_whole.ncu-rep.xz", "two_processes.ncu-rep.xz")),
    "torch-json": (small_trace, ("torch_odd.json.gz", "healthy.json.gz")),
    "jax-json": (small_trace, ("jax_graph.trace.json.gz", "jax_small.trace.json.gz")),
    "xplane": (small_xspace, ("jax_graph.xplane.pb", "jax_small.xplane.pb")),
    "snapshot": (small_snapshot, ("memory_snapshot.pickle",)),
    "ncu-text": (small_text, tuple(f"../../../shared/data/ncu/{n}.xz" for n in _NCU_TEXTS)),
    "key-averages": (small_text, ("gpt_small_forward_key_averages.txt", "torch_odd_averages.txt")),
    "baseline": (baseline, ("healthy.json.gz", "dataload.sqlite")),
    "digest": (baseline, ("healthy.json.gz", "dataload.sqlite")),
}
"""What is built of the captures in `tests/data`; the other formats have seeds written by hand."""


def build() -> None:
    """Write the corpus anew."""
    for name, (reduce, captures) in _OWN.items():
        for capture in captures:
            files = reduce(DATA / capture)
            suffix = ".dir" if len(files) > 1 else ""
            stem = Path(capture).name.removesuffix(".xz").removesuffix(".gz")
            target = CORPUS / name / f"{stem}{suffix}"
            target.parent.mkdir(parents=True, exist_ok=True)
            write(files, target)
            print(f"{sum(map(len, files.values())):9,} {target.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    build()
