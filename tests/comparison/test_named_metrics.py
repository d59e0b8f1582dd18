"""Quantities by name: what `compare` lists and `gate` limits."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpusight.comparison.digest import CallDigest, CopyDigest, Digest, DigestFinding
from gpusight.comparison.named_metrics import (
    LIST,
    both,
    changes,
    entries,
    metric_keys,
    quantity,
    unmatched,
)
from gpusight.comparison.significance import Basis, ChangeVerdict
from gpusight.errors import UsageError
from gpusight.results import Fmt
from tests.comparison.digests import MS, digest, kernel

LEDGER = {"compute/matmul": [6, 8], "copy/h2d": [1, 1], "idle/input": [2, 4], "idle/queued": [1, 1]}


def copies(operation: str, count: int) -> CopyDigest:
    return CopyDigest(
        operation=operation,
        src_kind="Pinned",
        dst_kind="Device",
        calls=(1.0, 1.0),
        ns=(MS, MS),
        bytes=(count, count),
    )


def calls(name: str, ms: float, gpu_ms: float | None = None) -> CallDigest:
    gpu = None if gpu_ms is None else (gpu_ms * MS, gpu_ms * MS)
    return CallDigest(name=name, calls=(1.0, 1.0), host_ns=(ms * MS, ms * MS), gpu_ns=gpu)


def finding(rule: str, step_ns: float | None) -> DigestFinding:
    return DigestFinding(rule=rule, title=rule, step_ns=step_ns, share=None, confidence="high")


FULL = digest(
    LEDGER,
    between=(0.5, 1.5),
    kernels=(
        kernel("matmul", (5 * MS, 7 * MS), "sgemm_128"),
        kernel("elementwise", (1 * MS, 1 * MS), "add_kernel", calls=10),
    ),
    kernel_ns=(6 * MS, 8 * MS),
    phases={"forward": (4 * MS, 4 * MS), "backward": (2 * MS, 4 * MS)},
    ranges=(calls("forward", 3, 4), calls("forward.attn", 1, 2), calls("data", 5)),
    api=(calls("cudaLaunchKernel", 2), calls("cudaMemcpyAsync", 1)),
    copies=(copies("Host-to-Device", 100), copies("Device-to-Host", 7), copies("Memset", 9)),
    memory_peak={"0": 5_000, "1": 8_000},
    findings=(finding("host-sync", 2 * MS), finding("memory-growth", None)),
    missing={},
)


def mean(key: str, *digests: Digest) -> float | None:
    return quantity(digests or (FULL,), key).mean


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("step_time", 12 * MS),
        ("between_steps", 1 * MS),
        ("kernel_time", 7 * MS),
        ("busy", 8 * MS),
        ("idle", 4 * MS),
        ("idle/input", 3 * MS),
        ("compute", 7 * MS),
        ("copy/h2d", 1 * MS),
        ("communication", 0),
        ("compute/attention", 0),
        ("launches", 14),
        ("memory_peak", 8_000),
        ("h2d_bytes", 100),
        ("d2h_bytes", 7),
        ("findings", 2),
        ("kernel:sgemm*", 6 * MS),
        ("kernel:/gemm|add/", 7 * MS),
        ("range:forward*", 4 * MS),
        ("range_gpu:forward", 4 * MS),
        ("api:cuda*", 3 * MS),
        ("phase:backward", 3 * MS),
        ("phase:optimizer", 0),
        ("finding:host-sync", 2 * MS),
        ("finding:launch-bound", 0),
    ],
)
def test_what_a_key_means(key: str, expected: float) -> None:
    assert mean(key) == pytest.approx(expected)


def test_every_key_that_is_listed_means_something() -> None:
    for key in (*LIST, *metric_keys([FULL]), *entries()):
        assert quantity([FULL], key).key == key


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("step_tme", "step_time"),
        ("idle/inputs", "idle/input"),
        ("compute/gemm", "compute/"),
        ("", "unknown metric"),
        ("idle/", "unknown metric"),
        ("phase:warp", "forward"),
        ("finding:host-synch", "host-sync"),
        ("kernel:", "no pattern"),
        ("kernel:/(/", "regular expression"),
        ("color:red", "unknown metric"),
    ],
)
def test_a_key_that_means_nothing_names_near_ones(key: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        quantity([FULL], key)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_pattern_that_matches_nothing_anywhere_is_none_and_said() -> None:
    pair = both([FULL], [FULL], "kernel:sgem")
    assert [side.mean for side in pair] == [0, 0]
    assert "matches nothing in any capture; similar names:" in unmatched(pair, [FULL])
    assert "sgemm_128" in unmatched(pair, [FULL])
    pair = both([FULL], [digest(LEDGER)], "kernel:sgemm*")
    assert (pair[1].mean, unmatched(pair, [FULL])) == (0, "")


@pytest.mark.parametrize(
    ("key", "changed", "why"),
    [
        ("memory_peak", {"memory_peak": {}, "missing": {"memory_peak": "no memory"}}, "no memory"),
        ("findings", {"findings": (), "missing": {"findings": "nothing ran"}}, "nothing ran"),
        ("range:x", {"ranges": (), "missing": {"ranges": "no NVTX"}}, "no NVTX"),
        ("api:x", {"api": (), "missing": {"api": "no calls"}}, "no calls"),
        ("range_gpu:data", {}, "does not link ranges to GPU work"),
        ("phase:forward", {"phases": {}, "missing": {"phases": "no phases"}}, "no phases"),
        ("finding:memory-growth", {}, "no time estimate"),
        ("kernel_time", {"ledger": {"compute/graph": (1.0, 1.0)}}, "CUDA graphs"),
        ("launches", {"ledger": {"compute/graph": (1.0, 1.0)}}, "CUDA graphs"),
    ],
)
def test_what_a_capture_does_not_know_is_missing_and_not_zero(
    key: str, changed: dict[str, Any], why: str
) -> None:
    lacking = msgspec.structs.replace(FULL, label="lacking", **changed)
    measured = quantity([lacking], key)
    assert measured.by_capture == (None,)
    assert why in measured.missing
    assert measured.missing.startswith("lacking: ")
    change = changes([(measured, measured)], confidence=0.95, least=0.02)[0]
    assert (change.before, change.verdict, change.basis) == (
        None,
        ChangeVerdict.UNCLEAR,
        Basis.NONE,
    )


def test_captures_that_know_stand_for_those_that_do_not() -> None:
    lacking = digest(LEDGER)
    measured = quantity([FULL, lacking], "memory_peak")
    assert measured.mean == 8_000
    assert "no memory events" in measured.missing


def test_changes_of_many_quantities_are_those_of_each() -> None:
    keys = ("step_time", "memory_peak", "idle/input", "findings", "launches")
    other = digest({**LEDGER, "idle/input": [1, 2]}, memory_peak={"0": 9_000}, missing={})
    pairs = [both([FULL], [other], key) for key in keys]
    together = changes(pairs, confidence=0.95, least=0.02)
    assert together == [changes([pair], confidence=0.95, least=0.02)[0] for pair in pairs]
    assert [change.before for change in together] == pytest.approx([12 * MS, 8_000, 3 * MS, 2, 14])


def test_units() -> None:
    formats = {key: quantity([FULL], key).fmt for key in ("step_time", "memory_peak", "launches")}
    assert formats == {
        "step_time": Fmt.TIME,
        "memory_peak": Fmt.BYTES,
        "launches": Fmt.COUNT,
    }


def test_the_measured_step_time_has_an_error_in_metrics_of_the_host() -> None:
    # 16 timed steps whose quartiles are 1.349 standard deviations apart: 10% / 4 of the step.
    known = digest(LEDGER, pace_steps=16, pace_spread=0.1349, recorded_step_ns=20 * MS)
    assert known.pace_error == pytest.approx(0.025)

    def error_ms(key: str) -> float:
        (value,) = quantity([known], key).by_capture
        errors = getattr(value, "errors", None)
        return 0.0 if errors is None else float(errors[0]) / MS

    step_ms = quantity([known], "step_time").mean or 0.0
    assert error_ms("step_time") == pytest.approx(0.025 * step_ms / MS)
    # GPU work stays as recorded, so idle time takes all of it, and entries their shares.
    assert error_ms("idle") == pytest.approx(error_ms("step_time"))
    entries = [entry for entry in LEDGER if entry.startswith("idle/")]
    assert sum(map(error_ms, entries)) == pytest.approx(error_ms("idle"))
    for key in ("kernel_time", "busy", "compute/matmul", "launches"):
        assert error_ms(key) == 0.0
    assert digest(LEDGER, pace_steps=1).pace_error == 0.0
