"""The text of a printed file: unpacked, in UTF-8, in pieces that end where a line does."""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING

from gpusight.errors import DamagedCaptureError
from gpusight.readers.blocks import Blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_PIECE_BYTES = 8 << 20
_MAX_LINE_BYTES = 64 << 20
"""A longer line is no line: the widest tables known have rows of a few hundred kilobytes."""
_SAMPLE_BYTES = 512
_BLANK = re.compile(rb"\n{8,}")
_UTF_16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


class Text:
    """Pieces of a file's text; `problem` says, at the end, why there are no more than these."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.problem: str | None = None

    def __iter__(self) -> Iterator[bytes]:
        """Give piece after piece: whole lines that end in a line feed, the last perhaps not."""
        blocks = Blocks(self._path)
        waiting: list[bytes] = []
        size = 0
        for block in self._until_zero(_unix_lines(_utf8(blocks))):
            waiting.append(block)
            size += len(block)
            if size < _PIECE_BYTES:
                continue
            whole, _, rest = b"".join(waiting).rpartition(b"\n")
            if whole:
                yield whole + b"\n"
            elif size > _MAX_LINE_BYTES:
                raise DamagedCaptureError(
                    f"{self._path} cannot be read",
                    why=f"it has a line of more than {_MAX_LINE_BYTES >> 20} MB",
                    hint="print it again with: ncu --import FILE --csv",
                )
            waiting, size = [rest], len(rest)
        self.problem = self.problem or blocks.problem
        if size:
            yield b"".join(waiting)

    def _until_zero(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Stop at a zero byte: no text has one, but files that were not written to their end do."""
        for block in blocks:
            before, zero, _ = block.partition(b"\0")
            yield before
            if zero:
                self.problem = "it holds zero bytes; what follows the first of them was not read"
                return


def _utf8(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Turn UTF-16, which PowerShell writes, into UTF-8; drop the mark at the beginning."""
    decoder: codecs.IncrementalDecoder | None = None
    for number, block in enumerate(blocks):
        text = block
        if number == 0:
            code = _wide_code(block)
            decoder = codecs.getincrementaldecoder(code)("replace") if code else None
            text = block if decoder else block.removeprefix(codecs.BOM_UTF8)
        if decoder is None:
            yield text
        else:
            yield decoder.decode(text).removeprefix("\ufeff").encode()


def _wide_code(head: bytes) -> str | None:
    """Tell UTF-16 by its mark, or by the zeros in every other byte of plain letters."""
    marked = next((code for mark, code in _UTF_16.items() if head.startswith(mark)), None)
    sample = head[:_SAMPLE_BYTES]
    if marked or len(sample) < 2:
        return marked
    if not any(sample[::2]):
        return "utf-16-be"
    return None if any(sample[1::2]) else "utf-16-le"


def _unix_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """End lines by a line feed alone; a carriage return, as progress bars write, ends one too."""
    held = b""
    for block in blocks:
        text = held + block
        held = b"\r" if text.endswith(b"\r") else b""
        text = text[: len(text) - len(held)]
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in text else text
        # A line costs time even when it is blank, and of many one says as much.
        yield _BLANK.sub(b"\n\n", text) if b"\n" * 8 in text else text
    if held:
        yield b"\n"
