"""Baselines on disk: written so that a diff can be read, read as if anyone had written them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gpusight.comparison import baseline_file
from gpusight.comparison.baseline_file import (
    check_baseline_output,
    is_baseline,
    load_baseline,
    save_baseline,
)
from gpusight.comparison.digest import (
    FORMAT,
    CallDigest,
    CopyDigest,
    Digest,
    DigestFinding,
    KernelDigest,
)
from gpusight.errors import BaselineError, UsageError
from tests.comparison.digests import steady
from tests.shared import DATA

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def sample(label: str = "run_1.sqlite") -> Digest:
    """Give a digest of five steps in two blocks."""
    gemm = KernelDigest(
        name="gemm", short="gemm", category="matmul", range="fwd", ns=(60.0, 61.5), calls=(1.0, 1.0)
    )
    rest = KernelDigest(
        name="", short="", category="other", range=None, ns=(10.0, 8.5), calls=(2.333, 2.0)
    )
    return Digest(
        label=label,
        tool="Nsight Systems 2025.3.2",
        gpus=("NVIDIA H200",),
        steps=5,
        steps_left_out=1,
        steps_found="numbered ranges",
        blocks=(3, 2),
        step_ns=(100.0, 110.0),
        between_ns=(5.0, 5.0),
        median_ns=101.0,
        min_ns=99.0,
        max_ns=120.0,
        ledger={"compute/matmul": (70.0, 70.0), "idle/input": (30.0, 40.0)},
        kernel_ns=(70.0, 70.0),
        phases={"forward": (70.0, 70.0)},
        kernels=(gemm, rest),
        order=(0, 1, 1) * 30,
        ranges=(
            CallDigest(name="fwd", calls=(1.0, 1.0), host_ns=(50.0, 50.0), gpu_ns=(60.0, 61.0)),
        ),
        api=(CallDigest(name="cudaLaunchKernel", calls=(3.0, 3.0), host_ns=(9.0, 9.0)),),
        copies=(
            CopyDigest(
                operation="Memset",
                src_kind=None,
                dst_kind="Device",
                calls=(1.0, 1.0),
                ns=(2.0, 2.0),
                bytes=(8.0, 8.0),
            ),
        ),
        memory_peak={"0": 1 << 33},
        findings=(
            DigestFinding(
                rule="input-bound", title="…", step_ns=30.5, share=0.25, confidence="high"
            ),
            DigestFinding(rule="other", title="x", step_ns=None, share=None, confidence="low"),
        ),
        missing={"phases": "nothing tells"},
        notes=("a note",),
    )


def written(tmp_path: Path, change: Callable[[dict[str, Any]], object] | None = None) -> Path:
    """Write a baseline, with something about its first digest changed by hand."""
    path = tmp_path / "baseline.json"
    save_baseline([sample(), sample("run_2.sqlite")], path)
    if change is not None:
        document = json.loads(path.read_text(encoding="utf-8"))
        change(document["digests"][0])
        path.write_text(json.dumps(document), encoding="utf-8")
    return path


# Writing ------------------------------------------------------------------------------------------


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert load_baseline(path) == (sample(), sample("run_2.sqlite"))
    assert is_baseline(path)


def test_times_with_and_without_the_profiler_are_no_baseline(tmp_path: Path) -> None:
    known = {"recorded_step_ns": 2e7}
    note = "not corrected for the profiler: another process uses the same GPU"
    mixed = [
        steady("a.sqlite", change=known, compute_matmul=9),
        steady("b.sqlite", change={"notes": (note,)}, compute_matmul=9),
    ]
    with pytest.raises(UsageError) as error:
        save_baseline(mixed, tmp_path / "base.json")
    text = "b.sqlite is not corrected for the profiler (another process uses the same GPU), "
    assert f"{text}a.sqlite is; record all" in str(error.value)
    assert "--pace off" in str(error.value)
    assert not (tmp_path / "base.json").exists()


def test_an_overhead_too_small_to_correct_goes_with_estimates(tmp_path: Path) -> None:
    estimated = steady("a", change={"recorded_step_ns": 2e7, "is_estimate": True}, compute_matmul=9)
    own_ns = sum(estimated.step_ns) / len(estimated.step_ns)
    small = steady("b", change={"recorded_step_ns": own_ns}, compute_matmul=9)
    save_baseline([estimated, small], tmp_path / "base.json")
    measured = {"recorded_step_ns": own_ns, "pace_steps": 9}
    with pytest.raises(UsageError, match="estimated for a, and measured for b"):
        save_baseline(
            [estimated, steady("b", change=measured, compute_matmul=9)], tmp_path / "other.json"
        )


def test_a_change_is_a_change_of_few_lines(tmp_path: Path) -> None:
    before = written(tmp_path).read_text(encoding="utf-8").splitlines()
    written(tmp_path, lambda digest: digest["ledger"].update({"idle/input": [30, 40.5]}))
    save_baseline(
        [_with(sample(), ledger={"compute/matmul": (70.0, 70.0), "idle/input": (30.0, 40.5)})],
        tmp_path / "other.json",
    )
    after = (tmp_path / "other.json").read_text(encoding="utf-8").splitlines()
    changed = [line for line in after if line not in before]
    assert changed == ['  "idle/input": [30,40.5]']
    assert max(map(len, before)) < 300
    assert before[1] == f'"gpusight_baseline": {FORMAT},'


def _with(digest: Digest, **fields: Any) -> Digest:
    values = {name: getattr(digest, name) for name in digest.__struct_fields__}
    return Digest(**{**values, **fields})


def test_a_baseline_replaces_a_baseline_and_nothing_else(tmp_path: Path) -> None:
    path = written(tmp_path)
    save_baseline([sample()], path)
    assert len(load_baseline(path)) == 1
    notes = tmp_path / "notes.json"
    notes.write_text("{}")
    with pytest.raises(UsageError, match="not replaced"):
        save_baseline([sample()], notes)
    assert notes.read_text() == "{}"


@pytest.mark.parametrize("capture", ["dataload.sqlite", "healthy.json.gz", "jax_small.xplane.pb"])
def test_captures_are_never_written_to(tmp_path: Path, capture: str) -> None:
    copy = tmp_path / "capture.json"
    copy.write_bytes((DATA / capture).read_bytes())
    with pytest.raises(UsageError):
        save_baseline([sample()], copy)
    assert copy.read_bytes() == (DATA / capture).read_bytes()


@pytest.mark.parametrize("name", ["run.sqlite", "run.nsys-rep", "run.trace.json", "run.json.gz"])
def test_names_of_captures_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="named like a capture"):
        check_baseline_output(tmp_path / name)


def test_a_folder_that_is_not_there_is_said_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        check_baseline_output(tmp_path / "no" / "baseline.json")


def test_nothing_makes_no_baseline(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        save_baseline([], tmp_path / "baseline.json")


# Telling ------------------------------------------------------------------------------------------


def test_files_that_tools_have_rewritten_are_still_baselines(tmp_path: Path) -> None:
    path = written(tmp_path)
    document = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(document, indent=4, sort_keys=True))
    assert is_baseline(path)
    assert load_baseline(path)[0] == sample()
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(document).encode())
    assert is_baseline(path)
    assert load_baseline(path)[0] == sample()


def test_other_files_are_no_baselines(tmp_path: Path) -> None:
    empty, other = tmp_path / "empty", tmp_path / "other.json"
    empty.touch()
    other.write_text('{"traceEvents": [], "text": "gpusight_baseline"}')
    for path in (tmp_path, empty, other, tmp_path / "nothing", tmp_path / "a\0b"):
        assert not is_baseline(path)
    for path in sorted(DATA.glob("*.*")):
        assert not is_baseline(path)


# Reading what anyone may have written -------------------------------------------------------------


def _set(key: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda digest: digest.update({key: value})


def _first(key: str, **values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda digest: digest[key][0].update(values)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_set("step_ns", [100]), "step_ns does not have a value for each block"),
        (_set("phases", {"forward": [1, 2, 3]}), "phases does not have a value"),
        (_first("api", host_ns=[1]), "api does not have a value"),
        (_first("ranges", gpu_ns=[1]), "ranges does not have a value"),
        (_first("copies", bytes=[]), "copies does not have a value"),
        (_first("kernels", calls=[1, 2, 3]), "kernels does not have a value"),
        (_set("step_ns", [100, -110]), "negative or too large"),
        (_set("memory_peak", {"0": -1}), "negative or too large"),
        (_set("max_ns", 1e30), "negative or too large"),
        (_set("min_ns", 1e9), "the median"),
        (_set("order", [0, 2]), "kernels that it does not have"),
        (_set("order", [-1]), "negative"),
        (_set("order", [0] * 20_001), "too many rows of order"),
        (_set("notes", ["x"] * 1_001), "too many rows of notes"),
        (_set("label", "x" * 3_000), "too long"),
        (_set("missing", {"x" * 3_000: ""}), "too long"),
        (_set("blocks", []), "blocks of at least one"),
        (_set("blocks", [5, 0]), "blocks of at least one"),
        (_set("blocks", [3, 3]), "6 steps instead of 5"),
        (_set("steps", 7), "5 steps instead of 7"),
        (_set("ledger", {"compute": [1, 1]}), "the ledger does not sum to the steps"),
        (_set("ledger", {}), "the ledger does not sum to the steps"),
        (_set("between_ns", [5]), "between_ns does not have a value for each block"),
        (_set("between", {"copy": [5, 5]}), "unknown field `between`"),
        (_set("kernels", []), "kernels that it does not have"),
        (_set("kernel_ns", [500, 500]), "the kernels do not sum"),
        (_set("steps", "many"), "Expected `int`"),
        (_set("step_ns", [None, 1]), "Expected `float`"),
        (_set("extra", 1), "unknown field `extra`"),
        (lambda digest: digest.pop("ledger"), "missing required field `ledger`"),
        (_first("findings", share="x"), "Expected `float | null`"),
    ],
)
def test_a_baseline_that_does_not_add_up_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    path = written(tmp_path, change)
    with pytest.raises(BaselineError) as caught:
        load_baseline(path)
    assert reason in str(caught.value)
    assert "gpusight baseline save" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("number", "advice"), [(FORMAT + 1, "newer gpusight"), (FORMAT - 1, "save it again")]
)
def test_another_format_is_named(tmp_path: Path, number: int, advice: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(f'{{"gpusight_baseline": {number}, "anything": [1, {{}}]}}')
    with pytest.raises(BaselineError, match=f"format {number}") as caught:
        load_baseline(path)
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        '{"gpusight_baseline": 1, "gpusight": "0", "digests": []}',
        '{"gpusight_baseline": 1, "gpusight": "0", "digests": [{',
        '{"gpusight_baseline": 1, "gpusight": "0", "digests": [{}]}',
        '{"gpusight_baseline": "one"}',
        '{"gpusight_baseline": 1e999}',
        '{"gpusight_baseline": 1, "gpusight": "0", "digests": ' + "[" * 100_000,
        '{"gpusight_baseline": 1, "' + "x" * 10_000 + '": 1}',
        '{"gpusight_baseline": 1} {"gpusight_baseline": 1}',
    ],
)
def test_broken_files_are_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(BaselineError) as caught:
        load_baseline(path)
    assert len(str(caught.value)) < 1_000
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_bytes(written(tmp_path).read_bytes().replace(b"a note", b"a \xff\xfe"))
    with pytest.raises(BaselineError):
        load_baseline(path)


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    for text in (b"1e999", b"NaN", b"Infinity", b"-Infinity"):
        path = written(tmp_path)
        path.write_bytes(path.read_bytes().replace(b'"max_ns": 120', b'"max_ns": ' + text))
        with pytest.raises(BaselineError):
            load_baseline(path)


def test_large_files_are_refused_before_they_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path)
    monkeypatch.setattr(baseline_file, "MAX_VALUES", 10)
    with pytest.raises(BaselineError, match="too large"):
        load_baseline(path)
    monkeypatch.setattr(baseline_file, "MAX_VALUES", 10_000)
    monkeypatch.setattr(baseline_file, "MAX_BYTES", 100)
    with pytest.raises(BaselineError, match="too large"):
        load_baseline(path)
    with pytest.raises(UsageError, match="too large"):
        save_baseline([sample()], path)


def test_what_is_no_baseline_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="gpusight baseline save"):
        load_baseline(DATA / "dataload.sqlite")
    with pytest.raises(BaselineError, match="cannot read"):
        load_baseline(tmp_path / "nothing.json")
    with pytest.raises(BaselineError, match="cannot read"):
        load_baseline(tmp_path)
