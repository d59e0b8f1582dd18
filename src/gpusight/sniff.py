"""Recognize files by name and first bytes; refuse to write over a capture."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.errors import NotACaptureError, UsageError
from gpusight.output_files import cannot_write, check_output
from gpusight.pace import SIDECAR_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_CAPTURES = (
    ".nsys-rep",
    ".qdrep",
    ".sqlite",
    ".xplane.pb",
    ".pickle",
    ".ncu-rep",
    ".ncu-repz",
    ".ncu-rep.xz",
    ".ncu-rep.gz",
    ".nsight-cuprof-report",
)
_TRACES = (".json.gz", ".trace.json")
"""Endings of Chrome traces, and of timelines that gpusight exports."""
_BESIDE = ("-wal", "-journal", "-shm")
"""Endings of files that SQLite keeps next to a database and that belong to it."""
_PROTECTED = (*_CAPTURES, ".qdstrm", *_BESIDE)
STACKS_SUFFIX = ".stacks"
"""What follows the name of a capture in that of the stacks that `gpusight record` sampled."""
GZIP = b"\x1f\x8b"
XZ = b"\xfd7zXZ\x00"
ZSTANDARD = b"\x28\xb5\x2f\xfd"
PICKLE = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
OWN_TIMELINE = '"writer":"gpusight"'
"""Marks a timeline that gpusight exported: that one may be replaced."""
SQLITE = b"SQLite format 3\0"
NSYS_REPORT = b"NVIDIA Tegra Profiler Report "
NCU_REPORT = b"NVR\0"
ARROW_STREAM = b"\xff\xff\xff\xff"
_TABLES = (b"PAR1", b"ARROW1")
"""How tables in folders begin; those of nsys have capitals in their names, ours have none."""
_LOGS = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83", bytes.fromhex("d9d505f920a163d7"))
"""How write-ahead logs and journals of SQLite begin."""
_MAGIC = (SQLITE, NSYS_REPORT, NCU_REPORT, XZ, ZSTANDARD, *PICKLE)
"""How captures begin, and compressed files, which gpusight never writes."""
JAX_PLANE = re.compile(rb"\n[\x80-\xff]{0,9}[\x00-\x7f][\x08\x12]")
"""How a profile of JAX begins: field 1, a length, and field 1 or 2 of a plane."""
_TRACE = re.compile(rb'"traceEvents"|"ph"')
"""What the JSON of a trace holds."""
BOM = b"\xef\xbb\xbf"
_PRINTED = b"CPU total %"
"""A heading of every table of key_averages, and of none of ours."""
NCU_PRINTED = re.compile(
    rb"""(?xm)
    Metric\ Name"?[,;\t]"?(?:Metric\ Unit|Metric\ Value)     # a row for each metric
    | ^\W{0,4}Metric(?:\ Name)?"?[,;\t]
    | (?:Kernel|Function|Demangled)\ Name"?[,;\t][^\n]{0,1000}__  # a row for each launch
    | ^\W{0,4}(?:Kernel|Function|Demangled)\ Name"?[,;\t]     # a column for each launch
    | "(?:Address|Line\ No)","Source"
    | "(?:Session|Device|Launch)\ Attribute","
    | ^[ \t]*Metric\ Name\s+Metric\ Unit\s+M
    | ,\ Context\ \d+,\ Stream\ \d+
    | ,\ Invocations\ \d+
    """
)
"""How tables and pages of Nsight Compute begin; no table of gpusight has these headings."""
NCU_MESSAGE = re.compile(rb"==(?:PROF|ERROR|WARNING)== ")
"""Messages of Nsight Compute around them."""
BASELINE = re.compile(rb'\A(?:\xef\xbb\xbf)?\s*\{\s*"gpusight_baseline"\s*:')
"""How files of `gpusight baseline save` begin."""
_HEADING_BYTES = 2048
"""More than any of these patterns matches."""
LOG_BYTES = 16 << 20
"""How much of a log is searched for a table."""
_HEAD_BYTES = 1 << 16
_MARK_BYTES = 256
_MIN_BYTES = 1024
"""All captures are larger: reports describe the machine, SQLite tables take a page each."""


def encodable_text(text: str) -> str:
    """Return text that can be encoded: names of files need not be UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def is_capture_name(path: Path) -> bool:
    """Return whether a file is named like a capture that gpusight reads."""
    return path.name.lower().endswith((*_CAPTURES, *_TRACES))


def sidecar_owner(name: str) -> str | None:
    """Return the capture that a file of `gpusight record` belongs to: `X` for `X.stacks`."""
    suffix = next((s for s in (STACKS_SUFFIX, SIDECAR_SUFFIX) if name.endswith(s)), None)
    return None if suffix is None else name.removesuffix(suffix)


def without_sidecars(names: Sequence[str]) -> list[str]:
    """Leave out files of the recorder whose capture is named too: they are read with it."""
    return [name for name in names if sidecar_owner(name) not in names]


def same_file(path: Path, other: Path) -> bool:
    """Return whether two paths are one file, which need not exist yet."""
    both_exist = path.exists() and other.exists()
    return path.samefile(other) if both_exist else path.resolve() == other.resolve()


def refuse_capture(path: Path, capture: str | None) -> None:
    """Raise if writing to this path could harm a capture: this one, or any other."""
    if capture is not None:
        target, source = path.resolve(), Path(capture).resolve()
        if target == source or source in target.parents:
            raise UsageError(f"{path} is the capture itself", hint="choose another name for -o")
    if path.name.lower().endswith(_PROTECTED):
        raise UsageError(f"{path} is named like a capture", hint="choose another name for -o")
    check_output(path)
    try:
        replaces_capture = path.is_file() and _is_capture(path)
    except OSError as error:  # a file that cannot be read is not replaced either
        raise cannot_write(path, error) from error
    if replaces_capture:
        raise UsageError(f"{path} is a capture already", hint="choose another name for -o")


def _is_capture(path: Path) -> bool:
    """Return whether a file that is about to be replaced is a capture, by how it begins."""
    with path.open("rb") as file:
        head = inflated_head(file.read(_HEAD_BYTES)) or b""
    if OWN_TIMELINE.encode() in head[:_MARK_BYTES]:
        return False
    is_json = head.removeprefix(BOM).lstrip().startswith((b"{", b"["))
    # The events may come late: a large job lists its ranks first, for instance.
    is_long = len(head) == _HEAD_BYTES
    events = is_json and (_TRACE.search(head) or (is_long and _holds(path, _TRACE)))
    printed = _PRINTED in head or NCU_PRINTED.search(head.replace(b"\0", b""))
    magic = (*_MAGIC, *_LOGS, ARROW_STREAM, *(_TABLES if path.stem != path.stem.lower() else ()))
    if head.startswith(magic) or JAX_PLANE.match(head) or events or printed:
        return True
    return is_long and b"\0" not in head and _holds(path, NCU_PRINTED)


def why_not_recorded(path: Path) -> str | None:
    """Return why a file left by a recorder is no capture, by how it begins; None if it is one."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        return error.strerror or str(error)
    if head.startswith(GZIP):
        return None if inflated_head(head) else "it cannot be unpacked"
    if len(head) < _MIN_BYTES:
        return f"it has only {len(head):,} bytes"
    return None if head.startswith(_MAGIC) else "its header is missing"


def _holds(path: Path, pattern: re.Pattern[bytes]) -> bool:
    """Search a text file for what marks a capture."""
    with path.open("rb") as file:
        blocks = iter(lambda: file.read(_HEAD_BYTES), b"")
        return contains_pattern(pattern, islice(blocks, LOG_BYTES // _HEAD_BYTES))


def contains_pattern(pattern: re.Pattern[bytes], blocks: Iterable[bytes]) -> bool:
    """Search blocks of text for a pattern, across their ends too."""
    before = b""
    for block in blocks:
        if pattern.search(before + block):
            return True
        before = block[-_HEADING_BYTES:]
    return False


def inflated_head(head: bytes) -> bytes | None:
    """Return the start of a file, decompressed if it is gzip; None if that fails."""
    if not head.startswith(GZIP):
        return head
    import zlib

    try:
        return zlib.decompressobj(wbits=31).decompress(head, len(head))
    except zlib.error:
        return None


def not_a_capture(path: Path) -> NotACaptureError:
    """Return the error that lists what can be read."""
    return NotACaptureError(
        f"{path} is not a capture that gpusight knows",
        hint="it reads nsys .sqlite, .nsys-rep, .qdrep, parquetdir and arrow exports; "
        "ncu .ncu-rep reports and CSVs; torch.profiler .json[.gz], key_averages and memory "
        "snapshots; JAX .xplane.pb and .trace.json.gz",
    )
