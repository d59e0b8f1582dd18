"""Baselines on disk: digests as JSON that a repository can hold and a person can read a diff of.

What is read may have been written by anyone: it is bounded, typed and checked before it is used.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gpusight._version import __version__
from gpusight.analyses.completeness import KERNELS
from gpusight.comparison.checks import MOST_DIGESTS, fault
from gpusight.comparison.digest import FORMAT, Digest
from gpusight.errors import GpusightError, UsageError
from gpusight.evidence import BASELINE, is_capture_name, refuse_capture
from gpusight.output_files import write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

_Read = TypeVar("_Read")

MOST_BYTES = 64 << 20
MOST_VALUES = 4_000_000
"""Values in a file, by its commas: each takes far more memory than the two bytes it may have."""
_MARK_AT_END = re.compile(rb'"gpusight_baseline"\s*:\s*\d+\s*\}\s*\Z')
"""Tools that sort keys put ours last."""
_MARK_BYTES = 256
_BOM = b"\xef\xbb\xbf"
_AGAIN = "write it again with: gpusight baseline save CAPTURE… -o FILE"
_LONGEST_REASON = 200
_A_LINE = 40
"""Numbers of the order of launches on a line."""


class BaselineError(GpusightError):
    """A file is not a baseline that can be used."""


class _Marked(msgspec.Struct, frozen=True):
    """The least that tells which format a file has."""

    gpusight_baseline: int
    """`FORMAT`; first in what we write, so that the beginning of a file tells what it is."""


class _Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole file."""

    gpusight_baseline: int
    gpusight: str
    """Version that wrote it."""
    digests: tuple[Digest, ...]


def is_baseline(path: Path) -> bool:
    """Tell by how a file begins or ends whether it is a baseline; False for what cannot be read."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            if BASELINE.match(file.read(_MARK_BYTES)):
                return True
            file.seek(max(0, path.stat().st_size - _MARK_BYTES))
            return _MARK_AT_END.search(file.read(_MARK_BYTES)) is not None
    except (OSError, ValueError):  # a name with a NUL is no name
        return False


# Reading ------------------------------------------------------------------------------------------


def load_baseline(path: Path) -> tuple[Digest, ...]:
    """Read a baseline; raises BaselineError where it is none that can be used."""
    data = _read(path)
    if not is_baseline(path):
        hint = f"captures are summed up by: gpusight baseline save {path}"
        raise BaselineError(f"{path} is not a baseline", hint=hint)
    marked = _decoded(path, data, _marked)
    if marked != FORMAT:
        found = f"format {marked}, and this gpusight reads {FORMAT}"
        newer = marked > FORMAT
        hint = f"use a newer gpusight, or {_AGAIN}" if newer else _AGAIN
        raise BaselineError(f"{path} is a baseline of another version", why=found, hint=hint)
    digests = _decoded(path, data, _digests)
    if not digests or len(digests) > MOST_DIGESTS:
        why = f"it holds {len(digests):,} captures; 1 to {MOST_DIGESTS:,} make sense"
        raise _unusable(path, why)
    for digest in digests:
        if why := fault(digest):
            raise _unusable(path, why)
    return digests


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BaselineError(f"cannot read {path}", why=why, hint="check the path") from error
    if len(data) > MOST_BYTES or data.count(b",") > MOST_VALUES:
        raise _unusable(path, "it is far larger than baselines are")
    return data.removeprefix(_BOM)


def _marked(data: bytes) -> int:
    return msgspec.json.decode(data, type=_Marked).gpusight_baseline


def _digests(data: bytes) -> tuple[Digest, ...]:
    return msgspec.json.decode(data, type=_Baseline).digests


def _decoded(path: Path, data: bytes, decode: Callable[[bytes], _Read]) -> _Read:
    try:
        return decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _unusable(path, str(error)[:_LONGEST_REASON]) from error


def _unusable(path: Path, why: str) -> BaselineError:
    return BaselineError(f"{path} is not a baseline that can be used", why=why, hint=_AGAIN)


# Writing ------------------------------------------------------------------------------------------


def save_baseline(digests: Sequence[Digest], path: Path) -> int:
    """Write a baseline, in place of one that is there but of nothing else; gives its bytes."""
    check_place(path)
    if not 0 < len(digests) <= MOST_DIGESTS:
        what = f"{len(digests):,} captures do not make a baseline"
        raise UsageError(what, hint=f"give 1 to {MOST_DIGESTS:,}")
    for digest in digests:
        if KERNELS in digest.lost:
            raise UsageError(
                f"{digest.label} cannot be a baseline",
                why=digest.lost[KERNELS],
                hint="record it again: a gate against it could only report missing data",
            )
    data = "".join(_pieces(digests)).encode()
    if len(data) > MOST_BYTES or data.count(b",") > MOST_VALUES:
        raise UsageError("these captures make too large a baseline", hint="save fewer of them")
    return write_file(path, data)


def check_place(path: Path) -> None:
    """Refuse to write a baseline over anything but a baseline."""
    refuse_capture(path, None)
    if is_capture_name(path):
        raise UsageError(f"{path} is named like a capture", hint="choose another name for -o")
    if not path.parent.is_dir():
        hint = "make it first, or choose another name for -o"
        raise UsageError(f"the folder of {path} does not exist", hint=hint)
    if path.exists() and not is_baseline(path):
        why = "it exists and is not a baseline"
        raise UsageError(f"{path} is not replaced", why=why, hint="choose another name for -o")


def _pieces(digests: Iterable[Digest]) -> Iterator[str]:
    """Give the text: a field a line, a row a line, so that a change shows as few lines."""
    yield f'{{\n"gpusight_baseline": {FORMAT},\n"gpusight": {_text(__version__)},\n"digests": [\n'
    yield ",\n".join(_digest(digest) for digest in digests)
    yield "\n]\n}\n"


def _digest(digest: Digest) -> str:
    fields = (f" {_text(key)}: {_field(value)}" for key, value in digest.document().items())
    return "{\n" + ",\n".join(fields) + "\n}"


def _field(value: Any) -> str:
    if isinstance(value, dict) and value:
        lines = (f"  {_text(key)}: {_text(one)}" for key, one in value.items())
        return "{\n" + ",\n".join(lines) + "\n }"
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (dict, str)):
        return "[\n" + ",\n".join(f"  {_text(one)}" for one in value) + "\n ]"
    if isinstance(value, (list, tuple)) and len(value) > _A_LINE:
        starts = range(0, len(value), _A_LINE)
        lines = (f"  {_text(value[at : at + _A_LINE])[1:-1]}" for at in starts)
        return "[\n" + ",\n".join(lines) + "\n ]"
    return _text(value)


def _text(value: Any) -> str:
    return msgspec.json.encode(_short(value)).decode()


def _short(value: Any) -> Any:
    """Write whole numbers without a fraction; that is half of a baseline's bytes."""
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
