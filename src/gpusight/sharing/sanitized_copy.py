"""Sanitized copies of captures for sharing: picks the format, has it cleaned, checks the copy."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from gpusight.errors import UsageError
from gpusight.output_files import staged
from gpusight.readers.file_blocks import FileBlocks, head_of
from gpusight.readers.guarded_source import reading
from gpusight.readers.open import open_trace
from gpusight.sharing.leak_report import TAKES, Category, Leak, ShareOptions, Treatment
from gpusight.sharing.leak_tally import identifying_values
from gpusight.sharing.share_nsys import NsysCleaner
from gpusight.sniff import BASELINE, JAX_PLANE, NCU_REPORT, NSYS_REPORT, SQLITE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpusight.readers.nsys.raw_tables import RawTables
    from gpusight.sharing.leak_report import Cleaner, LeakScan


TO = ("sqlite", "parquet")
"""Forms of a copy of an nsys capture."""
_HEAD_BYTES = 16_384
_ARROW_STREAM = b"\xff\xff\xff\xff"
_BOM = b"\xef\xbb\xbf"
_SALT_BYTES = 32
_MAX_NEEDLE_BYTES = 4096
_BLOCKS_AT_ONCE = 16
"""Getting ready to look for thousands of values takes as long as looking through megabytes."""
_NAMED_BY_CLOCK = re.compile(r"\d{10}")
"""In names that profilers make of host, process and time: `node7_4711.1700000000000.pt.trace`."""
_ANY_STEM = "capture"
_OF_PEOPLE = (Category.HOST_NAMES, Category.USER_NAMES)


@dataclass(frozen=True)
class SharedCopy:
    """A copy that was made, or what a capture would give away without one."""

    capture: Path
    leaks: tuple[Leak, ...]
    hash_names: bool
    path: Path | None = None
    """Where the copy lies; None where nothing was written."""
    remains: tuple[Leak, ...] = ()
    """Left-out values that are found in the copy after all, as part of a name that was kept."""
    suspects: tuple[Leak, ...] = ()
    """Names that are kept although they look like a path, an address or a key."""
    notes: tuple[str, ...] = ()
    bytes_before: int = 0
    bytes_after: int = 0


def options_of(*, hash_names: bool = False, salt: str | None = None) -> ShareOptions:
    """Give the options; a salt is random where none is given, and kept nowhere."""
    if salt == "":
        raise UsageError("the salt is empty", why="anyone could test guesses of names")
    if salt is not None and not hash_names:
        raise UsageError("a salt is for names that are hashed", hint="add --hash-names")
    given = secrets.token_bytes(_SALT_BYTES) if salt is None else salt.encode()
    return ShareOptions(hash_names=hash_names, salt=given)


def check(capture: Path, options: ShareOptions) -> SharedCopy:
    """Say what a capture would give away; writes nothing."""
    with reading(capture):
        found = cleaner_of(capture, TO[0]).look(options)
    return SharedCopy(
        capture,
        found.leaks,
        options.hash_names,
        suspects=found.suspects,
        notes=found.notes,
        bytes_before=_size(capture),
    )


def share(
    capture: Path, output: Path | None, options: ShareOptions, *, to: str | None = None
) -> SharedCopy:
    """Write a copy; never onto anything that exists."""
    with reading(capture):
        return _share(capture, output, options, to)


def _share(capture: Path, output: Path | None, options: ShareOptions, to: str | None) -> SharedCopy:
    form = to or _form(output)
    cleaner = cleaner_of(capture, form)
    if to is not None and not isinstance(cleaner, NsysCleaner):
        raise UsageError(f"--to is for nsys captures, and {capture.name} is none", hint="leave it")
    target = output or Path(f"{_stem(capture)}.shared{cleaner.suffixes[0]}")
    _check_target(capture, target, cleaner, form)
    with staged(target, replace=False) as part:
        found = cleaner.write(part, options, name=target.name)
    return SharedCopy(
        capture,
        found.leaks,
        options.hash_names,
        path=target,
        remains=tuple(_leftovers(found, target)),
        suspects=found.suspects,
        notes=found.notes,
        bytes_before=_size(capture),
        bytes_after=_size(target),
    )


def cleaner_of(capture: Path, form: str) -> Cleaner:
    """Tell by its content what knows the capture."""
    raw = _nsys_tables(capture)
    if raw is not None:
        return NsysCleaner(raw, form)
    head = head_of(capture, _HEAD_BYTES) if capture.is_file() else b""
    if head.startswith(NCU_REPORT):
        from gpusight.sharing.share_ncu import NcuCleaner

        return NcuCleaner(capture)
    text = head.removeprefix(_BOM).lstrip()
    if BASELINE.match(text):
        raise _is_baseline(capture)
    if text[:1] in (b"{", b"[") and not JAX_PLANE.match(head):
        from gpusight.sharing.share_torch import TorchCleaner

        return TorchCleaner(capture)
    open_trace(capture, cache=False)  # names what cannot be read at all
    raise UsageError(f"{capture} cannot be shared", why=TAKES)


def _is_baseline(capture: Path) -> UsageError:
    return UsageError(
        f"{capture} is a baseline, and has nothing that share removes",
        why="its only texts are names of capture files, kernels, ranges, calls and functions",
        hint="look at them and send it as it is, or save one of shared copies",
    )


def _nsys_tables(capture: Path) -> RawTables | None:
    from gpusight.readers.nsys.export_folder import FolderTables, table_files

    if capture.is_dir():
        open_trace(capture, cache=False)
        return FolderTables(capture, table_files(capture))
    if not capture.is_file():
        open_trace(capture, cache=False)
    with capture.open("rb") as file:
        head = file.read(len(NSYS_REPORT))
    if head.startswith(SQLITE):
        from gpusight.readers.nsys.sqlite_export import SqliteTables

        return SqliteTables(capture)
    if head.startswith(NSYS_REPORT):
        from gpusight.readers.nsys.native_report import ReportTables

        return ReportTables(capture, cache=False)
    if head.startswith(_ARROW_STREAM) and capture.suffix.lower() != ".qdstrm":
        return FolderTables.from_arrow_file(capture)
    return None


def _form(output: Path | None) -> str:
    return "parquet" if output is not None and output.suffix.lower() in ("", ".parquet") else TO[0]


def _stem(capture: Path) -> str:
    """Give the name without what says its form, or another where it says host and time."""
    name = capture.name
    known = (".json.gz", ".ncu-rep.xz", ".ncu-rep.gz")
    ending = next((suffix for suffix in known if name.lower().endswith(suffix)), capture.suffix)
    stem = name.removesuffix(name[len(name) - len(ending) :])
    return _ANY_STEM if _NAMED_BY_CLOCK.search(stem) else stem


def _check_target(capture: Path, target: Path, cleaner: Cleaner, form: str) -> None:
    source, there = capture.resolve(), target.resolve()
    if there == source or source in there.parents:
        raise UsageError(f"{target} is the capture itself", hint="choose another name for -o")
    if not there.parent.is_dir():
        raise UsageError(f"there is no folder {target.parent}", hint="make it first")
    if target.exists() or target.is_symlink():
        raise UsageError(f"{target} exists already", hint="choose another name for -o")
    if form == "parquet" and cleaner.suffixes == (".parquet",):
        return
    if not target.name.lower().endswith(cleaner.suffixes):
        ends = " or ".join(cleaner.suffixes)
        raise UsageError(
            f"the copy of {capture.name} cannot be called {target.name}",
            why=f"it is written as {ends}",
            hint=f"name it so: -o {_stem(capture)}.shared{cleaner.suffixes[0]}",
        )


def _leftovers(found: LeakScan, target: Path) -> Iterator[Leak]:
    """Look in the copy, and in its name, for what was left out of it."""
    told = identifying_values(found.hidden)
    needles = {value[:_MAX_NEEDLE_BYTES]: category for value, category in told.items()}
    # A capture is called as its command line says: only whose it is would tell something.
    people = {value: c for value, c in needles.items() if c in _OF_PEOPLE}
    yield from _counted("names that are kept", _contents(target), needles)
    yield from _counted("name of the file", [_name(target)], people)


def _counted(where: str, texts: Iterable[bytes], needles: Mapping[str, Category]) -> Iterator[Leak]:
    hits: dict[Category, set[str]] = {}
    for text in texts if needles else ():
        for value in _hits(text, list(needles)):
            hits.setdefault(needles[value], set()).add(value)
    for category, values in hits.items():
        yield Leak(category, where, len(values), Treatment.KEPT)


def _name(target: Path) -> bytes:
    return target.name.encode("utf-8", "surrogateescape")


def _contents(target: Path) -> Iterator[bytes]:
    """Give all of a copy, unpacked, in blocks that overlap."""
    if target.is_dir():
        for file in sorted(target.glob("*.parquet")):
            texts = pl.scan_parquet(file).select(pl.col(pl.String).unique().implode()).collect()
            for column in texts.get_columns():
                values = column.explode().drop_nulls().to_list()
                yield "\n".join(values).encode()
        return
    blocks = iter(FileBlocks(target))
    before = b""
    while some := b"".join(islice(blocks, _BLOCKS_AT_ONCE)):
        yield before + some
        before = some[-_MAX_NEEDLE_BYTES:]


def _hits(text: bytes, needles: list[str]) -> list[str]:
    """Find needles; bytes are searched as if they were Latin letters, one a byte."""
    spelled = {needle.encode().decode("latin-1"): needle for needle in needles}
    quoted = ((json.dumps(needle, ensure_ascii=False)[1:-1], needle) for needle in needles)
    spelled |= {text.encode().decode("latin-1"): needle for text, needle in quoted}
    line = pl.Series([text.decode("latin-1")])
    hits = line.str.extract_many(list(spelled), overlapping=True).to_list()[0]
    return [spelled[hit] for hit in set(hits)]


def _size(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files)
