"""A window, encoded and decoded as a browser does it."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

from gpusight.errors import UsageError
from gpusight.viewer.track_data import SeriesPoints, TimelineWindow, TrackBins, TrackSlices
from gpusight.web.capture_payloads import MAX_WINDOW_LINES, WINDOW_COLUMNS, encode_window


def _ints(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, np.int64)


def _reals(*values: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array(values, np.float64)


NOTHING = _ints()
NO_SLICES = TrackSlices(*(NOTHING,) * 7)
NO_BINS = TrackBins(*(NOTHING,) * 5)
NO_POINTS = SeriesPoints(NOTHING, NOTHING, _reals(), _reals(), _reals())


def decoded(data: bytes) -> dict[str, Any]:
    """Do what decode.ts does."""
    (length,) = struct.unpack_from("<I", data)
    body = 4 + length
    header: dict[str, Any] = json.loads(data[4:body])
    assert body % 8 == 0
    columns = header.pop("columns")
    for part, described in columns.items():
        header[part] = {}
        for name, column in described.items():
            assert column["offset"] % 8 == 0
            kind = np.dtype(column["type"]).newbyteorder("<")
            start = body + column["offset"]
            assert start + column["length"] * kind.itemsize <= len(data)
            header[part][name] = np.frombuffer(data, kind, column["length"], start).tolist()
    return header


def test_every_column_comes_back() -> None:
    window = TimelineWindow(
        start_ns=-5,
        end_ns=2**53,
        bins=3,
        lines=(("gpu0/stream7", 0), ("p1/t2/ranges", 4)),
        pending=("gpu0/ledger",),
        labels=("gemm", "ünï \U0001f680"),
        slices=TrackSlices(
            line=_ints(0, 1, 1),
            start_ns=_ints(-7, 10, 2**53 - 1),
            end_ns=_ints(3, 20, 2**53),
            table=_ints(0, 1, 2),
            row=_ints(0, 2**32 - 1, 5),
            label=_ints(1, 0, 1),
            color=_ints(255, 0, 7),
        ),
        bin_sums=TrackBins(_ints(1), _ints(2), _ints(10**15), _ints(4_000_000_000), _ints(3)),
        points=SeriesPoints(_ints(0), _ints(1), _reals(-0.5), _reals(1e300), _reals(0.25)),
    )
    read_back = decoded(encode_window(window))
    assert (read_back["start_ns"], read_back["end_ns"], read_back["bins"]) == (-5, 2**53, 3)
    assert read_back["lines"] == [
        {"track": "gpu0/stream7", "line": 0},
        {"track": "p1/t2/ranges", "line": 4},
    ]
    assert read_back["pending"] == ["gpu0/ledger"]
    assert read_back["labels"] == ["gemm", "ünï \U0001f680"]
    for part, columns in WINDOW_COLUMNS.items():
        for name in columns:
            assert read_back[part][name] == getattr(getattr(window, part), name).tolist()


@pytest.mark.parametrize("count", range(9))
def test_headers_of_any_length_are_padded(count: int) -> None:
    window = TimelineWindow(0, 1, 1, (), (), ("x" * count,), NO_SLICES, NO_BINS, NO_POINTS)
    assert decoded(encode_window(window))["labels"] == ["x" * count]


def test_names_cannot_drive_what_shows_them() -> None:
    window = TimelineWindow(0, 1, 1, (), (), ("a\x1b[31m\u202eb\n",), NO_SLICES, NO_BINS, NO_POINTS)
    assert decoded(encode_window(window))["labels"] == ["a\\x1b[31m\\u202eb\\n"]


def test_more_lines_than_can_be_told_apart_are_refused() -> None:
    lines = tuple(("t", line) for line in range(MAX_WINDOW_LINES + 1))
    with pytest.raises(UsageError, match="65,537 lines"):
        encode_window(TimelineWindow(0, 1, 1, lines, (), (), NO_SLICES, NO_BINS, NO_POINTS))
