"""Results with names that no renderer may let through raw."""

from __future__ import annotations

import polars as pl

from gpusight.results import Field, Fmt, TableResult

HOSTILE = (
    "\x1b[31mred\x1b[0m",
    "</script><b>bold</b>",
    "a|b\\|c`d",
    "two\nlines\r\ttab",
    "\u202egnp.exe",
    "\x9b2Jclear",
    "[bold]markup[/bold] :smile:",
    "名前のとても長いカーネル" * 6,
    "",
)
FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of all"),
    Field("total_ns", "Total", Fmt.TIME, "Time"),
    Field("calls", "Calls", Fmt.COUNT, "How often"),
    Field("bytes", "Bytes", Fmt.BYTES, "Moved", shown=False),
    Field("name", "Name", Fmt.NAME, "Whose"),
)


def hostile() -> TableResult:
    count = len(HOSTILE)
    frame = pl.DataFrame(
        {
            "share": [1 / (i + 1) for i in range(count)],
            "total_ns": [10**i for i in range(count)],
            "calls": [i * 1000 for i in range(count)],
            "bytes": [None, *range(1, count)],
            "name": list(HOSTILE),
        }
    )
    note = ("note with \x1b[5m escape",)
    return TableResult("kernels", "Title \x1b[1m", FIELDS, frame, meta={"total": 7}, notes=note)
