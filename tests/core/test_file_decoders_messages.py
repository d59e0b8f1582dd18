"""The fields of protobuf messages that the core lists are those that Python lists."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpusight.core import file_decoders
from gpusight.core.library import core_status
from gpusight.readers.ncu import report_messages
from gpusight.readers.protobuf_wire import WireError

pytestmark = pytest.mark.skipif(
    core_status().library is None, reason=f"no compiled core: {core_status().reason}"
)
REPEATED = 13


def varint(value: int) -> bytes:
    """Write a number as protobuf does."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


FIELDS = st.one_of(
    st.tuples(st.just(0), st.integers(0, (1 << 64) - 1).map(varint)),
    st.tuples(st.just(1), st.binary(min_size=8, max_size=8)),
    st.tuples(st.just(2), st.binary(max_size=200).map(lambda part: varint(len(part)) + part)),
    st.tuples(st.just(5), st.binary(min_size=4, max_size=4)),
    st.tuples(st.integers(0, 7), st.binary(max_size=12)),
)
MESSAGES = st.lists(
    st.tuples(st.sampled_from([1, REPEATED, 200, 1 << 60]), FIELDS).map(
        lambda field: varint(field[0] << 3 | field[1][0]) + field[1][1]
    ),
    max_size=8,
).map(b"".join)


def split(message: bytes) -> Any:
    """Split a message, or give its error."""
    try:
        repeated, others = report_messages._without_repeated(message, REPEATED)
    except WireError as error:
        return str(error)
    return repeated.tolist(), others


@given(message=st.one_of(MESSAGES, st.binary(max_size=30)))
@example(message=b"\x08" + b"\xff" * 9 + b"\x7f")
@example(message=b"\x08" + b"\x80" * 10 + b"\x00")
@example(message=b"\x12\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")
def test_fields(message: bytes) -> None:
    found = split(message)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_messages, "message_fields", lambda *_: None)
        expected = split(message)
    assert found == expected


def test_the_core_lists_sound_messages() -> None:
    import numpy as np

    columns = np.empty((3, 2), np.int64)
    addresses = [column.ctypes.data for column in columns]
    assert file_decoders.message_fields(b"\x08\x05\x12\x01a", 2, *addresses) == 2
    assert columns.tolist() == [[1, 2], [-1, 4], [5, 5]]
    assert file_decoders.message_fields(b"\x08\x05\x12\x01a", 1, *addresses) is None
