"""Command lines of nsys: every version takes every one, and they say what was asked."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpusight as gs
from gpusight.errors import RecordError, UsageError
from gpusight.recording.nsys_command import nsys_command
from gpusight.recording.request import RecordedSteps, RecordRequest, Tool
from gpusight.recording.tools import InstalledTool, ToolVersion, installed_version
from tests import shared
from tests.recording.tool_facts import NSYS

PROGRAM = ("python", "train.py", "--lr", "1")
FEATURES = ("memory", "gpu_metrics", "python_stacks", "graph_nodes", "overwrite")
WHEN: dict[str, dict[str, Any]] = {
    "always": {},
    "range": {"range_name": "fwd"},
    "range and stop": {"range_name": "fwd@mine", "stop": True},
    "steps": {"steps": RecordedSteps(3, 7)},
    "steps and stop": {"steps": RecordedSteps(3, 7), "stop": True},
    "delay": {"delay_s": 2},
    "duration": {"delay_s": 0.5, "duration_s": 1.5},
    "duration and stop": {"duration_s": 10, "stop": True},
}
NEWEST = NSYS["2025.3.1"].installed(from_help=True)
OLDEST = NSYS["2020.4.3"].installed(from_help=True)


def ask(**what: Any) -> RecordRequest:
    return RecordRequest(PROGRAM, Tool.NSYS, **what)


def options(installed: InstalledTool, request: RecordRequest) -> dict[str, list[str]]:
    command = nsys_command(installed, request, Path("out/run"), PROGRAM)
    start, end = (str(installed.path), "profile"), PROGRAM
    assert command.argv[:2] == start
    assert command.argv[-len(end) :] == end
    values: dict[str, list[str]] = {}
    for argument in command.argv[2 : -len(end)]:
        name, joined, value = argument.partition("=")
        assert joined
        assert name not in values  # nsys refuses an option that comes twice
        values[name] = [value]
    return values


@pytest.mark.parametrize("when", WHEN.values(), ids=WHEN)
@pytest.mark.parametrize("from_help", [True, False], ids=["help", "version"])
@pytest.mark.parametrize("version", NSYS)
def test_every_version_takes_what_it_is_given(
    version: str, from_help: bool, when: dict[str, Any]
) -> None:
    facts = NSYS[version]
    for chosen in itertools.product((False, True), repeat=len(FEATURES)):
        request = ask(**dict(zip(FEATURES, chosen, strict=True)), **when)
        given = options(facts.installed(from_help=from_help), request)
        assert not facts.refused(given)


def test_a_whole_program() -> None:
    command = nsys_command(NEWEST, ask(), Path("out/my run.nsys-rep"), PROGRAM)
    assert str(command) == (
        "/opt/nsys profile --trace=cuda,nvtx,osrt --osrt-threshold=100000 "
        "--osrt-backtrace-threshold=1000000000 --sample=none --cpuctxsw=none "
        "'--output=out/my run' python train.py --lr 1"
    )
    assert command.produces == Path("out/my run.nsys-rep")
    assert command.notes == ()


def test_everything_of_some_steps() -> None:
    request = ask(steps=RecordedSteps(3, 7), overwrite=True, **dict.fromkeys(FEATURES[:4], True))
    assert options(NEWEST, request) == {
        "--trace": ["cuda,nvtx,osrt"],
        "--osrt-threshold": ["100000"],
        "--osrt-backtrace-threshold": ["1000000000"],
        "--python-backtrace": ["cuda"],
        "--sample": ["process-tree"],
        "--cudabacktrace": ["all:0"],
        "--cuda-memory-usage": ["true"],
        "--gpu-metrics-devices": ["cuda-visible"],
        "--cuda-graph-trace": ["node"],
        "--capture-range": ["cudaProfilerApi"],
        "--capture-range-end": ["stop"],
        "--force-overwrite": ["true"],
        "--output": ["out/run"],
    }


def test_a_range_of_any_domain_and_of_one() -> None:
    command = nsys_command(NEWEST, ask(range_name="fwd"), Path("run"), PROGRAM)
    assert str(command).startswith("NSYS_NVTX_PROFILER_REGISTER_ONLY=0 /opt/nsys profile ")
    assert "--capture-range=nvtx" in command.argv
    assert "--nvtx-capture=fwd@*" in command.argv
    assert "--capture-range-end=stop" in command.argv
    given = options(NEWEST, ask(range_name="fwd@mine", stop=True))
    assert given["--nvtx-capture"] == ["fwd@mine"]
    assert given["--capture-range-end"] == ["stop-shutdown"]
    assert given["--kill"] == ["sigterm"]


def test_old_versions_end_a_range_in_their_own_way() -> None:
    given = options(OLDEST, ask(steps=RecordedSteps(3, 7)))
    assert given["--stop-on-range-end"] == ["true"]
    assert given["--kill"] == ["none"]
    assert options(OLDEST, ask(steps=RecordedSteps(3, 7), stop=True))["--kill"] == ["sigterm"]
    command = nsys_command(OLDEST, ask(), Path("run.nsys-rep"), PROGRAM)
    assert command.produces == Path("run.qdrep")


@pytest.mark.parametrize(
    ("version", "feature", "note"),
    [
        ("2020.4.3", "gpu_metrics", "nsys 2020.4.3 cannot sample GPU metrics"),
        ("2020.4.3", "python_stacks", "nsys 2020.4.3 cannot record Python stacks"),
        ("2022.4.2", "python_stacks", "nsys 2022.4.2 cannot record Python stacks"),
    ],
)
def test_what_a_version_lacks_is_said(version: str, feature: str, note: str) -> None:
    installed = NSYS[version].installed(from_help=True)
    command = nsys_command(installed, ask(**{feature: True}), Path("run"), PROGRAM)
    assert [text.startswith(note) for text in command.notes] == [True]
    assert "--sample=none" in command.argv


def test_times_are_tenths_of_a_second_and_lose_nothing() -> None:
    """nsys rounds 0.04 s to none, and then records to the end."""
    result = options(NEWEST, ask(delay_s=1.19, duration_s=0.04))
    assert (result["--delay"], result["--duration"]) == (["1.1"], ["0.1"])
    notes = nsys_command(NEWEST, ask(duration_s=0.04), Path("run"), PROGRAM).notes
    assert notes[0].endswith("takes tenths of a second only: 0.04 s is rounded to 0.1 s")
    assert options(NEWEST, ask(duration_s=1e-9))["--duration"] == ["0.1"]
    exact = nsys_command(NEWEST, ask(delay_s=0.3, duration_s=86400.7), Path("run"), PROGRAM)
    assert {"--delay=0.3", "--duration=86400.7"} <= set(exact.argv)
    assert exact.notes == ()


@pytest.mark.parametrize("times", [{"delay_s": 3e6}, {"duration_s": 1e12}])
def test_times_that_nsys_takes_for_none_are_refused(times: dict[str, float]) -> None:
    with pytest.raises(RecordError, match="longer than nsys supports"):
        nsys_command(NEWEST, ask(**times), Path("run"), PROGRAM)


def test_times_are_whole_seconds_for_old_versions_and_lose_nothing() -> None:
    request = ask(delay_s=1.5, duration_s=0.25)
    old = options(NSYS["2022.4.2"].installed(from_help=True), request)
    assert (old["--delay"], old["--duration"]) == (["1"], ["1"])
    notes = nsys_command(OLDEST, request, Path("run"), PROGRAM).notes
    assert [note.partition(": ")[2] for note in notes] == [
        "1.5 s is rounded to 1 s",
        "0.25 s is rounded to 1 s",
    ]


@pytest.mark.parametrize(("version", "delay_s"), [("2022.4.2", 0.5), ("2025.3.1", 0)])
def test_no_delay_is_not_written(version: str, delay_s: float) -> None:
    installed = NSYS[version].installed(from_help=True)
    assert "--delay" not in options(installed, ask(delay_s=delay_s, duration_s=1))


def test_a_program_that_nsys_leaves_behind_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert nsys_command(NEWEST, ask(duration_s=5), Path("run"), PROGRAM).notes == ()
    monkeypatch.setattr(sys, "platform", "win32")
    [note] = nsys_command(NEWEST, ask(duration_s=5), Path("run"), PROGRAM).notes
    assert note.startswith("nsys 2025.3.1 ends with the 5 s")
    assert "exit code" in note
    assert nsys_command(NEWEST, ask(duration_s=5, stop=True), Path("run"), PROGRAM).notes == ()


def test_the_user_s_own_options_take_the_place_of_ours() -> None:
    given = options(NEWEST, ask(extra=("-t=cuda", "--sample=process-tree", "--stats=true")))
    assert given["--sample"] == ["process-tree"]
    assert "--trace" not in given
    assert given["--stats"] == ["true"]
    with pytest.raises(UsageError, match="--output"):
        nsys_command(NEWEST, ask(extra=("-o", "x")), Path("run"), PROGRAM)


def test_percent_signs_in_names_are_not_macros() -> None:
    command = nsys_command(NEWEST, ask(), Path("50%p.rank0"), PROGRAM)
    assert "--output=50%%p.rank0" in command.argv
    assert command.produces == Path("50%p.rank0.nsys-rep")


def test_environments_are_left_out_where_nsys_can() -> None:
    listed = {**NSYS["2025.3.1"].options, "--discard-environment": frozenset({"true", "false"})}
    newer = replace(NEWEST, version=ToolVersion(2026, 2), help_options=listed)
    assert options(newer, ask())["--discard-environment"] == ["true"]


def test_a_tool_newer_than_any_known_gets_what_its_help_lists() -> None:
    listed = {name: v for name, v in NSYS["2025.3.1"].options.items() if name != "--cpuctxsw"}
    listed["--gpu-metrics-devices"] = frozenset({"all"})
    newer = replace(NEWEST, version=ToolVersion(2031, 1), help_options=listed)
    given = options(newer, ask(gpu_metrics=True))
    assert "--cpuctxsw" not in given
    assert given["--gpu-metrics-devices"] == ["all"]


def test_what_cannot_be_left_out_is_not_left_out() -> None:
    listed = {name: v for name, v in NSYS["2025.3.1"].options.items() if name != "--capture-range"}
    newer = replace(NEWEST, version=ToolVersion(2031, 1), help_options=listed)
    with pytest.raises(RecordError, match=r"nsys 2031\.1\.0 does not support --capture-range"):
        options(newer, ask(range_name="fwd"))


# With NVIDIA's own nsys, which profiles programs without a GPU too.

MARKED = """
import sys
from gpusight.recording.inside.annotate import annotate
for step in range(5):
    with annotate(f"step_{step}"), annotate("inner"):
        pass
sys.exit(3)
"""


def real() -> InstalledTool:
    path = shared.tool("nsys", "nsys/target-linux-x64/nsys")
    version = installed_version(path)
    assert isinstance(version, ToolVersion)
    return InstalledTool(Tool.NSYS, Path(path), version)


def run(
    request: RecordRequest, output: Path, program: tuple[str, ...]
) -> tuple[subprocess.CompletedProcess[str], Path]:
    command = nsys_command(real(), request, output, program)
    done = subprocess.run(
        command.argv,
        env={**os.environ, **command.environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done, command.produces


@pytest.mark.oracle
@pytest.mark.parametrize(
    "when", [*WHEN.values(), {"python_stacks": True}], ids=[*WHEN, "python stacks"]
)
def test_nsys_itself_accepts_it(when: dict[str, Any], tmp_path: Path) -> None:
    # Not GPU metrics: nsys looks for GPUs that have some while it reads its options.
    features = dict.fromkeys(("memory", "graph_nodes", "overwrite"), True)
    done, _ = run(ask(**features, **when), tmp_path / "run", ("true",))
    output = done.stdout + done.stderr
    assert "unrecognised" not in output
    assert "Illegal" not in output
    assert "usage:" not in output


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("when", "ranges"),
    [({}, 10), ({"range_name": "step_3"}, 2)],
    ids=["whole program", "one range"],
)
def test_nsys_itself_records_it(when: dict[str, Any], ranges: int, tmp_path: Path) -> None:
    done, produced = run(ask(**when), tmp_path / "my.run%", (sys.executable, "-c", MARKED))
    assert done.returncode == 3, done.stderr
    assert produced.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["my.run%.nsys-rep"]
    with gs.open(produced) as trace:
        assert trace.row_count("ranges") == ranges


@pytest.mark.oracle
def test_nsys_itself_ends_the_program(tmp_path: Path) -> None:
    sleeper = (sys.executable, "-c", "import time; time.sleep(4)")
    done, produced = run(ask(duration_s=1, stop=True), tmp_path / "run", sleeper)
    assert done.returncode == 128 + 15
    assert produced.exists()
