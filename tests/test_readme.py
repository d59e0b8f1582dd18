"""The README and the usage page: short, true, and the same on PyPI as in the repository."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from tools.page_blocks import repository_url

import gpusight as gs
from gpusight.cli.main import build_parser
from tests.shared import REPOSITORY, SHARED, needs_shared

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

README = (REPOSITORY / "README.md").read_text("utf-8")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
PAGES = ("README.md", "docs/usage.md", "docs/guide.md")
URL = repository_url()
RAW = URL.replace("github.com", "raw.githubusercontent.com")


def _tokens(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def _fences(page: str, language: str) -> Iterator[str]:
    for token in _tokens((REPOSITORY / page).read_text("utf-8")):
        if token.type == "fence" and token.info == language:
            yield token.content


def _commands(page: str) -> Iterator[str]:
    for block in _fences(page, "sh"):
        for line in block.splitlines():
            command = line.partition(" #")[0].strip()
            if command.startswith("gpusight "):
                yield command


def test_it_is_short() -> None:
    assert len(README.splitlines()) < 150
    first = _tokens(README)[4].content
    assert len(re.findall(r"[.?!](?:\s|$)", first)) == 3, "what it is, in three sentences"


def test_it_has_one_picture() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert len(pictures) == 1
    assert pictures[0].startswith(f"{RAW}/main/")
    assert (REPOSITORY / pictures[0].removeprefix(f"{RAW}/main/")).is_file()


def test_links_work_on_pypi() -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", README)
    assert len(links) > 20
    assert [link for link in links if not link.startswith("https://")] == []
    own = [link.removeprefix(f"{URL}/blob/main/") for link in links if link.startswith(URL)]
    assert [path for path in own if not (REPOSITORY / path.partition("#")[0]).is_file()] == []


def test_the_metadata_is_complete() -> None:
    assert PROJECT["readme"] == "README.md"
    assert {"Repository", "Documentation", "Changelog", "Issues"} <= set(PROJECT["urls"])
    assert all(url.startswith(URL) for url in PROJECT["urls"].values())
    classifiers = pytest.importorskip("trove_classifiers").classifiers
    assert set(PROJECT["classifiers"]) <= set(classifiers)
    assert len(PROJECT["description"]) < 200


def test_what_it_says_of_the_installation_is_so() -> None:
    assert f"Python {PROJECT['requires-python'].removeprefix('>=')} or newer" in README
    extras = re.findall(r"gpusight\[(\w+)\]", README)
    assert extras
    assert set(extras) <= set(PROJECT["optional-dependencies"])
    assert (REPOSITORY / "scripts" / "demo").is_file()


def test_it_renders() -> None:
    tokens = _tokens(README)
    kinds = [token.type for token in tokens]
    assert kinds.count("table_open") == 2
    assert [t.content for t in tokens if t.type == "html_block" and "<!--" not in t.content] == []
    rows = [line for line in README.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {5, 7}, "every row of a table has all its cells"
    assert "|" not in "".join(t.content for t in tokens if t.type == "inline" and "\n" in t.content)


@pytest.mark.parametrize("page", PAGES)
def test_commands_parse(page: str) -> None:
    commands = list(_commands(page))
    assert len(commands) > 10
    for command in commands:
        build_parser().parse_args(shlex.split(command)[1:])


@pytest.mark.parametrize("page", ["README.md", "docs/usage.md"])
def test_python_uses_names_that_exist(page: str) -> None:
    blocks = list(_fences(page, "python"))
    assert blocks
    for block in blocks:
        nodes = (node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Attribute))
        used = {n.attr for n in nodes if isinstance(n.value, ast.Name) and n.value.id == "gs"}
        assert used <= set(gs.__all__)


def test_the_python_example_works(tmp_path: Path) -> None:
    demo = Path(gs.__file__).parent / "data" / "demo.sqlite"
    assert gs.diagnose(demo).to_dict()["findings"]
    assert gs.kernels(demo, within="forward").frame.height
    gs.compare(demo, demo).save(tmp_path / "compare.html")
    assert (tmp_path / "compare.html").stat().st_size


def test_measured_times_are_those_of_the_benchmark_page() -> None:
    measured = (REPOSITORY / "docs" / "performance.md").read_text("utf-8").splitlines()
    rows = [line for line in README.splitlines() if re.search(r"\d×", line)]
    assert rows
    assert [row for row in rows if row not in measured] == []


def test_every_page_is_linked() -> None:
    """From the README, or from a page that it links to for details."""
    pages = ("docs/usage.md", "docs/capture.md", "docs/ledger.md", "docs/timeline.md")
    texts = [README, *((REPOSITORY / page).read_text("utf-8") for page in pages)]
    names = [path.name for path in (REPOSITORY / "docs").glob("*.md")]
    assert [name for name in names if not any(name in text for text in texts)] == []


@needs_shared
def test_the_prediction_is_what_the_real_change_took() -> None:
    before = SHARED / "nsys" / "gpt_small_train.sqlite"
    what_if = gs.whatif(gs.open(before, pace="off"), precision="bf16", fuse=["optimizer"]).answer
    predicted_ns = (what_if.measured_ns - what_if.saved_ns) / what_if.per_step
    after = SHARED / "nsys" / "gpt_small_train_bf16_fused.sqlite"
    real = gs.steps(gs.open(after, pace="off")).answer
    real_ns = next(fact.value for fact in real.facts if fact.key == "step_ns")
    text = " ".join(README.split())
    now_ns = what_if.measured_ns / what_if.per_step
    predicted = f"predicts {predicted_ns / 1e6:.1f} ms/step under nsys"
    assert f"{predicted} instead of {now_ns / 1e6:.1f}" in text
    assert f"took {real_ns / 1e6:.1f} ms/step under nsys" in text
