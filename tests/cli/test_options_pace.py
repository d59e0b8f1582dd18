"""`--pace` through `main`: every command shows both step times."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

import pytest

import gpusight as gs
from gpusight.cli.main import main
from tests.profiled_loops import profiled_loop, step_ns, stored_pace, write_torch

if TYPE_CHECKING:
    from pathlib import Path

PLAIN, RECORDED = "324 µs", "480 µs"
BOTH = f"6 steps of {PLAIN} ({RECORDED} with the profiler)"


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A launch-bound loop under a profiler; its capture does not know the time without it."""
    return write_torch(profiled_loop(overhead_us=4), tmp_path_factory.mktemp("p") / "loop.json.gz")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same loop as `gpusight record` writes it, with the time that it measured."""
    pace = stored_pace(step_ns(profiled_loop()), 20)
    path = tmp_path_factory.mktemp("p") / "measured.json.gz"
    return write_torch(profiled_loop(overhead_us=4), path, pace)


def screen(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return re.sub(r"\s+", " ", out.replace("\\\n", ""))  # commands are broken by backslashes


@pytest.mark.parametrize(
    "command",
    ["diagnose", "ledger", "steps", "summary", "whatif", "utilization", "timeline"],
    ids=lambda name: name,
)
def test_commands_show_both_times(
    capsys: pytest.CaptureFixture[str], loop: Path, measured: Path, command: str
) -> None:
    change = ["--graph"] if command == "whatif" else []
    assert BOTH in screen(capsys, command, str(loop), "--pace", "324us", *change)
    assert BOTH in screen(capsys, command, str(measured), *change)
    off = screen(capsys, command, str(measured), "--pace", "off", *change)
    assert f"6 steps of {RECORDED}" in off
    assert f"{RECORDED} with the profiler" not in off


def test_info_shows_the_step_time_that_was_stored(
    capsys: pytest.CaptureFixture[str], loop: Path, measured: Path
) -> None:
    shown = f"Without profiler {PLAIN}/step, measured before the recording, 20 steps"
    assert shown in screen(capsys, "info", str(measured))
    assert "Without profiler" not in screen(capsys, "info", str(loop))


@pytest.mark.parametrize("command", ["timeline", "ranges", "api", "ops", "launches"])
def test_commands_that_are_not_corrected_say_so(
    capsys: pytest.CaptureFixture[str], measured: Path, command: str
) -> None:
    shown = screen(capsys, command, str(measured))
    assert BOTH in shown
    assert "times are as recorded, with the overhead of the profiler" in shown


def test_diagnose_says_what_was_taken_off_and_what_to_type_next(
    capsys: pytest.CaptureFixture[str], loop: Path, measured: Path
) -> None:
    out = screen(capsys, "diagnose", str(loop), "--pace", "324us")
    assert "profiler overhead subtracted: " in out
    assert " µs per recorded event (324 µs/step given)" in out
    assert out.rstrip().endswith(f"next: gpusight explain {loop} 1 --pace=324us")
    out = screen(capsys, "diagnose", str(measured))
    assert "(324 µs/step measured before the recording, 20 steps)" in out
    assert out.rstrip().endswith(f"next: gpusight explain {measured} 1")
    assert main(["diagnose", str(measured), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    window, profiler = document["window"], document["profiler"]
    assert window["step_ns"] == profiler["step_ns"] == pytest.approx(324_000, rel=0.005)
    assert window["recorded_step_ns"] == profiler["recorded_step_ns"] == 480_000
    assert profiler["measured_steps"] == 20
    assert profiler["overhead_per_event_ns"] > 0


@pytest.mark.parametrize("command", ["diagnose", "ledger", "steps", "summary", "whatif"])
def test_commands_show_an_estimate_with_its_range(
    capsys: pytest.CaptureFixture[str], loop: Path, command: str
) -> None:
    options = {"whatif": ["--graph"], "diagnose": ["--details"]}
    out = screen(capsys, command, str(loop), *options.get(command, []))
    shown = rf"of about [\d.]+ µs \({RECORDED} with the profiler"
    assert re.search(shown, out)
    limits = re.search(r"step time without the profiler: [\d.]+ to [\d.]+ µs \(estimate", out)
    assert limits or command == "summary"  # which has no notes about times


@pytest.mark.parametrize(
    "typed",
    [
        "--in=ProfilerStep*",
        "--device=0",
        "--process=4242",
        "--steps=2-3",
        "--window=0-2ms",
        "--pace=400us",
        "--pace=off",
        "--warmup",
    ],
)
def test_the_next_command_of_diagnose_shows_the_same_plan(
    capsys: pytest.CaptureFixture[str], measured: Path, typed: str
) -> None:
    out = screen(capsys, "diagnose", str(measured), typed)
    command = shlex.split(out.rpartition("next: gpusight ")[2])
    assert command == ["explain", str(measured), "1", typed]
    saving = re.search(r" 1\. .*?(\d\S* [mµ]s)", out)
    assert saving
    assert f" saves {saving[1]}" in screen(capsys, *command)


def test_compare_shows_recorded_times_and_notes_mixed_sides(
    capsys: pytest.CaptureFixture[str], loop: Path, measured: Path
) -> None:
    out = screen(capsys, "compare", str(measured), str(loop), "--details")
    assert BOTH in out
    assert re.search(rf"6 steps of about [\d.]+ µs \({RECORDED} with the profiler\)", out)
    assert (
        "the overhead of the profiler is estimated for loop.json.gz, and measured for "
        "measured.json.gz" in out
    )
    out = screen(capsys, "compare", str(measured), str(loop), "--pace", "off")
    assert "corrected" not in out
    assert "estimate" not in out
    out = screen(capsys, "compare", str(loop), str(loop), "--pace", "324us,400us", "--details")
    assert BOTH in out
    assert f"of 400 µs ({RECORDED} with the profiler)" in out
    assert "captures are corrected" not in out
    assert "estimate" not in out
    assert out.rstrip().endswith(f"next: gpusight diagnose {loop} --pace=400us")


def test_a_gate_does_not_compare_measured_with_estimated_times(
    capsys: pytest.CaptureFixture[str], loop: Path, measured: Path
) -> None:
    assert main(["gate", "--baseline", str(loop), "--", str(measured)]) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert "the overhead of the profiler is estimated for loop.json.gz, and measured for" in out
    assert main(["gate", "--baseline", str(loop), "--pace", "off", "--", str(measured)]) != 1
    capsys.readouterr()
    assert main(["gate", "--baseline", str(loop), "--pace", "324us", "--", str(measured)]) == 2
    assert "one for each side" in capsys.readouterr().err


def test_a_saved_baseline_has_its_own_time(
    capsys: pytest.CaptureFixture[str], loop: Path, measured: Path, tmp_path: Path
) -> None:
    saved, raw = str(tmp_path / "base.json"), str(tmp_path / "raw.json")
    for path, *options in ((saved,), (raw, "--pace", "off")):
        assert main(["baseline", "save", str(measured), "-o", path, *options]) == 0
    capsys.readouterr()
    # A single time is that of the capture.
    assert main(["gate", "--baseline", saved, "--pace", "324us", str(loop)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Gate PASS (exit code 0), times without the profiler: 1 within the limit")
    out = screen(capsys, "compare", saved, str(loop), "--pace", "324us", "--details")
    assert (
        "Step time without the profiler is unchanged within 2% in these runs: 324 -> 324 µs" in out
    )
    assert out.rstrip().endswith(f"next: gpusight diagnose {loop} --pace=324us")
    assert main(["gate", "--max", "step_time=1ms", "--pace", "324us", str(loop)]) == 0
    assert main(["gate", "--baseline", raw, "--pace", "off", str(loop)]) == 0
    capsys.readouterr()
    refused = {
        ("324us,324us", saved): "base.json is a saved baseline, whose times --pace cannot change; "
        "pass one time, of the other side: 324us",
        ("off", saved): "base.json has times without the profiler, which --pace off cannot undo",
    }
    for (pace, path), message in refused.items():
        assert main(["gate", "--baseline", path, "--pace", pace, str(loop)]) == 2
        assert message in capsys.readouterr().err
    assert main(["compare", saved, saved, "--pace", "1ms"]) == 2
    assert "cannot change; omit --pace" in capsys.readouterr().err
    assert main(["baseline", "save", str(measured), str(loop), "-o", saved]) == 2
    assert "these captures cannot be one baseline" in capsys.readouterr().err


def test_report_shows_the_corrected_step(loop: Path) -> None:
    page = gs.report(gs.open(loop, pace="324us")).to_html()
    assert "without the profiler" in page
    assert PLAIN in page


@pytest.mark.parametrize(
    ("command", "pace", "why"),
    [
        ("diagnose", "3.3us", "not the same steps"),
        ("ledger", "quick", "no step time"),
        ("steps", "1h", "no step time"),
        ("compare", "324us,", "no two step times"),
    ],
)
def test_a_wrong_time_is_refused(
    capsys: pytest.CaptureFixture[str], loop: Path, command: str, pace: str, why: str
) -> None:
    files = [str(loop)] * (2 if command == "compare" else 1)
    assert main([command, *files, "--pace", pace]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert why in err
