"""Secrets to plant in captures, and how to find them again in any spelling."""

from __future__ import annotations

import base64
import gzip


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


def found(data: bytes, secrets: list[str]) -> set[str]:
    """The secrets that stand in the bytes of a file, packed or not."""
    unpacked = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    whole = data + unpacked
    return {text for text in secrets if any(spelled in whole for spelled in spellings(text))}
