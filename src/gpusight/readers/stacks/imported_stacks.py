"""Host time from folded stacks (`a;b;c 12`) and from speedscope's JSON: stacks with weights."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from gpusight.errors import DamagedCaptureError
from gpusight.readers.file_blocks import FileBlocks
from gpusight.readers.tables import MAX_DURATION_NS, FrameSource, shown_file
from gpusight.trace.trace import Meta

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from gpusight.trace.trace import TraceSource


_MAX_BYTES = 256 << 20
_MAX_FRAMES = 500
"""Frames of a stack that are kept, the innermost ones."""
_MAX_ROWS = 20_000_000
"""Frames of all stacks."""
_FOLDED_LINE = re.compile(r"(?P<stack>\S.*) (?P<value>\d{1,18}(?:\.\d{1,9})?)\s*")
_PLACE = re.compile(
    r"(?P<function>.*) \((?P<file>[^()]*?)(?::(?P<line>\d{1,9}))?\)(?: ?\[.*\])?", re.DOTALL
)
"""A frame as py-spy, Austin and gpusight name it: `step (train.py:12)`."""
_NOT_OWN = ("<built-in ", "nn.Module: ")
"""How functions of Python and PyTorch begin that have no file."""
_UNIT_NS = {"nanoseconds": 1.0, "microseconds": 1e3, "milliseconds": 1e6, "seconds": 1e9}
_NO_UNIT = "values have no unit of time in this file: each one counts as 1 ns"

Stack = tuple[str, ...]
Frames = dict[str, tuple[str | None, int | None, str]]
"""File, line and function by name of a frame."""


def is_folded(text: bytes) -> bool:
    """Whether a text begins like folded stacks: lines of frames split by `;`, and a number."""
    lines = text.decode("utf-8", "replace").split("\n")
    whole = [line for line in (lines[:-1] if len(lines) > 1 else lines)[:50] if line.strip()]
    if not whole or not any(";" in line for line in whole):
        return False
    return all(_FOLDED_LINE.fullmatch(line[:20_000]) for line in whole)


def is_speedscope(text: bytes) -> bool:
    """Whether JSON begins like a file of speedscope."""
    if b"speedscope.app/file-format-schema" in text:
        return True
    return b'"shared"' in text and b'"frames"' in text and b'"traceEvents"' not in text


def folded_source(path: Path) -> TraceSource:
    """Open folded stacks."""
    return FrameSource(partial(_read_folded, path))


def speedscope_source(path: Path) -> TraceSource:
    """Open a file of speedscope."""
    return FrameSource(partial(_read_speedscope, path))


def file_content(path: Path) -> bytes:
    """Read a file of stacks, unpacked; refuses one that is too large."""
    blocks, content = FileBlocks(path), bytearray()
    for block in blocks:
        content += block
        if len(content) > _MAX_BYTES:
            raise DamagedCaptureError(
                f"{path} is too large", why="stacks are read up to 256 MiB", hint="shorten it"
            )
    if blocks.problem:
        raise DamagedCaptureError(f"{path} is damaged", why=blocks.problem, hint="copy it again")
    return bytes(content)


def _read_folded(path: Path) -> tuple[Meta, dict[str, pl.DataFrame]]:
    stacks: list[tuple[int, Stack, float]] = []
    frames: Frames = {}
    left_out = 0
    for line in file_content(path).decode("utf-8", "replace").split("\n"):
        match = _FOLDED_LINE.fullmatch(line)
        names = tuple(n.strip() for n in match["stack"].split(";")) if match else ()
        if match is None or not any(names):
            left_out += bool(line.strip())
            continue
        kept = tuple(n or "?" for n in names[-_MAX_FRAMES:])
        for name in kept:
            frames.setdefault(name, split_frame(name))
        stacks.append((1, kept, float(match["value"])))
    warnings = (f"{left_out:,} lines are not folded stacks and were left out",) if left_out else ()
    meta = _meta(path, "folded", (_NO_UNIT,), warnings)
    return meta, stack_tables(path, "folded", summed(stacks), frames, ("main",))


def split_frame(name: str) -> tuple[str | None, int | None, str]:
    """Split the name of a frame into file, line and function."""
    match = _PLACE.fullmatch(name[:4_000])
    if match is None or not match["file"] or "." not in match["file"]:
        return None, None, name
    line = None if match["line"] is None else int(match["line"])
    return shown_file(match["file"]), line, match["function"]


def _read_speedscope(path: Path) -> tuple[Meta, dict[str, pl.DataFrame]]:
    try:
        document = msgspec.json.decode(file_content(path))
        listed = [_frame_of(frame) for frame in document["shared"]["frames"]]
        names = [name for name, _ in listed]
        profiles = document["profiles"]
        stacks: list[tuple[int, Stack, float]] = []
        notes: dict[str, None] = {}
        threads: list[str] = []
        for number, profile in enumerate(profiles, 1):
            threads.append(str(profile.get("name") or f"profile {number}"))
            scale = _UNIT_NS.get(str(profile.get("unit")), 0.0)
            if not scale:
                notes[_NO_UNIT] = None
            read = _sampled if profile["type"] == "sampled" else _evented
            for stack, value in read(profile):
                kept = tuple(names[_index(at)] for at in stack[-_MAX_FRAMES:])
                stacks.append((number, kept, _finite(value) * (scale or 1.0)))
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise DamagedCaptureError(
            f"{path} is damaged",
            why=f"it is no file of speedscope: {type(error).__name__} {error}".strip()[:200],
            hint="export it again",
        ) from error
    meta = _meta(path, "speedscope", tuple(notes), ())
    return meta, stack_tables(path, "speedscope", summed(stacks), dict(listed), threads)


def _frame_of(frame: dict[str, Any]) -> tuple[str, tuple[str | None, int | None, str]]:
    """Return a frame under a name that only it has."""
    name, file, line = str(frame["name"]), frame.get("file"), frame.get("line")
    if file is None:
        return name, split_frame(name)
    number = int(line) if isinstance(line, (int, float)) and 0 <= line < 1 << 31 else None
    split = split_frame(name)
    return f"{name}\0{file}\0{number}", (shown_file(str(file)), number, split[2])


def _index(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("the number of a frame is wrong")
    return value


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number) or not 0 <= number <= MAX_DURATION_NS:
        raise ValueError("a weight is out of range")
    return number


def _sampled(profile: dict[str, Any]) -> Iterator[tuple[list[Any], Any]]:
    return zip(profile["samples"], profile["weights"], strict=True)


def _evented(profile: dict[str, Any]) -> Iterator[tuple[list[Any], float]]:
    """Give the stack between each two events, and how long it was."""
    stack: list[Any] = []
    before = None
    for event in profile["events"]:
        at = float(event["at"])
        if before is not None and stack and at > before:
            yield list(stack[-_MAX_FRAMES:]), at - before
        if event["type"] == "O":
            stack.append(event["frame"])
        elif not stack or stack.pop() != event["frame"]:
            raise ValueError("an event closes a frame that is not open")
        before = at


def _meta(path: Path, source: str, notes: tuple[str, ...], warnings: tuple[str, ...]) -> Meta:
    tool = {"folded": "folded stacks", "speedscope": "speedscope"}[source]
    return Meta(path=str(path), source=source, tool=tool, notes=notes, warnings=warnings)


def summed(stacks: Iterable[tuple[int, Stack, float]]) -> list[tuple[int, Stack, float]]:
    """Sum up equal stacks of a thread."""
    sums: dict[tuple[int, Stack], float] = {}
    for thread, stack, value in stacks:
        sums[thread, stack] = sums.get((thread, stack), 0.0) + value
    return [(*key, value) for key, value in sums.items()]


def stack_tables(
    path: Path,
    source: str,
    stacks: Iterable[tuple[int, Stack, float]],
    frames: Frames,
    threads: Sequence[str],
    modules: Mapping[str, str] | None = None,
    times: Sequence[int] | None = None,
) -> dict[str, pl.DataFrame]:
    """Make the tables of stacks with weights; without times they come one after the other.

    `modules` has the binaries of frames, by the name of the frame.
    """
    rows = [row for row in stacks if row[1]]
    if not rows:
        raise DamagedCaptureError(f"{path} has no stacks", hint="record it again")
    number: dict[Stack, int] = {}
    for _, stack, _ in rows:
        number.setdefault(stack, len(number))
    if sum(map(len, number)) > _MAX_ROWS:
        raise DamagedCaptureError(f"{path} has too many frames", hint="shorten it")
    weights = pl.Series([round(value) for _, _, value in rows], dtype=pl.Int64)
    begin = weights.cum_sum() - weights if times is None else pl.Series(times, dtype=pl.Int64)
    samples = pl.DataFrame(
        {
            "thread": [thread for thread, _, _ in rows],
            "stack": [number[stack] for _, stack, _ in rows],
            "weight_ns": weights,
        }
    ).with_columns(
        begin.alias("time_ns"),
        pl.lit(1, pl.Int64).alias("process"),
        pl.lit(source).alias("source"),
    )
    names = [
        (key, at, name) for stack, key in number.items() for at, name in enumerate(stack[::-1])
    ]
    places = [frames[name] for _, _, name in names]
    binaries = [(modules or {}).get(name) for _, _, name in names]
    return {
        "stack_samples": samples.sort("time_ns", maintain_order=True),
        "stack_frames": pl.DataFrame(
            {
                "stack": pl.Series([key for key, _, _ in names], dtype=pl.Int64),
                "depth": pl.Series([at for _, at, _ in names], dtype=pl.Int64),
                "file": pl.Series([file for file, _, _ in places], dtype=pl.String),
                "line": pl.Series([line for _, line, _ in places], dtype=pl.Int64),
                "function": pl.Series([function for _, _, function in places], dtype=pl.String),
                "module": pl.Series(binaries, dtype=pl.String),
                "kind": pl.Series(
                    [
                        "python" if (file or "").endswith(".py") else "native"
                        for file, _, _ in places
                    ],
                    dtype=pl.String,
                ),
                # Without a file or binary nobody knows whose code it is: it is shown.
                "is_library": pl.Series(
                    [
                        None if file or binary else function.startswith(_NOT_OWN)
                        for (file, _, function), binary in zip(places, binaries, strict=True)
                    ],
                    dtype=pl.Boolean,
                ),
            }
        ),
        "processes": pl.DataFrame({"process": [1], "pid": [1]}),
        "threads": pl.DataFrame(
            {
                "thread": range(1, len(threads) + 1),
                "process": [1] * len(threads),
                "tid": range(1, len(threads) + 1),
                "name": list(threads),
            }
        ),
    }
