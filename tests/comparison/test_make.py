"""From a capture to its digest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from gpusight.analysis.selection import Selection
from gpusight.comparison.baseline_file import fault
from gpusight.comparison.build_digest import make_digest
from gpusight.comparison.digest import MOST_BLOCKS, Digest, rounded_parts
from gpusight.comparison.digest_rows import MOST_KERNELS
from gpusight.errors import GpusightError
from gpusight.readers.open import open_trace
from gpusight.results import NotApplicable
from tests.shared import (
    DATA,
    EVERY_REPORT,
    EVERY_SQLITE,
    EVERY_TORCH_TRACE,
    SHARED,
    name,
    needs_shared,
)
from tests.traces import build_trace

if TYPE_CHECKING:
    from pathlib import Path

    from gpusight.trace.trace import Trace

_SMALL = 1_500_000
EVERY_SMALL = [
    path
    for path in (*EVERY_SQLITE, *EVERY_REPORT, *EVERY_TORCH_TRACE)
    if path.stat().st_size < _SMALL
]


def digest_of(trace: Trace, *args: Any, **options: Any) -> Digest:
    made = make_digest(trace, *args, **options)
    assert isinstance(made, Digest), made
    return made


def mean(digest: Digest, series: tuple[float, ...]) -> float:
    return float(np.average(series, weights=digest.blocks))


def loop(steps: int, *, period: int = 1_000, device: int = 0, **extra: Any) -> dict[str, Any]:
    """Steps of 900 ns and 100 ns of pause: a gemm of 300 ns in `fwd_N`, a relu of 100 ns."""
    rows: dict[str, Any] = {"ranges": [], "api_calls": [], "kernels": []}
    for step in range(steps):
        at = step * period
        rows["ranges"] += [
            {"start_ns": at, "end_ns": at + 900, "name": f"step_{step}"},
            {"start_ns": at + 50, "end_ns": at + 150, "name": f"fwd_{step}"},
        ]
        for number, (begins, kernel, starts, takes) in enumerate(
            ((100, "gemm", 200, 300), (200, "relu", 600, 100))
        ):
            key = 10 * step + number + 1
            rows["api_calls"].append(
                {"start_ns": at + begins, "end_ns": at + begins + 20, "correlation": key}
            )
            rows["kernels"].append(
                {
                    "start_ns": at + starts,
                    "end_ns": at + starts + takes,
                    "name": kernel,
                    "correlation": key,
                    "device": device,
                }
            )
    return {**rows, **extra}


# Steps --------------------------------------------------------------------------------------------


def test_a_loop_is_summed_up_step_by_step() -> None:
    digest = digest_of(build_trace({"path": "/a/b/run.sqlite"}, **loop(4)))
    assert (digest.label, digest.steps, digest.blocks) == ("run.sqlite", 4, (1, 1, 1, 1))
    assert digest.step_ns == (900.0,) * 4
    assert digest.between_ns == (100.0,) * 4  # after the last one, what is usual
    assert (digest.median_ns, digest.min_ns, digest.max_ns) == (900.0, 900.0, 900.0)
    assert digest.kernel_ns == (400.0,) * 4
    rows = [(row.name, row.range, row.ns[0], row.calls[0]) for row in digest.kernels]
    assert rows == [("gemm", "fwd_#", 300.0, 1.0), ("relu", "step_#", 100.0, 1.0)]
    assert digest.order == (0, 1)
    ranges = {row.name: (row.calls[0], row.host_ns[0], row.gpu_ns) for row in digest.ranges}
    assert ranges == {"step_#": (1.0, 900.0, (400.0,) * 4), "fwd_#": (1.0, 100.0, (300.0,) * 4)}
    assert [(row.name, row.calls[0], row.host_ns[0]) for row in digest.api] == [
        ("cudaLaunchKernel", 2.0, 40.0)
    ]
    assert sum(series[0] for series in digest.ledger.values()) == 900.0


def test_work_that_the_host_runs_ahead_of_counts_where_it_was_launched() -> None:
    # The GPU takes 1,500 ns for what the host launches in 1,000: steps are as long as that.
    rows = loop(4)
    rows["kernels"] = [
        {
            "start_ns": 1_500 * step + 100,
            "end_ns": 1_500 * step + 1_600,
            "name": "gemm",
            "correlation": 10 * step + 1,
        }
        for step in range(4)
    ]
    digest = digest_of(build_trace(**rows))
    assert digest.step_ns == (1_600.0, 1_500.0, 1_500.0, 1_500.0)
    assert digest.kernel_ns == (1_500.0,) * 4
    assert digest.between_ns == (0.0,) * 4


def test_many_steps_are_joined_to_even_blocks() -> None:
    digest = digest_of(build_trace(**loop(120)))
    assert digest.steps == 120
    assert (len(digest.blocks), sum(digest.blocks)) == (MOST_BLOCKS, 120)
    assert max(digest.blocks) - min(digest.blocks) == 1
    assert mean(digest, digest.kernel_ns) == pytest.approx(400.0)


def test_without_steps_the_window_stands_for_one() -> None:
    rows = loop(1)
    rows["ranges"] = [{"start_ns": 0, "end_ns": 900, "name": "everything"}]
    digest = digest_of(build_trace(**rows))
    assert (digest.steps, digest.blocks) == (0, (1,))
    assert "steps" in digest.missing
    assert digest.kernel_ns == (400.0,)
    assert sum(series[0] for series in digest.ledger.values()) == digest.step_ns[0]


def test_steps_and_windows_can_be_chosen() -> None:
    trace = build_trace(**loop(6))
    assert digest_of(trace, steps="2-3").steps == 2
    assert digest_of(trace, window=(1_000, 4_000)).steps == 3


def test_the_time_between_steps_is_known_up_to_one_that_was_left_out() -> None:
    digest = digest_of(build_trace(**loop(4)), steps="1")
    assert digest.between_ns == (100.0,)


# GPUs and processes -------------------------------------------------------------------------------


def two_gpus(second_ns: int) -> dict[str, Any]:
    rows = loop(3)
    for step in range(3):
        key, at = 10 * step + 5, 1_000 * step
        rows["api_calls"].append({"start_ns": at + 300, "end_ns": at + 310, "correlation": key})
        rows["kernels"].append(
            {
                "start_ns": at + 400,
                "end_ns": at + 400 + second_ns,
                "name": "gemm",
                "correlation": key,
                "device": 1,
            }
        )
    rows["devices"] = [{"name": "NVIDIA A"}, {"name": "NVIDIA B"}]
    return rows


def test_kernels_sum_over_gpus_and_the_ledger_is_their_mean() -> None:
    digest = digest_of(build_trace(**two_gpus(200)))
    assert digest.gpus == ("NVIDIA A", "NVIDIA B")
    assert digest.kernel_ns == (600.0,) * 3
    computing = sum(v[0] for key, v in digest.ledger.items() if key.startswith("compute"))
    assert computing == (400 + 200) / 2
    assert any("summed over 2 GPUs" in note for note in digest.notes)


def test_one_gpu_of_two_can_be_chosen() -> None:
    digest = digest_of(build_trace(**two_gpus(200)), Selection(device=1))
    assert (digest.gpus, digest.kernel_ns[0]) == (("NVIDIA B",), 200.0)


def test_a_gpu_that_hardly_worked_does_not_halve_the_ledger() -> None:
    digest = digest_of(build_trace(**two_gpus(1)))
    assert digest.gpus == ("NVIDIA A",)
    assert any("hardly anything ran on GPU 1" in note for note in digest.notes)


def test_of_several_processes_that_of_the_steps_counts() -> None:
    rows = loop(3)
    rows["kernels"].append({"start_ns": 500, "end_ns": 700, "name": "other", "process": 2})
    digest = digest_of(build_trace(**rows))
    assert {row.name for row in digest.kernels} == {"gemm", "relu"}
    assert any("2 processes" in note for note in digest.notes)


# What captures lack -------------------------------------------------------------------------------


def test_without_calls_ranges_and_correlations_there_is_a_digest_still() -> None:
    kernels = [{"start_ns": 100 * n, "end_ns": 100 * n + 60, "name": f"k{n % 3}"} for n in range(7)]
    digest = digest_of(build_trace(kernels=kernels))
    assert mean(digest, digest.kernel_ns) * max(1, digest.steps) > 0
    assert {"ranges", "api", "memory_peak", "phases"} <= set(digest.missing)
    assert all(row.range is None for row in digest.kernels)


def test_ranges_whose_gpu_work_is_unknown_say_so() -> None:
    rows = loop(3)
    for kernel in rows["kernels"]:
        kernel["correlation"] = None
    digest = digest_of(build_trace(**rows))
    assert all(row.gpu_ns is None for row in digest.ranges)
    assert "ranges_gpu" in digest.missing


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("thrice.ncu-rep.xz", "one by one"),
        ("gpt_small_train_key_averages.txt", "printed totals"),
        ("memory_snapshot.pickle", "memory only"),
    ],
)
def test_what_has_no_timeline_is_said_so(file: str, reason: str) -> None:
    made = make_digest(open_trace(DATA / file, cache=False))
    assert isinstance(made, NotApplicable)
    assert reason in made.reason
    assert "a timeline is needed" in made.hint


def test_without_gpu_work_it_says_how_to_record_it() -> None:
    made = make_digest(build_trace(api_calls=[{"start_ns": 0, "end_ns": 5}]))
    assert isinstance(made, NotApplicable)
    assert (made.command, made.reason) == ("compare", "the capture shows no GPU work")
    assert "capture with" in made.hint


def test_kernels_inside_whole_graphs_are_missing() -> None:
    graph = {"start_ns": 700, "end_ns": 750, "correlation": 2}
    digest = digest_of(build_trace(**loop(3, graph_launches=[graph])))
    assert "CUDA graphs were traced as wholes" in digest.missing["kernels"]
    assert "kernels" not in digest_of(build_trace(**loop(3))).missing


def test_copies_and_fills_are_told_apart_by_kinds_of_memory() -> None:
    copy = {"start_ns": 700, "end_ns": 750, "bytes": 4_000, "correlation": 2}
    fill = {"start_ns": 760, "end_ns": 770, "bytes": 8, "correlation": 1}
    digest = digest_of(build_trace(**loop(3, copies=[copy], memsets=[fill])))
    rows = {(row.operation, row.src_kind, row.dst_kind): row.bytes for row in digest.copies}
    assert rows == {
        ("Host-to-Device", "Pinned", "Device"): (4_000.0, 0.0, 0.0),
        ("Memset", None, "Device"): (8.0, 0.0, 0.0),
    }


def test_the_memory_peak_is_that_of_each_gpu() -> None:
    events = [
        {"time_ns": at, "address": at, "bytes": size, "device": 0}
        for at, size in ((10, 100), (20, 300))
    ]
    digest = digest_of(build_trace(**loop(3, memory_events=events)))
    assert digest.memory_peak == {"0": 400}


def test_the_cheapest_kernels_are_one_row_and_sums_hold() -> None:
    kernels = [
        {"start_ns": 100 * n, "end_ns": 100 * n + 1 + n % 90, "name": f"kernel_{n}"}
        for n in range(MOST_KERNELS + 50)
    ]
    digest = digest_of(build_trace(kernels=kernels))
    assert len(digest.kernels) == MOST_KERNELS + 1
    rest = digest.kernels[-1]
    assert (rest.name, rest.range, rest.category, sum(rest.calls)) == ("", None, "other", 50.0)
    assert sum(row.ns[0] for row in digest.kernels) == digest.kernel_ns[0]
    assert max(digest.order) == MOST_KERNELS


# Real captures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", EVERY_SMALL, ids=map(name, EVERY_SMALL))
def test_parts_sum_to_the_whole_on_every_capture(path: Path) -> None:
    try:
        trace = open_trace(path, cache=False)
    except GpusightError:
        pytest.skip("not a capture")
    digest = make_digest(trace)
    if isinstance(digest, NotApplicable):
        assert not trace.has("kernels")
        return
    blocks = len(digest.blocks)
    assert sum(digest.blocks) == max(1, digest.steps)
    ledger = np.array(list(digest.ledger.values()))
    assert np.array_equal(ledger.sum(axis=0), digest.step_ns)
    between = np.array(list(digest.between.values())).reshape(-1, blocks)
    assert np.array_equal(between.sum(axis=0), digest.between_ns)
    assert not fault(digest)
    kernels = np.array([row.ns for row in digest.kernels]).reshape(-1, blocks)
    assert np.array_equal(kernels.sum(axis=0), digest.kernel_ns)
    assert all(0 <= at < len(digest.kernels) for at in digest.order)
    assert digest.min_ns <= digest.median_ns <= digest.max_ns


@needs_shared
@pytest.mark.parametrize(
    ("capture", "step_ms", "kernel_ms"),
    [
        ("gpt_small_train", 46.59, 39.26),
        ("gpt_small_train_bf16_fused", 42.42, 10.51),
        ("gpt_tiny_train_r1", 14.02, 4.10),
        ("gpt_tiny_train_r2", 17.67, 4.10),
        ("gpt_tiny_train_r3", 19.34, 4.10),
        ("gpt_tiny_train_tf32_r1", 18.86, 2.40),
        ("gpt_tiny_train_tf32_r2", 20.09, 2.39),
        ("gpt_tiny_train_tf32_r3", 20.62, 2.40),
    ],
)
def test_step_and_kernel_times_are_the_known_ones(
    capture: str, step_ms: float, kernel_ms: float
) -> None:
    digest = digest_of(open_trace(SHARED / f"nsys/{capture}.sqlite", cache=False))
    assert mean(digest, digest.step_ns) / 1e6 == pytest.approx(step_ms, abs=0.006)
    assert mean(digest, digest.kernel_ns) / 1e6 == pytest.approx(kernel_ms, abs=0.006)
    assert set(digest.phases) == {"forward", "backward", "optimizer"}
    assert sum(len(row.calls) for row in digest.api) > 0
    assert digest.memory_peak


def test_findings_are_those_of_diagnose() -> None:
    from gpusight.rules.timeline_diagnosis import diagnose_timeline

    trace = open_trace(DATA / "dataload.sqlite", cache=False)
    diagnosis = diagnose_timeline(trace)
    assert not isinstance(diagnosis, NotApplicable)
    told = [(f.rule, f.step_ns, f.share) for f in diagnosis.findings]
    found = [(f.rule, f.step_ns, f.share) for f in digest_of(trace).findings]
    assert found == told != []


# Privacy and arithmetic ---------------------------------------------------------------------------


def test_a_digest_tells_nothing_about_the_machine() -> None:
    rows = loop(3)
    rows["kernels"][0]["name"] = "lambda at /home/alice/secret/kernels.cu:12"
    rows["ranges"].append({"start_ns": 300, "end_ns": 400, "name": "/home/alice/secret/train.py:7"})
    meta = {
        "path": "/home/alice/secret/run.sqlite",
        "os": "alice-os",
        "cpu": "alice-cpu",
        "driver_version": "alice-driver",
        "warnings": ("cannot read /home/alice/secret/run.sqlite",),
        "notes": ("alice noted",),
    }
    rows |= {
        "processes": [{"process": 1, "pid": 1, "name": "/home/alice/bin/python --token=secret"}],
        "threads": [{"thread": 11, "process": 1, "tid": 1, "name": "alice-thread"}],
        "diagnostics": [{"text": "host alice.example.org"}],
    }
    written = msgspec.json.encode(digest_of(build_trace(meta, **rows)))
    assert b"run.sqlite" in written
    assert b"kernels.cu:12" in written
    assert b"alice" not in written
    assert b"secret" not in written


def test_rounded_parts_sum_to_the_whole() -> None:
    parts = np.random.default_rng(7).uniform(0, 10, (37, 20))
    whole = tuple(np.round(parts.sum(axis=0)).tolist())
    found = np.array(rounded_parts(parts, whole))
    assert np.array_equal(found.sum(axis=0), whole)
    assert np.abs(found - parts).max() < 1
