"""Tell what a path is by its content, and open it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.errors import CaptureError, DamagedCaptureError, NotACaptureError
from gpusight.evidence import CAPTURE_SUFFIXES
from gpusight.model.trace import Trace

if TYPE_CHECKING:
    import os

    from gpusight.readers.nsys.raw import RawTables

_SNIFF_BYTES = 256
_SQLITE = b"SQLite format 3\x00"
_NSYS_REPORT = b"NVIDIA Tegra Profiler Report "
_ARROW_STREAM = b"\xff\xff\xff\xff"
# Starts of other files that people pass by mistake: what they are and what to do instead.
_FOREIGN = (
    (
        b"version https://git-lfs",
        "is a Git LFS pointer, not the capture",
        "fetch the file itself with: git lfs pull",
    ),
    (b"NVR\x00", "is an Nsight Compute report", "this version reads Nsight Systems captures"),
    (b"\x1f\x8b", "is gzip-compressed", "unpack it with gunzip first"),
    (b"PK\x03\x04", "is a zip archive", "unpack it first"),
    (b"\xfd7zXZ\x00", "is xz-compressed", "unpack it with: xz -d"),
    (b"\x28\xb5\x2f\xfd", "is Zstandard-compressed", "unpack it with: zstd -d"),
    (b"\x89HDF", "is an HDF5 export", "make a SQLite one: nsys export --type sqlite X.nsys-rep"),
    (b"PAR1", "is one Parquet file", "pass the folder that nsys export --type parquetdir made"),
)


def open_trace(path: str | os.PathLike[str], *, cache: bool = True) -> Trace:
    """Open a capture. Nothing is read yet but what tells its kind; the file is never written to."""
    from gpusight.readers.cache import CachedSource
    from gpusight.readers.nsys.source import NsysSource

    location = _expanded(Path(path))
    try:
        raw = _raw_tables(location, cache=cache)
        source = NsysSource(raw)
        if not cache:
            return Trace(source)
        cached = CachedSource(source, location)
        return Trace(cached, cached)
    except PermissionError as error:
        raise CaptureError(
            f"{location} cannot be read", why="permission denied", hint="check its access rights"
        ) from error
    except OSError as error:
        raise CaptureError(
            f"{location} cannot be read", why=error.strerror or str(error)
        ) from error


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:  # a user who does not exist: then the tilde is part of the name
        return path


def _raw_tables(path: Path, *, cache: bool) -> RawTables:
    if path.is_dir():
        return _folder_tables(path)
    if not path.exists():
        raise CaptureError(f"no such file: {path}", hint="check the path")
    if not path.is_file():
        raise NotACaptureError(f"{path} is not a regular file", hint="copy it into one first")
    with path.open("rb") as file:
        head = file.read(_SNIFF_BYTES)
    if not head:
        raise DamagedCaptureError(f"{path} is empty", hint="copy or capture it again")
    if head.startswith(_SQLITE[: len(head)]) and len(head) < len(_SQLITE):
        raise DamagedCaptureError(f"{path} is cut off", why=f"it has only {len(head)} bytes")
    return _file_tables(path, head, cache=cache)


def _file_tables(path: Path, head: bytes, *, cache: bool) -> RawTables:
    if head.startswith(_SQLITE):
        from gpusight.readers.nsys.sqlite import SqliteTables

        return SqliteTables(path)
    if head.startswith(_NSYS_REPORT):
        from gpusight.readers.nsys.report import ReportTables

        return ReportTables(path, cache=cache)
    if head.startswith(_ARROW_STREAM) and path.suffix.lower() != ".qdstrm":
        from gpusight.readers.nsys.folder import FolderTables

        return FolderTables.from_arrow_file(path)
    raise _foreign(path, head)


def _foreign(path: Path, head: bytes) -> CaptureError:
    for magic, what, remedy in _FOREIGN:
        if head.startswith(magic):
            return NotACaptureError(f"{path} {what}", hint=remedy)
    if path.suffix.lower() == ".qdstrm":
        return NotACaptureError(
            f"{path} is an unprocessed nsys stream",
            hint=f"turn it into a report with: QdstrmImporter -i {path.name} (part of nsys)",
        )
    if path.suffix.lower() in {".nsys-rep", ".qdrep"}:
        return DamagedCaptureError(
            f"{path} is not an nsys report", why="its header is missing", hint="copy it again"
        )
    if head.lstrip()[:1] in (b"{", b"["):
        return NotACaptureError(
            f"{path} is JSON", hint="this version reads nsys captures: .sqlite, .nsys-rep, .qdrep"
        )
    return NotACaptureError(
        f"{path} is not a capture that gpusight knows",
        hint="it reads nsys .sqlite, .nsys-rep, .qdrep, and parquetdir or arrow exports",
    )


def _folder_tables(path: Path) -> RawTables:
    from gpusight.readers.nsys.folder import FolderTables, table_files

    files = table_files(path)
    if "StringIds" in files or any(name.startswith("CUPTI_") for name in files):
        return FolderTables(path, files)
    inside = sorted(f.name for f in path.iterdir() if f.suffix.lower() in CAPTURE_SUFFIXES)
    if inside:
        more = f" and {len(inside) - 3} more" if len(inside) > 3 else ""
        raise NotACaptureError(
            f"{path} is a folder of captures", hint=f"name one: {', '.join(inside[:3])}{more}"
        )
    raise NotACaptureError(
        f"{path} is a folder without a capture",
        hint="gpusight reads folders made by: nsys export --type parquetdir",
    )
