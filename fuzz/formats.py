"""The formats: how an input is edited, and which parser reads it before any table is built."""

from __future__ import annotations

import contextlib
import json
import zlib
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fuzz.mutate.columnar import edit_file, edit_folder
from fuzz.mutate.protobuf import edit_ncu_report, edit_nsys_report, edit_xspace
from fuzz.mutate.raw import integer
from fuzz.mutate.sampled_stacks import edit_sampled_stacks
from fuzz.mutate.sqlite import edit_sqlite
from fuzz.mutate.text import edit_name, edit_table, edit_toml
from fuzz.mutate.tree import edit_json, edit_pickle, edit_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random
    from typing import Any

Files: TypeAlias = "dict[str, bytes]"
"""Files of an input by name: one, or those of a folder."""


class Format(NamedTuple):
    """One format that gpusight reads."""

    name: str
    file: str | None
    """What the file of an input is called; None for folders."""
    edit: Callable[[Random, bytes], bytes]
    """Edits the file, or in a folder any file of its kind."""
    parse: Callable[[Path], object]
    """The parser alone, which costs a fraction of reading every table."""
    capture: bool = True
    """It opens as a capture: every table and command reads it too."""

    def edited(self, rng: Random, files: Files) -> Files:
        """Make an input of a seed."""
        if self.file is None:
            return edit_folder(rng, files)
        (content,) = files.values()
        return {self.file: self.edit(rng, content)}


# Parsers ------------------------------------------------------------------------------------------


def _sqlite(path: Path) -> object:
    """Read the schema and all columns of two tables, chosen by the content."""
    from gpusight.readers.nsys.sqlite_export import SqliteTables

    export = SqliteTables(path)
    names = sorted(export.tables())
    start = zlib.crc32(path.read_bytes()) % len(names)
    return [
        export.read(name, sorted(export.columns(name))) for name in (names * 2)[start : start + 2]
    ]


def _folder(path: Path) -> object:
    from gpusight.readers.nsys.export_folder import FolderTables, table_files

    files = table_files(path)
    if not files:
        return None
    export = FolderTables(path, files)
    names = sorted(files)
    start = zlib.crc32(b"".join(f.read_bytes() for f in files.values())) % len(names)
    return [
        export.read(name, sorted(export.columns(name))) for name in (names * 2)[start : start + 2]
    ]


def _arrow_file(path: Path) -> object:
    from gpusight.readers.nsys.columnar_files import find_streams

    return find_streams(path)


def _nsys_report(path: Path) -> object:
    from gpusight.readers.nsys.native_report import RepTables

    with RepTables(path) as report:
        return report.row_count("CUPTI_ACTIVITY_KIND_KERNEL")


def _ncu_report(path: Path) -> object:
    from gpusight.readers.ncu.ncu_report import NcuSource as Report

    report = Report(path)
    try:
        return report.meta
    finally:
        report.close()


def _ncu_text(path: Path) -> object:
    from gpusight.readers.ncu.text_metrics import CollectedValues as Collected
    from gpusight.readers.ncu.text_pages import PrintedFile as Walk
    from gpusight.readers.ncu.text_source import PrintedText as Text

    walk = Walk(Collected())
    for piece in Text(path):
        walk.read(piece)
    walk.finish()
    return walk


def _chrome(path: Path) -> object:
    from gpusight.readers.chrome_source import scan_trace as scan

    return scan(path)


def _xspace(path: Path) -> object:
    from gpusight.readers.jax.xspace import read_space
    from gpusight.readers.protobuf_wire import WireError

    try:
        return read_space(memoryview(path.read_bytes()))
    except WireError:  # what the reader above it catches
        return None


def _snapshot(path: Path) -> object:
    from gpusight.readers.torch.unpickle import load_plain

    return load_plain(path)


def _stacks(path: Path) -> object:
    from gpusight.readers.open import open_trace

    return open_trace(path, cache=False).meta


def _sampled_stacks(path: Path) -> object:
    """Read all of it, with the capture that it was sampled with."""
    import polars as pl

    from gpusight.readers.stacks.sampled_stacks import StackedSource
    from gpusight.readers.tables import FrameSource, as_table
    from gpusight.trace.trace import Meta

    frames = {
        "processes": pl.DataFrame({"process": [1], "pid": [7]}),
        "threads": pl.DataFrame({"thread": [70], "process": [1], "tid": [7]}),
    }
    meta = Meta(path="x", source="test", tool="test", duration_ns=10**9, session="s")
    tables = {name: as_table(name, frame) for name, frame in frames.items()}
    stacked = StackedSource(FrameSource.of(meta, tables), path)
    return stacked.meta, stacked.has("stack_samples"), stacked.outline()


def _key_averages(path: Path) -> object:
    from gpusight.readers.torch.key_averages import key_averages_source

    return key_averages_source(path).meta


def _config(path: Path) -> object:
    from gpusight.comparison.gate_limits import load_config
    from gpusight.errors import UsageError

    try:
        return load_config(path)
    except UsageError:
        return load_config(path, "train")


def _baseline(path: Path) -> object:
    from gpusight.comparison.baseline_file import load_baseline

    return load_baseline(path)


def _digest(path: Path) -> object:
    """Hold the digests against themselves, and against those of the seed."""
    import gpusight as gs
    from gpusight.comparison.baseline_file import load_baseline

    digests = load_baseline(path)
    limits = {"step_time": "+5%", "kernel_time": "-1%", "memory_peak": "70GB", "idle": "+1ms"}
    return gs.gate(digests, baseline=digests, limits=limits, allow_missing=True).to_text()


def _orion(path: Path) -> object:
    import gpusight as gs

    return gs.orion_check(path).to_text()


def _timings(path: Path) -> object:
    from gpusight.analysis.questions.forward_time import read_timings

    return read_timings(path.read_text("utf-8", "replace"), path.name)


def _names(path: Path) -> object:
    """Read a text as everything that a name or a command-line value may be."""
    from gpusight.analysis.steps.step_list import parse_steps as read_steps
    from gpusight.analysis.steps.step_list import parse_window as read_window
    from gpusight.comparison.gate_limits import read_limit
    from gpusight.errors import GpusightError
    from gpusight.naming.demangle import demangle
    from gpusight.naming.kernel_names import classify

    text = path.read_bytes().decode("utf-8", "replace")
    demangle(text)
    classify(text)
    for read in (read_steps, read_window, read_limit):
        with contextlib.suppress(GpusightError):
            read(text)
    return text


# Edits of one format only -------------------------------------------------------------------------


def _edit_digest(rng: Random, data: bytes) -> bytes:
    """Change numbers of a baseline and leave it whole, so that most still load."""
    document = json.loads(data)
    if rng.random() < 0.2:
        return json.dumps(edit_tree(rng, document)).encode("utf-8", "surrogatepass")
    digest = rng.choice(document["digests"])
    for key in rng.sample(sorted(digest), rng.choice((1, 2, 4))):
        digest[key] = _scaled(rng, digest[key], rng.choice((0, 2, 1e-6, 1e6, -1, integer(rng))))
    return json.dumps(document).encode()


def _scaled(rng: Random, value: Any, factor: float) -> Any:
    if isinstance(value, dict):
        return {key: _scaled(rng, inner, factor) for key, inner in value.items()}
    if isinstance(value, list):
        return [_scaled(rng, inner, factor) for inner in value]
    return (
        value * factor if isinstance(value, (int, float)) and not isinstance(value, bool) else value
    )


FORMATS = {
    one.name: one
    for one in (
        Format("nsys-sqlite", "capture.sqlite", edit_sqlite, _sqlite),
        Format("nsys-parquet", None, edit_file, _folder),
        Format("nsys-arrow", None, edit_file, _folder),
        Format("nsys-arrow-file", "capture.arrow", edit_file, _arrow_file),
        Format("nsys-rep", "capture.nsys-rep", edit_nsys_report, _nsys_report),
        Format("ncu-rep", "capture.ncu-rep", edit_ncu_report, _ncu_report),
        Format("ncu-text", "capture.csv", edit_table, _ncu_text),
        Format("torch-json", "capture.json", edit_json, _chrome),
        Format("jax-json", "capture.trace.json", edit_json, _chrome),
        Format("xplane", "capture.xplane.pb", edit_xspace, _xspace),
        Format("snapshot", "capture.pickle", edit_pickle, _snapshot),
        Format("key-averages", "capture.txt", edit_table, _key_averages),
        Format("stacks", "capture.folded", edit_table, _stacks),
        Format("speedscope", "capture.json", edit_json, _stacks),
        Format(
            "sampled-stacks",
            "capture.stacks",
            edit_sampled_stacks,
            _sampled_stacks,
            capture=False,
        ),
        Format("config", "gpusight.toml", edit_toml, _config, capture=False),
        Format("baseline", "baseline.json", edit_json, _baseline, capture=False),
        Format("digest", "baseline.json", _edit_digest, _digest, capture=False),
        Format("orion", "kernels.csv", edit_table, _orion, capture=False),
        Format("timings", "timings.csv", edit_table, _timings, capture=False),
        Format("names", "name.txt", edit_name, _names, capture=False),
    )
}
