"""What ncu prints, in the layouts of several years, pages and places of the world."""

from __future__ import annotations

import gzip
import lzma
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gpusight.errors import DamagedCaptureError, GpusightError, NotACaptureError, UsageError
from gpusight.readers.ncu.text_metrics import notation_of, numbers
from gpusight.readers.open import open_trace
from gpusight.sniff import refuse_capture
from gpusight.trace.trace import Trace
from tests.shared import SHARED, needs_shared

PUBLIC = sorted(SHARED.glob("public/ncu_csv/*"))
OWN = SHARED / "ncu"
TIME = "gpu__time_duration.sum"
BYTES = "dram__bytes.sum"
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"

COLUMNS_12 = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context",
    "Stream", "Section Name", "Metric Name", "Metric Unit", "Metric Value",
)  # fmt: skip
COLUMNS_15 = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
    "Block Size", "Grid Size", "Device", "CC", "Section Name", "Metric Name", "Metric Unit",
    "Metric Value",
)  # fmt: skip
RULES = (
    "Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup",
)  # fmt: skip
NVTX = (
    "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
    "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
)
WHOSE = ("7", "app", "host", "add(int, float *)", "1", "7", "(128, 2, 1)", "(32, 4, 5)", "0", "9.0")


def row(*cells: str, separator: str = ",") -> str:
    return separator.join('"' + cell.replace('"', '""') + '"' for cell in cells)


def long_row(launch: str, metric: str, unit: str, value: str, **changes: str) -> str:
    about = dict(zip(COLUMNS_15[1:11], WHOSE, strict=True)) | {
        key.replace("_", " "): text for key, text in changes.items() if key != "section"
    }
    section = changes.get("section", "Command line profiler metrics")
    return row(launch, *about.values(), section, metric, unit, value)


def long_table(*rows: str) -> str:
    return "\n".join([row(*COLUMNS_15), *rows, ""])


SMALL = long_table(long_row("0", TIME, "us", "1.50"), long_row("0", BYTES, "Kbyte", "2,048.50"))


def opened(folder: Path, text: str | bytes, name: str = "printed.csv") -> Trace:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    trace = open_trace(path, cache=False)
    assert trace.meta.source == "ncu-csv"
    trace.validate()
    return trace


def values(trace: Trace, launch: int = 0) -> dict[str, Any]:
    rows = trace.counters.filter(pl.col("launch") == launch)
    return {
        metric: text if value is None else value
        for metric, value, text in rows.select("metric", "value", "text").iter_rows()
    }


def only(frame: pl.DataFrame) -> dict[str, Any]:
    (result,) = frame.to_dicts()
    return result


# Layouts -----------------------------------------------------------------------------------------


def test_fifteen_columns(tmp_path: Path) -> None:
    trace = opened(tmp_path, SMALL)
    assert values(trace) == {TIME: 1500.0, BYTES: 2_048_500.0}
    profile = only(trace.profiles)
    assert {key: profile[key] for key in profile if profile[key] is not None} == {
        "launch": 0, "kind": "kernel", "name": "add(int, float *)", "base_name": "add",
        "device": 0, "context": 1, "stream": 7, "process": 0,
        "grid_x": 32, "grid_y": 4, "grid_z": 5, "block_x": 128, "block_y": 2, "block_z": 1,
        "duration_ns": 1500.0, "compute_major": 9, "compute_minor": 0,
    }  # fmt: skip
    assert only(trace.processes) == {"process": 0, "pid": 7, "host": 0, "name": "app"}
    device = only(trace.devices)
    assert (device["name"], device["compute_major"], device["compute_minor"]) == ("", 9, 0)
    assert trace.counters.get_column("unit").to_list() == ["ns", "byte"]
    assert not trace.meta.warnings


def test_twelve_columns_have_a_date_that_is_no_duration(tmp_path: Path) -> None:
    about = ("0", "7", "app", "host", "add", "2020-Apr-07 17:01:05", "1", "7", "GPU Speed Of Light")
    text = "\n".join(
        [
            row(*COLUMNS_12),
            "",
            row(*about, "Duration", "usecond", "39.60"),
            row(*about, "SM Frequency", "cycle/nsecond", "1.25"),
            row(*about, "SOL SM", "%", "5.00"),
        ]
    )
    trace = opened(tmp_path, text)
    assert values(trace) == {
        TIME: pytest.approx(39600.0),
        "gpc__cycles_elapsed.avg.per_second": 1.25e9,
        SM: 5.0,
    }
    assert only(trace.profiles)["duration_ns"] == pytest.approx(39600.0)
    labels = dict(trace.counters.select("metric", "label").iter_rows())
    assert labels[SM] == "SOL SM"


def test_rules_stand_between_metrics(tmp_path: Path) -> None:
    metric = long_row("0", "Duration", "us", "2", section="GPU Speed Of Light Throughput") + ","
    rule = row(
        "0", *WHOSE, "SpeedOfLight", "", "", "", "SOLBottleneck", "OPT",
        'Look at "DRAM", and its tables', "global", "12.50",
    )  # fmt: skip
    other = row("0", *WHOSE, "Occupancy", "", "", "", "Theory", "INF", "It is fine", "", "")
    text = "\n".join([row(*COLUMNS_15, *RULES), metric, rule, other])
    trace = opened(tmp_path, text)
    assert values(trace) == {TIME: 2000.0}
    columns = ("launch", "rule", "section", "kind", "message", "speedup_kind", "speedup_percent")
    assert trace.rule_results.select(columns).rows() == [
        (0, "SOLBottleneck", "SpeedOfLight", "optimization", 'Look at "DRAM", and its tables',
         "global", 12.5),
        (0, "Theory", "Occupancy", "information", "It is fine", None, None),
    ]  # fmt: skip


def test_items_of_charts_are_told_apart(tmp_path: Path) -> None:
    columns = (*COLUMNS_15[:12], "Body Item Label", *COLUMNS_15[12:], *RULES)

    def item(body: str, value: str) -> str:
        return row("0", *WHOSE, "My Section", body, "My Unit", "%", value) + ","

    trace = opened(tmp_path, "\n".join([row(*columns), item("One", "1"), item("Two", "2")]))
    assert values(trace) == {"My Section: One: My Unit": 1.0, "My Section: Two: My Unit": 2.0}
    assert any("unknown metrics: 2" in note for note in trace.meta.notes)


def test_labels_mean_different_things_in_different_sections(tmp_path: Path) -> None:
    label = "Memory Throughput"
    trace = opened(
        tmp_path,
        long_table(
            long_row("0", label, "%", "50", section="GPU Speed Of Light Throughput"),
            long_row("0", label, "Gbyte/second", "198.29", section="Memory Workload Analysis"),
        ),
    )
    assert values(trace) == {
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": 50.0,
        "dram__bytes.sum.per_second": pytest.approx(198.29e9),
    }


def test_a_label_may_have_the_name_behind_it(tmp_path: Path) -> None:
    trace = opened(tmp_path, long_table(long_row("0", f"My Time ({TIME})", "ns", "5")))
    result = only(trace.counters)
    assert (result["metric"], result["label"], result["value"]) == (TIME, "My Time", 5.0)


WIDE = (*COLUMNS_15[:11], TIME, BYTES, "device__attribute_display_name", "launch__sm_count")


def test_a_column_for_each_metric_and_a_row_of_units(tmp_path: Path) -> None:
    units = row(*[""] * 11, "ms", "Mbyte", "", "")
    one = row("0", *WHOSE, "0.25", "1,000.50", "NVIDIA H200", "132")
    two = row("3", *WHOSE, "n/a", "0", "NVIDIA H200", "132")
    trace = opened(tmp_path, "\n".join([row(*WIDE), units, one, two, ""]))
    assert values(trace, 0)[TIME] == 250_000.0
    assert values(trace, 0)[BYTES] == 1_000_500_000.0
    assert TIME not in values(trace, 3)
    assert trace.profiles.get_column("duration_ns").to_list() == [250_000.0, None]
    device = only(trace.devices)
    assert (device["name"], device["sm_count"]) == ("NVIDIA H200", 132)
    assert any("empty): 1" in note for note in trace.meta.notes)


def test_a_window_exports_units_in_its_headings(tmp_path: Path) -> None:
    columns = (
        "ID", "Function Name", "Demangled Name", "Process", "Device Name", "Grid Size",
        "Block Size [block]", "Duration [usecond]", "Compute Throughput [%]", f"{BYTES} [Gbyte]",
        "# Registers [register/thread]",
    )  # fmt: skip
    cells = (
        "4", "add", "void add<4>(int)", "[77] C:\\Users\\me\\app.exe", "NVIDIA A2",
        "32,     4,     1", "256,     1,     1", "12.50", "33.00", "2.00", "40",
    )  # fmt: skip
    trace = opened(tmp_path, "\ufeff" + "\r\n".join([row(*columns), row(*cells), ""]))
    assert values(trace, 4) == {
        TIME: 12_500.0,
        SM: 33.0,
        BYTES: 2e9,
        "launch__registers_per_thread": 40.0,
    }
    profile = only(trace.profiles)
    assert (profile["name"], profile["grid_y"], profile["block_x"]) == ("void add<4>(int)", 4, 256)
    assert only(trace.processes)["name"] == "app.exe"
    assert only(trace.devices)["name"] == "NVIDIA A2"


@pytest.mark.parametrize(
    "lines",
    [
        ('"ID","0","1"', '"Kernel Name","a(int, int)","b"', f'"{TIME} [us]","1.5","2"',
         '"smsp__cycles_elapsed.avg.per_second [Ghz]","1.25","1"'),
        ("Metric Name,Metric Unit,0,1", f"{TIME},us,1.5,2",
         "smsp__cycles_elapsed.avg.per_second,[Ghz],1.25,1"),
    ],
)  # fmt: skip
def test_a_row_for_each_metric_and_a_column_for_each_launch(
    tmp_path: Path, lines: tuple[str, ...]
) -> None:
    trace = opened(tmp_path, "\n".join([*lines, ""]))
    clock = "smsp__cycles_elapsed.avg.per_second"
    assert values(trace, 0) == {TIME: 1500.0, clock: 1.25e9}
    assert values(trace, 1) == {TIME: 2000.0, clock: 1e9}


def test_a_turned_table_of_one_launch_without_quotes(tmp_path: Path) -> None:
    lines = (
        "ID,3", "Function Name,add", "Grid Size,   32,     4,     1", "Block Size [block],64",
        f"{TIME} [ms],1.50", "dram__bytes_read.sum [Tbyte/s],2 {64}",
    )  # fmt: skip
    trace = opened(tmp_path, "\n".join(lines))
    profile = only(trace.profiles)
    assert (profile["launch"], profile["name"]) == (3, "add")
    assert (profile["grid_x"], profile["grid_y"], profile["block_x"]) == (32, 4, 64)
    assert values(trace, 3) == {TIME: 1.5e6, "dram__bytes_read.sum": 2e12}


SUMMARY = (
    "Process ID", "Process Name", "Host Name", "Kernel Name", "Block Size", "Grid Size", "Device",
    "CC", "Invocations", "Section Name", "Metric Name", "Metric Unit", "Minimum", "Maximum",
    "Average",
)  # fmt: skip


def test_summaries_are_averages(tmp_path: Path) -> None:
    def line(block: str, invocations: str, average: str) -> str:
        return row(
            "7", "app", "host", "add(int)", block, "(8, 1, 1)", "0", "8.9", invocations,
            "GPU Speed Of Light Throughput", "Duration", "usecond", "1.00", "9.00", average,
        )  # fmt: skip

    rows = [line("(32, 1, 1)", "14", "4.00"), line("(64, 1, 1)", "6", "2.00")]
    trace = opened(tmp_path, "\n".join([row(*SUMMARY), *rows]))
    assert trace.profiles.select("launch", "block_x", "duration_ns").rows() == [
        (0, 32, 4000.0),
        (1, 64, 2000.0),
    ]
    assert any("averages of 20 launches" in note for note in trace.meta.notes)


def test_a_summary_by_range(tmp_path: Path) -> None:
    columns = ("Domain", "Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg", *SUMMARY[3:])
    rest = "none:none:none:none:none:none"
    cells = (
        "<default domain>", f' "epoch:{rest}"  "step:{rest}" ', "add(int)", "(32, 1, 1)",
        "(8, 1, 1)", "0", "8.9", "3", "S", TIME, "ns", "1", "3", "2",
    )  # fmt: skip
    trace = opened(tmp_path, "\n".join([row(*columns), row(*cells)]))
    assert only(trace.profiles)["ranges"] == "epoch/step"
    assert values(trace) == {TIME: 2.0}


def test_rows_of_a_summary_that_ncu_shifts_are_left_out(tmp_path: Path) -> None:
    shifted = row("0", "", "", "", "", "sm__x.sum", "", "", "", "400", "0", "", "", "", "")
    with pytest.raises(DamagedCaptureError, match="broken"):
        opened(tmp_path, "\n".join([row(*SUMMARY), shifted]))


def test_nvtx_columns(tmp_path: Path) -> None:
    rest = "none:none:none:none:none:none"
    pushed = f'9  "<default domain>:start:{rest}"  "<default domain>:a:b:{rest}"  "lib:io:{rest}" '
    started = f'"0:<default domain>:epoch:{rest}"'
    columns = (*COLUMNS_15[:4], *NVTX, *COLUMNS_15[4:])
    cells = ("0", *WHOSE[:3], pushed, started, *WHOSE[3:], "S", TIME, "ns", "1")
    trace = opened(tmp_path, "\n".join([row(*columns), row(*cells)]))
    assert only(trace.profiles)["ranges"] == "start/a:b; lib:io; epoch"


def test_parts_of_counters(tmp_path: Path) -> None:
    listed = "2338 (1: 8; 0x10: 9; Load: 3)"
    trace = opened(
        tmp_path, long_table(long_row("0", "launch__occupancy_per_block_size", "", listed))
    )
    result = only(trace.counters)
    assert (result["value"], result["text"], result["instances"]) == (2338.0, None, 3)
    assert trace.counter_instances.select("instance", "key", "value").rows() == [
        (1, None, 8.0),
        (16, None, 9.0),
        (None, "Load", 3.0),
    ]


def test_the_source_page_gives_parts_by_instruction(tmp_path: Path) -> None:
    page = "\n".join(
        [
            row("Kernel Name", "add(int, float *)") + ",",
            row("Address", "Source", "# Samples", "Instructions Executed", "stall_long_sb",
                "Avg. Threads Executed", "Address Space"),
            row("0x7f00", "  MOV R1, c[0x0][0x28] ", "9", "32,768", "4", "32", "-"),
            row("0x7f10", "  LDG R2 ", "2", "32,768", "1", "31", "Global(2)"),
        ]
    )  # fmt: skip
    trace = opened(tmp_path, f"{page}\n{page}\n")  # ncu prints each page twice
    assert only(trace.profiles)["name"] == "add(int, float *)"
    samples = trace.counter_instances.filter(pl.col("metric") == "smsp__pcsamp_sample_count")
    assert samples.select("instance", "value").rows() == [(0x7F00, 9.0), (0x7F10, 2.0)]
    assert values(trace) == {
        "smsp__pcsamp_sample_count": 11.0,
        "inst_executed": 65536.0,
        "smsp__pcsamp_warps_issue_stalled_long_scoreboard": 5.0,
        "derived__avg_thread_executed": None,
        "memory_type": None,
    }


def test_a_kernel_from_several_files_has_a_source_page_for_each(tmp_path: Path) -> None:
    def page(file: str, kernel: str, *addresses: str) -> list[str]:
        return [
            row("File Path", f"/srv/{file}"),
            row("Function Name", kernel),
            row("Line No", "Source", "Address", "Source", "Instructions Executed"),
            row("9", "int a = b;", "-", "-", "99"),
            *(row("", "", address, " MOV ", "1") for address in addresses),
        ]

    lines = [
        *page("a.h", "f(int)", "0x10", "0x20"),
        *page("a.cu", "f(int)", "0x20", "0x30"),
        *page("a.cu", "g(int)", "0x50"),
    ]
    trace = opened(tmp_path, "\n".join(lines))
    assert trace.profiles.get_column("name").to_list() == ["f(int)", "g(int)"]
    assert values(trace, 0) == {"inst_executed": 3.0}
    assert values(trace, 1) == {"inst_executed": 1.0}


def test_a_graph_measured_as_a_whole(tmp_path: Path) -> None:
    trace = opened(tmp_path, long_table(long_row("0", TIME, "ns", "1", Kernel_Name="graph")))
    profile = only(trace.profiles)
    assert (profile["kind"], profile["name"], profile["grid_x"]) == ("graph", "(graph)", None)


def test_source_files_have_quotes_that_are_not_doubled(tmp_path: Path) -> None:
    lines = ['"File Name","/home/me/code/app.cu"', '"Line No","Source"']
    lines += ['"1","#include "common.h""', '"2",""', '"3","int a = b, c;"', ""]
    trace = opened(tmp_path, "\n".join(lines))
    result = only(trace.source_files)
    assert result["content"] == '#include "common.h"\n\nint a = b, c;'
    assert "/home/me" not in result["path"]


def test_the_session_page(tmp_path: Path) -> None:
    text = "\n".join(
        [
            "Launch Settings",
            row("Launch Attribute", "Value"),
            row("Profiler Command Line", "ncu --token SECRET app"),
            "",
            "Session Info",
            row("Session Attribute", "Value"),
            row("Host Name", "secret-host"),
            row("CUDA Version", "12.8"),
            row("Nsight Compute Target", "2024.1.1.0 (build 33998838) (public-release)"),
            "",
            row("Process Id", "Process Name"),
            row("39828", "/srv/code/app.out"),
            "",
            row("Device Attribute", "Device 0"),
            row("multiprocessor_count", "22"),
            row("display_name", "NVIDIA GeForce GTX 1660 SUPER"),
        ]
    )
    trace = opened(tmp_path, text)
    device = only(trace.devices)
    assert (device["name"], device["sm_count"]) == ("NVIDIA GeForce GTX 1660 SUPER", 22)
    assert only(trace.processes)["name"] == "app.out"
    assert (trace.meta.tool_version, trace.meta.cuda_version) == ("2024.1.1.0", "12.8")
    assert "secret" not in repr(trace.meta).lower()


# Pages of text -----------------------------------------------------------------------------------

PAGE = """\
==PROF== Connected to process 12451 (/usr/bin/python3.12)
loss 0.5, step 1
[12451] python3.12@127.0.0.1
  void add<16, long>(char *, T2 *) (2048, 1, 1)x(192, 2, 1), Context 1, Stream 7, Device 0, CC 9.0

    NVTX Push/Pop Stack for Thread 12451:
      <default domain>
        <0,start>
        <1,step_0>
    Warning: Data collection happened without fixed GPU frequencies.
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- ------------
    Metric Name             Metric Unit Metric Value
    ----------------------- ----------- ------------
    SM Frequency                    Ghz         1.97
    Duration                         us     1,130.85
    Compute (SM) Throughput           %         6.19
    ----------------------- ----------- ------------

    OPT   Est. Local Speedup: 93.81%
          All compute pipelines are under-utilized. Either this workload is very small or it
          doesn't issue enough warps.

          > Key Performance Indicators: Use the guidance related to these metrics.
          -------------- ----------- ----------------
          Metric Name    Value       Guidance
          -------------- ----------- ----------------
          sm__x.sum      3.000000    Increase it
    ----- ----------------------------------
    WRN   Something is missing.

    Section: Launch Statistics
    INF   It is fine.

  mul(int, int) (1, 1, 1)x(32, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- ------------
    Metric Name             Metric Unit Metric Value
    ----------------------- ----------- ------------
    Duration                         ms         2.00
    ----------------------- ----------- ------------
"""

OLD_PAGE = """\
==PROF== Connected to process 69516 (/tmp/transpose)
  transpose_device(float *, int), 2023-Mar-17 14:00:06, Context 1, Stream 7
    Section: GPU Speed Of Light
    ---------------------------------------------------- --------------- ---------------
    SM Frequency                                           cycle/nsecond            1,35
    Elapsed Cycles                                                 cycle      13.490.336
    Duration                                                     msecond            9,97
    ---------------------------------------------------- --------------- ---------------
"""


def test_a_page_of_text(tmp_path: Path) -> None:
    trace = opened(tmp_path, PAGE)
    columns = ("name", "grid_x", "block_y", "compute_major", "duration_ns", "ranges")
    assert trace.profiles.select(columns).rows() == [
        (
            "void add<16, long>(char *, T2 *)",
            2048,
            2,
            9,
            pytest.approx(1_130_850.0),
            "start/step_0",
        ),
        ("mul(int, int)", 1, 1, 9, 2e6, None),
    ]
    assert values(trace)[SM] == 6.19
    messages = ("section", "kind", "speedup_kind", "speedup_percent", "message")
    advice = (
        "All compute pipelines are under-utilized. Either this workload is very small or it "
        "doesn't issue enough warps."
    )
    assert trace.rule_results.select(messages).rows() == [
        ("GPU Speed Of Light Throughput", "optimization", "local", 93.81, advice),
        ("GPU Speed Of Light Throughput", "warning", None, None, "Something is missing."),
        ("Launch Statistics", "information", None, None, "It is fine."),
    ]
    assert len(values(trace)) == 3
    assert only(trace.processes)["pid"] == 12451
    assert "without fixed GPU frequencies" in only(trace.diagnostics)["text"]


RAW_PAGE = """\
[8472] app@127.0.0.1
  add(int) (1, 1, 1)x(32, 1, 1), Context 1, Stream 7, Device 0, CC 8.9
  Metric Name                        Metric Unit Metric Value
  ---------------------------------- ----------- ------------
  device__attribute_display_name                 NVIDIA GeFor
                                                      ce RTX
                                                         4090
  sm__ops_path_tensor.sum                        690,442,000,
                                                      000,000
  gpu__time_duration.sum                      us         1.50

"""


def test_values_of_a_raw_page_go_over_several_lines(tmp_path: Path) -> None:
    result = values(opened(tmp_path, RAW_PAGE))
    assert result == {
        "device__attribute_display_name": "NVIDIA GeForce RTX 4090",
        "sm__ops_path_tensor.sum": 690_442_000_000_000.0,
        TIME: 1500.0,
    }


def test_a_page_that_begins_with_its_process(tmp_path: Path) -> None:
    trace = opened(tmp_path, PAGE[PAGE.index("[12451]") :])
    assert trace.row_count("profiles") == 2


def test_an_old_page_has_no_headings_and_may_be_european(tmp_path: Path) -> None:
    trace = opened(tmp_path, OLD_PAGE)
    assert values(trace) == {
        "gpc__cycles_elapsed.avg.per_second": 1.35e9,
        "gpc__cycles_elapsed.max": 13_490_336.0,
        TIME: pytest.approx(9.97e6),
    }


# Around the tables -------------------------------------------------------------------------------


def test_chatter_before_between_and_after(tmp_path: Path) -> None:
    first, second = long_row("0", TIME, "ns", "1"), long_row("1", TIME, "ns", "2")
    text = "\n".join(
        [
            "==PROF== Connected to process 5253 (/home/me/app)",
            'the program says "hello, world',
            "==WARNING== Could not open /home/me/secret/file.cu for reading",
            row(*COLUMNS_15), first, "", "42,43", '==PROF== Profiling "add" - 1: 0%....50%....100%',
            second, "==ERROR== The application returned an error code (11).", "done: 3",
        ]
    )  # fmt: skip
    trace = opened(tmp_path, text)
    assert trace.profiles.get_column("duration_ns").to_list() == [1.0, 2.0]
    assert trace.diagnostics.select("severity", "text").rows() == [
        ("warning", "Could not open file.cu for reading"),
        ("error", "The application returned an error code (11)."),
    ]


@pytest.mark.parametrize(
    "content",
    [
        SMALL.encode("utf-8-sig"),
        SMALL.encode("utf-16"),
        SMALL.encode("utf-16-le"),
        b"\xfe\xff" + SMALL.encode("utf-16-be"),
        SMALL.replace("\n", "\r\n").encode(),
        gzip.compress(SMALL.encode()),
        lzma.compress(SMALL.encode()),
        ("x" * 100_000 + "\n" + SMALL).encode(),
        SMALL.replace('","', '";"').encode(),
        SMALL.replace('","', '"\t"').encode(),
        SMALL.removesuffix("\n").encode(),
    ],
    ids=lambda content: str(content[:3]),
)
def test_every_encoding_and_separator_gives_the_same(tmp_path: Path, content: bytes) -> None:
    trace = opened(tmp_path, content, "printed.log")
    assert values(trace) == {TIME: 1500.0, BYTES: 2_048_500.0}
    assert not trace.meta.warnings


def test_names_with_commas_quotes_and_line_feeds(tmp_path: Path) -> None:
    name = 'void f<"a,b", 2>(int,\nfloat)'
    trace = opened(tmp_path, long_table(long_row("0", TIME, "ns", "1", Kernel_Name=name)))
    assert only(trace.profiles)["name"] == name


def test_launches_are_told_by_their_number(tmp_path: Path) -> None:
    """Rows of a launch need not follow each other, and tables may stand below each other."""
    text = long_table(
        long_row("5", TIME, "ns", "50"), long_row("2", TIME, "ns", "20")
    ) + long_table(long_row("5", BYTES, "byte", "500"), long_row("2", BYTES, "byte", "200"))
    trace = opened(tmp_path, text)
    assert trace.profiles.get_column("launch").to_list() == [5, 2]
    assert values(trace, 5) == {TIME: 50.0, BYTES: 500.0}
    assert values(trace, 2) == {TIME: 20.0, BYTES: 200.0}


def test_processes_that_count_from_zero_are_numbered_anew(tmp_path: Path) -> None:
    other = {"Process_ID": "8", "Process_Name": "/srv/other"}
    trace = opened(
        tmp_path,
        long_table(long_row("0", TIME, "ns", "1"), long_row("0", TIME, "ns", "2", **other)),
    )
    assert trace.profiles.select("launch", "process", "duration_ns").rows() == [
        (0, 0, 1.0),
        (1, 1, 2.0),
    ]
    assert trace.processes.get_column("name").to_list() == ["app", "other"]
    assert any("renumbered" in note for note in trace.meta.notes)


def test_tables_without_numbers_of_launches(tmp_path: Path) -> None:
    lines = ["Kernel Name,Metric Name,Metric Unit,Metric Value"]
    lines += [f"{k},{m},ns,{v}" for k, m, v in [("a", TIME, 1), ("a", BYTES, 2), ("b", TIME, 3),
                                                ("a", TIME, 4)]]  # fmt: skip
    trace = opened(tmp_path, "\n".join(lines))
    assert trace.profiles.select("name", "duration_ns").rows() == [
        ("a", 1.0), ("b", 3.0), ("a", 4.0),
    ]  # fmt: skip
    assert any("launches are not numbered" in note for note in trace.meta.notes)


def test_values_given_twice(tmp_path: Path) -> None:
    section = "GPU Speed Of Light Throughput"
    same = [
        long_row("0", TIME, "us", "1.23"),
        long_row("0", "Duration", "ns", "1,234", section=section),
    ]
    assert not any("twice" in note for note in opened(tmp_path, long_table(*same)).meta.notes)
    differ = [long_row("0", TIME, "us", "1.23"), long_row("0", TIME, "us", "5.00")]
    trace = opened(tmp_path, long_table(*differ))
    assert values(trace) == {TIME: 1230.0}
    assert any("the first is used): 1" in note for note in trace.meta.notes)


def test_no_host_name_is_read(tmp_path: Path) -> None:
    trace = opened(tmp_path, long_table(long_row("0", TIME, "ns", "1", Host_Name="secret-host")))
    tables = ("profiles", "counters", "devices", "processes")
    assert not any("secret-host" in repr(trace.table(t).to_dicts()) for t in tables)


# Numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1,234.5", "1,234", "12"], [1234.5, 1234.0, 12.0]),
        (["1.234,5", "1.234", "0,34"], [1234.5, 1234.0, 0.34]),
        (["1'234'567", "0.34"], [1234567.0, 0.34]),
        (["13 181 137", "875,84", "1\u202f234\u202f567", "1\u00a0000"],
         [13181137.0, 875.84, 1234567.0, 1000.0]),
        (["13.490.336", "6,72"], [13490336.0, 6.72]),
        (["12,34,567", "1,234"], [1234567.0, 1234.0]),
        (["0.123", "1.500"], [0.123, 1.5]),
        (["77.969567", "1,234"], [77.969567, 1234.0]),
        (["1e5", "0x1F", "-5", "+3"], [1e5, 31.0, -5.0, 3.0]),
        (["n/a", "(!) n/a", "no data", "nan", "inf", "-inf", "", "NVIDIA H200", "0-23", "1.2.3"],
         [None] * 10),
        (["1,234.5", "0,34"], [1234.5, 0.34]),
    ],
)  # fmt: skip
def test_numbers_of_all_places(texts: list[str], expected: list[float | None]) -> None:
    series = pl.Series(texts)
    assert numbers(series, notation_of(series, ",")).to_list() == expected


@pytest.mark.parametrize(
    ("text", "separator", "expected"),
    [("1,234", ",", 1234.0), ("1,234", ";", 1.234), ("1.234", ",", 1.234), ("1.234", ";", 1234.0)],
)
def test_numbers_that_could_be_either_are_told(text: str, separator: str, expected: float) -> None:
    series = pl.Series([text])
    notation = notation_of(series, separator)
    assert numbers(series, notation).to_list() == [expected]
    assert notation.note is not None


def test_a_european_file(tmp_path: Path) -> None:
    text = long_table(
        long_row("0", TIME, "us", "1.234,50"), long_row("0", BYTES, "byte", "1.234", CC="9,0")
    ).replace('","', '";"')
    trace = opened(tmp_path, text)
    assert values(trace) == {TIME: 1_234_500.0, BYTES: 1234.0}


def test_what_is_not_measured_is_left_out_and_texts_are_kept(tmp_path: Path) -> None:
    rows = [
        long_row("0", f"a__{text.strip('(!) /')}.sum", "", text) for text in ("n/a", "nan", "inf")
    ]
    rows.append(long_row("0", "launch__func_cache_config", "", "CachePreferNone"))
    trace = opened(tmp_path, long_table(*rows))
    assert values(trace) == {"launch__func_cache_config": "CachePreferNone"}
    assert any("empty): 3" in note for note in trace.meta.notes)


# Broken files ------------------------------------------------------------------------------------


def test_a_long_table_that_is_cut_off(tmp_path: Path) -> None:
    trace = opened(tmp_path, SMALL[:-12])
    assert values(trace) == {TIME: 1500.0}
    assert trace.meta.warnings == ("truncated or broken rows, skipped: 1",)


def test_a_wide_table_that_is_cut_off(tmp_path: Path) -> None:
    units, cells = row(*[""] * 11, "ns", "byte", "", ""), row("0", *WHOSE, "5", "6", "NVIDIA", "13")
    trace = opened(tmp_path, "\n".join([row(*WIDE), units, cells])[:-7])
    assert values(trace) == {TIME: 5.0, BYTES: 6.0}
    assert trace.meta.warnings


def test_a_row_without_its_last_quote(tmp_path: Path) -> None:
    good, bad = long_row("1", TIME, "ns", "2"), long_row("0", TIME, "ns", "1")[:-1]
    trace = opened(tmp_path, long_table(bad, good))
    assert trace.profiles.get_column("launch").to_list() == [1]
    assert trace.meta.warnings


def test_a_table_of_another_kind_between_rows_is_not_broken(tmp_path: Path) -> None:
    one, two = (long_row("0", metric, "", "1") for metric in ("launch__block_size", "launch__x"))
    aside = '"GPU ID","GPU Name","CPU Affinity"\n"0","NVIDIA H200","0-15"'
    whole = opened(tmp_path, long_table(one, aside, two))
    assert set(values(whole)) == {"launch__block_size", "launch__x"}
    assert not whole.meta.warnings
    cut = opened(tmp_path, long_table(one, aside, two, two[:-12]), "cut.csv")
    assert cut.meta.warnings == ("truncated or broken rows, skipped: 1",)


def test_zero_bytes(tmp_path: Path) -> None:
    trace = opened(tmp_path, SMALL.encode() + bytes(1000))
    assert values(trace) == {TIME: 1500.0, BYTES: 2_048_500.0}
    assert "zero bytes" in trace.meta.warnings[0]
    with pytest.raises(DamagedCaptureError, match="zero bytes"):
        opened(tmp_path, row(*COLUMNS_15).encode() + b"\n" + bytes(1000))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (row(*COLUMNS_15) + "\n", "no rows"),
        ("==PROF== Connected to process 1\n==WARNING== No kernels were profiled.\n", "no kernels"),
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", "permission"),
        ('"Line No","Source"\n"1",".version 8.1"\n', "but no metrics"),
        ("==PROF== Connected to process 1\n0,1,2\n", "no Nsight Compute table"),
        ("ID,Kernel Name," + ",".join(f"a__{n}.sum" for n in range(50_000)) + "\n", "20,000 cells"),
    ],
)
def test_files_without_launches_say_why(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(GpusightError, match=expected) as error:
        opened(tmp_path, text)
    assert "\n" not in str(error.value)
    assert error.value.hint


def test_texts_of_others_are_no_captures(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("Name,Calls,Time\nadd,3,4\n")
    with pytest.raises(NotACaptureError):
        open_trace(path, cache=False)


def test_unclosed_quotes_cost_no_time(tmp_path: Path) -> None:
    head = long_table(long_row("0", TIME, "ns", "1"))
    began = time.process_time()
    for rest in ('"1","7","app', '"1","7","app\nmore'):
        trace = opened(tmp_path, head + (rest + "\n") * 20_000)
        assert trace.row_count("profiles") == 1
        assert trace.meta.warnings
    assert time.process_time() - began < 5


def test_much_white_space_costs_no_time(tmp_path: Path) -> None:
    began = time.process_time()
    blank = tmp_path / "blank.txt"
    blank.write_text("a" + "\n" * 1_000_000)
    with pytest.raises(NotACaptureError):
        open_trace(blank, cache=False)
    trace = opened(tmp_path, f"==WARNING=={' ' * 1_000_000}slow  \n{SMALL}")
    assert trace.diagnostics.get_column("text").to_list() == ["slow"]
    assert time.process_time() - began < 5


@pytest.mark.parametrize("line", ["", '"1","k"', '"1","k","1","1"'])
def test_short_lines_below_a_wide_table_take_little_memory(tmp_path: Path, line: str) -> None:
    metrics = [f"a__{n}.sum" for n in range(5_000)]
    head = [row("ID", "Kernel Name", *metrics), row("0", "add", *["1"] * len(metrics))]
    trace = opened(tmp_path, "\n".join([*head, *[line] * 20_000]))
    # Each short row would take as much as a whole one: 20,000 of them were 1.6 GB.
    assert trace.row_count("counters") < 20_000
    assert set(values(trace).values()) == {1.0}
    assert bool(trace.meta.warnings) == bool(line)


@pytest.mark.parametrize("seed", range(8))
def test_damage_never_shows_a_traceback(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    base = [SMALL, PAGE, OLD_PAGE, "\n".join([row(*WIDE), row("0", *WHOSE, "1", "2", "x", "3")])]
    for _ in range(15):
        content = bytearray(dice.choice(base).encode())
        for _ in range(dice.randrange(12)):
            at = dice.randrange(len(content))
            if dice.random() < 0.5:
                content[at] = dice.choice(b'",;\n\t ()0"')
            else:
                del content[at : at + dice.randrange(1, 40)]
        path = tmp_path / "damaged.csv"
        path.write_bytes(content)
        with suppress(GpusightError):
            open_trace(path, cache=False).validate()


# Evidence ----------------------------------------------------------------------------------------


CHATTER = "epoch 1: loss 0.25\n" * 30_000


@pytest.mark.parametrize(
    "text",
    [SMALL, PAGE, SMALL.encode("utf-16"), row("ID", "Kernel Name", TIME), CHATTER + SMALL],
)
def test_what_ncu_printed_is_never_written_over(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / "evidence.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match="is a capture already"):
        refuse_capture(path, None)


@pytest.mark.parametrize(
    "text",
    [
        "launch,kernel,metric,value,unit\n0,add,gpu__time_duration.sum,5,ns\n",
        "Kernel_Name,DRAM_Throughput(%),Duration(ns)\nadd,5,6\n",
        "Name,Profile,Memory_footprint,SM_usage,Duration\nadd,1,0,2,3.0\n",
    ],
)
def test_our_own_tables_may_be_written_over(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ours.csv"
    path.write_text(text)
    refuse_capture(path, None)


# Real files --------------------------------------------------------------------------------------


@needs_shared
@pytest.mark.parametrize("path", PUBLIC, ids=lambda path: path.name[:40])
def test_public_files(path: Path) -> None:
    began = time.process_time()
    trace = open_trace(path, cache=False)
    trace.validate()
    assert time.process_time() - began < 3
    assert trace.row_count("profiles") > 0
    assert trace.row_count("counters") >= 6
    keys = trace.counters.select("launch", "metric")
    assert keys.n_unique() == keys.height
    assert trace.profiles.select("grid_x", "block_x", "compute_major").null_count().row(0) == (
        0,
        0,
        0,
    )
    assert not any("no known metric" in note for note in trace.meta.notes)
    assert not trace.meta.warnings


def _printed(name: str) -> Trace:
    return open_trace(OWN / f"{name}.xz", cache=False)


def _numbers(trace: Trace) -> pl.DataFrame:
    named = pl.col("metric").cast(pl.String)
    return trace.counters.select("launch", named, "value").drop_nulls()


@needs_shared
@pytest.mark.parametrize("name", ["kernels_full", "gpt_fwd", "resnet18"])
def test_pages_of_one_report_agree(name: str) -> None:
    details, text = _printed(f"{name}.details.csv"), _printed(f"{name}.details.txt")
    key = ["launch", "metric"]
    assert _numbers(details).sort(key).equals(_numbers(text).sort(key))
    both = _numbers(details).join(_numbers(_printed(f"{name}.raw.csv")), on=key, suffix="_raw")
    assert both.height > 1900
    gap = (pl.col("value") - pl.col("value_raw")).abs()
    # Two digits are printed behind the point; a column of the raw page has one unit for all rows.
    size = pl.max_horizontal(pl.col("value").abs(), pl.col("value_raw").abs())
    unit = pl.col("value_raw").abs().max().over("metric") * 1e-6
    assert both.filter((gap > 0.0051 * size) & (gap > 0.0051) & (gap > unit)).is_empty()


@needs_shared
@pytest.mark.parametrize("name", ["kernels_full", "gpt_fwd", "resnet18"])
def test_text_and_table_say_the_same_of_launches_and_rules(name: str) -> None:
    details, text = _printed(f"{name}.details.csv"), _printed(f"{name}.details.txt")
    raw = _printed(f"{name}.raw.csv")
    for column in ("name", "base_name", "grid_x", "grid_z", "block_y", "stream", "ranges"):
        messages = [
            t.profiles.get_column(column).cast(pl.String).to_list() for t in (details, text, raw)
        ]
        assert messages[0] == messages[1] == messages[2]
    columns = ("launch", "kind", "speedup_kind", "speedup_percent")
    rules = [t.rule_results.select(columns).rows() for t in (details, text)]
    assert rules[0] == rules[1]


@needs_shared
def test_a_table_with_chatter_has_the_same_launches() -> None:
    live, later = _printed("resnet18_details_live.csv"), _printed("resnet18.details.csv")
    columns = ["name", "grid_x", "grid_y", "grid_z", "block_x", "ranges"]
    same = [t.profiles.select(pl.col(columns).cast(pl.String)) for t in (live, later)]
    assert same[0].equals(same[1])
    named = [set(t.counters.get_column("metric").cast(pl.String)) for t in (live, later)]
    assert named[0] == named[1]
    # Another run: counts that do not depend on time are equal.
    fixed = ["launch__registers_per_thread", "launch__block_size", "launch__grid_size"]
    counts = [_numbers(t).filter(pl.col("metric").is_in(fixed)) for t in (live, later)]
    assert counts[0].equals(counts[1])
