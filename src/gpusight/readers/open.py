"""Open a capture: the reader is chosen by the file's content."""

from __future__ import annotations

import contextlib
import re
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpusight.errors import CaptureError, DamagedCaptureError, NotACaptureError
from gpusight.pace import read_sidecar
from gpusight.readers.cache_folder import protect_capture
from gpusight.readers.guarded_source import GuardedSource, capture_identity, file_status, reading
from gpusight.readers.stacks.imported_stacks import is_folded, is_speedscope
from gpusight.sniff import (
    ARROW_STREAM,
    BOM,
    GZIP,
    JAX_PLANE,
    LOG_BYTES,
    NCU_MESSAGE,
    NCU_PRINTED,
    NCU_REPORT,
    NSYS_REPORT,
    PICKLE,
    SQLITE,
    STACKS_SUFFIX,
    XZ,
    ZSTANDARD,
    contains_pattern,
    inflated_head,
    is_capture_name,
    not_a_capture,
    sidecar_owner,
)
from gpusight.trace.trace import Trace

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from gpusight.readers.nsys.raw_tables import RawTables
    from gpusight.trace.trace import TraceSource


_SNIFF_BYTES = 16_384
_MAX_PROFILES_LISTED = 1000
_KEY_AVERAGES = "Self CPU"
"""A heading of the table that `key_averages().table()` prints, in every version of PyTorch."""
_NCU_PAGE = re.compile(rb"\s*\[\d+\] [^\n]*@[^\n]*\n")
"""How a page of Nsight Compute begins; a list in JSON could not go on like this."""
_NCU_ROWS = re.compile(rb'"?\d+"?[,;\t][^\n]*?\(\d+, *\d+, *\d+\)"?[,;\t]"?\(\d+, *\d+, *\d+\)')
"""A launch with the sizes of its block and grid, as in the rows of a CSV."""
_PROTOBUF_FIELD_1 = b"\x0a"
_REPORTS = {".nsys-rep": "nsys", ".qdrep": "nsys", ".ncu-rep": "ncu", ".ncu-repz": "ncu"}
_PACKINGS = {GZIP: ("gzip", "gunzip"), XZ: ("xz", "xz -d"), ZSTANDARD: ("Zstandard", "zstd -d")}
"""How files are packed, and what unpacks them."""
# Starts of other files that people pass by mistake: what they are and what to do instead.
_FOREIGN = (
    (
        b"version https://git-lfs",
        "is a Git LFS pointer, not the capture",
        "fetch the file itself with: git lfs pull",
    ),
    (b"PK\x03\x04", "is a zip archive", "unpack it first"),
    (
        b"PERFILE2",
        "is a recording of perf",
        "print it as text first: perf script -i FILE > FILE.perf",
    ),
    (
        b"\x89HDF",
        "is an HDF5 export",
        "export SQLite instead: nsys export --type sqlite X.nsys-rep",
    ),
    (
        b"PAR1",
        "is one Parquet file",
        "pass the folder of nsys export --type parquetdir, or a job trace to: gpusight ranks",
    ),
)


def open_trace(path: str | os.PathLike[str], *, cache: bool = True) -> Trace:
    """Open a capture. Only its first bytes are read yet; the file is never written to."""
    location = Path(path)
    with contextlib.suppress(RuntimeError):  # no such user: then the tilde is part of the name
        location = location.expanduser()
    with reading(location):
        protect_capture(location)
        files = file_status(location)
        inner = _with_stacks(capture_source(location, cache=cache), location)
        source = GuardedSource(inner, location, files)
        if cache:
            from gpusight.readers.column_cache import CachedSource

            cached = CachedSource(source, location, capture_identity(location, files))
            source.check()
            trace = Trace(cached, cached)
        else:
            trace = Trace(source)
        # The step time without a profiler, where the recorder wrote it next to the capture.
        trace.stored_pace = read_sidecar(location)
        return trace


def stacks_path(capture: Path) -> Path:
    """Return where the sampled stacks of a capture are."""
    return capture.with_name(capture.name + STACKS_SUFFIX)


def _with_stacks(source: TraceSource, capture: Path) -> TraceSource:
    """Add the stacks that the recorder sampled, where they are next to the capture."""
    path = stacks_path(capture)
    try:
        if not path.is_file():
            return source
        from gpusight.recording.inside.stack_sampler import MAGIC

        with path.open("rb") as file:
            is_ours = file.read(len(MAGIC)) == MAGIC
    except OSError:  # it cannot be read, or the name is too long for a file
        return source
    if not is_ours:
        return source
    from gpusight.readers.stacks.sampled_stacks import StackedSource

    return StackedSource(source, path)


def capture_source(path: Path, *, cache: bool) -> TraceSource:
    """Choose the reader of a capture, without the files next to it."""
    if path.is_dir():
        return _nsys_source(_folder_tables(path))
    if not path.exists():
        raise CaptureError(f"no such file: {path}", hint="check the path")
    if not path.is_file():
        raise NotACaptureError(
            f"{path} is not a regular file", hint="copy it to a regular file first"
        )
    owner = sidecar_owner(path.name)
    if owner is not None and path.with_name(owner).exists():
        raise NotACaptureError(
            f"{path} belongs to the capture {owner} and is read with it",
            hint=f"pass {path.with_name(owner)}",
        )
    with path.open("rb") as file:
        head = file.read(_SNIFF_BYTES)
    if not head:
        raise DamagedCaptureError(f"{path} is empty", hint="copy or capture it again")
    if head.startswith(SQLITE[: len(head)]) and len(head) < len(SQLITE):
        raise DamagedCaptureError(f"{path} is cut off", why=f"it has only {len(head)} bytes")
    raw = nsys_tables(path, head, cache=cache)
    return _nsys_source(raw) if raw is not None else _other_source(path, head)


def _nsys_source(raw: RawTables) -> TraceSource:
    from gpusight.readers.nsys.nsys_source import NsysSource

    return NsysSource(raw)


def nsys_tables(path: Path, head: bytes, *, cache: bool) -> RawTables | None:
    """Open a file that nsys wrote, by its first bytes; None for those of other tools."""
    if head.startswith(SQLITE):
        from gpusight.readers.nsys.sqlite_export import SqliteTables

        return SqliteTables(path)
    if head.startswith(NSYS_REPORT):
        from gpusight.readers.nsys.native_report import ReportTables

        return ReportTables(path, cache=cache)
    if head.startswith(ARROW_STREAM) and path.suffix.lower() != ".qdstrm":
        from gpusight.readers.nsys.export_folder import FolderTables

        return FolderTables.from_arrow_file(path)
    return None


def _other_source(path: Path, head: bytes) -> TraceSource:
    """Open what ncu, PyTorch and JAX write; a compressed file is recognized by its content."""
    packing = next(
        (packing for magic, packing in _PACKINGS.items() if head.startswith(magic)), None
    )
    start = FileStart(path, _unpacked(path, head, packing[0]) if packing else head)
    for recognizes, reader in READERS:
        if recognizes(start):
            module, _, name = reader.partition(":")
            source: TraceSource = getattr(import_module(f"gpusight.readers.{module}"), name)(path)
            return source
    raise _packed_error(path, start.text, *packing) if packing else _unknown_error(path, head)


class FileStart(NamedTuple):
    """How a file begins, decompressed: what readers recognize their files by."""

    path: Path
    text: bytes

    @property
    def letters(self) -> bytes:
        """The text without the zeros that UTF-16 has between its letters."""
        return self.text.removeprefix(BOM).replace(b"\0", b"")

    def is_json(self) -> bool:
        """Find an object or list; the length of a JAX profile's first plane may look like one."""
        start = self.text.removeprefix(BOM).lstrip()[:1]
        return start in (b"{", b"[") and not JAX_PLANE.match(self.text)

    def is_perf_script(self) -> bool:
        """Whether `perf script` printed it."""
        from gpusight.readers.stacks.perf_script import is_perf_script

        return is_perf_script(self.text)

    def is_speedscope(self) -> bool:
        """Find JSON that names speedscope's format, or has its shared frames."""
        return self.is_json() and is_speedscope(self.text)

    def is_ncu_table(self) -> bool:
        """Look for the heading of a table that ncu prints."""
        return not JAX_PLANE.match(self.text) and bool(NCU_PRINTED.search(self.letters))

    def is_ncu_log(self) -> bool:
        """Look for messages of ncu, or for one of its tables further down."""
        if JAX_PLANE.match(self.text):
            return False
        return bool(NCU_MESSAGE.search(self.letters)) or self._holds(NCU_PRINTED)

    def is_key_averages(self) -> bool:
        """Look for a heading of `key_averages`, wherever a log put the table."""
        headings = [_KEY_AVERAGES.encode(code) for code in ("utf-8", "utf-16-le", "utf-16-be")]
        if any(heading in self.text for heading in headings):
            return True
        return self._holds(re.compile(headings[0]))

    def _holds(self, pattern: re.Pattern[bytes]) -> bool:
        """Look for the beginning of a table in a log that begins with something else."""
        if b"\0" in self.text or len(self.text) < _SNIFF_BYTES:
            return False
        from gpusight.readers.file_blocks import BLOCK_BYTES, FileBlocks

        blocks = islice(FileBlocks(self.path), LOG_BYTES // BLOCK_BYTES)
        return contains_pattern(pattern, blocks)


_NCU_TEXT = "ncu.text_source:ncu_csv_source"
READERS: tuple[tuple[Callable[[FileStart], object], str], ...] = (
    (lambda start: start.text.startswith(NCU_REPORT), "ncu.ncu_report:NcuSource"),
    (lambda start: _NCU_PAGE.match(start.letters), _NCU_TEXT),
    (FileStart.is_speedscope, "stacks.imported_stacks:speedscope_source"),
    (FileStart.is_json, "chrome_source:ChromeSource"),
    (lambda start: start.text.startswith(PICKLE), "torch.memory_snapshot:snapshot_source"),
    (FileStart.is_ncu_table, _NCU_TEXT),
    (FileStart.is_key_averages, "torch.key_averages:key_averages_source"),
    (FileStart.is_ncu_log, _NCU_TEXT),
    (lambda start: start.text.startswith(_PROTOBUF_FIELD_1), "jax.jax_profile:xplane_source"),
    (lambda start: is_folded(start.text), "stacks.imported_stacks:folded_source"),
    (FileStart.is_perf_script, "stacks.perf_script:perf_source"),
)
"""How files are recognized, in this order, and their reader: a module of `readers` and what is
called with the path. The forms of Nsight Systems are recognized before and share one reader."""


def _unpacked(path: Path, head: bytes, form: str) -> bytes:
    """Return the first decompressed bytes of a file."""
    from gpusight.readers.file_blocks import head_of

    text = inflated_head(head) if head.startswith(GZIP) else head_of(path, _SNIFF_BYTES)
    if text is None:
        raise DamagedCaptureError(
            f"{path} cannot be unpacked", why=f"it is not valid {form}", hint="copy it again"
        )
    if not text:
        raise DamagedCaptureError(
            f"{path} is cut off", why=f"it has only {len(head)} bytes", hint="copy it again"
        )
    return text


def _packed_error(path: Path, text: bytes, form: str, command: str) -> CaptureError:
    """Return the error for a compressed file that no reader knows."""
    if text.startswith((SQLITE, NSYS_REPORT)):
        what = f"is a {form}-compressed Nsight Systems capture"
        return NotACaptureError(f"{path} {what}", hint=f"unpack it first: {command}")
    return NotACaptureError(
        f"{path} is {form}-compressed, but contains no capture that gpusight can read",
        hint=f"unpack it and check its contents: {command}",
    )


def _unknown_error(path: Path, head: bytes) -> CaptureError:
    """Return the error for a file that no reader knows, with a remedy for well-known ones."""
    for magic, what, remedy in _FOREIGN:
        if head.startswith(magic):
            return NotACaptureError(f"{path} {what}", hint=remedy)
    if path.suffix.lower() == ".qdstrm":
        return NotACaptureError(
            f"{path} is an unprocessed nsys stream",
            hint=f"convert it with: QdstrmImporter -i {path.name} (part of nsys)",
        )
    if _NCU_ROWS.match(FileStart(path, head).letters):
        return DamagedCaptureError(
            f"{path} cannot be read",
            why="it has Nsight Compute CSV rows, but no header",
            hint="export it again with: ncu --import REPORT --csv",
        )
    tool = _REPORTS.get(path.suffix.lower())
    if tool is not None:
        return DamagedCaptureError(
            f"{path} is not an {tool} report", why="its header is missing", hint="copy it again"
        )
    return not_a_capture(path)


def _folder_tables(path: Path) -> RawTables:
    from gpusight.readers.nsys.export_folder import FolderTables, table_files

    files = table_files(path)
    if "StringIds" in files or any(name.startswith("CUPTI_") for name in files):
        return FolderTables(path, files)
    inside = sorted(f.name for f in path.iterdir() if is_capture_name(f))
    # jax.profiler.trace(FOLDER) writes into subfolders.
    profiles = islice(path.glob("plugins/profile/*/*.xplane.pb"), _MAX_PROFILES_LISTED)
    inside = inside or sorted(str(f.relative_to(path)) for f in profiles)
    if inside:
        more = f" and {len(inside) - 3} more" if len(inside) > 3 else ""
        raise NotACaptureError(
            f"{path} is a folder of captures",
            hint=f"pass one of them: {', '.join(inside[:3])}{more}",
        )
    raise NotACaptureError(
        f"{path} is a folder without a capture",
        hint="gpusight reads folders written by: nsys export --type parquetdir",
    )
