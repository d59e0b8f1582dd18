"""Documentation is a test: pages equal what the code says."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from tools.generate_docs import PAGES, SECTIONS, main

from gpusight.cli.commands import COMMANDS
from gpusight.results import Field
from tests.shared import REPOSITORY

DOCS = REPOSITORY / "docs"


@pytest.mark.parametrize("name", sorted(PAGES))
def test_pages_are_up_to_date(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    assert text == PAGES[name](), "run scripts/generate-docs"


def test_check_and_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    assert main([str(docs), "--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert main([str(docs)]) == 0
    assert main([str(docs), "--check"]) == 0


def test_every_command_is_documented() -> None:
    page = PAGES["cli.md"]()
    for name, command in COMMANDS.items():
        assert f"## `gpusight {name}`" in page
        assert command.EXAMPLES
        assert all(f"gpusight {name}" in e for e in command.EXAMPLES)


def test_percent_signs_are_not_argparse_s() -> None:
    assert "%%" not in PAGES["cli.md"]()


def test_every_declared_field_is_documented() -> None:
    places = {place for sections in SECTIONS.values() for place in sections.values()}
    places.add("gpusight.analysis.memory.memory_usage:FACT_FIELDS")  # docs/memory.md has them
    for module_name in {place.partition(":")[0] for place in places}:
        module = importlib.import_module(module_name)
        for name, value in vars(module).items():
            public = name.endswith("FIELDS") and not name.startswith("_")
            if public and all(isinstance(f, Field) for f in value):
                assert f"{module_name}:{name}" in places
