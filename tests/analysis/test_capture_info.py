"""What a capture is and holds, without secrets."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.analysis.capture_info import info, names_of_used
from gpusight.results import Composite, NotApplicable, TableResult
from tests.shared import DATA, opened
from tests.traces import build_trace


def section(result: Composite, command: str) -> list[dict[str, Any]]:
    section = next(s for s in result.sections if s.command == command)
    assert isinstance(section, TableResult)
    return section.rows()


def test_facts_leave_out_what_is_not_known() -> None:
    result = info(
        build_trace(
            {
                "tool": "Nsight Systems",
                "tool_version": "2025.3.2",
                "duration_ns": 5,
                "start_utc_ns": 0,
            }
        )
    )
    assert {f.key: f.value for f in result.facts} == {
        "tool": "Nsight Systems 2025.3.2",
        "source": "nsys-sqlite",
        "start_utc": "1970-01-01 00:00:00 UTC",
        "duration_ns": 5,
    }


def test_devices_are_completed_from_the_table_and_say_so() -> None:
    devices = section(
        info(
            build_trace(
                devices=[
                    {"name": "NVIDIA H200", "sm_count": 100, "compute_major": 9},
                    {"name": "Unheard Of 9000", "memory_bytes": 5},
                ]
            )
        ),
        "devices",
    )
    known, unknown = devices
    assert (known["sm_count"], known["compute_capability"]) == (100, "9.0")
    assert known["memory_bandwidth"] == 4_800_000_000_000
    assert known["from_table"] == "clock_hz, memory_bytes, memory_bandwidth, l2_bytes"
    assert (unknown["memory_bytes"], unknown["memory_bandwidth"]) == (5, None)
    assert unknown["from_table"] is None


def test_a_capture_without_devices_says_so() -> None:
    absent = next(s for s in info(build_trace()).sections if s.command == "devices")
    assert isinstance(absent, NotApplicable)


def test_contents_show_the_tables_with_rows() -> None:
    rows = section(info(build_trace(ranges=[{"name": "a"}, {"name": "b"}])), "contents")
    assert [(row["table"], row["rows"]) for row in rows] == [("ranges", 2)]


def test_what_is_missing_comes_with_the_option_that_captures_it() -> None:
    trace = build_trace(kernels=[{"name": "k"}], api_calls=[{}], gpu_metrics=[_METRIC])
    rows = section(info(trace), "missing")
    assert rows[-1]["native"] == "nsys --cuda-memory-usage=true"
    missing = {row["what"]: row["option"] for row in rows}
    assert missing == {
        "NVTX ranges": "gpusight record",
        "OS calls": "gpusight record",
        "CPU samples": "gpusight record --python-stacks",
        "GPU memory use": "gpusight record --memory",
    }


_METRIC = {"metric": "SMs Active", "value": 1.0}


def test_graphs_traced_as_wholes_ask_for_a_trace_by_node() -> None:
    missing = section(info(build_trace(graph_launches=[{}], api_calls=[{}])), "missing")
    assert missing[0]["option"] == "gpusight record --graph-nodes"
    assert "GPU kernels" not in {row["what"] for row in missing}


def test_only_active_processes_are_shown() -> None:
    trace = build_trace(
        processes=[
            {"process": 1, "pid": 100, "name": "python3"},
            {"process": 2, "pid": 7, "name": "secret-daemon"},
        ],
        api_calls=[{}, {}],
        ranges=[{"name": "a"}],
    )
    assert section(info(trace), "processes") == [
        {"pid": 100, "name": "python3", "api_calls": 2, "ranges": 1, "kernels": 0}
    ]


def test_messages_are_warnings_and_errors_each_once_without_home_directories() -> None:
    trace = build_trace(
        diagnostics=[
            {"severity": "information", "text": "launched by /home/alice/run.sh"},
            {"severity": "warning", "text": "see ~/x.log\n"},
            {"severity": "warning", "text": "see ~/x.log"},
            {"severity": "error", "text": "lost"},
        ]
    )
    assert section(info(trace), "messages") == [
        {"severity": "warning", "text": "see ~/x.log"},
        {"severity": "error", "text": "lost"},
    ]


def test_notes_of_the_reader_are_passed_on() -> None:
    assert info(build_trace({"notes": ("NIC data is not read",)})).notes == (
        "NIC data is not read",
    )


def test_a_real_capture() -> None:
    result = info(opened(DATA / "resnet18_infer.sqlite"))
    assert {f.key for f in result.facts} >= {"tool", "driver_version", "cuda_version", "os"}
    (device,) = section(result, "devices")
    assert (device["name"], device["sm_count"]) == ("NVIDIA H200", 132)


def test_a_gpu_without_a_name_is_named_where_only_one_fits() -> None:
    unnamed = {
        "name": "",
        "compute_major": 9,
        "compute_minor": 4,
        "sm_count": 304,
        "memory_bytes": 206_141_652_992,
    }
    result, bare = section(info(build_trace(devices=[unnamed, {"name": ""}])), "devices")
    assert (result["name"], result["compute_capability"]) == ("AMD MI300X", "gfx942")
    assert result["from_table"].startswith("name, compute_capability, clock_hz")
    assert (bare["name"], bare["from_table"]) == (None, None)


def test_what_rocm_reports_is_no_compute_capability() -> None:
    described = {"name": "AMD Instinct MI210", "compute_major": 9, "compute_minor": 0}
    (device,) = section(info(build_trace(devices=[described])), "devices")
    assert device["compute_capability"] == "gfx90a"


def test_a_rank_of_a_job_shows_the_job() -> None:
    trace = build_trace(
        {"rank": 3, "world_size": 8, "backend": "nccl"},
        process_groups=[
            {"group": "0", "description": "default_pg", "size": 8, "ranks": "[0,1,2,3,4,5,6,7]"},
            {"group": "1", "backend": "gloo", "size": 2, "ranks": "[3,7]"},
        ],
    )
    result = info(trace)
    facts = {f.key: f.value for f in result.facts}
    assert (facts["rank"], facts["world_size"], facts["backend"]) == (3, 8, "nccl")
    groups = section(result, "process_groups")
    assert [(g["group"], g["size"], g["ranks"]) for g in groups] == [
        ("0", 8, "[0,1,2,3,4,5,6,7]"),
        ("1", 2, "[3,7]"),
    ]


def test_the_first_of_many_ranks_is_a_rank() -> None:
    assert {f.key: f.value for f in info(build_trace({"rank": 0})).facts}["rank"] == 0


def test_a_process_that_only_ran_operators_is_shown() -> None:
    trace = build_trace(
        processes=[{"process": 1, "pid": 100, "name": "python3"}],
        cpu_ops=[{"name": "aten::mm"}, {"name": "aten::add"}],
    )
    assert section(info(trace), "processes") == [
        {"pid": 100, "name": "python3", "cpu_ops": 2, "api_calls": 0, "ranges": 0, "kernels": 0}
    ]


@pytest.mark.parametrize("start", [-1, 10**21, 2**63 * 10**9])
def test_a_start_that_is_no_date_is_not_shown(start: int) -> None:
    facts = {f.key: f.value for f in info(build_trace({"start_utc_ns": start})).facts}
    assert facts.get("start_utc") is None


def test_gpus_in_use_are_named_once_in_order() -> None:
    names = ["NVIDIA H100 PCIe", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 PCIe", ""]
    rows = [{"device": n, "name": name} for n, name in enumerate(names)]
    trace = build_trace(devices=rows)
    assert names_of_used(trace, [2, None, 0, 1]) == "NVIDIA H100 PCIe, NVIDIA A100-SXM4-40GB"
    assert names_of_used(trace, [1, 7]) == "NVIDIA A100-SXM4-40GB"
    assert names_of_used(trace, [None, 3]) is None
