"""What a capture lacks is said in the words of the tool that made it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpusight.analysis.api_summary import api_calls
from gpusight.analysis.capture_info import info
from gpusight.analysis.capture_summary import summary
from gpusight.analysis.copy_summary import copies
from gpusight.analysis.gpu_time import gpu_time
from gpusight.analysis.kernel_summary import kernels
from gpusight.analysis.nsys_stats.stats_reports import REPORTS, run_report
from gpusight.analysis.range_summary import ranges
from gpusight.analysis.recording_advice import advice_for
from gpusight.readers.open import open_trace
from gpusight.results import NotApplicable, TableResult
from gpusight.trace.schema import TABLES
from gpusight.trace.trace import Meta
from tests.shared import EVERY_TORCH_TRACE, needs_shared
from tests.traces import build_trace

SOURCES = (
    "nsys-sqlite",
    "torch-chrome",
    "torch-key-averages",
    "torch-snapshot",
    "jax-chrome",
    "jax-xplane",
)
ANALYSES: tuple[Callable[..., Any], ...] = (kernels, copies, api_calls, ranges, gpu_time)


def meta(source: str) -> Meta:
    return Meta(path="capture", source=source, tool="a tool")


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("analysis", ANALYSES)
def test_only_captures_of_nsys_are_sent_to_nsys(analysis: Callable[..., Any], source: str) -> None:
    absent = analysis(build_trace({"source": source}))
    assert isinstance(absent, NotApplicable)
    assert absent.hint
    text = f"{absent.reason} {absent.hint}".lower()
    assert ("nsys" in text) == source.startswith("nsys")
    assert ("nvtx" in text) <= source.startswith("nsys")


@pytest.mark.parametrize(
    ("analysis", "remedy"),
    [
        (kernels, "ProfilerActivity.CUDA"),
        (api_calls, "ProfilerActivity.CUDA"),
        (copies, "ProfilerActivity.CUDA"),
        (gpu_time, "ProfilerActivity.CUDA"),
        (ranges, "record_function"),
    ],
)
def test_pytorch_is_told_which_option_of_its_profiler(
    analysis: Callable[..., Any], remedy: str
) -> None:
    absent = analysis(build_trace({"source": "torch-chrome"}, cpu_ops=[{"name": "aten::mm"}]))
    assert remedy in absent.hint


def test_calls_without_kernels_are_a_profiler_that_was_refused() -> None:
    absent = kernels(build_trace({"source": "torch-chrome"}, api_calls=[{}]))
    assert isinstance(absent, NotApplicable)
    assert absent.reason == "the capture has API calls but no kernels"
    assert "CUPTI" in absent.hint


def test_captures_of_our_cupti_recorder_are_sent_to_record() -> None:
    made = {"source": "nsys-sqlite", "tool": "gpusight record, CUPTI 13.0"}
    for analysis in ANALYSES:
        absent = analysis(build_trace(made))
        assert "gpusight record --with cupti" in absent.hint
        assert "nsys" not in absent.hint
    absent = run_report(build_trace(made), "osrt_sum")
    assert isinstance(absent, NotApplicable)
    assert absent.hint == "it comes with gpusight record --with nsys"


@pytest.mark.parametrize("source", SOURCES)
def test_everything_wanted_is_a_table_or_column_of_the_model(source: str) -> None:
    for wanted in advice_for(meta(source)).wanted:
        assert wanted.table in TABLES
        assert wanted.column is None or wanted.column in TABLES[wanted.table].column_names


def missing(**tables: Any) -> dict[str, str]:
    section = info(build_trace({"source": "torch-chrome"}, **tables)).sections[-1]
    assert isinstance(section, TableResult)
    assert section.fields[2].label == "Option of torch.profiler.profile"
    return {row["what"]: row["option"] for row in section.rows()}


def test_what_a_trace_of_operators_alone_could_hold() -> None:
    assert missing(cpu_ops=[{"name": "aten::mm"}], ranges=[{"name": "step"}]) == {
        "GPU kernels": "ProfilerActivity.CUDA",
        "API calls": "ProfilerActivity.CUDA",
        "shapes of inputs": "record_shapes=True",
        "memory use": "profile_memory=True",
        "Python stacks": "with_stack=True",
        "operation counts": "with_flops=True",
    }


def test_columns_are_not_missed_where_the_whole_table_is() -> None:
    result = missing(kernels=[{"name": "k"}], api_calls=[{}])
    assert "operators" in result
    assert "shapes of inputs" not in result


def test_stacks_are_where_older_versions_wrote_them() -> None:
    assert "Python stacks" in missing(cpu_ops=[{"name": "aten::mm"}])
    assert "Python stacks" not in missing(cpu_ops=[{"name": "aten::mm", "stack": "a.py(1): f"}])
    assert "Python stacks" not in missing(python_calls=[{"name": "a.py(1): f"}])


@pytest.mark.parametrize(
    ("report", "hint"),
    [
        ("osrt_sum", "torch.profiler does not record this; gpusight record (nsys profile) does"),
        ("um_sum", "torch.profiler does not record this; gpusight record (nsys profile) does"),
        ("cuda_gpu_kern_sum", "it comes with ProfilerActivity.CUDA"),
        ("nvtx_sum", 'it comes with record_function("name"), prof.step()'),
    ],
)
def test_a_report_that_cannot_be_says_why(report: str, hint: str) -> None:
    absent = run_report(build_trace({"source": "torch-chrome"}), report)
    assert isinstance(absent, NotApplicable)
    assert absent.hint == hint


def test_a_report_for_nsys_says_what_nsys_says() -> None:
    absent = run_report(build_trace(), "osrt_sum")
    assert isinstance(absent, NotApplicable)
    assert absent.hint == ""


def test_bare_names_of_kernels_are_found_where_the_capture_has_none() -> None:
    long = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(float*)"
    trace = build_trace(
        kernels=[
            {"end_ns": 3, "name": long},
            {"end_ns": 2, "name": "fma(int)", "mangled_name": "_Z3fmai"},
        ],
        devices=[{"name": ""}],
    )
    shown = {
        words: run_report(trace, f"cuda_gpu_kern_sum{words}") for words in ("", ":base", ":mangled")
    }
    names = {
        words: report.frame["Name"].to_list()
        for words, report in shown.items()
        if not isinstance(report, NotApplicable)
    }
    assert names == {
        "": [long, "fma(int)"],
        ":base": ["reduce_kernel", "fma"],
        ":mangled": [long, "_Z3fmai"],
    }
    listed = run_report(trace, "cuda_gpu_trace")
    assert not isinstance(listed, NotApplicable)
    assert set(listed.frame["Device"]) == {"GPU (0)"}


@pytest.mark.shared
@needs_shared
@pytest.mark.parametrize("path", EVERY_TORCH_TRACE, ids=lambda path: path.name[:60])
def test_every_trace_of_pytorch_is_answered(path: Any) -> None:
    with open_trace(path) as trace:
        assert summary(trace).sections
        assert info(trace).sections
        for report in REPORTS:
            answer = run_report(trace, report)
            assert "nvtx" not in getattr(answer, "hint", "").lower()
