"""Finding nsys and ncu: which one is taken, and what is said of those that do not run."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpusight.errors import RecordError
from gpusight.recording import ncu_command, nsys_command, tools
from gpusight.recording.doctor.machine import Machine
from gpusight.recording.request import Tool
from gpusight.recording.tools import (
    BrokenTool,
    InstalledTool,
    ToolOption,
    ToolVersion,
    every_tool,
    find_tool,
    on_path,
    read_help,
    require_tool,
)
from tests import shared
from tests.recording.tool_facts import NCU, NSYS, Facts

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the tools here are shell scripts")

NCU_VERSION = """NVIDIA (R) Nsight Compute Command Line Profiler
Copyright (c) 2018-2021 NVIDIA Corporation
Version 2020.3.1.0 (build 29567428) (public-release)
"""
NSYS_HELP = """
usage: nsys profile [<args>]

»-s, --sample=

»   Possible values are 'process-tree' or 'none'.
»   Select the entity to sample, not 'this'.

»(Experimental) --export=<format>[,<format>...]

»   Possible formats are: none sqlite
»   Create additional output file(s).

»--gpu-metrics-devices=

»   Possible values are:
»     'none', 'all',
»   or a comma separated list of GPU IDs reported by '--gpu-metrics-devices=help' switch.

»-d, --duration=

»   Collection duration in seconds.

»-o, --output=

»   Output report filename.

»-t, --trace=

»   Possible values are 'cuda', 'cuda-hw',
»   'nvtx' or 'none'.
""".replace("»", "\t")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing on it."""
    for variable in ("GPUSIGHT_NSYS", "GPUSIGHT_NCU", "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    monkeypatch.setattr(tools, "_ROOT", tmp_path)
    monkeypatch.setattr(tools, "_ANSWER_SECONDS", 2)
    return tmp_path


def put(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def put_version(path: Path, version: str) -> Path:
    return put(path, f"echo NVIDIA Nsight Systems version {version}")


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("NVIDIA Nsight Systems version 2025.3.1.0", ToolVersion(2025, 3, 1)),
        ("NVIDIA Nsight Systems version 2023.4.4.54-234433681190v0", ToolVersion(2023, 4, 4)),
        (NCU_VERSION, ToolVersion(2020, 3, 1)),
        ("2021.1", ToolVersion(2021, 1, 0)),
        ("Copyright (c) 2018-2021", None),
    ],
)
def test_versions_are_read_from_what_the_tools_print(
    printed: str, version: ToolVersion | None
) -> None:
    assert ToolVersion.parse(printed) == version


def test_versions_compare_by_number() -> None:
    assert ToolVersion(2024, 10) > ToolVersion(2024, 9, 9)
    assert str(ToolVersion(2024, 10)) == "2024.10.0"


def test_nothing_is_found_where_nothing_is() -> None:
    assert every_tool(Tool.NSYS) == []
    assert find_tool(Tool.NSYS) is None
    with pytest.raises(RecordError, match="none was found") as error:
        require_tool(Tool.NSYS)
    assert "GPUSIGHT_NSYS" in str(error.value)
    assert "gpusight doctor" in str(error.value)


def test_the_newest_is_taken_wherever_it_is(root: Path) -> None:
    on_path = put_version(root / "path/nsys", "2023.4.4")
    newest = put_version(
        root / "opt/nvidia/nsight-compute/2025.3.1/host/target-linux-x64/nsys", "2025.3.1.0"
    )
    old = put_version(root / "opt/nvidia/nsight-systems/2021.5.2/bin/nsys", "2021.5.2.53-28d0e6e")
    assert [result.path for result in every_tool(Tool.NSYS)] == [newest, on_path, old]
    taken = require_tool(Tool.NSYS)
    assert (taken.path, str(taken)) == (newest, "nsys 2025.3.1")


@pytest.mark.parametrize("entries", ["", ":/usr/bin", "/usr/bin:", "/usr/bin::/bin", ".", "sub"])
def test_a_tool_in_the_current_folder_is_not_run(
    root: Path, monkeypatch: pytest.MonkeyPatch, entries: str
) -> None:
    for place in ("nsys", "sub/nsys", "bin/nsys"):
        put(root / place, f"touch {root}/ran; echo NVIDIA Nsight Systems version 2025.3.1")
    monkeypatch.chdir(root)
    monkeypatch.setenv("PATH", entries)
    monkeypatch.setenv("CUDA_HOME", ".")
    assert every_tool(Tool.NSYS) == []
    assert Machine().which("nsys") is None
    assert on_path("./nsys") == "./nsys"  # who names the place means it
    assert not (root / "ran").exists()


def test_of_the_same_version_the_one_on_the_path_is_taken(root: Path) -> None:
    on_path = put_version(root / "path/ncu", "2025.3.1.0")
    put_version(root / "opt/nvidia/nsight-compute/2025.3.1/ncu", "2025.3.1.0")
    assert require_tool(Tool.NCU).path == on_path


def test_a_link_to_a_tool_is_not_another_tool(root: Path) -> None:
    real = put_version(root / "opt/nvidia/nsight-systems/2025.1.1/bin/nsys", "2025.1.1")
    (root / "path").mkdir()
    (root / "path/nsys").symlink_to(real)
    assert len(every_tool(Tool.NSYS)) == 1


def test_cuda_s_folder_is_looked_into(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_version(root / "cuda/bin/ncu", "2024.1.1")
    monkeypatch.setenv("CUDA_HOME", str(root / "cuda"))
    assert require_tool(Tool.NCU).version == ToolVersion(2024, 1, 1)


def test_the_users_choice_is_the_only_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_version(root / "path/nsys", "2025.3.1")
    chosen = put_version(root / "mine/nsys-old", "2022.4.2")
    monkeypatch.setenv("GPUSIGHT_NSYS", str(chosen))
    assert require_tool(Tool.NSYS).path == chosen
    monkeypatch.setenv("GPUSIGHT_NSYS", str(root / "nowhere"))
    with pytest.raises(
        RecordError, match=r"GPUSIGHT_NSYS is set, and .*nowhere does not start: No such"
    ):
        require_tool(Tool.NSYS)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("echo libdw.so.1: cannot open shared object file >&2; exit 127", "exit code 127 libdw.so"),
        ("echo hello", "its version is unknown"),
        ("exec sleep 9", "no answer within 2 s"),
    ],
)
def test_one_that_does_not_run_is_passed_over_and_remembered(
    root: Path, body: str, why: str
) -> None:
    broken = put(root / "path/nsys", body)
    put_version(root / "usr/local/cuda-12.4/bin/nsys", "2023.4.4")
    working, remembered = every_tool(Tool.NSYS)
    assert isinstance(working, InstalledTool)
    assert isinstance(remembered, BrokenTool)
    assert remembered.path == broken
    assert remembered.why.startswith(why)
    result = find_tool(Tool.NSYS)
    assert result is not None
    assert result.version == ToolVersion(2023, 4, 4)


def test_what_a_hanging_tool_started_ends_with_it(root: Path) -> None:
    put(root / "path/nsys", f"sleep 60 & echo $! > {root}/pid; wait")
    began = time.monotonic()
    with pytest.raises(RecordError, match="no answer within 2 s"):
        require_tool(Tool.NSYS)
    assert time.monotonic() - began < 3.9  # it is asked once
    pid = int((root / "pid").read_text())
    deadline = time.monotonic() + 5
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    """Tell whether a process is there and not dead; an orphan may wait for its new parent."""
    done = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return bool(done.stdout.strip()) and not done.stdout.startswith("Z")


def test_the_tool_s_own_help_is_asked(root: Path) -> None:
    (root / "help").write_text(NSYS_HELP)
    put(
        root / "path/nsys",
        f'[ "$1" = profile ] && exec cat {root}/help\necho version 2099.1.1',
    )
    result = require_tool(Tool.NSYS)
    assert result.help_options == {
        "--sample": {"process-tree", "none"},
        "--export": {"none", "sqlite"},
        "--gpu-metrics-devices": {"none", "all"},
        "--duration": frozenset(),
        "--output": frozenset(),
        "--trace": {"cuda", "cuda-hw", "nvtx", "none"},
    }
    assert result.spelling(nsys_command.DURATION) == "--duration"
    # By the table every version has it; this one's help says otherwise.
    assert result.spelling(nsys_command.MEMORY) is None
    assert result.lists(nsys_command.GPU_METRICS, "all")
    assert not result.lists(nsys_command.GPU_METRICS, "cuda-visible")


@pytest.mark.parametrize("help_", ["exit 1", "echo Options: --trace", "exec sleep 9"])
def test_without_its_help_the_version_decides(root: Path, help_: str) -> None:
    put(root / "path/nsys", f'[ "$1" = profile ] && {help_} && exit\necho version 2022.4.2')
    result = require_tool(Tool.NSYS)
    assert result.help_options is None
    assert result.spelling(nsys_command.GPU_METRICS) == "--gpu-metrics-device"
    assert result.spelling(nsys_command.PYTHON_STACKS) is None


@pytest.mark.parametrize("facts", [*NSYS.values(), *NCU.values()], ids=str)
def test_the_table_and_the_help_agree_on_every_option(facts: Facts) -> None:
    helped, tabled = facts.installed(from_help=True), facts.installed(from_help=False)
    module = nsys_command if facts.tool is Tool.NSYS else ncu_command
    options = [value for value in vars(module).values() if isinstance(value, ToolOption)]
    assert len(options) > 15
    for option in options:
        assert tabled.spelling(option) == helped.spelling(option)


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("name", "usual", "arguments"),
    [
        (Tool.NSYS, "nsys/target-linux-x64/nsys", ("profile", "--help")),
        (Tool.NCU, "nsight-compute/ncu", ("--help",)),
    ],
)
def test_what_is_written_down_of_a_version_is_what_it_says(
    name: Tool, usual: str, arguments: tuple[str, ...]
) -> None:
    path = shared.tool(name.value, usual)
    version = tools.installed_version(path)
    known = (NSYS if name is Tool.NSYS else NCU).get(str(version))
    if known is None:
        pytest.skip(f"{name.value} {version} is not written down")
    process = subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout
    assert read_help(name, process) == known.options
