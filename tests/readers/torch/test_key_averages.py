"""Tables that `key_averages().table()` printed, in the layouts of several versions of PyTorch."""

from __future__ import annotations

import gzip
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusight.errors import CaptureError, DamagedCaptureError, GpusightError, NotACaptureError
from gpusight.readers.open import open_trace
from gpusight.readers.torch.key_averages import key_averages_source
from gpusight.trace.trace import Trace
from tests.shared import DATA, SHARED, name, needs_shared

REAL = DATA / "gpt_small_train_key_averages.txt"
EVERY = sorted(SHARED.glob("torch/*_key_averages.txt"))

CPU = ["Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg"]
CUDA = ["Self CUDA", "Self CUDA %", "CUDA total", "CUDA time avg"]
CUDA_MEMORY = ["CPU Mem", "Self CPU Mem", "CUDA Mem", "Self CUDA Mem"]
MM = ["aten::mm", "6.33%", "9.485ms", "9.20%", "13.800ms", "37.397us"]
KERNEL = ["void sgemm<float, 4>(int)", "0.00%", "0.000us", "0.00%", "0.000us", "0.000us"]


def printed(
    headings: Sequence[str],
    *rows: Sequence[str],
    widths: Sequence[int] = (30,),
    left: bool = False,
    footers: Sequence[str] = (),
) -> str:
    """Print a table as PyTorch does: values wider than their column push the others aside."""
    default = 15 if left else 12
    sizes = [*widths, *[default] * len(headings)][: len(headings)]
    wide = {"Input Shapes": 35, "Source Location": 45}
    sizes = [wide.get(heading, size) for heading, size in zip(headings, sizes, strict=True)]
    to_left = [left or heading == "Source Location" for heading in headings]

    def line(cells: Sequence[str]) -> str:
        parts = zip(cells, sizes, to_left, strict=True)
        return "".join((c.ljust(n) if left else c.rjust(n)) + "  " for c, n, left in parts)

    rule = "".join("-" * size + "  " for size in sizes)
    return "\n".join([rule, line(headings), rule, *map(line, rows), rule, *footers, ""])


def opened(folder: Path, text: str | bytes) -> Trace:
    path = folder / "averages.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    trace = Trace(key_averages_source(path))
    trace.validate()
    return trace


def totals(trace: Trace, *columns: str) -> list[tuple[Any, ...]]:
    return trace.table("op_totals", columns).rows()


# The real ones -----------------------------------------------------------------------------------


def test_a_real_table() -> None:
    trace = open_trace(REAL, cache=False)
    trace.validate()
    table = trace.op_totals
    assert table.height == 60
    assert table.filter(pl.col("name") == "aten::mm").row(0, named=True) == {
        "name": "aten::mm",
        "side": "host",
        "calls": 369,
        "self_cpu_ns": 9_485_000,
        "cpu_ns": 13_800_000,
        "self_gpu_ns": 65_296_000,
        "gpu_ns": 65_296_000,
        "self_cpu_bytes": 0,
        "cpu_bytes": 0,
        "self_gpu_bytes": round(3.63 * 2**30),
        "gpu_bytes": round(3.63 * 2**30),
        "flops": 2_718_361_977_000,
        "shapes": None,
        "stack": None,
    }
    step = table.filter(pl.col("name").cast(str).str.starts_with("Optimizer.step"))
    assert step["side"].to_list() == ["gpu"]
    assert trace.diagnostics["text"].to_list() == [
        "Self CPU time total: 149.915ms",
        "Self CUDA time total: 119.988ms",
    ]
    assert set(trace.diagnostics["severity"]) == {"information"}
    assert trace.meta.source == "torch-key-averages"
    assert trace.meta.notes[1:] == (
        "rows are missing: those printed cover 30.8% of self CPU time",
        "33 names are truncated in the printed table",
    )


@needs_shared
@pytest.mark.parametrize("path", EVERY, ids=name)
def test_every_real_table_reads_whole(path: Path) -> None:
    trace = open_trace(path, cache=False)
    trace.validate()
    lines = path.read_text().splitlines()
    rules = [n for n, line in enumerate(lines) if line.startswith("-----")]
    assert trace.row_count("op_totals") == rules[2] - rules[1] - 1
    wanted = ("calls", "self_cpu_ns", "cpu_ns", "self_gpu_ns", "gpu_ns", "gpu_bytes")
    assert all(trace.has("op_totals", column) for column in wanted)
    assert not trace.table("op_totals", wanted).null_count().sum_horizontal().item()
    share = [float(re.findall(r"([\d.]+)%", line)[0]) for line in lines[rules[1] + 1 : rules[2]]]
    total = float(lines[rules[2] + 1].split()[-1].removesuffix("ms"))
    ours = trace.op_totals["self_cpu_ns"] / 1e6 / total * 100
    assert (ours - pl.Series(share)).abs().max() < 0.01  # type: ignore[operator]


# Layouts -----------------------------------------------------------------------------------------


def test_pytorch_1_4(tmp_path: Path) -> None:
    """The legacy profiler aligned to the left, and its headings were wider than their columns."""
    headings = [
        "Name", "Self CPU total %", "Self CPU total", "CPU total %", "CPU total", "CPU time avg",
        "CUDA total %", "CUDA total", "CUDA time avg", "Number of Calls", "Input Shapes",
    ]  # fmt: skip
    rows = [
        ["conv2d", "0.80%", "13.370us", "100.00%", "1.671ms", "1.671ms", "25.34%", "1.698ms",
         "1.698ms", "1", "[]"],
        ["addmm", "1.20%", "2.000us", "2.00%", "1.081s", "2.000us", "NaN", "0.000us", "0.000us",
         "12", "[[8], [4, 16], [16, 8]]"],
    ]  # fmt: skip
    footers = ["Self CPU time total: 15.370us", "CUDA time total: 1.698ms"]
    trace = opened(tmp_path, printed(headings, *rows, left=True, footers=footers))
    columns = ("name", "calls", "self_cpu_ns", "cpu_ns", "gpu_ns", "shapes", "side")
    assert totals(trace, *columns) == [
        ("conv2d", 1, 13_370, 1_671_000, 1_698_000, "[]", "host"),
        ("addmm", 12, 2_000, 1_081_000_000, 0, "[[8],[4,16],[16,8]]", "host"),
    ]
    assert not trace.has("op_totals", "self_gpu_ns")
    assert trace.diagnostics["text"].to_list() == footers
    assert len(trace.meta.notes) == 1


def test_pytorch_1_6_with_memory(tmp_path: Path) -> None:
    headings = [
        "Name", "Self CPU total %", "Self CPU total", "CPU total %", "CPU total", "CPU time avg",
        "CPU Mem", "Self CPU Mem", "Number of Calls",
    ]  # fmt: skip
    row = ["empty", "1.00%", "5.000us", "1.00%", "6.000us", "6.000us", "94.79 Mb", "-512 b", "21"]
    trace = opened(tmp_path, printed(headings, row, left=True))
    columns = ("self_cpu_ns", "cpu_ns", "cpu_bytes", "self_cpu_bytes", "side")
    assert totals(trace, *columns) == [(5_000, 6_000, round(94.79 * 2**20), -512, "host")]
    assert not trace.has("op_totals", "gpu_ns")


def test_pytorch_1_8_to_1_13(tmp_path: Path) -> None:
    headings = ["Name", *CPU, *CUDA, *CUDA_MEMORY, "# of Calls", "Total GFLOPs"]
    rows = [
        [*MM, "65.296ms", "54.42%", "65.296ms", "176.955us", "-4 b", "2.34 Kb", "876.65 Mb",
         "-367.99 Gb", "369", "2718.362"],
        [*KERNEL, "19.653ms", "16.38%", "19.653ms", "136.482us", "0 b", "0 b", "0 b", "0 b", "144",
         "--"],
    ]  # fmt: skip
    trace = opened(tmp_path, printed(headings, *rows))
    columns = ("name", "side", "calls", "self_gpu_ns", "gpu_ns", "flops")
    assert totals(trace, *columns) == [
        ("aten::mm", "host", 369, 65_296_000, 65_296_000, 2_718_362_000_000),
        ("void sgemm<float, 4>(int)", "gpu", 144, 19_653_000, 19_653_000, None),
    ]
    memory = ("cpu_bytes", "self_cpu_bytes", "gpu_bytes", "self_gpu_bytes")
    assert totals(trace, *memory)[0] == (
        -4, round(2.34 * 2**10), round(876.65 * 2**20), round(-367.99 * 2**30),
    )  # fmt: skip


def test_pytorch_1_8_gave_rates(tmp_path: Path) -> None:
    trace = opened(tmp_path, printed(["Name", *CPU, "# of Calls", "GFLOPS"], [*MM, "3", "12.5"]))
    assert not trace.has("op_totals", "flops")
    assert any("FLOP rates" in note for note in trace.meta.notes)


@pytest.mark.parametrize("device", ["XPU", "MTIA", "HPU", "NPU", "PRIVATEUSEONE"])
def test_other_devices_stand_in_the_place_of_cuda(tmp_path: Path, device: str) -> None:
    own = [heading.replace("CUDA", device) for heading in (*CUDA, *CUDA_MEMORY)]
    memory = ["0 B", "0 B", "1.50 KB", "2 B"]
    rows = [[*MM, "1.000ms", "1%", "2.000ms", "1us", *memory, "3"]]
    trace = opened(tmp_path, printed(["Name", *CPU, *own, "# of Calls"], *rows))
    columns = ("self_gpu_ns", "gpu_ns", "gpu_bytes", "self_gpu_bytes")
    assert totals(trace, *columns) == [(1_000_000, 2_000_000, 1536, 2)]


def test_of_two_devices_the_first_is_read(tmp_path: Path) -> None:
    npu = [heading.replace("CUDA", "NPU") for heading in CUDA]
    row = [*MM, "1.000ms", "1%", "2.000ms", "1us", "3.000ms", "1%", "4.000ms", "1us", "3"]
    trace = opened(tmp_path, printed(["Name", *CPU, *CUDA, *npu, "# of Calls"], row))
    assert totals(trace, "self_gpu_ns", "gpu_ns") == [(1_000_000, 2_000_000)]
    assert "of its devices, only CUDA is read, not NPU" in trace.meta.notes


def test_overloads_and_nodes(tmp_path: Path) -> None:
    headings = ["Name", "Overload Name", *CPU, "# of Calls", "Node ID"]
    rows = [["aten::add", "out", *MM[1:], "3", "0"], ["aten::add", "", *MM[1:], "4", "1"]]
    trace = opened(tmp_path, printed(headings, *rows, widths=(20, 20)))
    assert totals(trace, "name", "calls") == [("aten::add.out", 3), ("aten::add", 4)]
    assert any("different nodes" in note for note in trace.meta.notes)


def test_shapes_that_were_cut_end_in_dots(tmp_path: Path) -> None:
    headings = ["Name", *CPU, "# of Calls", "Input Shapes"]
    shapes = ["[[4, 512], []]", "[[32, 64, 112, 112], [64, 3, 7, 7],", "[[1], [2", ""]
    trace = opened(tmp_path, printed(headings, *([*MM, "1", shape] for shape in shapes)))
    assert trace.op_totals["shapes"].to_list() == [
        "[[4,512],[]]", "[[32,64,112,112],[64,3,7,7],...", "[[1],[2...", None,
    ]  # fmt: skip


STACKED = [
    ["conv", *MM[1:], "1", "/home/alice/net.py(30): forward"],
    ["", *[""] * 6, "...ib/python3.8/site-packages/torch/nn/mod.py(5): call"],
    ["", *[""] * 6, "<built-in method run>"],
    [""] * 8,
    ["copy", *MM[1:], "2", ""],
    [""] * 8,
]


def test_stacks(tmp_path: Path) -> None:
    text = printed(["Name", *CPU, "# of Calls", "Source Location"], *STACKED)
    trace = opened(tmp_path, text)
    assert totals(trace, "name", "calls", "stack") == [
        ("conv", 1, "~/net.py(30): forward;torch/nn/mod.py(5): call;<built-in method run>"),
        ("copy", 2, None),
    ]
    assert not any("are not rows" in note for note in trace.meta.notes)


def test_stacks_beside_operations_stand_below_each_others_headings(tmp_path: Path) -> None:
    """As PyTorch prints them, to this day."""
    rows = [
        [*MM, "1", "12.500", "train.py(30): forward"],
        ["", *[""] * 7, "train.py(40): a_name_wider_than_its_column"],
        [""] * 9,
        [*MM, "2", "--", ""],
        [""] * 9,
    ]
    headings = ["Name", *CPU, "# of Calls", "Source Location", "Total MFLOPs"]
    trace = opened(tmp_path, printed(headings, *rows))
    frames = "train.py(30): forward;train.py(40): a_name_wider_than_its_column"
    assert totals(trace, "calls", "flops", "stack") == [(1, 12_500_000, frames), (2, None, None)]


def test_values_wider_than_their_column(tmp_path: Path) -> None:
    """`time_unit="us"` prints long numbers; they shift what follows."""
    row = ["aten::mm", "6.33%", "123456789.125us", "9.20%", "1234567890.250us", "1us", "7"]
    trace = opened(tmp_path, printed(["Name", *CPU, "# of Calls"], row, [*MM, "8"]))
    assert totals(trace, "self_cpu_ns", "cpu_ns", "calls") == [
        (123_456_789_125, 1_234_567_890_250, 7),
        (9_485_000, 13_800_000, 8),
    ]


@pytest.mark.parametrize(
    ("cell", "ns"),
    [("0.000us", 0), ("37.397us", 37_397), ("1.2s", 1_200_000_000), ("-5.000us", -5_000),
     ("12.000ns", 12), ("NaN", None), ("--", None), ("", None), ("12 parsecs", None),
     ("9" * 18 + "s", None), ("9" * 40 + "s", None)],
)  # fmt: skip
def test_times(tmp_path: Path, cell: str, ns: int | None) -> None:
    row = [*MM[:2], cell, *MM[3:], "1"]
    trace = opened(tmp_path, printed(["Name", *CPU, "# of Calls"], row))
    assert trace.op_totals["self_cpu_ns"].to_list() == [ns]


# What surrounds a table --------------------------------------------------------------------------

ONE = printed(["Name", *CPU, "# of Calls"], [*MM, "3"], footers=["Self CPU time total: 9.485ms"])
INDENTED = "".join(f"    {line}\n" for line in ONE.splitlines())
COMMENTED = "".join(f"# {line}\n" for line in ONE.splitlines())
STRIPPED = "".join(f"{line.rstrip()}\n" for line in ONE.splitlines())
SURROUNDED = {
    "as it is": ONE,
    "carriage returns": ONE.replace("\n", "\r\n"),
    "a byte-order mark": b"\xef\xbb\xbf" + ONE.encode(),
    "UTF-16, as PowerShell writes": ONE.encode("utf-16"),
    "chatter": f"STAGE:2023 Completed\n$ python train.py\n{ONE}\ndone --- in 3 s\n$ ",
    "a progress bar": f" 0%|   | 0/9 [00:00<?, ?it/s]\r{ONE}",
    "indented": INDENTED,
    "commented out": COMMENTED,
    "without trailing spaces": STRIPPED,
    "the first line behind a log's prefix": f"[INFO 12:00:01 - main] {ONE}",
    "compressed": gzip.compress(ONE.encode()),
    "bytes that are not UTF-8": b"\xff\xfe\xfa caf\xe9\n"[2:] + ONE.encode(),
}


@pytest.mark.parametrize("text", SURROUNDED.values(), ids=SURROUNDED.keys())
def test_surroundings_do_not_matter(tmp_path: Path, text: str | bytes) -> None:
    trace = opened(tmp_path, text)
    assert totals(trace, "name", "self_cpu_ns", "calls") == [("aten::mm", 9_485_000, 3)]
    assert trace.diagnostics["text"].to_list() == ["Self CPU time total: 9.485ms"]
    assert len(trace.meta.notes) == 1


def test_of_several_tables_the_first_is_read(tmp_path: Path) -> None:
    other = printed(["Name", *CPU, "# of Calls"], ["other", *MM[1:], "9"], [*MM, "3"])
    trace = opened(tmp_path, f"{ONE}\n{other}\n{ONE}")
    assert trace.op_totals["calls"].to_list() == [3]
    assert "the file holds 3 tables; the first is read" in trace.meta.notes


def test_a_title_and_top_level_operators(tmp_path: Path) -> None:
    wide = "=" * 90
    text = f"{wide}\nmy run\n{wide}\nThis report only display top-level ops statistics\n{ONE}"
    trace = opened(tmp_path, text)
    assert "nested operators were not printed" in trace.meta.notes


def test_a_table_cut_off(tmp_path: Path) -> None:
    whole = printed(["Name", *CPU, "# of Calls"], [*MM, "3"], [*MM, "4"], [*MM, "5"])
    text = whole[: whole.rindex("13.800ms")]
    trace = opened(tmp_path, text)
    assert trace.op_totals["calls"].to_list() == [3, 4]
    assert any("may be truncated" in note for note in trace.meta.notes)
    assert "1 lines in the table are not rows" in trace.meta.notes


def test_lines_of_others_within_a_table(tmp_path: Path) -> None:
    lines = ONE.splitlines()
    text = "\n".join([*lines[:3], "WARNING: something else", "", *lines[3:]])
    trace = opened(tmp_path, text)
    assert trace.op_totals["calls"].to_list() == [3]
    assert "1 lines in the table are not rows" in trace.meta.notes


def test_names_with_spaces_dots_and_nothing(tmp_path: Path) -> None:
    names = ["Memcpy HtoD (Pinned -> Device)", "two  spaces", "void cut<at::nat...", "", "----"]
    rows = [[n, *MM[1:], "1"] for n in names]
    trace = opened(tmp_path, printed(["Name", *CPU, "# of Calls"], *rows, widths=(40,)))
    assert trace.op_totals["name"].to_list() == [*names[:3], "[no name]", "----"]
    assert "1 names are truncated in the printed table" in trace.meta.notes


def test_the_same_name_on_both_sides(tmp_path: Path) -> None:
    rows = [
        ["step", *MM[1:], "0.000us", "0%", "5.000us", "1us", "3"],
        ["step", *KERNEL[1:], "9.000us", "9%", "9.000us", "3us", "3"],
        ["idle", *KERNEL[1:], "0.000us", "0%", "0.000us", "0us", "1"],
    ]
    trace = opened(tmp_path, printed(["Name", *CPU, *CUDA, "# of Calls"], *rows))
    assert totals(trace, "name", "side") == [("step", "host"), ("step", "gpu"), ("idle", "host")]


# What is no table --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Self CPU time is what an operator takes itself.\n",
        "Name  Self CPU %  # of Calls\naten::mm  1%  3\n",
        printed(["Name", *CPU], MM),
        "Name  Self CPU\n---  ---\n",
        "Self CPU",
        "",
    ],
    ids=["prose", "no dashes", "no calls", "two columns", "a word", "nothing"],
)
def test_texts_without_a_table(tmp_path: Path, text: str) -> None:
    with pytest.raises(NotACaptureError, match=r"no torch\.profiler table.*key_averages"):
        opened(tmp_path, text)


def test_a_table_without_rows(tmp_path: Path) -> None:
    with pytest.raises(DamagedCaptureError, match="its table has no rows"):
        opened(tmp_path, printed(["Name", *CPU, "# of Calls"]))


def test_a_damaged_compressed_file(tmp_path: Path) -> None:
    with pytest.raises(DamagedCaptureError, match="compressed data ends early"):
        opened(tmp_path, gzip.compress(REAL.read_bytes())[:1000])


def test_long_files_are_searched_for_a_while(tmp_path: Path) -> None:
    path = tmp_path / "long.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(ONE.encode())
        for _ in range(70):
            file.write(b"x" * (1 << 20))
    trace = Trace(key_averages_source(path))
    assert trace.row_count("op_totals") == 1
    assert "the file is long: only its beginning was searched for tables" in trace.meta.notes


def test_many_tables_and_many_lines_take_no_time(tmp_path: Path) -> None:
    began = time.process_time()
    heading = "\n".join(ONE.splitlines()[:3]) + "\n"
    with pytest.raises(CaptureError):
        opened(tmp_path, heading * 20_000)
    row = ONE.splitlines()[3] + "\n"
    trace = opened(tmp_path, heading + row * 50_000)
    assert Counter(trace.op_totals["calls"]) == {3: 50_000}
    noise = opened(tmp_path, ONE[: ONE.index("9.20%")] + "7\n" + row + "x\n" * 300_000)
    assert noise.op_totals["calls"].to_list() == [3]
    assert time.process_time() - began < 20


@settings(max_examples=100)
@given(data=st.data())
def test_damage_does_no_harm(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(REAL.read_bytes())
    del content[data.draw(st.integers(0, len(content))) :]
    for _ in range(data.draw(st.integers(0, 5))):
        at = data.draw(st.integers(0, 1200) | st.integers(0, len(content)))
        content[at : at + 1] = data.draw(st.binary(max_size=3))
    try:
        opened(tmp_path, bytes(content))
    except GpusightError as error:
        message = str(error)
        if not message.isprintable():
            raise AssertionError(message) from error
