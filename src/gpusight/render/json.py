"""Results as JSON: `{"meta": {...}, "rows": [...]}`, in base units, unknown numbers as null."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from gpusight.evidence import encodable
from gpusight.render.pieces import pieces
from gpusight.result import Composite, NotApplicable, Result, TableResult

if TYPE_CHECKING:
    from collections.abc import Iterator

_INVISIBLE = re.compile("[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Characters that JSON may hold raw but that could drive or confuse a terminal."""


def to_json(result: Result, *, limit: int | None = None) -> str:
    """Write a result as one JSON document, indented; ends with a newline."""
    return encode(document(result, limit=limit))


def json_pieces(result: Result, *, limit: int | None = None) -> Iterator[str]:
    """Write the same document piece by piece, so that a long one is never in memory at once."""
    if not isinstance(result, TableResult) or limit or result.frame.is_empty():
        yield to_json(result, limit=limit)
        return
    around = to_json(replace(result, frame=result.frame.clear()))
    before, _, after = around.rpartition("[]")
    opening = before + "["
    for piece in pieces(result.frame):
        # One level deeper than on their own; a text holds no line feed of its own in JSON.
        rows = encode(piece.to_dicts()).removeprefix("[").removesuffix("\n]\n")
        yield opening + rows.replace("\n", "\n  ")
        opening = ","
    yield "\n  ]" + after


def encode(value: object) -> str:
    """Write plain Python objects as indented JSON that is safe to print; ends with a newline."""
    try:
        raw = msgspec.json.encode(value, enc_hook=_plain_value)
    except UnicodeEncodeError:  # names of files need not be UTF-8; few are not, so the rest is fast
        raw = msgspec.json.encode(_readable(msgspec.to_builtins(value, enc_hook=_plain_value)))
    text = msgspec.json.format(raw, indent=2).decode()
    return _INVISIBLE.sub(lambda m: f"\\u{ord(m[0]):04x}", text) + "\n"


def _readable(value: object) -> object:
    """Give plain objects whose texts can all be encoded; what cannot is escaped."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {_readable(key): _readable(one) for key, one in value.items()}
    return [_readable(one) for one in value] if isinstance(value, (list, tuple)) else value


def document(result: Result, *, limit: int | None = None) -> dict[str, Any]:
    """Give the JSON document as plain Python objects."""
    if isinstance(result, NotApplicable):
        return {"meta": {"command": result.command, "not_applicable": _absent(result)}, "rows": []}
    meta: dict[str, Any] = {"command": result.command, "title": result.title}
    if isinstance(result, TableResult):
        rows = _rows(result, limit)
        left_out = result.frame.height - len(rows)
    else:
        meta |= {fact.key: fact.value for fact in result.facts}
        absent = {s.command: _absent(s) for s in result.sections if isinstance(s, NotApplicable)}
        meta |= {"not_applicable": absent} if absent else {}
        rows = list(_section_rows(result, limit))
        left_out = sum(_total(s) for s in result.sections) - len(rows)
    meta |= dict(result.meta)
    meta |= {"command": result.command, "notes": list(result.notes)}
    if left_out:
        meta["rows_left_out"] = left_out
    return {"meta": meta, "rows": rows}


def _section_rows(result: Composite, limit: int | None) -> Iterator[dict[str, Any]]:
    for section in result.sections:
        if isinstance(section, TableResult):
            for row in _rows(section, limit):
                yield {"section": section.command, **row}


def _rows(result: TableResult, limit: int | None) -> list[dict[str, Any]]:
    return (result.frame.head(limit) if limit else result.frame).to_dicts()


def _total(section: TableResult | NotApplicable) -> int:
    return section.frame.height if isinstance(section, TableResult) else 0


def _absent(absent: NotApplicable) -> dict[str, str]:
    return {"reason": absent.reason, "hint": absent.hint}


def _plain_value(value: object) -> object:
    """Encode what JSON has no form for, such as a duration in a SQL result, as its text."""
    return str(value)
