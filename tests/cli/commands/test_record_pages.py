"""The pages about capturing: every command in them is one that the real parser takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gpusight.cli.commands import COMMANDS
from gpusight.cli.commands.record import _request
from gpusight.cli.main import build_parser
from gpusight.recording.ncu_command import filter_for, ncu_command
from gpusight.recording.nsys_command import nsys_command
from gpusight.recording.request import Tool
from gpusight.recording.tools import InstalledTool, ToolCommand, ToolVersion
from tests.shared import REPOSITORY

DOCS = REPOSITORY / "docs"
PAGES = sorted([*DOCS.glob("capture*.md"), DOCS / "guide.md"])
FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.S | re.M)
BY_HAND = re.compile(r"^# (gpusight record .*)\n((?:.*\\\n)*.*)", re.M)
MODEL = (2025, 3, 1)
"""The version that the pages show command lines of."""


def shell_lines(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    blocks = (result[2] for result in FENCED.finditer(text) if result[1] == "sh")
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def gpusight_words(line: str) -> list[str] | None:
    """Give the arguments of the `gpusight` in a line, which a launcher may stand before."""
    if line.startswith("#"):
        line = line.removeprefix("# ")
        if not line.startswith("gpusight "):
            return None
    words = shlex.split(line, comments=True)
    return words[words.index("gpusight") + 1 :] if "gpusight" in words else None


def by_hand() -> list[tuple[str, str]]:
    pages = (page.read_text(encoding="utf-8") for page in PAGES)
    return [(result[1], result[2]) for text in pages for result in BY_HAND.finditer(text)]


def built(line: str) -> ToolCommand:
    request = _request(build_parser().parse_args(shlex.split(line)[1:]))
    tool = request.tool or Tool.NSYS
    installed = InstalledTool(tool, Path(tool.value), ToolVersion(*MODEL))
    if tool is Tool.NSYS:
        return nsys_command(installed, request, Path("train"), request.program)
    filters = filter_for(request)
    return ncu_command(installed, request.program, Path("train"), filters, request.level)


def test_the_pages_are_there() -> None:
    names = {page.stem for page in PAGES}
    ways = {"nsys", "ncu", "torch", "callbacks", "mpi-slurm", "containers", "wsl2"}
    assert names == {"guide", "capture", *(f"capture-{way}" for way in ways)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_line_is_taken_by_the_parser(page: Path) -> None:
    parser = build_parser()
    result = [words for words in map(gpusight_words, shell_lines(page)) if words is not None]
    assert result, "a page about capturing without a command"
    for words in result:
        assert parser.parse_args(words).command == words[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_that_a_sentence_names_exists(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    for name in re.findall(r"`gpusight (\w+)", text):
        assert name in COMMANDS, f"{page.name} speaks of gpusight {name}"


@pytest.mark.parametrize(("line", "shown"), by_hand(), ids=lambda text: text[:60])
def test_what_is_shown_by_hand_is_what_record_runs(line: str, shown: str) -> None:
    assert shlex.split(shown.replace("\\\n", " ")) == shlex.split(str(built(line)))


def test_by_hand_is_shown_for_both_tools() -> None:
    tools = {
        shown.partition("=1 ")[2].split()[0] if "=1 " in shown else "nsys" for _, shown in by_hand()
    }
    assert tools == {"nsys", "ncu"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([\w-]+\.md)(?:#([\w-]+))?\)", text):
        linked = (DOCS / target).read_text(encoding="utf-8")
        headings = {_anchor(heading) for heading in re.findall(r"^#+ (.*)$", linked, re.M)}
        assert not anchor or anchor in headings, f"{page.name} links to {target}#{anchor}"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
