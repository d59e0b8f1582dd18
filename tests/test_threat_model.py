"""Each promise of the threat model names the test that holds it, and that test exists."""

from __future__ import annotations

import re

import pytest

from tests.shared import REPOSITORY

PAGE = REPOSITORY / "docs" / "threat-model.md"
_LINK = re.compile(r"\[`(tests/[\w/]+\.py)(?:::(test_\w+))?`\]\(\.\./(tests/[\w/]+\.py)\)")
_ROW = re.compile(r"^\| (?!promise|asset|---)(.+?) \| (.+) \|$", re.MULTILINE)


def _promises() -> list[tuple[str, str]]:
    parts = PAGE.read_text().split("| promise | held by |")[1:]
    return [row for part in parts for row in _ROW.findall(part.partition("\n## ")[0])]


def test_every_promise_has_a_test() -> None:
    promises = _promises()
    assert len(promises) > 20
    assert [promise for promise, held_by in promises if not _LINK.search(held_by)] == []


@pytest.mark.parametrize(("path", "test", "target"), _LINK.findall(PAGE.read_text()))
def test_the_tests_exist(path: str, test: str, target: str) -> None:
    assert path == target
    source = (REPOSITORY / path).read_text()
    assert f"def {test}(" in source if test else "\ndef test_" in source


@pytest.mark.parametrize("page", ["SECURITY.md", "README.md", "docs/threat-model.md"])
def test_security_pages_link_to_files_that_exist(page: str) -> None:
    text = (REPOSITORY / page).read_text()
    folder = (REPOSITORY / page).parent
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)", text)
    assert [link for link in links if not (folder / link).exists()] == []


def test_the_pages_are_linked_from_the_readme() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    for page in ("SECURITY.md", "docs/threat-model.md", "docs/licences.md", "docs/reliability.md"):
        assert f"/{page})" in readme
