"""The source tree: names found once, pages that name existing files, packages that hide nothing."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import gpusight as gs
from gpusight.errors import DOCS_URL

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "src" / "gpusight"
TESTS = REPOSITORY / "tests"
MODULES = [path for path in SOURCE.rglob("*.py") if path.name != "__init__.py"]
PAGES = [
    *("docs/architecture.md", "docs/guide.md", "docs/ledger.md", "docs/usage.md"),
    *("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"),
]


@pytest.mark.parametrize("page", PAGES)
def test_links_of_pages_lead_to_files(page: str) -> None:
    path = REPOSITORY / page
    # Links of the README are absolute, because PyPI shows it; tests/test_readme.py has those.
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)", path.read_text("utf-8"))
    assert links or page == "README.md"
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_paths_that_pages_name_exist(page: str) -> None:
    text = (REPOSITORY / page).read_text("utf-8")
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir()}
    named = re.findall(r"`((?:src/gpusight/)?(\w+)/[\w/]+\.py)`", text)
    own = [path.removeprefix("src/gpusight/") for path, folder in named if folder in folders]
    assert [path for path in own if not (SOURCE / path).exists()] == []


def test_recipes_of_contributing_are_lines_of_the_tree() -> None:
    """What stands between dots of a line stands in that file; white space does not count."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text("utf-8")
    wrong, lines = [], 0
    for block in re.findall(r"```diff\n(.*?)```", text, re.DOTALL):
        content = ""
        for line in block.splitlines():
            if line.startswith("+++ b/"):
                content = "".join((REPOSITORY / line.removeprefix("+++ b/")).read_text().split())
                continue
            lines += 1
            for part in re.split(r"; |…", line.removeprefix("+")):
                code = "".join(part.split()).strip("),=")
                names = code.split(",") if re.fullmatch(r"[\w,]+", code) else [code]
                wrong += [line for name in names if name not in content]
    assert wrong == []
    assert lines >= 30


def test_messages_point_to_pages_that_exist_online() -> None:
    """Packages do not contain `docs/`: messages have the address of a page instead of its path."""
    sources = [path.read_text("utf-8") for path in MODULES]
    named = {page for text in sources for page in re.findall(r"\{DOCS_URL\}/([\w-]+\.md)", text)}
    assert len(named) >= 5
    assert [page for page in named if not (REPOSITORY / "docs" / page).exists()] == []
    project = (REPOSITORY / "pyproject.toml").read_text("utf-8")
    assert f'Repository = "{DOCS_URL.removesuffix("/blob/main/docs")}"' in project
    commands = SOURCE / "cli" / "commands"
    assert [p.name for p in commands.glob("*.py") if "docs/" in p.read_text("utf-8")] == []


def test_the_tour_names_every_package() -> None:
    tour = (REPOSITORY / "docs" / "architecture.md").read_text("utf-8")
    packages = [path.parent.name for path in SOURCE.glob("*/__init__.py")]
    assert [name for name in packages if f"{name}/" not in tour] == []


def test_the_tour_names_where_each_thing_is_done() -> None:
    tour = (REPOSITORY / "docs" / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| .+ \| \[([\w/.]+)\]\(.+\) \| `(\w+)` \|$", tour, re.MULTILINE)
    assert len(rows) >= 15
    for file, name in rows:
        defined = rf"^(def|class) {name}\b|^{name}\b.*="
        assert re.search(defined, (SOURCE / file).read_text("utf-8"), re.MULTILINE), (file, name)


def test_a_module_name_is_found_once() -> None:
    counts = Counter(path.stem for path in MODULES)
    assert [name for name, count in counts.items() if count > 1] == []


def test_a_public_class_name_is_found_once() -> None:
    trees = (ast.parse(path.read_text("utf-8")) for path in MODULES)
    names = [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    counts = Counter(name for name in names if not name.startswith("_"))
    assert [name for name, count in counts.items() if count > 1] == []


def test_no_module_hides_a_function_of_the_package() -> None:
    """Importing `gpusight.x` sets the attribute `x` of the package."""
    children = {path.stem for path in SOURCE.glob("*.py")}
    children |= {path.name for path in SOURCE.iterdir() if path.is_dir()}
    assert children & set(gs.__all__) <= {"errors"}


MAX_FILES_OF_A_DIAGNOSIS = 125
"""Files of the package whose code runs from a capture to its diagnosis."""


def test_few_files_run_on_the_way_to_a_diagnosis() -> None:
    """What a capture does not need, such as stacks, scenarios or the demangler, is not loaded."""
    traced = runpy.run_path(str(REPOSITORY / "scripts" / "measure-code"))["TRACED"]
    capture = str(TESTS / "data" / "dataload.nsys-rep")
    command = [sys.executable, "-c", traced, capture]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    files, functions = map(int, done.stdout.split())
    assert files <= MAX_FILES_OF_A_DIAGNOSIS
    assert functions > 1_000


SPECIAL = {"browser", "faults", "goldens"}  # what several modules do together


def _has_module(test: Path) -> bool:
    folder = SOURCE / test.parent.relative_to(TESTS)
    topic = test.stem.removeprefix("test_")
    return any(f"{topic}_".startswith(f"{path.stem}_") for path in folder.glob("*.py"))


def test_tests_mirror_the_tree() -> None:
    """The test of `x/y.py` is `tests/x/test_y.py`, or `tests/x/test_y_topic.py`."""
    tests = [path for path in TESTS.rglob("test_*.py") if path.parent != TESTS]
    own = [path for path in tests if path.relative_to(TESTS).parts[0] not in SPECIAL]
    assert len(own) > 100
    assert [str(path.relative_to(TESTS)) for path in own if not _has_module(path)] == []


def test_every_rule_has_a_test_of_its_own() -> None:
    rules = [
        path for kind in ("timeline", "kernel") for path in (SOURCE / "rules" / kind).glob("*")
    ]
    names = [path.relative_to(SOURCE) for path in rules if path.suffix == ".py"]
    names = [name for name in names if name.stem != "__init__"]
    assert len(names) > 40
    untested = [n for n in names if not (TESTS / n.with_name(f"test_{n.name}")).exists()]
    assert untested == []
