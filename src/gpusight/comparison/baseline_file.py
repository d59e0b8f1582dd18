"""Baselines on disk: digests as JSON that a repository can hold, checked when they are read."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gpusight._version import __version__
from gpusight.analysis.capture_completeness import KERNELS
from gpusight.comparison.digest import FORMAT, MOST_BLOCKS, Digest
from gpusight.comparison.digest_rows import (
    LONGEST,
    MOST_COPIES,
    MOST_KERNELS,
    MOST_LAUNCHES,
    MOST_NAMES,
)
from gpusight.errors import GpusightError, UsageError
from gpusight.output_files import write_file
from gpusight.sniff import BASELINE, is_capture_name, refuse_capture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from gpusight.comparison.digest import Series


MOST_DIGESTS = 1_000
_LARGEST = 1e18
"""Nanoseconds or bytes: sums of it stay far from where numbers end."""
_ALIKE = 1e-6
_MOST_ROWS = {
    "gpus": 10_000,
    "ledger": 1_000,
    "between": 1_000,
    "phases": 1_000,
    "kernels": MOST_KERNELS + 1,
    "order": MOST_LAUNCHES,
    "ranges": MOST_NAMES + 1,
    "api": MOST_NAMES + 1,
    "copies": MOST_COPIES + 1,
    "memory_peak": 10_000,
    "findings": 1_000,
    "missing": 1_000,
    "lost": 10,
    "not_evaluated": 1_000,
    "reported_losses": 1_000,
    "notes": 1_000,
}


def fault(digest: Digest) -> str:
    """Say what is wrong with a digest that was read; empty where nothing is."""
    for problem in (_rows, _values, _steps, _lengths, _sums):
        if found := problem(digest):
            return f"{_called(digest)}: {found}"
    return ""


def _called(digest: Digest) -> str:
    return digest.label[:80] or "a capture without a name"


def _rows(digest: Digest) -> str:
    many = [key for key, most in _MOST_ROWS.items() if len(getattr(digest, key)) > most]
    return f"it has too many rows of {many[0]}" if many else ""


def _values(digest: Digest) -> str:
    """Look at every number and every text, wherever it stands."""
    for key, values in digest.document().items():
        for value in _flat(values):
            if isinstance(value, str) and len(value) > LONGEST:
                return f"a text of {key} is too long"
            if isinstance(value, (int, float)) and not 0 <= value <= _LARGEST:
                return f"a number of {key} is negative or too large"
    return ""


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from _flat(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _flat(one)
    else:
        yield value


def _steps(digest: Digest) -> str:
    if not 0 < len(digest.blocks) <= MOST_BLOCKS or min(digest.blocks) < 1:
        return f"steps are in 1 to {MOST_BLOCKS} blocks of at least one"
    if sum(digest.blocks) != max(1, digest.steps):
        return f"its blocks hold {sum(digest.blocks):,} steps and not {digest.steps:,}"
    if not digest.min_ns <= digest.median_ns <= digest.max_ns:
        return "the median of its steps is not between the shortest and the longest"
    if digest.order and max(digest.order) >= len(digest.kernels):
        return "the order of launches names kernels that it does not have"
    return "" if sum(digest.step_ns) > 0 else "its steps take no time"


def _lengths(digest: Digest) -> str:
    wrong = [key for key, series in _series(digest) if len(series) != len(digest.blocks)]
    return f"{wrong[0]} does not have a value for each block" if wrong else ""


def _series(digest: Digest) -> Iterator[tuple[str, Series]]:
    for key in ("step_ns", "between_ns", "kernel_ns"):
        yield key, getattr(digest, key)
    for key in ("ledger", "between", "phases"):
        yield from ((key, series) for series in getattr(digest, key).values())
    for kernel in digest.kernels:
        yield from (("kernels", series) for series in (kernel.ns, kernel.calls))
    for key in ("ranges", "api"):
        for row in getattr(digest, key):
            known = (row.calls, row.host_ns, row.gpu_ns)
            yield from ((key, series) for series in known if series is not None)
    for copy in digest.copies:
        yield from (("copies", series) for series in (copy.calls, copy.ns, copy.bytes))


def _sums(digest: Digest) -> str:
    if not _alike(digest.ledger.values(), digest.step_ns):
        return "the ledger does not sum to the steps"
    if not _alike(digest.between.values(), digest.between_ns):
        return "the ledger of the time between steps does not sum to it"
    if not _alike((kernel.ns for kernel in digest.kernels), digest.kernel_ns):
        return "the kernels do not sum to the kernel time"
    return ""


def _alike(parts: Iterable[Series], whole: Series) -> bool:
    every = list(parts)
    sums = (math.fsum(part[at] for part in every) for at in range(len(whole)))
    return all(
        math.isclose(one, wanted, rel_tol=_ALIKE, abs_tol=1.0)
        for one, wanted in zip(sums, whole, strict=True)
    )


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
