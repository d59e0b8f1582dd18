"""`gpusight completion`: the scripts load and complete; zsh is not run."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from gpusight.cli.commands import COMMANDS
from gpusight.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

SHELLS = ("bash", "zsh", "fish")
COMPLETE = """
source {script}
COMP_WORDS=({words}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_gpusight
printf '%s\\n' "${{COMPREPLY[@]}}"
complete -p gpusight >&2
"""


@pytest.fixture
def script(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> str:
    shell = getattr(request, "param", "bash")
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def complete(script: str, folder: Path, *words: str) -> list[str]:
    path = folder / "gpusight.bash"
    path.write_text(script)
    line = COMPLETE.format(script=path, words=" ".join(f"'{word}'" for word in words))
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, capture_output=True, text=True, check=True
    )
    assert "_gpusight gpusight" in done.stderr
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (("gpusight", "kern"), ["kernels"]),
        (("gpusight", "expl"), ["explain"]),
        (("gpusight", "--ver"), ["--version"]),
        (("gpusight", "help", "occ"), ["occupancy"]),
        (("gpusight", "diagnose", "--det"), ["--details"]),
        (("gpusight", "diagnose", "x.sqlite", "--list"), ["--list-rules"]),
        (("gpusight", "baseline", "sa"), ["save"]),
        (("gpusight", "completion", "fi"), ["fish"]),
        (("gpusight", "demo", "tor"), ["torch"]),
        (("gpusight", "diagnose", "run"), ["run.nsys-rep"]),
        (("gpusight", "run"), ["run.nsys-rep"]),
        (("gpusight", "diagnose", "--format", "j"), ["json"]),
        (("gpusight", "diagnose", "--format", "=", "m"), ["markdown"]),
        (("gpusight", "diagnose", "--format", "r"), []),  # no file is a format
        (("gpusight", "diagnose", "-o", "r"), ["run.nsys-rep"]),
        (("gpusight", "diagnose", "--rule", "page-"), ["page-faults"]),
        (("gpusight", "whatif", "x.sqlite", "--apply", "page-"), ["page-faults"]),
        (("gpusight", "explain", "x.sqlite", "page-"), ["page-faults"]),
        (("gpusight", "nothing-like-this"), []),
    ],
)
def test_bash_completes(
    words: tuple[str, ...], completed: list[str], script: str, tmp_path: Path
) -> None:
    (tmp_path / "run.nsys-rep").touch()
    assert complete(script, tmp_path, *words) == completed


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
@pytest.mark.parametrize("script", ["fish"], indirect=True)
@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("gpusight kern", "kernels"),
        ("gpusight help occ", "occupancy"),
        ("gpusight diagnose --format j", "json"),
        ("gpusight explain x.sqlite page-", "page-faults"),
    ],
)
def test_fish_completes(line: str, completed: str, script: str, tmp_path: Path) -> None:
    (tmp_path / "gpusight.fish").write_text(script)
    ask = f"source gpusight.fish; complete -C '{line}'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert [row.split("\t")[0] for row in done.stdout.splitlines()] == [completed]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_lists_every_command(script: str, tmp_path: Path) -> None:
    assert set(COMMANDS) <= set(complete(script, tmp_path, "gpusight", ""))


@pytest.mark.parametrize("script", SHELLS, indirect=True)
def test_every_shell_has_commands_and_options(script: str) -> None:
    assert script.isascii()
    for name in COMMANDS:
        assert re.search(rf"\b{name}\b", script), name
    for option in ("details", "list-rules", "fail-over"):
        assert option in script


@pytest.mark.parametrize("script", ["zsh"], indirect=True)
def test_zsh_quotes_are_closed(script: str) -> None:
    assert script.startswith("#compdef gpusight\n")
    listed = re.findall(r"^    '(\w+):(?:[^']|'\\'')+'$", script, re.MULTILINE)
    assert listed == list(COMMANDS)
    assert script.count("case ") == script.count("esac") == 1


@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish_lines_are_one_option_each(script: str) -> None:
    _, *lines = script.splitlines()
    option = re.compile(
        r"complete -c gpusight -n (?:__fish_use_subcommand|'__fish_seen_subcommand_from \w+') "
        r"(?:-a [\w-]+(?: -d '(?:[^']|'\\'')+')?|-l [\w-]+|-s \w|-x -a '[\w -]+')"
        r"(?: -r| -x -a '[\w -]+')?"
    )
    assert [line for line in lines if not option.fullmatch(line)] == []
