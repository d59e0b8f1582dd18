"""Names that mean the same in every capture, and tell nothing about the machine.

Digests of different runs are matched by name, and are committed to repositories.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from gpusight.analyses.ledger.contributors import RECORD

if TYPE_CHECKING:
    from collections.abc import Iterable

    import polars as pl

LONGEST = 2_000
"""Letters of a name that are kept; the names of templates can be longer."""
NO_NAME = "(no name)"
"""Stands for a name that is empty: rows without a name hold what is left over."""
_FOLDERS = re.compile(r"(?<![\w.)\]>#*-])(?:[A-Za-z]:)?(?:[\\/][^\\/\s:;,'\"<>|()*]+)+[\\/]")
"""The folders of a path from the root on. Names such as `encoder/layer/attention` are no paths."""
_ADDRESS = r"\b0x[0-9a-fA-F]+\b"
_HASH = (
    r"\b(?:[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{16,}|f[a-z2-7]{51})\b"
)
"""Identifiers, digests, and what torch.compile calls a graph: every build has its own."""
_AFTER_NO_LETTER = r"(^|[^A-Za-z0-9])\d+"
_BEFORE_NO_LETTER = r"\d+($|[^A-Za-z0-9])"


def plain(text: str) -> str:
    """Give a text without the folders of paths, and no longer than `LONGEST`."""
    return cut(_FOLDERS.sub("", text) if "/" in text or "\\" in text else text)


def cut(text: str) -> str:
    """Give a text no longer than `LONGEST`; what was cut off still tells texts apart."""
    if len(text) <= LONGEST:
        return text
    told = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{text[: LONGEST - 9]}…{told}"


def plain_texts(texts: Iterable[str]) -> tuple[str, ...]:
    """Give texts as `plain` does, each once."""
    return tuple(dict.fromkeys(plain(text) for text in texts))


def family(names: pl.Series) -> pl.Series:
    """Take off numbers that count, and hashes: `step_#`; those inside a word stay: `conv2d`.

    It depends on nothing but the name: the same range is the same family in every capture.
    """
    return (
        names.str.replace(RECORD, "")
        .str.replace_all(_ADDRESS, "#")
        .str.replace_all(_HASH, "#")
        .str.replace_all(_AFTER_NO_LETTER, "${1}#")
        .str.replace_all(_BEFORE_NO_LETTER, "#${1}")
        .str.replace_all("##+", "#")
    )
