"""Why a step changed, in sentences: only what is claimed, with the numbers of the tables."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import gpusight as gs
from gpusight.comparison.compare_digests import compare
from gpusight.comparison.comparison_result import Comparison
from gpusight.comparison.digest import CallDigest, CopyDigest, Digest
from gpusight.comparison.gate_check import CheckStatus, Gate, gate
from gpusight.comparison.gate_limits import read_limit
from gpusight.comparison.phrases import shown, signed_share, spread
from gpusight.comparison.significance import MIN_REPEATS, ChangeVerdict, MeasuredChange
from gpusight.results import Fmt
from tests.comparison.digests import MS, digest, kernel, steady
from tests.shared import SHARED, needs_shared

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NUMBER = re.compile(r"(?<![\w.'-])[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?:%| (?:ns|µs|ms|s|B|kB|MB|GB)\b)?")


def compared(before: Digest | Sequence[Digest], after: Digest | Sequence[Digest]) -> Comparison:
    sides = [[side] if isinstance(side, Digest) else side for side in (before, after)]
    comparison = compare(*sides)
    assert isinstance(comparison, Comparison)
    return comparison


def explanation_of(before: Digest | Sequence[Digest], after: Digest | Sequence[Digest]) -> str:
    comparison = compared(before, after)
    check_numbers(comparison)
    return " ".join(comparison.explanation)


# The numbers of sentences are those of tables -----------------------------------------------------


def check_numbers(comparison: Comparison) -> None:
    """Every number of the explanation stands in a table, or counts steps or captures."""
    known = {*_texts(comparison), *NUMBER.findall(comparison.other_program)}
    for sentence in comparison.explanation:
        for text in NUMBER.findall(re.sub(r", \d+ more|(?:about|more than) \d+", "", sentence)):
            assert text.lstrip("+-") in known, f"{text} of: {sentence}"


def _texts(comparison: Comparison) -> Iterator[str]:
    yield from (f"{comparison.confidence * 100:g}%", f"{comparison.least * 100:g}%")
    for side in (comparison.before, comparison.after):
        yield from (str(len(side.labels)), *(f"{steps:,}" for steps in side.steps))
        yield from (shown(share, Fmt.SHARE) for share in (side.busy_share, side.host_share))
        yield shown(max(side.step_ns) - min(side.step_ns))
    yield from (shown(comparison.run_noise_ns), str(MIN_REPEATS))
    for change, fmt in _changes(comparison):
        for value in (change.before, change.after, change.delta):
            if value is not None:
                text = shown(abs(value), fmt)
                yield from (text, text.partition(" ")[0])
        ends = spread(change.low, change.high, fmt)
        yield from (text.lstrip("+-") for text in NUMBER.findall(ends))
        yield signed_share(change.ratio).lstrip("+-")
    for finding in comparison.findings:
        yield from (shown(finding.before_ns), shown(finding.after_ns))
    for total in _totals(comparison):
        yield from (total, total.partition(" ")[0])


def _changes(comparison: Comparison) -> Iterator[tuple[MeasuredChange, Fmt]]:
    yield from ((metric.change, metric.fmt) for metric in comparison.metrics)
    yield from ((entry.change, Fmt.TIME) for entry in comparison.ledger)
    yield from ((row.host_ns, Fmt.TIME) for row in (*comparison.ranges, *comparison.api))
    yield from ((row.ns, Fmt.TIME) for row in comparison.copies)
    counted = [(row.calls, row.calls_before, row.calls_after) for row in comparison.api]
    counted += [(row.calls, row.calls_before, row.calls_after) for row in comparison.copies]
    for calls, *numbers in counted:
        assert calls is not None
        assert [calls.before, calls.after] == pytest.approx(numbers)
        yield calls, Fmt.COUNT
    yield from ((change, Fmt.TIME) for _, change in comparison.phases)


def _totals(comparison: Comparison) -> Iterator[str]:
    """Give the sums that the sentence on copies speaks of."""
    moved = [
        e.change.delta or 0
        for e in comparison.ledger
        if e.entry[:4] == "copy" and e.change.significant
    ]
    yield shown(abs(sum(moved)))
    rows = [row for row in comparison.copies if row.bytes_before or row.bytes_after]
    for side in ("before", "after"):
        yield shown(sum(getattr(row.ns, side) for row in rows))
        yield shown(sum(getattr(row, f"bytes_{side}") for row in rows), Fmt.BYTES)


@needs_shared
@pytest.mark.parametrize("folder", ["nsys", "torch"])
def test_numbers_of_captures(folder: str) -> None:
    ending = "sqlite" if folder == "nsys" else "json.gz"
    names = ("gpt_small_train", "gpt_small_train_bf16_fused", "dataload", "item", "pageable")
    paths = [SHARED / folder / f"{name}.{ending}" for name in names]
    for before, after in pairwise(paths):
        check_numbers(gs.compare(before, after).answer)


# The verdict --------------------------------------------------------------------------------------

BUSY = steady(compute_matmul=40, idle_launching=6)


def test_a_step_that_fell_with_its_work() -> None:
    text = explanation_of(BUSY, steady(compute_matmul=20, idle_launching=6))
    assert text.startswith(
        "Step time is lower in these runs: 46.0 -> 26.0 ms (-20.0 ms, -43.5%); 95% "
    )
    assert "interval -20.7 to -19.3 ms, 4 and 4 steps; other runs may differ more." in text
    assert "GPU busy time is lower" in text
    assert "compute/matmul -20.0 ms" in text
    assert "Idle" not in text


def test_a_change_that_runs_of_one_program_may_have_too_is_said_to_be_of_these_runs() -> None:
    text = explanation_of(BUSY, steady(compute_matmul=40, idle_launching=3.2))
    assert text.startswith("Step time is lower in these runs: 46.0 -> 43.2 ms (-2.80 ms, -6.1%); ")
    assert "; runs of one program may differ by 5.00 ms: record 3 or more per side." in text
    assert compared(BUSY, steady(compute_matmul=40, idle_launching=3.2)).within_run_noise
    assert not compared([BUSY] * 3, [steady(compute_matmul=40)] * 3).within_run_noise


def test_runs_that_differ_more_than_the_sides() -> None:
    before = [steady(compute_matmul=ms) for ms in (14, 18, 19)]
    after = [steady(compute_matmul=ms) for ms in (18, 20, 21)]
    text = explanation_of(before, after)
    assert text.startswith("Step time 17.0 -> 19.7 ms")
    assert "captures before differ by up to 5.00 ms" in text
    assert "lower" not in text
    assert "higher" not in text


def test_the_same_step() -> None:
    runs = [steady(compute_matmul=10 + n / 1e6) for n in range(3)]
    text = explanation_of(runs, runs)
    assert text.startswith("Step time is unchanged within 2%")


def test_single_values_are_said_to_be_such() -> None:
    text = explanation_of(digest({"compute/matmul": [10]}), digest({"compute/matmul": [5]}))
    assert text.startswith(
        "Step time is lower: 10.0 -> 5.00 ms (-5.00 ms, -50.0%); one sample per side; "
    )


def test_steps_that_differ_too_much() -> None:
    text = explanation_of(digest({"idle/input": [10, 20, 12]}), digest({"idle/input": [9, 14, 18]}))
    assert "includes 0 (3 and 3 steps)" in text
    assert text.startswith("Step time ")
    assert "): not significant" in text.partition(";")[0]


# Where it went ------------------------------------------------------------------------------------


def test_the_host_became_the_limit() -> None:
    after = steady(compute_matmul=10, idle_framework=20, idle_launching=12)
    text = explanation_of(BUSY, after)
    assert "compute/matmul (-30.0 ms) fell by far more than the step (-4.00 ms)" in text
    assert "because the bottleneck moved from GPU work to the host" in text
    assert "the GPU idles 26.0 ms longer (idle/framework +20.0 ms, idle/launching +6.00 ms)" in text
    assert "GPU busy 87.0% -> 23.8%" in text


def test_a_limit_that_stayed() -> None:
    before = steady(compute_matmul=10, idle_framework=30)
    text = explanation_of(before, steady(compute_matmul=4, idle_framework=36))
    assert "the bottleneck is still the host" in text


def test_input_that_went_away() -> None:
    before = steady(compute_matmul=10, idle_input=60)
    text = explanation_of(before, steady(compute_matmul=10, idle_input=2))
    assert "GPU idle time is lower: 60.0 -> 2.00 ms" in text
    assert "idle/input -58.0 ms; the bottleneck moved from data loading to GPU work" in text
    assert "GPU work is" not in text


def test_a_gpu_that_mostly_copies() -> None:
    before = steady(compute_matmul=2, copy_h2d=8, idle_input=60)
    text = explanation_of(before, steady(compute_matmul=2, copy_h2d=8, idle_input=2))
    assert "the bottleneck moved from data loading to GPU work (mostly copies)" in text


def test_waiting_that_only_moved() -> None:
    before = steady(compute_matmul=20, idle_synchronizing=5, idle_queued=1)
    text = explanation_of(before, steady(compute_matmul=20, idle_synchronizing=1, idle_queued=5))
    assert "GPU idle time is unchanged" in text
    assert "idle/synchronizing -4.00 ms" in text
    assert "idle/queued +4.00 ms" in text


def test_kernel_time_fell_though_the_step_did_not() -> None:
    noisy = [(7, 4.1), (12, 4.0), (14, 4.2)], [(15, 2.4), (16, 2.5), (17, 2.4)]
    sides = [
        [steady(compute_matmul=work, idle_framework=wait) for wait, work in side] for side in noisy
    ]
    text = explanation_of(*sides)
    assert text.startswith("Step time ")
    assert "): not significant" in text.partition(";")[0]
    assert "Kernel time is lower: 4.10 -> 2.43 ms (-1.67 ms, -40.7%) per step" in text


def test_time_between_steps_is_part_of_the_step() -> None:
    before = steady(compute_matmul=10, idle_input=90, copy_h2d=10, between=100)
    text = explanation_of(before, steady(compute_matmul=10))
    assert text.startswith("Step time is lower in these runs: 110 -> 10.0 ms (-100 ms, -90.9%); ")
    assert "Time between steps dropped to 0: 100 ms -> 0 ns (-100 ms, -100.0%) of each st" in text
    assert "GPU idle time dropped to 0: 90.0 ms -> 0 ns (-90.0 ms, -100.0%) per step: idle" in text
    assert "the bottleneck moved from data loading to GPU work (GPU busy 18.2% -> 100.0%)" in text


def test_time_between_steps_is_claimed_where_the_step_is_not() -> None:
    # Steps vary from run to run by more than what changed between them.
    sides = [
        [steady(idle_framework=ms, idle_input=gap, between=gap) for ms in (24, 31, 38)]
        for gap in (18, 10)
    ]
    text = explanation_of(*sides)
    assert text.startswith("Step time 49.0 -> 41.0 ms (-8.00 ms, ")
    assert "captures before differ by up to 14.0 ms" in text
    assert "within these runs" not in text
    assert "Time between steps is lower: 18.0 -> 10.0 ms (-8.00 ms, -44.4%) of each step." in text
    assert "but in its parts: idle/input -8.00 ms." in text


def test_little_time_between_steps_is_not_worth_a_sentence() -> None:
    before = steady(compute_matmul=40, idle_input=1, between=1.0)
    text = explanation_of(before, steady(compute_matmul=40, idle_input=0.5, between=0.5))
    assert text.startswith("Step time 41.0 -> 40.5 ms")
    assert "between steps" not in text


def test_work_is_held_against_the_step_with_the_time_between() -> None:
    before = steady(compute_matmul=40, idle_input=10, between=10)
    text = explanation_of(before, steady(compute_matmul=20, idle_input=26, between=26))
    assert text.startswith("Step time is lower in these runs: 50.0 -> 46.0 ms")
    assert "fell by far more than the step (-4.00 ms)" in text
    assert "because the bottleneck moved from GPU work to data loading: the GPU idles" in text


def with_copies(ns: float, size: float) -> dict[str, Any]:
    row = CopyDigest(
        operation="Host-to-Device",
        src_kind="Pinned",
        dst_kind="Device",
        calls=(1.0,) * 4,
        ns=(ns * MS,) * 4,
        bytes=(size,) * 4,
    )
    return {"copies": (row,)}


def host(
    waits: float = 0, allocations: float = 0, copies: float = 0, launches: float = 5
) -> dict[str, Any]:
    """Give calls a step by kind, 10 µs each, and copies from the GPU."""

    def rows(name: str, calls: float) -> CallDigest:
        return CallDigest(name=name, calls=(calls,) * 4, host_ns=(calls * 1e4,) * 4)

    each = {
        "cudaStreamSynchronize": waits,
        "cudaMalloc": allocations,
        "cudaLaunchKernel": launches,
    }
    api = tuple(rows(name, n) for name, n in each.items() if n)
    back = CopyDigest(
        operation="Device-to-Host",
        src_kind="Device",
        dst_kind="Pageable",
        calls=(copies,) * 4,
        ns=(copies * 1e3,) * 4,
        bytes=(copies * 8,) * 4,
    )
    return {"api": api, "copies": (back,) if copies else ()}


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (
            host(),
            host(waits=6, copies=6),
            (
                "New on the host: cudaStreamSynchronize 0 -> 6 per step (+60.0 µs); copies "
                "Device-to-Host, Pageable 0 -> 6 per step (+6.00 µs)."
            ),
        ),
        (
            host(allocations=2),
            host(),
            "No longer on the host: cudaMalloc 2 -> 0 per step (-20.0 µs).",
        ),
        (
            host(waits=2),
            host(waits=3),
            "More calls on the host: cudaStreamSynchronize 2 -> 3 per step (+10.0 µs).",
        ),
        (
            host(waits=3),
            host(waits=1),
            "Fewer calls on the host: cudaStreamSynchronize 3 -> 1 per step (-20.0 µs).",
        ),
        (host(waits=2), host(waits=2.5), ""),  # less than one a step
        (host(launches=5), host(launches=50), ""),  # launches do not hold the host up
    ],
)
def test_what_the_host_began_or_stopped_doing(
    before: dict[str, Any], after: dict[str, Any], sentence: str
) -> None:
    text = explanation_of(*(steady(compute_matmul=10, change=change) for change in (before, after)))
    assert sentence in text
    assert bool(sentence) == (" on the host: " in text)


def test_what_the_host_did_in_a_window_is_not_of_a_step() -> None:
    window = {"steps": 0}
    sides = (steady(compute_matmul=10, change={**window, **host(waits=n)}) for n in (0, 6))
    assert "cudaStreamSynchronize 0 -> 6 (+60.0 µs)." in explanation_of(*sides)


def test_what_the_driver_pages_is_not_done_by_the_host() -> None:
    paged = host(copies=6)
    row = msgspec.structs.replace(paged["copies"][0], operation="Unified Device-to-Host")
    after = steady(compute_matmul=10, change={**paged, "copies": (row,)})
    assert "on the host" not in explanation_of(steady(compute_matmul=10, change=host()), after)


def test_copies_that_came_to_run_beside_computation() -> None:
    before = steady(compute_matmul=10, copy_h2d=5, change=with_copies(5, 1e6))
    text = explanation_of(before, steady(compute_matmul=10, change=with_copies(5.1, 1e6)))
    assert "Copies now overlap compute: same duration (5.00 -> 5.10 ms per step)" in text
    back = explanation_of(steady(compute_matmul=10, change=with_copies(5.1, 1e6)), before)
    assert "Copies no longer overlap compute" in back


def test_copies_that_became_faster() -> None:
    before = steady(compute_matmul=10, copy_h2d=8, change=with_copies(8, 67.11e6))
    text = explanation_of(
        before, steady(compute_matmul=10, copy_h2d=1, change=with_copies(1, 67.11e6))
    )
    assert "Copies move the same 67.1 MB per step in less time: 8.00 -> 1.00 ms" in text


def test_kernels_inside_graphs_are_not_said_to_be_gone() -> None:
    before = steady(compute_matmul=4, idle_launching=20)
    text = explanation_of(before, steady(compute_graph=4.1, idle_launching=1))
    assert "Kernel time" not in text
    assert "number of kernels" not in text
    assert "Step time is lower" in text


def test_memory_and_kernels_in_a_clause() -> None:
    change = {"memory_peak": {"0": 8_000_000}}
    before = steady(compute_matmul=10, change=change)
    many = kernel("matmul", before.ledger["compute/matmul"], calls=40)
    after = steady(compute_matmul=10, change={"memory_peak": {"0": 6_000_000}, "kernels": (many,)})
    text = explanation_of(before, after)
    assert "Kernel launches per step are higher: 4 -> 40 (+36, +900.0%)" in text
    assert "peak memory is lower: 8.00 -> 6.00 MB (-2.00 MB, -25.0%, one sample" in text


def test_what_would_settle_a_change() -> None:
    before, after = (
        digest({"compute/matmul": [9.0, 10.0, 12.0]}),
        {"compute/matmul": [8.0, 9.0, 11.0]},
    )
    verdict = compared([before], [digest(after)]).explanation[0]
    assert "not significant yet, about " in verdict
    assert " ms within these runs includes 0 (3 and 3 steps" in verdict
    repeats = re.search(r"about (\d+) captures per side would settle whether it changed;", verdict)
    assert repeats
    assert int(repeats[1]) >= 3
    far = digest({"compute/matmul": [4.0, 4.1, 4.2]})
    assert "settle" not in compared([before], [far]).explanation[0]


def test_compare_and_gate_say_the_same_number_of_captures() -> None:
    before = [digest({"compute/matmul": [ms] * 3}, f"a{ms}") for ms in (9.0, 10.0, 12.0)]
    after = [digest({"compute/matmul": [ms] * 3}, f"b{ms}") for ms in (9.8, 10.9, 13.1)]
    verdict = compared(before, after).explanation[0]
    gated = gate(before, after, [read_limit("step_time=+0%"), read_limit("kernel_time=+3%")])
    assert isinstance(gated, Gate)
    needs = gated.checks[0].needs
    assert f"not significant yet, {needs} would settle whether it changed;" in verdict
    # A limit is harder to settle than a change; the sentences of the gate repeat its number.
    limited = gate(before, after, [read_limit("step_time=+3%")])
    assert isinstance(limited, Gate)
    assert (limited.checks[0].repeats or 101) > (gated.checks[0].repeats or 0)
    assert limited.comparison
    text = f"{limited.checks[0].needs} would settle the limit of +3%;"
    assert text in limited.comparison.explanation[0]


def with_sums(ms: float, factor: float, *, busy: float = 10.0) -> Digest:
    """Give steps whose kernels sum to `factor` times the GPU busy time."""
    steps = steady(compute_matmul=busy, idle_launching=ms - busy)
    rows = tuple(
        msgspec.structs.replace(row, ns=tuple(ns * factor for ns in row.ns))
        for row in steps.kernels
    )
    kernel_ns = tuple(ns * factor for ns in steps.kernel_ns)
    return msgspec.structs.replace(steps, kernels=rows, kernel_ns=kernel_ns)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((1.0, 10.0), (1.4, 10.0), "higher: 10.0 -> 14.0 ms (+4.00 ms, +40.0%) per step, only"),
        ((1.4, 10.0), (1.0, 10.0), "lower: 14.0 -> 10.0 ms (-4.00 ms, -28.6%) per step, only"),
        ((1.0, 10.0), (1.0, 14.0), ""),
    ],
)
def test_kernels_that_overlap_are_not_slower(
    before: tuple[float, float], after: tuple[float, float], expected: str
) -> None:
    sides = [with_sums(15.0, factor, busy=busy) for factor, busy in (before, after)]
    text = " ".join(compared([sides[0]], [sides[1]]).explanation)
    assert (f"Kernel time is {expected} because kernels overlap" in text) is bool(expected)
    assert ("overlap" in text) is bool(expected)
    gated = gate([sides[0]], [sides[1]], [read_limit("kernel_time=+3%")])
    assert isinstance(gated, Gate)
    failed = gated.checks[0].status is CheckStatus.FAILED
    is_overlap = "kernels overlap more: GPU busy time is unchanged" in gated.checks[0].reason
    assert is_overlap is (failed and bool(expected))
    notes = gated.comparison.notes if gated.comparison else ()
    assert notes[0].startswith("kernels overlap") is bool(expected)


def test_hostile_names_do_not_reach_the_sentences() -> None:
    evil = "<script>\x1b[31m|`"
    hostile = msgspec.structs.replace(BUSY, label=evil, tool=evil, gpus=(evil,))
    assert evil not in explanation_of(hostile, steady(compute_matmul=10, idle_launching=30))


# Captures -----------------------------------------------------------------------------------------


@needs_shared
@pytest.mark.usefixtures("recorded_times")
def test_the_faster_gpu_of_gpt_small() -> None:
    paths = [SHARED / "nsys" / f"gpt_small_train{end}.sqlite" for end in ("", "_bf16_fused")]
    comparison = gs.compare(*paths).answer
    check_numbers(comparison)
    text = " ".join(comparison.explanation)
    assert "compute/matmul -28.2" in text
    assert re.search(r"by phase .*optimizer -1\.97 ms", text)
    assert "On the host: range optimizer -15.9 ms, forward +9.65" in text
    assert (
        "compute/matmul (-28.2 ms) and range optimizer on the host (-15.9 ms) fell by far "
        "more than the step (-4.12 ms)" in text
    )
    assert "because the bottleneck is still the host" in text
    assert "idle/framework +21." in text


@needs_shared
@pytest.mark.usefixtures("recorded_times")
def test_the_noise_of_gpt_tiny() -> None:
    sides = [
        [SHARED / "nsys" / f"gpt_tiny_train{kind}_r{n}.sqlite" for n in (1, 2, 3)]
        for kind in ("", "_tf32")
    ]
    comparison = gs.compare(*sides).answer
    check_numbers(comparison)
    assert comparison.explanation[0].startswith("Step time 17.1")
    assert any("Kernel time is lower" in sentence for sentence in comparison.explanation)


def test_no_verdict_between_times_with_and_without_the_profiler() -> None:
    before = steady("a", compute_matmul=10, change={"recorded_step_ns": 12e6})
    comparison = compared(before, steady("b", compute_matmul=14))
    assert comparison.step.verdict is ChangeVerdict.NOT_COMPARABLE
    assert comparison.metric("kernel_time").change.verdict is ChangeVerdict.HIGHER
    verdict = comparison.explanation[0]
    assert verdict.startswith("Step time 10.0 -> 14.0 ms (+4.00 ms, +40.0%): not comparable; ")
    assert "b is not corrected for the profiler" in verdict
    assert "would settle" not in verdict


def test_more_captures_are_not_asked_for_where_sides_cannot_be_compared() -> None:
    before, after = (
        steady("a", compute_matmul=10, idle_input=5),
        digest({"compute/matmul": [8, 12, 10, 10.4], "idle/input": [5, 5, 5, 5]}, "b"),
    )
    assert "would settle" in compared(before, after).explanation[0]
    other_gpu = digest(
        {"compute/matmul": [8, 12, 10, 10.4], "idle/input": [5, 5, 5, 5]}, "b", gpus=("NVIDIA L4",)
    )
    comparison = compared(before, other_gpu)
    assert "would settle" not in comparison.explanation[0]
    assert not any("record 3 or more" in note for note in comparison.notes)
