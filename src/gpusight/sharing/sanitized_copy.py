"""Sanitized copies of captures for sharing: picks the format, has it cleaned, checks the copy."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from gpusight.errors import UsageError
from gpusight.output_files import staged, write_file
from gpusight.pace import read_sidecar, sidecar_path
from gpusight.readers.file_blocks import FileBlocks, head_of
from gpusight.readers.guarded_source import reading
from gpusight.readers.open import nsys_tables, open_trace, stacks_path
from gpusight.sharing.leak_report import (
    OF_PEOPLE,
    TAKES,
    Category,
    Leak,
    ShareOptions,
    Treatment,
    identifying_values,
    joined,
)
from gpusight.sharing.share_nsys import NsysCleaner
from gpusight.sharing.share_stacks import stacks_copy
from gpusight.sniff import BASELINE, JAX_PLANE, NCU_REPORT, NSYS_REPORT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpusight.readers.nsys.raw_tables import RawTables
    from gpusight.sharing.leak_report import Cleaner, LeakScan


TO = ("sqlite", "parquet")
"""Forms of a copy of an nsys capture."""
_HEAD_BYTES = 16_384
_BOM = b"\xef\xbb\xbf"
_SALT_BYTES = 32
_MAX_NEEDLE_BYTES = 4096
_BLOCKS_AT_ONCE = 16
"""Getting ready to look for thousands of values takes as long as looking through megabytes."""
_NAMED_BY_CLOCK = re.compile(r"\d{10}")
"""In names that profilers make of host, process and time: `node7_4711.1700000000000.pt.trace`."""
_ANY_STEM = "capture"
_STACKS_NOTE = "the sampled stacks are in {}: send both files"
_PACE_NOTE = "the step time without the profiler is in {}: send both files"


@dataclass(frozen=True)
class SharedCopy:
    """A sanitized copy for sharing, or the sensitive data found in a capture."""

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

    @property
    def removed(self) -> int:
        """How many values the copy lacks, or would lack."""
        return sum(leak.count for leak in self.leaks if leak.treatment is Treatment.REMOVED)


def options_of(*, hash_names: bool = False, salt: str | None = None) -> ShareOptions:
    """Return the options; a salt is random where none is given, and kept nowhere."""
    if salt == "":
        raise UsageError("the salt is empty", why="anyone could test guesses of names")
    if salt is not None and not hash_names:
        raise UsageError("--salt needs hashed names", hint="add --hash-names")
    key = secrets.token_bytes(_SALT_BYTES) if salt is None else salt.encode()
    return ShareOptions(hash_names=hash_names, salt=key)


def check(capture: Path, options: ShareOptions) -> SharedCopy:
    """List what a capture would reveal; write nothing."""
    with reading(capture):
        scan = cleaner_of(capture, TO[0]).scan(options)
        stacks = stacks_copy(capture, options, scan.numbers)
        scan = scan if stacks is None else joined(scan, stacks[1])
    return SharedCopy(
        capture,
        scan.leaks,
        options.hash_names,
        suspects=scan.suspects,
        notes=scan.notes,
        bytes_before=_size(capture),
    )


def share(
    capture: Path, output: Path | None, options: ShareOptions, *, to: str | None = None
) -> SharedCopy:
    """Write a copy; never onto anything that exists."""
    with reading(capture):
        is_folder = output is not None and output.suffix.lower() in ("", ".parquet")
        form = to or ("parquet" if is_folder else TO[0])
        cleaner = cleaner_of(capture, form)
        if to is not None and not isinstance(cleaner, NsysCleaner):
            what = f"--to is for nsys captures, and {capture.name} is not one"
            raise UsageError(what, hint="leave it")
        target = output or Path(f"{_stem(capture)}.shared{cleaner.suffixes[0]}")
        _check_target(capture, target, cleaner, form)
        pace = read_sidecar(capture)
        with staged(target, replace=False) as part:
            scan = cleaner.write(part, options, name=target.name)
        notes: list[str] = []
        if pace is not None:
            write_file(sidecar_path(target), f"{pace.to_text()}\n".encode())
            notes.append(_PACE_NOTE.format(sidecar_path(target).name))
        stacks = stacks_copy(capture, options, scan.numbers)
        if stacks is not None:
            scan = joined(scan, stacks[1])
        if stacks is not None and stacks[0]:
            write_file(stacks_path(target), stacks[0])
            notes.append(_STACKS_NOTE.format(stacks_path(target).name))
        return SharedCopy(
            capture,
            scan.leaks,
            options.hash_names,
            path=target,
            remains=tuple(_leftovers(scan, target, b"" if stacks is None else stacks[0])),
            suspects=scan.suspects,
            notes=(*scan.notes, *notes),
            bytes_before=_size(capture),
            bytes_after=_size(target),
        )


def cleaner_of(capture: Path, form: str) -> Cleaner:
    """Choose the cleaner by the content of the capture."""
    raw = _nsys_tables(capture)
    if raw is not None:
        return NsysCleaner(raw, form)
    head = head_of(capture, _HEAD_BYTES) if capture.is_file() else b""
    if head.startswith(NCU_REPORT):
        from gpusight.sharing.share_ncu import NcuCleaner

        return NcuCleaner(capture)
    text = head.removeprefix(_BOM).lstrip()
    if BASELINE.match(text):
        raise UsageError(
            f"{capture} is a baseline and has nothing to remove",
            why="its only texts are names of capture files, kernels, ranges, calls and functions",
            hint="check these names and share the file, or save a baseline of sanitized copies",
        )
    if text[:1] in (b"{", b"[") and not JAX_PLANE.match(head):
        from gpusight.sharing.share_torch import TorchCleaner

        return TorchCleaner(capture)
    open_trace(capture, cache=False)  # names what cannot be read at all
    raise UsageError(f"{capture} cannot be shared", why=TAKES)


def _nsys_tables(capture: Path) -> RawTables | None:
    from gpusight.readers.nsys.export_folder import FolderTables, table_files

    if capture.is_dir():
        open_trace(capture, cache=False)
        return FolderTables(capture, table_files(capture))
    if not capture.is_file():
        open_trace(capture, cache=False)
    with capture.open("rb") as file:
        head = file.read(len(NSYS_REPORT))
    return nsys_tables(capture, head, cache=False)


def _stem(capture: Path) -> str:
    """Return the name without its suffix, or another where it reveals host and time."""
    name = capture.name
    known = (".json.gz", ".ncu-rep.xz", ".ncu-rep.gz")
    ending = next((suffix for suffix in known if name.lower().endswith(suffix)), capture.suffix)
    stem = name.removesuffix(name[len(name) - len(ending) :])
    return _ANY_STEM if _NAMED_BY_CLOCK.search(stem) else stem


def _check_target(capture: Path, target: Path, cleaner: Cleaner, form: str) -> None:
    source, resolved = capture.resolve(), target.resolve()
    if resolved == source or source in resolved.parents:
        raise UsageError(f"{target} is the capture itself", hint="choose another name for -o")
    if not resolved.parent.is_dir():
        raise UsageError(f"there is no folder {target.parent}", hint="create it first")
    for path in (target, sidecar_path(target), stacks_path(target)):
        if path.exists() or path.is_symlink():
            raise UsageError(f"{path} exists already", hint="choose another name for -o")
    if form == "parquet" and cleaner.suffixes == (".parquet",):
        return
    if not target.name.lower().endswith(cleaner.suffixes):
        ends = " or ".join(cleaner.suffixes)
        raise UsageError(
            f"{target.name} has the wrong extension for a copy of {capture.name}",
            why=f"it is written as {ends}",
            hint=f"use: -o {_stem(capture)}.shared{cleaner.suffixes[0]}",
        )


def _leftovers(scan: LeakScan, target: Path, stacks: bytes = b"") -> Iterator[Leak]:
    """Search the copy, its name and its stacks for the removed values."""
    values = identifying_values(scan.hidden)
    needles = {value[:_MAX_NEEDLE_BYTES]: category for value, category in values.items()}
    # A capture is named after its command line: only the owner's name would be private.
    people = {value: c for value, c in needles.items() if c in OF_PEOPLE}
    file_name = target.name.encode("utf-8", "surrogateescape")
    contents = chain(_contents(target), [stacks] if stacks else [])
    yield from _count_leaks("names that are kept", contents, needles)
    yield from _count_leaks("name of the file", [file_name], people)


def _count_leaks(
    where: str, texts: Iterable[bytes], needles: Mapping[str, Category]
) -> Iterator[Leak]:
    hits: dict[Category, set[str]] = {}
    for text in texts if needles else ():
        for value in _hits(text, list(needles)):
            hits.setdefault(needles[value], set()).add(value)
    for category, values in hits.items():
        yield Leak(category, where, len(values), Treatment.KEPT)


def _contents(target: Path) -> Iterator[bytes]:
    """Read all of a copy, unpacked, in blocks that overlap."""
    if target.is_dir():
        for file in sorted(target.glob("*.parquet")):
            texts = pl.scan_parquet(file).select(pl.col(pl.String).unique().implode()).collect()
            for column in texts.get_columns():
                values = column.explode().drop_nulls().to_list()
                yield "\n".join(values).encode()
        return
    blocks = iter(FileBlocks(target))
    overlap = b""
    while data := b"".join(islice(blocks, _BLOCKS_AT_ONCE)):
        yield overlap + data
        overlap = data[-_MAX_NEEDLE_BYTES:]


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
