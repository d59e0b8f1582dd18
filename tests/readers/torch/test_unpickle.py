"""Only plain data comes out of a pickle: nothing is imported, called, or built without bound."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import pickletools
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusight.errors import CaptureError, DamagedCaptureError, NotACaptureError
from gpusight.readers.torch.unpickle import check_start, load_plain
from tests.shared import DATA

START = b"\x80\x04"
SNAPSHOT = DATA / "memory_snapshot.pickle"
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)
ALLOWED = {
    "PROTO", "FRAME", "STOP", "MARK", "EMPTY_DICT", "EMPTY_LIST", "APPEND", "APPENDS", "SETITEM",
    "SETITEMS", "NONE", "NEWTRUE", "NEWFALSE", "MEMOIZE", "BINGET", "LONG_BINGET", "BINPUT",
    "LONG_BINPUT", "BININT1", "BININT2", "BININT", "BINFLOAT", "LONG1", "SHORT_BINUNICODE",
    "BINUNICODE",
}  # fmt: skip
REFUSED = [op for op in pickletools.opcodes if op.name not in ALLOWED]


def load(folder: Path, content: bytes) -> Any:
    path = folder / "some.pickle"
    path.write_bytes(content)
    return load_plain(path).value


def arguments(op: pickletools.OpcodeInfo) -> bytes:
    """Make up an argument that the instruction accepts."""
    if op.arg is None:
        return b""
    if op.arg.n == pickletools.UP_TO_NEWLINE:
        return b"os\nsystem\n" if op.name in {"GLOBAL", "INST"} else b"1\n"
    width = {pickletools.TAKEN_FROM_ARGUMENT1: 1, pickletools.TAKEN_FROM_ARGUMENT8U: 8}
    return bytes(op.arg.n if op.arg.n >= 0 else width.get(op.arg.n, 4))


class Calls:
    """Would run a command when unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


@settings(max_examples=70)
@given(value=PLAIN, protocol=st.sampled_from([2, 3, 4, 5]))
def test_plain_data_comes_back_as_it_was(tmp_path: Path, value: Any, protocol: int) -> None:
    assert load(tmp_path, pickle.dumps(value, protocol=protocol)) == value


def test_a_real_snapshot_comes_back_as_it_was() -> None:
    assert load_plain(SNAPSHOT).value == pickle.loads(SNAPSHOT.read_bytes())


def test_a_compressed_one_too(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle.gz"
    path.write_bytes(gzip.compress(SNAPSHOT.read_bytes()))
    plain = load_plain(path)
    assert plain.value == pickle.loads(SNAPSHOT.read_bytes())
    assert plain.size_bytes == SNAPSHOT.stat().st_size


def test_what_is_shared_stays_shared(tmp_path: Path) -> None:
    frame = {"name": "forward"}
    one, other = load(tmp_path, pickle.dumps([[frame], [frame]]))
    assert one[0] is other[0]


def test_a_pair_of_small_numbers_is_the_one_tuple(tmp_path: Path) -> None:
    pools: list[Any] = [(0, 0), (3, 70_000), (0, -1)]
    assert load(tmp_path, pickle.dumps(pools)) == pools


@pytest.mark.parametrize("op", REFUSED, ids=lambda op: op.name)
def test_every_other_instruction_is_refused(tmp_path: Path, op: pickletools.OpcodeInfo) -> None:
    stack = b"(\x8c\x02os\x8c\x06system" if op.name == "STACK_GLOBAL" else b"(]]]"
    content = START + stack + op.code.encode("latin-1") + arguments(op) + b"."
    with pytest.raises(NotACaptureError) as caught:
        load(tmp_path, content)
    wanted = "import os.system" if "GLOBAL" in op.name or op.name == "INST" else f"uses {op.name},"
    assert wanted in str(caught.value)


def test_the_list_of_instructions_is_complete() -> None:
    """A new version of Python with new instructions must be looked at."""
    assert len(REFUSED) + len(ALLOWED) == len(pickletools.opcodes) == 68


def test_bytes_that_are_no_instruction(tmp_path: Path) -> None:
    with pytest.raises(DamagedCaptureError, match=r"byte 3 \(0xff\) is no instruction"):
        load(tmp_path, START + b"N\xff.")


def test_nothing_is_called(tmp_path: Path) -> None:
    trace = tmp_path / "was_here"
    for protocol in (2, 3, 4, 5):
        content = pickle.dumps({"segments": [Calls(f"touch {trace}")]}, protocol=protocol)
        with pytest.raises(NotACaptureError, match=r"would import (posix|nt)\.system"):
            load(tmp_path, content)
    assert not trace.exists()


def test_an_import_is_named_although_its_name_was_memoised(tmp_path: Path) -> None:
    content = START + b"]\x94(\x8c\x06system\x94\x8c\x02os\x94h\x02h\x01\x93e."
    with pytest.raises(NotACaptureError, match=r"import os\.system,"):
        load(tmp_path, content)


def test_naming_an_import_takes_no_memory(tmp_path: Path) -> None:
    """The steps before the import are run to learn its name; they are bounded then, too."""
    began = time.process_time()
    with pytest.raises(NotACaptureError, match="uses LONG_BINPUT"):
        check_start(tmp_path / "some.pickle", START + b"]r\xff\xff\xff\x07cos\nsystem\n.")
    assert time.process_time() - began < 1


def test_an_import_is_named_before_the_rest_of_its_frame_is_there(tmp_path: Path) -> None:
    content = pickle.dumps([Calls("true"), "x" * 50_000], protocol=4)
    with pytest.raises(NotACaptureError, match=r"import (posix|nt)\.system"):
        check_start(tmp_path / "some.pickle", content[:1000])


def test_what_is_imported_cannot_drive_the_terminal(tmp_path: Path) -> None:
    with pytest.raises(NotACaptureError) as caught:
        load(tmp_path, START + b"c\x1b[31mos\nsystem\x07" + b"x" * 500 + b"\n.")
    message = str(caught.value)
    assert r"import \x1b[31mos.system\x07xxx" in message
    assert message.isprintable()
    assert len(message) < 300


def test_an_extension_that_the_process_knows_is_not_resolved(tmp_path: Path) -> None:
    import copyreg

    copyreg.add_extension("os", "system", 240)
    try:
        with pytest.raises(NotACaptureError, match="uses EXT1"):
            load(tmp_path, START + b"\x82\xf0.")
    finally:
        copyreg.remove_extension("os", "system", 240)


HOSTILE: dict[str, bytes] = {
    "memo beyond the file": b"]r\xff\xff\xff\x0f.",
    "memo beyond 31 bits": b"]r\xff\xff\xff\xff.",
    "an integer of 16 bytes": b"\x8a\x10" + bytes(16) + b".",
    "an integer of 9 bytes": b"\x8a\x09" + b"\x01" * 9 + b".",
    "an integer of a megabyte": b"\x8b" + struct.pack("<i", 1 << 20) + b"\x01" * (1 << 20) + b".",
    "digits without end": b"L" + b"9" * 200_000 + b"L\n.",
    "a text beyond the file": b"X\xff\xff\xff\x7fabc.",
    "a text of 8-byte length": b"\x8d" + struct.pack("<Q", 1 << 60) + b"abc.",
    "bytes beyond the file": b"\x8e" + struct.pack("<Q", 1 << 60) + b"abc.",
    "a bytearray beyond the file": b"\x96" + struct.pack("<Q", 1 << 60) + b"abc.",
    "a frame beyond the file": b"\x95" + struct.pack("<Q", 1 << 60) + b"N.",
    "frames without content": (b"\x95" + bytes(8)) * 200_000 + b"N.",
    "tuples that double": b"}K\x01K\x01\x86" + b"\x94h\x00h\x00\x86" * 60 + b"Ns.",
    "tuples that nest": b"}K\x01" + b"\x85" * 1_000_000 + b"Ns.",
    "a tuple of wide numbers": b"\x8a\x05\x01\x01\x01\x01\x01K\x01\x86.",
    "empty lists alone": b"(" + b"]" * (8 << 20) + b"l.",
    "empty lists in a list": b"](" + b"]" * (8 << 20) + b"e.",
    "a list as a key": b"}]Ns.",
    "an empty stack": b"a.",
    "a value without a key": b"}(Nu.",
    "a memo place never filled": b"h\x07.",
    "appending to a number": b"K\x01K\x02a.",
    "text that is not UTF-8": b"\x8c\x02\xff\xff.",
    "no value": b".",
    "no end": b"]" * 1000,
    "nothing": b"",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_data_is_refused_at_once(tmp_path: Path, content: bytes) -> None:
    began = time.process_time()
    with pytest.raises(CaptureError) as caught:
        load(tmp_path, START + content)
    assert time.process_time() - began < 2
    assert str(caught.value).isprintable()


def test_no_instruction_may_reach_beyond_its_frame(tmp_path: Path) -> None:
    """Python's unpickler drops the rest of the frame there, and goes on where none was checked."""
    hidden = b"(]]]l."
    text = b"X" + struct.pack("<I", len(hidden)) + hidden
    for inside in range(1, len(text)):
        frame = b"\x95" + struct.pack("<Q", inside)
        with pytest.raises(DamagedCaptureError, match="is cut off"):
            load(tmp_path, START + frame + text + b".")
    whole = b"\x95" + struct.pack("<Q", len(text)) + text
    assert load(tmp_path, START + whole + b".") == hidden.decode()


def test_data_may_hold_itself_or_nest_deeply(tmp_path: Path) -> None:
    own = load(tmp_path, START + b"]\x94h\x00a.")
    assert own[0] is own
    depth = 100_000
    assert sys.getrecursionlimit() < depth
    assert len(load(tmp_path, START + b"]" * depth + b"a" * (depth - 1) + b".")) == 1


def test_lists_that_double_take_no_room(tmp_path: Path) -> None:
    steps = b"".join(b"]\x94(h" + bytes((n,)) + b"h" + bytes((n,)) + b"e" for n in range(100))
    value = load(tmp_path, START + b"]\x94" + steps + b".")
    assert len(value) == 2


def test_a_file_cut_off_anywhere_says_so(tmp_path: Path) -> None:
    content = SNAPSHOT.read_bytes()
    for size in (*range(2, 400), *range(400, len(content) - 1, 997), len(content) - 1):
        with pytest.raises(DamagedCaptureError, match="is cut off"):
            load(tmp_path, content[:size])


def test_cut_off_instructions_of_older_protocols(tmp_path: Path) -> None:
    content = pickle.dumps({"big": [1 << 40, 1.5, 70_000, 1 << 20], "long": "x" * 300}, protocol=2)
    for size in range(2, len(content) - 1):
        with pytest.raises(DamagedCaptureError, match="is cut off"):
            load(tmp_path, content[:size])


def test_a_compressed_file_that_grows_beyond_belief(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pickle.gz"
    with gzip.open(path, "wb") as file:
        file.write(START + b"](")
        for _ in range(200):
            file.write(b"N" * (1 << 20))
    with pytest.raises(CaptureError, match=r"compressed beyond belief.*gunzip"):
        load_plain(path)


def test_a_compressed_file_that_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "short.pickle.gz"
    path.write_bytes(gzip.compress(SNAPSHOT.read_bytes())[:5000])
    with pytest.raises(DamagedCaptureError, match="compressed data ends early"):
        load_plain(path)


@settings(max_examples=100)
@given(content=st.binary(max_size=300), protocol=st.integers(0, 6))
def test_random_bytes_are_refused_or_plain(tmp_path: Path, content: bytes, protocol: int) -> None:
    with suppress(CaptureError):
        load(tmp_path, bytes((0x80, protocol)) + content)


INSTRUCTIONS = st.sampled_from(
    [b"(", b"}", b"]", b"a", b"e", b"s", b"u", b"N", b"\x88", b"\x94", b"h\x00", b"h\x01", b"q\x01",
     b"j\x01\x00\x00\x00", b"r\x02\x00\x00\x00", b"K\x05", b"M\x01\x02", b"J\x01\x02\x03\x04",
     b"K\x01K\x02\x86", b"\x86", b"\x8c\x01x", b"X\x02\x00\x00\x00ab", b"G" + bytes(8),
     b"\x8a\x06\x01\x02\x03\x04\x05\x06", b"0", b"2", b"t", b"R", b"\x93", b"."]
)  # fmt: skip


@settings(max_examples=150)
@given(steps=st.lists(INSTRUCTIONS, max_size=40))
def test_random_programs_do_what_python_says_or_are_refused(
    tmp_path: Path, steps: list[bytes]
) -> None:
    content = START + b"".join(steps) + b"."
    try:
        value = load(tmp_path, content)
    except CaptureError:
        return
    assert type(value) is type(pickle.Unpickler(io.BytesIO(content)).load())
