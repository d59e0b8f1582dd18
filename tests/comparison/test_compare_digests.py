"""Two sides, part by part: what is there sums to the whole, and says how surely it changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import gpusight as gs
from gpusight.comparison.compare_digests import compare
from gpusight.comparison.comparison_result import Comparison, FindingStatus, KernelMatch
from gpusight.comparison.digest import CallDigest, CopyDigest, Digest, DigestFinding
from gpusight.comparison.phrases import bottleneck, busy_share, gpu_part
from gpusight.comparison.significance import Basis, ChangeVerdict
from gpusight.errors import UsageError
from gpusight.results import NotApplicable
from tests.comparison.digests import MS, digest, steady
from tests.shared import SHARED, needs_shared

if TYPE_CHECKING:
    from collections.abc import Sequence


def compared(before: Sequence[Digest], after: Sequence[Digest], **options: float) -> Comparison:
    comparison = compare(before, after, **options)
    assert isinstance(comparison, Comparison)
    return comparison


def sums_up(comparison: Comparison) -> None:
    """The ledger sums to the step and the kernels to the kernel time, on either side."""
    for side in ("before", "after"):
        step = getattr(comparison.step, side)
        assert sum(getattr(e.change, side) for e in comparison.ledger) == pytest.approx(
            step, rel=1e-6
        )
        kernels = getattr(comparison.metric("kernel_time").change, side)
        if kernels is not None:
            total = sum(getattr(row.ns, side) for row in comparison.kernels)
            assert total == pytest.approx(kernels, rel=1e-3, abs=50)


OLD = steady("old", compute_matmul=10, compute_elementwise=2, idle_launching=3)
NEW = steady("new", compute_matmul=4, compute_elementwise=2, idle_launching=3, idle_input=1)


def test_the_parts_sum_to_the_change_of_the_step() -> None:
    comparison = compared([OLD], [NEW])
    rows = [
        (e.entry, round((e.change.delta or 0) / MS, 6), e.change.verdict) for e in comparison.ledger
    ]
    assert rows == [
        ("compute/matmul", -6, ChangeVerdict.LOWER),
        ("idle/input", 1, ChangeVerdict.APPEARED),
        ("compute/elementwise", 0, ChangeVerdict.SAME),
        ("idle/launching", 0, ChangeVerdict.SAME),
    ]
    assert [e.part for e in comparison.ledger] == pytest.approx([6 / 5, -1 / 5, 0, 0])
    assert comparison.step.delta == pytest.approx(-5 * MS)
    sums_up(comparison)


def repeats(capture: Digest, count: int) -> list[Digest]:
    """Give captures that differ in their names and, by next to nothing, in their steps."""
    return [
        having(capture, label=f"{capture.label}_{number}", max_ns=capture.max_ns + number)
        for number in range(1, count + 1)
    ]


def test_a_capture_against_itself_shows_no_change() -> None:
    comparison = compared([OLD], [OLD])
    assert not any(metric.change.significant for metric in comparison.metrics)
    assert not any(entry.change.significant for entry in comparison.ledger)
    assert {row.match for row in comparison.kernels} == {KernelMatch.NAME}
    assert all(entry.part is None for entry in comparison.ledger)
    assert any("both sides" in note for note in comparison.notes)


def test_swapping_the_sides_turns_every_change_round() -> None:
    there, back = compared([OLD], [NEW]), compared([NEW], [OLD])
    changes = {entry.entry: entry.change.delta for entry in there.ledger}
    for entry in back.ledger:
        assert entry.change.delta == pytest.approx(-(changes[entry.entry] or 0))


def test_captures_of_a_side_count_alike() -> None:
    runs = [steady(f"r{n}", compute_matmul=ms) for n, ms in enumerate((10, 12, 14))]
    comparison = compared(runs, runs)
    assert comparison.step.before == pytest.approx(12 * MS)
    assert comparison.before.step_ns == pytest.approx((10 * MS, 12 * MS, 14 * MS))
    assert comparison.step.basis is Basis.REPEATS


def test_a_step_is_not_set_against_a_window() -> None:
    window = msgspec.structs.replace(NEW, steps=0, label="no_steps.sqlite")
    comparison = compare([OLD], [window])
    assert isinstance(comparison, NotApplicable)
    assert "no_steps.sqlite" in comparison.reason
    assert comparison.hint.startswith("put the steps of both in numbered ranges")
    shared = (calls("layer_#", 3),)
    comparison = compare([having(OLD, ranges=shared)], [having(window, ranges=shared)])
    assert isinstance(comparison, NotApplicable)
    assert comparison.hint.startswith(
        "choose a range of both with --in 'layer_*'; or put the steps"
    )
    both = compared([msgspec.structs.replace(OLD, steps=0)], [window])
    assert both.explanation[0].startswith("Window time")
    assert any("no steps found" in note for note in both.notes)


@pytest.mark.parametrize(
    "options", [{"confidence": 1.0}, {"confidence": 0.2}, {"least": -0.1}, {"least": 1.5}]
)
def test_options_that_make_no_sense(options: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="is invalid"):
        compare([OLD], [NEW], **options)
    with pytest.raises(UsageError, match="no capture given for after"):
        compare([OLD], [])


def test_rows_of_long_tables_need_more_to_be_claimed() -> None:
    # Three runs of each, apart by what 95% of chance reaches and 99% does not.
    def side(shift: float) -> list[Digest]:
        made = []
        for ms in (9.0, 10.0, 11.0):
            ns = (ms + shift,) * 4
            row: dict[str, Any] = {"calls": (1.0,) * 4, "host_ns": tuple(x * MS for x in ns)}
            ranges = (CallDigest(name="outer", outer=True, **row), CallDigest(name="inner", **row))
            change = {"ranges": ranges, "api": (CallDigest(name="cudaMalloc", **row),)}
            made.append(steady(compute_matmul=ms + shift, change=change))
        return made

    comparison = compared(side(0), side(3))
    claimed = {row.name: row.host_ns.significant for row in (*comparison.ranges, *comparison.api)}
    assert claimed == {"outer": True, "inner": False, "cudaMalloc": False}
    assert [
        comparison.ledger[0].change.significant,
        comparison.kernels[0].ns.significant,
    ] == [True, False]
    assert comparison.of_rows == pytest.approx(0.99)
    widths = {row.name: row.host_ns.high - row.host_ns.low for row in comparison.ranges}  # type: ignore[operator]
    assert widths["inner"] / widths["outer"] == pytest.approx(4.604 / 2.776, abs=1e-3)  # t(4)


# Between steps ------------------------------------------------------------------------------------


def test_the_time_between_steps_is_part_of_the_step() -> None:
    before = steady(compute_matmul=10, idle_input=6, copy_h2d=2, between=8)
    comparison = compared([before], [steady(compute_matmul=10, copy_h2d=2, between=2)])
    assert [e.entry for e in comparison.ledger] == ["idle/input", "compute/matmul", "copy/h2d"]
    assert [e.part for e in comparison.ledger] == pytest.approx([1.0, 0.0, 0.0])
    sums_up(comparison)
    between = comparison.metric("between_steps").change
    assert [between.before, between.after] == pytest.approx([8 * MS, 2 * MS])
    busy, idle = (comparison.metric(key).change for key in ("busy", "idle"))
    for side in ("before", "after"):
        step = getattr(comparison.step, side)
        assert getattr(busy, side) + getattr(idle, side) == pytest.approx(step)
    assert (comparison.before.busy_share, comparison.after.busy_share) == pytest.approx(
        (12 / 18, 1.0)
    )
    assert comparison.document()["verdict"] == {
        "step_time": {**comparison.step.document(), "run_noise": comparison.run_noise_ns}
    }


def test_the_bottleneck_is_that_of_the_step_with_the_time_between() -> None:
    starved = steady(compute_matmul=10, idle_input=30, between=30)
    comparison = compared([starved], [steady(compute_matmul=10)])
    assert (comparison.before.limit, comparison.after.limit) == ("input", "gpu")


# Rows ---------------------------------------------------------------------------------------------


def calls(name: str, ms: float, gpu_ms: float | None = None) -> CallDigest:
    gpu = None if gpu_ms is None else (gpu_ms * MS,) * 4
    return CallDigest(name=name, calls=(2.0,) * 4, host_ns=(ms * MS,) * 4, gpu_ns=gpu)


def copy(ms: float, size: float) -> CopyDigest:
    return CopyDigest(
        operation="Host-to-Device",
        src_kind="Pinned",
        dst_kind="Device",
        calls=(1.0,) * 4,
        ns=(ms * MS,) * 4,
        bytes=(size,) * 4,
    )


def having(digest: Digest, **changed: Any) -> Digest:
    return msgspec.structs.replace(digest, **changed)


def test_ranges_calls_and_copies_by_name() -> None:
    old = having(OLD, ranges=(calls("fwd", 3, 8), calls("gone", 1)), copies=(copy(2, 100),))
    new = having(NEW, ranges=(calls("fwd", 2, 4), calls("new", 4)), copies=(copy(1, 100),))
    comparison = compared([old], [new])
    document = {
        row.name: (row.host_ns.verdict, row.calls_before, row.calls_after)
        for row in comparison.ranges
    }
    assert document == {
        "fwd": (ChangeVerdict.LOWER, 2, 2),
        "gone": (ChangeVerdict.VANISHED, 2, 0),
        "new": (ChangeVerdict.APPEARED, 0, 2),
    }
    work = {row.name: row.gpu_ns and row.gpu_ns.delta for row in comparison.ranges}
    assert work == {"fwd": pytest.approx(-4 * MS), "gone": None, "new": None}
    assert [(c.bytes_before, c.bytes_after) for c in comparison.copies] == [(100, 100)]
    assert comparison.copies[0].ns.delta == pytest.approx(-1 * MS)


def test_a_side_without_ranges_gives_no_rows_that_vanished() -> None:
    old = having(OLD, ranges=(calls("fwd", 3),))
    new = having(NEW, missing={"ranges": "the capture has no NVTX ranges"})
    comparison = compared([old], [new])
    assert comparison.ranges == ()
    assert any("no ranges in new: the capture has no NVTX" in n for n in comparison.notes)


def test_phases_need_all_captures() -> None:
    phases = {"optimizer": (1 * MS,) * 4, "forward": (2 * MS,) * 4}
    comparison = compared([having(OLD, phases=phases)], [having(NEW, phases=phases)])
    assert [name for name, _ in comparison.phases] == ["forward", "optimizer"]
    assert compared([having(OLD, phases=phases)], [NEW]).phases == ()


# Findings -----------------------------------------------------------------------------------------


def finds(*rules: str) -> tuple[DigestFinding, ...]:
    return tuple(
        DigestFinding(
            rule=rule, title=f"title of {rule}", step_ns=at * MS, share=None, confidence="high"
        )
        for at, rule in enumerate(rules, 1)
    )


def test_what_became_of_findings() -> None:
    old, new = repeats(OLD, 3), repeats(NEW, 3)
    shown = (("a", "b"), ("a", "b"), ("a", "c")), (("b", "d", "e"), ("d", "b"), ("d", "e"))
    before, after = (
        [having(row, findings=finds(*rules)) for row, rules in zip(side, every, strict=True)]
        for side, every in zip((old, new), shown, strict=True)
    )
    comparison = compared(before, after)
    statuses = [
        (f.rule, f.status, f.captures_before, f.captures_after) for f in comparison.findings
    ]
    assert sorted(statuses) == [
        ("a", FindingStatus.FIXED, 3, 0),
        ("b", FindingStatus.STAYED, 2, 2),
        ("c", FindingStatus.STAYED, 1, 0),  # one capture of three is no cure
        ("d", FindingStatus.NEW, 0, 3),
        ("e", FindingStatus.STAYED, 0, 2),
    ]
    stayed = next(row for row in comparison.findings if row.rule == "b")
    assert stayed.before_ns == pytest.approx(2 * MS)
    assert stayed.after_ns == pytest.approx(1.5 * MS)
    assert (stayed.shown_by, stayed.capture) == ("2 of 3 -> 2 of 3", "new_1")
    saved = {row.rule: (row.before_ns, row.after_ns) for row in comparison.findings}
    assert saved["a"][0] == pytest.approx(1 * MS)
    assert saved["d"][1] == pytest.approx(4 / 3 * MS)
    assert (saved["a"][1], saved["d"][0]) == (None, None)
    assert comparison.document()["findings"][0]["capture"] == "new_1"


def test_a_finding_whose_rule_lacks_data_on_a_side_is_neither_fixed_nor_new() -> None:
    lacking = {"not_evaluated": {"a": "peaks are unknown", "b": "no SMs"}}
    old, new = having(OLD, findings=finds("a")), having(NEW, findings=finds("b"))
    comparison = compared([old], [having(new, **lacking)])
    assert [(f.rule, f.status, f.not_evaluated) for f in comparison.findings] == [
        ("b", FindingStatus.NEW, None),
        ("a", FindingStatus.NOT_EVALUATED_AFTER, "peaks are unknown"),
    ]
    comparison = compared([having(old, **lacking)], [new])
    assert [(f.rule, f.status, f.not_evaluated) for f in comparison.findings] == [
        ("b", FindingStatus.NOT_EVALUATED_BEFORE, "no SMs"),
        ("a", FindingStatus.FIXED, None),
    ]
    assert comparison.document()["findings"][0]["not_evaluated"] == "no SMs"


def test_findings_that_could_not_be_evaluated_are_not_fixed() -> None:
    old = having(OLD, findings=finds("a"))
    new = having(NEW, findings=(), missing={"findings": "nothing ran"})
    comparison = compared([old], [new])
    assert comparison.findings == ()
    assert any("no findings in new: nothing ran" in note for note in comparison.notes)


# Limits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ledger", "expected"),
    [
        ({"compute/matmul": 6.0, "idle/input": 5.0}, "gpu"),
        ({"compute/matmul": 4.0, "idle/input": 5.0}, "input"),
        (
            {"compute/x": 1.0, "idle/launching": 2.0, "idle/framework": 2.0, "idle/input": 3.0},
            "host",
        ),
        ({"idle/synchronizing": 2.0, "idle/launching": 1.0}, "synchronizing"),
        ({"idle/allocating": 2.0}, "allocating"),
        ({"idle/unknown": 2.0, "copy/h2d": 1.0}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_what_a_step_waits_for(ledger: dict[str, float], expected: str) -> None:
    assert bottleneck(ledger) == expected


@pytest.mark.parametrize(("host_ms", "expected"), [(9.8, "host"), (6.0, "gpu"), (None, "gpu")])
def test_a_busy_gpu_is_no_bottleneck_if_the_host_needs_the_step(
    host_ms: float | None, expected: str
) -> None:
    ledger = {"compute/matmul": [8.5] * 3, "idle/launching": [1.5] * 3}
    host_ns = None if host_ms is None else host_ms * MS
    side = compared([digest(ledger, host_step_ns=host_ns)], [NEW]).before
    assert side.limit == expected
    assert side.host_share == (None if host_ms is None else pytest.approx(host_ms / 10))


def test_what_the_gpu_does_most() -> None:
    ledger = {
        "compute/x": 2.0,
        "copy/h2d": 2.0,
        "copy/d2h": 1.0,
        "communication": 1.0,
        "idle/x": 4.0,
    }
    assert gpu_part(ledger) == "copy"
    assert busy_share(ledger) == pytest.approx(0.6)
    assert busy_share({}) is None


# Notes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            {"tool": "PyTorch Profiler 2.11"},
            "different profilers (Nsight Systems vs. PyTorch Profiler)",
        ),
        ({"tool": "Nsight Systems 2020.1"}, "different profiler versions"),
        ({"gpus": ("NVIDIA A100",)}, "GPU model: different (NVIDIA H200 vs. NVIDIA A100)"),
        ({"gpus": ("NVIDIA H200",) * 2}, "number of GPUs: 1 vs. 2"),
        ({"steps_found": "ranges that repeat"}, "steps: found by"),
        ({"notes": ("records were lost",)}, "new: records were lost"),
    ],
)
def test_what_makes_sides_differ_is_said(changed: dict[str, Any], says: str) -> None:
    assert not any(says in note for note in compared([OLD], [NEW]).notes)
    assert any(says in note for note in compared([OLD], [having(NEW, **changed)]).notes)


def test_one_capture_a_side_is_said_and_three_are_not() -> None:
    assert any("one capture per side" in note for note in compared([OLD], [NEW]).notes)
    assert any("one capture after" in note for note in compared(repeats(OLD, 2), [NEW]).notes)
    three = compared(repeats(OLD, 3), repeats(NEW, 3))
    assert not any("one capture" in note for note in three.notes)


def test_copies_of_a_capture_are_no_repeats() -> None:
    copy = having(OLD, label="copy")
    comparison = compared([OLD, copy, OLD], [NEW])
    assert comparison.before.labels == ("old",)
    assert comparison.step.basis is Basis.STEPS
    assert "old and copy are the same capture: counted once" in comparison.notes
    assert any("one capture per side" in note for note in comparison.notes)


def test_a_copy_under_another_name_stands_on_both_sides() -> None:
    pair = repeats(OLD, 2)
    copies = [having(original, label=f"copy of {original.label}") for original in pair]
    assert any("old_1 and 1 more are on both" in note for note in compared(pair, copies).notes)
    assert any("old_1 is on both" in note for note in compared(pair[:1], copies).notes)


def test_parts_of_captures_are_not_set_against_others() -> None:
    part = having(OLD, scope="--in forward")
    for sides in (([part], [NEW]), ([NEW], [part]), ([NEW, part], [NEW])):
        comparison = compare(*sides)
        assert isinstance(comparison, NotApplicable)
        assert "old uses --in forward" in comparison.reason
        assert "new is whole" in comparison.reason
        assert "--in forward" in comparison.hint
    assert compare([part], [having(NEW, scope="--in forward")])
    other = compare([part], [having(NEW, scope="--steps 2-3")])
    assert isinstance(other, NotApplicable)
    assert other.hint.startswith("add --in forward instead of --steps 2-3")


def test_other_programs_are_told() -> None:
    other = steady("other", compute_sort=10, copy_h2d=3)
    assert "different programs" in compared([OLD], [other]).explanation[0]
    assert not any("different programs" in note for note in compared([OLD], [NEW]).notes)


# The document -------------------------------------------------------------------------------------


def test_the_document_is_plain_and_complete() -> None:
    comparison = compared([having(OLD, findings=finds("a"))], [NEW])
    document = json.loads(json.dumps(comparison.document()))
    assert list(document) == [
        "meta",
        "verdict",
        "differences",
        "explanation",
        "metrics",
        "ledger",
        "phases",
        "kernels",
        "ranges",
        "api_calls",
        "copies",
        "findings",
    ]
    assert document["meta"]["before"]["labels"] == ["old"]
    assert document["verdict"]["step_time"]["change"] == pytest.approx(-5 * MS)
    assert document["verdict"]["step_time"]["verdict"] == "lower"
    assert document["metrics"][0]["metric"] == "step_time"
    total = sum(entry["change"] for entry in document["ledger"])
    assert total == pytest.approx(document["verdict"]["step_time"]["change"])


# Captures -----------------------------------------------------------------------------------------


def sides(*stems: str) -> list[str]:
    return [str(SHARED / "nsys" / f"{stem}.sqlite") for stem in stems]


@needs_shared
@pytest.mark.usefixtures("recorded_times")
def test_noise_of_a_shared_machine_is_no_change() -> None:
    before = sides(*(f"gpt_tiny_train_r{n}" for n in (1, 2, 3)))
    after = sides(*(f"gpt_tiny_train_tf32_r{n}" for n in (1, 2, 3)))
    comparison = gs.compare(before, after).answer
    assert comparison.before.step_ns == pytest.approx((14.09e6, 17.76e6, 19.43e6), rel=1e-3)
    assert comparison.after.step_ns == pytest.approx((18.96e6, 20.21e6, 20.71e6), rel=1e-3)
    assert comparison.step.verdict is ChangeVerdict.UNCLEAR
    assert comparison.metric("kernel_time").change.verdict is ChangeVerdict.LOWER
    kernels = comparison.metric("kernel_time").change
    # Three steps a capture: 12.3 and 7.2 ms in all.
    assert kernels.before == pytest.approx(12.3e6 / 3, rel=0.02)
    assert kernels.after == pytest.approx(7.2e6 / 3, rel=0.02)
    sums_up(comparison)


@needs_shared
@pytest.mark.usefixtures("recorded_times")
def test_a_faster_gpu_that_waits_for_its_host() -> None:
    comparison = gs.compare(*sides("gpt_small_train", "gpt_small_train_bf16_fused")).answer
    assert comparison.step.before == pytest.approx(46.86e6, rel=1e-3)
    assert comparison.step.after == pytest.approx(42.74e6, rel=1e-3)
    # A GPU that took no time would save 2% of the step: the host was the bottleneck before too.
    assert (comparison.before.limit, comparison.after.limit) == ("host", "host")
    assert comparison.before.host_share == pytest.approx(0.98, abs=0.005)
    entries = {entry.entry: entry.change for entry in comparison.ledger}
    assert entries["compute/matmul"].verdict is ChangeVerdict.LOWER
    assert dict(comparison.phases)["optimizer"].verdict is ChangeVerdict.LOWER
    assert entries["idle/framework"].verdict is ChangeVerdict.HIGHER
    sums_up(comparison)


@needs_shared
def test_a_baseline_stands_for_its_captures(tmp_path: Any) -> None:
    from gpusight.comparison.baseline_file import save_baseline
    from gpusight.comparison.build_digest import make_digest

    old, new = sides("dataload", "tiny")
    digest = make_digest(gs.open(old))
    assert isinstance(digest, Digest)
    save_baseline([digest], tmp_path / "base.json")
    of_capture = gs.compare(old, gs.open(new)).answer
    of_file = gs.compare(tmp_path / "base.json", new).answer
    of_digest = gs.compare([digest], [new]).answer
    assert of_file.document() == of_digest.document() == of_capture.document()
