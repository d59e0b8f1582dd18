"""Which kernels belong together: steps of a few launches, written out, before and after."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusight.comparison.build_digest import make_digest
from gpusight.comparison.comparison_result import KernelMatch
from gpusight.comparison.digest import Digest, KernelDigest
from gpusight.comparison.kernel_match import MatchedKernels, match_kernels
from gpusight.naming.kernel_names import classify
from tests.comparison.digests import steady
from tests.shared import SHARED, needs_shared, opened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Launch = tuple[str | None, str, str, float]
"""Range, name, category, microseconds."""


def digest(launches: Sequence[Launch], *, steps: int = 3, ordered: bool = True) -> Digest:
    """Give a digest of steps that launch this, one after the other."""
    rows: dict[tuple[str | None, str], list[Launch]] = {}
    for launch in launches:
        rows.setdefault(launch[:2], []).append(launch)
    kernels = tuple(
        KernelDigest(
            name=name,
            short=name,
            category=same[0][2],
            range=place,
            ns=(sum(one[3] for one in same) * 1e3,),
            calls=(float(len(same)),),
        )
        for (place, name), same in rows.items()
    )
    at = {key: i for i, key in enumerate(rows)}
    order = tuple(at[one[:2]] for one in launches) if ordered else ()
    changed = {"kernels": kernels, "order": order, "steps": steps, "blocks": (steps,)}
    return steady(compute_other=1, change=changed)


def shown(rows: Iterable[MatchedKernels]) -> set[tuple[str, str, str]]:
    """Give each row as match, names before, names after."""
    return {
        (row.match.value, "+".join(sorted(row.before_names)), "+".join(sorted(row.after_names)))
        for row in rows
    }


def matched(before: Sequence[Launch], after: Sequence[Launch]) -> set[tuple[str, str, str]]:
    return shown(match_kernels([digest(before)], [digest(after)]))


def total(digests: Sequence[Digest], parts: Sequence[Mapping[int, float]], what: str) -> float:
    """Sum a series up over the captures of a side, as the comparison does."""
    rows = (
        (one.kernels[at], part)
        for one, own in zip(digests, parts, strict=True)
        for at, part in own.items()
    )
    return sum((row.ns if what == "ns" else row.calls)[0] * part for row, part in rows)


def layers(*launches: Launch, count: int = 4) -> list[Launch]:
    return [*launches] * count


def test_the_same_name_in_the_same_range_belongs_together() -> None:
    before = [("fwd", "gemm", "matmul", 9.0), ("bwd", "gemm", "matmul", 20.0)]
    rows = match_kernels([digest(before)], [digest(before[::-1])])
    assert shown(rows) == {("name", "gemm", "gemm")}
    assert rows[0].ranges == ("bwd", "fwd")
    assert rows[0].category == "matmul"


def test_another_name_at_the_same_place_is_the_same_role() -> None:
    before = layers(("fwd", "norm", "normalization", 1), ("fwd", "sgemm", "matmul", 9))
    after = layers(
        ("fwd", "norm", "normalization", 1),
        ("fwd", "cast", "copy", 0.5),
        ("fwd", "bf16 gemm", "matmul", 2),
    )
    rows = match_kernels([digest(before)], [digest(after)])
    assert shown(rows) == {
        ("role", "sgemm", "bf16 gemm"),
        ("name", "norm", "norm"),
        ("appeared", "", "cast"),
    }
    assert rows[0].short == "sgemm -> bf16 gemm"


def test_launches_that_kept_their_name_are_told_from_those_that_did_not() -> None:
    norm: Launch = ("fwd", "norm", "normalization", 1)
    old: Launch = ("fwd", "sgemm", "matmul", 9)
    new: Launch = ("fwd", "bf16 gemm", "matmul", 2)
    before, after = [digest(layers(norm, old, norm, old))], [digest(layers(norm, old, norm, new))]
    rows = {row.match: row for row in match_kernels(before, after) if "sgemm" in row.before_names}
    assert set(rows) == {KernelMatch.NAME, KernelMatch.ROLE}
    assert rows[KernelMatch.ROLE].after_names == ("bf16 gemm",)
    for row in rows.values():
        assert total(before, row.before, "calls") == total(after, row.after, "calls") == 4


def test_launches_of_another_size_are_not_divided_by_number() -> None:
    """The long ones were replaced: half of the launches is not half of the time."""
    norm: Launch = ("fwd", "norm", "normalization", 1)
    before = layers(norm, ("fwd", "sgemm", "matmul", 90), norm, ("fwd", "sgemm", "matmul", 1))
    after = layers(norm, ("fwd", "bf16 gemm", "matmul", 9), norm, ("fwd", "sgemm", "matmul", 1))
    assert ("role", "sgemm", "bf16 gemm+sgemm") in matched(before, after)


def test_a_name_that_is_launched_less_is_not_replaced_by_one_that_is_launched_more() -> None:
    before = [("f", "add", "elementwise", 1.0)] * 5 + [("f", "mul", "elementwise", 1.0)] * 3
    after = [("f", "add", "elementwise", 1.0)] * 3 + [("f", "mul", "elementwise", 1.0)] * 5
    assert matched(before, after) == {("name", "add", "add"), ("name", "mul", "mul")}


def test_many_small_kernels_become_one_fused_one() -> None:
    gemm: Launch = ("fwd", "gemm", "matmul", 9)
    small = layers(("opt", "mul", "elementwise", 1), ("opt", "sqrt", "elementwise", 1), count=100)
    rows = match_kernels(
        [digest([gemm, *small])], [digest([gemm, *layers(("opt", "adam", "optimizer", 20))])]
    )
    assert shown(rows) == {("role", "mul+sqrt", "adam"), ("name", "gemm", "gemm")}
    assert rows[0].ranges == ("opt",)


def test_attention_written_out_becomes_one_kernel() -> None:
    """Also where one of its kernels happens to be of the same category as one of the new ones."""
    around: Launch = ("fwd", "linear", "matmul", 9)
    before = layers(
        around,
        ("fwd", "scores", "matmul", 3),
        ("fwd", "mask", "elementwise", 5),
        ("fwd", "softmax", "softmax", 5),
        ("fwd", "weighted", "matmul", 3),
        ("fwd", "norm", "normalization", 1),
    )
    after = layers(
        around,
        ("fwd", "flash", "attention", 4),
        ("fwd", "convert", "elementwise", 0.1),
        ("fwd", "norm", "normalization", 1),
    )
    assert matched(before, after) == {
        ("name", "linear", "linear"),
        ("name", "norm", "norm"),
        ("role", "mask+scores+softmax+weighted", "convert+flash"),
    }


def test_numbers_of_a_build_do_not_hide_a_kernel() -> None:
    before = layers(
        (None, "triton add_3", "generated", 1), (None, "gemm f32 tn 128x64", "matmul", 9)
    )
    after = layers(
        (None, "gemm bf16 tn 64x64", "matmul", 2), (None, "triton add_7", "generated", 1)
    )
    assert matched(before, after) == {
        ("role", "triton add_3", "triton add_7"),
        ("role", "gemm f32 tn 128x64", "gemm bf16 tn 64x64"),
    }


def test_a_ubiquitous_name_does_not_join_what_it_touches() -> None:
    """Each layer's copies changed their name everywhere; matmuls still have rows of their own."""
    copies: Launch = ("fwd", "copy f32", "copy", 1)
    moved: Launch = ("fwd", "strided copy", "copy", 1)
    old: list[Launch] = [("fwd", f"sgemm_{x}", "matmul", 9.0) for x in "abc"]
    new: list[Launch] = [("fwd", f"nvjet_{x}", "matmul", 2.0) for x in "abc"]
    before = layers(*(one for gemm in old for one in (copies, gemm)))
    after = layers(*(one for gemm in new for one in (moved, gemm)))
    assert matched(before, after) == {
        ("role", "copy f32", "strided copy"),
        *(("role", f"sgemm_{x}", f"nvjet_{x}") for x in "abc"),
    }


def test_a_name_may_move_to_another_range() -> None:
    fwd: Launch = ("fwd", "gemm", "matmul", 9)
    rest = layers(("fwd", "linear", "matmul", 90), ("loss", "linear", "matmul", 90))
    assert matched([*rest, fwd], [*rest, ("loss", "gemm", "matmul", 9)]) == {
        ("name", "gemm", "gemm"),
        ("name", "linear", "linear"),
    }


@pytest.mark.parametrize("renamed", ["attn_v2", None])
def test_ranges_that_were_renamed_or_taken_away_do_not_matter(renamed: str | None) -> None:
    before = layers(("attn", "sgemm", "matmul", 9), ("attn", "softmax", "softmax", 3))
    after = layers((renamed, "bf16 gemm", "matmul", 2), (renamed, "softmax", "softmax", 3))
    assert matched(before, after) == {
        ("role", "sgemm", "bf16 gemm"),
        ("name", "softmax", "softmax"),
    }


def test_what_has_no_counterpart_appeared_or_vanished() -> None:
    gemm: Launch = (None, "gemm", "matmul", 9)
    before = [(None, "dropout", "random", 1.0), *layers(gemm)]
    after = [*layers(gemm), (None, "argmax", "reduction", 1.0)]
    assert matched(before, after) == {
        ("name", "gemm", "gemm"),
        ("vanished", "dropout", ""),
        ("appeared", "", "argmax"),
    }


def test_other_programs_are_not_taken_for_versions_of_one() -> None:
    before = layers((None, "conv", "convolution", 9), (None, "pool", "pooling", 3))
    after = layers((None, "gemm", "matmul", 9), (None, "gather", "embedding", 3))
    assert {match for match, _, _ in matched(before, after)} == {"appeared", "vanished"}


def test_without_an_order_the_category_in_a_range_tells() -> None:
    before: list[Launch] = [("fwd", "sgemm", "matmul", 9), ("bwd", "dgrad", "matmul", 9)]
    after: list[Launch] = [("fwd", "nvjet a", "matmul", 2), ("bwd", "nvjet b", "matmul", 2)]
    rows = match_kernels([digest(before, ordered=False)], [digest(after)])
    assert shown(rows) == {("role", "sgemm", "nvjet a"), ("role", "dgrad", "nvjet b")}


def test_the_rest_goes_with_the_rest() -> None:
    before = [digest([(None, "gemm", "matmul", 9), (None, "", "other", 1)])]
    after = [digest([(None, "gemm", "matmul", 9)])]
    rest = next(row for row in match_kernels(before, after) if row.before_names == ("",))
    assert rest.match is KernelMatch.NAME
    assert rest.short == "(other kernels)"
    assert total(before, rest.before, "ns") == 1e3
    assert rest.after == ({},)


def test_repeats_are_matched_as_one() -> None:
    """One of the repeats has a kernel that the others lack; the longest capture tells the order."""
    gemm: Launch = ("fwd", "gemm", "matmul", 9)
    before = [digest([gemm], steps=2), digest([gemm, ("fwd", "seldom", "other", 1)], steps=9)]
    after = [digest([gemm])] * 3
    rows = match_kernels(before, after)
    assert shown(rows) == {("name", "gemm", "gemm"), ("vanished", "seldom", "")}
    vanished = next(row for row in rows if row.match is KernelMatch.VANISHED)
    assert vanished.before == ({}, {1: 1.0})
    assert vanished.after == ({}, {}, {})


# What always holds --------------------------------------------------------------------------------

CATEGORIES = {"a": "matmul", "b": "elementwise", "c": "copy", "d": "matmul", "e": "elementwise"}
launch = st.tuples(
    st.sampled_from([None, "fwd", "bwd"]), st.sampled_from("abcde"), st.sampled_from([1.0, 8.0])
)
step = st.lists(launch.map(lambda x: (x[0], x[1], CATEGORIES[x[1]], x[2])), min_size=1, max_size=25)


def check_parts(digests: Sequence[Digest], sides: Iterable[Sequence[Mapping[int, float]]]) -> None:
    sums: list[defaultdict[int, float]] = [defaultdict(float) for _ in digests]
    for side in sides:
        for result, parts in zip(sums, side, strict=True):
            for at, part in parts.items():
                assert 0 < part <= 1
                result[at] += part
    for one, result in zip(digests, sums, strict=True):
        assert dict(result) == pytest.approx(dict.fromkeys(range(len(one.kernels)), 1.0))


@settings(deadline=None)
@given(step, step, st.booleans())
def test_every_launch_is_in_one_row(one: list[Launch], other: list[Launch], ordered: bool) -> None:
    before, after = [digest(one), digest(other)], [digest(other, ordered=ordered)]
    rows = match_kernels(before, after)
    check_parts(before, [row.before for row in rows])
    check_parts(after, [row.after for row in rows])


@settings(deadline=None)
@given(step, step, st.booleans())
def test_the_other_way_round(one: list[Launch], other: list[Launch], ordered: bool) -> None:
    turned = {
        KernelMatch.APPEARED: KernelMatch.VANISHED,
        KernelMatch.VANISHED: KernelMatch.APPEARED,
    }
    sides = [digest(one)], [digest(other, ordered=ordered)]
    there = {(row.match, row.before_names, row.after_names): row for row in match_kernels(*sides)}
    for again in match_kernels(*sides[::-1]):
        match = turned.get(again.match, again.match)
        row = there.pop((match, again.after_names, again.before_names))
        assert (row.category, row.ranges) == (again.category, again.ranges)
        assert (row.before, row.after) == (again.after, again.before)
    assert not there


@settings(deadline=None)
@given(step)
def test_a_capture_against_itself(launches: list[Launch]) -> None:
    same = [digest(launches)]
    for row in match_kernels(same, same):
        assert row.match is KernelMatch.NAME
        assert row.before == row.after


@settings(deadline=None)
@given(step)
def test_other_names_for_all_kernels_change_nothing_but_the_names(launches: list[Launch]) -> None:
    before = [digest(launches)]
    renamed = [(place, name.upper(), category, us) for place, name, category, us in launches]
    after = [digest(renamed)]
    for row in match_kernels(before, after):
        assert row.match is KernelMatch.ROLE
        assert row.after_names == tuple(name.upper() for name in row.before_names)
        assert row.before == row.after


def test_long_steps_take_no_time() -> None:
    kinds = [("matmul", 9.0), ("elementwise", 1.0), ("copy", 2.0), ("reduction", 3.0)]
    layer: list[Launch] = [
        (f"r{i % 5}", f"{kinds[i % 4][0]} {i * i % 83}", *kinds[i % 4]) for i in range(200)
    ]
    changed = [(a, f"new {b}" if i % 3 else b, c, d) for i, (a, b, c, d) in enumerate(layer)]
    before, after = digest(layer * 100), digest((changed * 100)[:19_000])
    start = time.process_time()
    assert match_kernels([before], [after])
    assert time.process_time() - start < 5


# Captures -----------------------------------------------------------------------------------------


def captured(name: str) -> Digest:
    result = make_digest(opened(SHARED / name))
    assert isinstance(result, Digest)
    return result


@needs_shared
@pytest.mark.parametrize("kind", ["nsys/{}.sqlite", "torch/{}.json.gz"])
def test_fp32_to_bf16_with_a_fused_optimizer(kind: str) -> None:
    """Every matmul has found its successor, and the optimizer is one row."""
    before = [captured(kind.format("gpt_small_train"))]
    after = [captured(kind.format("gpt_small_train_bf16_fused"))]
    rows = match_kernels(before, after)
    matmuls = [row for row in rows if row.category == "matmul" and row.match is KernelMatch.ROLE]
    assert all(
        {classify(name).category for name in (*row.before_names, *row.after_names)} == {"matmul"}
        for row in matmuls
    )
    for row in matmuls:
        calls = total(before, row.before, "calls"), total(after, row.after, "calls")
        assert calls[0] == pytest.approx(calls[1])
    adam = [row for row in rows if "adam" in row.short]
    assert len(adam) == 1
    assert total(before, adam[0].before, "calls") > 900
    assert total(after, adam[0].after, "calls") < 10
    alone = {row.match: row for row in rows if not row.before_names or not row.after_names}
    assert alone[KernelMatch.APPEARED].category == "copy"
    assert alone[KernelMatch.VANISHED].short == "gemm split-k reduce f32"


@needs_shared
def test_two_tools_spell_the_same_kernels_differently() -> None:
    before = [captured("nsys/gpt_small_train.sqlite")]
    after = [captured("torch/gpt_small_train.json.gz")]
    for row in match_kernels(before, after):
        assert row.match is KernelMatch.NAME
        calls = total(before, row.before, "calls"), total(after, row.after, "calls")
        assert calls[0] == pytest.approx(calls[1])


@needs_shared
def test_tf32_keeps_all_names_but_those_of_matmuls() -> None:
    before = [captured(f"nsys/gpt_tiny_train_r{i}.sqlite") for i in (1, 2, 3)]
    after = [captured(f"nsys/gpt_tiny_train_tf32_r{i}.sqlite") for i in (1, 2, 3)]
    rows = match_kernels(before, after)
    assert {row.category for row in rows if row.match is not KernelMatch.NAME} == {"matmul"}
    check_parts(before, [row.before for row in rows])
    check_parts(after, [row.after for row in rows])
