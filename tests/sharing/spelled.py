"""Secrets to plant in captures, and how to find them again in any spelling."""

from __future__ import annotations

import base64
import gzip
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable


def secret(number: int) -> str:
    """A text that stands nowhere else."""
    return f"Xq7vSecret{number:05d}wK9z"


def spellings(text: str) -> list[bytes]:
    """The bytes by which a secret would be known: as text, as hexadecimal, as Base64."""
    plain = text.encode()
    inner = [base64.b64encode(b"\0" * shift + plain)[4:-4] for shift in range(3)]
    return [
        plain,
        text.encode("utf-16-le"),
        text.encode("utf-16-be"),
        plain.hex().encode(),
        plain.hex().upper().encode(),
        plain[::-1],
        *inner,
    ]


def secrets_in(data: bytes, secrets: Iterable[str]) -> set[str]:
    """The secrets that stand in the bytes of a file, packed or not.

    Thousands of spellings are searched in one pass; bytes are taken for Latin letters, one a byte.
    """
    if data.startswith(b"\x1f\x8b"):
        data += gzip.decompress(data)
    spelled = {s.decode("latin-1"): text for text in secrets for s in spellings(text)}
    hits = pl.Series([data.decode("latin-1")]).str.extract_many(list(spelled), overlapping=True)
    return {spelled[hit] for hit in hits[0]}
