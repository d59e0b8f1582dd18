"""Call chains of a memory snapshot, each kept once however many events were recorded with it.

PyTorch writes one list of frames for each traceback, and the frames themselves once for all lists;
both are known again by their identity, which is cheap, and only then by what they say. Chains are
numbered from 1 across the whole capture: an event and a block with the same number were allocated
by the same call. Each is listed once under every table that has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.readers.names import encode
from gpusight.readers.paths import shown_file
from gpusight.readers.torch.plain import MisfitError, as_text

if TYPE_CHECKING:
    from collections.abc import Iterable


class Chains:
    """Numbers lists of frames, all of which exist before the first of them is given up."""

    def __init__(self) -> None:
        self._by_list: dict[int, int | None] = {}
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._by_frame: dict[int, int] = {}
        self._chains: dict[tuple[int, ...], int] = {}
        self._used: dict[str, set[int]] = {}
        self._frames: dict[tuple[str | None, str | None, int | None], int] = {}

    def numbers(self, source: str, lists: Iterable[Any]) -> pl.Series:
        """Give the chain of each list of frames; null where none was taken."""
        known = self._by_list
        found = []
        for frames in lists:
            key = id(frames)
            if key not in known:
                known[key] = self._number(frames)
            found.append(known[key])
        used = self._used.setdefault(source, set())
        used.update(number for number in found if number is not None)
        return pl.Series("callchain", found, dtype=pl.Int64)

    def _number(self, frames: Any) -> int | None:
        if not frames:
            return None
        if type(frames) is not list:
            raise MisfitError("the frames of a stack are not a list")
        same = tuple(map(id, frames))
        number = self._by_frames.get(same)
        if number is None:
            for key, frame in zip(same, frames, strict=True):
                if key not in self._by_frame:
                    self._by_frame[key] = self._frame(frame)
            number = self._by_frames[same] = self._chain(same)
        return number

    def _chain(self, frames: tuple[int, ...]) -> int:
        chain = tuple([self._by_frame[frame] for frame in frames])
        return self._chains.setdefault(chain, len(self._chains) + 1)

    def _frame(self, frame: Any) -> int:
        if type(frame) is not dict:
            raise MisfitError("a frame of a stack is not a dictionary")
        name, file, line = frame.get("name"), frame.get("filename"), frame.get("line")
        key = (
            as_text(name) or None,
            shown_file(as_text(file)),
            line if type(line) is int and 0 < line < 1 << 31 else None,
        )
        return self._frames.setdefault(key, len(self._frames))

    def table(self) -> pl.DataFrame:
        """Make the `callchains` of all lists seen."""
        frames = list(self._frames)
        at = pl.Series([f for chain in self._chains for f in chain], dtype=pl.UInt32)
        lengths = pl.Series([len(chain) for chain in self._chains], dtype=pl.Int64)
        chain = lengths.cum_count().cast(pl.Int64).repeat_by(lengths).explode()
        every = pl.DataFrame(
            {
                "callchain": chain,
                "depth": pl.int_ranges(lengths, eager=True).explode(),
                "symbol": _names([f[0] for f in frames]).gather(at),
                "file": _names([f[1] for f in frames]).gather(at),
                "line": pl.Series([f[2] for f in frames], dtype=pl.Int64).gather(at),
            }
        )
        sources = pl.Enum(list(self._used))
        listed = [
            every.filter(chain.is_in(sorted(used))).with_columns(source=pl.lit(source, sources))
            for source, used in self._used.items()
        ]
        return pl.concat(listed) if listed else every.clear()


def _names(texts: list[str | None]) -> pl.Series:
    return encode(pl.Series(texts, dtype=pl.String))
