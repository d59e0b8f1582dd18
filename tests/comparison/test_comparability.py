"""Captures that lost data or do not match their baseline never pass a gate."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import gpusight as gs
from gpusight.cli.main import main
from gpusight.comparison.baseline_file import save_baseline
from gpusight.comparison.comparability import (
    KINDS,
    MAX_STEPS_CHANGE,
    MAX_WORK_CHANGE,
    check_kinds,
    differences,
)
from gpusight.comparison.gate_check import Doubt
from gpusight.errors import MissingDataError, UsageError
from tests.comparison.digests import digest, kernel
from tests.shared import DATA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from gpusight.comparison.digest import Digest
    from gpusight.render.result_view import GateView

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
ODD = f"SELECT correlationId FROM {KERNEL} WHERE rowid % 2 = 0"
NO_KERNELS = (f"DELETE FROM {KERNEL}",)
HALF = (f"DELETE FROM {KERNEL} WHERE rowid % 2 = 0",)
HALF_WITH_CALLS = (f"DELETE FROM {RUNTIME} WHERE correlationId IN ({ODD})", *HALF)
LIMITS = (
    "step_time=+5%",
    "kernel_time=+3%",
    "compute=+5%",
    "busy=+5%",
    "copy/d2d=+5%",
    "api:*=+9%",
)


@pytest.fixture
def changed(tmp_path: Path) -> Callable[..., str]:
    """Copy a capture with these statements applied to it; gives its path."""

    def make(name: str, *statements: str, source: str = "gpt_small_forward.sqlite") -> str:
        path = tmp_path / f"{name}.sqlite"
        shutil.copyfile(DATA / source, path)
        connection = sqlite3.connect(path)
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()
        return str(path)

    return make


def judged(before: Any, after: Any, *limits: str, **options: Any) -> GateView:
    return gs.gate(after, baseline=before, limits=list(limits or LIMITS), **options)


def statuses(view: GateView) -> dict[str, str]:
    return {check.limit.metric: check.status.value for check in view.checks}


# Lost data ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("statements", [NO_KERNELS, HALF, (f"DROP TABLE {KERNEL}",)])
def test_kernels_that_were_launched_but_not_recorded_are_missing(
    changed: Callable[..., str], statements: Iterable[str]
) -> None:
    whole, broken = changed("whole"), changed("broken", *statements)
    for before, after in ((whole, broken), (broken, whole)):
        result = judged(before, after)
        assert set(statuses(result).values()) == {"inconclusive"}
        assert "kernel launches" in result.checks[1].reason
        assert "have no kernels in the capture" in result.checks[1].reason
    # Neither option lets lost data pass, nor does a ceiling that needs no baseline.
    every = {"allow_missing": True, "allow_changed": list(KINDS), "inconclusive": "pass"}
    result = judged(whole, broken, **every)
    assert (result.passed, result.exit_code) == (False, 3)
    assert result.checks[0].doubt is Doubt.LOST_DATA
    assert not judged((), broken, "kernel_time=1s").passed
    assert not judged((), broken, "api:*=1s").passed
    assert judged(whole, whole).passed


def test_one_of_several_captures_that_lost_kernels_is_enough(changed: Callable[..., str]) -> None:
    whole, broken = changed("whole"), changed("broken", *HALF)
    verdicts = statuses(judged(whole, [whole, broken], "kernel_time=+3%", "step_time=1s"))
    assert set(verdicts.values()) == {"inconclusive"}


def test_copies_that_were_issued_but_not_recorded_are_missing(changed: Callable[..., str]) -> None:
    whole, broken = changed("whole"), changed("broken", f"DELETE FROM {MEMCPY}")
    verdicts = statuses(judged(whole, broken, "copy/d2d=+5%", "busy=+5%", "kernel_time=+3%"))
    assert verdicts == {"copy/d2d": "inconclusive", "busy": "inconclusive", "kernel_time": "pass"}
    calls = f"DELETE FROM {RUNTIME} WHERE correlationId IN (SELECT correlationId FROM {MEMCPY})"
    without_copies = changed("gone", calls, f"DELETE FROM {MEMCPY}")
    # No memcpy is called any more: the copies are gone, not lost.
    assert statuses(judged(whole, without_copies, "copy/d2d=+5%")) == {"copy/d2d": "pass"}


def test_without_api_calls_nothing_says_why_the_gpu_idles(changed: Callable[..., str]) -> None:
    whole, blind = changed("whole"), changed("blind", f"DELETE FROM {RUNTIME}")
    limits = ("idle/launching=+1ms", "findings=+9", "finding:launch-bound=+9s", "kernel_time=+3%")
    verdicts = statuses(judged(whole, blind, *limits))
    assert verdicts.pop("kernel_time") == "pass"
    assert set(verdicts.values()) == {"inconclusive"}


def test_a_torch_trace_without_its_kernels(tmp_path: Path) -> None:
    source = DATA / "gpt_small_forward.json.gz"
    content = json.loads(gzip.decompress(source.read_bytes()))
    events = content["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    for name, dropped in (("none", kernels), ("half", kernels[::2])):
        dropped_ids = set(map(id, dropped))
        left = [event for event in events if id(event) not in dropped_ids]
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**content, "traceEvents": left}), encoding="utf-8")
        verdicts = statuses(judged(source, path, "kernel_time=+3%", "step_time=+5%"))
        assert set(verdicts.values()) == {"inconclusive"}


@pytest.mark.usefixtures("recorded_times")
def test_the_command_is_red_and_says_why(
    changed: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    whole, broken = changed("whole"), changed("broken", *NO_KERNELS)
    words = ("gate", "--baseline", whole, "--max", "kernel_time=+3%", "--junit", "gate.xml")
    assert main([*words, "--", broken]) == 3
    out = capsys.readouterr().out
    assert out.startswith("Gate INCONCLUSIVE (exit code 3): kernel_time is missing\n")
    assert "-100" not in out
    assert 'failures="1"' in (tmp_path / "gate.xml").read_text(encoding="utf-8")
    assert main(["baseline", "save", broken, "-o", "base.json"]) == 2
    assert "cannot be a baseline" in capsys.readouterr().err
    assert not (tmp_path / "base.json").exists()
    assert main(["diagnose", whole, "--fail-over", "99%"]) == 0
    capsys.readouterr()
    assert main(["diagnose", broken, "--fail-over", "99%"]) == 1
    assert "the capture is incomplete" in capsys.readouterr().err
    blind = changed("blind", f"DELETE FROM {RUNTIME}")
    named = ("diagnose", blind, "--rule", "dependency-stall", "--fail-over", "99%")
    assert main([*named]) == 1
    assert "dependency-stall was not evaluated" in capsys.readouterr().err


@pytest.mark.usefixtures("recorded_times")
def test_compare_claims_nothing_of_lost_kernels(changed: Callable[..., str]) -> None:
    view = gs.compare(changed("whole"), changed("broken", *HALF))
    result = view.answer
    assert result.metric("kernel_time").change.after is None
    assert not any(metric.change.significant for metric in result.metrics)
    assert (result.ledger, result.kernels, result.findings) == ((), (), ())
    (sentence,) = result.explanation
    assert sentence.startswith("Step time cannot be compared: broken.sqlite: ")
    assert sentence[:40] in view.to_text()
    assert "missing" in view.to_text(details=True)
    assert view._repr_html_()
    with pytest.raises(MissingDataError, match="no step time to draw"):
        _ = view.figure


# Captures that do not match ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "statements"),
    [
        ("kernels", HALF_WITH_CALLS),
        ("kernels", (*HALF, f"DROP TABLE {RUNTIME}")),
        ("gpu-model", ("UPDATE TARGET_INFO_GPU SET name = 'NVIDIA A100'",)),
        ("gpu-model", ("DELETE FROM TARGET_INFO_GPU",)),
        ("steps", ("DELETE FROM NVTX_EVENTS",)),
    ],
)
@pytest.mark.usefixtures("recorded_times")
def test_another_capture_is_inconclusive_until_it_is_accepted(
    changed: Callable[..., str], kind: str, statements: Iterable[str]
) -> None:
    whole, other = changed("whole"), changed("other", *statements)
    limits = ("kernel_time=+3%", "busy=+5%")
    result = judged(whole, other, *limits)
    assert set(statuses(result).values()) == {"inconclusive"}
    assert (result.passed, result.outcome) == (False, "inconclusive")
    assert kind in {difference.kind for difference in result.answer.differences}
    accepted = judged(whole, other, *limits, allow_changed=[kind])
    assert accepted.passed
    assert f"accepted by allow_changed=[{kind!r}]" in " ".join(accepted.to_text().split())


def kinds(before: Iterable[Digest], after: Iterable[Digest]) -> list[str]:
    return [difference.kind for difference in differences([*before], [*after])]


def launching(count: float, calls: float | None = None, **more: Any) -> Digest:
    rows = (kernel("matmul", (1e6, 1e6), calls=count),)
    made = digest({"compute/matmul": [1, 1]}, kernels=rows, **more)
    return msgspec.structs.replace(made, launch_calls=calls)


def test_small_changes_of_work_are_ordinary_and_large_ones_are_not() -> None:
    usual = launching(100, 100)
    for share in (0.92, 1.08):
        assert kinds([usual], [launching(100 * share, 100 * share)]) == []
    for share in (1 - MAX_WORK_CHANGE - 0.01, 0.5, 0.0, 2.0):
        assert kinds([usual], [launching(100 * share)]) == ["kernels"]
    # The same kernels by fewer calls, as by CUDA graphs; more calls are no sign of lost data.
    assert kinds([usual], [launching(100, 1)]) == ["kernels"]
    assert kinds([launching(100, 1)], [usual]) == []
    assert kinds([usual, usual], [usual, launching(50, 50)]) == ["kernels"]


def test_steps_processes_gpus_and_reported_losses() -> None:
    usual = digest({"compute/matmul": [1] * 20})

    def other(**changed: Any) -> list[str]:
        return kinds([usual], [msgspec.structs.replace(usual, **changed)])

    assert other(steps_left_out=int(20 * MAX_STEPS_CHANGE)) == []
    assert other(steps_left_out=10) == ["steps"]
    assert other(steps_found="the same 1,742 kernels") == ["steps"]
    assert other(steps_found=usual.steps_found.replace("0", "1,234")) == []
    assert other(processes=2) == ["processes"]
    assert other(gpus=usual.gpus * 2) == ["gpus"]
    assert other(reported_losses=("events were dropped",)) == ["incomplete"]
    assert kinds([], [msgspec.structs.replace(usual, reported_losses=("cut off",))]) == [
        "incomplete"
    ]


def test_only_kinds_that_exist_can_be_accepted() -> None:
    assert check_kinds(["steps", "steps", " gpus"]) == ("steps", "gpus")
    with pytest.raises(UsageError, match=r"'kernel' is not a kind of change.*kernels"):
        check_kinds(["kernel"])


def test_a_baseline_keeps_what_is_known_of_its_captures(tmp_path: Path) -> None:
    one = msgspec.structs.replace(launching(3, 4.5), reported_losses=("cut off",), processes=2)
    save_baseline([one], tmp_path / "base.json")
    (read,) = gs.baseline(tmp_path / "base.json").digests
    assert read == one
